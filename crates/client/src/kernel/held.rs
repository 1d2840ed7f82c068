//! Descriptors whose objects would live on in a forked child: that closes them, as it closes its parent's sockets.
use crate::forks::StaticLock;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

static HELD: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
/// Lock that a fork holds.
pub(crate) static LOCK: &dyn StaticLock = &HELD;
static FORKS: AtomicU32 = AtomicU32::new(0);

/// See the module.
#[derive(Debug)]
pub(crate) struct HeldFd {
    fd: ManuallyDrop<OwnedFd>,
    forks: u32,
}

impl HeldFd {
    pub(super) fn new(fd: OwnedFd) -> Self {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).push(fd.as_raw_fd());
        Self { fd: ManuallyDrop::new(fd), forks: FORKS.load(Ordering::Relaxed) }
    }
}

impl AsFd for HeldFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for HeldFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for HeldFd {
    fn drop(&mut self) {
        if self.forks != FORKS.load(Ordering::Relaxed) {
            // The parent's: closed already.
            return;
        }
        let fd = self.fd.as_raw_fd();
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = held.iter().rposition(|&known| known == fd) {
            held.swap_remove(place);
        }
        // SAFETY: not used after this. Under the lock: the number may be another's at once.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}

/// Closes the parent's, in a forked child.
pub(crate) fn close_inherited() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    // A thread that is not in this process any more may have the lock; then they stay open.
    let mut held = match HELD.try_lock() {
        Ok(held) => held,
        Err(TryLockError::Poisoned(held)) => held.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    for fd in held.drain(..) {
        // SAFETY: a descriptor of the parent's library, whose owner is unreachable here and closes nothing any more.
        unsafe { rustix::io::close(fd) };
    }
}
