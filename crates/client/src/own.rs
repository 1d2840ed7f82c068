//! The library's own descriptors. They keep out of the way of a program that does not know of the library: their numbers lie
//! far above the program's, and a list of them keeps it from closing them.
//!
//! The program may have used up its numbers when the library needs one. The soft limit is then raised for the moment, if the
//! hard one is higher. Otherwise one of a few descriptors that are kept for this is given away. If there is none, the library
//! does without, or the program's call goes to the kernel.
use crate::forks::{forks, StaticLock};
use crate::handlers::Inside;
use crate::turn::lock;
use rustix::io::Errno;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Lowest number; 0: anywhere, and no list.
static FLOOR: AtomicI32 = AtomicI32::new(0);
static OWN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
/// No number of the library's is lower.
static LOWEST: AtomicI32 = AtomicI32::new(RawFd::MAX);
/// Descriptors to be given away.
static KEPT: Mutex<Vec<OwnFd>> = Mutex::new(Vec::new());
/// Descriptors kept.
const KEPT_MAX: usize = 6;
/// Kept descriptors that are given only for what connections need to go on.
const KEPT_FOR_NEED: usize = 3;
/// Lock of the thread that makes room.
static ROOM: Mutex<()> = Mutex::new(());
/// Locks that a fork holds.
pub(crate) static LOCKS: [&dyn StaticLock; 3] = [&ROOM, &KEPT, &OWN];

/// Moves descriptors made from now on to `floor` or above, and keeps a list of them. A forked child
/// closes those of its parent.
pub fn set_floor(floor: RawFd) {
    FLOOR.store(floor, Ordering::Relaxed);
}

/// Returns whether the descriptor is one of the library's.
pub fn is_own(fd: RawFd) -> bool {
    if fd < LOWEST.load(Ordering::Relaxed) {
        return false;
    }
    let _inside = Inside::enter();
    let list = list();
    list.contains(&fd)
}

/// The library's descriptors, sorted.
pub fn own_fds() -> Vec<RawFd> {
    let _inside = Inside::enter();
    let mut fds = list().clone();
    fds.sort_unstable();
    fds
}

fn note(fd: RawFd) {
    LOWEST.fetch_min(fd, Ordering::Relaxed);
    list().push(fd);
}

/// Room for descriptors of the library's where the program has used up its own. What is made beyond a raised limit stays.
struct Room {
    /// The limit as it was, if it was raised.
    before: Option<Rlimit>,
    _one: MutexGuard<'static, ()>,
}

impl Room {
    /// Makes room for `count` descriptors, and leaves at least `leaving` of the kept ones.
    fn make(leaving: usize, count: usize) -> Option<Self> {
        let one = lock(&ROOM);
        let limit = getrlimit(Resource::Nofile);
        let most = limit.maximum.unwrap_or(u64::MAX);
        if limit.current.is_some_and(|current| current < most) {
            let raised = Rlimit { current: limit.maximum, ..limit };
            if setrlimit(Resource::Nofile, raised).is_ok() {
                return Some(Self { before: Some(limit), _one: one });
            }
        }
        let mut kept = lock(&KEPT);
        let given = kept.len().saturating_sub(leaving).min(count);
        let left = kept.len() - given;
        kept.truncate(left);
        (given > 0).then_some(Self { before: None, _one: one })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            let now = getrlimit(Resource::Nofile);
            // The program may have set another meanwhile.
            if now.current == now.maximum && now.maximum == before.maximum {
                let _ = setrlimit(Resource::Nofile, before);
            }
        }
    }
}

/// Makes a descriptor, with room for it if it fails for want of a number.
pub(crate) fn make<T>(mut work: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let made = work();
    // A number beyond the limit was wanted.
    let wants_room = made.as_ref().is_err_and(|error| [Errno::MFILE, Errno::INVAL].contains(error));
    if !wants_room || FLOOR.load(Ordering::Relaxed) == 0 {
        return made;
    }
    match Room::make(KEPT_FOR_NEED, 1) {
        Some(_room) => work(),
        None => made,
    }
}

/// Does what takes `count` descriptors from a message, which are lost if there is no room. `known` is any of the library's.
///
/// # Errors
/// `EMFILE`: nothing is done.
pub(crate) fn receive<T>(
    known: BorrowedFd<'_>,
    needed: bool,
    count: usize,
    work: impl FnOnce() -> T,
) -> rustix::io::Result<T> {
    let is_free = || are_free(known, count);
    if FLOOR.load(Ordering::Relaxed) == 0 {
        return Ok(work());
    }
    if is_free() {
        let done = work();
        keep_some(known);
        return Ok(done);
    }
    let room = Room::make(if needed { 0 } else { KEPT_FOR_NEED }, count).filter(|_| is_free());
    let done = room.as_ref().map(|_| work());
    drop(room);
    keep_some(known);
    done.ok_or(Errno::MFILE)
}

/// Tells whether there are so many free numbers.
fn are_free(known: BorrowedFd<'_>, count: usize) -> bool {
    count == 0 || rustix::io::fcntl_dupfd_cloexec(known, 0).is_ok_and(|_one| are_free(known, count - 1))
}

/// Keeps descriptors to be given away later, for a process that may have to attach when it has used up its numbers.
pub fn keep_numbers() {
    if FLOOR.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Ok(any) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) {
        keep_some(any.as_fd());
    }
}

/// Descriptors that were given away are made anew when there is room.
fn keep_some(of: BorrowedFd<'_>) {
    let mut kept = lock(&KEPT);
    while kept.len() < KEPT_MAX {
        match OwnFd::copy(of) {
            Some(fd) => kept.push(fd),
            None => return,
        }
    }
}

fn list() -> std::sync::MutexGuard<'static, Vec<RawFd>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: the parent's descriptors are of no use here, and would keep its end from being
/// seen.
pub(crate) fn close_inherited() {
    // A thread that is not in this process any more may have the lock; then they stay open.
    let mut list = match OWN.try_lock() {
        Ok(list) => list,
        Err(TryLockError::Poisoned(list)) => list.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    LOWEST.store(RawFd::MAX, Ordering::Relaxed);
    if let Ok(mut kept) = KEPT.try_lock() {
        // Closed with the others.
        kept.drain(..).for_each(std::mem::forget);
    }
    for fd in list.drain(..) {
        // SAFETY: it is one of the library's and of the parent's, whose objects are unreachable here.
        unsafe { rustix::io::close(fd) };
    }
}

/// A descriptor of the library's.
#[derive(Debug)]
pub struct OwnFd {
    fd: ManuallyDrop<OwnedFd>,
    forks: u32,
}

impl OwnFd {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let floor = FLOOR.load(Ordering::Relaxed);
        let copied = (floor > 0).then(|| make(|| rustix::io::fcntl_dupfd_cloexec(&fd, floor)).ok()).flatten();
        // Without a free number up there it stays where it is.
        let fd = copied.unwrap_or(fd);
        if floor > 0 {
            note(fd.as_raw_fd());
        }
        Self { fd: ManuallyDrop::new(fd), forks: forks() }
    }

    /// A second descriptor of what the program has open. None if numbers have run out, or without a floor.
    pub fn copy(of: BorrowedFd<'_>) -> Option<Self> {
        let floor = FLOOR.load(Ordering::Relaxed);
        if floor == 0 {
            return None;
        }
        let fd = rustix::io::fcntl_dupfd_cloexec(of, floor).ok()?;
        note(fd.as_raw_fd());
        Some(Self { fd: ManuallyDrop::new(fd), forks: forks() })
    }
}

impl AsRawFd for OwnFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        if FLOOR.load(Ordering::Relaxed) > 0 {
            if self.forks != forks() {
                // The parent's: closed already.
                return;
            }
            let fd = self.fd.as_raw_fd();
            list().retain(|&own| own != fd);
        }
        // SAFETY: not used after this.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}
