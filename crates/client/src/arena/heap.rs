//! Allocated bytes of a region: runs of pages, and slabs of equal small blocks in runs.
use super::blocks::GRANULE;
use pd_abi::limits::PAGE_BYTES;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of a slab.
const SLAB_PAGES: u32 = 16;
/// Sizes of small blocks, in granules. At most a fifth of a block is lost to rounding above 512 bytes.
const CLASSES: [u16; 20] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 63];

/// By size in granules: what a division by it is a multiplication with, and a shift by [`RECIPROCAL_BITS`]. Exact for the
/// granules of a slab, as long as their number times the size is below the shift.
const RECIPROCALS: [u32; 64] = {
    let mut reciprocals = [0; 64];
    let mut size = 1;
    while size < reciprocals.len() {
        reciprocals[size] = (1u32 << RECIPROCAL_BITS).div_ceil(size as u32);
        size += 1;
    }
    reciprocals
};
const RECIPROCAL_BITS: u32 = 16;
const _: () = assert!(SLAB_PAGES as usize * PAGE_BYTES / GRANULE * 63 < 1 << RECIPROCAL_BITS);

/// The run or slab of a page, as one word: a run's first page (32 bits), then its pages (large, 31 bits) or
/// the granules of a block (small), then which of the two. 0: nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    first: u32,
    small: bool,
    size: u32,
}

impl Page {
    const SMALL: u64 = 1 << 63;

    fn store(self, cell: &AtomicU64) {
        let kind = if self.small { Self::SMALL } else { 0 };
        cell.store(kind | u64::from(self.size) << 32 | u64::from(self.first), Ordering::Release);
    }

    #[inline]
    pub(super) fn load(cell: &AtomicU64) -> Option<Self> {
        let word = cell.load(Ordering::Acquire);
        let small = word & Self::SMALL != 0;
        (word != 0).then_some(Self { first: word as u32, small, size: ((word & !Self::SMALL) >> 32) as u32 })
    }

    /// Start and end of the block around `offset`, which lies in this page.
    #[inline]
    pub(super) fn block_around(self, offset: usize) -> Option<(usize, usize)> {
        let run = self.first as usize * PAGE_BYTES;
        if !self.small {
            return Some((run, run + self.size as usize * PAGE_BYTES));
        }
        let granule = (offset - run) / GRANULE;
        let index = (granule * RECIPROCALS[self.size as usize % 64] as usize) >> RECIPROCAL_BITS;
        let block = self.size as usize * GRANULE;
        let start = run + index * block;
        let end = start + block;
        (end <= run + SLAB_PAGES as usize * PAGE_BYTES).then_some((start, end))
    }
}

#[derive(Debug)]
struct Slab {
    class: u8,
    blocks: u16,
    free: Vec<u16>,
}

/// The bookkeeping of one region, by offset. Touches no byte of it.
#[derive(Debug)]
pub(super) struct Heap {
    pages: u32,
    used: u32,
    /// Free runs: pages by first page, and first pages by size.
    runs: BTreeMap<u32, u32>,
    by_size: BTreeSet<(u32, u32)>,
    /// By first page.
    slabs: Vec<Option<Box<Slab>>>,
    /// By class: slabs with free blocks.
    partial: [Vec<u32>; CLASSES.len()],
}

impl Heap {
    pub(super) fn new(pages: u32) -> Self {
        let mut heap = Self {
            pages,
            used: 0,
            runs: BTreeMap::new(),
            by_size: BTreeSet::new(),
            slabs: Vec::new(),
            partial: Default::default(),
        };
        heap.add_run(0, pages);
        heap
    }

    /// Returns whether nothing is allocated.
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Allocates; returns the offset.
    pub(super) fn malloc(&mut self, bytes: usize, pages: &[AtomicU64]) -> Option<usize> {
        let granules = bytes.div_ceil(GRANULE);
        let offset = if granules > usize::from(CLASSES[CLASSES.len() - 1]) {
            let wanted = u32::try_from(bytes.div_ceil(PAGE_BYTES)).ok()?;
            let first = self.take_run(wanted)?;
            self.mark(first, wanted, Page { first, small: false, size: wanted }, pages);
            first as usize * PAGE_BYTES
        } else {
            let class = CLASSES.partition_point(|&size| usize::from(size) < granules);
            self.malloc_small(class, pages)?
        };
        self.used += 1;
        Some(offset)
    }

    fn malloc_small(&mut self, class: usize, pages: &[AtomicU64]) -> Option<usize> {
        let size = u32::from(CLASSES[class]);
        let first = match self.partial[class].last() {
            Some(&first) => first,
            None => {
                let first = self.take_run(SLAB_PAGES)?;
                let blocks = (SLAB_PAGES as usize * PAGE_BYTES / GRANULE / size as usize) as u16;
                self.mark(first, SLAB_PAGES, Page { first, small: true, size }, pages);
                if self.slabs.is_empty() {
                    self.slabs.resize_with(self.pages as usize, || None);
                }
                let free = (0..blocks).rev().collect();
                self.slabs[first as usize] = Some(Box::new(Slab { class: class as u8, blocks, free }));
                self.partial[class].push(first);
                first
            }
        };
        let slab = self.slabs[first as usize].as_mut()?;
        let block = slab.free.pop()?;
        if slab.free.is_empty() {
            self.partial[class].pop();
        }
        Some(first as usize * PAGE_BYTES + usize::from(block) * size as usize * GRANULE)
    }

    /// Frees the block at `offset`, which is allocated.
    pub(super) fn free(&mut self, offset: usize, pages: &[AtomicU64]) {
        let Some(page) = Page::load(&pages[offset / PAGE_BYTES]) else { return };
        self.used -= 1;
        if !page.small {
            self.unmark(page.first, page.size, pages);
            self.give_run(page.first, page.size);
            return;
        }
        let Some(slab) = self.slabs[page.first as usize].as_mut() else { return };
        let index = (offset - page.first as usize * PAGE_BYTES) / (page.size as usize * GRANULE);
        let partial = &mut self.partial[usize::from(slab.class)];
        if slab.free.is_empty() {
            partial.push(page.first);
        }
        slab.free.push(index as u16);
        // The last slab of a class stays, so that a program that allocates and frees one block in turn
        // does not make and unmake a slab each time.
        if slab.free.len() == usize::from(slab.blocks) && partial.len() > 1 {
            partial.retain(|&first| first != page.first);
            self.slabs[page.first as usize] = None;
            self.unmark(page.first, SLAB_PAGES, pages);
            self.give_run(page.first, SLAB_PAGES);
        }
    }

    fn mark(&self, first: u32, count: u32, page: Page, pages: &[AtomicU64]) {
        for cell in &pages[first as usize..(first + count) as usize] {
            page.store(cell);
        }
    }

    fn unmark(&self, first: u32, count: u32, pages: &[AtomicU64]) {
        for cell in &pages[first as usize..(first + count) as usize] {
            cell.store(0, Ordering::Release);
        }
    }

    /// The smallest free run that fits, cut to size.
    fn take_run(&mut self, wanted: u32) -> Option<u32> {
        let &(size, first) = self.by_size.range((wanted, 0)..).next()?;
        self.remove_run(first, size);
        if size > wanted {
            self.add_run(first + wanted, size - wanted);
        }
        Some(first)
    }

    fn give_run(&mut self, mut first: u32, mut size: u32) {
        if let Some((&before, &pages)) = self.runs.range(..first).next_back() {
            if before + pages == first {
                self.remove_run(before, pages);
                (first, size) = (before, size + pages);
            }
        }
        if let Some(&after) = self.runs.get(&(first + size)) {
            self.remove_run(first + size, after);
            size += after;
        }
        self.add_run(first, size);
    }

    fn add_run(&mut self, first: u32, size: u32) {
        self.runs.insert(first, size);
        self.by_size.insert((size, first));
    }

    fn remove_run(&mut self, first: u32, size: u32) {
        self.runs.remove(&first);
        self.by_size.remove(&(size, first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: u32 = 256;

    fn around(pages: &[AtomicU64], offset: usize) -> Option<(usize, usize)> {
        Page::load(&pages[offset / PAGE_BYTES])?.block_around(offset)
    }

    #[test]
    fn reciprocals_divide_what_a_slab_has() {
        for (size, reciprocal) in RECIPROCALS.iter().enumerate().skip(1) {
            for granule in 0..SLAB_PAGES as usize * PAGE_BYTES / GRANULE {
                assert_eq!((granule * *reciprocal as usize) >> RECIPROCAL_BITS, granule / size);
            }
        }
    }

    proptest! {
        /// Against a list of blocks: no overlap, alignment, look-up from every part, all comes back.
        #[test]
        fn keeps_blocks_apart(steps in proptest::collection::vec((any::<bool>(), 1usize..40_000, any::<usize>()), 1..200)) {
            let pages: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
            let mut heap = Heap::new(PAGES);
            let mut blocks: Vec<(usize, usize)> = Vec::new();
            for (allocate, bytes, pick) in steps {
                // Small sizes are as likely as large ones.
                let bytes = if pick % 2 == 0 { bytes % 3000 + 1 } else { bytes };
                if allocate || blocks.is_empty() {
                    let Some(offset) = heap.malloc(bytes, &pages) else { continue };
                    prop_assert_eq!(offset % if bytes >= PAGE_BYTES { PAGE_BYTES } else { GRANULE }, 0);
                    prop_assert!(offset + bytes <= PAGES as usize * PAGE_BYTES);
                    prop_assert!(blocks.iter().all(|&(at, len)| offset + bytes <= at || at + len <= offset));
                    blocks.push((offset, bytes));
                } else {
                    let (offset, _) = blocks.swap_remove(pick % blocks.len());
                    heap.free(offset, &pages);
                }
                for &(offset, bytes) in &blocks {
                    for inside in [offset, offset + bytes / 2, offset + bytes - 1] {
                        let (start, end) = around(&pages, inside).unwrap();
                        prop_assert_eq!(start, offset);
                        prop_assert!(end >= offset + bytes);
                    }
                }
            }
            for (offset, _) in blocks.drain(..) {
                heap.free(offset, &pages);
            }
            prop_assert!(heap.is_empty());
            let kept: u32 = heap.partial.iter().map(|class| class.len() as u32 * SLAB_PAGES).sum();
            prop_assert_eq!(heap.runs.values().sum::<u32>() + kept, PAGES);
        }
    }

    #[test]
    fn a_full_heap_says_so() {
        let pages: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        let mut heap = Heap::new(PAGES);
        let all = heap.malloc(PAGES as usize * PAGE_BYTES, &pages).unwrap();
        assert_eq!(heap.malloc(1, &pages), None);
        heap.free(all, &pages);
        assert_eq!(heap.malloc(1, &pages), Some(0));
    }
}
