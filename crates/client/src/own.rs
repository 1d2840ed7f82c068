//! The library's own descriptors. In a program that does not know of the library they have to keep out
//! of its way: numbers far above those that it gets, and a list of them, so that it does not close them.
use crate::process::forks;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Lowest number; 0: anywhere, and no list.
static FLOOR: AtomicI32 = AtomicI32::new(0);
static OWN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Moves descriptors made from now on to `floor` or above, and keeps a list of them. A forked child
/// closes those of its parent.
pub fn set_floor(floor: RawFd) {
    FLOOR.store(floor, Ordering::Relaxed);
}

/// Whether the descriptor is one of the library's.
pub fn is_own(fd: RawFd) -> bool {
    let floor = FLOOR.load(Ordering::Relaxed);
    floor > 0 && fd >= floor && list().contains(&fd)
}

/// The library's descriptors, sorted.
pub fn own_fds() -> Vec<RawFd> {
    let mut fds = list().clone();
    fds.sort_unstable();
    fds
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
        Self::copy(fd.as_fd()).unwrap_or_else(|| {
            // Without a free number up there it stays where it is.
            if FLOOR.load(Ordering::Relaxed) > 0 {
                list().push(fd.as_raw_fd());
            }
            Self { fd: ManuallyDrop::new(fd), forks: forks() }
        })
    }

    /// A second descriptor of what the program has open. None if numbers have run out, or without a floor.
    pub fn copy(of: BorrowedFd<'_>) -> Option<Self> {
        let floor = FLOOR.load(Ordering::Relaxed);
        if floor == 0 {
            return None;
        }
        let fd = rustix::io::fcntl_dupfd_cloexec(of, floor).ok()?;
        list().push(fd.as_raw_fd());
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
