//! Receiving as sockets do: as much as is there, all, or a look at it; by the fabric, and by the kernel what comes there.
use super::pieces::{first, total, Rest};
use super::waiting::{Wait, Waits};
use super::Twin;
use crate::aside::{self, receiving};
use crate::back::Found;
use crate::call::{Failure, Outcome, AGAIN};
use crate::entry::Entry;
use crate::unseen::looking;
use libc::{c_int, iovec};
use pd_client::core::{Handout, KernelReason, Socket};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Pause between looks of a wait for more bytes to peek at, where nothing tells of them.
const PEEK_EVERY: Duration = Duration::from_micros(50);

impl Twin {
    /// `recvmsg` into `pieces`. `takes_descriptors`: those that come with an AF_UNIX message are the program's.
    ///
    /// # Safety
    /// Each piece is memory that may be written.
    pub(crate) unsafe fn receive(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        flags: c_int,
        takes_descriptors: bool,
    ) -> Outcome<usize> {
        // A message with descriptors that the program takes is received by a call of its own.
        let joins = !(self.unix && takes_descriptors);
        // SAFETY: the caller's promise.
        self.receive_by(entry, pieces, flags, joins, &mut |pieces, peek| unsafe {
            self.receive_some(entry, pieces, peek)
        })
    }

    /// A receive of at most `max` bytes that stay where they are, lent; `each` gets them.
    pub(crate) fn lend(
        &self,
        entry: &Arc<Entry>,
        max: usize,
        each: &mut dyn FnMut(&Arc<Socket>, Handout),
    ) -> Outcome<usize> {
        let room = [iovec { iov_base: std::ptr::null_mut(), iov_len: max }];
        self.receive_by(entry, &room, libc::MSG_DONTWAIT, false, &mut |room, _| {
            self.with(entry, |socket| socket.lend(total(room), &mut |lent| each(socket, lent)))
        })
    }

    /// [`Twin::receive`] by means of `some`, which receives what is there. `joins`: bytes in the kernel follow those of the fabric in one call.
    pub(super) fn receive_by(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        flags: c_int,
        joins: bool,
        some: &mut dyn FnMut(&[iovec], bool) -> Outcome<usize>,
    ) -> Outcome<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(self.for_kernel(entry, KernelReason::Urgent, libc::EINVAL));
        }
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(AGAIN);
        }
        let peek = flags & libc::MSG_PEEK != 0;
        let wanted = total(pieces);
        let least = match flags & libc::MSG_WAITALL {
            0 => self.recv_lowat.load(Ordering::Relaxed).min(wanted),
            _ => wanted,
        };
        let mut rest = Rest::new(pieces, flags & libc::MSG_TRUNC != 0 && !peek);
        let (mut received, mut waiting) = (0, Waits::default());
        loop {
            let part = some(rest.pieces(), peek);
            let failure = match part {
                Ok(part) if peek && part < wanted && self.ends_elsewhere(part) => {
                    let until = waiting.until(&self.recv_timeout_ns);
                    let waits = part < least && self.waits(flags);
                    let mut missing = Rest::new(pieces, false);
                    missing.advance(part);
                    let flags = if waits { flags } else { flags | libc::MSG_DONTWAIT };
                    return match receiving::kernels_part(entry, self, waits, until) {
                        Ok(fd) => Ok(part + self.rest_by_kernel(fd, missing.pieces(), flags, true)),
                        Err(_) => Ok(part),
                    };
                }
                Ok(0) if self.takes_reset(wanted) => {
                    receiving::failure_is_told(entry, self);
                    // A receive that looked for more has been told, and does not say so.
                    return if received > 0 { Ok(received) } else { Err(Failure::Errno(libc::ECONNRESET)) };
                }
                Ok(part) if peek => {
                    // All of what is to be peeked at has to be there at once.
                    if part >= least || part == 0 || self.unix || !self.waits(flags) || !self.goes_on() {
                        return Ok(part);
                    }
                    if part == received {
                        std::thread::sleep(PEEK_EVERY);
                    }
                    received = part;
                    match self.wait(entry, Wait::Recv(part), &mut waiting) {
                        Ok(()) => continue,
                        Err(_) => return Ok(part),
                    }
                }
                Ok(part) => {
                    received += part;
                    if part == 0 || received >= least {
                        looking::used(entry, self);
                        self.used_in_turn(entry);
                        let is_short = part > 0 && received < wanted;
                        if joins && is_short && self.progress().sends() && self.ends_elsewhere(0) {
                            // Bytes that were peeked at are there at once.
                            rest.advance(part);
                            let missing = first(rest.pieces(), wanted - received);
                            received += self.rest_now(entry, &missing, flags | libc::MSG_DONTWAIT);
                        }
                        return Ok(received);
                    }
                    rest.advance(part);
                    continue;
                }
                Err(failure) if aside::is_elsewhere(failure) => {
                    let until = waiting.until(&self.recv_timeout_ns);
                    match receiving::received_all(entry, self, self.waits(flags), until) {
                        Ok(Some(fd)) if received > 0 && !peek => {
                            let missing = first(rest.pieces(), least - received);
                            let flags = flags | libc::MSG_WAITALL;
                            return Ok(received + self.rest_by_kernel(fd, &missing, flags, true));
                        }
                        Ok(Some(_)) => Failure::Kernel,
                        Ok(None) => return Ok(received),
                        Err(failure) => failure,
                    }
                }
                Err(AGAIN) if self.progress().sends() && self.rest_comes(entry) => continue,
                Err(AGAIN) if received == 0 && !self.waits(flags) && self.await_inherited() => continue,
                Err(AGAIN) if received == 0 && !self.waits(flags) && looking::is_waited_for(entry, self) => {
                    continue
                }
                Err(AGAIN) if received == 0 && self.is_no_gain(entry, self.waits(flags)) => continue,
                Err(AGAIN) if self.is_settled(entry) => continue,
                Err(AGAIN) if self.waits(flags) => match self.wait(entry, Wait::Recv(0), &mut waiting) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            return match failure {
                Failure::Errno(libc::ECONNRESET) if received > 0 && self.unix => {
                    // As for a receive that finds the end.
                    self.tells_failure();
                    Ok(received)
                }
                _ if received > 0 => Ok(received),
                // TCP has waited, and then has nothing to do.
                AGAIN if wanted == 0 && !self.unix && self.waits(flags) => Ok(0),
                Failure::Errno(libc::ECONNRESET) if !self.tells_failure() => Ok(0),
                Failure::Errno(libc::ECONNRESET) => {
                    receiving::failure_is_told(entry, self);
                    Err(failure)
                }
                _ => Err(failure),
            };
        }
    }

    /// Receives what is there.
    ///
    /// # Safety
    /// Each piece is memory that may be written, or null.
    pub(super) unsafe fn receive_some(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        peek: bool,
    ) -> Outcome<usize> {
        let Some(back) = self.window() else {
            if self.unsure.load(Ordering::Relaxed) {
                self.look_for_head(entry)?;
            }
            loop {
                // SAFETY: the caller's promise.
                match self.with(entry, |socket| unsafe { socket.recv_copied(pieces, peek) }) {
                    Err(Failure::Errno(libc::EBUSY)) => self.lender.settle(),
                    received => return received,
                }
            }
        };
        let fd = entry.any_fd().ok_or(Failure::Errno(libc::EBADF))?;
        // SAFETY: the caller's promise.
        let found =
            self.with(entry, |end| unsafe { back.receive(fd, end, pieces, peek, || self.progress().owed()) });
        self.go_back(entry, back);
        match found? {
            Found::Bytes(bytes) => Ok(bytes),
            Found::Headless => {
                self.stay_away(entry);
                Err(Failure::Kernel)
            }
        }
    }
}
