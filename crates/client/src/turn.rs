//! A single sleeper per wake word: the first thread that waits sleeps on the shared word, further threads
//! of the process wait for their turn on a word of the lock.
use crate::lock::{Guard, Lock};
use pd_shm::wait::{self, SharedCells, SleeperCells};
use pd_shm::Spin;
use pd_shm::{Own, Theirs};
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest sleep before a waiter looks whether the driver is still there.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(250);

/// Locks, also after a panic of another holder: no state here is left half changed by one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that sleep on a word. Lives under the lock of the state that the word is about.
#[derive(Debug)]
pub(crate) struct Turn {
    sleeping: bool,
    waiting: u32,
    spin: Spin,
}

impl Turn {
    pub(crate) fn new() -> Self {
        Self { sleeping: false, waiting: 0, spin: Spin::default() }
    }

    /// Returns whether a thread sleeps on the word.
    #[inline]
    pub(crate) fn is_sleeping(&self) -> bool {
        self.sleeping
    }

    /// Returns whether other threads wait for their turn.
    pub(crate) fn contended(&self) -> bool {
        self.waiting > 0
    }
}

/// State that has a [`Turn`].
pub(crate) trait HasTurn {
    fn turn(&mut self) -> &mut Turn;
}

/// A deadline, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Returns the longest sleep; `None` when the time is over.
    pub(crate) fn next_sleep(&self) -> Option<Duration> {
        let Some(at) = self.0 else { return Some(SLEEP_MAX) };
        let left = at.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then(|| left.min(SLEEP_MAX))
    }
}

/// Sleeps of a thread while another one sleeps on the wake word. They are on a word of the process, while it holds a value.
pub(crate) trait WaitTurn {
    fn wait_turn(&self, word: &AtomicU32, seen: u32, timeout: Duration);
}

impl WaitTurn for SharedCells<'_, Own, Theirs> {
    fn wait_turn(&self, word: &AtomicU32, seen: u32, timeout: Duration) {
        pd_shm::sleep_on(word, seen, timeout, |sleep| sleep.make());
    }
}

/// Gives up the lock, sleeps until the wake word is reached or the time is over or for no reason,
/// and takes the lock again. Says whether the time was over: then look after the driver.
pub(crate) fn sleep_in_turn<'a, T: HasTurn>(
    lock: &'a Lock<T>,
    mut guard: Guard<'a, T>,
    cells: &(impl SleeperCells + WaitTurn),
    wake_at: u64,
    timeout: Duration,
    ready: impl FnMut() -> bool,
) -> (Guard<'a, T>, bool) {
    let start = Instant::now();
    if guard.turn().sleeping {
        guard.turn().waiting += 1;
        let mut guard = guard.wait(|word, seen| cells.wait_turn(word, seen, timeout));
        guard.turn().waiting -= 1;
        return (guard, start.elapsed() >= timeout);
    }
    guard.turn().sleeping = true;
    let mut spin = guard.turn().spin.clone();
    drop(guard);
    wait::sleep(cells, wake_at, &mut spin, timeout, ready);
    let timed_out = start.elapsed() >= timeout;
    let mut guard = lock.lock();
    let turn = guard.turn();
    (turn.sleeping, turn.spin) = (false, spin);
    if turn.waiting > 0 {
        lock.notify_all();
    }
    (guard, timed_out)
}
