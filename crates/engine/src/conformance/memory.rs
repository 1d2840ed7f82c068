use pd_abi::{Command, CommandType};
use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};

/// Memory that an engine may read and write: reached through a raw pointer only, never by reference.
pub struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: it owns its allocation and has no interior that another thread could share.
unsafe impl Send for Memory {}

impl Memory {
    /// `bytes` of a pattern that differs between neighbouring lines, starting on a page.
    pub fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).expect("a size that fits");
        assert!(bytes > 0);
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        let mut memory = Self { start, layout };
        memory.fill(0, &(0..bytes).map(pattern).collect::<Vec<_>>());
        memory
    }

    /// Address of byte `offset`, as commands carry it.
    pub fn addr(&self, offset: usize) -> u64 {
        assert!(offset < self.layout.size());
        self.start.expose_provenance() as u64 + offset as u64
    }

    /// Overwrites from `offset`. Nothing that names these bytes may be in flight.
    pub fn fill(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.layout.size());
        // SAFETY: in bounds by the line above; the slice is not part of this allocation, to which no
        // reference is ever made.
        unsafe { self.start.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// A copy of `len` bytes from `offset`. Nothing that writes them may be in flight.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.layout.size());
        let mut bytes = vec![0; len];
        // SAFETY: in bounds by the line above; the vector is new.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    /// The command that copies `len` bytes from offset `src` to offset `dst` of this memory.
    pub fn copy(&self, src: usize, dst: usize, len: usize) -> Command {
        assert!(src + len <= self.layout.size() && dst + len <= self.layout.size());
        Command {
            request_type: CommandType::GeneralSend as u8,
            data_len: len as u32,
            src_addr: self.addr(src),
            dst_addr: self.addr(dst),
            ..Default::default()
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and dropped once.
        unsafe { dealloc(self.start, self.layout) }
    }
}

/// The byte that fresh memory has at `offset`.
pub fn pattern(offset: usize) -> u8 {
    (offset ^ (offset >> 6) ^ (offset >> 14)) as u8
}
