//! Sending as sockets do, from memory or from what a function reads, to a peer that may not be there yet or any more.
use super::pieces::{first, total, Rest};
use super::waiting::{Wait, Waits};
use super::Twin;
use crate::call::{lock, Failure, Outcome, AGAIN};
use crate::claim::{self, watch};
use crate::entry::Entry;
use crate::unseen::looking;
use crate::{address, aside};
use libc::{c_int, iovec};
use pd_client::core::{let_run, Fill, KernelReason, Occasion, Socket};
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Has the driver read what is to be sent, at most so many bytes. None: it does not.
pub(crate) type ByDriver<'a> = dyn FnMut(&Socket, usize) -> pd_client::Result<Option<usize>> + 'a;

/// Returns whether the kernel tells the program when memory of zero-copy sends is free: otherwise it takes no notice of
/// `MSG_ZEROCOPY`.
#[cold]
fn is_told_of_sends(entry: &Entry) -> bool {
    let told = entry.any_fd().and_then(|fd| address::option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY));
    told.is_some_and(|told| told != 0)
}

/// Sends `unsent`, then what `fill` reads. Bytes that were read and are another process's to send come back into `unsent`.
fn send_once(
    socket: &Socket,
    most: usize,
    unsent: &mut Vec<u8>,
    fill: &mut Fill<'_>,
) -> pd_client::Result<usize> {
    let first = RefCell::new(std::mem::take(unsent));
    let mut read = |place: *mut u8, room: usize| {
        let mut first = first.borrow_mut();
        if first.is_empty() {
            return fill(place, room);
        }
        let part = first.len().min(room);
        // SAFETY: the place has so much room.
        unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), place, part) };
        first.drain(..part);
        Ok(part)
    };
    let mut keep = |place: *const u8, filled: usize| {
        let mut bytes = vec![0; filled];
        // SAFETY: `read` has written so many bytes there, and the place is still this call's.
        unsafe { std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), filled) };
        bytes.append(&mut first.borrow_mut());
        *first.borrow_mut() = bytes;
    };
    let sent = socket.send_filled_once(most, &mut read, &mut keep);
    *unsent = first.into_inner();
    sent
}

impl Twin {
    /// `sendmsg` of `pieces`.
    ///
    /// # Safety
    /// Each piece is memory that may be read.
    pub(crate) unsafe fn transmit(
        &self,
        entry: &Arc<Entry>,
        pieces: &[iovec],
        flags: c_int,
    ) -> Outcome<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(self.for_kernel(entry, KernelReason::Urgent, libc::EOPNOTSUPP));
        }
        if self.is_kernels_to_send(entry) {
            return Err(Failure::Kernel);
        }
        if flags & libc::MSG_ZEROCOPY != 0 && is_told_of_sends(entry) {
            // A program without a notification left sends by copy.
            return Err(self.for_kernel(entry, KernelReason::ZeroCopy, libc::ENOBUFS));
        }
        self.hear(entry);
        let wanted = total(pieces);
        let mut rest = Rest::new(pieces, false);
        let (mut sent, mut waiting, mut caught_up) = (0, Waits::default(), false);
        loop {
            let part = match wanted {
                0 => self.transmit_nothing(entry),
                // SAFETY: the caller's promise.
                _ => unsafe { self.transmit_some(entry, rest.pieces()) },
            };
            let failure = match part {
                Ok(part) => {
                    sent += part;
                    if sent == wanted || !self.waits(flags) {
                        looking::used(entry, self);
                        return Ok(sent);
                    }
                    rest.advance(part);
                    continue;
                }
                Err(failure) if aside::is_elsewhere(failure) || aside::lacks_means(failure) => {
                    self.go_on_in_kernel(entry, failure)
                }
                Err(AGAIN) if self.waits(flags) => match self.wait(entry, Wait::Send, &mut waiting) {
                    Ok(()) => continue,
                    Err(failure) => failure,
                },
                Err(AGAIN) if sent == 0 && looking::is_waited_for(entry, self) => Failure::Kernel,
                Err(AGAIN)
                    if sent == 0
                        && !std::mem::replace(&mut caught_up, true)
                        && self.catch_up(Occasion::Frequent) =>
                {
                    continue
                }
                Err(failure) => failure,
            };
            if sent > 0 {
                // A call that waits sends all, whatever carries it.
                let goes_on = failure == Failure::Kernel && self.waits(flags);
                let until = waiting.until(&self.send_timeout_ns);
                let rest = || self.rest_by_kernel(entry, rest.pieces(), flags, false, until);
                return Ok(sent + if goes_on { rest() } else { 0 });
            }
            return match failure {
                Failure::Errno(libc::EPIPE) if self.unix && !self.ends_sending() => Err(Failure::Plain),
                Failure::Errno(libc::EPIPE) => self.closed_by_peer(flags).map(|()| wanted),
                Failure::Errno(libc::ECONNRESET)
                    if self.unix || self.has_ended() || !self.tells_failure() =>
                {
                    self.sent_in_vain.store(true, Ordering::Relaxed);
                    self.closed_by_peer(flags).map(|()| wanted)
                }
                _ => Err(failure),
            };
        }
    }

    /// Sends nothing, which may say that nothing can be sent.
    pub(super) fn transmit_nothing(&self, entry: &Arc<Entry>) -> Outcome<usize> {
        match self.with_present(entry, |socket| socket.check_sendable()) {
            // The peer's close alone is no reason for TCP.
            Err(Failure::Errno(libc::EPIPE)) if !self.unix && !self.ends_sending() => {
                let gone = self.current().is_some_and(|socket| socket.is_gone());
                if gone {
                    Err(Failure::Errno(libc::EPIPE))
                } else {
                    Ok(0)
                }
            }
            other => other.map(|()| 0),
        }
    }

    pub(super) unsafe fn transmit_some(&self, entry: &Arc<Entry>, pieces: &[iovec]) -> Outcome<usize> {
        if claim::any_pending() {
            self.is_settled(entry);
            let mut state = lock(&self.pending_claim);
            if let Some(pending) = state.as_mut() {
                let limited = first(pieces, pending.room());
                if total(&limited) == 0 && total(pieces) > 0 {
                    return Err(AGAIN);
                }
                // SAFETY: the caller's promise.
                let sent = self.with(entry, |socket| unsafe { socket.send_copied(&limited) })?;
                pending.keep(&limited, sent);
                watch::has_sent();
                self.hold_if_full(pending);
                return Ok(sent);
            }
        }
        // SAFETY: the caller's promise.
        let sent = self.with(entry, |socket| unsafe { socket.send_copied(pieces) })?;
        self.follow(entry);
        Ok(sent)
    }

    /// Sends at most `len` bytes that `fill` reads from somewhere; waits as the socket does.
    pub(crate) fn transmit_from(
        &self,
        entry: &Arc<Entry>,
        len: usize,
        waits: bool,
        fill: &mut Fill<'_>,
        by_driver: &mut ByDriver<'_>,
    ) -> Outcome<usize> {
        if self.is_kernels_to_send(entry) {
            return Err(Failure::Kernel);
        }
        self.hear(entry);
        let (mut sent, mut waiting) = (0, Waits::default());
        let waits = waits && self.waits(0);
        // Bytes that `fill` has read, and that another process's end was to send: this one takes the end back.
        let mut unsent = Vec::new();
        while sent < len {
            let (part, ended) = self.fill_once(entry, len - sent, &mut unsent, fill, by_driver);
            let failure = match part {
                Ok(part) => {
                    self.follow(entry);
                    sent += part;
                    if unsent.is_empty() && (ended || !waits) {
                        return Ok(sent);
                    }
                    continue;
                }
                Err(failure) if aside::is_elsewhere(failure) || aside::lacks_means(failure) => {
                    self.go_on_in_kernel(entry, failure)
                }
                Err(AGAIN) if waits || !unsent.is_empty() => match self.wait(entry, Wait::Send, &mut waiting)
                {
                    Ok(()) => continue,
                    Err(Failure::Handler { .. }) if !unsent.is_empty() => {
                        // Bytes that were read are sent first.
                        let_run();
                        continue;
                    }
                    Err(failure) => failure,
                },
                Err(failure) => failure,
            };
            if failure == Failure::Kernel && !unsent.is_empty() {
                return Ok(sent + self.unsent_by_kernel(entry, &unsent));
            }
            if sent == 0 && failure == Failure::Errno(libc::EPIPE) {
                if self.unix && !self.ends_sending() {
                    return Err(Failure::Plain);
                }
                // Nothing is read for a send that goes nowhere.
                return self.closed_by_peer(0).and(Err(failure));
            }
            return if sent > 0 { Ok(sent) } else { Err(failure) };
        }
        Ok(sent)
    }

    /// Sends at most `max` bytes that `fill` reads, and keeps a copy while the claim of the connection is pending. Returns the bytes sent,
    /// and whether `fill` has reached its end. Bytes that were read and not sent stay in `unsent`.
    fn fill_once(
        &self,
        entry: &Arc<Entry>,
        max: usize,
        unsent: &mut Vec<u8>,
        fill: &mut Fill<'_>,
        by_driver: &mut ByDriver<'_>,
    ) -> (Outcome<usize>, bool) {
        self.is_settled(entry);
        let mut state = claim::any_pending().then(|| lock(&self.pending_claim));
        let mut kept = state.as_mut().and_then(|state| state.as_mut());
        let most = kept.as_ref().map_or(usize::MAX, |pending| pending.room()).min(max);
        let mut ended = false;
        let mut send = |socket: &Socket| {
            if kept.is_none() {
                let sent = if unsent.is_empty() { by_driver(socket, most)? } else { None };
                if let Some(sent) = sent {
                    return Ok(sent);
                }
            }
            send_once(socket, most, unsent, &mut |place, room| {
                let filled = fill(place, room)?;
                ended |= filled < room;
                if let Some(pending) = kept.as_mut() {
                    // `fill` cannot read them a second time.
                    let piece = iovec { iov_base: place.cast(), iov_len: filled };
                    pending.keep(&[piece], filled);
                }
                Ok(filled)
            })
        };
        let part = if most > 0 { self.with(entry, |socket| send(socket)) } else { Err(AGAIN) };
        if let Some(pending) = kept {
            watch::has_sent();
            self.hold_if_full(pending);
        }
        (part, ended)
    }

    /// A send found the peer gone. Over TCP one only learns it from the answer to the first such send,
    /// which succeeds; programs that send last words rely on that.
    pub(super) fn closed_by_peer(&self, flags: c_int) -> Outcome<()> {
        let socket = self.current();
        let has_lost = || socket.as_ref().is_some_and(|socket| socket.has_lost());
        if !self.ends_sending() && !self.sent_in_vain.swap(true, Ordering::Relaxed) && !has_lost() {
            socket.iter().for_each(|socket| socket.come_back());
            return Ok(());
        }
        // An error that this call tells is not told again.
        let error = socket.filter(|_| !self.unix).and_then(|socket| socket.take_error().ok());
        if let Some(error) = error.filter(|&error| error != 0 && error != libc::EPIPE) {
            return Err(Failure::Errno(error));
        }
        if flags & libc::MSG_NOSIGNAL == 0 {
            // SAFETY: what the kernel would do.
            unsafe { libc::raise(libc::SIGPIPE) };
        }
        Err(Failure::Errno(libc::EPIPE))
    }

    /// Returns whether this process has shut the connection down for sending, or is about to.
    pub(crate) fn ends_sending(&self) -> bool {
        self.send_ends.load(Ordering::Relaxed) || self.send_shut.load(Ordering::Relaxed)
    }

    /// Returns whether what is sent now goes over the kernel.
    #[inline]
    pub(super) fn is_kernels_to_send(&self, entry: &Arc<Entry>) -> bool {
        if self.progress().sends() {
            return true;
        }
        self.window().is_some_and(|back| {
            self.go_back(entry, back);
            !back.sends()
        })
    }
}
