//! Memory to send from: `pd_malloc`, `pd_free`, and finding the block that bytes lie in.
//!
//! Memory comes in send regions. Each thread allocates from arenas of its own, one per region; any
//! thread may free. A block is freed for real when the last of its sends is done.
mod blocks;
mod heap;

pub(crate) use blocks::Block;

use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::forks::forks;
use crate::kept::Kept;
use crate::process::process;
use crate::turn::lock;
use blocks::{Freed, States};
use heap::Heap;
use pd_abi::limits::{MESSAGE_BYTES_MAX, PAGE_BYTES};
use pd_shm::{Own, Region};
use rustix::io::Errno;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Smallest send region asked for: a thread that sends little ties up little.
const REGION_BYTES_MIN: u64 = 256 << 10;
/// Smallest send region for blocks of bulk data, of hugepages where there are some.
const REGION_BYTES_BULK: u64 = 4 << 20;
/// Blocks from here on are bulk data.
const BLOCK_BYTES_BULK: usize = 32 << 10;

/// One send region and what is allocated in it. Leaked; its memory is unmapped once the attachment is
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

/// The arenas of a process.
#[derive(Debug, Default)]
pub(crate) struct Arenas {
    /// Sorted by address.
    all: RwLock<Vec<&'static Arena>>,
}

/// The calling thread's arenas. Given to other threads when this one ends.
#[derive(Default)]
struct ThreadArenas {
    forks: u32,
    arenas: Vec<&'static Arena>,
}

impl Drop for ThreadArenas {
    fn drop(&mut self) {
        for arena in &self.arenas {
            arena.owned.store(false, Ordering::Release);
        }
    }
}

thread_local! {
    static THREAD_ARENAS: Kept<ThreadArenas> = const {
        Kept::new(ThreadArenas { forks: 0, arenas: Vec::new() }, || THREAD_ARENAS.with(Kept::release))
    };
    /// The arena found last.
    static LAST: Cell<(u32, Option<&'static Arena>)> = const { Cell::new((0, None)) };
}

/// Allocates `bytes` bytes of memory that can be sent: aligned to 64 bytes, to a page from a page on.
///
/// # Errors
/// `ENOMEM` with the driver's reason, `EMSGSIZE` above the longest message, `ENETDOWN` without a
/// driver.
pub fn malloc(bytes: usize) -> Result<NonNull<u8>> {
    if bytes as u64 > MESSAGE_BYTES_MAX {
        return Err(Error::new(
            Errno::MSGSIZE,
            format!("{bytes} bytes are more than one block can have ({MESSAGE_BYTES_MAX}); use several"),
        ));
    }
    let bytes = bytes.max(1);
    THREAD_ARENAS
        .try_with(|local| {
            let mut local =
                local.try_borrow_mut().map_err(|_| Error::new(Errno::AGAIN, "called from within itself"))?;
            if local.forks != forks() {
                *local = ThreadArenas { forks: forks(), arenas: Vec::new() };
            }
            malloc_from(&mut local.arenas, bytes)
        })
        .unwrap_or_else(|_| malloc_from(&mut Vec::new(), bytes))
}

fn malloc_from(arenas: &mut Vec<&'static Arena>, bytes: usize) -> Result<NonNull<u8>> {
    if let Some(ptr) = arenas.last().and_then(|arena| arena.malloc(bytes)) {
        return Ok(ptr);
    }
    malloc_slowly(arenas, bytes)
}

#[cold]
fn malloc_slowly(arenas: &mut Vec<&'static Arena>, bytes: usize) -> Result<NonNull<u8>> {
    arenas.retain(|arena| arena.attachment.alive());
    let mut reaped = false;
    loop {
        // Latest first; the one that served goes last, where the quick path looks.
        for place in (0..arenas.len()).rev() {
            if let Some(ptr) = arenas[place].malloc(bytes) {
                let last = arenas.len() - 1;
                arenas.swap(place, last);
                return Ok(ptr);
            }
        }
        if reaped {
            break;
        }
        process().reap_all();
        reaped = true;
    }
    let attachment = process().attachment()?;
    if let Some(arena) = process().arenas.take_over(&attachment) {
        arenas.push(arena);
        if let Some(ptr) = arena.malloc(bytes) {
            return Ok(ptr);
        }
    }
    let smallest =
        if bytes < BLOCK_BYTES_BULK && arenas.is_empty() { REGION_BYTES_MIN } else { REGION_BYTES_BULK };
    let wanted = (bytes.next_multiple_of(PAGE_BYTES) as u64).max(smallest);
    let sent = attachment.send_region(wanted);
    if sent.as_ref().is_err_and(|error| error.errno() == libc::EMFILE) {
        // Another thread's will do, for once.
        if let Some(ptr) = process().arenas.malloc(&attachment, bytes) {
            return Ok(ptr);
        }
    }
    let (region, map) = sent.map_err(|error| match error.errno() {
        libc::ENOMEM => Error::new(Errno::NOMEM, format!("no memory to send from: {}", error.message())),
        _ => error,
    })?;
    let arena = Arena::new(region as u16, map, attachment);
    process().arenas.add(arena);
    arenas.push(arena);
    arena.malloc(bytes).ok_or_else(|| Error::new(Errno::NOMEM, "the driver sent too small a region"))
}

/// Frees what [`malloc`] returned, now or when its sends are done.
///
/// # Errors
/// `EINVAL` if `ptr` is not the start of an allocated block.
pub fn free(ptr: *mut u8) -> Result<()> {
    let invalid = || Error::invalid("the pointer is not one of pd_malloc, or is freed already");
    let arena = process().arenas.find(ptr).ok_or_else(invalid)?;
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
    let arena = process().arenas.find(ptr)?;
    let offset = ptr as usize - arena.start;
    let (block, end) = arena.block(offset)?;
    (len <= end - offset).then_some((block, offset as u64))
}

impl Arenas {
    #[inline]
    fn find(&self, ptr: *const u8) -> Option<&'static Arena> {
        // An arena of before a fork belongs to the parent.
        if let Ok((known, Some(arena))) = LAST.try_with(Cell::get) {
            if arena.contains(ptr as usize) && known == forks() {
                return Some(arena);
            }
        }
        self.find_slowly(ptr as usize)
    }

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

    fn add(&self, arena: &'static Arena) {
        let mut all = self.all.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // The region that was mapped there before is gone.
        all.retain(|known| !known.released.load(Ordering::Acquire));
        let place = all.partition_point(|known| known.start < arena.start);
        all.insert(place, arena);
    }

    /// An arena of this attachment whose thread has ended.
    fn take_over(&self, attachment: &Arc<Attachment>) -> Option<&'static Arena> {
        let all = self.all.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let free = |arena: &&&Arena| {
            Arc::ptr_eq(&arena.attachment, attachment) && !arena.owned.swap(true, Ordering::AcqRel)
        };
        all.iter().find(free).copied()
    }

    /// A block of any arena of this attachment.
    fn malloc(&self, attachment: &Arc<Attachment>, bytes: usize) -> Option<NonNull<u8>> {
        let all = self.all.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let of_it = |arena: &&&Arena| Arc::ptr_eq(&arena.attachment, attachment);
        all.iter().filter(of_it).find_map(|arena| arena.malloc(bytes))
    }

    /// Unmaps the regions of dead attachments that hold no blocks.
    pub(crate) fn release_dead(&self) {
        process().reap_all();
        let mut all = self.all.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|arena| {
            arena.release_if_dead();
            !arena.released.load(Ordering::Acquire)
        });
    }
}

impl Arena {
    fn new(region: u16, map: Region<Own>, attachment: Arc<Attachment>) -> &'static Self {
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

    #[inline]
    fn malloc(&self, bytes: usize) -> Option<NonNull<u8>> {
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
