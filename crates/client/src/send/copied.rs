//! Sending from memory of the program's: one copy into blocks of send memory, which are given up at
//! once and free themselves when they are delivered; on the direct path into the own ring. Never waits.
use super::side::{foreign, Fill, SendSide, Unsent};
use super::stale;
use crate::arena;
use crate::error::{would_block, Error, Result};
use crate::forks::forks;
use crate::kept::Kept;
use crate::lock::Guard;
use crate::malloc::malloc;
use crate::socket::Socket;
use libc::iovec;
use pd_shm::copy::copy;
use std::ptr;

/// The thread's block that small messages are put into one behind the other.
const STAGE_BYTES: usize = 16 << 10;
/// Longer ones get a block of their own.
const STAGED_BYTES_MAX: usize = STAGE_BYTES / 4;
/// Longest block.
const BLOCK_BYTES_MAX: usize = 128 << 10;
/// Start of a message in the stage: lines are not shared.
const STAGE_ALIGN: usize = 64;
/// Bytes in flight: what is written should still be in a cache when the driver reads it.
pub(crate) const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// See [`STAGE_BYTES`].
struct Stage {
    forks: u32,
    start: *mut u8,
    used: usize,
}

impl Stage {
    const EMPTY: Self = Self { forks: 0, start: ptr::null_mut(), used: STAGE_BYTES };

    fn take(&mut self, bytes: usize) -> Result<*mut u8> {
        if self.forks != forks() {
            *self = Self { forks: forks(), ..Self::EMPTY };
        }
        if self.used + bytes > STAGE_BYTES {
            self.give_up();
            self.start = malloc(STAGE_BYTES)?.as_ptr();
            self.used = 0;
        }
        let place = self.start.wrapping_add(self.used);
        self.used += bytes.next_multiple_of(STAGE_ALIGN);
        Ok(place)
    }

    fn give_up(&mut self) {
        if !self.start.is_null() && self.forks == forks() {
            // Of an attachment that has ended it is freed with the rest.
            let _ = arena::free(self.start);
        }
        (self.start, self.used) = (ptr::null_mut(), STAGE_BYTES);
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.give_up();
    }
}

thread_local! {
    static STAGE: Kept<Stage> = const { Kept::new(Stage::EMPTY, || STAGE.with(Kept::release)) };
}

impl SendSide {
    /// Bytes that may be sent now, of `wanted`: not a splinter of them.
    fn copied_room(&self, wanted: u64) -> u64 {
        if self.is_overdue() {
            return 0; // it goes on directly when all before is delivered
        }
        let window = self.ring_bytes.min(WINDOW_BYTES_MAX);
        let room = self.room().min(window.saturating_sub(self.bytes)).min(wanted);
        if room < wanted && room < window / 8 {
            0
        } else {
            room
        }
    }
}

/// Memory for one message, to be given up after it was sent.
pub(super) struct Place {
    pub(super) start: *mut u8,
    own: bool,
}

impl Place {
    /// Not under a socket's lock: to find free memory all sockets may be looked at.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        if bytes <= STAGED_BYTES_MAX {
            let staged =
                STAGE.try_with(|stage| stage.try_borrow_mut().ok().map(|mut stage| stage.take(bytes)));
            if let Some(start) = staged.ok().flatten().transpose()? {
                return Ok(Self { start, own: false });
            }
        }
        Ok(Self { start: malloc(bytes)?.as_ptr(), own: true })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.own {
            // Now, or when it is delivered.
            let _ = arena::free(self.start);
        }
    }
}

impl Socket {
    /// Sends at most `len` bytes, which `fill` puts in place. Returns how many were sent: what there is
    /// room for, or what `fill` had. `fill` is called for each contiguous part, twice at the end of a ring.
    ///
    /// # Errors
    /// `EAGAIN` without room; `EPIPE`, `ECONNRESET`, `ENOTCONN`; those of `fill`, if nothing was sent.
    pub fn send_filled(&self, len: usize, fill: &mut Fill<'_>) -> Result<usize> {
        self.send_filled_once(len, fill, &mut |_, _| {})
    }

    /// Sends at most `len` bytes that `fill` can read only once from their origin. `unsent` gets bytes that `fill` wrote and that are not
    /// sent because another process has taken the socket.
    ///
    /// # Errors
    /// The errors of [`Self::send_filled`].
    pub fn send_filled_once(
        &self,
        len: usize,
        fill: &mut Fill<'_>,
        unsent: &mut Unsent<'_>,
    ) -> Result<usize> {
        self.check_usable()?;
        let _copying = self.copying.lock();
        if self.send.lock().adoptable {
            self.adopt()?;
        }
        let mut sent = 0;
        while sent < len {
            match self.send_next((len - sent) as u64, sent == 0, fill, unsent) {
                Ok((filled, more)) => {
                    sent += filled;
                    if !more {
                        break;
                    }
                }
                Err(error) => return if sent == 0 { Err(error) } else { Ok(sent) },
            }
        }
        Ok(sent)
    }

    /// Sends the next part of `wanted` bytes. Returns how long it was, and whether `fill` has more.
    fn send_next(
        &self,
        wanted: u64,
        first: bool,
        fill: &mut Fill<'_>,
        unsent: &mut Unsent<'_>,
    ) -> Result<(usize, bool)> {
        let mut side = self.send.lock();
        side.leave_if_asked();
        if side.is_due() {
            side.try_ring();
        }
        if side.out.has_ring() {
            return self.send_filled_direct(side, wanted, fill, unsent);
        }
        let part = self.copied_part(side, wanted, first)?;
        self.send_part(part, fill, unsent).map(|filled| (filled, filled == part))
    }

    fn send_filled_direct(
        &self,
        mut side: Guard<'_, SendSide>,
        wanted: u64,
        fill: &mut Fill<'_>,
        unsent: &mut Unsent<'_>,
    ) -> Result<(usize, bool)> {
        loop {
            side.end()?;
            if let Some(filled) = side.fill_direct(wanted, fill, unsent)? {
                side.went_on();
                return Ok(filled);
            }
            if !(self.watch.subscribed() && side.arm()) {
                return Err(would_block());
            }
        }
    }

    /// Returns the longest next part that may go by the driver.
    fn copied_part(&self, mut side: Guard<'_, SendSide>, wanted: u64, first: bool) -> Result<usize> {
        let look = first && side.wants_look();
        if look || side.copied_room(wanted) < wanted {
            side.reap();
            side.end()?;
        } else {
            side.check_open()?;
        }
        loop {
            let room = side.copied_room(wanted) as usize;
            if room > 0 {
                return Ok(room.min(BLOCK_BYTES_MAX));
            }
            // An epoll instance may wait for room.
            if !(self.watch.subscribed() && side.arm()) {
                return Err(would_block());
            }
        }
    }

    fn send_part(&self, bytes: usize, fill: &mut Fill<'_>, unsent: &mut Unsent<'_>) -> Result<usize> {
        let place = Place::new(bytes)?;
        let filled = fill(place.start, bytes)?;
        if filled == 0 {
            return Ok(0);
        }
        let (block, offset) = arena::find(place.start, filled).ok_or_else(foreign)?;
        let mut side = self.send.lock();
        if !block.is_of(&side.link.attachment) {
            side.end()?;
            return Err(stale());
        }
        side.post(block, offset, filled as u64)?;
        side.check_taken().inspect_err(|_| unsent(place.start, filled))?;
        Ok(filled)
    }

    /// Sends the bytes of `pieces`; see [`Self::send_filled`].
    ///
    /// # Errors
    /// The errors of [`Self::send_filled`].
    ///
    /// # Safety
    /// Each piece is memory that may be read.
    pub unsafe fn send_copied(&self, pieces: &[iovec]) -> Result<usize> {
        let len = pieces.iter().map(|piece| piece.iov_len).sum();
        let (mut piece, mut offset) = (0, 0);
        self.send_filled(len, &mut |mut place, bytes| {
            let mut left = bytes;
            while left > 0 {
                let from = pieces.get(piece).ok_or_else(|| Error::invalid("the pieces end early"))?;
                let part = left.min(from.iov_len - offset);
                // SAFETY: inside the caller's memory, and `place` has room for `left` bytes more.
                unsafe {
                    copy(place, from.iov_base.cast::<u8>().add(offset), part);
                    place = place.add(part);
                }
                left -= part;
                offset += part;
                if offset == from.iov_len {
                    (piece, offset) = (piece + 1, 0);
                }
            }
            Ok(bytes)
        })
    }

    /// Bytes sent and not yet delivered.
    pub fn undelivered(&self) -> u64 {
        let mut side = self.send.lock();
        side.reap();
        side.bytes
    }
}
