//! A full fence on every core that runs a process which has registered for it, made by one of them: what a
//! sleeper needs of a waker that does not fence (`membarrier`).
//!
//! The waker stores a counter and then looks whether somebody sleeps. Without a fence the look may come before
//! the store is seen. A barrier by the sleeper, between its own store and its look, comes before the waker's look,
//! which then sees that somebody sleeps, or after the waker's store, which the sleeper then sees.
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

/// Lets barriers of other processes reach this one. Says whether they do; once and for all.
pub fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED))
}

/// Registers for both kinds if this process has one thread, which takes no time. For one with several the kernel waits until
/// all cores have been through something else, 10 to 30 ms, in the first call that needs a barrier.
pub fn register_early() {
    // Two links are the directory's own, one is each thread's.
    if fs::metadata("/proc/self/task").is_ok_and(|threads| threads.st_nlink() == 3) {
        register();
        register_own();
    }
}

/// A fence here and on every core that runs a registered process.
pub fn everywhere() {
    barrier(GLOBAL_EXPEDITED);
}

/// Says whether [`own`] works in this process; once and for all.
pub fn register_own() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// A fence here and on every core that runs a thread of this process, which has registered. A forked child is
/// registered as its parent was.
pub fn own() {
    barrier(PRIVATE_EXPEDITED);
}

/// How long a store may take to be seen, many times over.
const SEEN_BY_ALL: Duration = Duration::from_millis(10);

fn barrier(command: libc::c_int) {
    fence(Ordering::SeqCst);
    if !membarrier(command) {
        // A program may give up system calls after it has registered. Then time does it: stores leave a core by
        // themselves, within a microsecond, and loads that came too early are long done.
        std::thread::sleep(SEEN_BY_ALL);
        fence(Ordering::SeqCst);
    }
}
