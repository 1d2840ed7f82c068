//! Sleeps of calls that end when a signal handler is due, as they do in the kernel ([`crate::handlers`]).
use crate::handlers::{are_put_off, interruptible};
use pd_shm::Sleep;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

/// Sleeps by `wait`, which is given how to make its system call; says whether a signal ended the sleep, or had come
/// before. Its handler runs when the caller lets it ([`crate::handlers::let_run`]).
pub(crate) fn sleep(wait: impl FnOnce(&dyn Fn(&Sleep<'_>) -> isize) -> bool) -> bool {
    let ended = wait(&|sleep| {
        let (number, arguments) = sleep.parts();
        // SAFETY: it only sleeps, and what it reads is there.
        unsafe { interruptible(number, arguments, ptr::null()) }
    });
    ended || are_put_off()
}

/// Sleeps for a time; says whether a signal ended that, or had come before.
pub fn sleep_for(time: Duration) -> bool {
    sleep(|make| pd_shm::sleep_for(time, make))
}

/// The flags (`SA_RESTART` and so on) of the handler that this process has for a signal, if it has one.
pub fn handler_flags(signal: libc::c_int) -> Option<libc::c_int> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; all zeroes is a value of the type, for signals that nobody may ask about.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
    handled.then_some(action.sa_flags)
}
