use crate::arena;
use crate::error::Result;
use crate::malloc::malloc;
use crate::send::{has_landed, wait_for_landing};
use crate::turn::Deadline;
use std::ptr::NonNull;

/// Memory that can be sent from, shared with the driver. While a send of any part of it is in flight
/// it cannot be written. Dropping it frees it, at once or when its sends are done.
#[derive(Debug)]
pub struct SendBuffer {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory, owned; any thread may free it.
unsafe impl Send for SendBuffer {}
// SAFETY: shared references allow reading and sending only, neither of which writes.
unsafe impl Sync for SendBuffer {}

impl SendBuffer {
    /// Allocates `len` bytes, zeroed.
    ///
    /// # Errors
    /// `ENOMEM`, `EMSGSIZE`, `ENETDOWN`.
    pub fn new(len: usize) -> Result<Self> {
        let ptr = malloc(len)?;
        // SAFETY: the block has at least `len` bytes and is ours alone.
        unsafe { ptr.as_ptr().write_bytes(0, len) };
        Ok(Self { ptr, len })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: initialised, ours, and written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: initialised and borrowed exclusively; the callers know that no send is in flight, so
        // that the driver does not read it either.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to be written; none while a send is in flight.
    pub fn try_mut(&mut self) -> Option<&mut [u8]> {
        if arena::find(self.ptr.as_ptr(), 1).is_some_and(|(block, _)| !has_landed(&block)) {
            return None;
        }
        Some(self.bytes_mut())
    }

    /// The bytes, to be written; waits until no send is in flight.
    ///
    /// # Errors
    /// `EPIPE`, `ECONNRESET` if the stream has ended and the driver is not done with the bytes: drop the buffer.
    pub fn wait_mut(&mut self) -> Result<&mut [u8]> {
        if let Some((block, _)) = arena::find(self.ptr.as_ptr(), 1) {
            wait_for_landing(&block, &Deadline::after(None))?;
        }
        Ok(self.bytes_mut())
    }
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        // Freeing fails only in a forked child, which has nothing to free.
        let _ = arena::free(self.ptr.as_ptr());
    }
}
