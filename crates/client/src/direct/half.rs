//! One side's half of a direct connection, as it is mapped here: an index page and a ring.
use pd_shm::{barrier, Access, Own, Region};
use std::sync::atomic::{compiler_fence, fence, Ordering};
use std::sync::Arc;

/// The memory file of one side: its index page and, behind that, the ring. The peer's ring is mapped twice in a row.
#[derive(Clone, Debug)]
pub(crate) struct Half<A> {
    pub(super) map: Arc<Region<A>>,
    /// Where the ring begins.
    pub(super) ring_offset: usize,
    /// Bytes of the ring; a power of two.
    pub(super) bytes: u64,
}

impl Half<Own> {
    #[inline]
    pub(super) fn publish(&self, word: usize, value: u64) {
        self.map.store_u64(word, value, Ordering::Release);
    }

    /// Says that `value` is about to be published. Loads of the driver's words come after this for the driver, too.
    #[inline]
    pub(crate) fn claim(&self, word: usize, value: u64) {
        self.map.store_u64(word, value, Ordering::Release);
        // SYNC POINT: ring-ends
        if barrier::register() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

impl<A: Access> Half<A> {
    #[inline]
    pub(super) fn load(&self, word: usize) -> u64 {
        self.map.load_u64(word, Ordering::Acquire)
    }

    /// Where byte number `position` of the stream lies.
    #[inline]
    pub(super) fn place(&self, position: u64) -> usize {
        self.ring_offset + (position & (self.bytes - 1)) as usize
    }
}
