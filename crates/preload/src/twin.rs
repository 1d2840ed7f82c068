//! The fabric end of one connection, and calls on it as BSD sockets have them: they wait or not, come
//! back from signals, and send what they are given.
use crate::address::is_nonblocking;
use crate::aside::{self, ending, leaving, receiving, Aside, Progress};
use crate::back::{Back, Found};
use crate::call::{interrupts, lock, Failure, Outcome, AGAIN};
use crate::counts::Moves;
use crate::entry::Entry;
use crate::epoll_set::standing;
use crate::fabric::{self, Taken};
use crate::fallback_cache::{self, Place};
use crate::gain::Gain;
use crate::log::note;
use crate::pipe::Lender;
use crate::shared::{Held, Slot};
use crate::short::begun;
use crate::short::names::Names;
use crate::sleep::{kernel_poll, sleep_on};
use crate::unclaimed::{self, settling, Unclaimed};
use crate::unseen::{looking, Attention};
use crate::{address, closed, confined, heap, real, table};
use arc_swap::ArcSwapOption;
use libc::{c_int, iovec};
use pd_client::core::{outside, sleep_for, Handout, KernelReason, Pause, Socket};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Pause between looks of a wait for more bytes to peek at, where nothing tells of them.
const PEEK_EVERY: Duration = Duration::from_micros(50);

/// How long a process waits for one that has the end before it takes it.
const TAKE_EVERY: Duration = Duration::from_millis(5);

/// Moves of a connection to another process, each after few bytes, after which it goes on in the kernel.
const TURNS_MAX: u32 = 8;
/// As many bytes are worth a move.
const TURN_BYTES: u64 = 512 << 10;

/// Who asks for buffers smaller than this gets small rings, and so learns early that the peer is slow. The
/// kernel cuts larger wishes to less than rings are by default.
const BUFFER_BYTES_SMALL: c_int = 128 << 10;

#[derive(Debug)]
pub(crate) struct Twin {
    /// None: another process has it.
    socket: ArcSwapOption<Socket>,
    /// Set before the first fork that it lives to see.
    slot: OnceLock<&'static Slot>,
    /// One thread of this process at a time takes the end.
    taking: Mutex<()>,
    pub(crate) nonblocking: AtomicBool,
    /// 0: none.
    pub(crate) recv_timeout_ns: AtomicU64,
    pub(crate) send_timeout_ns: AtomicU64,
    pub(crate) unclaimed: Mutex<Option<Unclaimed>>,
    /// The kernel's after all.
    abandoned: AtomicBool,
    /// Shut down for sending, by this process.
    pub(crate) send_shut: AtomicBool,
    /// Shut down for receiving, by this process or one that has forked it.
    pub(crate) recv_shut: AtomicBool,
    /// Fewest bytes that a receive waits for.
    pub(crate) recv_lowat: AtomicUsize,
    /// A send after the peer's close went nowhere.
    sent_in_vain: AtomicBool,
    /// Of a connection that the kernel does not have: see [`crate::short`].
    pub(crate) names: Option<Names>,
    /// Of AF_UNIX: see [`crate::unix`].
    pub(crate) unix: bool,
    /// What it was connected to, by this process.
    pub(crate) towards: Option<Place>,
    /// Its way into the kernel.
    pub(crate) aside: Aside,
    /// Whether anybody is seen to wait for it.
    pub(crate) attention: Attention,
    /// Gain of being on the fabric.
    pub(crate) gain: Gain,
    /// Calls that were to wait.
    waits: AtomicU32,
    /// Closing it is no orderly end.
    resets: AtomicBool,
    /// Of one that was away: its way back.
    pub(crate) back: Option<Back>,
    /// How often it was away.
    pub(crate) times: u32,
    /// Another process had it in the middle of that, and still has it.
    lost: bool,
    /// Another process's, which may have had it in the middle of that.
    unsure: AtomicBool,
    /// Another process had it that this one knows nothing of.
    passed: AtomicBool,
    /// Times in a row that it went to another process for little, where there is no slot.
    turns: AtomicU32,
    /// That was too often.
    turns_too_often: AtomicBool,
    /// Received bytes that are lent to a pipe.
    pub(crate) lender: Arc<Lender>,
}

/// Where a connection is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stands {
    /// In the kernel, too, but not for these events.
    pub(crate) kernel_without: Option<u32>,
    /// On the fabric, but not for these.
    pub(crate) fabric_without: u32,
}

/// Some socket may have got `SO_LINGER`.
static LINGERS: AtomicBool = AtomicBool::new(false);

/// From now on sockets are asked for `SO_LINGER` before they are closed: the kernel keeps it, and accepted ones inherit it.
pub(crate) fn may_linger() {
    LINGERS.store(true, Ordering::Relaxed);
}

/// Has the driver read what is to be sent, at most so many bytes. None: it does not.
pub(crate) type ByDriver<'a> = dyn FnMut(&Socket, usize) -> pd_client::Result<Option<usize>> + 'a;

/// Time between looks at a ring of a process that makes few system calls.
const CLOSED_LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// More than so many bytes.
    Recv(usize),
    Send,
}

/// When the socket's time is over, if ever; known after the first wait of a call.
pub(crate) type Until = Option<Option<Instant>>;

/// Whether the kernel tells the program when memory of zero-copy sends is free: otherwise it takes no notice of
/// `MSG_ZEROCOPY`.
#[cold]
fn is_told_of_sends(entry: &Entry) -> bool {
    let told = entry.any_fd().and_then(|fd| address::option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY));
    told.is_some_and(|told| told != 0)
}

impl Stands {
    /// Of one that sends in the kernel.
    pub(crate) fn in_both() -> Self {
        Self { kernel_without: Some(0), fabric_without: libc::EPOLLOUT as u32 }
    }
}

impl Twin {
    /// The twin of the connection of `fd`. `unclaimed`: the peer has still to find it.
    pub(crate) fn new(fd: c_int, socket: Arc<Socket>, unclaimed: bool) -> Self {
        // SAFETY: only asks.
        let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
        fit_buffers(fd, &socket);
        let timeouts = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].map(|name| address::timeout_ns(fd, name));
        let unix = address::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_UNIX);
        if unix {
            socket.look_always();
        }
        let unclaimed = unclaimed.then(|| Unclaimed::new(fd, unix));
        let nonblocking = flags & libc::O_NONBLOCK != 0;
        Self { unclaimed: Mutex::new(unclaimed), unix, ..Self::of(socket, nonblocking, timeouts) }
    }

    /// The same, connected to a place.
    pub(crate) fn towards(self, place: Place) -> Self {
        Self { towards: Some(place), ..self }
    }

    /// A connection without one of the kernel's, with its time-outs for receiving and sending.
    pub(crate) fn alone(socket: Arc<Socket>, nonblocking: bool, timeouts: [u64; 2], names: Names) -> Self {
        Self { names: Some(names), ..Self::of(socket, nonblocking, timeouts) }
    }

    fn of(socket: Arc<Socket>, nonblocking: bool, [recv, send]: [u64; 2]) -> Self {
        Self {
            socket: ArcSwapOption::new(Some(socket)),
            slot: OnceLock::new(),
            taking: Mutex::default(),
            nonblocking: AtomicBool::new(nonblocking),
            recv_timeout_ns: AtomicU64::new(recv),
            send_timeout_ns: AtomicU64::new(send),
            unclaimed: Mutex::new(None),
            abandoned: AtomicBool::new(false),
            send_shut: AtomicBool::new(false),
            recv_shut: AtomicBool::new(false),
            recv_lowat: AtomicUsize::new(1),
            sent_in_vain: AtomicBool::new(false),
            names: None,
            unix: false,
            towards: None,
            aside: Aside::default(),
            attention: Attention::default(),
            gain: Gain::default(),
            waits: AtomicU32::new(0),
            resets: AtomicBool::new(false),
            back: None,
            times: 0,
            lost: false,
            unsure: AtomicBool::new(false),
            passed: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            turns_too_often: AtomicBool::new(false),
            lender: Arc::default(),
        }
    }

    /// One that a process has taken over which knows nothing of it.
    pub(crate) fn taken(self) -> Self {
        Self { unsure: AtomicBool::new(true), passed: AtomicBool::new(true), ..self }
    }

    /// One that comes back, and was away so often.
    pub(crate) fn back(self, back: Back, towards: Option<Place>, times: u32) -> Self {
        let lowat = AtomicUsize::new(back.lowat() as usize);
        Self { back: Some(back), towards, times, recv_lowat: lowat, ..self }
    }

    /// The same one in a forked child, which does not have the end.
    pub(crate) fn in_child(&self) -> Self {
        let (slot, slot_is_none) = (OnceLock::new(), self.slot.get().is_none());
        if let Some(&known) = self.slot.get() {
            known.hold();
            let _ = slot.set(known);
        }
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        let flag = |word: &AtomicBool| AtomicBool::new(word.load(Ordering::Relaxed));
        Self {
            socket: ArcSwapOption::empty(),
            slot,
            taking: Mutex::default(),
            nonblocking: flag(&self.nonblocking),
            recv_timeout_ns: copy(&self.recv_timeout_ns),
            send_timeout_ns: copy(&self.send_timeout_ns),
            unclaimed: Mutex::new(None),
            // Without a slot what comes to the parent is the parent's; the rest is the kernel's.
            abandoned: AtomicBool::new(slot_is_none && self.aside.progress.sends()),
            send_shut: flag(&self.send_shut),
            recv_shut: flag(&self.recv_shut),
            recv_lowat: AtomicUsize::new(self.recv_lowat.load(Ordering::Relaxed)),
            sent_in_vain: flag(&self.sent_in_vain),
            names: self.names.as_ref().map(Names::again),
            unix: self.unix,
            towards: None,
            aside: Aside::default(),
            attention: Attention::default(),
            gain: Gain::default(),
            waits: AtomicU32::new(0),
            resets: AtomicBool::new(false),
            back: None,
            times: 0,
            lost: self.lost || self.window().is_some(),
            unsure: flag(&self.unsure),
            passed: flag(&self.passed),
            turns: AtomicU32::new(0),
            turns_too_often: AtomicBool::new(false),
            lender: Arc::default(),
        }
    }

    /// On its way back from the kernel: it is looked at in both.
    #[inline]
    pub(crate) fn window(&self) -> Option<&Back> {
        self.back.as_ref().filter(|back| !back.is_over())
    }

    /// Where it is waited for now.
    pub(crate) fn stands(&self) -> Stands {
        const OUT: u32 = libc::EPOLLOUT as u32;
        match self.window() {
            _ if self.progress().sends() => Stands::in_both(),
            None => Stands { kernel_without: None, fabric_without: 0 },
            Some(back) if back.sends() => Stands { kernel_without: Some(OUT), fabric_without: 0 },
            Some(_) => Stands::in_both(),
        }
    }

    /// Goes on with the way back as far as may be.
    #[cold]
    fn go_back(&self, entry: &Arc<Entry>, back: &Back) {
        let _ = self.with(entry, |end| {
            back.look(end)?;
            back.finish_receiving(end);
            Ok(())
        });
        let sends = back.sends() || self.progress().sends() || self.send_shut.load(Ordering::Relaxed);
        if back.is_expected() && !sends && back.counts.close() {
            self.go_back_closed(entry);
            back.counts.open();
        } else if back.ends_now() {
            self.stand_again(entry);
        }
    }

    /// Sends by the twin from now on. No call is under way in the kernel.
    pub(crate) fn go_back_closed(&self, entry: &Arc<Entry>) {
        let Some(back) = &self.back else { return };
        if self.with(entry, |end| back.send_head(end)).is_ok() {
            back.ends_now();
            self.stand_again(entry);
        }
    }

    fn stand_again(&self, entry: &Arc<Entry>) {
        if let Some(end) = self.current() {
            standing::stand(entry, &end, self.stands());
        }
    }

    /// The peer has given the twin up before it used it: the connection stays in the kernel.
    #[cold]
    fn stay_away(&self, entry: &Arc<Entry>) {
        standing::move_back(entry);
        table::give_up(entry);
        self.abandon();
    }

    /// Receives what is there.
    ///
    /// # Safety
    /// Each piece is memory that may be written, or null.
    unsafe fn receive_some(&self, entry: &Arc<Entry>, pieces: &[iovec], peek: bool) -> Outcome<usize> {
        let Some(back) = self.window() else {
            if self.unsure.load(Ordering::Relaxed) {
                self.look_for_head(entry)?;
            }
            loop {
                // SAFETY: the caller's promise.
                match self.with(entry, |socket| unsafe { socket.recv_copied(pieces, peek) }) {
                    Err(Failure::Errno(libc::EBUSY)) => self.lender.settle(),
                    received => return received,
                }
            }
        };
        let fd = entry.any_fd().ok_or(Failure::Errno(libc::EBADF))?;
        // SAFETY: the caller's promise.
        let found = self.with(entry, |end| unsafe { back.receive(fd, end, pieces, peek) });
        self.go_back(entry, back);
        match found? {
            Found::Bytes(bytes) => Ok(bytes),
            Found::Headless => {
                self.stay_away(entry);
                Err(Failure::Kernel)
            }
        }
    }

    /// The first bytes are there: they may be no program's, and more lies in the kernel, nobody knows how much.
    #[cold]
    fn look_for_head(&self, entry: &Arc<Entry>) -> Outcome<()> {
        match self.with(entry, |end| Ok(Back::begins(end)))? {
            Some(true) => return Err(Failure::Errno(libc::ECONNRESET)),
            Some(false) => self.unsure.store(false, Ordering::Relaxed),
            None => {}
        }
        Ok(())
    }

    /// No other process holds it.
    pub(crate) fn is_sole(&self) -> bool {
        self.slot.get().is_none_or(|slot| slot.is_mine() && slot.is_sole())
    }

    /// Before a fork: the child will hold it, too.
    pub(crate) fn share(&self, entry: &Arc<Entry>) {
        if self.names.is_some() {
            // It stays with this process.
            return;
        }
        if heap::is_low() {
            // The child could not take it.
            leaving::leave(entry, self, KernelReason::NoMemory);
        } else if confined::is_barren() {
            leaving::leave(entry, self, KernelReason::NoDriver);
        }
        if self.slot.get().is_none() {
            if let Some(slot) = Slot::new() {
                slot.progress.copy(&self.aside.progress);
                let _ = self.slot.set(slot);
            } else {
                leaving::leave(entry, self, KernelReason::NoMemory);
            }
        }
        if let Some(slot) = self.slot.get() {
            slot.expect();
        }
    }

    /// The peer has still to take its end.
    pub(crate) fn waits_for_claim(&self) -> bool {
        unclaimed::any() && lock(&self.unclaimed).is_some()
    }

    /// How far it is on its way into the kernel.
    #[inline]
    pub(crate) fn progress(&self) -> &Progress {
        self.slot.get().map_or(&self.aside.progress, |slot| &slot.progress)
    }

    /// Finds out how it stands with a peer that has still to take its end; true: it was decided just now. Who never waits may
    /// make no other calls than this one.
    pub(crate) fn is_settled(&self, entry: &Arc<Entry>) -> bool {
        self.waits_for_claim() && settling::settle(entry)
    }

    /// A forked process holds it, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.slot.get().is_some()
    }

    /// Other processes hold it, or have held it.
    pub(crate) fn is_passed(&self) -> bool {
        self.is_shared() || self.passed.load(Ordering::Relaxed)
    }

    /// What the family of processes shares of it.
    pub(crate) fn slot(&self) -> Option<&'static Slot> {
        self.slot.get().copied()
    }

    /// Now that it is in the table.
    pub(crate) fn register(&self, entry: &Arc<Entry>) {
        if lock(&self.unclaimed).is_some() {
            settling::add(entry);
        }
    }

    /// The end, if this process has it.
    pub(crate) fn current(&self) -> Option<Arc<Socket>> {
        self.socket.load_full()
    }

    /// The peer never came: the connection is the kernel's.
    pub(crate) fn abandon(&self) {
        self.give_up(Socket::close);
    }

    fn give_up(&self, close: fn(&Arc<Socket>) -> pd_client::Result<()>) {
        self.lender.settle();
        self.abandoned.store(true, Ordering::Release);
        if let Some(socket) = self.socket.swap(None) {
            if closed::is_closed() {
                // The driver cannot be told; it hears of the end with the process's.
                std::mem::forget(socket);
                return;
            }
            let _ = close(&socket);
        }
    }

    /// Whether it is.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// The connection goes on in the kernel.
    pub(crate) fn leave(&self) {
        if let Some(slot) = self.slot.get() {
            slot.let_go();
        }
        self.give_up(Socket::close_left);
    }

    /// The process has closed its last descriptor. If another process still holds one, the driver keeps
    /// the end for it.
    pub(crate) fn close(&self) {
        if let Some(slot) = self.slot.get() {
            slot.let_go();
        }
        self.lender.settle();
        if let Some(socket) = self.current() {
            if let (Some(place), None, 0) = (self.towards, self.slot.get(), self.times) {
                fallback_cache::ended(place, socket.carried());
            }
            let _ = if self.resets.load(Ordering::Relaxed) { socket.reset() } else { socket.close() };
        }
    }

    /// Its last descriptor is about to be closed: who lingers for no time at all resets it, and so does who has not read all.
    pub(crate) fn note_reset(&self, entry: &Arc<Entry>, fd: c_int) {
        let lingers = || LINGERS.load(Ordering::Relaxed) && !self.unix && address::lingers_never(fd);
        if let (Some(back), Some(end)) = (self.window(), self.current()) {
            back.finish_receiving(&end);
        }
        let head = self.window().map_or(0, Back::head_bytes);
        let is_unread = |end: Arc<Socket>| end.received() > head || receiving::has_unread(fd, self);
        let unread = self.is_sole() && self.current().is_some_and(is_unread);
        if unread {
            receiving::reset_with(fd, self);
        } else {
            receiving::before_close(entry, fd, self);
        }
        if unread || lingers() {
            self.resets.store(true, Ordering::Relaxed);
        }
    }

    /// Does something with the end, taking it over first if another process has it.
    pub(crate) fn with<T>(
        &self,
        entry: &Arc<Entry>,
        work: impl FnMut(&Arc<Socket>) -> pd_client::Result<T>,
    ) -> Outcome<T> {
        if self.names.as_ref().is_some_and(Names::is_begun) {
            begun::settle(entry);
        }
        self.with_begun(entry, work)
    }

    /// The same of calls that move no bytes, and would not notice that another process has the end.
    pub(crate) fn with_present<T>(
        &self,
        entry: &Arc<Entry>,
        mut work: impl FnMut(&Arc<Socket>) -> pd_client::Result<T>,
    ) -> Outcome<T> {
        self.with(entry, |end| {
            end.check_present()?;
            work(end)
        })
    }

    /// The same with one that may not yet be connected.
    pub(crate) fn with_begun<T>(
        &self,
        entry: &Arc<Entry>,
        mut work: impl FnMut(&Arc<Socket>) -> pd_client::Result<T>,
    ) -> Outcome<T> {
        let held = self.slot.get().map(|slot| self.take_over(entry, slot)).transpose()?;
        if self.progress().is_over() {
            // Another process has had it go on in the kernel.
            drop(held);
            ending::settle_if_free(entry, self);
            return Err(Failure::Kernel);
        }
        loop {
            if self.abandoned.load(Ordering::Acquire) {
                return Err(Failure::Kernel);
            }
            if self.lost {
                return Err(Failure::Errno(libc::ECONNRESET));
            }
            let socket = self.socket.load();
            let Some(socket) = socket.as_ref() else {
                let elsewhere = if self.names.is_some() { libc::ENOTCONN } else { libc::EBADF };
                return Err(Failure::Errno(elsewhere));
            };
            match work(socket) {
                Ok(result) => return Ok(result),
                Err(_) if self.abandoned.load(Ordering::Acquire) => {}
                // Another process has taken it that this one did not fork: it got the descriptor.
                Err(error) if error.errno() == libc::ESTALE => {
                    self.passed.store(true, Ordering::Relaxed);
                    self.take(entry, Some(socket))?;
                    if self.progress().is_over() {
                        drop(held);
                        ending::settle_if_free(entry, self);
                        return Err(Failure::Kernel);
                    }
                }
                Err(error) => return Err(Failure::from(error)),
            }
        }
    }

    #[cold]
    fn take_over(&self, entry: &Arc<Entry>, slot: &'static Slot) -> Outcome<Held<'static>> {
        let held = slot.lock();
        if slot.progress.is_over() {
            // There is no end any more.
            return Ok(held);
        }
        if slot.is_mine() && self.socket.load().is_some() {
            return Ok(held);
        }
        self.take(entry, self.current().as_ref())?;
        slot.make_mine();
        Ok(held)
    }

    /// Takes the end from another process, in place of `stale`, unless another thread has done so.
    #[cold]
    fn take(&self, entry: &Arc<Entry>, stale: Option<&Arc<Socket>>) -> Outcome<()> {
        let _taking = lock(&self.taking);
        if self.current().as_ref().map(Arc::as_ptr) != stale.map(Arc::as_ptr) {
            return Ok(());
        }
        let fd = entry.any_fd().ok_or(Failure::Errno(libc::EBADF))?;
        let socket = match fabric::take(fd, true) {
            Taken::Twin(socket) => socket,
            Taken::Departed => {
                self.progress().is_over_elsewhere();
                return Ok(());
            }
            _ => return Err(Failure::Errno(libc::ECONNRESET)),
        };
        note!("descriptor {fd}: took the connection over");
        if self.recv_shut.load(Ordering::Relaxed) {
            socket.end_receiving()?;
        }
        if self.unix {
            socket.look_always();
        }
        // The earlier end, if there was one, has passed on.
        let earlier = self.socket.swap(Some(socket.clone()));
        self.count_turn(earlier.as_deref());
        if let Some(earlier) = earlier {
            let _ = earlier.close();
        }
        standing::register_again(entry, &socket);
        if socket.is_taken_aside() {
            self.go_on_aside(entry, &socket)?;
        }
        Ok(())
    }

    /// Another process has had it leave, and this one has its end now.
    pub(crate) fn go_on_aside(&self, entry: &Arc<Entry>, end: &Arc<Socket>) -> Outcome<()> {
        ending::taken_aside(entry, self, end)?;
        standing::stand(entry, end, self.stands());
        Ok(())
    }

    /// It has come from another process; this one had it before as `earlier`.
    fn count_turn(&self, earlier: Option<&Socket>) {
        let turns = self.slot.get().map_or(&self.turns, |slot| slot.turns());
        if earlier.is_some_and(|earlier| earlier.carried().1 >= TURN_BYTES) {
            turns.store(0, Ordering::Relaxed);
        } else if turns.fetch_add(1, Ordering::Relaxed) + 1 >= TURNS_MAX {
            self.turns_too_often.store(true, Ordering::Relaxed);
        }
    }

    /// A call has used the fabric end: one that goes from process to process too often leaves for good. One that the policy keeps is asked
    /// about again after as many moves.
    #[inline]
    fn used_in_turn(&self, entry: &Arc<Entry>) {
        if self.turns_too_often.load(Ordering::Relaxed) {
            self.leave_turns(entry);
        }
    }

    #[cold]
    fn leave_turns(&self, entry: &Arc<Entry>) {
        self.turns_too_often.store(false, Ordering::Relaxed);
        self.slot.get().map_or(&self.turns, |slot| slot.turns()).store(0, Ordering::Relaxed);
        leaving::leave(entry, self, KernelReason::Shared);
    }

    /// Waits once, at most until the socket's time is over.
    fn wait(&self, entry: &Arc<Entry>, wait: Wait, until: &mut Until) -> Outcome<()> {
        let until = *until.get_or_insert_with(|| match wait {
            Wait::Recv(_) => Self::until(&self.recv_timeout_ns),
            Wait::Send => Self::until(&self.send_timeout_ns),
        });
        if closed::is_closed() {
            return Self::wait_in_kernel(entry, wait, until);
        }
        // The program may have changed it by a system call of its own.
        if self.waits.fetch_add(1, Ordering::Relaxed).wrapping_add(1).is_power_of_two()
            && entry.any_fd().is_some_and(is_nonblocking)
        {
            self.nonblocking.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let mut limit = Duration::MAX;
        if let Some(until) = until {
            limit = until.saturating_duration_since(Instant::now());
            if limit.is_zero() {
                return Err(AGAIN);
            }
        }
        let mut full = false;
        if unclaimed::any() && lock(&self.unclaimed).is_some() && !settling::settle(entry) {
            full = wait == Wait::Send && self.is_full();
            limit = limit.min(if full { unclaimed::LOOK_FOR_ROOM_EVERY } else { unclaimed::LOOK_EVERY });
        }
        if self.abandoned.load(Ordering::Acquire) {
            return Err(Failure::Kernel);
        }
        let between = self.window().filter(|back| matches!(wait, Wait::Recv(_)) && !back.receives());
        if let (Some(_), Some(end), Some(fd)) = (between, self.current(), entry.any_fd()) {
            let mut kernel = vec![libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            let wanted = vec![(end, libc::POLLIN as u32)];
            let limit = (limit < Duration::MAX).then_some(limit);
            return match sleep_on(wanted, &mut kernel, limit, std::ptr::null()) {
                Err(Failure::Errno(libc::EINTR)) if !interrupts(until.is_some()) => Ok(()),
                slept => slept,
            };
        }
        let socket = self.current().filter(|_| !full && self.slot.get().is_none_or(|slot| slot.is_mine()));
        let pause = match socket {
            Some(socket) => match wait {
                Wait::Recv(known) => socket.pause_recv(limit, known as u64),
                Wait::Send => socket.pause_send(limit),
            },
            None if sleep_for(limit.min(TAKE_EVERY)) => Pause::Signal,
            None => Pause::Look,
        };
        // As the kernel has it: with a time-out a handler always ends the call.
        if pause == Pause::Signal && interrupts(until.is_some()) {
            return Err(Failure::Errno(libc::EINTR));
        }
        Ok(())
    }

    /// Waits a while for what a connection that leaves receives or sends. The peer writes to the kernel's connection when it
    /// follows, after its next bytes on the fabric.
    #[cold]
    fn wait_in_kernel(entry: &Arc<Entry>, wait: Wait, until: Option<Instant>) -> Outcome<()> {
        let left = until.map_or(CLOSED_LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(AGAIN);
        }
        let fd = entry.any_fd().ok_or(Failure::Errno(libc::EBADF))?;
        // A full ring is no matter of the kernel's.
        let events = if wait == Wait::Send { 0 } else { libc::POLLIN };
        let mut poll = [libc::pollfd { fd, events, revents: 0 }];
        match kernel_poll(&mut poll, Some(left.min(CLOSED_LOOK_EVERY)), std::ptr::null()) {
            Err(Failure::Errno(libc::EINTR)) if !interrupts(until.is_some()) => Ok(()),
            waited => waited.map(drop),
        }
    }

    fn until(timeout_ns: &AtomicU64) -> Option<Instant> {
        match timeout_ns.load(Ordering::Relaxed) {
            0 => None,
            timeout_ns => Instant::now().checked_add(Duration::from_nanos(timeout_ns)),
        }
    }

    /// Of TCP: reset, so that it has no peer any more.
    pub(crate) fn is_gone(&self) -> bool {
        // The kernel knows when both directions have ended, where it has the connection.
        let is_over = |socket: &Socket| {
            let shut = |word: &AtomicBool| word.load(Ordering::Relaxed);
            // Who receives no more has ended the stream itself.
            self.names.is_some() && shut(&self.send_shut) && !shut(&self.recv_shut) && socket.has_ended()
        };
        !self.unix && self.current().is_some_and(|socket| socket.is_gone() || is_over(&socket))
    }

    /// The peer has ended its stream in order, whatever came then.
    fn has_ended(&self) -> bool {
        self.current().is_some_and(|socket| socket.has_ended())
    }

    /// So many bytes are there, and those after them are the kernel's.
    fn ends_elsewhere(&self, there: usize) -> bool {
        self.current().is_some_and(|end| end.ends_elsewhere(there as u64))
    }

    /// More may come than is there.
    fn goes_on(&self) -> bool {
        !self.recv_shut.load(Ordering::Relaxed)
            && self.current().is_some_and(|socket| !socket.peer_has_ended())
    }

    fn waits(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.nonblocking.load(Ordering::Relaxed)
    }

    /// `recvmsg` into `pieces`.
    ///
    /// # Safety
    /// Each piece is memory that may be written.
    pub(crate) unsafe fn receive(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        flags: c_int,
    ) -> Outcome<usize> {
        // SAFETY: the caller's promise.
        self.receive_by(entry, pieces, flags, &mut |pieces, peek| unsafe {
            self.receive_some(entry, pieces, peek)
        })
    }

    /// Whether what it has received can be lent to a pipe: no other process has it, and all of it comes by the fabric.
    pub(crate) fn may_lend(&self) -> bool {
        let is_simple = self.window().is_none() && !self.unsure.load(Ordering::Relaxed) && !self.lost;
        is_simple && !self.is_shared() && self.names.is_none() && self.lender.may_lend()
    }

    /// A receive of at most `max` bytes that stay where they are, lent; `each` gets them.
    pub(crate) fn lend(
        &self,
        entry: &Arc<Entry>,
        max: usize,
        each: &mut dyn FnMut(&Arc<Socket>, Handout),
    ) -> Outcome<usize> {
        let room = [iovec { iov_base: std::ptr::null_mut(), iov_len: max }];
        self.receive_by(entry, &room, libc::MSG_DONTWAIT, &mut |room, _| {
            self.with(entry, |socket| socket.lend(total(room), &mut |lent| each(socket, lent)))
        })
    }

    /// Whether a splice waits for the connection.
    pub(crate) fn splice_waits(&self, dont_wait: bool) -> bool {
        self.waits(if dont_wait { libc::MSG_DONTWAIT } else { 0 })
    }

    /// Waits once for bytes to receive, at most until the socket's time is over.
    pub(crate) fn wait_for_bytes(&self, entry: &Arc<Entry>, until: &mut Until) -> Outcome<()> {
        self.wait(entry, Wait::Recv(0), until)
    }

    /// The same for room to send.
    pub(crate) fn wait_for_room(&self, entry: &Arc<Entry>, until: &mut Until) -> Outcome<()> {
        self.wait(entry, Wait::Send, until)
    }

    /// [`Twin::receive`] by means of `some`, which receives what is there.
    fn receive_by(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        flags: c_int,
        some: &mut dyn FnMut(&[iovec], bool) -> Outcome<usize>,
    ) -> Outcome<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(self.for_kernel(entry, KernelReason::Urgent, libc::EINVAL));
        }
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(AGAIN);
        }
        let peek = flags & libc::MSG_PEEK != 0;
        let wanted = total(pieces);
        let least = match flags & libc::MSG_WAITALL {
            0 => self.recv_lowat.load(Ordering::Relaxed).min(wanted),
            _ => wanted,
        };
        let mut rest = Rest::new(pieces, flags & libc::MSG_TRUNC != 0 && !peek);
        let (mut received, mut waiting) = (0, Until::default());
        loop {
            let part = some(rest.pieces(), peek);
            let failure = match part {
                Ok(part) if peek && part < wanted && self.ends_elsewhere(part) => {
                    let until = *waiting.get_or_insert_with(|| Self::until(&self.recv_timeout_ns));
                    let waits = part < least && self.waits(flags);
                    let mut missing = Rest::new(pieces, false);
                    missing.advance(part);
                    let flags = if waits { flags } else { flags | libc::MSG_DONTWAIT };
                    return match receiving::kernels_part(entry, self, waits, until) {
                        Ok(fd) => Ok(part + self.rest_by_kernel(fd, missing.pieces(), flags, true)),
                        Err(_) => Ok(part),
                    };
                }
                Ok(part) if peek => {
                    // All of what is to be peeked at has to be there at once.
                    if part >= least || part == 0 || self.unix || !self.waits(flags) || !self.goes_on() {
                        return Ok(part);
                    }
                    if part == received {
                        std::thread::sleep(PEEK_EVERY);
                    }
                    received = part;
                    match self.wait(entry, Wait::Recv(part), &mut waiting) {
                        Ok(()) => continue,
                        Err(_) => return Ok(part),
                    }
                }
                Ok(part) => {
                    received += part;
                    if part == 0 || received >= least {
                        looking::used(entry, self);
                        self.used_in_turn(entry);
                        // An AF_UNIX message with descriptors is received by a call of its own.
                        let joins = part > 0 && received < wanted && !self.unix;
                        if joins && self.progress().sends() && self.ends_elsewhere(0) {
                            // What was peeked at before is there at once.
                            rest.advance(part);
                            let missing = first(rest.pieces(), wanted - received);
                            received += self.rest_now(entry, &missing, flags | libc::MSG_DONTWAIT);
                        }
                        return Ok(received);
                    }
                    rest.advance(part);
                    continue;
                }
                Err(failure) if aside::is_elsewhere(failure) => {
                    let until = *waiting.get_or_insert_with(|| Self::until(&self.recv_timeout_ns));
                    match receiving::received_all(entry, self, self.waits(flags), until) {
                        Ok(Some(fd)) if received > 0 && !peek => {
                            let missing = first(rest.pieces(), least - received);
                            let flags = flags | libc::MSG_WAITALL;
                            return Ok(received + self.rest_by_kernel(fd, &missing, flags, true));
                        }
                        Ok(Some(_)) => Failure::Kernel,
                        Ok(None) => return Ok(received),
                        Err(failure) => failure,
                    }
                }
                Err(AGAIN) if self.progress().sends() && self.rest_comes(entry) => continue,
                Err(AGAIN) if received == 0 && !self.waits(flags) && looking::is_waited_for(entry, self) => {
                    continue
                }
                Err(AGAIN) if received == 0 && self.is_no_gain(entry, self.waits(flags)) => continue,
                Err(AGAIN) if self.is_settled(entry) => continue,
                Err(AGAIN) if self.waits(flags) => match self.wait(entry, Wait::Recv(0), &mut waiting) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            return match failure {
                _ if received > 0 => Ok(received),
                // TCP has waited, and then has nothing to do.
                AGAIN if wanted == 0 && !self.unix && self.waits(flags) => Ok(0),
                Failure::Errno(libc::ECONNRESET) if !self.tells_failure() => Ok(0),
                Failure::Errno(libc::ECONNRESET) => {
                    receiving::failure_is_told(entry, self);
                    Err(failure)
                }
                _ => Err(failure),
            };
        }
    }

    /// A call has found nothing, and waits, or does not. True: the connection has left the fabric for that; look again.
    #[inline]
    fn is_no_gain(&self, entry: &Arc<Entry>, waits: bool) -> bool {
        self.gain.is_due()
            && self.is_small_talk(waits)
            && leaving::leave(entry, self, KernelReason::SmallTalk)
    }

    #[cold]
    fn is_small_talk(&self, waits: bool) -> bool {
        if self.names.is_some() || self.progress().sends() {
            return false;
        }
        self.current().is_some_and(|end| self.gain.is_poor(&end, waits, self.unix))
    }

    /// Tells whether a failure is news to the program: the kernel tells of it once.
    pub(crate) fn tells_failure(&self) -> bool {
        self.current().is_none_or(|socket| socket.tell_failure())
    }

    /// Sends nothing, which may say that nothing can be sent.
    fn transmit_nothing(&self, entry: &Arc<Entry>) -> Outcome<usize> {
        match self.with_present(entry, |socket| socket.check_sendable()) {
            // The peer's close alone is no reason for TCP.
            Err(Failure::Errno(libc::EPIPE)) if !self.unix && !self.send_shut.load(Ordering::Relaxed) => {
                let gone = self.current().is_some_and(|socket| socket.is_gone());
                if gone {
                    Err(Failure::Errno(libc::EPIPE))
                } else {
                    Ok(0)
                }
            }
            other => other.map(|()| 0),
        }
    }

    /// `sendmsg` of `pieces`.
    ///
    /// # Safety
    /// Each piece is memory that may be read.
    pub(crate) unsafe fn transmit(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        flags: c_int,
    ) -> Outcome<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(self.for_kernel(entry, KernelReason::Urgent, libc::EOPNOTSUPP));
        }
        if self.is_kernels_to_send(entry) {
            return Err(Failure::Kernel);
        }
        if flags & libc::MSG_ZEROCOPY != 0 && is_told_of_sends(entry) {
            // A program without a notification left sends by copy.
            return Err(self.for_kernel(entry, KernelReason::ZeroCopy, libc::ENOBUFS));
        }
        let wanted = total(pieces);
        let mut rest = Rest::new(pieces, false);
        let (mut sent, mut waiting) = (0, Until::default());
        loop {
            let part = match wanted {
                0 => self.transmit_nothing(entry),
                // SAFETY: the caller's promise.
                _ => unsafe { self.transmit_some(entry, rest.pieces()) },
            };
            let failure = match part {
                Ok(part) => {
                    sent += part;
                    if sent == wanted || !self.waits(flags) {
                        looking::used(entry, self);
                        return Ok(sent);
                    }
                    rest.advance(part);
                    continue;
                }
                Err(failure) if aside::is_elsewhere(failure) || aside::lacks_means(failure) => {
                    self.go_on_in_kernel(entry, failure)
                }
                Err(AGAIN) if self.waits(flags) => match self.wait(entry, Wait::Send, &mut waiting) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
                Err(AGAIN) if sent == 0 && looking::is_waited_for(entry, self) => Failure::Kernel,
                Err(failure) => failure,
            };
            if sent > 0 {
                // A call that waits sends all, whatever carries it.
                let goes_on = failure == Failure::Kernel && self.waits(flags);
                let fd = entry.kernels_fd().filter(|_| goes_on);
                let rest = |fd| self.rest_by_kernel(fd, rest.pieces(), flags, false);
                return Ok(sent + fd.map_or(0, rest));
            }
            return match failure {
                Failure::Errno(libc::EPIPE) if self.unix => Err(Failure::Plain),
                Failure::Errno(libc::EPIPE) => self.closed_by_peer(flags).map(|()| wanted),
                Failure::Errno(libc::ECONNRESET)
                    if self.unix || self.has_ended() || !self.tells_failure() =>
                {
                    self.sent_in_vain.store(true, Ordering::Relaxed);
                    self.closed_by_peer(flags).map(|()| wanted)
                }
                _ => Err(failure),
            };
        }
    }

    /// A send found the peer gone. Over TCP one only learns it from the answer to the first such send,
    /// which succeeds; programs that send last words rely on that.
    fn closed_by_peer(&self, flags: c_int) -> Outcome<()> {
        let socket = self.current();
        if !self.send_shut.load(Ordering::Relaxed) && !self.sent_in_vain.swap(true, Ordering::Relaxed) {
            socket.iter().for_each(|socket| socket.come_back());
            return Ok(());
        }
        // What is told by this call is told.
        let error = socket.filter(|_| !self.unix).and_then(|socket| socket.take_error().ok());
        if let Some(error) = error.filter(|&error| error != 0 && error != libc::EPIPE) {
            return Err(Failure::Errno(error));
        }
        if flags & libc::MSG_NOSIGNAL == 0 {
            // SAFETY: what the kernel would do.
            unsafe { libc::raise(libc::SIGPIPE) };
        }
        Err(Failure::Errno(libc::EPIPE))
    }

    unsafe fn transmit_some(&self, entry: &Arc<Entry>, pieces: &[iovec]) -> Outcome<usize> {
        if unclaimed::any() {
            self.is_settled(entry);
            let mut state = lock(&self.unclaimed);
            if let Some(unclaimed) = state.as_mut() {
                let limited = first(pieces, unclaimed.room());
                if total(&limited) == 0 && total(pieces) > 0 {
                    return Err(AGAIN);
                }
                // SAFETY: the caller's promise.
                let sent = self.with(entry, |socket| unsafe { socket.send_copied(&limited) })?;
                unclaimed.keep(&limited, sent);
                self.hold_if_full(unclaimed);
                return Ok(sent);
            }
        }
        // SAFETY: the caller's promise.
        let sent = self.with(entry, |socket| unsafe { socket.send_copied(pieces) })?;
        self.follow(entry);
        Ok(sent)
    }

    /// What only the kernel can do is asked for. How the call ends if it cannot be the kernel's.
    #[cold]
    pub(crate) fn for_kernel(&self, entry: &Arc<Entry>, why: KernelReason, errno: c_int) -> Failure {
        match leaving::leave(entry, self, why) {
            true => Failure::Kernel,
            false => Failure::Errno(errno),
        }
    }

    /// A send failed in a way that the kernel's would not: the kernel does it, if it can.
    #[cold]
    fn go_on_in_kernel(&self, entry: &Arc<Entry>, failure: Failure) -> Failure {
        match failure {
            Failure::Errno(errno) if aside::lacks_means(failure) => {
                self.for_kernel(entry, KernelReason::of_errno(errno), errno)
            }
            _ => self.for_kernel(entry, KernelReason::PeerLeft, libc::ECONNRESET),
        }
    }

    /// After a send: the peer may have left the fabric.
    #[inline]
    fn follow(&self, entry: &Arc<Entry>) {
        self.used_in_turn(entry);
        if let Some(socket) = self.socket.load().as_ref() {
            leaving::follow(entry, self, socket);
        }
    }

    /// One that has left finds nothing: whether something comes all the same, which it does before this returns.
    #[cold]
    fn rest_comes(&self, entry: &Arc<Entry>) -> bool {
        self.current().is_some_and(|end| receiving::await_rest(entry, self, &end))
    }

    /// The end of the fabric's stream was received: what of the kernel's is there, too. Bytes to be thrown away are left to the next
    /// call.
    #[cold]
    fn rest_now(&self, entry: &Arc<Entry>, missing: &[iovec], flags: c_int) -> usize {
        if flags & libc::MSG_TRUNC != 0 || closed::is_closed() {
            return 0;
        }
        let fd = receiving::kernels_part(entry, self, false, None);
        fd.map_or(0, |fd| self.rest_by_kernel(fd, missing, flags & !libc::MSG_WAITALL, true))
    }

    /// What is left of a call that began on the fabric goes over the kernel. Returns bytes.
    fn rest_by_kernel(&self, fd: c_int, pieces: &[iovec], flags: c_int, receives: bool) -> usize {
        let rest: Vec<iovec> =
            pieces.iter().copied().filter(|piece| piece.iov_len > 0 && !piece.iov_base.is_null()).collect();
        // SAFETY: zeroes are a message without pieces; those of the caller are memory as it says.
        let moved = outside(|| unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (rest.as_ptr().cast_mut(), rest.len() as _);
            match receives {
                true => real::recvmsg(fd, &mut message, flags),
                false => real::sendmsg(fd, &message, flags),
            }
        });
        let moved = usize::try_from(moved).unwrap_or(0);
        let what = if receives { Moves::receives(flags) } else { Moves::sends(flags) };
        self.aside.counts.add(what, moved);
        moved
    }

    /// Whether what is sent now goes over the kernel.
    #[inline]
    fn is_kernels_to_send(&self, entry: &Arc<Entry>) -> bool {
        if self.progress().sends() {
            return true;
        }
        self.window().is_some_and(|back| {
            self.go_back(entry, back);
            !back.sends()
        })
    }

    /// Goes on with a call that waits and has begun here by `work` in the kernel, if the connection has left meanwhile. Returns the bytes
    /// that `work` has moved.
    pub(crate) fn finish_by_kernel(&self, entry: &Entry, work: impl FnOnce(c_int) -> isize) -> usize {
        let is_kernels = (self.progress().sends() || self.is_abandoned()) && self.waits(0);
        let Some(fd) = entry.kernels_fd().filter(|_| is_kernels) else { return 0 };
        let moved = usize::try_from(outside(|| work(fd))).unwrap_or(0);
        self.aside.counts.add(Moves::Sends, moved);
        moved
    }

    /// Sends at most `len` bytes that `fill` reads from somewhere; waits as the socket does.
    pub(crate) fn transmit_from(
        &self,
        entry: &Arc<Entry>,
        len: usize,
        waits: bool,
        fill: &mut pd_client::core::Fill<'_>,
        by_driver: &mut ByDriver<'_>,
    ) -> Outcome<usize> {
        if self.is_kernels_to_send(entry) {
            return Err(Failure::Kernel);
        }
        let (mut sent, mut waiting) = (0, Until::default());
        let waits = waits && self.waits(0);
        while sent < len {
            self.is_settled(entry);
            let mut state = unclaimed::any().then(|| lock(&self.unclaimed));
            let mut kept = state.as_mut().and_then(|state| state.as_mut());
            let most = kept.as_ref().map_or(usize::MAX, |unclaimed| unclaimed.room()).min(len - sent);
            let mut ended = false;
            let part = if most > 0 {
                self.with(entry, |socket| {
                    if kept.is_none() {
                        if let Some(sent) = by_driver(socket, most)? {
                            return Ok(sent);
                        }
                    }
                    socket.send_filled(most, &mut |place, room| {
                        let filled = fill(place, room)?;
                        ended |= filled < room;
                        if let Some(unclaimed) = kept.as_mut() {
                            // They cannot be read a second time.
                            let piece = iovec { iov_base: place.cast(), iov_len: filled };
                            unclaimed.keep(&[piece], filled);
                        }
                        Ok(filled)
                    })
                })
            } else {
                Err(AGAIN)
            };
            if let Some(unclaimed) = kept {
                self.hold_if_full(unclaimed);
            }
            drop(state);
            let failure = match part {
                Ok(part) => {
                    self.follow(entry);
                    sent += part;
                    if ended || !waits {
                        return Ok(sent);
                    }
                    continue;
                }
                Err(failure) if aside::is_elsewhere(failure) || aside::lacks_means(failure) => {
                    self.go_on_in_kernel(entry, failure)
                }
                Err(AGAIN) if waits => match self.wait(entry, Wait::Send, &mut waiting) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            if sent == 0 && failure == Failure::Errno(libc::EPIPE) {
                if self.unix {
                    return Err(Failure::Plain);
                }
                // Nothing is read for a send that goes nowhere.
                return self.closed_by_peer(0).and(Err(failure));
            }
            return if sent > 0 { Ok(sent) } else { Err(failure) };
        }
        Ok(sent)
    }

    /// As much was sent as may be before the peer is there: then the connection is not writable.
    fn hold_if_full(&self, unclaimed: &Unclaimed) {
        if let Some(socket) = self.current().filter(|_| unclaimed.room() == 0) {
            socket.hold_out(true);
        }
    }

    /// Whether that is so.
    fn is_full(&self) -> bool {
        lock(&self.unclaimed).as_ref().is_some_and(|unclaimed| unclaimed.room() == 0)
    }

    /// The events of `poll` and `epoll` that hold.
    pub(crate) fn ready(&self, entry: &Arc<Entry>, wanted: u32) -> u32 {
        self.with_present(entry, |socket| Ok(socket.ready(wanted))).unwrap_or(libc::EPOLLERR as u32)
    }
}

/// Gives a fabric end the sizes that the program has asked for.
pub(crate) fn fit_buffers(fd: c_int, socket: &Socket) {
    let small = |size: Option<c_int>| size.filter(|&size| size < BUFFER_BYTES_SMALL).map(|size| size as u64);
    let [send, receive] = address::asked_buffers(fd).map(small);
    // Refused, they stay as they are.
    if let Some(bytes) = send {
        let _ = socket.set_send_ring_bytes(bytes);
    }
    if let Some(bytes) = receive {
        let _ = socket.set_receive_ring_bytes(bytes);
    }
}

fn total(pieces: &[iovec]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

/// The pieces up to so many bytes.
fn first(pieces: &[iovec], mut room: usize) -> Vec<iovec> {
    let cut = |piece: &iovec| {
        let len = piece.iov_len.min(room);
        room -= len;
        iovec { iov_base: piece.iov_base, iov_len: len }
    };
    pieces.iter().map(cut).collect()
}

/// What is left of a list of pieces; copied only when a part of it is done.
struct Rest<'a> {
    all: &'a [iovec],
    own: Option<Vec<iovec>>,
}

impl<'a> Rest<'a> {
    fn new(all: &'a [iovec], thrown_away: bool) -> Self {
        let away = |piece: &iovec| iovec { iov_base: std::ptr::null_mut(), iov_len: piece.iov_len };
        Self { all, own: thrown_away.then(|| all.iter().map(away).collect()) }
    }

    fn pieces(&self) -> &[iovec] {
        self.own.as_deref().unwrap_or(self.all)
    }

    fn advance(&mut self, mut done: usize) {
        let pieces = self.own.get_or_insert_with(|| self.all.to_vec());
        for piece in pieces.iter_mut() {
            let part = done.min(piece.iov_len);
            if !piece.iov_base.is_null() {
                piece.iov_base = piece.iov_base.wrapping_byte_add(part);
            }
            piece.iov_len -= part;
            done -= part;
        }
    }
}
