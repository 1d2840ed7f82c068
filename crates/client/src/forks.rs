//! The count of forks since the first process that used the library. A forked child tells its parent's objects by it.
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process is a child of one that used the library. Objects remember it: theirs
/// differing from this means that they belong to the parent.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts a fork, in the child.
pub(crate) fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
