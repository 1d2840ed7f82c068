//! Receiving: a pointer into the receive ring, and giving the bytes back.
pub(crate) mod copied;
pub(crate) mod ring;
pub(crate) mod side;

use crate::error::{would_block, Error, Result};
use crate::socket::Socket;
use crate::turn::Deadline;
use side::{Handout, IDLE_CALLS};
use std::ptr::NonNull;

impl Socket {
    /// Hands out at most `max` bytes of the receive ring; they stay as they are until they are given
    /// back. Waits for the first unless the socket is non-blocking. Length 0: the stream has ended.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOTCONN`, `ECONNRESET`; `ENOBUFS` if the ring is full of bytes handed out.
    pub fn recv(&self, max: usize) -> Result<Handout> {
        self.check_usable()?;
        let mut side = self.recv.lock();
        if max == 0 {
            return Ok(Handout { ptr: NonNull::dangling(), len: 0, start: side.cursor });
        }
        let mut deadline = None;
        loop {
            if let Some(taken) = side.take(max)? {
                return Ok(side.lend(taken));
            }
            if self.is_nonblocking() {
                side.idle_calls = side.idle_calls.wrapping_add(1);
                let looks = side.idle_calls % IDLE_CALLS == 0 && side.kernel.is_none();
                if looks && !side.link.attachment.check_alive() {
                    continue;
                }
                return Err(would_block());
            }
            let wake_at = side.cursor + side.lowat;
            if side.spin_locked(wake_at) {
                continue;
            }
            let deadline = *deadline.get_or_insert_with(|| Deadline::after(side.timeout));
            let Some(timeout) = deadline.next_sleep() else { return Err(would_block()) };
            side = self.sleep_for_recv(side, wake_at, timeout, None);
            self.check_usable()?;
        }
    }

    /// Gives back the first `len` bytes handed out and not yet given back.
    ///
    /// # Errors
    /// `EINVAL` if fewer were handed out.
    pub fn recv_done(&self, len: usize) -> Result<()> {
        self.check_usable()?;
        let mut side = self.recv.lock();
        let out = side.cursor - side.consumer;
        if len as u64 > out || !side.early.is_empty() {
            return Err(Error::invalid(format!(
                "{len} bytes cannot be given back: {out} are handed out and not yet given back"
            )));
        }
        let consumer = side.consumer + len as u64;
        side.give_back(consumer)
    }

    /// Gives back `len` bytes from `start` on, in any order of handouts.
    pub(crate) fn give_back(&self, start: u64, len: u64) {
        if len == 0 || self.check_usable().is_err() {
            return;
        }
        let mut side = self.recv.lock();
        let mut end = start + len;
        if start != side.consumer {
            side.early.push((start, end));
            return;
        }
        while let Some(place) = side.early.iter().position(|early| early.0 == end) {
            end = side.early.swap_remove(place).1;
        }
        // Giving back fails only with the connection; the next call reports that.
        let _ = side.give_back(end);
    }

    /// Fewest bytes that a receive waits for and that make the socket readable.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_recv_lowat(&self, bytes: u64) -> Result<()> {
        self.check_usable()?;
        let ring = self.ring_bytes().1;
        self.recv.lock().lowat = bytes.clamp(1, ring / 2);
        Ok(())
    }

    /// See [`Self::set_recv_lowat`].
    pub fn recv_lowat(&self) -> u64 {
        self.recv.lock().lowat
    }
}
