//! The fabric end of one connection, and calls on it as BSD sockets have them: they wait or not, come
//! back from signals, and send what they are given. Here is what is known of it; the calls are in the files of this room.
mod departing;
mod hearing;
mod pieces;
mod receiving;
mod returning;
pub(crate) mod sending;
mod taking;
pub(crate) mod waiting;

use crate::aside::{Aside, Progress};
use crate::back::Back;
use crate::call::lock;
use crate::claim::{self, PendingClaim};
use crate::fallback_cache::{self, Place};
use crate::gain::Gain;
use crate::hearsay::Heard;
use crate::pipe::Lender;
use crate::shared::Slot;
use crate::short::names::Names;
use crate::unseen::Attention;
use crate::{address, closed, file_lock, real};
use arc_swap::ArcSwapOption;
use libc::c_int;
use pd_client::core::Socket;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Buffers below this size get small rings, so that the program learns early that the peer is slow. The kernel cuts
/// larger wishes to less than the default size of rings.
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
    pub(crate) pending_claim: Mutex<Option<PendingClaim>>,
    /// The kernel's after all.
    abandoned: AtomicBool,
    /// Shut down for sending, by this process.
    pub(crate) send_shut: AtomicBool,
    /// This process has begun to shut it down for sending: a send that the fabric refuses is not the kernel's, whose socket is still open.
    pub(crate) send_ends: AtomicBool,
    /// Shut down for receiving, by this process or one that has forked it.
    pub(crate) recv_shut: AtomicBool,
    /// The peer's stream had ended when the program shut both directions down.
    pub(crate) ended_before: AtomicBool,
    /// Fewest bytes that a receive waits for.
    pub(crate) recv_lowat: AtomicUsize,
    /// A send after the peer's close went nowhere.
    sent_in_vain: AtomicBool,
    /// Of a connection that the kernel does not have: see [`crate::short`].
    pub(crate) names: Option<Names>,
    /// Of AF_UNIX: see [`crate::unix`].
    pub(crate) unix: bool,
    /// Destination, if this process has connected it.
    pub(crate) towards: Option<Place>,
    /// Its way into the kernel.
    pub(crate) aside: Aside,
    /// Tells whether anybody is seen to wait for it.
    pub(crate) attention: Attention,
    /// Gain of being on the fabric.
    pub(crate) gain: Gain,
    /// Calls that were to wait.
    waits: AtomicU32,
    /// Closing it is no orderly end.
    resets: AtomicBool,
    /// Of one that was away: its way back.
    pub(crate) back: Option<Back>,
    /// Times that the connection was away.
    pub(crate) times: u32,
    /// Another process had it in the middle of that, and still has it.
    lost: bool,
    /// Another process's, which may have had it in the middle of that.
    unsure: AtomicBool,
    /// Another process had it that this one knows nothing of.
    passed: AtomicBool,
    /// The kernel's file of its socket says that there is a twin.
    marked: AtomicBool,
    /// Times in a row that it went to another process for little, where there is no slot.
    turns: AtomicU32,
    /// The moves were too many.
    turns_too_often: AtomicBool,
    /// The last receive has found something.
    pub(crate) has_found: AtomicBool,
    pub(crate) heard: Heard,
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

impl Stands {
    /// Of one that sends in the kernel.
    pub(crate) fn in_both() -> Self {
        Self { kernel_without: Some(0), fabric_without: libc::EPOLLOUT as u32 }
    }
}

impl Twin {
    /// The twin of the connection of `fd`. `claim_is_pending`: the peer has still to find it.
    pub(crate) fn new(fd: c_int, socket: Arc<Socket>, claim_is_pending: bool) -> Self {
        // SAFETY: only asks.
        let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
        fit_buffers(fd, &socket);
        let timeouts = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].map(|name| address::timeout_ns(fd, name));
        let unix = address::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_UNIX);
        if unix {
            socket.look_always();
        }
        let pending_claim = claim_is_pending.then(|| PendingClaim::new(fd, unix));
        let nonblocking = flags & libc::O_NONBLOCK != 0;
        Self { pending_claim: Mutex::new(pending_claim), unix, ..Self::of(socket, nonblocking, timeouts) }
    }

    /// Returns the twin with its destination recorded.
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
            pending_claim: Mutex::new(None),
            abandoned: AtomicBool::new(false),
            send_shut: AtomicBool::new(false),
            send_ends: AtomicBool::new(false),
            recv_shut: AtomicBool::new(false),
            ended_before: AtomicBool::new(false),
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
            marked: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            turns_too_often: AtomicBool::new(false),
            has_found: AtomicBool::new(false),
            heard: Heard::default(),
            lender: Arc::default(),
        }
    }

    /// One that a process has taken over which knows nothing of it.
    pub(crate) fn taken(self) -> Self {
        let set = || AtomicBool::new(true);
        Self { unsure: set(), passed: set(), marked: set(), ..self }
    }

    /// One that comes back, and was away so often.
    pub(crate) fn back(self, back: Back, towards: Option<Place>, times: u32) -> Self {
        let lowat = AtomicUsize::new(back.lowat() as usize);
        Self { back: Some(back), towards, times, recv_lowat: lowat, ..self }
    }

    /// Returns this twin for a forked child, which does not have the end.
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
            pending_claim: Mutex::new(None),
            // Without a slot what comes to the parent is the parent's; the rest is the kernel's.
            abandoned: AtomicBool::new(slot_is_none && self.aside.progress.sends()),
            send_shut: flag(&self.send_shut),
            send_ends: flag(&self.send_ends),
            recv_shut: flag(&self.recv_shut),
            ended_before: flag(&self.ended_before),
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
            marked: flag(&self.marked),
            turns: AtomicU32::new(0),
            turns_too_often: AtomicBool::new(false),
            has_found: AtomicBool::new(false),
            heard: Heard::default(),
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

    /// No other process holds it.
    pub(crate) fn is_sole(&self) -> bool {
        self.slot.get().is_none_or(|slot| slot.is_mine() && slot.is_sole())
    }

    /// The peer has still to take its end.
    #[inline]
    pub(crate) fn waits_for_claim(&self) -> bool {
        claim::any_pending() && lock(&self.pending_claim).is_some()
    }

    /// Returns the progress of the connection into the kernel.
    #[inline]
    pub(crate) fn progress(&self) -> &Progress {
        self.slot.get().map_or(&self.aside.progress, |slot| &slot.progress)
    }

    /// A forked process holds it, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.slot.get().is_some()
    }

    /// Other processes hold it, or have held it.
    pub(crate) fn is_passed(&self) -> bool {
        self.is_shared() || self.passed.load(Ordering::Relaxed)
    }

    /// Its descriptor has gone to another process in a message.
    pub(crate) fn has_passed(&self) {
        self.passed.store(true, Ordering::Relaxed);
    }

    /// Another process or image may get its socket by this number: the kernel's file of that is marked.
    pub(crate) fn mark(&self, fd: c_int) {
        let may = self.names.is_none() && !self.is_abandoned() && !closed::is_closed();
        if may && !self.marked.swap(true, Ordering::Relaxed) {
            file_lock::mark(fd);
        }
    }

    /// Its connection is the kernel's: takes the mark off.
    pub(crate) fn unmark(&self, fd: Option<c_int>) {
        if let Some(fd) = fd.filter(|_| self.marked.swap(false, Ordering::Relaxed) && !closed::is_closed()) {
            file_lock::unmark(fd);
        }
    }

    /// The slot that a family of processes shares.
    pub(crate) fn slot(&self) -> Option<&'static Slot> {
        self.slot.get().copied()
    }

    /// The end, if this process has it.
    pub(crate) fn current(&self) -> Option<Arc<Socket>> {
        self.socket.load_full()
    }

    /// The peer never came: the connection is the kernel's. Nothing was received that could be lent to a pipe.
    pub(crate) fn abandon(&self) {
        self.give_up(Socket::close);
    }

    fn give_up(&self, close: fn(&Arc<Socket>) -> pd_client::Result<()>) {
        self.abandoned.store(true, Ordering::Release);
        if let Some(socket) = self.socket.swap(None) {
            if closed::is_closed() {
                // The driver cannot be told; it learns of the end with the process's.
                std::mem::forget(socket);
                return;
            }
            let _ = close(&socket);
        }
    }

    /// Returns whether it is.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// The connection goes on in the kernel. Its lender lends no more.
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

    /// The program has undone the connection: the peer reads what was sent, and then of a reset.
    pub(crate) fn undo(&self) {
        self.resets.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Of TCP: reset, so that it has no peer any more.
    pub(crate) fn is_gone(&self) -> bool {
        // The kernel knows when both directions have ended, where it has the connection.
        let is_over = |socket: &Socket| {
            let shut = |word: &AtomicBool| word.load(Ordering::Relaxed);
            let has_peer_ended = match shut(&self.recv_shut) {
                // A side that receives no more has ended the stream itself.
                true => shut(&self.ended_before) || socket.is_closed_by_peer(),
                false => socket.has_ended(),
            };
            self.names.is_some() && shut(&self.send_shut) && has_peer_ended
        };
        !self.unix && self.current().is_some_and(|socket| socket.is_gone() || is_over(&socket))
    }

    /// The peer has ended its stream in order, whatever came then.
    pub(crate) fn has_ended(&self) -> bool {
        self.current().is_some_and(|socket| socket.has_ended())
    }

    /// Tells whether the program has shut both directions down.
    pub(crate) fn is_shut_both_ways(&self) -> bool {
        [&self.send_shut, &self.recv_shut].iter().all(|shut| shut.load(Ordering::Relaxed))
    }

    /// Returns whether the bytes after the `there` bytes that are present come by the kernel.
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

    /// Returns whether what it has received can be lent to a pipe: no other process has it, and all of it comes by the fabric.
    pub(crate) fn may_lend(&self) -> bool {
        let is_simple = self.window().is_none() && !self.unsure.load(Ordering::Relaxed) && !self.lost;
        is_simple && !self.is_shared() && self.names.is_none() && self.lender.may_lend()
    }

    /// Returns whether a splice waits for the connection.
    pub(crate) fn splice_waits(&self, dont_wait: bool) -> bool {
        self.waits(if dont_wait { libc::MSG_DONTWAIT } else { 0 })
    }

    /// Tells whether a failure is news to the program: the kernel tells of it once.
    pub(crate) fn tells_failure(&self) -> bool {
        self.current().is_none_or(|socket| socket.tell_failure())
    }

    /// Tells whether a receive of AF_UNIX that found nothing is to tell of a reset: not one of no bytes, where there are some.
    fn takes_reset(&self, wanted: usize) -> bool {
        self.unix && self.current().is_some_and(|end| (wanted > 0 || end.received() == 0) && end.take_reset())
    }

    /// As much was sent as may be before the peer is there: then the connection is not writable.
    fn hold_if_full(&self, pending: &PendingClaim) {
        if let Some(socket) = self.current().filter(|_| pending.room() == 0) {
            socket.hold_out(true);
        }
    }

    /// Returns whether that is so.
    fn is_full(&self) -> bool {
        lock(&self.pending_claim).as_ref().is_some_and(|pending| pending.room() == 0)
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
