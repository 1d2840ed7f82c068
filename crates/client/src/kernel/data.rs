//! Bytes of a connection that the kernel carries. What is lent lies in a ring of this process, mapped as a receive ring is, so that
//! lending, giving back and peeking are those of the fabric. What is read into the program's memory or sent goes without it.
use super::carrier::failed;
use super::Carrier;
use crate::copying::{so_far, total, Reading, Rest};
use crate::error::{lent, would_block, Error, Result};
use crate::lock::Guard;
use crate::recv::side::RecvSide;
use crate::socket::Socket;
use crate::turn::{Deadline, SLEEP_MAX};
use libc::iovec;
use pd_abi::layout::ENDED;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Part of a file that is copied at a time.
const FILE_PART_BYTES: usize = 64 << 10;

impl Socket {
    /// [`Socket::recv_copied`] of a connection of the kernel's. It waits in the kernel where nothing limits the wait.
    ///
    /// # Safety
    /// Each piece is memory that may be written.
    pub(crate) unsafe fn recv_by_kernel(
        &self,
        carrier: &Carrier,
        pieces: &[iovec],
        how: Reading,
    ) -> Result<usize> {
        let mut side = self.recv.lock();
        if side.cursor != side.consumer {
            return Err(lent());
        }
        if how.peek && side.buffered() > 0 && side.buffered() < total(pieces)? as u64 {
            side.fill()?;
        }
        if side.buffered() > 0 || side.kernel.as_ref().is_some_and(|inbox| ![0, ENDED].contains(&inbox.end)) {
            drop(side);
            // SAFETY: the caller's promise.
            return unsafe { self.recv_copied(pieces, how.peek) };
        }
        let waits = !how.no_wait && !self.is_nonblocking() && side.timeout.is_none();
        drop(side);
        loop {
            // SAFETY: the caller's promise.
            let received = unsafe { carrier.recv(pieces, how.peek, waits) };
            self.check_usable()?;
            match received {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(would_block()),
                Err(errno) => {
                    // The kernel says it once.
                    if let Some(inbox) = &mut self.recv.lock().kernel {
                        inbox.end = errno.raw_os_error() as u32;
                    }
                    return Err(failed(errno, || "the connection has failed".to_owned()));
                }
                Ok(len) => return Ok(len),
            }
        }
    }

    /// Sends the bytes of `pieces`: all of them, or on a non-blocking socket what there is room for.
    ///
    /// # Safety
    /// Each piece is memory that may be read.
    pub(crate) unsafe fn send_by_kernel(&self, carrier: &Carrier, pieces: &[iovec]) -> Result<usize> {
        let most = total(pieces)?;
        let timeout = self.send_timeout();
        let waits = !self.is_nonblocking();
        let (mut rest, mut done, mut limits) = (Rest::new(pieces), 0, None);
        while done < most {
            // SAFETY: the caller's promise; the rest is part of the pieces.
            match unsafe { carrier.send(rest.pieces(), waits && timeout.is_none()) } {
                Ok(len) => {
                    done += len;
                    rest.skip(len);
                    if !waits && done > 0 {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if waits => {
                    let deadline = *limits.get_or_insert_with(|| Deadline::after(timeout));
                    let Some(left) = deadline.next_sleep() else { return so_far(done, would_block()) };
                    carrier.wait(PollFlags::OUT, left);
                }
                Err(errno) => {
                    self.check_usable()?;
                    return so_far(done, Self::not_sent(errno));
                }
            }
            self.check_usable()?;
        }
        Ok(done)
    }

    fn not_sent(errno: Errno) -> Error {
        match errno {
            Errno::AGAIN => would_block(),
            Errno::PIPE => {
                Error::new(errno, "the peer has closed the connection, or it was shut down for sending")
            }
            _ => failed(errno, || "the connection has failed".to_owned()),
        }
    }

    /// Sends bytes of a file; see [`Socket::send_file`].
    pub(crate) fn send_file_by_kernel(
        &self,
        carrier: &Carrier,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<usize> {
        if self.is_nonblocking() || self.send_timeout().is_some() {
            // sendfile(2) would wait without a limit.
            return self.send_copy_of_file(carrier, file, offset, len);
        }
        let mut done = 0;
        while done < len {
            match carrier.send_file(file, offset + done as u64, len - done) {
                Ok(0) => break,
                Ok(part) => done += part,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => drop(carrier.wait(PollFlags::OUT, SLEEP_MAX)),
                Err(errno) => return so_far(done, Self::not_sent(errno)),
            }
            self.check_usable()?;
        }
        Ok(done)
    }

    fn send_copy_of_file(
        &self,
        carrier: &Carrier,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Result<usize> {
        let (mut done, mut copy) = (0, vec![0; len.min(FILE_PART_BYTES)]);
        while done < len {
            let most = copy.len().min(len - done);
            let read = match rustix::io::pread(file, &mut copy[..most], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(errno) => return so_far(done, failed(errno, || "cannot read the file".to_owned())),
            };
            let piece = iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: read };
            // SAFETY: the first bytes of the copy.
            match unsafe { self.send_by_kernel(carrier, &[piece]) } {
                Ok(sent) => done += sent,
                Err(error) => return so_far(done, error),
            }
        }
        Ok(done)
    }

    /// Returns whether something can be sent.
    pub(crate) fn check_carrier_sendable(&self, carrier: &Carrier) -> Result<()> {
        match carrier.wait(PollFlags::OUT, Duration::ZERO) {
            found if found.intersects(PollFlags::ERR | PollFlags::HUP) => Err(Self::not_sent(Errno::PIPE)),
            _ => Ok(()),
        }
    }

    /// Returns whether a send may go on now: a non-blocking one needs room.
    pub(crate) fn check_carrier_room(&self, carrier: &Carrier) -> Result<()> {
        match carrier.wait(PollFlags::OUT, Duration::ZERO) {
            found if found.is_empty() && self.is_nonblocking() => Err(would_block()),
            _ => Ok(()),
        }
    }

    /// Sleeps until bytes have come, or the stream has ended.
    pub(crate) fn sleep_for_kernel<'a>(
        &'a self,
        side: Guard<'a, RecvSide>,
        timeout: Duration,
    ) -> Guard<'a, RecvSide> {
        let carrier = side.kernel.as_ref().map(|inbox| inbox.carrier.clone());
        drop(side);
        if let Some(carrier) = carrier {
            carrier.wait(PollFlags::IN | PollFlags::RDHUP, timeout.min(SLEEP_MAX));
        }
        self.recv.lock()
    }
}
