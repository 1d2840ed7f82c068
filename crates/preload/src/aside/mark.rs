//! The peer's mark: the first byte of the kernel's stream, which is taken off before the program's bytes.
use super::{MARKED, UNMARKED};
use crate::call::{errno, interrupted, lock, Failure, Outcome, AGAIN};
use crate::entry::Entry;
use crate::sleep::kernel_poll;
use crate::twin::Twin;
use crate::{closed, real};
use libc::c_int;
use pd_client::core::Socket;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first byte over the kernel's connection: of who stays there...
pub(super) const MARK: u8 = 0xa5;
/// ...and of who may come back ([`crate::away`]).
pub(super) const MARK_BRIEF: u8 = 0xa6;

/// Time between looks of a wait for the mark.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

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

/// Takes the peer's mark off the kernel's stream, if it is there. Of several images that hold the socket, one does: the driver says which,
/// before the byte is read. What another one has read since is no mark.
pub(super) fn take_mark(entry: &Arc<Entry>, twin: &Twin) -> Outcome<Mark> {
    let is_known = twin.progress().has(MARKED | UNMARKED);
    let taken = if is_known || closed::is_closed() {
        take_off(entry, twin, None).map_err(Failure::from)
    } else {
        // Taking the end over tells whether a mark comes.
        twin.with_present(entry, |end| take_off(entry, twin, Some(end)))
    };
    match taken {
        Ok(taken) => taken,
        Err(Failure::Kernel) => Ok(Mark::Off),
        Err(_) => Ok(Mark::NotYet),
    }
}

/// [`take_mark`] for a process that has claimed the mark.
pub(super) fn take_claimed(entry: &Arc<Entry>, twin: &Twin) -> Outcome<Mark> {
    take_off(entry, twin, None).map_err(Failure::from)?
}

/// Takes the mark off for one that has this end, or where the driver cannot be asked.
///
/// # Errors
/// `ESTALE` if another process has the end by now.
fn take_off(entry: &Entry, twin: &Twin, end: Option<&Arc<Socket>>) -> pd_client::Result<Outcome<Mark>> {
    let _one = lock(&twin.aside.marking);
    // No close of another thread gives the number away before this is over.
    let Some(fd) = entry.kernels_fd() else { return Ok(Err(Failure::Errno(libc::EBADF))) };
    // Nor does another process of the family.
    let _alone = twin.slot().map(|slot| slot.lock_mark());
    if twin.progress().has(MARKED) {
        return Ok(Ok(Mark::Off));
    }
    if twin.progress().has(UNMARKED) {
        return Ok(Ok(if is_readable(fd) { Mark::Off } else { Mark::NotYet }));
    }
    if let Some(back) = twin.back.as_ref().filter(|back| back.is_headless() || !back.receives()) {
        // There is none: what the peer sent went over the kernel all the time. Or it comes behind bytes of the program's.
        if !back.is_headless() {
            return Ok(Ok(Mark::NotYet));
        }
        twin.progress().set(MARKED);
        return Ok(Ok(Mark::Off));
    }
    let failed = twin.aside.failed.load(Ordering::Relaxed);
    if failed > 0 {
        return Ok(Err(Failure::Errno(failed)));
    }
    if let Some(end) = end.filter(|_| receive_byte(fd, libc::MSG_PEEK).is_ok_and(|(len, _)| len == 1)) {
        match end.claim_mark() {
            Ok(true) => {}
            Ok(false) => {
                twin.progress().set(MARKED);
                return Ok(Ok(Mark::Off));
            }
            Err(error) if error.errno() == libc::ESTALE => return Err(error),
            // The driver does not know the connection any more: nobody else gets the end.
            Err(_) => {}
        }
    }
    Ok(match receive_byte(fd, 0) {
        Ok((0, _)) => Ok(Mark::Never),
        Ok((_, byte)) => {
            twin.aside.may_return[1].store(byte == MARK_BRIEF, Ordering::Relaxed);
            twin.progress().set(MARKED);
            Ok(Mark::Off)
        }
        Err(libc::EAGAIN | libc::EINTR) => Ok(Mark::NotYet),
        // The kernel says it once.
        Err(other) => {
            twin.aside.failed.store(other, Ordering::Relaxed);
            Err(Failure::Errno(other))
        }
    })
}

/// Receives a byte of the kernel's stream, if there is one. Returns the length and the byte.
fn receive_byte(fd: c_int, flags: c_int) -> Result<(isize, u8), c_int> {
    let mut byte = [0u8; 1];
    let received = if closed::is_closed() {
        closed::read_byte(fd, &mut byte)
    } else {
        // SAFETY: room for a byte.
        unsafe { real::recv(fd, byte.as_mut_ptr().cast(), 1, flags | libc::MSG_DONTWAIT) }
    };
    match received {
        0.. => Ok((received, byte[0])),
        _ => Err(errno()),
    }
}

/// Takes the mark off; waits for it as said. Where none comes the kernel's stream begins at once.
pub(super) fn await_mark(
    entry: &Arc<Entry>,
    twin: &Twin,
    waits: bool,
    until: Option<Instant>,
) -> Outcome<Mark> {
    if twin.progress().has(UNMARKED) {
        return Ok(Mark::Off);
    }
    let _sleeper = waits.then(|| entry.sleeps());
    loop {
        // Another one if a thread has closed the program's while this one slept.
        let fd = entry.kernels_fd().ok_or(Failure::Errno(libc::EBADF))?;
        match take_mark(entry, twin)? {
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
            Err(Failure::Errno(libc::EINTR)) => interrupted(until.is_some())?,
            Err(failure) => return Err(failure),
        }
    }
}

/// Returns whether the kernel's stream has bytes, an end or a failure.
pub(super) fn is_readable(fd: c_int) -> bool {
    let mut poll = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null()) != Ok(0)
}
