//! Leaving the fabric: a connection that both ends have taken up goes on in the kernel's connection beside it, at any
//! time, in both directions and without loss.
//!
//! Who leaves says so to the driver ([`Socket::step_aside`]): what it sends on the fabric has an end from then on, and its peer
//! hears, before its next send is over, that it shall leave, too. Each side then sends a *mark* of one byte over the
//! kernel's connection, and after it what it sends from now on. Who receives reads the fabric's stream to its end, takes the
//! mark off the kernel's, and goes on there. The mark is more than a boundary: it makes the kernel's socket readable, so that
//! whoever waits there in ways that the library cannot see comes and reads what lies on the fabric. Where nobody does, the side that
//! follows sends none ([`departure`]).
//!
//! What the driver says when it has told the peer is up to where bytes still come that the peer had sent before it could
//! know. So whoever has left and finds nothing waits for those, and answers `EAGAIN` only when everything later comes by the
//! kernel, mark first.
use crate::call::{errno, interrupts, lock, Failure, Outcome};
use crate::counts::Counts;
use crate::entry::Entry;
use crate::file_lock::FileLock;
use crate::log::note;
use crate::sleep::kernel_poll;
use crate::twin::{Stands, Twin};
use crate::{address, away, closed, epoll_set, fabric, real, unclaimed, unseen};
use libc::c_int;
use pd_client::core::{Departure, KernelReason, Pause, Socket, ELSEWHERE};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The first byte over the kernel's connection: of who stays there...
const MARK: u8 = 0xa5;
/// ...and of who may come back ([`crate::away`]).
const MARK_BRIEF: u8 = 0xa6;
/// How long bytes are waited for that the driver has said are on their way.
const COMES_WITHIN: Duration = Duration::from_secs(2);
/// Time between looks of a wait for the mark.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The same of a process that makes few system calls.
const SANDBOX_LOOK_EVERY: Duration = Duration::from_millis(1);

/// It sends in the kernel.
const SENDS: u32 = 1;
/// The peer's mark has been taken off.
const MARKED: u32 = 2;
/// It receives in the kernel, too.
const OVER: u32 = 4;
/// The peer sends no mark.
const UNMARKED: u32 = 8;

/// How far a connection is.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// One thread at a time has it leave.
    leaving: Mutex<()>,
    /// One thread at a time takes the mark off: the byte after it is the program's.
    marking: Mutex<()>,
    /// Why the mark cannot be taken off, which the kernel tells once; 0: nothing that the program has still to hear.
    failed: AtomicI32,
    /// It is off, and the driver does not know.
    mark_untold: AtomicBool,
    /// This side may come back, and so may the peer.
    may_return: [AtomicBool; 2],
    /// What has gone over the kernel since the marks.
    pub(crate) counts: Arc<Counts>,
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

    /// Another process has had it go on in the kernel, in both directions.
    pub(crate) fn is_over_elsewhere(&self) {
        self.set(SENDS | OVER);
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

/// Whether a send failed because the process has no memory or numbers left, or the driver has none for it.
pub(crate) fn lacks_means(failure: Failure) -> bool {
    let lacking = [libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::ENFILE];
    matches!(failure, Failure::Errno(errno) if lacking.contains(&errno))
}

/// Has a connection leave, for a reason. What is sent after this is the kernel's. False: it has to stay.
pub(crate) fn leave(entry: &Arc<Entry>, twin: &Twin, why: KernelReason) -> bool {
    let by_choice = matches!(why, KernelReason::SmallTalk | KernelReason::Shared);
    if twin.names.is_some() || by_choice && twin.window().is_some() {
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
    let left = twin.with_present(entry, |end| {
        if twin.progress().sends() {
            return Ok(());
        }
        // Another image that has the socket, too, may take it before the mark is sent: it waits for this then.
        let _marking = (!closed::is_closed()).then(|| FileLock::new(fd));
        let departure = departure(twin, why);
        let left = end.step_aside(departure)?;
        if left.unmarked {
            // Before anybody looks for a mark: a byte of the program's is none.
            twin.progress().set(UNMARKED);
        }
        note!("descriptor {fd}: leaves the fabric: {}", why.text());
        fabric::stays_on_kernel(fd, why);
        twin.progress().owed.store(left.owed, Ordering::Relaxed);
        epoll_set::stand(entry, end, Stands::in_both());
        // One that has failed needs none: what the kernel tells once is the program's.
        let mut poll = [libc::pollfd { fd, events: 0, revents: 0 }];
        let fails = kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null()) != Ok(0);
        // What goes over the kernel already goes on there.
        let marks = left.marks && twin.back.as_ref().is_none_or(|back| back.sends());
        if marks && !twin.send_shut.load(Ordering::Relaxed) && !fails {
            let returns = (why == KernelReason::SmallTalk || why == KernelReason::PeerLeft) && twin.is_sole();
            let mark = [if returns { MARK_BRIEF } else { MARK }];
            // Nothing was sent there before: there is room. One that fails tells the next call.
            // SAFETY: sends from a slice.
            let sent =
                unsafe { real::send(fd, mark.as_ptr().cast(), 1, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
            twin.aside.may_return[0].store(returns && sent == 1, Ordering::Relaxed);
        }
        end.look_exactly();
        twin.progress().set(SENDS);
        Ok(())
    });
    match left {
        Ok(()) | Err(Failure::Plain | Failure::Kernel) => true,
        Err(Failure::Errno(errno)) => {
            note!("descriptor {fd}: cannot leave the fabric ({}): errno {errno}", why.text());
            false
        }
    }
}

/// How a connection leaves. A mark reaches programs that wait in the kernel alone. For others it is a byte too many: one that comes
/// after the close would have the kernel reset the connection, and drop what is still on its way to the peer.
fn departure(twin: &Twin, why: KernelReason) -> Departure {
    let waits_in_kernel = || match why {
        KernelReason::UnseenWait | KernelReason::Signals | KernelReason::Sandbox => true,
        _ => unseen::is_found() || closed::is_closed(),
    };
    match why {
        KernelReason::SmallTalk => Departure::ByChoice,
        KernelReason::Shared if waits_in_kernel() => Departure::ByChoice,
        KernelReason::Shared => Departure::UnmarkedByChoice,
        _ if twin.is_passed() && twin.window().is_none() && !waits_in_kernel() => Departure::Unmarked,
        // Of AF_UNIX an unread mark is what resets the connection.
        _ if twin.unix || twin.window().is_some() || waits_in_kernel() => Departure::Marked,
        _ => Departure::Unmarked,
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

/// Says to the driver that the mark is off, if this side stays on the fabric for now: another image may get the socket.
fn tell_mark(entry: &Arc<Entry>, twin: &Twin) {
    if twin.aside.mark_untold.swap(false, Ordering::Relaxed) && !closed::is_closed() {
        let _ = twin.with(entry, |end| end.mark_taken());
    }
}

/// This process has taken an end that had left by another one's doing.
#[cold]
pub(crate) fn taken_aside(entry: &Arc<Entry>, twin: &Twin, end: &Socket) -> pd_client::Result<()> {
    if let Some(fd) = entry.any_fd().filter(|_| !closed::is_closed()) {
        // What this process sends comes behind the mark.
        drop(FileLock::new(fd));
    }
    let left = end.step_aside(Departure::Marked)?;
    if left.unmarked {
        twin.progress().set(UNMARKED);
    }
    twin.progress().owed.store(left.owed, Ordering::Relaxed);
    twin.progress().set(SENDS);
    Ok(())
}

/// Whether the kernel's stream has bytes, an end or a failure.
fn is_readable(fd: c_int) -> bool {
    let mut poll = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null()) != Ok(0)
}

/// The kernel says that the descriptor of one that leaves is ready so: without what is there for the mark alone, which is taken off.
pub(crate) fn told_by_kernel(entry: &Arc<Entry>, twin: &Twin, fd: c_int, told: u32) -> u32 {
    const READABLE: u32 = (libc::POLLIN | libc::POLLRDNORM) as u32;
    const FAILED: u32 = (libc::POLLERR | libc::POLLHUP) as u32;
    if twin.window().is_some_and(|back| !back.receives()) {
        return told;
    }
    // A failure, which the kernel tells once, is the program's.
    if told & READABLE == 0 || told & FAILED != 0 || twin.progress().has(MARKED | UNMARKED) {
        return told;
    }
    ask_for_mark(entry, twin);
    let mark = take_mark(twin, fd);
    tell_mark(entry, twin);
    match mark {
        Ok(Mark::Off) if !is_readable(fd) => told & !READABLE,
        _ => told,
    }
}

/// Of an end that several processes have, only the driver knows whether a mark comes.
fn ask_for_mark(entry: &Arc<Entry>, twin: &Twin) {
    if !twin.progress().sends()
        && twin.is_passed()
        && twin.with_present(entry, |end| Ok(end.sends_elsewhere())) == Ok(true)
    {
        leave(entry, twin, KernelReason::PeerLeft);
    }
}

/// Tells whether one of the two has left, so that bytes may come in the kernel.
pub(crate) fn has_begun(twin: &Twin) -> bool {
    twin.progress().sends()
        || twin.window().is_some()
        || twin.current().is_some_and(|end| end.sends_elsewhere())
}

/// Number of the bytes that lie in the kernel and are the program's.
pub(crate) fn without_mark(twin: &Twin, there: c_int) -> c_int {
    let between = twin.window().is_some_and(|back| !back.receives());
    let mark = c_int::from(!twin.progress().has(MARKED | UNMARKED) && !between);
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
    match await_mark(twin, fd, waits, until) {
        // The kernel says that of every empty stream that is shut.
        Ok(Mark::Never) if twin.recv_shut.load(Ordering::Relaxed) => return Ok(None),
        Ok(_) => settle(entry, twin),
        Err(failure) => {
            if twin.aside.failed.swap(0, Ordering::Relaxed) != 0 {
                settle(entry, twin);
            }
            return Err(failure);
        }
    }
    Ok(Some(fd))
}

/// All of the fabric's stream is there, and what comes next is to be had with it: the kernel's descriptor, once the mark is off.
pub(crate) fn kernels_part(
    entry: &Arc<Entry>,
    twin: &Twin,
    waits: bool,
    until: Option<Instant>,
) -> Outcome<c_int> {
    leave(entry, twin, KernelReason::PeerLeft);
    let fd = entry.any_fd().ok_or(Failure::Errno(libc::EBADF))?;
    let found = await_mark(twin, fd, waits, until);
    tell_mark(entry, twin);
    found.map(|_| fd)
}

/// Takes the mark off; waits for it as said. Where none comes the kernel's stream begins at once.
fn await_mark(twin: &Twin, fd: c_int, waits: bool, until: Option<Instant>) -> Outcome<Mark> {
    if twin.progress().has(UNMARKED) {
        return Ok(Mark::Off);
    }
    loop {
        match take_mark(twin, fd)? {
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
            Ok(0) if left <= LOOK_EVERY => return Err(crate::call::AGAIN),
            Ok(_) => {}
            Err(Failure::Errno(libc::EINTR)) if !interrupts(until.is_some()) => {}
            Err(failure) => return Err(failure),
        }
    }
}

/// Nothing of the connection is the fabric's any more.
pub(crate) fn settle(entry: &Arc<Entry>, twin: &Twin) {
    let one = lock(&twin.aside.leaving);
    settle_locked(entry, twin, &one);
}

/// The same, unless a thread has it leave just now, which may be this one: then a later call does it.
pub(crate) fn settle_if_free(entry: &Arc<Entry>, twin: &Twin) {
    if let Ok(one) = twin.aside.leaving.try_lock() {
        settle_locked(entry, twin, &one);
    }
}

fn settle_locked(entry: &Arc<Entry>, twin: &Twin, _leaving: &MutexGuard<'_, ()>) {
    if !twin.progress().sends() {
        return;
    }
    if !twin.is_abandoned() {
        twin.progress().set(OVER);
        let may = twin.aside.may_return.iter().all(|may| may.load(Ordering::Relaxed));
        let shut = [&twin.send_shut, &twin.recv_shut].iter().any(|shut| shut.load(Ordering::Relaxed));
        let away = if may && !shut && twin.is_sole() { away::entry_of(entry, twin) } else { None };
        epoll_set::move_back(entry);
        match away {
            Some(away) => entry.hand_to(&away),
            None => entry.give_up(),
        }
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
    let due = is_due();
    tell_mark(entry, twin);
    if !due {
        return false;
    }
    let until = Instant::now() + COMES_WITHIN;
    while Instant::now() < until {
        if end.look_exactly() {
            return true;
        }
        if closed::is_closed() {
            let _ = kernel_poll(&mut [], Some(SANDBOX_LOOK_EVERY), std::ptr::null());
        } else if end.pause_recv(Duration::from_millis(50), 0) == Pause::Signal {
            interrupts(false);
        }
    }
    false
}

/// Waits, for a while, until all that is certain to come on the fabric to one that has left lies in its ring.
pub(crate) fn await_owed(entry: &Arc<Entry>, twin: &Twin) {
    let until = Instant::now() + COMES_WITHIN;
    let _ = twin.with(entry, |end| {
        let owed = twin.progress().owed.load(Ordering::Relaxed);
        while end.position() + end.received() < owed && Instant::now() < until {
            end.pause_recv(Duration::from_millis(5), 0);
        }
        Ok(())
    });
}

/// Bytes of the program's lie unread in the kernel.
pub(crate) fn has_unread(fd: c_int, twin: &Twin) -> bool {
    if twin.names.is_some() || !has_begun(twin) {
        return false;
    }
    let mut there = 0;
    // SAFETY: room for a number.
    let known = unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut there) as usize as _) } == 0;
    known && without_mark(twin, there) > 0
}

/// The last number is about to be closed with bytes unread: so is the kernel's connection reset if the two go on there. Of AF_UNIX the
/// mark does that, as long as it is unread.
pub(crate) fn reset_with(fd: c_int, twin: &Twin) {
    if twin.names.is_none() && !twin.unix && has_begun(twin) {
        address::linger_never(fd);
    }
}

/// The program has heard of a reset that the kernel knows of, too.
pub(crate) fn failure_is_told(entry: &Arc<Entry>, twin: &Twin) {
    if twin.progress().sends() {
        entry.any_fd().map(|fd| address::option(fd, libc::SOL_SOCKET, libc::SO_ERROR));
    }
}

/// The last number is about to be closed: a mark that is left unread would have the kernel reset the connection.
pub(crate) fn before_close(entry: &Arc<Entry>, fd: c_int, twin: &Twin) {
    if twin.names.is_none() && twin.current().is_some_and(|end| end.sends_elsewhere()) {
        ask_for_mark(entry, twin);
        let _ = take_mark(twin, fd);
        tell_mark(entry, twin);
    }
}
