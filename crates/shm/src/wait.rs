//! Sleeping until a counter reaches a value, and waking the sleeper.
//!
//! The counter and the doorbell (a futex) belong to the side that wakes, the word `wake_at` to the
//! side that sleeps (see [`pd_abi::layout`]). Neither side can miss the other: the sleeper writes
//! `wake_at`, fences and looks at the counter; the waker writes the counter, fences and looks at
//! `wake_at` (`SYNC POINT: wake-dekker`). One of them sees the other's store. Between the look and
//! the sleep the doorbell's value decides (`SYNC POINT: wake-doorbell`).
use crate::{Access, Protection, Region, Spin, Writable};
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

/// The words that a sleeper reaches.
pub trait SleeperCells {
    /// The doorbell's value (acquire).
    fn load_doorbell(&self) -> u32;
    /// Asks for a wake-up at `value`; 0 asks for none.
    fn store_wake_at(&self, value: u64);
    /// A sequentially consistent fence.
    fn fence(&self);
    /// Sleeps while the doorbell holds `seen`.
    fn sleep(&self, seen: u32, timeout: Duration);
}

/// The words that a waker reaches.
pub trait WakerCells {
    /// Returns what the sleeper asks for.
    fn load_wake_at(&self) -> u64;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// Increments the doorbell and wakes.
    fn ring(&self);
}

/// Sleeps once, unless `ready` already says yes; returns after a wake-up, a time-out, a signal, or for
/// no reason: the caller looks again. Spins first.
pub fn sleep(
    cells: &impl SleeperCells,
    wake_at: u64,
    spin: &mut Spin,
    timeout: Duration,
    mut ready: impl FnMut() -> bool,
) {
    if spin.until(&mut ready) {
        return;
    }
    // SYNC POINT: wake-doorbell
    let seen = cells.load_doorbell();
    cells.store_wake_at(wake_at);
    // SYNC POINT: wake-dekker
    cells.fence();
    if !ready() {
        cells.sleep(seen, timeout);
    }
    cells.store_wake_at(0);
    spin.slept();
}

/// A waker's memory of one sleeper.
#[derive(Clone, Debug, Default)]
pub struct Waker {
    answered: u64,
}

impl Waker {
    /// Call after the counter was stored: wakes the sleeper if `counter` has reached what it asks for.
    /// Says whether it did. One request is answered once, so that a sleeper that is slow to run costs
    /// one system call, and a hostile one no more than one for each value it writes.
    pub fn wake(&mut self, cells: &impl WakerCells, counter: u64) -> bool {
        // SYNC POINT: wake-dekker
        cells.fence();
        let is_due = self.answers(cells.load_wake_at(), counter);
        if is_due {
            // SYNC POINT: wake-doorbell
            cells.ring();
        }
        is_due
    }

    /// Returns whether a sleeper that asks for `wake_at` is to be woken at `counter`, which is then answered.
    #[inline]
    pub(crate) fn answers(&mut self, wake_at: u64, counter: u64) -> bool {
        if wake_at == 0 {
            self.answered = 0;
            return false;
        }
        if counter < wake_at || wake_at == self.answered {
            return false;
        }
        self.answered = wake_at;
        true
    }

    /// Wakes the sleeper, if any, whatever it asks for: the stream ended or failed.
    pub fn wake_always(&mut self, cells: &impl WakerCells) {
        // SYNC POINT: wake-dekker
        cells.fence();
        if cells.load_wake_at() != 0 {
            // SYNC POINT: wake-doorbell
            cells.ring();
        }
    }
}

/// The words of one sleep in shared memory: `wake_at` in the sleeper's region, the doorbell in the
/// waker's. A side that sleeps owns the first, a side that wakes the second.
#[derive(Clone, Copy, Debug)]
pub struct SharedCells<'a, W = Protection, D = Protection> {
    /// Where `wake_at` is.
    pub wake_at: (&'a Region<W>, usize),
    /// Where the doorbell is.
    pub doorbell: (&'a Region<D>, usize),
}

impl<W: Writable, D: Access> SleeperCells for SharedCells<'_, W, D> {
    fn load_doorbell(&self) -> u32 {
        self.doorbell.0.load_u32(self.doorbell.1, Ordering::Acquire)
    }
    fn store_wake_at(&self, value: u64) {
        self.wake_at.0.store_u64(self.wake_at.1, value, Ordering::Relaxed);
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn sleep(&self, seen: u32, timeout: Duration) {
        self.doorbell.0.futex_wait(self.doorbell.1, seen, timeout, |sleep| sleep.make());
    }
}

impl<W: Access, D: Writable> WakerCells for SharedCells<'_, W, D> {
    fn load_wake_at(&self) -> u64 {
        self.wake_at.0.load_u64(self.wake_at.1, Ordering::Relaxed)
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn ring(&self) {
        let (map, offset) = self.doorbell;
        map.advance_doorbell(offset);
        map.futex_wake(offset);
    }
}
