//! A process that has changed its root, and may have lost sight of the driver's socket: what its children have to do with the fabric.
use pd_client::core::{is_attached, is_driver_near};
use std::sync::atomic::{AtomicBool, Ordering};

/// The parent was attached when it forked this process, or this process is when it forks.
static OF_ATTACHED: AtomicBool = AtomicBool::new(false);
/// The root is perhaps another than at the start.
static CONFINED: AtomicBool = AtomicBool::new(false);
/// The process has forked since, where no child of its can attach.
static BARREN: AtomicBool = AtomicBool::new(false);

/// Tells, once, whether this process may get connections from a parent that was attached.
pub(crate) fn take_of_attached() -> bool {
    OF_ATTACHED.swap(false, Ordering::Relaxed)
}

/// The program is about to change its root.
pub(crate) fn confine() {
    CONFINED.store(true, Ordering::Relaxed);
}

/// Tells whether the driver's socket is out of reach by the program's own doing.
pub(crate) fn is_hidden() -> bool {
    CONFINED.load(Ordering::Relaxed) && !is_driver_near()
}

/// A child is about to be forked. One of a process that attached before it changed its root cannot attach.
pub(crate) fn before_fork() {
    OF_ATTACHED.store(is_attached(), Ordering::Relaxed);
    if is_hidden() {
        BARREN.store(true, Ordering::Relaxed);
    }
}

/// Tells whether children have no part in connections on the fabric. Then there are no new ones, and those that there are leave.
pub(crate) fn is_barren() -> bool {
    BARREN.load(Ordering::Relaxed)
}
