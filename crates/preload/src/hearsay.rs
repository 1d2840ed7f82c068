//! News that the program may have got of a peer elsewhere: from a pipe, a child that has ended, a socket of the kernel's. The kernel knows at
//! once that a peer has closed, and so does a program that was told. The driver says it a moment later. A call on the fabric that comes after
//! such news therefore looks at the kernel's socket, which ends with the connection, and waits for the driver's word.
use pd_client::core::is_inside;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// Something was learned since the last call on the fabric that asked.
static IS_NEW: AtomicBool = AtomicBool::new(false);
/// Number of such calls.
static NEWS: AtomicU32 = AtomicU32::new(0);

/// Notes that a call of the kernel's has told the program something.
#[inline]
fn note() {
    // Most often it is known: a store would take the line from the other threads.
    if !IS_NEW.load(Ordering::Relaxed) {
        IS_NEW.store(true, Ordering::Relaxed);
    }
}

/// Returns `result` of a call of the kernel's, and notes that it has told something.
#[inline]
pub(crate) fn told<T>(result: T) -> T {
    note();
    result
}

/// [`told`] of a call that the library makes, too.
pub(crate) fn told_outside<T>(result: T) -> T {
    if !is_inside() {
        note();
    }
    result
}

/// Returns the number of news so far.
#[inline]
pub(crate) fn news() -> u32 {
    match IS_NEW.load(Ordering::Relaxed) {
        true => {
            IS_NEW.store(false, Ordering::Relaxed);
            NEWS.fetch_add(1, Ordering::Relaxed) + 1
        }
        false => NEWS.load(Ordering::Relaxed),
    }
}

/// State of the peer, as one connection knows it.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// News up to which the kernel was asked.
    pub(crate) news: AtomicU32,
    /// Ends that the kernel told then, and for which the driver's word was waited for.
    pub(crate) ends: AtomicI32,
}
