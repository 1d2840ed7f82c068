//! Sending on the direct path: one copy into the own ring, or none if it is written in place.
use super::outgoing::Outgoing;
use super::setup::connections;
use super::wait::{went_on, RECV, SEND};
use super::ALIVE_BYTES;
use crate::error::Result;
use crate::send::side::{Fill, SendSide, Unsent};
use crate::turn::HasTurn;
use pd_abi::layout::direct;
use pd_abi::limits::LINE_BYTES;
use pd_abi::{Operation, Request, LEFT_SENDING};
use pd_shm::byte_ring::{Broken, OwnWords, WakerWords};
use std::sync::atomic::{fence, Ordering};

/// A long message is shown to the receiver piece by piece, so that it reads while the rest is copied.
const PIECE_BYTES: u64 = 32 << 10;

/// While room is plenty, short messages ask for the lines of those to come this far ahead: the receiver's core has them
/// from the last time around, and stores are seen in order, so that each would wait for its own.
const AHEAD_BYTES: u64 = 512;

/// A connection begins offloaded: a ring is made when so much was sent that it is worth the making, a message
/// weighing one and each 4 KiB of it one more, and messages less in a crowd...
const RING_DUE: u64 = 64;
/// ...and its bytes go there from a moment on when the driver has delivered all before. There has to be one by then.
const RING_OVERDUE: u64 = 2 * RING_DUE;
impl SendSide {
    /// Nothing more is sent by the driver: the connection waits to go on directly.
    #[inline]
    pub(crate) fn is_overdue(&self) -> bool {
        !self.out.has_ring() && self.out.weighs(RING_OVERDUE, connections()) && self.link.goes_direct()
    }

    /// Leaves the direct path if the connection does.
    #[inline]
    pub(crate) fn leave_if_asked(&mut self) {
        // Without a ring there is none to leave, and the driver's line had better stay where it is.
        let has_own = || self.link.direct.as_ref().is_some_and(|shared| shared.has_own());
        if !self.out.left && has_own() && self.link.has_left() {
            self.leave();
        }
    }

    #[cold]
    fn leave(&mut self) {
        self.out = Outgoing { left: true, ..Outgoing::default() };
        // SYNC POINT: direct-left (after the last byte, and before what is sent by the driver)
        let _ = self.link.submit(Request { value: LEFT_SENDING, ..self.link.request(Operation::Left) });
    }

    /// Tells whether it may be time to go on directly.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let has_own = || self.link.direct.as_ref().is_some_and(|shared| shared.has_own());
        !self.out.has_ring() && (self.out.weighs(RING_DUE, connections()) || has_own())
    }

    /// Goes on directly if it is time, and nothing is on its way. Without memory for a ring it stays offloaded.
    pub(crate) fn try_ring(&mut self) {
        let Some(shared) = self.link.direct.as_ref().filter(|_| self.is_due()) else { return };
        if !self.link.goes_direct() {
            self.out.weight = 0; // to be looked at again after as much
            return;
        }
        let shared = shared.clone();
        // SYNC POINT: direct-begin (the peer sees the first byte in the ring, then all that was delivered)
        self.reap();
        if self.in_flight() > 0 {
            return;
        }
        match shared.own(&self.link.attachment, self.link.id) {
            // A ring that came too late is not looked at.
            Ok(_) if !self.link.goes_direct() => {}
            Ok(own) => {
                self.out.set_rings(own, None);
                // Nothing was written: a peer that has given something back ends the connection, as `end` says.
                let _ = self.look_for_room();
            }
            Err(_) => self.out.weight = 0,
        }
    }

    /// Looks how much the peer has given back.
    #[inline]
    pub(crate) fn look_for_room(&mut self) -> Result<()> {
        if self.link.direct.is_none() {
            return Ok(());
        }
        if self.out.peer.is_none() {
            if let Some((own, peer)) = self.link.rings()? {
                self.out.set_rings(own, Some(peer));
            }
        }
        let Some(peer) = &self.out.peer else { return Ok(()) };
        match self.out.cursor.see(peer.load(direct::CONSUMER)) {
            Ok(_) => Ok(()),
            Err(Broken) => Err(self.link.break_direct()),
        }
    }

    /// Tells whether the peer has not given back all that was written into the ring.
    pub(crate) fn lies_in_ring(&mut self) -> bool {
        self.out.has_ring()
            && self.look_for_room().is_ok()
            && self.out.cursor.freed() != self.out.cursor.written()
    }

    /// Asks for an event when there is room. Says whether some has come meanwhile.
    pub(crate) fn arm_direct(&mut self) -> bool {
        let (before, at) = (self.out.cursor.freed(), self.out.half_free_at());
        let lent = self.turn().is_sleeping();
        if let Some(own) = &self.out.own {
            self.out.fence.arm(&OwnWords { own, words: &SEND }, at.max(1), lent);
        }
        self.look_for_room().is_err() || self.out.cursor.freed() != before || self.end().is_err()
    }

    /// Copies what fits of `len` bytes at `ptr`: all of a piece, unless `splinters` will do. Returns how much.
    ///
    /// # Safety
    /// `len` readable bytes at `ptr`.
    #[inline]
    pub(super) unsafe fn write_direct(&mut self, ptr: *const u8, len: u64, splinters: bool) -> Result<u64> {
        let piece = len.min(PIECE_BYTES).min(self.out.most_placed());
        if self.out.room() < piece {
            self.look_for_room()?;
            if self.out.room() < piece && !(splinters && self.out.room() > 0) {
                return Ok(0);
            }
        }
        let part = piece.min(self.out.room());
        let Some(own) = &self.out.own else { return Ok(0) };
        let written = self.out.cursor.written();
        let first = part.min(own.to_end(written));
        // SAFETY: `part` bytes are readable, the caller says; the room in the own ring is nobody else's: the peer
        // has given it back and can only read it anyway.
        unsafe {
            own.map().copy_in(own.place(written), ptr, first as usize);
            if part > first {
                own.map().copy_in(own.ring_offset(), ptr.add(first as usize), (part - first) as usize);
            }
        }
        self.wrote(part, part == len)?;
        Ok(part)
    }

    /// Shows the peer `part` bytes more, if any; with them a message `ends` or not.
    ///
    /// # Errors
    /// `ESTALE`: another process has taken the socket before. It is to send those bytes.
    #[inline]
    pub(crate) fn wrote(&mut self, part: u64, ends: bool) -> Result<()> {
        let Some(own) = self.out.own.as_ref().filter(|_| part > 0) else { return Ok(()) };
        let written = self.out.cursor.written();
        if self.may_move {
            self.link.claim_sent(own, written + part)?;
        }
        if part <= AHEAD_BYTES && self.out.room() > 4 * AHEAD_BYTES {
            let lines = (0..part).step_by(LINE_BYTES);
            lines.for_each(|at| own.map().prefetch_to_write(own.place(written + part + AHEAD_BYTES + at)));
        }
        if (written + part) / ALIVE_BYTES != written / ALIVE_BYTES {
            self.link.attachment.check_alive();
        }
        self.out.cursor.write(part);
        if ends {
            self.out.messages += 1;
            own.map().store_u64(direct::MESSAGES, self.out.messages, Ordering::Relaxed);
        }
        own.publish(direct::PRODUCER, self.out.cursor.publish());
        self.tell_receiver();
        Ok(())
    }

    /// Has `fill` write up to `wanted` bytes into the own ring: not a splinter of them. Returns how many it wrote, and
    /// whether it has more; none: there is no room.
    pub(crate) fn fill_direct(
        &mut self,
        wanted: u64,
        fill: &mut Fill<'_>,
        unsent: &mut Unsent<'_>,
    ) -> Result<Option<(usize, bool)>> {
        let piece = wanted.min(PIECE_BYTES).min(self.out.most_placed());
        let Some(place) = self.place_direct(piece)? else { return Ok(None) };
        let part = place.len();
        let filled = fill(place.cast(), part)?.min(part);
        self.wrote(filled as u64, filled < part || filled as u64 == wanted)
            .inspect_err(|_| unsent(place.cast(), filled))?;
        Ok(Some((filled, filled == part)))
    }

    /// The place of the next `len` bytes in the own ring, if there is room for all of them; of the first only, where the
    /// ring ends.
    #[inline]
    pub(crate) fn place_direct(&mut self, len: u64) -> Result<Option<*mut [u8]>> {
        if self.out.room() < len {
            self.look_for_room()?;
            if self.out.room() < len {
                return Ok(None);
            }
        }
        let Some(own) = &self.out.own else { return Ok(None) };
        let written = self.out.cursor.written();
        let len = len.min(own.to_end(written)) as usize;
        let place = own.map().address(own.place(written), len);
        Ok(Some(std::ptr::slice_from_raw_parts_mut(place.as_ptr(), len)))
    }

    #[inline]
    fn tell_receiver(&mut self) {
        if self.out.peer.is_none() {
            // SYNC POINT: direct-ready (the driver says that the peer has a ring before the peer sleeps)
            fence(Ordering::SeqCst);
            // A failure shows itself to the thread that waits for room. The peer looks again by itself.
            let _ = self.look_for_room();
        }
        let out = &mut self.out;
        let (Some(own), Some(peer)) = (&out.own, &out.peer) else { return };
        if out.waker.tell(&WakerWords { own, peer, words: &RECV }, out.cursor.written()) {
            self.link.announce(peer);
        }
    }

    /// There was room, without a sleep.
    #[inline]
    pub(crate) fn went_on(&mut self) {
        if self.turn().is_sleeping() {
            return;
        }
        if let (Some(own), Some(peer)) = (&self.out.own, &self.out.peer) {
            went_on(&mut self.out.fence, own, peer, &SEND);
        }
    }
}
