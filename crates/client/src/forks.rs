//! The count of forks between this process and the first process that used the library. Objects remember it, so that a forked
//! child can tell its parent's objects from its own.
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
