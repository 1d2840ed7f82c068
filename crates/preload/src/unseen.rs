//! Programs that wait in ways which the library cannot see: by system calls of their own, as runtimes on `rustix` or
//! liburing do. Such a wait is for the kernel's socket, where nothing comes. What is seen of them are connections that nobody
//! whom the library knows waits for. At the first calls on one, and when a later call finds nothing and would not wait, it is
//! looked, which takes time and is hence bounded, whether the process has an epoll instance that the library does not know, or an io_uring.
//! If so the connection leaves the fabric ([`crate::aside`]), and the process makes no more there.
pub(crate) mod looking;

use crate::fallback_cache::now_ns;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A connection, or a listener, is looked after at its first calls, and then so often.
const FIRST_CALLS: u32 = 4;
const AGAIN_AFTER_NS: u64 = 50_000_000;

/// The process waits so.
static FOUND: AtomicBool = AtomicBool::new(false);

/// Waits that are known of one connection or listener.
#[derive(Debug, Default)]
pub(crate) struct Attention {
    /// A `poll` or `select` of the library's has had it among its descriptors since the last call.
    polled: AtomicBool,
    calls: AtomicU32,
    looked_ns: AtomicU64,
}

impl Attention {
    /// A `poll` or `select` has it among its descriptors.
    #[inline]
    pub(crate) fn is_polled(&self) {
        if !self.polled.load(Ordering::Relaxed) {
            self.polled.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether it is time to look.
    fn is_due(&self) -> bool {
        if self.polled.load(Ordering::Relaxed) {
            self.polled.store(false, Ordering::Relaxed);
            return false;
        }
        let calls = self.calls.load(Ordering::Relaxed);
        let now = now_ns();
        if calls < FIRST_CALLS {
            self.calls.store(calls + 1, Ordering::Relaxed);
        } else if now.saturating_sub(self.looked_ns.load(Ordering::Relaxed)) < AGAIN_AFTER_NS {
            return false;
        }
        self.looked_ns.store(now, Ordering::Relaxed);
        true
    }
}

/// Returns whether connections of this process had better be the kernel's.
pub(crate) fn is_found() -> bool {
    FOUND.load(Ordering::Relaxed)
}
