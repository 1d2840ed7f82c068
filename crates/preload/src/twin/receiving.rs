//! Receiving as sockets do: as much as is there, all, or a look at it; by the fabric, and by the kernel what comes there.
use super::pieces::{first, total, Rest};
use super::waiting::{Wait, Waits};
use super::Twin;
use crate::aside::{self, receiving};
use crate::back::Found;
use crate::call::{Failure, Outcome, AGAIN};
use crate::entry::Entry;
use crate::unseen::looking;
use libc::{c_int, iovec};
use pd_client::core::{Handout, KernelReason, Occasion, Socket};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between looks of a wait for more bytes to peek at, where nothing tells of them.
pub(super) const PEEK_EVERY: Duration = Duration::from_micros(50);

/// Times that the driver is to catch up for one receive. The second look after a change of paths may ask for the bytes behind it.
const CATCH_UPS_MAX: u32 = 2;

/// A receive under way.
struct Receive<'a> {
    twin: &'a Twin,
    entry: &'a Arc<Entry>,
    pieces: &'a [iovec],
    flags: c_int,
    /// Bytes in the kernel follow those of the fabric in one call.
    joins: bool,
    peek: bool,
    wanted: usize,
    /// Bytes with which the call may return.
    least: usize,
    /// Room that is left.
    rest: Rest<'a>,
    received: usize,
    waiting: Waits<'a>,
    /// Times that the driver was to catch up.
    caught_up: Cell<u32>,
}

/// A step of a receive: one more follows, or the call returns.
type Step = ControlFlow<Outcome<usize>>;

impl<'a> Receive<'a> {
    fn new(twin: &'a Twin, entry: &'a Arc<Entry>, pieces: &'a [iovec], flags: c_int, joins: bool) -> Self {
        let peek = flags & libc::MSG_PEEK != 0;
        let wanted = total(pieces);
        let least = match flags & libc::MSG_WAITALL {
            0 => twin.recv_lowat.load(Ordering::Relaxed).min(wanted),
            _ => wanted,
        };
        let rest = Rest::new(pieces, flags & libc::MSG_TRUNC != 0 && !peek);
        let (received, waiting, caught_up) = (0, Waits::default(), Cell::new(0));
        Self { twin, entry, pieces, flags, joins, peek, wanted, least, rest, received, waiting, caught_up }
    }

    fn waits(&self) -> bool {
        self.twin.waits(self.flags)
    }

    /// Returns the end of the socket's time to receive, which begins with the first wait.
    fn until(&mut self) -> Option<Instant> {
        self.waiting.until(&self.twin.recv_timeout_ns)
    }

    /// Goes on after `part` bytes were received or peeked at.
    fn took(&mut self, part: usize) -> Step {
        let (twin, entry) = (self.twin, self.entry);
        if self.peek && part < self.wanted && twin.ends_elsewhere(part) {
            return Step::Break(Ok(self.peek_into_kernel(part)));
        }
        if part == 0 && twin.takes_reset(self.wanted) {
            receiving::failure_is_told(entry, twin);
            // A receive that looked for more has been told, and does not say so.
            let reset = Err(Failure::Errno(libc::ECONNRESET));
            return Step::Break(if self.received > 0 { Ok(self.received) } else { reset });
        }
        if self.peek {
            return self.peeked(part);
        }
        self.received += part;
        if part > 0 && self.received < self.least {
            self.rest.advance(part);
            return Step::Continue(());
        }
        looking::used(entry, twin);
        twin.used_in_turn(entry);
        if !twin.has_found.load(Ordering::Relaxed) {
            twin.has_found.store(true, Ordering::Relaxed);
        }
        let is_short = part > 0 && self.received < self.wanted;
        if self.joins && is_short && twin.progress().sends() && twin.ends_elsewhere(0) {
            // Bytes that were peeked at are there at once.
            self.rest.advance(part);
            let missing = first(self.rest.pieces(), self.wanted - self.received);
            self.received += twin.rest_now(entry, &missing, self.flags | libc::MSG_DONTWAIT);
        }
        Step::Break(Ok(self.received))
    }

    /// Peeks at bytes in the kernel that follow `part` bytes on the fabric. Returns the number of both.
    fn peek_into_kernel(&mut self, part: usize) -> usize {
        let until = self.until();
        let waits = part < self.least && self.waits();
        let mut missing = Rest::new(self.pieces, false);
        missing.advance(part);
        let flags = if waits { self.flags } else { self.flags | libc::MSG_DONTWAIT };
        match receiving::kernels_part(self.entry, self.twin, waits, until) {
            Ok(()) => part + self.twin.rest_by_kernel(self.entry, missing.pieces(), flags, true, until),
            Err(_) => part,
        }
    }

    /// Returns `part` peeked bytes, or waits for more: all of what is to be peeked at has to be there at once.
    fn peeked(&mut self, part: usize) -> Step {
        let twin = self.twin;
        if part >= self.least || part == 0 || twin.unix || !self.waits() || !twin.goes_on() {
            return Step::Break(Ok(part));
        }
        if part == self.received {
            std::thread::sleep(PEEK_EVERY);
        }
        self.received = part;
        match twin.wait(self.entry, Wait::Recv(part), &mut self.waiting) {
            Ok(()) => Step::Continue(()),
            Err(_) => Step::Break(Ok(part)),
        }
    }

    /// Goes on after a failure: in the kernel, again, after a wait, or not at all.
    fn failed(&mut self, failure: Failure) -> Step {
        let failure = match failure {
            failure if aside::is_elsewhere(failure) => match self.goes_on_in_kernel() {
                Ok(received) => return Step::Break(Ok(received)),
                Err(failure) => failure,
            },
            AGAIN if self.may_have_more() => return Step::Continue(()),
            AGAIN if self.waits() => match self.twin.wait(self.entry, Wait::Recv(0), &mut self.waiting) {
                Ok(()) => return Step::Continue(()),
                Err(failure) => failure,
            },
            failure => failure,
        };
        Step::Break(self.outcome(failure))
    }

    /// Receives from the kernel what follows the fabric's bytes, if that is for this call.
    fn goes_on_in_kernel(&mut self) -> Outcome<usize> {
        let until = self.until();
        match receiving::received_all(self.entry, self.twin, self.waits(), until)? {
            true if self.received > 0 && !self.peek => {
                let missing = first(self.rest.pieces(), self.least - self.received);
                let flags = self.flags | libc::MSG_WAITALL;
                Ok(self.received + self.twin.rest_by_kernel(self.entry, &missing, flags, true, until))
            }
            true => Err(Failure::Kernel),
            false => Ok(self.received),
        }
    }

    /// Returns whether another look may find bytes although there were none.
    fn may_have_more(&self) -> bool {
        let (twin, entry) = (self.twin, self.entry);
        if twin.progress().sends() && twin.rest_comes(entry) {
            return true;
        }
        if self.received == 0 {
            let waits = self.waits();
            if !waits && (twin.await_inherited() || looking::is_waited_for(entry, twin)) {
                return true;
            }
            if self.caught_up.get() == 0 && twin.is_no_gain(entry, waits) {
                return true;
            }
        }
        twin.is_settled(entry) || self.received == 0 && !self.waits() && self.catches_up()
    }

    /// Has the driver bring what the peer has sent before. Returns whether another look may find it.
    fn catches_up(&self) -> bool {
        let times = self.caught_up.replace(self.caught_up.get() + 1);
        let occasion = match self.twin.has_found.swap(false, Ordering::Relaxed) {
            true => Occasion::Frequent,
            false => Occasion::Rare,
        };
        times < CATCH_UPS_MAX && (self.twin.hear(self.entry) || self.twin.catch_up(occasion))
    }

    /// Returns what the call returns after a failure that ends it.
    fn outcome(&self, failure: Failure) -> Outcome<usize> {
        let (twin, received) = (self.twin, self.received);
        match failure {
            Failure::Errno(libc::ECONNRESET) if received > 0 && twin.unix => {
                // As for a receive that finds the end.
                twin.tells_failure();
                Ok(received)
            }
            _ if received > 0 => Ok(received),
            // TCP has waited, and then has nothing to do.
            AGAIN if self.wanted == 0 && !twin.unix && self.waits() => Ok(0),
            Failure::Errno(libc::ECONNRESET) if !twin.tells_failure() => Ok(0),
            Failure::Errno(libc::ECONNRESET) => {
                receiving::failure_is_told(self.entry, twin);
                Err(failure)
            }
            _ => Err(failure),
        }
    }
}

impl Twin {
    /// `recvmsg` into `pieces`. `takes_descriptors`: those that come with an AF_UNIX message are the program's.
    ///
    /// # Safety
    /// Each piece is memory that may be written.
    pub(crate) unsafe fn receive(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        flags: c_int,
        takes_descriptors: bool,
    ) -> Outcome<usize> {
        // A message with descriptors that the program takes is received by a call of its own.
        let joins = !(self.unix && takes_descriptors);
        // SAFETY: the caller's promise.
        self.receive_by(entry, pieces, flags, joins, &mut |pieces, peek| unsafe {
            self.receive_some(entry, pieces, peek)
        })
    }

    /// A receive of at most `max` bytes that stay where they are, lent; `each` gets them.
    pub(crate) fn lend(
        &self,
        entry: &Arc<Entry>,
        max: usize,
        each: &mut dyn FnMut(&Arc<Socket>, Handout),
    ) -> Outcome<usize> {
        let room = [iovec { iov_base: std::ptr::null_mut(), iov_len: max }];
        self.receive_by(entry, &room, libc::MSG_DONTWAIT, false, &mut |room, _| {
            self.with(entry, |socket| socket.lend(total(room), &mut |lent| each(socket, lent)))
        })
    }

    /// [`Twin::receive`] by means of `some`, which receives what is there. `joins`: bytes in the kernel follow those of the fabric in one call.
    pub(super) fn receive_by(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        flags: c_int,
        joins: bool,
        some: &mut dyn FnMut(&[iovec], bool) -> Outcome<usize>,
    ) -> Outcome<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(self.for_kernel(entry, KernelReason::Urgent, libc::EINVAL));
        }
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(AGAIN);
        }
        let mut receive = Receive::new(self, entry, pieces, flags, joins);
        loop {
            let step = match some(receive.rest.pieces(), receive.peek) {
                Ok(part) => receive.took(part),
                Err(failure) => receive.failed(failure),
            };
            if let ControlFlow::Break(outcome) = step {
                return outcome;
            }
        }
    }

    /// Receives what is there.
    ///
    /// # Safety
    /// Each piece is memory that may be written, or null.
    pub(super) unsafe fn receive_some(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        peek: bool,
    ) -> Outcome<usize> {
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
        let found =
            self.with(entry, |end| unsafe { back.receive(fd, end, pieces, peek, || self.progress().owed()) });
        self.go_back(entry, back);
        match found? {
            Found::Bytes(bytes) => Ok(bytes),
            Found::Headless => {
                self.stay_away(entry);
                Err(Failure::Kernel)
            }
        }
    }
}
