//! Receiving into memory of the program's: one copy out of the receive ring, and the bytes are given
//! back at once. Never waits. Not to be mixed with handouts on one socket.
//!
//! Each byte is read once. On the direct path its sender can change it until it is given back, so what a program has peeked at
//! is kept here, and is what it receives later.
use super::{RecvSide, IDLE_CALLS};
use crate::error::{Error, Result};
use crate::socket::{would_block, Socket};
use libc::iovec;
use rustix::io::Errno;

impl RecvSide {
    /// The producer's value at which something more can be received.
    pub(crate) fn wake_at(&self) -> u64 {
        self.cursor + 1
    }

    /// Keeps the first `len` bytes that are there, at `from`, as they are now.
    fn keep(&mut self, from: *const u8, len: usize) -> Result<()> {
        let more = len.saturating_sub(self.peeked.len());
        self.peeked.try_reserve(more).map_err(|_| {
            Error::new(Errno::NOBUFS, format!("no memory to keep {len} bytes that were peeked at"))
        })?;
        let kept = self.peeked.len();
        // SAFETY: `len` readable bytes, the caller says, and room for those that are new.
        unsafe {
            std::ptr::copy_nonoverlapping(from.wrapping_add(kept), self.peeked.as_mut_ptr().add(kept), more);
            self.peeked.set_len(kept + more);
        }
        Ok(())
    }

    fn forget_kept(&mut self, len: usize) {
        match len {
            0 => {}
            all if all == self.peeked.len() => self.peeked = Vec::new(),
            some => drop(self.peeked.drain(..some)),
        }
    }
}

/// Memory of a program's in pieces, which are filled one after the other.
struct Pieces<'a> {
    pieces: &'a [iovec],
    /// Of the first piece.
    filled: usize,
}

impl Pieces<'_> {
    /// Copies `len` bytes at `from` to where the last call has ended.
    ///
    /// # Safety
    /// `len` readable bytes at `from`, and so much room; each piece is memory that may be written, or null.
    unsafe fn put(&mut self, mut from: *const u8, mut len: usize) {
        while len > 0 {
            let Some((piece, others)) = self.pieces.split_first() else { return };
            let part = len.min(piece.iov_len - self.filled);
            if !piece.iov_base.is_null() {
                // SAFETY: the caller says so.
                unsafe {
                    let to = piece.iov_base.cast::<u8>().add(self.filled);
                    std::ptr::copy_nonoverlapping(from, to, part);
                }
            }
            (from, len) = (from.wrapping_add(part), len - part);
            self.filled += part;
            if self.filled == piece.iov_len {
                (self.pieces, self.filled) = (others, 0);
            }
        }
    }
}

impl Socket {
    /// Copies what has come into `pieces`, in their order; with `peek` it stays to be received. Returns
    /// how many bytes; 0: the stream has ended, or the pieces have no room.
    ///
    /// # Errors
    /// `EAGAIN` if nothing has come; `ENOTCONN`, `ECONNRESET`.
    ///
    /// # Safety
    /// Each piece is memory that may be written, or null: its bytes are thrown away.
    pub unsafe fn recv_copied(&self, pieces: &[iovec], peek: bool) -> Result<usize> {
        self.check_usable()?;
        let max = pieces.iter().map(|piece| piece.iov_len).sum();
        if max == 0 {
            return Ok(0);
        }
        let mut side = self.recv.lock();
        let lowat = std::mem::replace(&mut side.lowat, 1);
        let taken = side.take(max);
        side.lowat = lowat;
        let Some(handout) = taken? else {
            side.idle_calls = side.idle_calls.wrapping_add(1);
            if side.idle_calls % IDLE_CALLS == 0 {
                side.link.attachment.check_alive();
            }
            return Err(would_block());
        };
        let from = handout.ptr.as_ptr().cast_const();
        if peek && side.is_direct() && !side.link.trusts_peer() {
            if let Err(error) = side.keep(from, handout.len) {
                side.cursor -= handout.len as u64;
                return Err(error);
            }
        }
        let kept = side.peeked.len().min(handout.len);
        let mut pieces = Pieces { pieces, filled: 0 };
        // SAFETY: the caller's memory has room for the pieces. The handout is readable; its sender may write it meanwhile,
        // and bytes may be anything.
        unsafe {
            pieces.put(side.peeked.as_ptr(), kept);
            pieces.put(from.wrapping_add(kept), handout.len - kept);
        }
        if peek {
            side.cursor -= handout.len as u64;
        } else if handout.len > 0 {
            side.forget_kept(kept);
            let consumer = side.cursor;
            side.give_back(consumer)?;
        }
        Ok(handout.len)
    }

    /// Whether the peer of a twin is there: it has claimed its end, or something came from it, be it the end.
    pub fn has_heard(&self) -> bool {
        let side = self.recv.lock();
        side.link.is_claimed() || side.link.recv_producer() > 0 || side.link.recv_end() != 0
    }

    /// Bytes that were received so far.
    pub fn position(&self) -> u64 {
        self.recv.lock().cursor
    }

    /// Whether something can be received, or the stream has ended, with all that a peer had sent into its ring before the
    /// driver answered the last question.
    pub fn look_exactly(&self) -> bool {
        let mut side = self.recv.lock();
        let (there, end) = side.poll_and_arm(true);
        there > 0 || end != 0
    }

    /// Bytes that can be received now.
    pub fn received(&self) -> u64 {
        self.recv.lock().poll().0
    }
}
