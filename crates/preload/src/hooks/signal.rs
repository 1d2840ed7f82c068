//! Installing signal handlers: they run between the library's calls, not within them ([`pd_client::core::Inside`]). What a
//! program reads back is what it has installed.
use super::hooks;
use crate::{real, table};
use libc::{c_int, sighandler_t};
use pd_client::core::{catcher_address, installed, Handlers, Installed};
use std::mem::MaybeUninit;

/// `sigset` only blocks the signal.
const SIG_HOLD: sighandler_t = 2;
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;

hooks! {
    fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        if action.is_null() || !catches(signal, (*action).sa_sigaction) {
            let result = real::sigaction(signal, action, old);
            if result == 0 && !old.is_null() {
                show(&mut *old, installed(signal));
            }
            return result;
        }
        let mut own = *action;
        let handlers = Handlers::lock();
        let before = handlers.set(signal, Installed { handler: own.sa_sigaction, flags: own.sa_flags }, true);
        own.sa_sigaction = catcher_address();
        own.sa_flags |= libc::SA_SIGINFO;
        let result = real::sigaction(signal, &own, old);
        if result != 0 {
            handlers.set(signal, before, true);
        } else if !old.is_null() {
            show(&mut *old, before);
        }
        result
    }

    fn signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        install(signal, handler, |handler| real::signal(signal, handler))
    }

    fn bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        install(signal, handler, |handler| real::signal(signal, handler))
    }

    fn ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        install(signal, handler, |handler| real::signal(signal, handler))
    }

    fn sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        install(signal, handler, |handler| real::__sysv_signal(signal, handler))
    }

    fn __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
        install(signal, handler, |handler| real::__sysv_signal(signal, handler))
    }

    fn sigset(signal: c_int, handler: sighandler_t) -> sighandler_t {
        install(signal, handler, |handler| real::sigset(signal, handler))
    }

    fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
        let result = real::siginterrupt(signal, interrupts);
        if result == 0 && SIGNALS.contains(&signal) {
            let handlers = Handlers::lock();
            take_flags(&handlers, signal);
        }
        result
    }

    // glibc has some functions by a second name, too.
    fn __sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        sigaction(signal, action, old)
    }
}

/// Handlers that were installed before the library was there, by what begins before it.
pub(crate) fn take_over() {
    for signal in SIGNALS {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: room for an action, which is then installed as it is.
        unsafe {
            if real::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
                && catches(signal, action.assume_init_ref().sa_sigaction)
            {
                sigaction(signal, action.as_ptr(), std::ptr::null_mut());
            }
        }
    }
}

/// Returns whether what is to be installed is a handler that is to be called by the library. A child of `vfork` has a kernel's table
/// of its own, but its parent's memory.
fn catches(signal: c_int, handler: sighandler_t) -> bool {
    let is_handler = ![libc::SIG_DFL, libc::SIG_IGN, libc::SIG_ERR].contains(&handler);
    is_handler && SIGNALS.contains(&signal) && !table::is_borrowed()
}

/// Puts the program's handler in the place of the library's.
fn show(action: &mut libc::sigaction, known: Installed) {
    let ours = action.sa_sigaction == catcher_address();
    // The kernel takes such a handler away, and leaves its flags.
    let was_ours = action.sa_sigaction == libc::SIG_DFL && action.sa_flags & libc::SA_RESETHAND != 0;
    if ours {
        action.sa_sigaction = known.handler;
    }
    if ours || was_ours {
        action.sa_flags = action.sa_flags & !libc::SA_SIGINFO | known.flags & libc::SA_SIGINFO;
    }
}

/// Installs a handler for functions without a `struct sigaction`, by `set`.
fn install(
    signal: c_int,
    handler: sighandler_t,
    set: impl FnOnce(sighandler_t) -> sighandler_t,
) -> sighandler_t {
    let shown = |old, before: Installed| if old == catcher_address() { before.handler } else { old };
    if handler == SIG_HOLD || !catches(signal, handler) {
        return shown(set(handler), installed(signal));
    }
    let handlers = Handlers::lock();
    // The kernel informs about the signal from the next step on.
    let before = handlers.set(signal, Installed { handler, flags: 0 }, false);
    let old = set(catcher_address());
    if old == libc::SIG_ERR {
        handlers.set(signal, before, true);
        return old;
    }
    take_flags(&handlers, signal);
    shown(old, before)
}

/// Learns the flags that the C library has chosen, and has the kernel inform about the signal.
fn take_flags(handlers: &Handlers, signal: c_int) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: room for an action; then one that is there.
    unsafe {
        if real::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) != 0 {
            return;
        }
        let action = action.assume_init_mut();
        if action.sa_sigaction != catcher_address() {
            return;
        }
        let known = installed(signal);
        let flags = action.sa_flags & !libc::SA_SIGINFO | known.flags & libc::SA_SIGINFO;
        action.sa_flags |= libc::SA_SIGINFO;
        let informs = real::sigaction(signal, action, std::ptr::null_mut()) == 0;
        handlers.set(signal, Installed { flags, ..known }, informs);
    }
}
