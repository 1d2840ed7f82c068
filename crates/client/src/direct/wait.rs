//! Sleeping until the peer or the driver wakes, and where the words of that are.
use crate::due;
use crate::turn::WaitTurn;
use pd_abi::layout::direct;
use pd_shm::byte_ring::{AsymmetricFence, OwnWords, Ring, WakeWords};
use pd_shm::wait::{SharedCells, SleeperCells};
use pd_shm::{sleep_on, Own, Region, Sleep, Theirs};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Waiting for bytes.
pub(super) const RECV: WakeWords = WakeWords {
    wake_at: direct::RECV_WAKE_AT,
    event_at: direct::RECV_EVENT_AT,
    asymmetric: direct::RECV_ASYMMETRIC,
    barriers: direct::BARRIERS,
    doorbell: direct::RECV_DOORBELL,
};

/// Waiting for room.
pub(super) const SEND: WakeWords = WakeWords {
    wake_at: direct::SEND_WAKE_AT,
    event_at: direct::SEND_EVENT_AT,
    asymmetric: direct::SEND_ASYMMETRIC,
    barriers: direct::BARRIERS,
    doorbell: direct::SEND_DOORBELL,
};

/// Counts a wait that ended without a sleep. No thread sleeps on these words.
#[inline]
pub(super) fn went_on(
    fence: &mut AsymmetricFence,
    own: &Ring<Own>,
    peer: &Ring<Theirs>,
    words: &'static WakeWords,
) {
    fence.went_on(&OwnWords { own, words }, || peer.map().load_u32(words.barriers, Ordering::Relaxed) != 0);
}

/// For sleepers that have to come back when a signal handler is due.
#[derive(Clone, Copy)]
pub(crate) struct Noticing<'a> {
    /// Tells whether one is due.
    pub(crate) signal: &'a Cell<bool>,
}

impl Noticing<'_> {
    fn sleep(&self, wait: impl FnOnce(&dyn Fn(&Sleep<'_>) -> isize) -> bool) {
        self.signal.set(due::sleep(wait));
    }

    /// Ends a wait whose event has come: handlers that are due no longer matter.
    pub(super) fn end(&self) {
        self.signal.set(false);
    }
}

/// The words of a sleep that ends by the peer or by the driver.
pub(super) struct Doorbells<'a> {
    /// The driver's, in control and status line.
    pub(super) line: SharedCells<'a, Own, Theirs>,
    /// The peer's, once there is one.
    pub(super) direct: Option<&'a (Ring<Own>, Ring<Theirs>)>,
    pub(super) words: &'static WakeWords,
    /// The peer's index that is waited for.
    index: u64,
    noticing: Option<Noticing<'a>>,
    fence: Cell<AsymmetricFence>,
    seen: Cell<u32>,
}

impl<'a> Doorbells<'a> {
    pub(super) fn new(
        line: SharedCells<'a, Own, Theirs>,
        direct: Option<&'a (Ring<Own>, Ring<Theirs>)>,
        words: &'static WakeWords,
        index: u64,
        noticing: Option<Noticing<'a>>,
    ) -> Self {
        Self { line, direct, words, index, noticing, fence: Cell::default(), seen: Cell::new(0) }
    }

    /// Takes the fence of the side that sleeps, until [`Self::into_fence`].
    pub(super) fn with_fence(self, fence: &mut AsymmetricFence) -> Self {
        self.fence.set(std::mem::take(fence));
        self
    }

    pub(super) fn into_fence(self) -> AsymmetricFence {
        self.fence.into_inner()
    }

    /// Sleeps until a doorbell changes or the time is over. Returns whether a signal ended the sleep.
    fn wait(&self, seen: u32, timeout: Duration, make: impl Fn(&Sleep<'_>) -> isize) -> bool {
        let (status, at) = self.line.doorbell;
        match self.direct {
            None => status.futex_wait(at, self.seen.get(), timeout, make),
            Some((_, peer)) => {
                let places = [(&**peer.map(), self.words.doorbell, seen), (status, at, self.seen.get())];
                Region::futex_wait_two(places, timeout, make)
            }
        }
    }
}

impl SleeperCells for Doorbells<'_> {
    fn load_doorbell(&self) -> u32 {
        self.seen.set(self.line.load_doorbell());
        self.direct.map_or(0, |(_, peer)| peer.map().load_u32(self.words.doorbell, Ordering::Acquire))
    }

    fn store_wake_at(&self, value: u64) {
        self.line.store_wake_at(value);
        if let Some((own, _)) = self.direct {
            let index = if value == 0 { 0 } else { self.index };
            OwnWords { own, words: self.words }.store_wake_at(index);
        }
    }

    fn fence(&self) {
        let Some((own, _)) = self.direct else { return self.line.fence() };
        let mut fence = self.fence.take();
        fence.make(&OwnWords { own, words: self.words });
        self.fence.set(fence);
    }

    fn sleep(&self, seen: u32, timeout: Duration) {
        match self.noticing {
            Some(noticing) => noticing.sleep(|make| self.wait(seen, timeout, make)),
            None => drop(self.wait(seen, timeout, |sleep| sleep.make())),
        }
    }
}

impl WaitTurn for Doorbells<'_> {
    fn wait_turn(&self, word: &AtomicU32, seen: u32, timeout: Duration) {
        match self.noticing {
            Some(noticing) => noticing.sleep(|make| sleep_on(word, seen, timeout, make)),
            None => drop(sleep_on(word, seen, timeout, |sleep| sleep.make())),
        }
    }
}
