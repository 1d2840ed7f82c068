//! The count of forks since the first process that used the library. A forked child tells its parent's objects by it.
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks between this process and the first that used the library. Objects remember the number.
/// An object with another number belongs to an ancestor.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts a fork, in the child.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
