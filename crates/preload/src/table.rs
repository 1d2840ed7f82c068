//! Table of descriptor numbers. A number that the library has nothing to do with has one byte that is 0, and its calls look at
//! nothing else.
use crate::counts::Counts;
use crate::entry::{Entry, Thing};
use crate::epoll_set::EpollSet;
use crate::open_file::OpenFile;
use arc_swap::ArcSwapOption;
use libc::c_int;
use pd_client::core::OwnFd;
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers beyond are never looked after.
const FDS: usize = 1 << 20;

/// Kinds of numbers. See [`look`].
pub(crate) const PLAIN: u8 = 0;
/// A TCP socket with an entry.
pub(crate) const SOCKET: u8 = 1;
/// An epoll instance that has had members on the fabric.
pub(crate) const EPOLL: u8 = 2;
/// A socket from another program image or process, not yet looked at.
pub(crate) const INHERITED: u8 = 3;
/// A TCP socket made here, with which nothing has been done that asks for an entry. Many never get one: those that connect
/// to where nobody is on the fabric.
pub(crate) const FRESH: u8 = 4;
/// An epoll instance that has had no member on the fabric: waits are the kernel's. It has an entry, by which its other
/// numbers are known to be the same instance's.
pub(crate) const BARE: u8 = 5;

/// A connection that is the kernel's, and may come back to the fabric ([`crate::away`]).
pub(crate) const AWAY: u8 = 6;

/// An end of a pipe with which nothing was done but splicing ([`crate::pipe`]).
pub(crate) const PIPE: u8 = 7;

/// Being closed by a thread. A call that comes meanwhile is told what the kernel says when that is done ([`look`]).
const CLOSING: u8 = 8;

/// Longest wait for another thread's close, which may be cancelled.
const CLOSED_WITHIN: Duration = Duration::from_millis(500);

thread_local! {
    /// Numbers that this thread is closing.
    static CLOSES: Cell<u32> = const { Cell::new(0) };
}

static KINDS: [AtomicU8; FDS] = [const { AtomicU8::new(PLAIN) }; FDS];
/// Counts of connections that are away, or were once.
static AWAYS: [AtomicPtr<Counts>; FDS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; FDS];
static FILES: [ArcSwapOption<OpenFile<Entry>>; FDS] = [const { ArcSwapOption::const_empty() }; FDS];
/// One more than the highest number that ever was not plain.
static END: AtomicI32 = AtomicI32::new(0);
/// The process that the table is about. A child of `vfork` has the same memory, and must not change it.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// The last such child that has copied a number.
static COPIED_BY: AtomicI32 = AtomicI32::new(0);

/// The library looks after new descriptors.
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Returns whether the library does anything.
#[inline]
pub(crate) fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// Looks after new descriptors from now on.
pub(crate) fn enable() {
    ENABLED.store(true, Ordering::Relaxed);
}

/// Leaves everything that is new to the kernel from now on.
pub(crate) fn disable() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Returns the kind of the number. Waits for a thread that is closing it: the kernel's socket must not be taken for the connection then.
#[inline]
pub(crate) fn look(fd: c_int) -> u8 {
    match KINDS.get(fd as usize) {
        Some(kind) => match kind.load(Ordering::Acquire) {
            CLOSING => closing(kind),
            kind => kind,
        },
        None => PLAIN,
    }
}

#[cold]
fn closing(kind: &AtomicU8) -> u8 {
    if CLOSES.get() > 0 {
        // A step of the close itself, or a signal handler between two.
        return PLAIN;
    }
    let until = Instant::now() + CLOSED_WITHIN;
    while Instant::now() < until {
        pd_client::core::yield_now();
        match kind.load(Ordering::Acquire) {
            CLOSING => {}
            kind => return kind,
        }
    }
    be_closed(kind);
    kind.load(Ordering::Acquire)
}

/// Makes a number plain, unless it is another descriptor's already.
fn be_closed(kind: &AtomicU8) {
    let _ = kind.compare_exchange(CLOSING, PLAIN, Ordering::AcqRel, Ordering::Relaxed);
}

/// Returns the entry of a number, if it has one.
pub(crate) fn entry(fd: c_int) -> Option<Arc<Entry>> {
    FILES.get(fd as usize)?.load().as_ref().map(|file| file.entry().clone())
}

/// Returns the open file of a number, for a call on it.
#[inline]
pub(crate) fn file(fd: c_int) -> Option<Arc<OpenFile<Entry>>> {
    FILES.get(fd as usize)?.load_full()
}

/// Returns the open file of a number that was found not to be plain just now.
pub(crate) fn file_now(fd: c_int) -> Option<Arc<OpenFile<Entry>>> {
    let file = file(fd);
    if file.is_none() {
        // Closed, or the kernel's, since the look before: this one is after that.
        look(fd);
    }
    file
}

/// Returns whether the number stands for this open file.
pub(crate) fn is_of(fd: c_int, file: &Arc<OpenFile<Entry>>) -> bool {
    FILES
        .get(fd as usize)
        .is_some_and(|slot| slot.load().as_ref().is_some_and(|known| Arc::ptr_eq(known, file)))
}

/// One more than the highest number to look at.
pub(crate) fn end() -> c_int {
    END.load(Ordering::Relaxed)
}

/// Marks a number as one to be looked at when it is first used.
pub(crate) fn mark_inherited(fd: c_int) {
    mark(fd, INHERITED);
}

/// Marks the number of a new TCP socket.
pub(crate) fn mark_fresh(fd: c_int) {
    mark(fd, FRESH);
}

/// Marks a number that was cleared as one to be looked at again, unless another thread has found out its kind.
pub(crate) fn stay_inherited(fd: c_int) {
    if let Some(kind) = KINDS.get(fd as usize) {
        let _ = kind.compare_exchange(PLAIN, INHERITED, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn mark(fd: c_int, as_what: u8) {
    if let Some(kind) = KINDS.get(fd as usize) {
        END.fetch_max(fd + 1, Ordering::Relaxed);
        kind.store(as_what, Ordering::Release);
    }
}

/// The kernel connects the fresh socket: its number is plain.
pub(crate) fn leave_fresh(fd: c_int) {
    if let Some(kind) = KINDS.get(fd as usize) {
        let _ = kind.compare_exchange(FRESH, PLAIN, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Gives a fresh number an entry, unless another thread has done so just now. Returns the number's.
pub(crate) fn set_fresh(fd: c_int, entry: Arc<Entry>) -> Option<Arc<Entry>> {
    let slot = FILES.get(fd as usize)?;
    entry.add_fd(fd);
    let other = slot.compare_and_swap(&None::<Arc<OpenFile<Entry>>>, Some(entry.file()));
    let _ = KINDS[fd as usize].compare_exchange(FRESH, SOCKET, Ordering::AcqRel, Ordering::Relaxed);
    Some(other.as_ref().map_or(entry, |other| other.entry().clone()))
}

/// Gives a number an entry. False if the number is too high.
pub(crate) fn set(fd: c_int, entry: &Arc<Entry>) -> bool {
    replace(fd, entry).0
}

/// [`set`]. Also returns the open file that another thread has given the number meanwhile.
pub(crate) fn replace(fd: c_int, entry: &Arc<Entry>) -> (bool, Option<Arc<OpenFile<Entry>>>) {
    let Some(slot) = FILES.get(fd as usize) else { return (false, None) };
    END.fetch_max(fd + 1, Ordering::Relaxed);
    entry.add_fd(fd);
    let before = slot.swap(Some(entry.file())).filter(|before| !Arc::ptr_eq(before.entry(), entry));
    let set = match &entry.thing {
        Thing::Epoll(set) => set,
        Thing::Pipe(_) => {
            KINDS[fd as usize].store(PIPE, Ordering::Release);
            return (true, before);
        }
        Thing::Socket(socket) => {
            let away = socket.away.get().filter(|_| socket.is_away());
            if let Some(away) = away {
                AWAYS[fd as usize].store(std::ptr::from_ref(away.counts.get()).cast_mut(), Ordering::Release);
            }
            KINDS[fd as usize].store(if away.is_some() { AWAY } else { SOCKET }, Ordering::Release);
            return (true, before);
        }
    };
    // Another thread may be adding its first member: it sees the number, or is seen here.
    KINDS[fd as usize].store(BARE, Ordering::SeqCst);
    if set.is_active() {
        mark_active(fd);
    }
    (true, before)
}

/// An epoll instance gets its first member on the fabric: its waits are the library's from now on.
pub(crate) fn activate(entry: &Arc<Entry>) {
    for fd in entry.fds() {
        if self::entry(fd).is_some_and(|known| Arc::ptr_eq(&known, entry)) {
            mark_active(fd);
        }
    }
}

/// The connection with this number has come back to the fabric.
pub(crate) fn come_back(fd: c_int) {
    let _ = KINDS[fd as usize].compare_exchange(AWAY, SOCKET, Ordering::AcqRel, Ordering::Relaxed);
}

/// Enters the counts of a connection that is away, for a call of the kernel's that holds nothing else. The caller leaves them. None: the
/// number is no such connection's.
#[inline]
pub(crate) fn enter_away(fd: c_int) -> Option<&'static Counts> {
    let (kind, known) = (KINDS.get(fd as usize)?, AWAYS.get(fd as usize)?);
    let counts = known.load(Ordering::Acquire);
    if kind.load(Ordering::Acquire) != AWAY || counts.is_null() {
        return None;
    }
    // SAFETY: counts are never freed, and changed by atomic operations alone.
    let entered: &'static Counts = unsafe { &*counts };
    entered.enter();
    // The connection may have come back, or the counts may be another one's by now.
    if kind.load(Ordering::SeqCst) == AWAY && std::ptr::eq(known.load(Ordering::SeqCst), counts) {
        return Some(entered);
    }
    entered.leave();
    None
}

fn mark_active(fd: c_int) {
    let _ = KINDS[fd as usize].compare_exchange(BARE, EPOLL, Ordering::SeqCst, Ordering::Relaxed);
}

/// Returns whether the number is an epoll instance's that has had members on the fabric. In one order with what says that somebody
/// sleeps.
pub(crate) fn is_active(fd: c_int) -> bool {
    KINDS.get(fd as usize).is_some_and(|kind| kind.load(Ordering::SeqCst) == EPOLL)
}

/// The entry of an epoll instance, if the number is known to be one's.
pub(crate) fn epoll(fd: c_int) -> Option<Arc<Entry>> {
    entry(fd).filter(|entry| entry.epoll().is_some())
}

/// Tells whether the number is known to be an epoll instance's of which this holds.
pub(crate) fn is_epoll_with(fd: c_int, is: impl FnOnce(&EpollSet) -> bool) -> bool {
    FILES
        .get(fd as usize)
        .is_some_and(|slot| slot.load().as_ref().and_then(|file| file.epoll()).is_some_and(is))
}

/// Makes a number plain and returns what it was.
pub(crate) fn clear(fd: c_int) -> Option<Arc<OpenFile<Entry>>> {
    let slot = FILES.get(fd as usize)?;
    KINDS[fd as usize].store(PLAIN, Ordering::Release);
    slot.swap(None)
}

/// Begins to close a number: no call begins on what it was, which is returned. [`end_close`] follows, after the kernel's close.
pub(crate) fn begin_close(fd: c_int) -> Option<Arc<OpenFile<Entry>>> {
    let slot = FILES.get(fd as usize)?;
    CLOSES.set(CLOSES.get() + 1);
    KINDS[fd as usize].store(CLOSING, Ordering::Release);
    slot.swap(None)
}

/// Ends what [`begin_close`] of this thread has begun.
pub(crate) fn end_close(fd: c_int) {
    CLOSES.set(CLOSES.get().saturating_sub(1));
    KINDS.get(fd as usize).into_iter().for_each(be_closed);
}

/// The entry of the connection whose kernel socket has this cookie.
pub(crate) fn find_twin(cookie: u64) -> Option<Arc<Entry>> {
    (0..end()).filter(|&fd| look(fd) == SOCKET).find_map(|fd| {
        entry(fd).filter(|entry| entry.twin().is_some() && crate::address::cookie(fd) == Some(cookie))
    })
}

/// Remembers which process this is.
pub(crate) fn set_process() {
    PROCESS.store(own_id(), Ordering::Relaxed);
    // A thread's first look at an entry needs memory of the C library's, which ends a program that has none by then.
    FILES.first().iter().for_each(|slot| drop(slot.load()));
}

fn own_id() -> i32 {
    // SAFETY: takes nothing, never fails.
    unsafe { libc::getpid() }
}

/// Returns whether the table is another process's: this is a child of `vfork` before its `exec`.
pub(crate) fn is_borrowed() -> bool {
    PROCESS.load(Ordering::Relaxed) != own_id()
}

/// A child of `vfork`, which must not change the table, has copied a number that is not plain.
pub(crate) fn note_copy() {
    COPIED_BY.store(own_id(), Ordering::Relaxed);
}

/// Tells whether this process is the last one that has done so.
pub(crate) fn has_copied() -> bool {
    COPIED_BY.load(Ordering::Relaxed) == own_id()
}

/// In a forked child: forgets all entries without ending anything, for they are the parent's.
/// Returns each with its numbers.
pub(crate) fn forget_all() -> Vec<(c_int, Arc<Entry>)> {
    let mut all = Vec::new();
    for fd in 0..end() {
        // Inherited numbers stay inherited, and fresh ones stay fresh. Nobody ends a close that a thread of the parent had begun.
        if ![INHERITED, FRESH].contains(&KINDS[fd as usize].load(Ordering::Acquire)) {
            all.extend(clear(fd).map(|file| (fd, file.entry().clone())));
        }
    }
    all
}

/// A connection is about to leave for the kernel: calls that have slept get a number of their own, for the program may close its number
/// without the library's noticing.
fn keep_for_sleepers(entry: &Entry, successor: Option<&Arc<Entry>>) {
    let Some(file) = entry.file_of_sleepers() else { return };
    let copy = |fd: c_int| {
        // SAFETY: only copies. What the number was is looked at afterwards.
        let number = OwnFd::copy(unsafe { BorrowedFd::borrow_raw(fd) })?;
        // A close begins here: the number was this connection's when it was copied.
        let is_its = self::file(fd).is_some_and(|known| Arc::ptr_eq(&known, &file));
        is_its.then_some(number)
    };
    file.leave(|| entry.fds().into_iter().find_map(copy), successor.map(Entry::file));
}

/// The connection has left the fabric, and may come back: its numbers are `away`'s.
pub(crate) fn hand_to(entry: &Entry, away: &Arc<Entry>) {
    keep_for_sleepers(entry, Some(away));
    for fd in entry.take_fds() {
        set(fd, away);
    }
}

/// Makes it plain: all its numbers are, and nothing looks at it any more.
pub(crate) fn give_up(entry: &Entry) {
    keep_for_sleepers(entry, None);
    for fd in entry.take_fds() {
        clear(fd);
    }
}
