//! A client by hand: the attach socket, the shared words and the rings, without the library that keeps a
//! client honest.
//!
//! Tests and `pd bench isolation` do harm with it. [`Raw`] asks one thing at a time and waits up to 10 s for each
//! answer. It panics where the driver gives none. It is for use by one thread.
#![forbid(unsafe_code)]

mod gift;

pub use gift::{lingering, send_with};

use pd_abi::layout::{
    channel_control, channel_offset, channel_status, socket_control, socket_offset, socket_status,
    REGION_BYTES,
};
use pd_abi::limits::{EVENT_RING_ENTRIES, REQUEST_RING_ENTRIES};
use pd_abi::{
    Address, Event, EventKind, Frame, FrameKind, Operation, Request, SocketId, TwinOperation, TwinRequest,
};
use pd_shm::{attach, memfd, passed, Own, Pod, Region, Theirs};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    connect, socket_with, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest time that the driver may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A region as the driver sent it.
#[derive(Debug)]
pub struct SentRegion {
    /// Its number.
    pub id: u32,
    /// Its memory.
    pub fd: OwnedFd,
    /// Its bytes.
    pub bytes: usize,
}

/// The client's end of a channel.
#[derive(Debug)]
pub struct RawChannel {
    /// Wakes the driver.
    pub doorbell: OwnedFd,
    /// Requests written.
    pub requests: u64,
    /// Events read.
    pub events: u64,
}

/// The client. Fields are public: it is there to do harm.
#[derive(Debug)]
pub struct Raw {
    /// The attach socket.
    pub socket: OwnedFd,
    /// Control region and status region.
    pub control_fd: OwnedFd,
    /// See there.
    pub status_fd: OwnedFd,
    /// Mapped for writing.
    pub control: Region<Own>,
    /// Mapped for reading.
    pub status: Region<Theirs>,
    /// Channels.
    pub channels: Vec<RawChannel>,
    /// Receive regions that came so far.
    pub receive_regions: Vec<SentRegion>,
    /// The file socket, once it was asked for.
    pub file_socket: Option<OwnedFd>,
    /// Serial of the last file that was passed on it.
    pub serial: u64,
    goodbye: Option<String>,
    tag: u32,
}

impl Raw {
    /// A connection to the attach socket at `driver` on which nothing was said.
    ///
    /// # Panics
    /// If there is no driver.
    pub fn dial(driver: impl AsRef<Path>) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("socket");
        let address = SocketAddrUnix::new(driver.as_ref()).expect("path");
        connect(&socket, &address).expect("connect");
        socket
    }

    /// A client that was welcomed and has mapped its regions, and has not said so.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn welcomed(driver: impl AsRef<Path>) -> Self {
        Self::try_welcomed(driver).expect("welcome")
    }

    /// As [`Self::welcomed`].
    ///
    /// # Errors
    /// The reason of a refusal.
    ///
    /// # Panics
    /// If there is no driver.
    pub fn try_welcomed(driver: impl AsRef<Path>) -> Result<Self, String> {
        let socket = Self::dial(driver);
        // A client that is turned away is told so before it can send anything.
        let _ = send(&socket, &Frame::new(FrameKind::Hello));
        let (frame, mut fds) = receive(&socket).map_err(|error| error.to_string())?;
        if frame.checked_kind() != Some(FrameKind::Welcome) {
            return Err(frame.reason().to_owned());
        }
        let (Some(status_fd), Some(control_fd)) = (fds.pop(), fds.pop()) else { panic!("no regions") };
        let control = Region::<Own>::new(&control_fd, REGION_BYTES).expect("control region");
        let status = Region::<Theirs>::new(&status_fd, REGION_BYTES).expect("status region");
        Ok(Self {
            socket,
            control_fd,
            status_fd,
            control,
            status,
            channels: Vec::new(),
            receive_regions: Vec::new(),
            file_socket: None,
            serial: 0,
            goodbye: None,
            tag: 0,
        })
    }

    /// An attached client with `channels` channels.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn attach(driver: impl AsRef<Path>, channels: usize) -> Self {
        Self::welcomed(driver).attached(channels)
    }

    /// As [`Self::attach`].
    ///
    /// # Errors
    /// The reason of a refusal to attach.
    ///
    /// # Panics
    /// If there is no driver, or it refuses a channel.
    pub fn try_attach(driver: impl AsRef<Path>, channels: usize) -> Result<Self, String> {
        Ok(Self::try_welcomed(driver)?.attached(channels))
    }

    fn attached(self, channels: usize) -> Self {
        let mut raw = self;
        raw.mapped(Frame::REGION_CONTROL);
        for _ in 0..channels {
            raw.add_channel();
        }
        raw
    }

    /// Adds a channel. Returns its index.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn add_channel(&mut self) -> usize {
        let (frame, mut fds) =
            self.ask(&Frame::new(FrameKind::Channel), FrameKind::Channel).expect("channel");
        assert_eq!(frame.id as usize, self.channels.len());
        self.channels.push(RawChannel { doorbell: fds.pop().expect("doorbell"), requests: 0, events: 0 });
        self.channels.len() - 1
    }

    /// The file socket; asked for at the first call.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn file_socket(&mut self) -> &OwnedFd {
        if self.file_socket.is_none() {
            let wish = Frame::new(FrameKind::FileSocket);
            let (_, mut fds) = self.ask(&wish, FrameKind::FileSocket).expect("file socket");
            self.file_socket = fds.pop();
        }
        self.file_socket.as_ref().expect("file socket")
    }

    /// Passes a file. Returns the request to open it.
    ///
    /// # Panics
    /// If it cannot be passed.
    pub fn pass(&mut self, file: impl AsFd) -> Request {
        self.serial += 1;
        let serial = self.serial;
        passed::send(self.file_socket(), serial, file.as_fd()).expect("pass a file");
        Request::new(Operation::OpenFile, SocketId(0), 0).with_numbers(serial, 0)
    }

    /// Sends a frame and waits for the answer to it, or the refusal.
    ///
    /// # Errors
    /// The frame of kind `Error`.
    ///
    /// # Panics
    /// If neither comes.
    #[allow(clippy::result_large_err, reason = "the refusal is the frame; tests do not mind its size")]
    pub fn ask(&mut self, frame: &Frame, expected: FrameKind) -> Result<(Frame, Vec<OwnedFd>), Frame> {
        send(&self.socket, frame).expect("send a frame");
        loop {
            let (answer, fds) = receive(&self.socket).expect("answer");
            match answer.checked_kind() {
                Some(FrameKind::Error) => return Err(answer),
                Some(kind) if kind == expected => return Ok((answer, fds)),
                _ => self.unasked(&answer, fds),
            }
        }
    }

    fn unasked(&mut self, frame: &Frame, mut fds: Vec<OwnedFd>) {
        match frame.checked_kind() {
            Some(FrameKind::ReceiveRegion) => {
                let fd = fds.pop().expect("memory");
                self.receive_regions.push(SentRegion { id: frame.id, fd, bytes: frame.bytes as usize });
            }
            Some(FrameKind::Goodbye) => self.goodbye = Some(frame.reason().to_owned()),
            _ => {}
        }
    }

    /// Asks for a send region and does not say that it is mapped.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn ask_send_region(&mut self, bytes: u64) -> SentRegion {
        let wish = Frame::new(FrameKind::SendRegion).with_bytes(bytes, 0);
        let (frame, mut fds) = self.ask(&wish, FrameKind::SendRegion).expect("send region");
        SentRegion { id: frame.id, fd: fds.pop().expect("memory"), bytes: frame.bytes as usize }
    }

    /// Tells the driver that a region is mapped, and waits until it is in use. Seals the control region before.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn mapped(&mut self, id: u32) {
        if id == Frame::REGION_CONTROL {
            memfd::seal_against_all(&self.control_fd).expect("seal");
        }
        self.ask(&Frame::new(FrameKind::Mapped).with_id(id), FrameKind::Ready).expect("ready");
    }

    /// A send region in use.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn send_region(&mut self, bytes: u64) -> (SentRegion, Region<Own>) {
        let region = self.ask_send_region(bytes);
        let map = Region::<Own>::new(&region.fd, region.bytes).expect("send region");
        self.mapped(region.id);
        (region, map)
    }

    /// Takes the frames that have come unasked.
    pub fn take_frames(&mut self) {
        while wait_readable(&self.socket, Duration::ZERO) {
            match attach::receive(&self.socket, RecvFlags::DONTWAIT) {
                Ok(Some((frame, fds))) => self.unasked(&frame, fds),
                Err(Errno::CONNRESET | Errno::INTR) => {}
                _ => return,
            }
        }
    }

    /// Returns whether the driver has hung up by now, and why.
    pub fn is_cut_off(&mut self) -> Option<String> {
        self.take_frames();
        self.goodbye.clone()
    }

    /// Waits until the driver hangs up. The reason it gave, if any.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_cut_off(&mut self) -> Option<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(wait_readable(&self.socket, PATIENCE) && Instant::now() < until, "not cut off");
            match attach::receive(&self.socket, RecvFlags::empty()) {
                Ok(Some((frame, fds))) => self.unasked(&frame, fds),
                // Once, where the driver had not read all: what it had sent comes after that.
                Err(Errno::CONNRESET | Errno::INTR) => {}
                _ => return self.goodbye.clone(),
            }
        }
    }

    /// Offset of a channel's words.
    pub fn channel_word(channel: usize, word: usize) -> usize {
        channel_offset(channel) + word
    }

    /// Offset of a socket's words.
    pub fn socket_word(socket: SocketId, word: usize) -> usize {
        socket_offset(socket.slot()) + word
    }

    /// Requests that the driver has taken.
    pub fn requests_taken(&self, channel: usize) -> u64 {
        let at = Self::channel_word(channel, channel_status::REQUEST_CONSUMER);
        self.status.load_u64(at, Ordering::Acquire)
    }

    /// Writes a request, publishes it and rings. Waits for room, at most `patience`; says whether there was.
    pub fn try_post(&mut self, channel: usize, request: &Request, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        while self.channels[channel].requests.wrapping_sub(self.requests_taken(channel))
            >= REQUEST_RING_ENTRIES
        {
            if Instant::now() > until {
                return false;
            }
            std::thread::yield_now();
        }
        let state = &mut self.channels[channel];
        let place = (state.requests & (REQUEST_RING_ENTRIES - 1)) as usize * size_of::<Request>();
        self.control.write(Self::channel_word(channel, channel_control::REQUESTS + place), request);
        state.requests += 1;
        let produced = state.requests;
        self.control.store_u64(
            Self::channel_word(channel, channel_control::REQUEST_PRODUCER),
            produced,
            Ordering::SeqCst,
        );
        self.ring_if_asleep(channel);
        true
    }

    fn ring_if_asleep(&self, channel: usize) {
        let asleep = Self::channel_word(channel, channel_status::NEED_WAKEUP);
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.status.load_u32(asleep, Ordering::SeqCst) != 0 {
            self.ring(channel);
        }
    }

    /// Replaces the word of the request posted last that says what it sends, and rings: see [`Request::SEND_WORD`].
    pub fn grow(&self, channel: usize, word: u64) {
        let newest = self.channels[channel].requests.wrapping_sub(1) & (REQUEST_RING_ENTRIES - 1);
        let at = channel_control::REQUESTS + newest as usize * size_of::<Request>() + Request::SEND_WORD;
        self.control.store_u64(Self::channel_word(channel, at), word, Ordering::SeqCst);
        self.ring_if_asleep(channel);
    }

    /// Writes a request as soon as there is room for it. False once the driver has hung up.
    ///
    /// # Panics
    /// If it does neither.
    pub fn post_unless_cut_off(&mut self, channel: usize, request: &Request) -> bool {
        let until = Instant::now() + PATIENCE;
        while !self.try_post(channel, request, Duration::from_millis(50)) {
            if self.is_cut_off().is_some() {
                return false;
            }
            assert!(Instant::now() < until, "the driver takes no requests, and has not hung up");
        }
        true
    }

    /// As [`Self::try_post`], with patience.
    ///
    /// # Panics
    /// If the driver takes no requests.
    pub fn post(&mut self, channel: usize, request: &Request) {
        assert!(self.try_post(channel, request, PATIENCE), "the driver takes no requests");
    }

    /// Rings the channel's doorbell.
    pub fn ring(&self, channel: usize) {
        let _ = rustix::io::write(&self.channels[channel].doorbell, &1u64.to_ne_bytes());
    }

    /// The next event, if there is one. Gives its place back.
    pub fn event(&mut self, channel: usize) -> Option<Event> {
        let state = &mut self.channels[channel];
        let at = |word| Self::channel_word(channel, word);
        if self.status.load_u64(at(channel_status::EVENT_PRODUCER), Ordering::Acquire) == state.events {
            return None;
        }
        let place = (state.events & (EVENT_RING_ENTRIES - 1)) as usize * size_of::<Event>();
        let event = self.status.read(at(channel_status::EVENTS + place));
        state.events += 1;
        self.control.store_u64(at(channel_control::EVENT_CONSUMER), state.events, Ordering::SeqCst);
        if self.status.load_u32(at(channel_status::EVENTS_WAITING), Ordering::SeqCst) != 0 {
            self.ring(channel);
        }
        Some(event)
    }

    /// Posts a request and waits for its answer.
    ///
    /// # Panics
    /// If none comes.
    pub fn call(&mut self, channel: usize, mut request: Request) -> Event {
        self.tag = self.tag.wrapping_add(1);
        request.tag = self.tag;
        self.post(channel, &request);
        self.answer(channel, &request)
    }

    /// Asks for something about a kernel socket and its twin, and waits for the answer. The socket has a descriptor and a cookie
    /// ([`cookie_of`]); `ends` are its own address and its peer's.
    ///
    /// # Panics
    /// If none comes.
    pub fn call_about(
        &mut self,
        operation: TwinOperation,
        (descriptor, cookie): (RawFd, u64),
        ends: [Address; 2],
    ) -> Event {
        self.tag = self.tag.wrapping_add(1);
        let ([local, peer], operation, descriptor) = (ends, operation as u32, descriptor as u32);
        let request = TwinRequest { operation, tag: self.tag, descriptor, cookie, local, peer };
        send(&self.socket, &Frame::new(FrameKind::Twin).with_twin(&request)).expect("send");
        self.answer(0, &request)
    }

    /// Waits for the answer to the last call.
    fn answer(&mut self, channel: usize, asked: &dyn Debug) -> Event {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.event(channel) {
                Some(event) if event.kind == EventKind::Answer as u8 && event.tag == self.tag => {
                    return event
                }
                Some(_) => {}
                None => {
                    assert!(Instant::now() < until, "no answer to {asked:?}");
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
        }
    }

    /// A socket, taken into use.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn open(&mut self, channel: usize) -> SocketId {
        let mut request = Request::new(Operation::Socket, SocketId(0), 0);
        request.family = 4;
        let answer = self.call(channel, request);
        assert_eq!(answer.errno, 0);
        let socket = SocketId(answer.socket);
        self.take(socket);
        socket
    }

    /// Takes a socket's line into use.
    pub fn take(&self, socket: SocketId) {
        let at = |word| Self::socket_word(socket, word);
        for word in (0..socket_control::GENERATION).step_by(8) {
            self.control.store_u64(at(word), 0, Ordering::Relaxed);
        }
        self.control.store_u32(at(socket_control::GENERATION), socket.generation().into(), Ordering::SeqCst);
    }

    /// A listening socket at an address of the driver's choice.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn listen(&mut self, channel: usize, backlog: u64) -> (SocketId, SocketAddr) {
        let socket = self.open(channel);
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        let bound = self.call(channel, Request::new(Operation::Bind, socket, 0).with_address(any.into()));
        assert_eq!(bound.errno, 0);
        let listening =
            self.call(channel, Request::new(Operation::Listen, socket, 0).with_numbers(backlog, 0));
        assert_eq!(listening.errno, 0);
        (socket, bound.address().to_socket_addr().expect("address"))
    }

    /// A socket connected to `to`.
    ///
    /// # Panics
    /// If the driver refuses.
    pub fn connect(&mut self, channel: usize, to: SocketAddr) -> SocketId {
        let socket = self.open(channel);
        let request = Request::new(Operation::Connect, socket, 0).with_address(Address::from(to));
        assert_eq!(self.call(channel, request).errno, 0);
        socket
    }

    /// The next connection of a listening socket, taken into use.
    ///
    /// # Panics
    /// If there is none.
    pub fn accept(&mut self, channel: usize, listener: SocketId) -> SocketId {
        let answer = self.call(channel, Request::new(Operation::Accept, listener, 0));
        assert_eq!(answer.errno, 0);
        let accepted = Self::socket_word(listener, socket_control::RECV_CONSUMER);
        let count = self.control.load_u64(accepted, Ordering::Relaxed);
        self.control.store_u64(accepted, count + 1, Ordering::Release);
        let socket = SocketId(answer.socket);
        self.take(socket);
        socket
    }

    /// A 64-bit word of a socket's status line.
    pub fn socket_status(&self, socket: SocketId, word: usize) -> u64 {
        self.status.load_u64(Self::socket_word(socket, word), Ordering::Acquire)
    }

    /// Waits until a counter of a socket's status line has reached `value`.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_status(&self, socket: SocketId, word: usize, value: u64) {
        let until = Instant::now() + PATIENCE;
        while self.socket_status(socket, word) < value {
            assert!(Instant::now() < until, "{} of {value}", self.socket_status(socket, word));
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The bytes from `from` on of what a socket has received and not given back, `len` of them, read from
    /// its receive ring.
    ///
    /// # Panics
    /// If the ring has not come.
    pub fn received(&mut self, socket: SocketId, from: u64, len: usize) -> Vec<u8> {
        self.wait_status(socket, socket_status::RECV_PRODUCER, from + len as u64);
        self.take_frames();
        let word = |word| self.status.load_u32(Self::socket_word(socket, word), Ordering::Acquire);
        let (number, page, pages) = (
            word(socket_status::RING_REGION),
            word(socket_status::RING_PAGE),
            word(socket_status::RING_PAGES),
        );
        let region = self.receive_regions.iter().find(|r| r.id == number).expect("receive region");
        let map = Region::<Theirs>::new(&region.fd, region.bytes).expect("receive region");
        let ring = u64::from(pages) * 4096;
        (from..from + len as u64)
            .map(|position| {
                let offset = page as usize * 4096 + (position & (ring - 1)) as usize;
                map.load_u64(offset & !7, Ordering::Relaxed).to_le_bytes()[offset % 8]
            })
            .collect()
    }
}

/// Returns a kernel socket's descriptor and cookie, by which a client names it.
///
/// # Panics
/// If it is no socket.
pub fn cookie_of(socket: impl AsFd) -> (RawFd, u64) {
    let cookie = rustix::net::sockopt::socket_cookie(&socket).expect("a cookie");
    (socket.as_fd().as_raw_fd(), cookie)
}

/// Sends a frame.
///
/// # Errors
/// Errors of `sendmsg`.
pub fn send(socket: impl AsFd, frame: &Frame) -> rustix::io::Result<()> {
    let sent = rustix::net::send(socket, frame.as_bytes(), SendFlags::NOSIGNAL)?;
    assert_eq!(sent, size_of::<Frame>());
    Ok(())
}

fn receive(socket: &OwnedFd) -> rustix::io::Result<(Frame, Vec<OwnedFd>)> {
    loop {
        assert!(wait_readable(socket, PATIENCE), "the driver does not answer");
        match attach::receive(socket, RecvFlags::empty()) {
            Ok(Some(message)) => return Ok(message),
            Ok(None) => return Err(Errno::CONNRESET),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn wait_readable(socket: &OwnedFd, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)).is_ok_and(|ready| ready > 0)
}
