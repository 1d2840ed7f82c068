//! Memory of the library's own. The program's `malloc` may be what a signal handler has interrupted, and cannot be called
//! again by it; the calls that the library stands in for can. So nothing here comes from there: blocks of powers of two, cut
//! from mappings and kept for good, and mappings of their own for large ones. What carries bytes allocates nothing in steady
//! state, so one lock for each size will do.
//!
//! A program may have used up its address space (`RLIMIT_AS`), and goes on by calls that need no memory of the kernel's. Some address
//! space is kept back for that: what is there already goes on, and nothing new is put on the fabric ([`is_low`]).
use crate::real;
use pd_client::core::{this_thread, Inside};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The smallest block is of 16 bytes.
const FIRST_BITS: u32 = 4;
/// The largest of 32 KiB.
const LAST_BITS: u32 = 15;
const CLASSES: usize = (LAST_BITS - FIRST_BITS + 1) as usize;
/// Blocks are cut from mappings of this size.
const PIECE_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;
/// Kept back; costs memory only once it is used.
const RESERVE_BYTES: usize = 4 << 20;
/// Pieces cut from that: there are as many as sizes of blocks, at least.
const RESERVE_PIECE_BYTES: usize = 64 << 10;

/// Address space that the rings of a connection may take.
const RINGS_BYTES: usize = 24 << 20;

/// Another process may change the limit of the address space: it is asked for again after so many uses.
const LIMIT_USES: u32 = 64;

/// Uses that are left of what is known of the limit.
static LIMIT_USES_LEFT: AtomicU32 = AtomicU32::new(0);
/// The address space is limited.
static LIMITED: AtomicBool = AtomicBool::new(false);

/// Mappings of the process are locked.
static LOCKS: AtomicBool = AtomicBool::new(false);

/// Start and length of the rest of the reserve.
static RESERVE_AT: AtomicUsize = AtomicUsize::new(0);
static RESERVE_LEFT: AtomicUsize = AtomicUsize::new(0);
/// The kernel has refused memory.
static LOW: AtomicBool = AtomicBool::new(false);

#[global_allocator]
static HEAP: Heap = Heap { classes: [const { Class::new() }; CLASSES], forking: AtomicUsize::new(0) };

struct Heap {
    classes: [Class; CLASSES],
    /// The thread that forks has all locks.
    forking: AtomicUsize,
}

/// Blocks of one size.
struct Class {
    locked: AtomicBool,
    blocks: UnsafeCell<Blocks>,
}

struct Blocks {
    /// The last one that was given back; each begins with the address of the one before.
    free: *mut u8,
    /// Start of the memory that has not been cut yet.
    next: usize,
    end: usize,
}

// SAFETY: blocks are reached by who has locked their class.
unsafe impl Sync for Class {}

impl Class {
    const fn new() -> Self {
        let blocks = Blocks { free: ptr::null_mut(), next: 0, end: 0 };
        Self { locked: AtomicBool::new(false), blocks: UnsafeCell::new(blocks) }
    }

    fn lock(&self) {
        while self.locked.swap(true, Ordering::Acquire) {
            if !crate::closed::is_closed() {
                // SAFETY: takes nothing. Whoever has it does not sleep.
                unsafe { real::system_call(libc::SYS_sched_yield, [0; 6]) };
            }
        }
    }

    fn unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }
}

impl Blocks {
    fn take(&mut self, bytes: usize) -> *mut u8 {
        if let Some(block) = NonNull::new(self.free) {
            // SAFETY: a block that is free begins with an address.
            self.free = unsafe { block.cast::<*mut u8>().read() };
            return block.as_ptr();
        }
        if self.end - self.next < bytes {
            let (mut at, mut mapped) = (map(PIECE_BYTES), PIECE_BYTES);
            if at.is_null() {
                (at, mapped) = (from_reserve(RESERVE_PIECE_BYTES), RESERVE_PIECE_BYTES);
            }
            if at.is_null() {
                return at;
            }
            self.end = at as usize + mapped;
            // Blocks are aligned to their size.
            self.next = (at as usize).next_multiple_of(bytes);
        }
        let block = self.next;
        self.next += bytes;
        ptr::with_exposed_provenance_mut(block)
    }

    fn give(&mut self, block: *mut u8) {
        // SAFETY: it is a block of 16 bytes at least, which nobody uses any more.
        unsafe { block.cast::<*mut u8>().write(self.free) };
        self.free = block;
    }
}

fn map(bytes: usize) -> *mut u8 {
    map_for(bytes, libc::PROT_READ | libc::PROT_WRITE)
}

fn map_for(bytes: usize, protection: libc::c_int) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever the kernel likes.
    let at = unsafe {
        real::system_call(libc::SYS_mmap, [0, bytes, protection as usize, flags as usize, usize::MAX, 0])
    };
    if (-4095..0).contains(&at) {
        ptr::null_mut()
    } else {
        ptr::with_exposed_provenance_mut(at as usize)
    }
}

/// Keeps address space back for when there is none.
pub(crate) fn keep_reserve() {
    let at = map(RESERVE_BYTES);
    if !at.is_null() {
        RESERVE_AT.store(at as usize, Ordering::Relaxed);
        RESERVE_LEFT.store(RESERVE_BYTES, Ordering::Release);
    }
}

/// Whole pages of the reserve, which are never given back to it.
#[cold]
fn from_reserve(bytes: usize) -> *mut u8 {
    LOW.store(true, Ordering::Relaxed);
    forget_limit();
    let take = |left: usize| left.checked_sub(bytes);
    match RESERVE_LEFT.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
        // From its end on, so that one number says which are taken.
        Ok(left) => ptr::with_exposed_provenance_mut(RESERVE_AT.load(Ordering::Relaxed) + left - bytes),
        Err(_) => ptr::null_mut(),
    }
}

/// Returns whether the kernel has no memory for the process, as at the last time that it was asked; or, where address space or locked memory is
/// limited, none for the rings of a connection.
pub(crate) fn is_low() -> bool {
    let limited = has_limit();
    if !limited && !LOW.load(Ordering::Relaxed) {
        return false;
    }
    let bytes = if limited { RINGS_BYTES } else { PIECE_BYTES };
    // Memory that is locked is there from the start, unless nobody may use it.
    let at = map_for(bytes, libc::PROT_NONE);
    LOW.store(at.is_null(), Ordering::Relaxed);
    if !at.is_null() {
        // SAFETY: mapped just now.
        unsafe { real::system_call(libc::SYS_munmap, [at as usize, bytes, 0, 0, 0, 0]) };
    }
    at.is_null()
}

/// The limit of the address space may be another from now on.
pub(crate) fn forget_limit() {
    LIMIT_USES_LEFT.store(0, Ordering::Release);
}

fn has_limit() -> bool {
    let use_one = |left: u32| left.checked_sub(1);
    if LIMIT_USES_LEFT.fetch_update(Ordering::Acquire, Ordering::Relaxed, use_one).is_err() {
        // A change of the limit meanwhile discards this.
        LIMIT_USES_LEFT.store(LIMIT_USES, Ordering::Release);
        LIMITED.store(is_limited(), Ordering::Relaxed);
    }
    LIMITED.load(Ordering::Relaxed)
}

/// The process locks what it maps from now on (`MCL_FUTURE`), or does not. That counts against `RLIMIT_MEMLOCK`.
pub(crate) fn locks(future: bool) {
    LOCKS.store(future, Ordering::Relaxed);
    forget_limit();
}

fn is_limited() -> bool {
    if LOCKS.load(Ordering::Relaxed) {
        return true;
    }
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    // SAFETY: room for a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) == 0 && limit.rlim_cur != libc::RLIM_INFINITY }
}

/// The class of a layout; none: it gets a mapping.
fn class_of(layout: Layout) -> Option<(usize, usize)> {
    let bytes = layout.size().max(layout.align()).max(1 << FIRST_BITS).next_power_of_two();
    let bits = bytes.trailing_zeros();
    (bits <= LAST_BITS).then_some(((bits - FIRST_BITS) as usize, bytes))
}

fn mapped_bytes(layout: Layout) -> usize {
    layout.size().next_multiple_of(PAGE_BYTES)
}

impl Heap {
    fn with<T>(&self, class: usize, work: impl FnOnce(&mut Blocks) -> T) -> T {
        let _inside = Inside::enter();
        let class = &self.classes[class];
        let locks = self.forking.load(Ordering::Relaxed) != this_thread();
        if locks {
            class.lock();
        }
        // SAFETY: locked, and handlers wait until it is not.
        let result = work(unsafe { &mut *class.blocks.get() });
        if locks {
            class.unlock();
        }
        result
    }
}

// SAFETY: blocks and mappings are as large and as aligned as the layout says, and nobody else's.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class_of(layout) {
            Some((class, bytes)) => self.with(class, |blocks| blocks.take(bytes)),
            None if layout.align() > PAGE_BYTES => ptr::null_mut(),
            None => match map(mapped_bytes(layout)) {
                at if at.is_null() => from_reserve(mapped_bytes(layout)),
                at => at,
            },
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        match class_of(layout) {
            Some((class, _)) => self.with(class, |blocks| blocks.give(at)),
            None => {
                let arguments = [at as usize, mapped_bytes(layout), 0, 0, 0, 0];
                // SAFETY: a mapping made for this layout.
                unsafe { real::system_call(libc::SYS_munmap, arguments) };
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let at = unsafe { self.alloc(layout) };
        // A mapping is zeroes.
        if !at.is_null() && class_of(layout).is_some() {
            // SAFETY: allocated just now.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the size fits, the caller says.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (class_of(layout), class_of(new)) {
            (Some((before, _)), Some((after, _))) if before == after => return at,
            (None, None) => {
                let bytes = [mapped_bytes(layout), mapped_bytes(new)];
                let arguments = [at as usize, bytes[0], bytes[1], libc::MREMAP_MAYMOVE as usize, 0, 0];
                // SAFETY: a mapping made for the layout.
                let moved = unsafe { real::system_call(libc::SYS_mremap, arguments) };
                if !(-4095..0).contains(&moved) {
                    return ptr::with_exposed_provenance_mut(moved as usize);
                }
            }
            _ => {}
        }
        // SAFETY: the caller's block and layout; the new one is as large as is copied.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                ptr::copy_nonoverlapping(at, to, layout.size().min(size));
                self.dealloc(at, layout);
            }
            to
        }
    }
}

/// From now on forks find no lock taken. What is told of forks later is told while the heap can be used.
pub(crate) fn see_forks() {
    real::at_fork(Some(before_fork), Some(after_fork), Some(after_fork));
}

pub(crate) extern "C" fn before_fork() {
    HEAP.classes.iter().for_each(Class::lock);
    HEAP.forking.store(this_thread(), Ordering::Relaxed);
}

pub(crate) extern "C" fn after_fork() {
    HEAP.forking.store(0, Ordering::Relaxed);
    HEAP.classes.iter().for_each(Class::unlock);
}
