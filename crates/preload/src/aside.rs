//! Leaving the fabric: a connection that both ends have taken up goes on in the kernel's connection beside it, at any
//! time, in both directions and without loss.
//!
//! Who leaves says so to the driver ([`Socket::step_aside`]): what it sends on the fabric has an end from then on, and its peer
//! hears, before its next send is over, that it shall leave, too. Each side then sends a *mark* of one byte over the
//! kernel's connection, and after it what it sends from now on. Who receives reads the fabric's stream to its end, takes the
//! mark off the kernel's, and goes on there. The mark is more than a boundary: it makes the kernel's socket readable, so that
//! whoever waits there in ways that the library cannot see comes and reads what lies on the fabric.
//!
//! What the driver says when it has told the peer is up to where bytes still come that the peer had sent before it could
//! know. So whoever has left and finds nothing waits for those, and answers `EAGAIN` only when everything later comes by the
//! kernel, mark first.
use crate::call::{errno, interrupts, Failure, Outcome};
use crate::entry::{lock, Entry};
use crate::hooks::poll::kernel_poll;
use crate::log::note;
use crate::twin::Twin;
use crate::{companion, fabric, real, unclaimed};
use libc::c_int;
use pd_client::core::{KernelReason, Pause, Socket, ELSEWHERE};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The first byte over the kernel's connection.
const MARK: u8 = 0xa5;
/// How long bytes are waited for that the driver has said are on their way.
const COMES_WITHIN: Duration = Duration::from_secs(2);
/// Time between looks of a wait for the mark.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// It sends in the kernel.
const SENDS: u32 = 1;
/// The peer's mark has been taken off.
const MARKED: u32 = 2;
/// It receives in the kernel, too.
const OVER: u32 = 4;

/// How far a connection is.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// One thread at a time has it leave.
    leaving: Mutex<()>,
    /// One thread at a time takes the mark off: the byte after it is the program's.
    marking: Mutex<()>,
    pub(crate) progress: Progress,
}

/// The same for all processes that hold it.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Progress {
    /// Up to which position bytes come on the fabric, whatever the peer does.
    owed: AtomicU64,
    done: AtomicU32,
}

impl Progress {
    fn has(&self, what: u32) -> bool {
        self.done.load(Ordering::Acquire) & what != 0
    }

    fn set(&self, what: u32) {
        self.done.fetch_or(what, Ordering::AcqRel);
    }

    /// What is sent goes over the kernel.
    #[inline]
    pub(crate) fn sends(&self) -> bool {
        self.has(SENDS)
    }

    /// Nothing of it is the fabric's any more.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.has(OVER)
    }

    /// Becomes another's.
    pub(crate) fn copy(&self, other: &Self) {
        self.owed.store(other.owed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.done.store(other.done.load(Ordering::Relaxed), Ordering::Release);
    }
}

/// Whether the fabric says that the connection goes on in the kernel.
pub(crate) fn is_elsewhere(failure: Failure) -> bool {
    failure == Failure::Errno(ELSEWHERE)
}

/// Has a connection leave, for a reason. What is sent after this is the kernel's. False: it has to stay.
pub(crate) fn leave(entry: &Arc<Entry>, twin: &Twin, why: KernelReason) -> bool {
    if twin.names.is_some() {
        return false;
    }
    let _one = lock(&twin.aside.leaving);
    if twin.progress().sends() || twin.is_abandoned() {
        return true;
    }
    if unclaimed::any() && lock(&twin.unclaimed).is_some() {
        unclaimed::settle_now(entry);
    }
    let Some(fd) = entry.any_fd() else { return twin.is_abandoned() };
    // As long as this has the end, no other process has it leave.
    let left = twin.with(entry, |end| {
        if twin.progress().sends() {
            return Ok(());
        }
        let owed = end.step_aside()?;
        note!("descriptor {fd}: leaves the fabric: {}", why.text());
        fabric::stays_on_kernel(fd, why);
        twin.progress().owed.store(owed, Ordering::Relaxed);
        companion::stand_on_both(entry, end);
        if !twin.send_shut.load(Ordering::Relaxed) {
            // Nothing was sent there before: there is room. One that fails tells the next call.
            // SAFETY: sends from a slice.
            unsafe {
                real::send(fd, [MARK].as_ptr().cast(), 1, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
            }
        }
        end.look_exactly();
        twin.progress().set(SENDS);
        Ok(())
    });
    match left {
        Ok(()) | Err(Failure::Plain) => true,
        Err(Failure::Errno(errno)) => {
            note!("descriptor {fd}: cannot leave the fabric ({}): errno {errno}", why.text());
            false
        }
    }
}

/// After a send on the fabric: follows a peer that has left.
#[inline]
pub(crate) fn follow(entry: &Arc<Entry>, twin: &Twin, end: &Socket) {
    if end.sends_elsewhere() {
        leave(entry, twin, KernelReason::PeerLeft);
    }
}

/// What the kernel's stream begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// It was there, and is taken off.
    Off,
    /// Nothing has come.
    NotYet,
    /// The stream has ended.
    Never,
}

/// Takes the peer's mark off the kernel's stream, if it is there.
fn take_mark(twin: &Twin, fd: c_int) -> Outcome<Mark> {
    let _one = lock(&twin.aside.marking);
    if twin.progress().has(MARKED) {
        return Ok(Mark::Off);
    }
    let mut byte = [0u8; 1];
    // SAFETY: room for a byte.
    match unsafe { real::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_DONTWAIT) } {
        1 => {
            twin.progress().set(MARKED);
            Ok(Mark::Off)
        }
        0 => Ok(Mark::Never),
        _ => match errno() {
            libc::EAGAIN | libc::EINTR => Ok(Mark::NotYet),
            // The kernel says it once.
            other => Err(Failure::Errno(other)),
        },
    }
}

/// Tells whether one of the two has left, so that bytes may come in the kernel.
pub(crate) fn has_begun(twin: &Twin) -> bool {
    twin.progress().sends() || twin.current().is_some_and(|end| end.sends_elsewhere())
}

/// Number of the bytes that lie in the kernel and are the program's.
pub(crate) fn without_mark(twin: &Twin, there: c_int) -> c_int {
    let mark = c_int::from(!twin.progress().has(MARKED));
    (there - mark).max(0)
}

/// The stream of the fabric is read to its end by one that has left, or follows: takes the mark off and makes the descriptor the
/// kernel's, which it returns. `waits`: for the mark, too, as the socket does; until then. None: this side receives no more, and
/// nothing has come; a mark still may, so that the descriptor stays as it is.
pub(crate) fn received_all(
    entry: &Arc<Entry>,
    twin: &Twin,
    waits: bool,
    until: Option<Instant>,
) -> Outcome<Option<c_int>> {
    leave(entry, twin, KernelReason::PeerLeft);
    let fd = entry.any_fd().ok_or(Failure::Errno(libc::EBADF))?;
    loop {
        match take_mark(twin, fd) {
            Ok(Mark::NotYet) => {}
            // The kernel says that of every empty stream that is shut.
            Ok(Mark::Never) if twin.recv_shut.load(Ordering::Relaxed) => return Ok(None),
            Ok(Mark::Off | Mark::Never) => break,
            Err(failure) => {
                settle(entry, twin);
                return Err(failure);
            }
        }
        let mut poll = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
        let left = match until {
            _ if !waits => Duration::ZERO,
            Some(until) => until.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        // Another thread, or another process, may take the mark off just before this one sleeps.
        match kernel_poll(&mut poll, Some(left.min(LOOK_EVERY)), std::ptr::null()) {
            Ok(0) if left <= LOOK_EVERY => return Err(crate::call::AGAIN),
            Ok(_) => {}
            Err(Failure::Errno(libc::EINTR)) if !interrupts(until.is_some()) => {}
            Err(failure) => return Err(failure),
        }
    }
    settle(entry, twin);
    Ok(Some(fd))
}

/// Nothing of the connection is the fabric's any more.
pub(crate) fn settle(entry: &Arc<Entry>, twin: &Twin) {
    if !twin.progress().sends() {
        return;
    }
    let _one = lock(&twin.aside.leaving);
    if !twin.is_abandoned() {
        twin.progress().set(OVER);
        companion::move_back(entry);
        entry.give_up();
        twin.leave();
    }
}

/// Nothing is there on the fabric for one that has left. Waits for what is certain to come: what the driver has spoken of, and the end
/// of a stream that has begun, or ended, in the kernel. False: nothing comes that the kernel does not tell of.
pub(crate) fn await_rest(entry: &Arc<Entry>, twin: &Twin, end: &Socket) -> bool {
    let Some(fd) = entry.any_fd() else { return false };
    let is_due = || {
        end.position() < twin.progress().owed.load(Ordering::Relaxed)
            || take_mark(twin, fd) != Ok(Mark::NotYet)
    };
    if !is_due() {
        return false;
    }
    let until = Instant::now() + COMES_WITHIN;
    while Instant::now() < until {
        if end.look_exactly() {
            return true;
        }
        if end.pause_recv(Duration::from_millis(50), 0) == Pause::Signal {
            interrupts(false);
        }
    }
    false
}

/// The last number is about to be closed: a mark that is left unread would have the kernel reset the connection.
pub(crate) fn before_close(fd: c_int, twin: &Twin) {
    if twin.names.is_none() && twin.current().is_some_and(|end| end.sends_elsewhere()) {
        let _ = take_mark(twin, fd);
    }
}
