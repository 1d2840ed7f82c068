//! Receiving into memory of the program's: one copy out of the receive ring, and the bytes are given
//! back at once. Never waits. Not to be mixed with handouts on one socket.
use super::{RecvSide, IDLE_CALLS};
use crate::error::Result;
use crate::socket::{would_block, Socket};
use libc::iovec;

impl RecvSide {
    /// The producer's value at which something more can be received.
    pub(crate) fn wake_at(&self) -> u64 {
        self.cursor + 1
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
        let mut from = handout.ptr.as_ptr().cast_const();
        let mut left = handout.len;
        for piece in pieces {
            let part = left.min(piece.iov_len);
            if piece.iov_base.is_null() {
                // To be thrown away.
                from = from.wrapping_add(part);
                left -= part;
                continue;
            }
            // SAFETY: the caller's memory has room for the piece; the handout is readable for `left`
            // bytes more. Nobody writes it, or at worst a broken driver, and bytes may be anything.
            unsafe {
                std::ptr::copy_nonoverlapping(from, piece.iov_base.cast(), part);
                from = from.add(part);
            }
            left -= part;
            if left == 0 {
                break;
            }
        }
        if peek {
            side.cursor -= handout.len as u64;
        } else if handout.len > 0 {
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

    /// Bytes that can be received now.
    pub fn received(&self) -> u64 {
        self.recv.lock().poll().0
    }
}
