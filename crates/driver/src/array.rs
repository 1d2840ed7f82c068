//! Words in memory that several threads share: an array shared with the kernel's programs, or private to this process.
use rustix::fd::AsFd;
use rustix::io::Result;
use rustix::mm::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// An array of 64-bit words.
#[derive(Debug)]
pub struct Array {
    /// The memory in use: the first of `mapped`, or after [`Self::join`] the last.
    used: AtomicPtr<AtomicU64>,
    mapped: Vec<NonNull<AtomicU64>>,
    words: usize,
}

// SAFETY: atomic words, mapped until it is dropped.
unsafe impl Send for Array {}
// SAFETY: see above.
unsafe impl Sync for Array {}

fn bytes(words: usize) -> usize {
    (words * 8).next_multiple_of(rustix::param::page_size())
}

impl Array {
    /// Maps the array of a BPF map that the kernel allows to be mapped.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub fn of_map(map: impl AsFd, words: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes(words), protection, MapFlags::SHARED, map, 0)? };
        Self::at(base.cast(), words)
    }

    /// Makes an array that no BPF program has.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub fn own(words: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes(words), protection, MapFlags::PRIVATE)? };
        Self::at(base.cast(), words)
    }

    /// Makes an array of its own that is that of the map after [`Self::join`].
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub fn before_map(map: impl AsFd, words: usize) -> Result<Self> {
        let (mut own, mut later) = (Self::own(words)?, Self::of_map(map, words)?);
        own.mapped.append(&mut later.mapped);
        Ok(own)
    }

    /// Goes on with the words of the map, and forgets those so far.
    pub fn join(&self) {
        if let Some(last) = self.mapped.last() {
            self.used.store(last.as_ptr(), Release);
        }
    }

    fn at(base: *mut AtomicU64, words: usize) -> Result<Self> {
        let base = NonNull::new(base).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { used: AtomicPtr::new(base.as_ptr()), mapped: vec![base], words })
    }

    /// Returns the word at `index`.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "{index}");
        // SAFETY: inside a mapping, which lives as long as `self`; the kernel's programs use it atomically, too.
        unsafe { &*self.used.load(Acquire).add(index) }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        for base in &self.mapped {
            // SAFETY: mapped with this length; no reference outlives `self`.
            let _ = unsafe { munmap(base.as_ptr().cast(), bytes(self.words)) };
        }
    }
}
