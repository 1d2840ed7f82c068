//! Reasons for which calls have a twin's connection go on in the kernel, and the part of a call that is left for it.
use super::pieces::{total, Rest};
use super::receiving::PEEK_EVERY;
use super::taking::has_ended;
use super::{Twin, LINGERS};
use crate::aside::{self, leaving, receiving};
use crate::back::Back;
use crate::call::{errno, Failure};
use crate::counts::Moves;
use crate::entry::Entry;
use crate::shared::Slot;
use crate::sleep::kernel_poll;
use crate::{address, closed, confined, heap, real};
use libc::{c_int, iovec};
use pd_client::core::{let_run, KernelReason, Socket};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most bytes of a file that are read at once to be sent over the kernel.
const PIECE_BYTES: usize = 256 << 10;

impl Twin {
    /// Answers a call for something that only the kernel can do. Tells how the call ends if it cannot be the kernel's.
    #[cold]
    pub(crate) fn for_kernel(&self, entry: &Arc<Entry>, why: KernelReason, errno: c_int) -> Failure {
        match leaving::leave(entry, self, why) {
            true => Failure::Kernel,
            false => Failure::Errno(errno),
        }
    }

    /// A send failed in a way that the kernel's would not: the kernel does it, if it can.
    #[cold]
    pub(super) fn go_on_in_kernel(&self, entry: &Arc<Entry>, failure: Failure) -> Failure {
        match failure {
            Failure::Errno(errno) if aside::lacks_means(failure) => {
                self.for_kernel(entry, KernelReason::of_errno(errno), errno)
            }
            _ => self.for_kernel(entry, KernelReason::PeerLeft, libc::ECONNRESET),
        }
    }

    /// After a send: the peer may have left the fabric.
    #[inline]
    pub(super) fn follow(&self, entry: &Arc<Entry>) {
        self.used_in_turn(entry);
        if let Some(socket) = self.socket.load().as_ref() {
            leaving::follow(entry, self, socket);
        }
    }

    /// A call has used the fabric end: one that goes from process to process too often leaves for good. One that the policy keeps is asked
    /// about again after as many moves.
    #[inline]
    pub(super) fn used_in_turn(&self, entry: &Arc<Entry>) {
        if self.turns_too_often.load(Ordering::Relaxed) {
            self.leave_turns(entry);
        }
    }

    #[cold]
    pub(super) fn leave_turns(&self, entry: &Arc<Entry>) {
        self.turns_too_often.store(false, Ordering::Relaxed);
        self.slot.get().map_or(&self.turns, |slot| slot.turns()).store(0, Ordering::Relaxed);
        leaving::leave(entry, self, KernelReason::Shared);
    }

    /// A call has found nothing, and waits, or does not. True: the connection has left the fabric for that; look again.
    #[inline]
    pub(super) fn is_no_gain(&self, entry: &Arc<Entry>, waits: bool) -> bool {
        self.gain.is_due()
            && self.is_small_talk(waits)
            && leaving::leave(entry, self, KernelReason::SmallTalk)
    }

    #[cold]
    pub(super) fn is_small_talk(&self, waits: bool) -> bool {
        if self.names.is_some() || self.progress().sends() {
            return false;
        }
        self.current().is_some_and(|end| self.gain.is_poor(&end, waits, self.unix))
    }

    /// Before a fork: the child will hold it, too.
    pub(crate) fn share(&self, entry: &Arc<Entry>) {
        if self.names.is_some() {
            // The end stays with this process.
            return;
        }
        if heap::is_low() {
            // The child could not take it.
            leaving::leave(entry, self, KernelReason::NoMemory);
        } else if confined::is_barren() {
            leaving::leave(entry, self, KernelReason::NoDriver);
            receiving::await_end(entry, self);
            if self.is_abandoned() {
                return;
            }
        }
        if self.slot.get().is_none() {
            if let Some(slot) = Slot::new() {
                slot.progress.copy(&self.aside.progress);
                let _ = self.slot.set(slot);
            } else {
                leaving::leave(entry, self, KernelReason::NoMemory);
            }
        }
        if let Some(slot) = self.slot.get() {
            slot.expect();
        }
    }

    /// Another process had the end, and no other one holds it any more.
    fn is_left_to_this(&self) -> bool {
        !self.progress().is_over() && self.slot.get().is_some_and(|slot| !slot.is_mine() && slot.is_sole())
    }

    /// Its last descriptor is about to be closed: who lingers for no time at all resets it, and so does who has not read all.
    pub(crate) fn note_reset(&self, entry: &Arc<Entry>, fd: c_int) {
        if self.is_left_to_this() && !closed::is_closed() && !has_ended(fd) {
            // Its last holder answers for what nobody has read. Without the end it is the driver's to close, in order.
            let _ = self.with_present(entry, |end| {
                end.await_inherited();
                Ok(())
            });
        }
        let lingers = || LINGERS.load(Ordering::Relaxed) && !self.unix && address::lingers_never(fd);
        if let (Some(back), Some(end)) = (self.window(), self.current()) {
            back.finish_receiving(&end);
        }
        let head = self.window().map_or(0, Back::head_bytes);
        // Bytes of an end that another process has taken are that one's.
        let is_unread = |end: Arc<Socket>| {
            end.check_present().is_ok() && (end.received() > head || receiving::has_unread(fd, self))
        };
        let unread = self.is_sole() && self.current().is_some_and(is_unread);
        if unread && !self.passed.load(Ordering::Relaxed) {
            receiving::reset_with(fd, self);
        } else {
            receiving::before_close(entry, fd, self);
        }
        if unread || lingers() {
            self.resets.store(true, Ordering::Relaxed);
        }
    }

    /// One that has left finds nothing: whether something comes all the same, which it does before this returns.
    #[cold]
    pub(super) fn rest_comes(&self, entry: &Arc<Entry>) -> bool {
        self.current().is_some_and(|end| receiving::await_rest(entry, self, &end))
    }

    /// The end of the fabric's stream was received: what of the kernel's is there, too.
    #[cold]
    pub(super) fn rest_now(&self, entry: &Arc<Entry>, missing: &[iovec], flags: c_int) -> usize {
        if closed::is_closed() {
            return 0;
        }
        match receiving::kernels_part(entry, self, false, None) {
            Ok(()) => self.rest_by_kernel(entry, missing, flags & !libc::MSG_WAITALL, true, None),
            Err(_) => 0,
        }
    }

    /// Sends or receives the rest of a call over the kernel that began on the fabric, at most until the socket's time is over. Returns bytes. A
    /// handler that is due ends it, and runs where the call holds nothing.
    pub(super) fn rest_by_kernel(
        &self,
        entry: &Entry,
        pieces: &[iovec],
        flags: c_int,
        receives: bool,
        until: Option<Instant>,
    ) -> usize {
        // TCP throws away what `MSG_TRUNC` receives, and looks at no place.
        let is_thrown_away = receives && flags & libc::MSG_TRUNC != 0 && !self.unix;
        let has_place = |piece: &iovec| !piece.iov_base.is_null() || is_thrown_away;
        let pieces: Vec<iovec> =
            pieces.iter().copied().filter(|piece| piece.iov_len > 0 && has_place(piece)).collect();
        let (mut rest, wanted, mut moved) = (Rest::new(&pieces, false), total(&pieces), 0);
        let (wants_all, peeks) = (flags & libc::MSG_WAITALL != 0, receives && flags & libc::MSG_PEEK != 0);
        // A peek that waits for all looks again and again; nothing more comes once it is the last one.
        let mut is_last = !(peeks && wants_all && !self.unix && self.waits(flags));
        // AF_UNIX says nothing more of a failure that a call for more has met.
        let spares_failure = !self.unix || receives && !wants_all;
        while moved < wanted {
            let (fd, part) = {
                // No close of another thread gives the number away before this is over.
                let _paused = self.aside.pause();
                let Some(fd) = entry.kernels_fd() else { break };
                if spares_failure && fails_next(fd, receives) {
                    break;
                }
                (fd, message_now(fd, rest.pieces(), flags, receives))
            };
            match part {
                Ok(part) if peeks => {
                    moved = part;
                    if part == wanted || is_last {
                        break;
                    }
                    let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
                    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                    let pause = left.map_or(PEEK_EVERY, |left| left.min(PEEK_EVERY));
                    is_last = kernel_poll(&mut poll, Some(pause), std::ptr::null()) != Ok(0)
                        || left == Some(Duration::ZERO);
                }
                Ok(part) => {
                    moved += part;
                    rest.advance(part);
                    if part == 0 || receives && !wants_all {
                        break;
                    }
                }
                Err(libc::EAGAIN) if self.waits(flags) => {
                    let events = if receives { libc::POLLIN } else { libc::POLLOUT };
                    let mut poll = [libc::pollfd { fd, events, revents: 0 }];
                    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                    if !matches!(kernel_poll(&mut poll, left, std::ptr::null()), Ok(1..)) {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        let what = if receives { Moves::receives(flags) } else { Moves::sends(flags) };
        self.aside.counts.add(what, moved);
        moved
    }

    /// Goes on with a call that waits and has begun here, if the connection has left meanwhile: sends at most `len` bytes over the kernel.
    /// `look` reads what is to be sent, from behind so many bytes that were sent here, and takes nothing away. Returns the bytes sent. A handler
    /// that is due ends it, and runs where the call holds nothing.
    pub(crate) fn finish_by_kernel(
        &self,
        entry: &Entry,
        len: usize,
        look: &dyn Fn(&mut [u8], usize) -> isize,
    ) -> usize {
        if !(self.progress().sends() || self.is_abandoned()) || !self.waits(0) {
            return 0;
        }
        let until = Self::until(&self.send_timeout_ns);
        let mut bytes = vec![0u8; len.min(PIECE_BYTES)];
        let mut sent = 0;
        while sent < len {
            let room = bytes.len().min(len - sent);
            let there = usize::try_from(look(&mut bytes[..room], sent)).unwrap_or(0);
            let piece = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: there }];
            let part = self.rest_by_kernel(entry, &piece, 0, false, until);
            sent += part;
            if there == 0 || part < there {
                break;
            }
        }
        sent
    }

    /// Sends bytes over the kernel that a call has read from somewhere and cannot give back. So it waits for room, whatever the socket says.
    #[cold]
    pub(super) fn unsent_by_kernel(&self, entry: &Entry, bytes: &[u8]) -> usize {
        let (mut sent, mut has_room) = (0, false);
        while let Some(fd) = entry.kernels_fd() {
            let rest = &bytes[sent..];
            let piece = [iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() }];
            let part = self.rest_by_kernel(entry, &piece, libc::MSG_DONTWAIT, false, None);
            if part == 0 && has_room {
                break;
            }
            sent += part;
            if sent == bytes.len() {
                break;
            }
            let mut poll = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
            has_room = match kernel_poll(&mut poll, None, std::ptr::null()) {
                Err(_) => {
                    let_run();
                    false
                }
                Ok(_) => true,
            };
        }
        sent
    }
}

/// Sends or receives what the kernel takes or has now, for a call that has moved bytes: it raises no `SIGPIPE`.
fn message_now(fd: c_int, pieces: &[iovec], flags: c_int, receives: bool) -> Result<usize, c_int> {
    // SAFETY: zeroes are a message without pieces; those of the caller are memory as it says.
    let moved = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (pieces.as_ptr().cast_mut(), pieces.len() as _);
        match receives {
            true => real::recvmsg(fd, &mut message, flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT),
            false => real::sendmsg(fd, &message, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
        }
    };
    usize::try_from(moved).map_err(|_| errno())
}

/// Tells whether the kernel's next call would take a failure that the program has still to see. What lies there is received before it.
fn fails_next(fd: c_int, receives: bool) -> bool {
    address::has_error(fd) && !(receives && address::unread(fd) > Some(0))
}
