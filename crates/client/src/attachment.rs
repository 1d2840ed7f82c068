//! The attachment to the driver: the attach socket, the control and status regions, the channels and
//! the receive regions. The attach socket serves slow paths only, one thread at a time.
use crate::channel::Channel;
use crate::error::{dead, Error, Result};
use crate::files::Files;
use crate::forks::forks;
use crate::kept::Kept;
use crate::own::{self, OwnFd};
use crate::patience::Patience;
use crate::reasons::Reasons;
use crate::setting::known_socket_path;
use crate::turn::lock;
use pd_abi::layout::{header, REGION_BYTES};
use pd_abi::limits::{CHANNELS_MAX, PAGE_BYTES, RING_BYTES_MAX};
use pd_abi::{Frame, FrameKind, KernelReason, Operation, Request, SocketId};
use pd_shm::{attach, memfd, Own, Region, Spin, Theirs};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    connect, socket_with, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Longest time for an answer on the attach socket.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Attempts to receive an answer for whose descriptor there is no room.
const NO_ROOM_MAX: u32 = 100;
/// Ring mappings that may stay without a socket. As many as are in use may stay beside them.
const RINGS_KEPT_MAX: usize = 1024;

/// Receive rings as they are mapped here. Those that no socket uses any more stay for a while: rings go to other sockets.
#[derive(Debug, Default)]
struct Rings {
    known: HashMap<RingWords, Arc<Region<Theirs>>>,
    /// Entries in use when the others were dropped last.
    used: usize,
}

impl Rings {
    /// Drops the unused before they are as many as the others, so that looking for them costs little for each ring.
    fn insert(&mut self, words: RingWords, ring: Arc<Region<Theirs>>) {
        if self.known.len() > RINGS_KEPT_MAX.max(2 * self.used) {
            self.drop_unused();
        }
        self.known.insert(words, ring);
    }

    fn drop_unused(&mut self) {
        self.known.retain(|_, ring| Arc::strong_count(ring) > 1);
        self.used = self.known.len();
    }
}

/// An attachment. Dead once the driver has gone; then a new one is made.
#[derive(Debug)]
pub(crate) struct Attachment {
    socket: OwnFd,
    wire: Mutex<Wire>,
    dead: AtomicBool,
    reason: OnceLock<String>,
    pub(crate) control: Arc<Region<Own>>,
    pub(crate) status: Arc<Region<Theirs>>,
    channels: Mutex<Channels>,
    rings: Mutex<Rings>,
    pub(crate) files: Mutex<Files>,
    reasons: Reasons,
    /// Doorbells, by number.
    doorbells: Mutex<HashMap<u64, Weak<OwnFd>>>,
}

/// Where a receive ring lies: region, first page, pages.
pub(crate) type RingWords = (u32, u32, u32);

#[derive(Debug, Default)]
struct Wire {
    receive_regions: HashMap<u32, (OwnFd, u64)>,
    spin: Spin,
}

#[derive(Debug, Default)]
struct Channels {
    all: Vec<Arc<Channel>>,
    free: Vec<usize>,
    shared: usize,
}

#[cfg(test)]
impl Attachment {
    /// An attachment to a driver that a test plays.
    pub(crate) fn to_test(socket: OwnedFd) -> Arc<Self> {
        use pd_shm::memfd::Pages;
        let memory = || memfd::create("test", PAGE_BYTES, Pages::Ordinary).unwrap();
        Arc::new(Self {
            socket: OwnFd::new(socket),
            wire: Mutex::default(),
            dead: AtomicBool::new(false),
            reason: OnceLock::new(),
            control: Arc::new(Region::<Own>::new(memory(), PAGE_BYTES).unwrap()),
            status: Arc::new(Region::<Theirs>::new(memory(), PAGE_BYTES).unwrap()),
            channels: Mutex::default(),
            rings: Mutex::default(),
            files: Mutex::default(),
            reasons: Reasons::default(),
            doorbells: Mutex::default(),
        })
    }
}

/// A region as the driver sent it.
pub(crate) struct SentRegion {
    pub(crate) id: u32,
    pub(crate) bytes: usize,
    pub(crate) fd: OwnedFd,
}

/// Takes over the driver's word on the machine's cores. Called before each sleep of a thread, and so not in an exchange without sleeps.
pub(crate) fn note_cores(status: &Region<Theirs>) {
    pd_shm::set_cores_scarce(status.load_u32(header::CORES_SCARCE, Ordering::Relaxed) != 0);
}

impl Attachment {
    /// Attaches.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let path = known_socket_path();
        let unreachable = |errno: Errno| {
            // Of a process without room it is not known whether there is a driver.
            let tells = [Errno::ACCESS, Errno::PERM, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
            let known = if tells.contains(&errno) { errno } else { Errno::NETDOWN };
            let remedy = match known {
                Errno::MFILE | Errno::NFILE => "raise the limit of descriptors (ulimit -n)",
                Errno::NOMEM | Errno::NOBUFS => "the process, or the host, has no memory left",
                Errno::NETDOWN => "start it with `pd driver`, or set PD_SOCKET",
                _ => {
                    "the socket is not for this user: the driver's socket_mode and socket_group say for whom"
                }
            };
            let why = std::io::Error::from(errno);
            Error::new(known, format!("cannot attach to the driver at {}: {why}; {remedy}", path.display()))
        };
        let made = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = own::make(made).map_err(unreachable)?;
        let address = SocketAddrUnix::new(path).map_err(unreachable)?;
        connect(&socket, &address).map_err(unreachable)?;
        let socket = OwnFd::new(socket);

        let mut wire = Wire::default();
        let (_, mut fds) = wire.ask(&socket, &Frame::new(FrameKind::Hello), FrameKind::Welcome)?;
        let (Some(status), Some(file), true) = (fds.pop(), fds.pop(), fds.is_empty()) else {
            return Err(unreachable(Errno::PROTO));
        };
        let control = Region::<Own>::new(&file, REGION_BYTES).map_err(unreachable)?;
        memfd::seal_against_all(file).map_err(unreachable)?;
        let status = Region::<Theirs>::new(status, REGION_BYTES).map_err(unreachable)?;
        if status.load_u64(header::MAGIC, Ordering::Relaxed) != pd_abi::MAGIC {
            return Err(unreachable(Errno::PROTO));
        }
        wire.ask(&socket, &Frame::new(FrameKind::Mapped).with_id(Frame::REGION_CONTROL), FrameKind::Ready)?;
        Ok(Arc::new(Self {
            socket,
            wire: Mutex::new(wire),
            dead: AtomicBool::new(false),
            reason: OnceLock::new(),
            control: Arc::new(control),
            status: Arc::new(status),
            channels: Mutex::default(),
            rings: Mutex::default(),
            files: Mutex::default(),
            reasons: Reasons::default(),
            doorbells: Mutex::default(),
        }))
    }

    /// Returns whether the driver is there, as far as is known.
    #[inline]
    pub(crate) fn alive(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    /// Fails if a new connection could not have what it needs: the driver gives descriptors.
    ///
    /// # Errors
    /// `EMFILE`.
    pub(crate) fn check_room(&self) -> Result<()> {
        check_room(&self.socket, false, 1)
    }

    /// Returns whether something that was accepted may have a twin.
    pub(crate) fn may_claim(&self) -> bool {
        self.status.load_u32(header::CLAIMABLE, Ordering::Acquire) > 0
    }

    /// See [`crate::process::stays_on_kernel`].
    pub(crate) fn stays_on_kernel(&self, reason: KernelReason, inode: u32) {
        self.reasons.add(&self.control, reason, inode);
    }

    /// The error of calls on what the driver has taken with it.
    pub(crate) fn dead_error(&self) -> Error {
        match self.reason.get() {
            Some(reason) => {
                Error::new(Errno::CONNRESET, format!("the driver has cut this process off: {reason}"))
            }
            None => dead(),
        }
    }

    /// The other side broke the protocol, or said goodbye.
    pub(crate) fn die(&self, reason: Option<&str>) {
        if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
            let _ = self.reason.set(reason.to_owned());
        }
        self.dead.store(true, Ordering::Release);
    }

    /// Asks the kernel whether the driver is still there. One or two system calls.
    pub(crate) fn check_alive(&self) -> bool {
        if self.alive() && wait_readable(&self.socket, Duration::ZERO) {
            if let Ok(mut wire) = self.wire.try_lock() {
                self.take_unasked(&mut wire);
            }
        }
        self.alive()
    }

    /// The attach socket, to be watched for a hang-up.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn take_unasked(&self, wire: &mut Wire) {
        let mut hung_up = false;
        loop {
            match receive(&self.socket, true, 1, RecvFlags::DONTWAIT) {
                Ok(Some((frame, fds))) => {
                    if let Err(error) = wire.unasked(&frame, fds) {
                        return self.die(Some(error.message()));
                    }
                }
                // Without room for a descriptor it is left where it is.
                Err(Errno::AGAIN | Errno::MFILE) => return,
                Err(Errno::INTR) => {}
                // Told once, and before the frames that came earlier: one may say why.
                Err(Errno::CONNRESET) if !std::mem::replace(&mut hung_up, true) => {}
                Ok(None) | Err(_) => return self.die(None),
            }
        }
    }

    fn ask(&self, wire: &mut Wire, frame: &Frame, expected: FrameKind) -> Result<(Frame, Vec<OwnedFd>)> {
        if !self.alive() {
            return Err(self.dead_error());
        }
        let answer = wire.ask(&self.socket, frame, expected);
        if let Err(error) = &answer {
            if error.errno() == libc::ECONNRESET {
                self.die(None);
            }
        }
        answer
    }

    /// Asks something on the attach socket; one thread at a time.
    pub(crate) fn exchange(&self, frame: &Frame, expected: FrameKind) -> Result<(Frame, Vec<OwnedFd>)> {
        let mut wire = lock(&self.wire);
        self.ask(&mut wire, frame, expected)
    }

    /// A new send region of at least `bytes` bytes, mapped.
    pub(crate) fn send_region(&self, bytes: u64) -> Result<(u32, Region<Own>)> {
        let mut wire = lock(&self.wire);
        let wish = Frame::new(FrameKind::SendRegion).with_bytes(bytes, 0);
        let (frame, fds) = self.ask(&mut wire, &wish, FrameKind::SendRegion)?;
        let region = sent_region(&frame, fds)?;
        if (region.bytes as u64) < bytes || region.id > u32::from(u16::MAX) {
            return Err(Error::new(Errno::PROTO, "the driver sent a send region that cannot be"));
        }
        let map = Region::<Own>::new(&region.fd, region.bytes).map_err(|errno| {
            Error::new(Errno::NOMEM, format!("cannot map a send region of {} bytes: {errno}", region.bytes))
        })?;
        // The next answer may need this number: the process may have no other.
        drop(region.fd);
        self.ask(&mut wire, &Frame::new(FrameKind::Mapped).with_id(region.id), FrameKind::Ready)?;
        Ok((region.id, map))
    }

    /// The mapping of a receive ring. Slow the first time, a look-up after that.
    pub(crate) fn ring(&self, words: RingWords) -> Result<Arc<Region<Theirs>>> {
        if let Some(ring) = lock(&self.rings).known.get(&words) {
            return Ok(ring.clone());
        }
        let (region, page, pages) = words;
        let bytes = pages as usize * PAGE_BYTES;
        if !pages.is_power_of_two() || bytes as u64 > RING_BYTES_MAX {
            return Err(Error::new(Errno::PROTO, "the driver described a receive ring that cannot be"));
        }
        let mut wire = lock(&self.wire);
        while !wire.receive_regions.contains_key(&region) {
            if !Patience::new(ANSWER_WAIT).until(|most| wait_readable(&self.socket, most)) {
                return Err(Error::new(Errno::TIMEDOUT, "the driver did not pass on a receive region"));
            }
            check_room(&self.socket, true, 1)?;
            self.take_unasked(&mut wire);
            if !self.alive() {
                return Err(self.dead_error());
            }
        }
        let (fd, page_bytes) = &wire.receive_regions[&region];
        let offset = u64::from(page) * PAGE_BYTES as u64;
        let map = || Region::<Theirs>::twice(fd, offset, bytes, *page_bytes as usize);
        let map = map().or_else(|_| {
            lock(&self.rings).drop_unused();
            map()
        });
        let ring = Arc::new(map.map_err(|errno| {
            Error::new(Errno::NOMEM, format!("cannot map a receive ring of {bytes} bytes: {errno}"))
        })?);
        drop(wire);
        lock(&self.rings).insert(words, ring.clone());
        Ok(ring)
    }

    /// Sends a frame that is answered on a channel.
    pub(crate) fn say(&self, frame: &Frame) -> Result<()> {
        // Under the lock: the driver answers other frames in order.
        let _wire = lock(&self.wire);
        attach::send(&self.socket, frame, &[], SendFlags::empty()).map_err(|_| self.dead_error())
    }

    /// The pipe that becomes readable with events on `channel`.
    pub(crate) fn wake_pipe(&self, channel: u32) -> Result<OwnFd> {
        let mut wire = lock(&self.wire);
        let wish = Frame::new(FrameKind::WakePipe).with_id(channel);
        let (_, mut fds) = self.ask(&mut wire, &wish, FrameKind::WakePipe)?;
        fds.pop().map(OwnFd::new).ok_or_else(|| Error::new(Errno::PROTO, "the driver sent no wake pipe"))
    }

    /// The socket by which files are passed to the driver; it is given once.
    pub(crate) fn file_socket(&self) -> Result<OwnFd> {
        let (_, mut fds) = self.exchange(&Frame::new(FrameKind::FileSocket), FrameKind::FileSocket)?;
        fds.pop().map(OwnFd::new).ok_or_else(|| Error::new(Errno::PROTO, "the driver sent no file socket"))
    }

    /// The doorbell of that number; several connections may have it.
    pub(crate) fn doorbell_of(&self, number: u64, fd: OwnedFd) -> Arc<OwnFd> {
        let mut doorbells = lock(&self.doorbells);
        if let Some(doorbell) = doorbells.get(&number).and_then(Weak::upgrade) {
            return doorbell;
        }
        doorbells.retain(|_, doorbell| doorbell.strong_count() > 0);
        let doorbell = Arc::new(OwnFd::new(fd));
        doorbells.insert(number, Arc::downgrade(&doorbell));
        doorbell
    }

    /// The calling thread's channel; made, or taken over from a thread that ended, at first use.
    pub(crate) fn channel(self: &Arc<Self>) -> Result<Arc<Channel>> {
        // A thread that is being torn down has no channel of its own any more and shares one.
        THREAD_CHANNEL
            .try_with(|local| {
                let mut local = local
                    .try_borrow_mut()
                    .map_err(|_| Error::new(Errno::AGAIN, "called from within itself"))?;
                if let Some(known) = local.as_ref().filter(|known| known.is_of(self)) {
                    return Ok(known.channel.clone());
                }
                let channel = self.take_channel()?;
                *local = Some(ThreadChannel {
                    forks: forks(),
                    attachment: Arc::downgrade(self),
                    channel: channel.clone(),
                });
                Ok(channel)
            })
            .unwrap_or_else(|_| self.shared_channel())
    }

    fn take_channel(self: &Arc<Self>) -> Result<Arc<Channel>> {
        let mut channels = lock(&self.channels);
        if let Some(index) = channels.free.pop() {
            return Ok(channels.all[index].clone());
        }
        if channels.all.len() == CHANNELS_MAX {
            drop(channels);
            return self.shared_channel();
        }
        let mut wire = lock(&self.wire);
        let answer = self.ask(&mut wire, &Frame::new(FrameKind::Channel), FrameKind::Channel);
        drop(wire);
        // A thread without one could not even wait for a connection.
        let has_no_room = |error: &Error| [libc::EMFILE, libc::ENOMEM].contains(&error.errno());
        if answer.as_ref().is_err_and(has_no_room) && !channels.all.is_empty() {
            drop(channels);
            return self.shared_channel();
        }
        let (frame, mut fds) = answer?;
        let (Some(doorbell), true) = (fds.pop(), (frame.id as usize) < CHANNELS_MAX) else {
            return Err(Error::new(Errno::PROTO, "the driver sent a channel that cannot be"));
        };
        let channel = Arc::new(Channel::new(frame.id, channels.all.len(), OwnFd::new(doorbell), self));
        channels.all.push(channel.clone());
        Ok(channel)
    }

    /// Waits until the driver has carried out the requests of all channels so far. A frame may come before them.
    pub(crate) fn settle(&self) {
        let channels = lock(&self.channels).all.clone();
        for channel in channels {
            // Refused, for there is no such socket, in the order of the channel's requests.
            let _ = channel.call(self, Request::new(Operation::Adopt, SocketId(0), 0));
        }
    }

    fn shared_channel(&self) -> Result<Arc<Channel>> {
        let mut channels = lock(&self.channels);
        channels.shared += 1;
        let index = channels.shared.checked_rem(channels.all.len());
        let index = index.ok_or_else(|| Error::new(Errno::AGAIN, "the thread is ending"))?;
        Ok(channels.all[index].clone())
    }
}

/// The calling thread's channel. Given to the next thread when this one ends.
struct ThreadChannel {
    forks: u32,
    attachment: Weak<Attachment>,
    channel: Arc<Channel>,
}

thread_local! {
    static THREAD_CHANNEL: Kept<Option<ThreadChannel>> = const { Kept::new(None, || THREAD_CHANNEL.with(Kept::release)) };
}

impl ThreadChannel {
    fn is_of(&self, attachment: &Arc<Attachment>) -> bool {
        self.forks == forks() && self.attachment.as_ptr() == Arc::as_ptr(attachment)
    }
}

impl Drop for ThreadChannel {
    fn drop(&mut self) {
        if self.forks == forks() {
            if let Some(attachment) = self.attachment.upgrade() {
                lock(&attachment.channels).free.push(self.channel.place());
            }
        }
    }
}

impl Wire {
    fn ask(&mut self, socket: &OwnFd, frame: &Frame, expected: FrameKind) -> Result<(Frame, Vec<OwnedFd>)> {
        let count = descriptors(expected);
        if count > 0 {
            check_room(socket, is_needed(expected), count)?;
        }
        // A driver that refuses may have hung up already: what it said of that is still there to be read.
        let sent = attach::send(socket, frame, &[], SendFlags::empty());
        let (mut hung_up, mut no_room) = (false, 0);
        let mut patience = Patience::new(ANSWER_WAIT);
        loop {
            if !self.spin.until(|| wait_readable(socket, Duration::ZERO)) {
                let answers = patience.until(|most| wait_readable(socket, most));
                self.spin.slept();
                if !answers {
                    return Err(Error::new(Errno::CONNRESET, "the driver does not answer; see its log"));
                }
            }
            let (answer, fds) = match receive(socket, is_needed(expected), count.max(1), RecvFlags::empty()) {
                Ok(Some(answer)) => answer,
                Err(Errno::INTR) => continue,
                // Another thread has taken the room that there was just now, for a moment perhaps.
                Err(Errno::MFILE) if no_room < NO_ROOM_MAX => {
                    no_room += 1;
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                // Told once, and before the frames that came earlier.
                Err(Errno::CONNRESET) if !std::mem::replace(&mut hung_up, true) => continue,
                Ok(None) | Err(_) => return Err(dead()),
            };
            match answer.checked_kind() {
                Some(FrameKind::Error) => {
                    return Err(Error::new(
                        Errno::from_raw_os_error(answer.errno.clamp(1, 4095) as i32),
                        format!("the driver refuses: {}", answer.reason()),
                    ));
                }
                Some(kind) if kind == expected && sent.is_ok() => return Ok((answer, fds)),
                _ => self.unasked(&answer, fds)?,
            }
        }
    }

    fn unasked(&mut self, frame: &Frame, fds: Vec<OwnedFd>) -> Result<()> {
        match frame.checked_kind() {
            Some(FrameKind::ReceiveRegion) => {
                let region = sent_region(frame, fds)?;
                self.receive_regions.insert(region.id, (OwnFd::new(region.fd), frame.page_bytes));
                Ok(())
            }
            Some(FrameKind::Goodbye) => Err(Error::new(Errno::CONNRESET, frame.reason().to_owned())),
            _ => Err(Error::new(Errno::CONNRESET, "the driver speaks another version; update this program")),
        }
    }
}

/// Receives what the driver says, once there is room for the `count` descriptors that may come with it.
fn receive(
    socket: &OwnFd,
    needed: bool,
    count: usize,
    flags: RecvFlags,
) -> rustix::io::Result<Option<(Frame, Vec<OwnedFd>)>> {
    own::receive(socket.as_fd(), needed, count, || attach::receive(socket, flags))?
}

/// Descriptors that come with an answer.
fn descriptors(answer: FrameKind) -> usize {
    match answer {
        FrameKind::Ready => 0,
        // The control region and the status region.
        FrameKind::Welcome => 2,
        _ => 1,
    }
}

/// Tells whether a process cannot do without the descriptor in an answer.
fn is_needed(answer: FrameKind) -> bool {
    ![FrameKind::Channel, FrameKind::WakePipe, FrameKind::FileSocket].contains(&answer)
}

/// Tells whether so many descriptors could be received.
///
/// # Errors
/// `EMFILE`.
fn check_room(socket: &OwnFd, needed: bool, count: usize) -> Result<()> {
    let no_room =
        |errno| Error::new(errno, "the process has no descriptor left; raise its limit (ulimit -n)");
    own::receive(socket.as_fd(), needed, count, || ()).map_err(no_room)
}

pub(crate) fn sent_region(frame: &Frame, mut fds: Vec<OwnedFd>) -> Result<SentRegion> {
    let (Some(fd), true, Ok(bytes)) = (fds.pop(), fds.is_empty(), usize::try_from(frame.bytes)) else {
        return Err(Error::new(Errno::PROTO, "the driver sent a region without its memory"));
    };
    Ok(SentRegion { id: frame.id, bytes, fd })
}

/// Waits until there is something to receive, at most `timeout`, however many signals come meanwhile.
fn wait_readable(socket: &OwnFd, timeout: Duration) -> bool {
    let (until, mut left) = (Instant::now() + timeout, timeout);
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    loop {
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&time)) {
            Err(Errno::INTR) => left = until.saturating_duration_since(Instant::now()),
            result => return result.is_ok_and(|count| count > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn a_goodbye_behind_a_reset_is_read() {
        let (socket, driver) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let attachment = Attachment::to_test(socket);
        assert!(attachment.check_alive());
        // A driver that hangs up with a frame unread resets the connection.
        attach::send(&attachment.socket, &Frame::new(FrameKind::Channel), &[], SendFlags::empty()).unwrap();
        let goodbye = Frame::new(FrameKind::Goodbye).with_error(libc::EPROTO as u32, "does not behave");
        attach::send(&driver, &goodbye, &[], SendFlags::empty()).unwrap();
        drop(driver);
        assert!(!attachment.check_alive());
        let error = attachment.dead_error();
        assert!(error.message().contains("does not behave"), "{}", error.message());
    }

    static SIGNALS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_signal: libc::c_int) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }

    /// Signals come more often than the wait is long, until it is over.
    #[test]
    fn signals_make_no_wait_for_an_answer_longer() {
        const MOST: u32 = 1000;
        let (socket, _driver) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let socket = OwnFd::new(socket);
        let handler = count as extern "C" fn(libc::c_int);
        // SAFETY: a handler that touches an atomic alone, of a signal that no other test uses; the thread that is waited for below.
        let waiter = unsafe {
            libc::signal(libc::SIGWINCH, handler as libc::sighandler_t);
            libc::pthread_self()
        };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && SIGNALS.load(Ordering::Relaxed) < MOST {
                    // SAFETY: a thread that lives until the scope ends.
                    unsafe { libc::pthread_kill(waiter, libc::SIGWINCH) };
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            assert!(!wait_readable(&socket, Duration::from_millis(100)));
            is_over.store(true, Ordering::Relaxed);
        });
        let signals = SIGNALS.load(Ordering::Relaxed);
        assert!((1..MOST).contains(&signals), "{signals} signals in a wait");
    }
}
