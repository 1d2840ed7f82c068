//! Memory of the library's own. The program's `malloc` may be what a signal handler has interrupted, and cannot be called
//! again by it; the calls that the library stands in for can. So nothing here comes from there: blocks of powers of two, cut
//! from mappings and kept for good, and mappings of their own for large ones. What carries bytes allocates nothing in steady
//! state, so one lock for each size will do.
use crate::real;
use pd_client::core::{this_thread, Inside};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The smallest block is of 16 bytes.
const FIRST_BITS: u32 = 4;
/// The largest of 32 KiB.
const LAST_BITS: u32 = 15;
const CLASSES: usize = (LAST_BITS - FIRST_BITS + 1) as usize;
/// Blocks are cut from mappings of this size.
const PIECE_BYTES: usize = 256 << 10;
const PAGE_BYTES: usize = 4096;

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
    /// What has not been cut yet.
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
            // SAFETY: takes nothing. Whoever has it does not sleep.
            unsafe { real::system_call(libc::SYS_sched_yield, [0; 6]) };
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
            let at = map(PIECE_BYTES);
            if at.is_null() {
                return at;
            }
            self.end = at as usize + PIECE_BYTES;
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
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
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
            None => map(mapped_bytes(layout)),
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
                return match moved {
                    -4095..0 => ptr::null_mut(),
                    moved => ptr::with_exposed_provenance_mut(moved as usize),
                };
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
    // SAFETY: functions that live as long as the program.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
}

extern "C" fn before_fork() {
    HEAP.classes.iter().for_each(Class::lock);
    HEAP.forking.store(this_thread(), Ordering::Relaxed);
}

extern "C" fn after_fork() {
    HEAP.forking.store(0, Ordering::Relaxed);
    HEAP.classes.iter().for_each(Class::unlock);
}
