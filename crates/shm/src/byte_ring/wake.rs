//! Waking the side that waits for an index, and the fence between.
//!
//! A side that publishes an index then looks whether the other side sleeps or awaits an event. While the other side sleeps often, a fence
//! lies between the two. While it seldom sleeps, it takes the fence over: it makes one on all cores before it sleeps
//! ([`crate::barrier`]). A stream needs no fence then.
//!
//! The code is written over traits for the words, so that it runs over shared memory and under loom.
use super::Ring;
use crate::{barrier, wait, Access, Writable};
use std::sync::atomic::{compiler_fence, fence, Ordering};

/// Waits in a row that ended without a sleep before the other side need not fence.
const AWAKE_MIN: u32 = 256;

/// Where one kind of waiting has its words: the doorbell in the waker's index page, the others in the sleeper's.
#[derive(Clone, Copy, Debug)]
pub struct WakeWords {
    /// Index at which to wake; 0: none.
    pub wake_at: usize,
    /// Index at which to send an event; 0: none.
    pub event_at: usize,
    /// Half word. Not 0: the fence is asymmetric.
    pub asymmetric: usize,
    /// Half word. Not 0: the page's owner has registered for barriers.
    pub barriers: usize,
    /// Futex.
    pub doorbell: usize,
}

/// The words that a waker reaches, beside those of any wait.
pub trait WakerCells: wait::WakerCells {
    /// Returns whether the sleeper makes the fence alone (acquire).
    fn is_asymmetric(&self) -> bool;
    /// Returns the index at which the sleeper wants an event.
    fn load_event_at(&self) -> u64;
    /// A fence for the compiler alone.
    fn compiler_fence(&self);
}

/// The waker's memory: each value asked for is answered once.
#[derive(Debug, Default)]
pub struct Waker {
    wake: wait::Waker,
    event_at: u64,
}

impl Waker {
    /// Call after the index was stored: wakes the other side if it waits for that. Returns whether the other side is to have an event.
    #[inline]
    pub fn tell(&mut self, cells: &impl WakerCells, index: u64) -> bool {
        // SYNC POINT: byte-ring-dekker
        if cells.is_asymmetric() {
            cells.compiler_fence();
        } else {
            cells.fence();
        }
        let wake_at = cells.load_wake_at();
        let event_at = cells.load_event_at();
        if self.wake.answers(wake_at, index) {
            // SYNC POINT: wake-doorbell
            cells.ring();
        }
        if event_at != 0 && index >= event_at && event_at != self.event_at {
            self.event_at = event_at;
            return true;
        }
        false
    }
}

/// The words of a waker in two rings: its own, and that of the side that may sleep.
#[derive(Clone, Copy, Debug)]
pub struct WakerWords<'a, O, P> {
    /// Ring whose index page has the doorbell.
    pub own: &'a Ring<O>,
    /// Ring whose index page has what the sleeper asks for.
    pub peer: &'a Ring<P>,
    /// Places of the words.
    pub words: &'a WakeWords,
}

impl<O: Writable, P: Access> wait::WakerCells for WakerWords<'_, O, P> {
    #[inline]
    fn load_wake_at(&self) -> u64 {
        self.peer.map.load_u64(self.words.wake_at, Ordering::Relaxed)
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    #[cold]
    fn ring(&self) {
        self.own.map.advance_doorbell(self.words.doorbell);
        self.own.map.futex_wake(self.words.doorbell);
    }
}

impl<O: Writable, P: Access> WakerCells for WakerWords<'_, O, P> {
    #[inline]
    fn is_asymmetric(&self) -> bool {
        self.peer.map.load_u32(self.words.asymmetric, Ordering::Acquire) != 0
    }
    #[inline]
    fn load_event_at(&self) -> u64 {
        self.peer.map.load_u64(self.words.event_at, Ordering::Relaxed)
    }
    #[inline]
    fn compiler_fence(&self) {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The words that a sleeper writes, and the fences that it makes.
pub trait FenceCells {
    /// Asks for an event at `index`.
    fn store_event_at(&self, index: u64);
    /// Stores whether this side makes the fence alone (release).
    fn store_asymmetric(&self, is_asymmetric: bool);
    /// Returns whether this process has registered for barriers.
    fn is_registered(&self) -> bool;
    /// A sequentially consistent fence here.
    fn fence(&self);
    /// A fence on all cores.
    fn barrier(&self);
}

/// Fence between a waker's store and its look at the sleeper's words. Symmetric while this side sleeps often: each side makes one.
/// Asymmetric while it does not: this side makes it on all cores before it sleeps (`membarrier`), and the other side makes none.
#[derive(Debug, Default)]
pub struct AsymmetricFence {
    awake: u32,
    is_asymmetric: bool,
}

impl AsymmetricFence {
    /// Counts a wait that ended without a sleep. No thread sleeps on these words. `peer_is_registered`: whether barriers reach the other
    /// side.
    #[inline]
    pub fn went_on(&mut self, cells: &impl FenceCells, peer_is_registered: impl FnOnce() -> bool) {
        self.awake = self.awake.saturating_add(1);
        if self.awake == AWAKE_MIN && cells.is_registered() && peer_is_registered() {
            self.is_asymmetric = true;
            cells.store_asymmetric(true);
        }
    }

    /// Makes the fence between the request for a wake-up and the look at the other side's index.
    pub fn make(&mut self, cells: &impl FenceCells) {
        self.awake = 0;
        // SYNC POINT: byte-ring-dekker
        if std::mem::take(&mut self.is_asymmetric) {
            cells.store_asymmetric(false);
            cells.barrier();
        } else {
            cells.fence();
        }
    }

    /// Asks for an event when the other side's index reaches `index`. Look at it after this. `is_lent`: a thread that sleeps on these words
    /// has the fence, so that the worst is assumed.
    pub fn arm(&mut self, cells: &impl FenceCells, index: u64, is_lent: bool) {
        cells.store_event_at(index);
        self.is_asymmetric |= is_lent && cells.is_registered();
        self.make(cells);
    }
}

/// The words of a sleeper in its own index page.
#[derive(Clone, Copy, Debug)]
pub struct OwnWords<'a, A> {
    /// Ring of the page.
    pub own: &'a Ring<A>,
    /// Places of the words.
    pub words: &'a WakeWords,
}

impl<A: Writable> OwnWords<'_, A> {
    /// Asks for a wake-up at `index`; 0 asks for none.
    pub fn store_wake_at(&self, index: u64) {
        self.own.map.store_u64(self.words.wake_at, index, Ordering::Relaxed);
    }
}

impl<A: Writable> FenceCells for OwnWords<'_, A> {
    fn store_event_at(&self, index: u64) {
        self.own.map.store_u64(self.words.event_at, index, Ordering::Relaxed);
    }
    fn store_asymmetric(&self, is_asymmetric: bool) {
        self.own.map.store_u32(self.words.asymmetric, is_asymmetric.into(), Ordering::Release);
    }
    fn is_registered(&self) -> bool {
        barrier::register()
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn barrier(&self) {
        barrier::everywhere();
    }
}

/// The words of a claim.
pub trait ClaimCells {
    /// Stores the index that is about to be published (release).
    fn store_claim(&self, index: u64);
    /// A fence before the loads that follow. In a process that has registered for barriers it is one for the compiler alone: a reader of
    /// the claim makes a barrier first.
    fn fence(&self);
}

/// Announces that `index` is about to be published. A reader of the claim, too, sees the loads that follow come after it.
#[inline]
pub fn claim(cells: &impl ClaimCells, index: u64) {
    cells.store_claim(index);
    // SYNC POINT: ring-ends
    cells.fence();
}
