//! The frame of every hook: errno, panics and the locks that they leave behind, signals.
use pd_client::core::{
    are_put_off, cancels, handler_flags, let_run, runs, take_cancelled, was_cancelled, Inside,
};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, PoisonError};

extern "C-unwind" {
    fn pthread_testcancel();
}

/// Begins a call that is a cancellation point of the C library's. Where the kernel alone does the call that is one itself.
#[inline]
pub(crate) fn cancellation_point() {
    if cancels() {
        // SAFETY: a thread that is cancelled unwinds from here, as from the C library's function.
        unsafe { pthread_testcancel() };
    }
}

/// Failure of a call on a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// With this errno.
    Errno(i32),
    /// The call is the kernel's: call the next function of the name.
    Plain,
    /// The call is the kernel's, and its connection may come back: bytes that the call moves are counted.
    Kernel,
    /// A signal handler is due, which may close the call's descriptor or leave by a jump: it runs where the call holds nothing. The call then
    /// begins anew or is interrupted, as [`interrupts`] says.
    Handler { never_restarts: bool },
}

impl Failure {
    /// Returns whether the call is the kernel's.
    pub(crate) fn is_kernels(self) -> bool {
        matches!(self, Self::Plain | Self::Kernel)
    }
}

pub(crate) type Outcome<T> = Result<T, Failure>;

pub(crate) const AGAIN: Failure = Failure::Errno(libc::EAGAIN);

impl From<pd_client::Error> for Failure {
    fn from(error: pd_client::Error) -> Self {
        Self::Errno(error.errno())
    }
}

/// Does `work`; when it turns out that the call is the kernel's, does `plain`. Failures set errno and
/// return -1. Errno stays as it is after success.
pub(crate) fn call<T: From<i8>>(work: impl FnOnce() -> Outcome<T>, plain: impl FnOnce() -> T) -> T {
    begin(work).unwrap_or_else(|_| plain())
}

/// Makes a call without the next function of its name. An error says that the call is the kernel's.
#[inline]
pub(crate) fn begin<T: From<i8>>(work: impl FnOnce() -> Outcome<T>) -> Result<T, Failure> {
    let before = errno();
    let inside = Inside::enter();
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Errno(libc::EIO)));
    drop(inside);
    let was_cancelled = cancels() && take_cancelled();
    if was_cancelled || matches!(result, Err(Failure::Errno(libc::EINTR))) {
        // SAFETY: a thread that is cancelled unwinds from here, as from the C library's function.
        unsafe { pthread_testcancel() };
    }
    match result {
        Ok(value) => {
            set_errno(before);
            Ok(value)
        }
        Err(Failure::Errno(errno)) => {
            set_errno(errno);
            Ok(T::from(-1))
        }
        Err(kernels) => {
            set_errno(before);
            Err(kernels)
        }
    }
}

/// Does something on the side of a call that has its result already; errno stays as it is.
pub(crate) fn aside(work: impl FnOnce()) {
    let before = errno();
    let inside = Inside::enter();
    let _ = catch_unwind(AssertUnwindSafe(work));
    drop(inside);
    set_errno(before);
}

pub(crate) fn errno() -> i32 {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: i32) {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// The errno of a call of the C library's that returned `result`, if it failed.
pub(crate) fn checked<T: PartialEq + From<i8>>(result: T) -> Outcome<T> {
    if result == T::from(-1) {
        Err(Failure::Errno(errno()))
    } else {
        Ok(result)
    }
}

/// A signal has ended a sleep: lets its handler run, where the caller holds nothing. Returns whether the call ends: always if
/// it `never_restarts`, by handlers that were installed without `SA_RESTART`, and for a thread that is cancelled ([`begin`]).
pub(crate) fn interrupts(never_restarts: bool) -> bool {
    if was_cancelled() {
        return true;
    }
    if !are_put_off() {
        // A handler that was installed by the program's own system call. Which one has run is not known; one that was to
        // interrupt must not be missed.
        let flags = (1..=libc::SIGRTMAX()).filter_map(handler_flags);
        return never_restarts || flags.into_iter().any(|flags| flags & libc::SA_RESTART == 0);
    }
    let before = runs();
    let_run();
    let now = runs();
    now.interrupting != before.interrupting || never_restarts && now.all != before.all
}

/// A signal has ended a sleep of a call that holds its open file. Tells how the call ends, if it does.
pub(crate) fn interrupted(never_restarts: bool) -> Outcome<()> {
    if are_put_off() {
        return Err(Failure::Handler { never_restarts });
    }
    if interrupts(never_restarts) {
        return Err(Failure::Errno(libc::EINTR));
    }
    Ok(())
}

/// Does a call, and lets handlers run that have ended its sleep ([`interrupted`]) where it holds nothing. Does it again, unless they end it.
pub(crate) fn letting_handlers_run<T>(mut attempt: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    loop {
        match attempt() {
            Err(Failure::Handler { never_restarts }) if interrupts(never_restarts) => {
                return Err(Failure::Errno(libc::EINTR));
            }
            Err(Failure::Handler { .. }) => {}
            result => return result,
        }
    }
}

/// Locks, whatever has become of the thread that had the lock last.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
