//! The ring of bytes between two parties that do not trust each other: one writes it, the other reads it where it lies.
//!
//! A [`Ring`] is memory that one party writes: an index page, and behind it a ring whose size is a power of two. Positions count bytes from
//! the beginning and run freely; [`Ring::place`] says where a byte lies. Each side keeps its own position privately ([`Producer`],
//! [`Consumer`]) and never reads it back. An index that the other side wrote is loaded once, and [`Broken`] says that it cannot be.
//!
//! [`Waker`] and [`AsymmetricFence`] wake a side that waits for an index. The waits themselves are [`crate::wait`]'s.
//!
//! The direct path of connections, the pipes of packets and the benchmark's shared ring are its users. It copies nothing, and knows
//! neither messages nor how a side polls.
mod cursor;
mod wake;

pub use cursor::{check_consumer, check_producer, offset_in, Broken, Consumer, Producer};
pub use wake::{
    claim, AsymmetricFence, ClaimCells, FenceCells, OwnWords, WakeWords, Waker, WakerCells, WakerWords,
};

use crate::{barrier, Access, Region, Writable};
use std::sync::atomic::{compiler_fence, fence, Ordering};
use std::sync::Arc;

/// A ring with its index page, as one side maps it.
#[derive(Clone, Debug)]
pub struct Ring<A> {
    map: Arc<Region<A>>,
    ring_offset: usize,
    bytes: u64,
}

impl<A: Access> Ring<A> {
    /// Makes one of `bytes` bytes that begin at `ring_offset`. A side that takes pieces across the ring's end has it mapped twice in a
    /// row.
    ///
    /// # Panics
    /// If `bytes` is not a power of two, or the ring lies outside the region.
    pub fn new(map: Arc<Region<A>>, ring_offset: usize, bytes: u64) -> Self {
        assert!(bytes.is_power_of_two(), "a ring of {bytes} bytes");
        map.address(ring_offset, bytes as usize);
        Self { map, ring_offset, bytes }
    }

    /// Returns the memory, index page and ring.
    #[inline]
    pub fn map(&self) -> &Arc<Region<A>> {
        &self.map
    }

    /// Returns the size of the ring.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the offset of the ring in the memory.
    #[inline]
    pub fn ring_offset(&self) -> usize {
        self.ring_offset
    }

    /// Returns the offset of byte number `position`.
    #[inline]
    pub fn place(&self, position: u64) -> usize {
        self.ring_offset + offset_in(position, self.bytes) as usize
    }

    /// Returns the bytes from `position` to the ring's end.
    #[inline]
    pub fn to_end(&self, position: u64) -> u64 {
        self.bytes - offset_in(position, self.bytes)
    }

    /// Loads an index, and with it the bytes before it.
    #[inline]
    pub fn load(&self, word: usize) -> u64 {
        // SYNC POINT: byte-ring-publish
        self.map.load_u64(word, Ordering::Acquire)
    }
}

impl<A: Writable> Ring<A> {
    /// Publishes an index, and with it what was written or read before it.
    #[inline]
    pub fn publish(&self, word: usize, index: u64) {
        // SYNC POINT: byte-ring-publish
        self.map.store_u64(word, index, Ordering::Release);
    }

    /// Announces by [`claim`] that `index` is about to be published.
    #[inline]
    pub fn claim(&self, word: usize, index: u64) {
        claim(&ClaimWord { ring: self, word }, index);
    }
}

struct ClaimWord<'a, A> {
    ring: &'a Ring<A>,
    word: usize,
}

impl<A: Writable> ClaimCells for ClaimWord<'_, A> {
    #[inline]
    fn store_claim(&self, index: u64) {
        self.ring.map.store_u64(self.word, index, Ordering::Release);
    }
    #[inline]
    fn fence(&self) {
        if barrier::register() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
}
