//! Receiving into and sending from memory of the program's, as the BSD calls do: one copy more than lending, and nothing to
//! give back or to wait for afterwards. [`Socket::recv_copied`] and [`Socket::send_copied`], of which they are made, do not wait.
use crate::error::{would_block, Error, Result};
use crate::socket::Socket;
use crate::turn::Deadline;
use libc::iovec;
use rustix::io::Errno;

/// Manner of receiving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Leave the bytes to be received again.
    pub peek: bool,
    /// Wait until there is no room any more.
    pub all: bool,
    /// Do not wait.
    pub no_wait: bool,
}

/// The part of a call's memory that is left.
pub(crate) struct Rest<'a> {
    /// Of a piece that was used in part.
    part: Option<[iovec; 1]>,
    others: &'a [iovec],
}

impl<'a> Rest<'a> {
    pub(crate) fn new(pieces: &'a [iovec]) -> Self {
        Self { part: None, others: pieces }
    }

    pub(crate) fn pieces(&self) -> &[iovec] {
        self.part.as_ref().map_or(self.others, |part| part)
    }

    /// `len` bytes of [`Self::pieces`] were used.
    pub(crate) fn skip(&mut self, mut len: usize) {
        if let Some([piece]) = &mut self.part {
            *piece = after(*piece, len);
            self.part = self.part.filter(|[piece]| piece.iov_len > 0);
            return;
        }
        while let Some((first, others)) = self.others.split_first() {
            if len < first.iov_len {
                if len > 0 {
                    (self.part, self.others) = (Some([after(*first, len)]), others);
                }
                return;
            }
            (self.others, len) = (others, len - first.iov_len);
        }
    }
}

fn after(piece: iovec, len: usize) -> iovec {
    iovec { iov_base: piece.iov_base.wrapping_byte_add(len), iov_len: piece.iov_len - len }
}

/// Bytes of all pieces.
pub(crate) fn total(pieces: &[iovec]) -> Result<usize> {
    let sum = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len));
    sum.filter(|&sum| isize::try_from(sum).is_ok()).ok_or_else(|| Error::invalid("the pieces are too long"))
}

/// Result of a call that has failed after a part: the part. The next call fails.
pub(crate) fn so_far(done: usize, error: Error) -> Result<usize> {
    match done {
        0 => Err(error),
        done => Ok(done),
    }
}

impl Socket {
    fn waits(&self, no_wait: bool, error: &Error) -> bool {
        error.errno() == Errno::AGAIN.raw_os_error() && !no_wait && !self.is_nonblocking()
    }

    /// Receives into `pieces`, in their order. Waits for the first byte, for as many as [`Socket::set_recv_lowat`] says, or
    /// for all. Returns how many; 0: the stream has ended, or the pieces have no room.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOTCONN`, `ECONNRESET`; `EBUSY` while received bytes are lent out; `EINVAL` if the pieces are longer than
    /// `isize::MAX`.
    ///
    /// # Safety
    /// Each piece is memory that may be written.
    pub unsafe fn read(&self, pieces: &[iovec], how: Reading) -> Result<usize> {
        self.check_usable()?;
        let most = total(pieces)?;
        if most == 0 {
            return Ok(0);
        }
        let (mut rest, mut done, mut limits) = (Rest::new(pieces), 0, None);
        loop {
            // SAFETY: the caller's promise; the rest is part of the pieces.
            let received = unsafe {
                match self.kernel.get() {
                    None => self.recv_copied(rest.pieces(), how.peek),
                    Some(carrier) => self.recv_by_kernel(carrier, rest.pieces(), how),
                }
            };
            let error = match received {
                Ok(0) => return Ok(done),
                Ok(len) if how.peek => return Ok(len),
                Ok(len) => {
                    done += len;
                    // The low-water mark counts only while there is room for more.
                    let least = if done == most || how.all { most as u64 } else { self.recv_lowat() };
                    if done as u64 >= least.min(most as u64) {
                        return Ok(done);
                    }
                    rest.skip(len);
                    continue;
                }
                Err(error) => error,
            };
            if !self.waits(how.no_wait, &error) {
                return so_far(done, error);
            }
            let deadline = *limits.get_or_insert_with(|| Deadline::after(self.recv.lock().timeout));
            let Some(timeout) = deadline.next_sleep() else { return so_far(done, error) };
            self.rest_recv(timeout, 0, None);
        }
    }

    /// Sends the bytes of `pieces`, in their order, which may be written at once again. A blocking socket sends all; a
    /// non-blocking one what there is room for.
    ///
    /// # Errors
    /// `EAGAIN`, `EPIPE`, `ECONNRESET`, `ENOTCONN`; `ENOMEM` without send memory; `EINVAL` if the pieces are longer than
    /// `isize::MAX`.
    ///
    /// # Safety
    /// Each piece is memory that may be read.
    pub unsafe fn write(&self, pieces: &[iovec]) -> Result<usize> {
        self.check_usable()?;
        if let Some(carrier) = self.kernel.get() {
            // SAFETY: the caller's promise.
            return unsafe { self.send_by_kernel(carrier, pieces) };
        }
        let most = total(pieces)?;
        let (mut rest, mut done, mut limits) = (Rest::new(pieces), 0, None);
        while done < most {
            // SAFETY: as in `read`.
            let error = match unsafe { self.send_copied(rest.pieces()) } {
                Ok(len) => {
                    done += len;
                    rest.skip(len);
                    continue;
                }
                Err(error) => error,
            };
            if !self.waits(false, &error) {
                return so_far(done, error);
            }
            let deadline = *limits.get_or_insert_with(|| Deadline::after(self.send.lock().timeout));
            let Some(timeout) = deadline.next_sleep() else { return so_far(done, would_block()) };
            self.rest_send(timeout, None);
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_was_not_used() {
        let mut memory = [0_u8; 64];
        let base = memory.as_mut_ptr();
        let piece = |at: usize, len: usize| iovec { iov_base: base.wrapping_add(at).cast(), iov_len: len };
        for step in 1..20 {
            let pieces = [piece(0, 0), piece(0, 7), piece(10, 0), piece(20, 1), piece(30, 16), piece(60, 0)];
            let bytes = |pieces: &[iovec]| -> Vec<usize> {
                let of = |piece: &iovec| {
                    let start = piece.iov_base as usize - base as usize;
                    start..start + piece.iov_len
                };
                pieces.iter().flat_map(of).collect()
            };
            let (mut rest, mut seen, all) = (Rest::new(&pieces), Vec::<usize>::new(), bytes(&pieces));
            while seen.len() < all.len() {
                let there = bytes(rest.pieces());
                let len = step.min(there.len());
                assert!(len > 0, "nothing left after {seen:?}");
                seen.extend(&there[..len]);
                rest.skip(len);
            }
            assert_eq!(seen, all);
        }
    }
}
