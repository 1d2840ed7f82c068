//! The frames of a pipe, lent one at a time.
use super::Pipe;
use crate::shape::Direction;
use pd_abi::limits::LINE_BYTES;
use pd_abi::pipe::{entry_offset, entry_parts, frame_stride, BACK, DROP, FRAME_BYTES_MIN};
use pd_shm::copy::copy;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// The frames announced when this was made. Each is lent until the next call. Space is given back in pieces meanwhile, and all of it on
/// drop. Frames that were not lent stay unread.
#[derive(Debug)]
pub struct Frames<'a> {
    pipe: &'a mut Pipe,
    /// Length of the frame that is lent, its length after a cut, and its verdict.
    lent: Option<(u16, u16, u16)>,
}

/// A frame in the ring.
///
/// On the direct path of a link the ring is another program's, which may change the bytes at any moment, though it should not. No reference
/// leads there: [`Self::bytes`] copies once, [`Self::copy_to`] and [`Self::as_ptr`] do without.
#[derive(Debug)]
pub struct Frame<'a> {
    pipe: &'a mut Pipe,
    lent: &'a mut Option<(u16, u16, u16)>,
    length: u16,
}

impl<'a> Frames<'a> {
    pub(super) fn new(pipe: &'a mut Pipe) -> Self {
        Self { pipe, lent: None }
    }

    /// Returns the next frame.
    #[allow(clippy::should_implement_trait)] // lends
    pub fn next(&mut self) -> Option<Frame<'_>> {
        self.finish();
        if self.pipe.direct.is_some() {
            let length = self.pipe.next_direct()?;
            self.lent = Some((length, length, BACK));
            return Some(Frame { pipe: self.pipe, lent: &mut self.lent, length });
        }
        if self.pipe.reader.unread() == 0 {
            return None;
        }
        let at = entry_offset(self.pipe.reader.read(), self.pipe.shape.ring_bytes());
        let (length, _) = entry_parts(self.pipe.memory.status.load_u32(at, Ordering::Relaxed));
        self.lent = Some((length, length, BACK));
        Some(Frame { pipe: self.pipe, lent: &mut self.lent, length })
    }

    /// Passes the frame on, or gives it back.
    #[inline]
    fn finish(&mut self) {
        let Some((length, kept, verdict)) = self.lent.take() else { return };
        let pipe = &mut *self.pipe;
        if pipe.direct.is_some() {
            pipe.take_direct(length);
            return;
        }
        if pipe.shape.direction() == Direction::Forward {
            let (at, rest) = (pipe.reader.read(), frame_stride(length) - frame_stride(kept));
            pipe.write_entry(at, kept, verdict);
            if rest > 0 {
                pipe.write_entry(at + frame_stride(kept), rest as u16, DROP);
            }
        }
        pipe.reader.consume(frame_stride(length));
        if pipe.reader.due() {
            pipe.give_back();
        }
    }
}

impl Drop for Frames<'_> {
    fn drop(&mut self) {
        self.finish();
        self.pipe.give_back();
    }
}

impl Frame<'_> {
    /// Returns the frame's length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        self.length.into()
    }

    /// Returns the frame's bytes: those in the ring, which the agent alone writes, or on the direct path a copy made by the first call.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.pipe.direct {
            Some(peer) => peer.bytes(self.length.into()),
            None => self.pipe.bytes(self.length.into()),
        }
    }

    /// Copies the first bytes of the frame, as many as `to` has room for. Returns their number.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let len = self.length().min(to.len());
        // SAFETY: `len` bytes of a frame in a mapping of this process, and of a private buffer.
        unsafe { copy(to.as_mut_ptr(), self.address().as_ptr(), len) };
        len
    }

    /// Returns the address of the frame's first byte in the ring, valid while the frame is lent. On the direct path the bytes may change
    /// meanwhile: make no reference of it, read each byte once, and check what was read.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.address().as_ptr()
    }

    #[inline]
    fn address(&self) -> NonNull<u8> {
        match &self.pipe.direct {
            Some(peer) => peer.address(self.length.into()),
            None => self.pipe.address(self.length.into()),
        }
    }

    /// Returns the frame's bytes, to be changed in place; none unless the pipe forwards.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.pipe.shape.direction() != Direction::Forward {
            return None;
        }
        Some(self.pipe.bytes_mut(self.pipe.reader.read(), self.length.into()))
    }

    /// Sets the destination of a forwarded frame: a port, by its place among those that the pipe was opened with, [`BACK`] or [`DROP`].
    /// The default is [`BACK`].
    #[inline]
    pub fn verdict(&mut self, to: u16) {
        if let Some(lent) = self.lent {
            lent.2 = to;
        }
    }

    /// Forwards only the first `length` bytes. No frame gets longer than it was, or shorter than an Ethernet header.
    pub fn truncate(&mut self, length: usize) {
        if let Some(lent) = self.lent {
            lent.1 = (length.min(lent.0.into()) as u16).max(FRAME_BYTES_MIN.min(lent.0));
        }
    }
}

const _: () = assert!(LINE_BYTES >= FRAME_BYTES_MIN as usize, "the rest of a frame is a frame");
