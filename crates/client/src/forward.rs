//! Forwarding: bytes that one socket has received go out by another, copied once, from ring to ring or into a block of send
//! memory. What the other has no room for stays received here.
use crate::error::{lent, would_block, Result};
use crate::recv::side::{Handout, RecvSide, IDLE_CALLS};
use crate::socket::Socket;
use crate::turn::Deadline;
use libc::iovec;
use rustix::io::Errno;

/// Most bytes that are moved while the receiving side's lock is held.
const PART_BYTES_MAX: usize = 256 << 10;

/// The outcome of one step of a forward.
enum Step {
    Moved(usize),
    /// The stream has ended.
    End,
    /// Nothing has come.
    Empty,
    /// The other socket takes nothing now.
    Full,
}

impl RecvSide {
    /// Bytes that are handed out beyond all of the ring but one byte. A ring that is handed out whole has no room for the byte
    /// that a wait is for.
    fn overdrawn(&self) -> u64 {
        let most = self.ring.as_ref().map_or(u64::MAX, |ring| ring.memory.bytes() - 1);
        (self.cursor - self.consumer).saturating_sub(most)
    }

    /// [`RecvSide::take`] of the first byte on, however many a receive waits for.
    fn take_any(&mut self, max: usize) -> Result<Option<(u64, u64)>> {
        let lowat = std::mem::replace(&mut self.lowat, 1);
        let taken = self.take(max);
        self.lowat = lowat;
        taken
    }

    /// Moves at most `max` bytes to another socket.
    fn forward_to(&mut self, to: &Socket, max: usize) -> Result<Step> {
        if self.cursor != self.consumer {
            return Err(lent());
        }
        let (start, len) = match self.take_any(max.min(PART_BYTES_MAX))? {
            None => return Ok(Step::Empty),
            Some((_, 0)) => return Ok(Step::End),
            Some((start, len)) => (start, len as usize),
        };
        let kept = self.peeked.len().min(len);
        let rest = self.handout((start + kept as u64, (len - kept) as u64));
        let pieces = [
            iovec { iov_base: self.peeked.as_ptr().cast_mut().cast(), iov_len: kept },
            iovec { iov_base: rest.ptr.as_ptr().cast(), iov_len: rest.len },
        ];
        // SAFETY: bytes that are kept, and bytes that are lent until they are given back below. Their sender may write them
        // meanwhile, and they may be anything.
        let sent = unsafe {
            match to.kernel.get() {
                Some(carrier) => to.send_by_kernel(carrier, &pieces),
                None => to.send_copied(&pieces),
            }
        };
        let moved = *sent.as_ref().unwrap_or(&0);
        self.cursor = start + moved as u64;
        self.forget_kept(moved.min(kept));
        match sent {
            Ok(_) => {
                let consumer = self.cursor;
                self.give_back(consumer)?;
                Ok(Step::Moved(moved))
            }
            Err(error) if error.errno() == Errno::AGAIN.raw_os_error() => Ok(Step::Full),
            Err(error) => Err(error),
        }
    }

    /// Counts a call that has found nothing. Once in a while it looks for the driver.
    fn found_nothing(&mut self) {
        self.idle_calls = self.idle_calls.wrapping_add(1);
        if self.idle_calls % IDLE_CALLS == 0 {
            self.link.attachment.check_alive();
        }
    }
}

impl Socket {
    /// Hands out at most `max` of the bytes that have come, to `each`, and never waits. They lie in one place, or in two where the
    /// path has changed. More can be handed out before the first are given back ([`Self::recv_done`]), up to all of the receive
    /// ring but a byte. Returns how many; 0: the stream has ended.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOTCONN`, `ECONNRESET`; `EBUSY` if that much is handed out, or if bytes were peeked at.
    pub fn lend(&self, max: usize, each: &mut dyn FnMut(Handout)) -> Result<usize> {
        self.check_usable()?;
        let mut side = self.recv.lock();
        if !side.peeked.is_empty() {
            return Err(lent());
        }
        let mut done = 0;
        loop {
            let handed_out = side.ring_is_full() && side.cursor == side.producer;
            let taken = if handed_out { Err(lent()) } else { side.take_any(max - done) };
            match taken {
                Ok(Some((_, 0))) => return Ok(done),
                Ok(Some((start, len))) => {
                    let over = side.overdrawn().min(len);
                    side.cursor -= over;
                    if len > over {
                        each(side.handout((start, len - over)));
                        done += (len - over) as usize;
                    }
                    if over > 0 && done == 0 {
                        return Err(lent());
                    }
                    if over > 0 || done == max || !side.goes_on_elsewhere() {
                        return Ok(done);
                    }
                }
                _ if done > 0 => return Ok(done),
                Ok(None) => {
                    side.found_nothing();
                    return Err(would_block());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends at most `len` bytes that this socket has received by the socket `to`, and gives them back. Waits for the first as
    /// [`Self::recv`] does. Moves what has come then: all of it if `to` is a blocking socket, else what there is room for, and the
    /// rest stays received. Returns bytes; 0: the stream has ended.
    ///
    /// # Errors
    /// `EAGAIN` if nothing has come, or `to` has no room, and that socket is non-blocking; those of a receive and of a send.
    /// `EBUSY` while received bytes are lent out.
    pub fn forward(&self, to: &Self, len: usize) -> Result<usize> {
        self.check_usable()?;
        to.check_usable()?;
        if to.send.lock().adoptable {
            // Before any lock is held.
            to.adopt()?;
        }
        let (mut moved, mut until_received, mut until_sent) = (0, None, None);
        while moved < len {
            let mut side = self.recv.lock();
            let step = side.forward_to(to, len - moved);
            match step {
                Ok(Step::Moved(bytes)) => moved += bytes,
                Ok(Step::End) => break,
                Ok(Step::Empty) if moved > 0 => break,
                Ok(Step::Empty) if self.is_nonblocking() => {
                    side.found_nothing();
                    return Err(would_block());
                }
                Ok(Step::Empty) => {
                    let wake_at = side.wake_at();
                    if side.spin_locked(wake_at) {
                        continue;
                    }
                    let deadline = *until_received.get_or_insert_with(|| Deadline::after(side.timeout));
                    let timeout = deadline.next_sleep().ok_or_else(would_block)?;
                    drop(self.sleep_for_recv(side, wake_at, timeout, None));
                    self.check_usable()?;
                }
                Ok(Step::Full) => {
                    drop(side);
                    if let Err(error) = to.await_room(to.send.lock(), &mut until_sent) {
                        return if moved > 0 { Ok(moved) } else { Err(error) };
                    }
                }
                Err(_) if moved > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }
}
