//! Frames that are lent several at a time, for programs that keep them for a while, as by the C API.
//!
//! [`Pipe::lend`] lends the next frame, [`Pipe::take_back`] ends the oldest loan. While frames are lent, [`Pipe::frames`] fails with
//! `EBUSY`.
//!
//! Loans end in the order in which they began, also across a change of the path of a link: those of the own ring, then those of the
//! sender's ring, then those of the own ring again. The next direct path begins when no frame of the last one is lent.
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
    /// [`Self::take_back`] and while the pipe lives. In a forwarding pipe they may be written. On the direct path of a link the sender
    /// may change them: make no reference of the address, read each byte once, and check what was read.
    ///
    /// # Errors
    /// `EAGAIN` if there is none; the pipe's error once it has ended and all was lent; `EOPNOTSUPP` on another kind of pipe.
    pub fn lend(&mut self) -> Result<(NonNull<u8>, u16)> {
        if !self.shape.receives() || self.shape.unit() != Unit::Frames {
            return Err(Errno::OPNOTSUPP);
        }
        self.unread()?;
        if self.direct.is_some() {
            return self.lend_direct().ok_or(Errno::AGAIN);
        }
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
        let cut = |length: u16| (kept.min(length.into()) as u16).max(FRAME_BYTES_MIN.min(length));
        if self.lent_before == 0 {
            if let Some(length) = self.take_back_direct() {
                return Ok(cut(length));
            }
        }
        if self.lent == 0 {
            return Err(Errno::INVAL);
        }
        let position = self.reader.read();
        let length = self.length_at(position);
        let kept = cut(length);
        if self.shape.direction() == Direction::Forward {
            let rest = frame_stride(length) - frame_stride(kept);
            self.write_entry(position, kept, verdict);
            if rest > 0 {
                self.write_entry(position.wrapping_add(frame_stride(kept)), rest as u16, DROP);
            }
        }
        self.reader.consume(frame_stride(length));
        self.lent -= frame_stride(length);
        self.lent_before = self.lent_before.saturating_sub(frame_stride(length));
        if self.reader.due() {
            self.give_back();
        }
        Ok(kept)
    }

    /// Gives back all frames whose loans have ended.
    pub fn flush_back(&mut self) {
        self.give_back();
    }

    /// Returns the bytes that lent frames take, in the own ring and on the direct path in the sender's.
    pub fn lent(&self) -> u64 {
        self.lent + self.lent_direct()
    }

    /// Returns the known bytes that are neither read nor lent, without another look at the words of the agent or of the sender.
    pub fn waiting(&self) -> u64 {
        if self.shape.unit() == Unit::Bytes {
            return self.known_stream();
        }
        self.waiting_direct().unwrap_or(self.reader.unread() - self.lent)
    }

    /// Returns whether frames that are unread or lent leave too little room in the ring that the next one would come to.
    pub(super) fn is_full_of_frames(&self) -> bool {
        let is_own = self.reader.unread() + self.shape.headroom() > self.shape.ring_bytes();
        self.is_peer_full() || is_own && self.direct.is_none()
    }

    /// Returns whether lent frames leave less than [`crate::Shape::headroom`] of a ring, the sender's on the direct path: a long frame might not
    /// come before some are given back, so that waits are refused.
    pub fn lends_too_much(&self) -> bool {
        let is_own = self.lent + self.shape.headroom() > self.shape.ring_bytes();
        self.is_peer_lent() || is_own && self.direct.is_none()
    }
}
