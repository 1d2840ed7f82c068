//! Sending: spans of send regions, without a copy. The span belongs to the driver until the socket's
//! `send_consumer` has counted it.
pub(crate) mod copied;
pub(crate) mod file;
mod placed;
pub(crate) mod side;

use crate::arena::{self, Block};
use crate::error::{moved, would_block, Error, Result};
use crate::link::MOVED;
use crate::lock::Guard;
use crate::process;
use crate::socket::Socket;
use crate::sockets;
use crate::turn::{Deadline, SLEEP_MAX};
use libc::iovec;
use pd_abi::layout::ELSEWHERE;
use pd_abi::limits::MESSAGE_BYTES_MAX;
use rustix::io::Errno;
use side::{foreign, partial, SendSide};
use std::time::Duration;

impl Socket {
    /// Returns whether the peer receives in the kernel what is sent from now on. Asked after a send, it tells of all of that.
    #[inline]
    pub fn sends_elsewhere(&self) -> bool {
        // SYNC POINT: elsewhere (what was sent is published; the peer's driver stores the word, then looks for it)
        self.send.lock().link.send_end() == ELSEWHERE
    }

    /// Checks that no other process has taken the socket over. Calls that move no bytes do not find that out by themselves.
    ///
    /// # Errors
    /// `ESTALE` if one has.
    pub fn check_present(&self) -> Result<()> {
        match self.send.lock().link.send_end() == MOVED {
            true => Err(moved()),
            false => Ok(()),
        }
    }

    /// Makes each send look whether the peer is there. TCP learns later that it is not.
    pub fn look_always(&self) {
        self.send.lock().looks = true;
    }

    /// Other processes may take the socket over while it sends, or has bytes to receive.
    pub(crate) fn expect_moves(&self) {
        self.send.lock().may_move = true;
        self.recv.lock().may_move = true;
    }

    /// Checks that something can be sent.
    ///
    /// # Errors
    /// `EPIPE`, `ECONNRESET`, `ENOTCONN`.
    pub fn check_sendable(&self) -> Result<()> {
        self.check_usable()?;
        if let Some(carrier) = self.kernel.get() {
            return self.check_carrier_sendable(carrier);
        }
        let mut side = self.send.lock();
        side.reap();
        side.end()
    }

    /// Returns the number of sends on the present path, and the bytes sent there and received.
    pub fn carried(&self) -> (u64, u64) {
        let (sends, bytes) = self.send.lock().carried();
        (sends, bytes + self.recv.lock().cursor)
    }

    /// Sends `len` bytes at `ptr`, which lie in one block of `pd_malloc`'s. They must not be written
    /// until the send is done (see [`Self::buf_refresh`]). A blocking socket sends all; a
    /// non-blocking one sends what there is room for.
    ///
    /// # Errors
    /// `EFAULT` if the bytes are not in one block of this attachment, `EPIPE`, `ECONNRESET`,
    /// `ENOTCONN`, `EAGAIN`.
    #[allow(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "what does not lie in one allocated block is refused before it is read"
    )]
    pub fn send(&self, ptr: *const u8, len: usize) -> Result<usize> {
        self.check_usable()?;
        if len == 0 {
            return Ok(0);
        }
        let (block, mut offset) = arena::find(ptr, len).ok_or_else(foreign)?;
        if let Some(carrier) = self.kernel.get() {
            // The kernel copies them: they may be written again at once.
            let piece = iovec { iov_base: ptr.cast_mut().cast(), iov_len: len };
            // SAFETY: the bytes lie in one allocated block, which is looked up above.
            return unsafe { self.send_by_kernel(carrier, &[piece]) };
        }
        let mut side = self.send.lock();
        if side.adoptable {
            drop(side);
            self.adopt()?;
            side = self.send.lock();
        }
        if !block.is_of(&side.link.attachment) {
            return Err(stale());
        }
        let mut deadline = None;
        if side.link.direct.is_some() {
            side.leave_if_asked();
            if side.is_due() {
                side = self.turn_direct(side, &mut deadline)?;
            }
            if side.out.has_ring() {
                // SAFETY: the bytes lie in one allocated block, which is looked up above.
                return unsafe { self.send_direct(side, ptr, len) };
            }
        }
        let mut left = len as u64;
        let mut look = side.wants_look();
        loop {
            if look || side.room() < left {
                side.reap();
                look = true;
            }
            let part = left.min(side.room()).min((side.ring_bytes / 2).min(MESSAGE_BYTES_MAX));
            // A blocking send waits until its whole part fits: splinters cost more than the wait.
            let part_wanted = left.min(side.ring_bytes / 2);
            let step = match if look { side.end() } else { side.check_open() } {
                Err(error) => Err(error),
                Ok(()) if part == 0 || (part < part_wanted && !self.is_nonblocking()) => Ok(false),
                Ok(()) => side.post(block, offset, part).map(|()| true),
            };
            match step {
                Ok(true) => {
                    left -= part;
                    offset += part;
                    if left == 0 {
                        return Ok(len);
                    }
                    continue;
                }
                Ok(false) => {}
                Err(error) => return partial(len, left, error),
            }
            side = match self.await_room(side, &mut deadline) {
                Ok(side) => side,
                Err(error) => return partial(len, left, error),
            };
        }
    }

    /// Moves those of the buffers that may be written again to the front, in their order, and returns
    /// how many they are. A blocking socket waits until all may.
    ///
    /// # Errors
    /// `EAGAIN` if none may (non-blocking), `EFAULT` if one is not of `pd_malloc`.
    pub fn buf_refresh(&self, buffers: &mut [*mut u8]) -> Result<usize> {
        self.check_usable()?;
        self.send.lock().reap();
        let mut free = 0;
        for &ptr in buffers.iter() {
            let (block, _) = arena::find(ptr, 1).ok_or_else(foreign)?;
            free += usize::from(has_landed(&block));
        }
        if free == buffers.len() {
            return Ok(free);
        }
        if self.is_nonblocking() {
            return if free == 0 { Err(would_block()) } else { Ok(front(buffers)) };
        }
        let deadline = Deadline::after(self.send.lock().timeout);
        for &ptr in buffers.iter() {
            let (block, _) = arena::find(ptr, 1).ok_or_else(foreign)?;
            wait_for_landing(&block, &deadline)?;
            self.check_usable()?;
        }
        Ok(buffers.len())
    }

    /// Waits at most `timeout` for sends of this socket; false if none is in flight.
    fn wait_for_some(&self, timeout: Duration) -> Result<bool> {
        let mut side = self.send.lock();
        side.reap();
        if side.in_flight() == 0 {
            return Ok(false);
        }
        drop(self.sleep_or_fail(side, timeout)?);
        Ok(true)
    }

    /// Sleeps until sends are done; fails if the stream has ended and nothing more comes of them. Their
    /// memory is then free once the socket is closed.
    fn sleep_or_fail<'a>(
        &'a self,
        side: Guard<'a, SendSide>,
        timeout: Duration,
    ) -> Result<Guard<'a, SendSide>> {
        let completed = side.completed;
        let ended = side.link.send_end() != 0;
        if ended {
            drop(side);
            std::thread::sleep(timeout.min(Duration::from_millis(10)));
        } else {
            return Ok(self.sleep_for_send(side, timeout, None));
        }
        let mut side = self.send.lock();
        side.reap();
        if side.completed == completed {
            side.end()?;
        }
        Ok(side)
    }
}

/// Returns whether the block may be written: no send of it is in flight, as far as the socket knows that sent it last.
pub(crate) fn has_landed(block: &Block) -> bool {
    if !block.in_flight() {
        return true;
    }
    if let Some(sender) = sockets::find(block.sender()) {
        let mut side = sender.send.lock();
        side.reap();
        if !block.in_flight() || side.in_flight() > 0 {
            return !block.in_flight();
        }
    }
    // Of a closed socket, or of an earlier one.
    sockets::reap_all();
    !block.in_flight()
}

/// Waits until the block may be written, whichever sockets sent it.
pub(crate) fn wait_for_landing(block: &Block, deadline: &Deadline) -> Result<()> {
    let mut landed = has_landed(block);
    while !landed {
        let Some(timeout) = deadline.next_sleep() else { return Err(would_block()) };
        let sender = sockets::find(block.sender());
        let waited = sender.map_or(Ok(false), |sender| sender.wait_for_some(timeout.min(SLEEP_MAX)))?;
        landed = has_landed(block);
        if !landed {
            // Another than the last sender may have it.
            sockets::reap_all();
            landed = !block.in_flight();
        }
        if !landed && !waited {
            std::thread::sleep(Duration::from_micros(100));
            process::check_driver();
        }
    }
    Ok(())
}

/// Stable partition: buffers not in flight first. Says how many they are.
fn front(buffers: &mut [*mut u8]) -> usize {
    let in_flight = |ptr: &*mut u8| arena::find(*ptr, 1).is_some_and(|(block, _)| block.in_flight());
    let (busy, free): (Vec<_>, Vec<_>) = buffers.iter().copied().partition(in_flight);
    buffers[..free.len()].copy_from_slice(&free);
    buffers[free.len()..].copy_from_slice(&busy);
    free.len()
}

fn stale() -> Error {
    Error::new(Errno::FAULT, "the memory is of an attachment that has ended; pd_free it and pd_malloc again")
}
