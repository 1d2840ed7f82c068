//! Receiving into memory of the program's: one copy out of the receive ring, and the bytes are given
//! back at once. Never waits. While bytes are lent, nothing is copied: it would give those back.
//!
//! Each byte is read once. On the direct path its sender can change it until it is given back, so what a program has peeked at
//! is kept here, and is what it receives later.
use super::side::{RecvSide, IDLE_CALLS};
use crate::error::{lent, would_block, Error, Result};
use crate::socket::Socket;
use libc::iovec;
use pd_shm::copy::copy;
use rustix::io::Errno;

impl RecvSide {
    /// The producer's value at which something more can be received.
    pub(crate) fn wake_at(&self) -> u64 {
        self.cursor + 1
    }

    /// Keeps `len` more bytes, at `from`, as they are now.
    ///
    /// # Safety
    /// `len` bytes at `from` may be read.
    unsafe fn keep(&mut self, from: *const u8, len: usize) -> Result<()> {
        self.peeked.try_reserve(len).map_err(|_| {
            Error::new(Errno::NOBUFS, format!("no memory to keep {len} bytes that were peeked at"))
        })?;
        let kept = self.peeked.len();
        // SAFETY: `len` readable bytes, the caller says, and room for them.
        unsafe {
            copy(self.peeked.as_mut_ptr().add(kept), from, len);
            self.peeked.set_len(kept + len);
        }
        Ok(())
    }

    /// Returns whether more bytes are there than those that come next, in a ring of their own.
    pub(crate) fn goes_on_elsewhere(&mut self) -> bool {
        self.link.direct.is_some()
            && !self.is_direct()
            && self.cursor == self.producer
            && self.peer_has_begun()
    }

    /// Copies at most `max` of the bytes that come next, after `looked_at` bytes that are only peeked at. Returns how many,
    /// and whether more are there in another ring.
    ///
    /// # Safety
    /// The pieces have room for as many, in memory that may be written.
    unsafe fn copy_next(
        &mut self,
        pieces: &mut Pieces<'_>,
        max: usize,
        looked_at: usize,
        peek: bool,
    ) -> Result<Option<(usize, bool)>> {
        let lowat = std::mem::replace(&mut self.lowat, 1);
        let taken = self.take(max);
        self.lowat = lowat;
        let Some((start, len)) = taken? else { return Ok(None) };
        let goes_on = self.goes_on_elsewhere();
        let before = if peek { looked_at } else { 0 };
        let mut kept = self.peeked.len().saturating_sub(before).min(len as usize);
        // Bytes that are not kept lie in one ring: a peek beyond its end keeps them.
        let rest = self.handout((start + kept as u64, len - kept as u64));
        let from = rest.ptr.as_ptr().cast_const();
        if peek && (goes_on || self.is_direct() && !self.link.trusts_peer()) {
            // SAFETY: `rest.len` bytes are lent.
            if let Err(error) = unsafe { self.keep(from, rest.len) } {
                self.cursor = start;
                return Err(error);
            }
            kept = len as usize;
        }
        // SAFETY: the caller's memory has room for the pieces. The handout is readable; its sender may write it meanwhile,
        // and bytes may be anything.
        unsafe {
            pieces.put(self.peeked.as_ptr().wrapping_add(before), kept);
            pieces.put(from, len as usize - kept);
        }
        if !peek && len > 0 {
            self.forget_kept(kept);
            let consumer = self.cursor;
            self.give_back(consumer)?;
        }
        Ok(Some((len as usize, goes_on)))
    }

    /// The next `len` bytes were received: as they are, if they were kept.
    pub(crate) fn forget_kept(&mut self, len: usize) {
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
                    copy(to, from, part);
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
    /// `EAGAIN` if nothing has come, also where the pieces have no room; `ENOTCONN`, `ECONNRESET`; `EBUSY` while received bytes
    /// are lent out.
    ///
    /// # Safety
    /// Each piece is memory that may be written, or null: its bytes are thrown away.
    pub unsafe fn recv_copied(&self, pieces: &[iovec], peek: bool) -> Result<usize> {
        self.check_usable()?;
        let max: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let mut side = self.recv.lock();
        if side.cursor != side.consumer {
            return Err(lent());
        }
        let (mut pieces, start, mut done) = (Pieces { pieces, filled: 0 }, side.cursor, 0);
        loop {
            // SAFETY: the caller's promise.
            let part = unsafe { side.copy_next(&mut pieces, max - done, done, peek) };
            let goes_on = match part {
                Ok(Some((part, goes_on))) => {
                    done += part;
                    goes_on
                }
                Ok(None) if done == 0 => {
                    side.idle_calls = side.idle_calls.wrapping_add(1);
                    if side.idle_calls % IDLE_CALLS == 0 {
                        side.link.attachment.check_alive();
                    }
                    return Err(would_block());
                }
                Err(error) if done == 0 => return Err(error),
                Ok(None) | Err(_) => break,
            };
            // Where one ring ends and the next begins is no business of the program's.
            if done == max || !goes_on {
                break;
            }
        }
        if peek {
            side.cursor = start;
        }
        Ok(done)
    }

    /// Returns whether the peer of a twin is there: it has claimed its end, or something came from it, be it the end.
    pub fn has_answer(&self) -> bool {
        let side = self.recv.lock();
        side.link.is_claimed() || side.link.recv_producer() > 0 || side.link.recv_end() != 0
    }

    /// Bytes that were received so far.
    pub fn position(&self) -> u64 {
        self.recv.lock().cursor
    }

    /// Returns whether something can be received, or the stream has ended, with all that a peer had sent into its ring before the
    /// driver answered the last question.
    pub fn look_exactly(&self) -> bool {
        let mut side = self.recv.lock();
        let (there, end) = side.poll_and_arm(true);
        there > 0 || end != 0
    }

    /// Tells whether the stream has ended in order.
    pub fn has_ended(&self) -> bool {
        self.recv.lock().link.recv_end() == pd_abi::layout::ENDED
    }

    /// Tells whether the stream has ended by the peer, or failed.
    pub fn peer_has_ended(&self) -> bool {
        self.recv.lock().link.recv_end() != 0
    }

    /// Returns whether `there` bytes are left of a stream that goes on in the kernel.
    pub fn ends_elsewhere(&self, there: u64) -> bool {
        let mut side = self.recv.lock();
        // In this order: what is published before the end is seen with it.
        side.link.recv_end() == pd_abi::layout::ELSEWHERE && side.there().ok() == Some(there)
    }

    /// Bytes that can be received now.
    pub fn received(&self) -> u64 {
        self.recv.lock().there().unwrap_or(0)
    }
}
