//! Frames that are lent several at a time, for programs that keep them for a while, as by the C API.
//!
//! [`Pipe::lend`] lends the next frame, [`Pipe::take_back`] ends the oldest loan. While frames are lent, [`Pipe::frames`] fails with
//! `EBUSY`.
use super::Pipe;
use crate::shape::{Direction, Unit};
use pd_abi::pipe::{entry_offset, entry_parts, frame_stride, DROP, FRAME_BYTES_MIN};
use rustix::io::{Errno, Result};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

impl Pipe {
    /// Returns the length of the frame at `position`, as the agent has written it.
    fn length_at(&self, position: u64) -> u16 {
        let at = entry_offset(position, self.shape.ring_bytes());
        entry_parts(self.memory.status.load_u32(at, Ordering::Relaxed)).0
    }

    /// Lends the next frame: returns the address of its first byte, and its length. The bytes stay in place until
    /// [`Self::take_back`] and while the pipe lives. In a forwarding pipe they may be written.
    ///
    /// # Errors
    /// `EAGAIN` if there is none; the pipe's error once it has ended and all was lent; `EOPNOTSUPP` on another kind of pipe.
    pub fn lend(&mut self) -> Result<(NonNull<u8>, u16)> {
        if !self.shape.receives() || self.shape.unit() != Unit::Frames {
            return Err(Errno::OPNOTSUPP);
        }
        self.stay();
        self.unread()?;
        let position = self.reader.read().wrapping_add(self.lent);
        let length = self.length_at(position);
        self.lent += frame_stride(length);
        Ok((self.memory.ring.address(self.shape.offset(position), length.into()), length))
    }

    /// Ends the oldest loan: of a forwarding pipe the first `kept` bytes of the frame go to `verdict`. No frame gets longer, or shorter
    /// than an Ethernet header. Space is given back in pieces; [`Self::flush_back`] gives back all. Returns the length that was kept.
    ///
    /// # Errors
    /// `EINVAL` if no frame is lent.
    pub fn take_back(&mut self, kept: usize, verdict: u16) -> Result<u16> {
        if self.lent == 0 {
            return Err(Errno::INVAL);
        }
        let position = self.reader.read();
        let length = self.length_at(position);
        let kept = (kept.min(length.into()) as u16).max(FRAME_BYTES_MIN.min(length));
        if self.shape.direction() == Direction::Forward {
            let rest = frame_stride(length) - frame_stride(kept);
            self.write_entry(position, kept, verdict);
            if rest > 0 {
                self.write_entry(position.wrapping_add(frame_stride(kept)), rest as u16, DROP);
            }
        }
        self.reader.consume(frame_stride(length));
        self.lent -= frame_stride(length);
        if self.reader.due() {
            self.give_back();
        }
        Ok(kept)
    }

    /// Gives back all frames whose loans have ended.
    pub fn flush_back(&mut self) {
        self.give_back();
    }

    /// Returns the bytes of the ring that lent frames take.
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// Returns the announced bytes that are neither read nor lent, without another look at the agent's word.
    pub fn waiting(&self) -> u64 {
        self.reader.unread() - self.lent
    }
}
