//! A lock's bias towards one thread, which then takes and leaves it with plain loads and stores.
//!
//! An exchange waits until all earlier stores have their cache lines, among them that of an index which another core reads.
//! For small messages that is most of a send. While a bias stands, its thread stores in `busy` that it is in, and then
//! checks that the bias is still its own. Another thread takes the bias away, has the kernel make a fence on all cores of
//! this process ([`crate::barrier`]), and then reads `busy`. One of the two sees the other.
use crate::barrier;
use std::sync::atomic::{compiler_fence, AtomicBool, AtomicUsize, Ordering};

/// The words of a bias, and the two fences.
pub trait BiasCells {
    /// The thread that has the bias; 0: none.
    fn load_owner(&self) -> usize;
    /// Gives it to a thread.
    fn store_owner(&self, thread: usize);
    /// Returns whether its thread is in, with acquire.
    fn load_busy(&self) -> bool;
    /// Stores that its thread is in, or (with release) out.
    fn store_busy(&self, busy: bool);
    /// A fence for the compiler alone.
    fn compiler_fence(&self);
    /// A fence on all cores that run threads of this process.
    fn barrier(&self);
    /// Lets some time pass.
    fn pause(&self);
}

/// Enters if `thread` has the bias, and is not in already.
#[inline]
pub fn enter(cells: &impl BiasCells, thread: usize) -> bool {
    if cells.load_owner() != thread || cells.load_busy() {
        return false;
    }
    cells.store_busy(true);
    // SYNC POINT: bias-dekker
    cells.compiler_fence();
    if cells.load_owner() == thread {
        return true;
    }
    cells.store_busy(false);
    false
}

/// Takes the bias away from its thread. Returns when that thread is out and none can enter. One thread calls it at a time.
pub fn revoke(cells: &impl BiasCells) {
    cells.store_owner(0);
    // SYNC POINT: bias-dekker
    cells.barrier();
    while cells.load_busy() {
        cells.pause();
    }
}

/// A bias in this process's memory.
#[derive(Debug, Default)]
pub struct Bias {
    owner: AtomicUsize,
    busy: AtomicBool,
}

impl Bias {
    /// Enters if the calling thread has the bias, and is not in already. Leave with [`Self::leave`].
    #[inline]
    pub fn enter(&self) -> bool {
        enter(self, this_thread())
    }

    /// Leaves what [`Self::enter`] entered.
    #[inline]
    pub fn leave(&self) {
        self.store_busy(false);
    }

    /// Returns whether a thread has it.
    pub fn stands(&self) -> bool {
        self.load_owner() != 0
    }

    /// Gives it to the calling thread, if the kernel knows barriers. No thread may have it, or give it at the same time.
    pub fn give(&self) {
        if barrier::register_own() {
            self.store_owner(this_thread());
        }
    }

    /// Takes it away, and returns when its thread is out. One thread calls it at a time.
    pub fn revoke(&self) {
        revoke(self);
    }
}

/// A number that no other thread of the process has; never 0. A later thread may get it again.
#[inline]
pub fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here) as usize)
}

impl BiasCells for Bias {
    #[inline]
    fn load_owner(&self) -> usize {
        self.owner.load(Ordering::Relaxed)
    }

    #[inline]
    fn store_owner(&self, thread: usize) {
        // A thread that gets it sees what was done under the lock before.
        self.owner.store(thread, Ordering::Relaxed);
    }

    #[inline]
    fn load_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    #[inline]
    fn store_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Release);
    }

    #[inline]
    fn compiler_fence(&self) {
        compiler_fence(Ordering::SeqCst);
    }

    fn barrier(&self) {
        barrier::own();
    }

    fn pause(&self) {
        crate::yield_now();
    }
}
