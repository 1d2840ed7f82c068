//! The lock of state that mostly one thread uses: that thread takes it without an exchange ([`pd_shm::bias`]).
use crate::turn::lock;
use pd_shm::bias::{this_thread, Bias};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Times in a row that one thread takes the lock before the lock is biased towards it. If another thread comes after
/// that, everybody waits for a fence on all cores: each such time makes the number four times as large.
const STREAK: u32 = 256;

/// State under a lock.
pub(crate) struct Lock<T> {
    bias: Bias,
    shared: Mutex<Streak>,
    /// The mutex's own guard, while the lock is held without a bias. It lies here so that [`Guard`] is one word, and moves in
    /// a register.
    held: UnsafeCell<Option<MutexGuard<'static, Streak>>>,
    state: UnsafeCell<T>,
    /// A futex: counts notifications.
    notified: AtomicU32,
}

// SAFETY: `held` and the state are reached through a guard only, there is one at a time, and it stays with its thread.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: a lock that can be moved has no guard, and then it is a mutex, atomics and state that may be sent.
unsafe impl<T: Send> Send for Lock<T> {}

/// The thread that took the lock last without a bias, and how often in a row.
struct Streak {
    thread: usize,
    count: u32,
    wanted: u32,
}

/// A lock that is held.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// The thread that takes a lock gives it back.
    _of_thread: PhantomData<*const ()>,
}

impl<T> Lock<T> {
    pub(crate) fn new(state: T) -> Self {
        let streak = Streak { thread: 0, count: 0, wanted: STREAK };
        Self {
            bias: Bias::default(),
            shared: Mutex::new(streak),
            held: UnsafeCell::new(None),
            state: UnsafeCell::new(state),
            notified: AtomicU32::new(0),
        }
    }

    /// Takes the lock, also after a panic of another holder: no state here is left half changed by one.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if !self.bias.enter() {
            self.hold(lock(&self.shared));
        }
        Guard { lock: self, _of_thread: PhantomData }
    }

    /// Wakes all threads in [`Guard::wait`]. Called after the awaited change was made under the lock.
    pub(crate) fn notify_all(&self) {
        self.notified.fetch_add(1, Ordering::Relaxed);
        pd_shm::wake_all(&self.notified);
    }

    /// Without a bias: takes it from who has it, and counts.
    fn hold<'a>(&'a self, mut streak: MutexGuard<'a, Streak>) {
        if self.bias.stands() {
            self.bias.revoke();
            streak.wanted = streak.wanted.saturating_mul(4);
            streak.count = 0;
        }
        let thread = this_thread();
        streak.count = if streak.thread == thread { streak.count.saturating_add(1) } else { 1 };
        streak.thread = thread;
        // SAFETY: only the lifetime changes, and the mutex guard is gone before `self` is: `Guard`, which drops it, borrows
        // `self`; one that is forgotten keeps the mutex locked, and its memory is never looked at again but by a
        // mutex's drop, which does nothing.
        let streak =
            unsafe { std::mem::transmute::<MutexGuard<'a, Streak>, MutexGuard<'static, Streak>>(streak) };
        // SAFETY: the mutex is locked and no thread is in by the bias.
        unsafe { *self.held.get() = Some(streak) };
    }

    /// Returns the mutex that is held, if the bias does not hold the lock.
    fn take_held<'a>(&'a self, _guard: &mut Guard<'a, T>) -> Option<MutexGuard<'a, Streak>> {
        // SAFETY: there is one guard, and it is borrowed exclusively.
        unsafe { (*self.held.get()).take() }
    }
}

impl<T> Guard<'_, T> {
    /// Gives the lock up, sleeps by `sleep` while the word that it is given holds the value beside it, which is until
    /// [`Lock::notify_all`], and takes it again.
    pub(crate) fn wait(self, sleep: impl FnOnce(&AtomicU32, u32)) -> Self {
        let lock = self.lock;
        let seen = lock.notified.load(Ordering::Relaxed);
        drop(self);
        sleep(&lock.notified, seen);
        lock.lock()
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let lock = self.lock;
        match lock.take_held(self) {
            None => lock.bias.leave(),
            Some(streak) if streak.count >= streak.wanted => lock.bias.give(),
            Some(_) => {}
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard, and borrowed.
        unsafe { &*self.lock.state.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, and borrowed exclusively.
        unsafe { &mut *self.lock.state.get() }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("bias", &self.bias).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Guard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::time::Duration;

    /// A thread that has the bias, and others that come now and then, count together.
    #[test]
    fn nobody_is_in_at_the_same_time() {
        const COUNTS: u64 = 200_000;
        let state = Lock::new(0u64);
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            for every in [1, 1000, 1500] {
                let (state, start) = (&state, &start);
                scope.spawn(move || {
                    start.wait();
                    for n in 0..COUNTS {
                        if n % every == 0 {
                            let mut counter = state.lock();
                            let before = std::hint::black_box(*counter);
                            *counter = before + 1;
                        } else {
                            std::hint::spin_loop();
                        }
                    }
                });
            }
        });
        assert_eq!(*state.lock(), COUNTS + COUNTS / 1000 + COUNTS.div_ceil(1500));
    }

    #[test]
    fn it_is_biased_towards_who_takes_it_most_and_revoked_for_others() {
        let lock = Lock::new(());
        let take = |times| (0..times).for_each(|_| drop(lock.lock()));
        take(STREAK - 1);
        assert!(!lock.bias.stands());
        take(1);
        assert!(lock.bias.stands());
        take(1);
        std::thread::scope(|scope| scope.spawn(|| take(1)).join().unwrap());
        assert!(!lock.bias.stands());
        take(4 * STREAK - 1);
        assert!(!lock.bias.stands());
        take(1);
        assert!(lock.bias.stands());
    }

    /// The biased thread waits on a condition for what another thread does under the lock.
    #[test]
    fn a_wait_ends_whoever_has_the_bias() {
        let lock = Lock::new(0);
        (0..STREAK).for_each(|_| drop(lock.lock()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 1..=100 {
                    (0..2 * STREAK).for_each(|_| drop(lock.lock()));
                    *lock.lock() = value;
                    lock.notify_all();
                }
            });
            let mut guard = lock.lock();
            while *guard < 100 {
                guard = guard.wait(|word, seen| {
                    pd_shm::sleep_on(word, seen, Duration::from_secs(20), |sleep| sleep.make());
                });
            }
        });
    }

    /// A forked child is registered for barriers as its parent was, and takes a bias away as well.
    #[test]
    fn a_forked_child_revokes() {
        let lock = Lock::new(());
        (0..STREAK).for_each(|_| drop(lock.lock()));
        assert!(lock.bias.stands());
        // SAFETY: the child makes system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            lock.bias.revoke();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(lock.bias.stands())) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
