//! Signals held back while a thread looks for something before it sleeps.
//!
//! A call that waits in the kernel ends when a handler has run. One that looks for a while first would not notice a
//! handler that runs meanwhile, and sleep as if nothing had been. So signals wait for the end of the looks: then
//! whoever would sleep knows which ones came.
use pd_shm::Sleep;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

mod traces;

/// Those that a thread causes itself, and that end it if they are held.
const OWN: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// The signals of the calling thread, held from the first look in vain to the end of this value, but while it sleeps.
/// A call that waits several times keeps one: a handler that runs between two sleeps would not be noticed either.
#[derive(Default)]
pub struct Hold {
    holds: Cell<bool>,
    /// What was blocked before, if they are held.
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

/// Those that are held.
fn held() -> libc::sigset_t {
    // SAFETY: the set is there to be written.
    let mut all = set(|set| unsafe { libc::sigfillset(set) });
    for signal in OWN {
        // SAFETY: as above.
        unsafe { libc::sigdelset(&mut all, signal) };
    }
    all
}

impl Hold {
    /// Takes what a look has found, and returns it.
    pub fn look(&self, found: bool) -> bool {
        if !found && !self.holds.get() {
            self.begin();
        }
        found
    }

    /// Lets signals through again, if they are held: what was waited for has come, so that nobody asks which ones did.
    pub fn end(&self) {
        if self.holds.replace(false) {
            self.before.take().iter().for_each(restore);
        }
    }

    /// Sleeps by `wait`, which is given how to make its system call, with the signals let through if they are held; says
    /// whether a handler has run.
    pub fn sleep(&self, wait: impl FnOnce(&dyn Fn(&Sleep<'_>) -> isize) -> bool) -> bool {
        let Some(before) = self.before.get() else { return wait(&|sleep| sleep.make()) };
        if is_handler_due(&before) {
            restore(&before);
            self.begin();
            return true;
        }
        let (held, traces) = (held(), Cell::new(false));
        let ended = wait(&|sleep| {
            let (result, left) = traces::make(sleep, &before, &held);
            traces.set(traces.get() || left);
            result
        });
        ended || traces.get()
    }

    /// Sleeps for a time, as in [`Self::sleep`].
    pub fn sleep_for(&self, time: Duration) -> bool {
        self.sleep(|make| pd_shm::sleep_for(time, make))
    }

    /// The mask for a system call that lets signals through itself while it sleeps: `wanted`, if the program wants one, or
    /// what was in force before. Valid until signals are let through.
    pub fn mask_or(&self, wanted: *const libc::sigset_t) -> *const libc::sigset_t {
        // SAFETY: nobody changes it while it is looked at; the reference does not live on.
        let before = unsafe { &*self.before.as_ptr() };
        match before {
            Some(before) if wanted.is_null() => before,
            _ => wanted,
        }
    }

    fn begin(&self) {
        // SAFETY: the set is there to be written; these are signals of the calling thread alone.
        let before = set(|set| unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &held(), set) });
        self.before.set(Some(before));
        self.holds.set(true);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a signal has come meanwhile that has a handler, which `before` lets run.
fn is_handler_due(before: &libc::sigset_t) -> bool {
    // SAFETY: the set is there to be written.
    let pending = set(|set| unsafe { libc::sigpending(set) });
    // Asked before a handler runs, which may have been installed for once.
    (1..=libc::SIGRTMAX()).any(|signal| {
        contains(&pending, signal) && !contains(before, signal) && handler_flags(signal).is_some()
    })
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
        let nap = |hold: &Hold| hold.sleep_for(Duration::from_millis(1));
        assert!(hold.look(true));
        raise(libc::SIGUSR2);
        assert_eq!(runs(), 1, "nobody would sleep");
        assert!(!nap(&hold) && hold.mask_or(ptr::null()).is_null());
        assert!(!hold.look(false));
        raise(libc::SIGUSR2);
        hold.look(false);
        assert_eq!(runs(), 1, "held");
        assert!(nap(&hold) && runs() == 2);
        assert!(!nap(&hold), "once");
        raise(libc::SIGUSR2);
        assert_eq!(runs(), 2, "held between two sleeps");
        let mask = hold.mask_or(ptr::null());
        // SAFETY: valid as long as they are held.
        assert!(!contains(unsafe { &*mask }, libc::SIGUSR2));
        assert!(nap(&hold) && runs() == 3);
        drop(hold);

        let hold = Hold::default();
        hold.look(false);
        raise(libc::SIGUSR2);
        drop(hold);
        assert_eq!(runs(), 4, "let through when dropped");
    }

    /// A signal that comes at any instant of a wait of many sleeps, most of which end by themselves just then, is noticed
    /// by it, once.
    #[test]
    fn no_handler_runs_unnoticed() {
        const ROUNDS: u32 = 5_000;
        static ASKED: AtomicU32 = AtomicU32::new(0);
        static SENT: AtomicU32 = AtomicU32::new(0);
        static SEEN: AtomicU32 = AtomicU32::new(0);
        extern "C" fn handler(_signal: libc::c_int) {
            SEEN.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: a handler that only counts, for a signal that nobody else uses here.
        unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
        // SAFETY: always succeeds.
        let waiter = unsafe { libc::pthread_self() };
        let sender = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                while ASKED.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                (0..round % 1021 * 8).for_each(|_| std::hint::spin_loop());
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
                SENT.store(round, Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            let hold = Hold::default();
            hold.look(false);
            ASKED.store(round, Ordering::Release);
            let noticed = |time: u64| hold.sleep_for(Duration::from_micros(time));
            let mut found = false;
            while !found && SENT.load(Ordering::Acquire) < round {
                found = noticed(1);
            }
            assert!(found || noticed(1), "round {round}");
            assert_eq!(SEEN.load(Ordering::Relaxed), round);
            assert!(!noticed(1), "round {round}: twice");
        }
        sender.join().unwrap();
    }
}
