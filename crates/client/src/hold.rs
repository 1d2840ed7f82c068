//! Signals held back while a thread looks for something before it sleeps.
//!
//! A call that waits in the kernel ends when a handler has run. One that looks for a while first would not notice a
//! handler that runs meanwhile, and sleep as if nothing had been. So signals wait for the end of the looks: then
//! whoever would sleep knows which ones came.
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

/// Those that a thread causes itself, and that end it if they are held.
const OWN: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// The signals of the calling thread, held from the first look in vain to [`Self::release`] or the end of this value. A
/// call that waits several times keeps one, and holds them [`Self::again`] after each sleep: a handler that runs between two of
/// them would not be noticed either.
#[derive(Default)]
pub struct Hold {
    begun: Cell<bool>,
    /// What was blocked before.
    before: Cell<Option<libc::sigset_t>>,
}

fn set(fill: impl FnOnce(*mut libc::sigset_t) -> libc::c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    fill(set.as_mut_ptr());
    // SAFETY: all zeroes is a set, the empty one.
    unsafe { set.assume_init() }
}

fn contains(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: only reads the set.
    unsafe { libc::sigismember(set, signal) == 1 }
}

impl Hold {
    /// Takes what a look has found, and returns it.
    pub fn look(&self, found: bool) -> bool {
        if !found && !self.begun.replace(true) {
            self.begin();
        }
        found
    }

    /// Lets signals through again, if they are held: what was waited for has come, so that nobody asks which ones did.
    pub fn end(&self) {
        if let Some(before) = self.before.take() {
            restore(&before);
        }
    }

    /// Holds them again after a release; nothing came of the sleep in between, or it is not known yet what.
    pub fn again(&self) {
        if self.begun.get() && self.before.get().is_none() {
            self.begin();
        }
    }

    fn begin(&self) {
        // SAFETY: the set is there to be written.
        let mut all = set(|set| unsafe { libc::sigfillset(set) });
        for signal in OWN {
            // SAFETY: as above.
            unsafe { libc::sigdelset(&mut all, signal) };
        }
        // SAFETY: as above; these are signals of the calling thread alone.
        let before = set(|set| unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, set) });
        self.before.set(Some(before));
    }

    /// Lets signals through again; says whether handlers of some have run just now.
    pub fn release(&self) -> bool {
        let Some(before) = self.before.take() else { return false };
        // SAFETY: the set is there to be written.
        let pending = set(|set| unsafe { libc::sigpending(set) });
        // Asked before a handler runs, which may have been installed for once.
        let handled = (1..=libc::SIGRTMAX()).any(|signal| {
            contains(&pending, signal) && !contains(&before, signal) && handler_flags(signal).is_some()
        });
        restore(&before);
        handled
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end();
    }
}

fn restore(before: &libc::sigset_t) {
    // SAFETY: a set that was in force before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static RUNS: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handler(_signal: libc::c_int) {
        RUNS.fetch_add(1, Ordering::Relaxed);
    }

    fn raise(signal: libc::c_int) {
        // SAFETY: to the calling thread, which has a handler for it.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    #[test]
    fn a_handler_runs_at_the_end_and_is_noticed() {
        // SAFETY: a handler that only counts, for a signal that nobody else uses here.
        unsafe { libc::signal(libc::SIGUSR2, handler as *const () as libc::sighandler_t) };
        let runs = || RUNS.load(Ordering::Relaxed);
        let hold = Hold::default();
        assert!(hold.look(true));
        raise(libc::SIGUSR2);
        assert_eq!(runs(), 1, "nobody would sleep");
        assert!(!hold.look(false));
        raise(libc::SIGUSR2);
        hold.look(false);
        assert_eq!(runs(), 1, "held");
        assert!(hold.release() && runs() == 2);
        hold.look(false);
        assert!(!hold.release(), "once");
        hold.again();
        hold.again();
        raise(libc::SIGUSR2);
        assert_eq!(runs(), 2, "held between two sleeps");
        assert!(hold.release() && runs() == 3);
        drop(hold);

        let hold = Hold::default();
        hold.look(false);
        raise(libc::SIGUSR2);
        drop(hold);
        assert_eq!(runs(), 4, "let through when dropped");

        let hold = Hold::default();
        hold.look(false);
        assert!(!hold.release(), "nothing came");
    }
}
