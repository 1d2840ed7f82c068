//! The peer's mark: the first byte of the kernel's stream, which is taken off before the program's bytes.
use super::{MARKED, UNMARKED};
use crate::call::{errno, interrupts, lock, Failure, Outcome, AGAIN};
use crate::entry::Entry;
use crate::sleep::kernel_poll;
use crate::twin::Twin;
use crate::{closed, real};
use libc::c_int;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first byte over the kernel's connection: of who stays there...
pub(super) const MARK: u8 = 0xa5;
/// ...and of who may come back ([`crate::away`]).
pub(super) const MARK_BRIEF: u8 = 0xa6;

/// Time between looks of a wait for the mark.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Beginning of the kernel's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The mark was there, and is taken off.
    Off,
    /// Nothing has come.
    NotYet,
    /// The stream has ended.
    Never,
}

/// Takes the peer's mark off the kernel's stream, if it is there. Of several images that hold the socket the one that has the end does:
/// what another one has read since is no mark.
pub(super) fn take_mark(entry: &Arc<Entry>, twin: &Twin, fd: c_int) -> Outcome<Mark> {
    if !twin.progress().has(MARKED | UNMARKED) && !closed::is_closed() {
        // Taking the end over tells whether a mark comes.
        match twin.with_present(entry, |_| Ok(())) {
            Ok(()) => {}
            Err(Failure::Kernel) => return Ok(Mark::Off),
            Err(_) => return Ok(Mark::NotYet),
        }
    }
    let _one = lock(&twin.aside.marking);
    // Nor does another process.
    let _alone = twin.slot().map(|slot| slot.lock_mark());
    if twin.progress().has(MARKED) {
        return Ok(Mark::Off);
    }
    if twin.progress().has(UNMARKED) {
        return Ok(if is_readable(fd) { Mark::Off } else { Mark::NotYet });
    }
    if let Some(back) = twin.back.as_ref().filter(|back| back.is_headless() || !back.receives()) {
        // There is none: what the peer sent went over the kernel all the time. Or it comes behind bytes of the program's.
        if !back.is_headless() {
            return Ok(Mark::NotYet);
        }
        twin.progress().set(MARKED);
        return Ok(Mark::Off);
    }
    let failed = twin.aside.failed.load(Ordering::Relaxed);
    if failed != 0 {
        return Err(Failure::Errno(failed));
    }
    let mut byte = [0u8; 1];
    let taken = if closed::is_closed() {
        closed::read_byte(fd, &mut byte)
    } else {
        // SAFETY: room for a byte.
        unsafe { real::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) }
    };
    match taken {
        1 => {
            twin.aside.mark_untold.store(true, Ordering::Relaxed);
            twin.aside.may_return[1].store(byte[0] == MARK_BRIEF, Ordering::Relaxed);
            twin.progress().set(MARKED);
            Ok(Mark::Off)
        }
        0 => Ok(Mark::Never),
        _ => match errno() {
            libc::EAGAIN | libc::EINTR => Ok(Mark::NotYet),
            // The kernel says it once.
            other => {
                twin.aside.failed.store(other, Ordering::Relaxed);
                Err(Failure::Errno(other))
            }
        },
    }
}

/// Takes the mark off; waits for it as said. Where none comes the kernel's stream begins at once.
pub(super) fn await_mark(
    entry: &Arc<Entry>,
    twin: &Twin,
    fd: c_int,
    waits: bool,
    until: Option<Instant>,
) -> Outcome<Mark> {
    if twin.progress().has(UNMARKED) {
        return Ok(Mark::Off);
    }
    loop {
        match take_mark(entry, twin, fd)? {
            Mark::NotYet => {}
            found => return Ok(found),
        }
        let mut poll = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
        let left = match until {
            _ if !waits => Duration::ZERO,
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        // Another thread, or another process, may take the mark off just before this one sleeps.
        match kernel_poll(&mut poll, Some(left.min(LOOK_EVERY)), std::ptr::null()) {
            Ok(0) if left <= LOOK_EVERY => return Err(AGAIN),
            Ok(_) => {}
            Err(Failure::Errno(libc::EINTR)) if !interrupts(until.is_some()) => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// Returns whether the kernel's stream has bytes, an end or a failure.
pub(super) fn is_readable(fd: c_int) -> bool {
    let mut poll = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null()) != Ok(0)
}
