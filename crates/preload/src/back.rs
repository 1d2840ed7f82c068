//! The way back of a connection from the kernel ([`crate::away`]). Both sides have a new twin, and look at both.
//!
//! A side sends over the kernel until it knows that its peer looks at both. Then it sends a *head* by the twin, which is the
//! position up to which it has sent in the kernel's stream, and goes on behind the head. The receiver reads the kernel's stream up
//! to that position, takes the head off, and goes on by the twin. The side that has offered the twin sends its head first, for
//! the other one looked at both when it claimed the twin. A head that has come says that its sender looks at both.
use crate::call::{errno, lock};
use crate::counts::{Moves, OwnCounts};
use crate::{address, real};
use libc::{c_int, iovec};
use pd_client::core::{Socket, ELSEWHERE};
use pd_client::{Error, Result};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Begins each head. A process that gets the connection in the middle finds it in place of bytes.
const WORD: [u8; 16] = *b"\x9e\x11PipeDevice\xb0\x5d\xfa\x81";
const HEAD_BYTES: usize = WORD.len() + 8;
/// Most that is thrown away at once.
const AWAY_BYTES: usize = 64 << 10;

/// This side sends by the twin.
const SENDS: u32 = 1;
/// The peer's head has come.
const HEAD: u32 = 2;
/// This side receives by the twin.
const RECEIVES: u32 = 4;
/// The peer has ended the twin without a head: what it sends is the kernel's.
const HEADLESS: u32 = 8;
/// Both are told.
const DONE: u32 = 16;

#[derive(Debug)]
pub(crate) struct Back {
    pub(crate) counts: Arc<OwnCounts>,
    done: AtomicU32,
    /// Where the kernel's part ends of what is received.
    ends_at: AtomicU64,
    receiving: Mutex<()>,
    lowat: u64,
}

/// Result of a receive in between.
pub(crate) enum Found {
    Bytes(usize),
    /// The twin ended before the peer used it.
    Headless,
}

impl Back {
    pub(crate) fn new(counts: Arc<OwnCounts>, fd: c_int, end: &Socket) -> Self {
        let lowat = address::option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1).max(1) as u64;
        // A head alone is no news.
        let _ = end.set_recv_lowat(lowat + HEAD_BYTES as u64);
        Self {
            counts,
            done: AtomicU32::new(0),
            ends_at: AtomicU64::new(0),
            receiving: Mutex::default(),
            lowat,
        }
    }

    fn has(&self, what: u32) -> bool {
        self.done.load(Ordering::Acquire) & what != 0
    }

    /// Returns whether this side sends by the twin.
    #[inline]
    pub(crate) fn sends(&self) -> bool {
        self.has(SENDS)
    }

    /// Returns whether it receives there.
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        self.has(RECEIVES)
    }

    /// The peer's head has come.
    pub(crate) fn is_expected(&self) -> bool {
        self.has(HEAD)
    }

    pub(crate) fn is_headless(&self) -> bool {
        self.has(HEADLESS)
    }

    /// Nothing is the kernel's any more.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        let done = self.done.load(Ordering::Relaxed);
        done & (SENDS | RECEIVES) == SENDS | RECEIVES
    }

    /// Returns whether that is so since just now.
    pub(crate) fn ends_now(&self) -> bool {
        self.is_over() && self.done.fetch_or(DONE, Ordering::AcqRel) & DONE == 0
    }

    /// Sends the head. No call that sends is under way in the kernel.
    pub(crate) fn send_head(&self, end: &Socket) -> Result<()> {
        let mut head = [0u8; HEAD_BYTES];
        head[..WORD.len()].copy_from_slice(&WORD);
        head[WORD.len()..].copy_from_slice(&self.counts.sent().to_le_bytes());
        let mut sent = 0;
        while sent < HEAD_BYTES {
            let rest = &mut head[sent..];
            let piece = [iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() }];
            // SAFETY: the head's memory.
            match unsafe { end.send_copied(&piece) } {
                Ok(part) => sent += part,
                // A part of it must not be left.
                Err(error) if error.errno() == libc::EAGAIN && sent > 0 => pd_client::core::yield_now(),
                Err(error) => return Err(error),
            }
        }
        self.done.fetch_or(SENDS, Ordering::AcqRel);
        Ok(())
    }

    /// Looks for the peer's head.
    pub(crate) fn look(&self, end: &Socket) -> Result<()> {
        if self.has(HEAD | HEADLESS) || end.received() < HEAD_BYTES as u64 {
            return Ok(());
        }
        let head = Self::take(end, true)?;
        let (word, at) = head.split_at(WORD.len());
        let ends_at = u64::from_le_bytes(at.try_into().unwrap_or_default());
        if word != WORD || ends_at < self.counts.received() {
            return Err(Error::with_errno(
                libc::ECONNRESET,
                "the peer says what cannot be of the kernel's stream",
            ));
        }
        self.ends_at.store(ends_at, Ordering::Release);
        self.done.fetch_or(HEAD, Ordering::AcqRel);
        Ok(())
    }

    /// Returns whether what there is begins with a head; none: nothing is there.
    pub(crate) fn begins(end: &Socket) -> Option<bool> {
        match end.received() {
            0 => None,
            there if there < HEAD_BYTES as u64 => Some(false),
            _ => Some(Self::take(end, true).is_ok_and(|head| head.starts_with(&WORD))),
        }
    }

    fn take(end: &Socket, peek: bool) -> Result<[u8; HEAD_BYTES]> {
        let mut head = [0u8; HEAD_BYTES];
        let piece = [iovec { iov_base: head.as_mut_ptr().cast(), iov_len: HEAD_BYTES }];
        // SAFETY: the head's memory.
        unsafe { end.recv_copied(&piece, peek) }?;
        Ok(head)
    }

    /// Bytes of the kernel's that are to come; none: not known.
    fn left(&self) -> Option<u64> {
        let ends_at = self.ends_at.load(Ordering::Acquire);
        self.has(HEAD).then(|| ends_at.saturating_sub(self.counts.received()))
    }

    /// Goes on by the twin if the kernel's part has been received.
    fn finish(&self, end: &Socket) -> Result<bool> {
        self.look(end)?;
        if self.left() != Some(0) {
            return Ok(false);
        }
        if !self.receives() {
            Self::take(end, false)?;
            let _ = end.set_recv_lowat(self.lowat);
            self.done.fetch_or(RECEIVES, Ordering::AcqRel);
        }
        Ok(true)
    }

    /// Goes on by the twin, for a caller that only sends, if the kernel's part has been received.
    pub(crate) fn finish_receiving(&self, end: &Socket) {
        if let (false, Ok(_one)) = (self.receives(), self.receiving.try_lock()) {
            let _ = self.finish(end);
        }
    }

    /// Fewest bytes that a receive waits for.
    pub(crate) fn lowat(&self) -> u64 {
        self.lowat
    }

    /// Bytes that can be received at once where so many lie in the kernel.
    pub(crate) fn there(&self, end: &Socket, in_kernel: u64) -> Result<u64> {
        self.look(end)?;
        let behind = || end.received().saturating_sub(self.head_bytes());
        Ok(match self.left() {
            _ if self.receives() => behind(),
            None => in_kernel,
            // Over TCP a part may still be on its way.
            Some(left) if in_kernel < left => in_kernel,
            Some(left) => left + behind(),
        })
    }

    /// Bytes of the twin's that are not the program's.
    pub(crate) fn head_bytes(&self) -> u64 {
        if self.receives() {
            0
        } else {
            HEAD_BYTES as u64
        }
    }

    /// Receives what is there: of the kernel's part, and after that by the twin. `owed`: up to where the driver brings what the peer has
    /// sent there, if this side has left; 0 before.
    ///
    /// # Safety
    /// Each piece is memory that may be written, or null: its bytes are thrown away.
    pub(crate) unsafe fn receive(
        &self,
        fd: c_int,
        end: &Socket,
        pieces: &[iovec],
        peek: bool,
        owed: impl Fn() -> u64,
    ) -> Result<Found> {
        let _one = lock(&self.receiving);
        // SAFETY: the caller's promise.
        unsafe {
            loop {
                if self.receives() || self.finish(end)? {
                    return end.recv_copied(pieces, peek).map(Found::Bytes);
                }
                let Some(left) = self.left() else {
                    if end.peer_has_ended() && end.received() < HEAD_BYTES as u64 {
                        return self.without_head(fd, end, pieces, peek);
                    }
                    // Bytes that the kernel shows before the look precede a head that comes after it.
                    let there = self.kernel(fd, pieces, usize::MAX, true);
                    self.look(end)?;
                    if self.has(HEAD) || end.peer_has_ended() || end.sends_elsewhere() {
                        // A message with descriptors may have come, which is for another call.
                        pd_client::core::yield_now();
                        continue;
                    }
                    if end.position() + end.received() < owed() {
                        // The head may be on its way still, and the peer, which follows, has perhaps marked the kernel's stream.
                        return Err(Error::with_errno(libc::EAGAIN, "the peer's head has not come"));
                    }
                    let there = there?;
                    if peek || there == 0 {
                        return Ok(Found::Bytes(there));
                    }
                    return self.kernel(fd, pieces, there, false).map(Found::Bytes);
                };
                let part = self.kernel(fd, pieces, usize::try_from(left).unwrap_or(usize::MAX), peek)?;
                if part == 0 && total(pieces) > 0 {
                    return Err(Error::with_errno(libc::ECONNRESET, "the kernel's stream has ended early"));
                }
                if part as u64 != left || part == total(pieces) {
                    return Ok(Found::Bytes(part));
                }
                let rest = after(pieces, part);
                let more = if peek {
                    Self::peek_behind(end, &rest)
                } else {
                    self.finish(end).and_then(|_| end.recv_copied(&rest, false))
                };
                return Ok(Found::Bytes(part + more.unwrap_or(0)));
            }
        }
    }

    /// The twin has ended, and no head comes.
    unsafe fn without_head(&self, fd: c_int, end: &Socket, pieces: &[iovec], peek: bool) -> Result<Found> {
        self.done.fetch_or(HEADLESS, Ordering::AcqRel);
        if !end.ends_elsewhere(end.received()) {
            if !self.sends() {
                return Ok(Found::Headless);
            }
            // This side's sends stay there; the peer's end in the kernel.
            // SAFETY: the caller's promise.
            return unsafe { self.kernel(fd, pieces, usize::MAX, peek) }.map(Found::Bytes);
        }
        self.done.fetch_or(RECEIVES, Ordering::AcqRel);
        Err(Error::with_errno(ELSEWHERE, "the connection goes on in the kernel"))
    }

    /// Peeks at what lies behind the head.
    unsafe fn peek_behind(end: &Socket, pieces: &[iovec]) -> Result<usize> {
        let mut bytes = vec![0u8; HEAD_BYTES + total(pieces).min(AWAY_BYTES)];
        let piece = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        // SAFETY: the buffer's memory.
        let there = unsafe { end.recv_copied(&piece, true) }?.saturating_sub(HEAD_BYTES);
        let mut from = &bytes[HEAD_BYTES..HEAD_BYTES + there];
        for piece in pieces {
            let part = from.len().min(piece.iov_len);
            if !piece.iov_base.is_null() {
                // SAFETY: the caller's memory.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), piece.iov_base.cast::<u8>(), part) };
            }
            from = &from[part..];
        }
        Ok(there)
    }

    /// At most `most` bytes of the kernel's stream that are there.
    unsafe fn kernel(&self, fd: c_int, pieces: &[iovec], most: usize, peek: bool) -> Result<usize> {
        let mut scratch = Vec::new();
        let mut list = Vec::with_capacity(pieces.len());
        let mut room = most;
        for piece in pieces.iter().filter(|piece| piece.iov_len > 0) {
            if piece.iov_base.is_null() && scratch.is_empty() {
                scratch = vec![0u8; AWAY_BYTES];
            }
            let thrown = piece.iov_base.is_null();
            let len = piece.iov_len.min(room).min(if thrown { AWAY_BYTES } else { usize::MAX });
            let at = if thrown { scratch.as_mut_ptr().cast() } else { piece.iov_base };
            list.push(iovec { iov_base: at, iov_len: len });
            room -= len;
            if thrown || room == 0 {
                break;
            }
        }
        let flags = libc::MSG_DONTWAIT | if peek { libc::MSG_PEEK } else { 0 };
        // SAFETY: zeroes are a message without pieces; those are memory as the caller says.
        let moved = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (list.as_mut_ptr(), list.len() as _);
            real::recvmsg(fd, &mut message, flags)
        };
        match usize::try_from(moved) {
            Ok(moved) => {
                if !peek {
                    self.counts.add(Moves::Receives, moved);
                }
                Ok(moved)
            }
            Err(_) => Err(Error::with_errno(errno(), "nothing came by the kernel")),
        }
    }
}

fn total(pieces: &[iovec]) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

/// The pieces behind the first `done` bytes.
fn after(pieces: &[iovec], mut done: usize) -> Vec<iovec> {
    let cut = |piece: &iovec| {
        let part = done.min(piece.iov_len);
        done -= part;
        let at =
            if piece.iov_base.is_null() { piece.iov_base } else { piece.iov_base.wrapping_byte_add(part) };
        iovec { iov_base: at, iov_len: piece.iov_len - part }
    };
    pieces.iter().map(cut).collect()
}
