//! A full fence on every core that runs a registered process (`membarrier`). A sleeper makes it for a waker that does
//! not fence.
//!
//! The waker stores a counter and then looks for a sleeper. Without a fence the look may come before others see the
//! store. The sleeper makes a barrier between its own store and its look. If that comes before the waker's look, the
//! waker sees the sleeper; if it comes after the waker's store, the sleeper sees the counter.
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::sync::atomic::{fence, Ordering};
use std::sync::OnceLock;
use std::time::Duration;

/// From `linux/membarrier.h`.
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a system call with numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Lets barriers of other processes reach this one. Returns whether they do; the first answer stays.
pub fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED))
}

/// Registers for both kinds if this process has one thread, which takes no time. In a process with several threads the
/// first call that needs a barrier registers: the kernel then waits 10 to 30 ms, until every core has switched threads.
pub fn register_early() {
    // Two links are the directory's own, one is each thread's.
    if fs::metadata("/proc/self/task").is_ok_and(|threads| threads.st_nlink() == 3) {
        register();
        register_own();
    }
}

/// Makes a fence here and on every core that runs a registered process.
pub fn everywhere() {
    barrier(GLOBAL_EXPEDITED);
}

/// Returns whether [`own`] works in this process; the first answer stays.
pub fn register_own() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// Makes a fence here and on every core that runs a thread of this process, which has registered. A forked child has
/// the registration of its parent.
pub fn own() {
    barrier(PRIVATE_EXPEDITED);
}

/// Time after which every core sees a store, many times over.
const SEEN_BY_ALL: Duration = Duration::from_millis(10);

fn barrier(command: libc::c_int) {
    fence(Ordering::SeqCst);
    if !membarrier(command) {
        // A program may give up system calls after it has registered. Time replaces the barrier then: a store leaves
        // a core within a microsecond, and loads that came too early are long done.
        std::thread::sleep(SEEN_BY_ALL);
        fence(Ordering::SeqCst);
    }
}
