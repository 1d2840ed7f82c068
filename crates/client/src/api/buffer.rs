use crate::arena;
use crate::arena::Block;
use crate::error::Result;
use crate::process::process;
use crate::socket::Socket;
use crate::turn::lock;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Memory that can be sent from, shared with the driver. While a send of any part of it is in flight
/// it cannot be written. Dropping it frees it, at once or when its sends are done.
#[derive(Debug)]
pub struct SendBuffer {
    ptr: NonNull<u8>,
    len: usize,
    last: Mutex<Weak<Socket>>,
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
        let ptr = arena::malloc(len)?;
        // SAFETY: the block has at least `len` bytes and is ours alone.
        unsafe { ptr.as_ptr().write_bytes(0, len) };
        Ok(Self { ptr, len, last: Mutex::default() })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
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

    /// Remembers where it was sent, to know where to look whether the send is done.
    pub(crate) fn sent_on(&self, socket: &Arc<Socket>) {
        let mut last = lock(&self.last);
        if last.as_ptr() != Arc::as_ptr(socket) {
            *last = Arc::downgrade(socket);
        }
    }

    /// The block, while a send of it is in flight.
    fn flying(&self) -> Option<Block> {
        let (block, _) = arena::find(self.ptr.as_ptr(), 1)?;
        if !block.in_flight() || lock(&self.last).upgrade().is_some_and(|socket| socket.reap_for(&block)) {
            return None;
        }
        process().reap_all();
        block.in_flight().then_some(block)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: initialised and borrowed exclusively; the callers know that no send is in flight, so
        // that the driver does not read it either.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, to be written; none while a send is in flight.
    pub fn try_mut(&mut self) -> Option<&mut [u8]> {
        if self.flying().is_some() {
            return None;
        }
        Some(self.bytes_mut())
    }

    /// The bytes, to be written; waits until no send is in flight.
    ///
    /// # Errors
    /// `EBADF` if the stream was closed meanwhile by another thread.
    pub fn wait_mut(&mut self) -> Result<&mut [u8]> {
        while let Some(block) = self.flying() {
            let last = lock(&self.last).upgrade();
            match last.filter(|socket| socket.check_usable().is_ok()) {
                Some(socket) => socket.wait_for(&block)?,
                None => std::thread::sleep(Duration::from_micros(100)),
            }
            if block.in_flight() {
                // In flight on another stream than the last, perhaps a closed one.
                std::thread::sleep(Duration::from_micros(50));
                process().check_driver();
            }
        }
        Ok(self.bytes_mut())
    }
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        // It fails only in a forked child, where there is nothing to free.
        let _ = arena::free(self.ptr.as_ptr());
    }
}
