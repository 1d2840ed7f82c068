//! Zeroed, prefaulted memory in hugepages where the machine gives them, as the driver's regions are.

use rustix::mm::{madvise, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};
use std::ptr::null_mut;

/// A private mapping, unmapped when dropped.
pub struct Memory {
    start: *mut u8,
    bytes: usize,
}

impl Memory {
    /// Maps and touches `bytes`.
    pub fn new(bytes: usize) -> Self {
        // SAFETY: a fresh private mapping at an address of the kernel's choice touches nothing else; the
        // advice changes no contents; writing is within the mapping.
        unsafe {
            let start =
                mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
                    .expect("memory for the measurement");
            let _ = madvise(start, bytes, Advice::LinuxHugepage);
            start.write_bytes(1, bytes);
            Self { start: start.cast(), bytes }
        }
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the address of byte `offset`.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes);
        self.start.wrapping_add(offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours and nothing uses it any more.
        let _ = unsafe { munmap(self.start.cast(), self.bytes) };
    }
}
