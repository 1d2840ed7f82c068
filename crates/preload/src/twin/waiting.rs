//! Waiting for bytes, for room and for a peer that has still to take its end. A signal ends each wait.
use super::Twin;
use crate::address::is_nonblocking;
use crate::aside::receiving;
use crate::call::{interrupted, lock, Failure, Outcome, AGAIN};
use crate::claim::{self, settling, watch};
use crate::closed;
use crate::entry::{Entry, Sleeper};
use crate::sleep::{kernel_poll, sleep_on};
use pd_client::core::{has_pairs, sleep_for, Occasion, Pause};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that a process waits for the one that has the end before it takes the end.
const TAKE_EVERY: Duration = Duration::from_millis(5);

/// Time between looks at a ring of a process that makes few system calls.
const CLOSED_LOOK_EVERY: Duration = Duration::from_millis(10);

/// Purpose of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// More than so many bytes.
    Recv(usize),
    Send,
}

/// The waits of a call.
#[derive(Debug, Default)]
pub(crate) struct Waits<'a> {
    /// When the socket's time is over, if ever; known after the first wait.
    until: Option<Option<Instant>>,
    sleeper: Option<Sleeper<'a>>,
}

impl Waits<'_> {
    /// Returns the end of the time of a socket with this time-out.
    pub(super) fn until(&mut self, timeout_ns: &AtomicU64) -> Option<Instant> {
        *self.until.get_or_insert_with(|| Twin::until(timeout_ns))
    }
}

impl Twin {
    /// Finds out how it stands with a peer that has still to take its end; true: it was decided just now. Who never waits may
    /// make no other calls than this one.
    pub(crate) fn is_settled(&self, entry: &Arc<Entry>) -> bool {
        self.waits_for_claim() && settling::settle(entry)
    }

    /// Now that it is in the table.
    pub(crate) fn register(&self, entry: &Arc<Entry>) {
        if lock(&self.pending_claim).is_some() {
            settling::add(entry);
        }
    }

    /// Waits once, at most until the socket's time is over.
    pub(super) fn wait<'a>(&self, entry: &'a Arc<Entry>, wait: Wait, waits: &mut Waits<'a>) -> Outcome<()> {
        let until = waits.until(match wait {
            Wait::Recv(_) => &self.recv_timeout_ns,
            Wait::Send => &self.send_timeout_ns,
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
        let is_pending = claim::any_pending() && lock(&self.pending_claim).is_some();
        if !is_pending || !claim::is_alone() {
            watch::before_sleep();
        }
        if is_pending && !settling::settle(entry) {
            full = wait == Wait::Send && self.is_full();
            limit = limit.min(if full { claim::LOOK_FOR_ROOM_EVERY } else { claim::LOOK_EVERY });
        }
        waits.sleeper.get_or_insert_with(|| entry.sleeps());
        if self.is_abandoned() {
            return Err(Failure::Kernel);
        }
        let between = self.window().filter(|back| matches!(wait, Wait::Recv(_)) && !back.receives());
        if let (Some(_), Some(end), Some(fd)) = (between, self.current(), entry.any_fd()) {
            let mut kernel = vec![libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            let wanted = vec![(end, libc::POLLIN as u32)];
            let limit = (limit < Duration::MAX).then_some(limit);
            return match sleep_on(wanted, &mut kernel, limit, std::ptr::null(), &|| false) {
                Err(Failure::Errno(libc::EINTR)) => interrupted(until.is_some()),
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
        if pause == Pause::Signal {
            interrupted(until.is_some())?;
        }
        Ok(())
    }

    /// Waits a while for what a connection that leaves receives or sends. The peer writes to the kernel's connection when it
    /// follows, after its next bytes on the fabric.
    #[cold]
    pub(super) fn wait_in_kernel(entry: &Arc<Entry>, wait: Wait, until: Option<Instant>) -> Outcome<()> {
        let left = until.map_or(CLOSED_LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(AGAIN);
        }
        let fd = entry.any_fd().ok_or(Failure::Errno(libc::EBADF))?;
        // A full ring is no matter of the kernel's.
        let events = if wait == Wait::Send { 0 } else { libc::POLLIN };
        let mut poll = [libc::pollfd { fd, events, revents: 0 }];
        match kernel_poll(&mut poll, Some(left.min(CLOSED_LOOK_EVERY)), std::ptr::null()) {
            Err(Failure::Errno(libc::EINTR)) => interrupted(until.is_some()),
            waited => waited.map(drop),
        }
    }

    pub(super) fn until(timeout_ns: &AtomicU64) -> Option<Instant> {
        match timeout_ns.load(Ordering::Relaxed) {
            0 => None,
            timeout_ns => Instant::now().checked_add(Duration::from_nanos(timeout_ns)),
        }
    }

    /// Waits once for bytes to receive, at most until the socket's time is over.
    pub(crate) fn wait_for_bytes<'a>(&self, entry: &'a Arc<Entry>, waits: &mut Waits<'a>) -> Outcome<()> {
        self.wait(entry, Wait::Recv(0), waits)
    }

    /// Waits once for room to send, at most until the socket's time is over.
    pub(crate) fn wait_for_room<'a>(&self, entry: &'a Arc<Entry>, waits: &mut Waits<'a>) -> Outcome<()> {
        self.wait(entry, Wait::Send, waits)
    }

    /// The events of `poll` and `epoll` that hold.
    pub(crate) fn ready(&self, entry: &Arc<Entry>, wanted: u32) -> u32 {
        let look =
            || self.with_present(entry, |socket| Ok(socket.ready(wanted))).unwrap_or(libc::EPOLLERR as u32);
        let ready = look();
        const READ: u32 = (libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let misses = wanted & libc::EPOLLIN as u32 != 0 && ready & READ == 0;
        let tells_again = ready & libc::EPOLLERR as u32 != 0 && receiving::is_told(entry, self);
        match tells_again || misses && self.await_inherited() {
            true => look(),
            false => ready,
        }
    }

    /// Has the driver bring what the peer has done before, for a call that does not wait. Returns whether another look may find more.
    pub(crate) fn catch_up(&self, occasion: Occasion) -> bool {
        !closed::is_closed()
            && !self.waits_for_claim()
            && self.current().is_some_and(|end| end.catch_up(occasion))
    }

    /// Tells whether this process has, or had, the other end, too.
    pub(crate) fn has_pair(&self) -> bool {
        has_pairs() && self.current().is_some_and(|end| end.has_pair())
    }

    /// Waits for what the process that had the end before has left unread. Returns whether there is something to receive.
    pub(crate) fn await_inherited(&self) -> bool {
        self.current().is_some_and(|end| end.await_inherited())
    }
}

/// Asks for all of `ends` of which `has_pair` holds, and for the others until one finds more. Returns whether any does. A wait for what one
/// end is known to get says nothing of the next one.
pub(crate) fn any_finds_more<T>(
    ends: &[T],
    has_pair: impl Fn(&T) -> bool,
    asks: impl Fn(&T) -> bool,
) -> bool {
    let of_pairs = has_pairs() && ends.iter().filter(|it| has_pair(it) && asks(it)).count() > 0;
    of_pairs | ends.iter().any(|it| !has_pair(it) && asks(it))
}
