//! States of blocks, a word for each: allocated, to be freed, sends in flight.
use super::Arena;
use crate::attachment::Attachment;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Granule of small blocks; every block starts at a multiple of it.
pub(super) const GRANULE: usize = 64;

const ALLOCATED: u32 = 1 << 31;
const FREEING: u32 = 1 << 30;
const FLIGHTS: u32 = FREEING - 1;

/// The words of all blocks that an arena may have.
#[derive(Debug)]
pub(super) struct States {
    words: Box<[AtomicU32]>,
    /// Serial of the socket that last sent the block: where to look whether it is free.
    senders: Box<[AtomicU64]>,
}

/// The outcome of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    Now,
    /// When the last send is done.
    Later,
    /// Never: the block was not allocated.
    Never,
}

impl States {
    pub(super) fn new(bytes: usize) -> Self {
        // Zeroed by the allocator, so that words never used cost no memory.
        let words = Box::into_raw(vec![0u32; bytes / GRANULE].into_boxed_slice());
        let senders = Box::into_raw(vec![0u64; bytes / GRANULE].into_boxed_slice());
        // SAFETY: atomics have the size, alignment and bit validity of their integers, and the boxes are ours.
        unsafe {
            Self {
                words: Box::from_raw(words as *mut [AtomicU32]),
                senders: Box::from_raw(senders as *mut [AtomicU64]),
            }
        }
    }

    pub(super) fn allocate(&self, offset: usize) {
        self.words[offset / GRANULE].fetch_add(ALLOCATED, Ordering::Relaxed);
    }

    /// Marks a block free. `Now`: the caller gives its memory back.
    pub(super) fn free(&self, offset: usize) -> Freed {
        let word = &self.words[offset / GRANULE];
        let mut before = word.load(Ordering::Relaxed);
        loop {
            if before & ALLOCATED == 0 || before & FREEING != 0 {
                return Freed::Never;
            }
            let (after, freed) = match before & FLIGHTS {
                0 => (0, Freed::Now),
                _ => (before | FREEING, Freed::Later),
            };
            match word.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return freed,
                Err(now) => before = now,
            }
        }
    }

    /// Counts a send in flight, if the block is allocated. Returns whether it is.
    #[inline]
    pub(super) fn take_off(&self, offset: usize, sender: u64) -> bool {
        self.senders[offset / GRANULE].store(sender, Ordering::Relaxed);
        let word = &self.words[offset / GRANULE];
        let mut before = word.load(Ordering::Relaxed);
        loop {
            if before & ALLOCATED == 0 || before & FREEING != 0 {
                return false;
            }
            match word.compare_exchange_weak(before, before + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => before = now,
            }
        }
    }

    /// Counts a send as done. Returns whether the caller now gives the memory back.
    #[inline]
    pub(super) fn land(&self, offset: usize) -> bool {
        let word = &self.words[offset / GRANULE];
        let before = word.fetch_sub(1, Ordering::AcqRel);
        let last = before & FREEING != 0 && before & FLIGHTS == 1;
        if last {
            word.store(0, Ordering::Release);
        }
        last
    }

    pub(super) fn sender(&self, offset: usize) -> u64 {
        self.senders[offset / GRANULE].load(Ordering::Relaxed)
    }

    pub(super) fn in_flight(&self, offset: usize) -> bool {
        self.words[offset / GRANULE].load(Ordering::Acquire) & FLIGHTS != 0
    }
}

/// A block of an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    arena: &'static Arena,
    granule: u32,
}

impl Block {
    pub(super) fn new(arena: &'static Arena, offset: usize) -> Self {
        Self { arena, granule: (offset / GRANULE) as u32 }
    }

    fn offset(&self) -> usize {
        self.granule as usize * GRANULE
    }

    pub(super) fn start(&self) -> usize {
        self.arena.start + self.offset()
    }

    pub(super) fn free(&self) -> Freed {
        let freed = self.arena.states.free(self.offset());
        if freed == Freed::Now {
            self.arena.release(self.offset());
        }
        freed
    }

    /// The region's number.
    #[inline]
    pub(crate) fn region(&self) -> u16 {
        self.arena.region
    }

    /// Returns whether the block's region is one of `attachment`'s.
    #[inline]
    pub(crate) fn is_of(&self, attachment: &Arc<Attachment>) -> bool {
        Arc::ptr_eq(&self.arena.attachment, attachment)
    }

    /// Counts a send in flight, of the socket with this serial. Returns false if the block is not allocated.
    #[inline]
    pub(crate) fn take_off(&self, sender: u64) -> bool {
        self.arena.states.take_off(self.offset(), sender)
    }

    /// Serial of the socket that last sent it.
    pub(crate) fn sender(&self) -> u64 {
        self.arena.states.sender(self.offset())
    }

    /// Counts a send as done. Frees the block if that was waited for.
    #[inline]
    pub(crate) fn land(&self) {
        if self.arena.states.land(self.offset()) {
            self.arena.release(self.offset());
        }
    }

    /// Returns whether sends of it are in flight.
    pub(crate) fn in_flight(&self) -> bool {
        self.arena.states.in_flight(self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_is_deferred_until_the_last_send_lands() {
        let states = States::new(4096);
        assert_eq!(states.free(64), Freed::Never);
        assert!(!states.take_off(64, 1));
        states.allocate(64);
        assert!(states.take_off(64, 1) && states.take_off(64, 1));
        assert_eq!(states.free(64), Freed::Later);
        assert_eq!(states.free(64), Freed::Never);
        assert!(!states.take_off(64, 1));
        assert!(!states.land(64) && states.in_flight(64));
        assert!(states.land(64) && !states.in_flight(64));
        assert!(!states.take_off(64, 1));
        states.allocate(64);
        assert_eq!(states.free(64), Freed::Now);
    }
}
