//! Memory to send from: send regions with their blocks, `pd_free`, and finding the block that bytes lie in.
//!
//! Memory comes in send regions. Each thread allocates from arenas of its own ([`crate::malloc`]), one per region; any
//! thread may free. A block is freed for real when the last of its sends is done.
mod blocks;
mod heap;

pub(crate) use blocks::Block;

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::forks::forks;
use crate::per_process::PerProcess;
use crate::turn::lock;
use blocks::{Freed, States};
use heap::Heap;
use pd_abi::limits::PAGE_BYTES;
use pd_shm::{Own, Region};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Send region, and the blocks allocated in it. Leaked; its memory is unmapped once the attachment is
/// dead and the last block is freed.
#[derive(Debug)]
pub(crate) struct Arena {
    start: usize,
    bytes: usize,
    region: u16,
    attachment: Arc<Attachment>,
    map: Mutex<Option<Region<Own>>>,
    states: States,
    heap: Mutex<Heap>,
    /// The run or slab of each page, for look-ups without the lock. See [`heap::Page`].
    pages: Box<[AtomicU64]>,
    owned: AtomicBool,
    /// The memory is unmapped; something else may lie at the address.
    released: AtomicBool,
}

static ARENAS: PerProcess<Arenas> = PerProcess::new();

/// The arenas of a process.
#[derive(Debug, Default)]
pub(crate) struct Arenas {
    /// Sorted by address.
    all: RwLock<Vec<&'static Arena>>,
}

thread_local! {
    /// The arena found last.
    static LAST: Cell<(u32, Option<&'static Arena>)> = const { Cell::new((0, None)) };
}

/// The arenas of this process.
pub(crate) fn arenas() -> &'static Arenas {
    ARENAS.get()
}

/// Frees what [`malloc`](crate::core::malloc) returned, now or when its sends are done.
///
/// # Errors
/// `EINVAL` if `ptr` is not the start of an allocated block.
pub fn free(ptr: *mut u8) -> Result<()> {
    let invalid = || Error::invalid("the pointer is not one of pd_malloc, or is freed already");
    let arena = find_arena(ptr).ok_or_else(invalid)?;
    let (block, _) = arena.block(ptr as usize - arena.start).ok_or_else(invalid)?;
    if block.start() != ptr as usize {
        return Err(invalid());
    }
    match block.free() {
        Freed::Now | Freed::Later => Ok(()),
        Freed::Never => Err(invalid()),
    }
}

/// The block that `len` bytes at `ptr` lie in, and the offset of `ptr` in its region.
#[inline]
pub(crate) fn find(ptr: *const u8, len: usize) -> Option<(Block, u64)> {
    let arena = find_arena(ptr)?;
    let offset = ptr as usize - arena.start;
    let (block, end) = arena.block(offset)?;
    (len <= end - offset).then_some((block, offset as u64))
}

/// The arena that `ptr` lies in.
#[inline]
fn find_arena(ptr: *const u8) -> Option<&'static Arena> {
    // An arena of before a fork belongs to the parent.
    if let Ok((known, Some(arena))) = LAST.try_with(Cell::get) {
        if arena.contains(ptr as usize) && known == forks() {
            return Some(arena);
        }
    }
    arenas().find_slowly(ptr as usize)
}

/// Unmaps the regions of dead attachments that hold no blocks.
pub(crate) fn release_dead() {
    if let Some(arenas) = ARENAS.made() {
        arenas.release_dead();
    }
}

impl Arenas {
    fn find_slowly(&self, address: usize) -> Option<&'static Arena> {
        let all = self.all.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let after = all.partition_point(|arena| arena.start <= address);
        let arena = *all.get(after.checked_sub(1)?)?;
        drop(all);
        if !arena.contains(address) {
            return None;
        }
        let _ = LAST.try_with(|last| last.set((forks(), Some(arena))));
        Some(arena)
    }

    /// Takes in a new arena.
    pub(crate) fn add(&self, arena: &'static Arena) {
        let mut all = self.all.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The region that was mapped there before is gone.
        all.retain(|known| !known.released.load(Ordering::Acquire));
        let place = all.partition_point(|known| known.start < arena.start);
        all.insert(place, arena);
    }

    /// An arena of this attachment whose thread has ended.
    pub(crate) fn take_over(&self, attachment: &Arc<Attachment>) -> Option<&'static Arena> {
        let all = self.all.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let free = |arena: &&&Arena| {
            Arc::ptr_eq(&arena.attachment, attachment) && !arena.owned.swap(true, Ordering::AcqRel)
        };
        all.iter().find(free).copied()
    }

    /// A block of any arena of this attachment.
    pub(crate) fn malloc(&self, attachment: &Arc<Attachment>, bytes: usize) -> Option<NonNull<u8>> {
        let all = self.all.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let of_it = |arena: &&&Arena| Arc::ptr_eq(&arena.attachment, attachment);
        all.iter().filter(of_it).find_map(|arena| arena.malloc(bytes))
    }

    fn release_dead(&self) {
        let mut all = self.all.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|arena| {
            arena.release_if_dead();
            !arena.released.load(Ordering::Acquire)
        });
    }
}

impl Arena {
    /// A new arena, which the calling thread owns.
    pub(crate) fn new(region: u16, map: Region<Own>, attachment: Arc<Attachment>) -> &'static Self {
        let (start, bytes) = (map.address(0, map.len()).as_ptr() as usize, map.len());
        let pages = bytes / PAGE_BYTES;
        Box::leak(Box::new(Self {
            start,
            bytes,
            region,
            attachment,
            map: Mutex::new(Some(map)),
            states: States::new(bytes),
            heap: Mutex::new(Heap::new(pages as u32)),
            pages: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            owned: AtomicBool::new(true),
            released: AtomicBool::new(false),
        }))
    }

    #[inline]
    fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.bytes && !self.released.load(Ordering::Acquire)
    }

    /// Tells whether its driver is there.
    pub(crate) fn is_alive(&self) -> bool {
        self.attachment.alive()
    }

    /// The owning thread ends.
    pub(crate) fn disown(&self) {
        self.owned.store(false, Ordering::Release);
    }

    /// Allocates a block here.
    #[inline]
    pub(crate) fn malloc(&self, bytes: usize) -> Option<NonNull<u8>> {
        if !self.attachment.alive() {
            return None;
        }
        let offset = lock(&self.heap).malloc(bytes, &self.pages)?;
        self.states.allocate(offset);
        NonNull::new((self.start + offset) as *mut u8)
    }

    /// The block that `offset` lies in, if the page is in use, and where it ends.
    #[inline]
    fn block(&'static self, offset: usize) -> Option<(Block, usize)> {
        let page = heap::Page::load(&self.pages[offset / PAGE_BYTES])?;
        let (start, end) = page.block_around(offset)?;
        Some((Block::new(self, start), end))
    }

    fn release(&self, offset: usize) {
        lock(&self.heap).free(offset, &self.pages);
        if !self.attachment.alive() {
            self.release_if_dead();
        }
    }

    fn release_if_dead(&self) {
        if !self.attachment.alive() && lock(&self.heap).is_empty() {
            self.released.store(true, Ordering::Release);
            *lock(&self.map) = None;
        }
    }
}
