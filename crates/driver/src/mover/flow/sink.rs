//! Destination of a flow's stream: the receive ring, its part in use (RBT, receive buffer table), and the words to and from the receiver.
use super::{wants_event, Pump};
use crate::messages::{Endpoint, Ring, Violation};
use crate::mover::ring_sizing::{RingSizing, Shares};
use crate::mover::scheduler::{PayerId, NOBODY};
use crate::mover::table::BufferTable;
use crate::takeover::pack::{Hindrance, Wrong};
use pd_abi::layout::{moved, socket_status};
use pd_shm::wait::Waker;
use pd_shm::Mapping;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// Delivered bytes after which a receiver is woken, unless all sends are delivered or its ring is full before. A wake-up for every message
/// would cost more than the messages. Half as much costs more system calls, and moves no more.
const WAKE_BYTES: u64 = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct Sink {
    /// The receiving end.
    end: Endpoint,
    ring: Option<Ring>,
    /// Set while a ring is asked for.
    asked: bool,
    /// Payer of the ring that it has or has asked for.
    payer: PayerId,
    sizing: RingSizing,
    /// Copies under way in the receive ring, in order of the stream.
    rbt: BufferTable,
    /// Bytes ever reserved. The ring holds the bytes from `consumed` to `reserved`.
    reserved: u64,
    /// Bytes ever delivered.
    delivered: u64,
    /// Bytes ever given back.
    consumed: u64,
    /// Set when the client has taken the socket into use.
    taken: bool,
    /// Delivered bytes that the client was told of.
    published: u64,
    /// Bytes delivered at the last look whether the receiver waits.
    announced: u64,
    waker: Waker,
    /// Set when the client has gone, or takes no more.
    gone: bool,
    end_published: bool,
}

/// A sink without copies under way, as another driver goes on with it.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkState {
    /// Region, first page, pages, and the bytes that the receiver wishes for.
    pub ring: Option<(u16, u32, u32, u64)>,
    delivered: u64,
    consumed: u64,
    announced: u64,
    taken: bool,
    gone: bool,
    end_published: bool,
}

impl SinkState {
    /// Tells whether the receiver was told of the end of the stream.
    pub fn is_end_published(&self) -> bool {
        self.end_published
    }

    /// Tells whether so many bytes were delivered.
    pub fn is_at(&self, delivered: u64) -> bool {
        self.delivered == delivered
    }

    /// Brings the state up to what a receiver was told and has given back, with a ring of `room` bytes; none: there is no receiver, or it has
    /// not begun. Returns whether that can be.
    pub fn catch_up(&mut self, delivered: Option<u64>, consumed: Option<u64>, room: u64) -> bool {
        let before = self.consumed;
        self.delivered = delivered.unwrap_or(self.delivered);
        self.consumed = consumed.unwrap_or(before);
        // The receiver is told once more.
        self.announced = 0;
        let unread = self.delivered.checked_sub(self.consumed).filter(|_| self.consumed >= before);
        let fits = unread.is_some_and(|unread| unread <= room || self.gone);
        if !fits {
            self.consumed = self.delivered;
        }
        fits
    }
}

/// The receive ring, while bytes are put into it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Address of the first byte.
    pub base: u64,
    bytes: u64,
}

/// Bytes of the ring that the flow may write.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Offset of the first in the ring.
    pub position: u64,
    pub len: u64,
}

/// News for the receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Announced {
    pub woke: bool,
    /// Set if the receiver wants an event, or was woken.
    pub wanted: bool,
}

impl Sink {
    pub fn new(end: Endpoint) -> Self {
        Self {
            end,
            ring: None,
            asked: false,
            payer: NOBODY,
            sizing: RingSizing::default(),
            rbt: BufferTable::new(u64::MAX),
            reserved: 0,
            delivered: 0,
            consumed: 0,
            taken: false,
            published: 0,
            announced: 0,
            waker: Waker::default(),
            gone: false,
            end_published: false,
        }
    }

    /// Returns the state that another driver goes on with.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&self) -> Result<SinkState, Hindrance> {
        if !self.rbt.is_empty() || self.published != self.delivered {
            return Err(Hindrance::passing("an engine has not ended its copies"));
        }
        let ring = self.ring.as_ref().map(|ring| (ring.region, ring.page, ring.pages, ring.wished));
        let &Self { delivered, consumed, announced, taken, gone, end_published, .. } = self;
        Ok(SinkState { ring, delivered, consumed, announced, taken, gone, end_published })
    }

    /// Takes over state that another driver has given, in a ring that is the same.
    ///
    /// # Errors
    /// The fault in it.
    pub fn resume(end: Endpoint, state: SinkState, ring: Option<Ring>) -> Result<Self, Wrong> {
        let SinkState { ring: _, delivered, consumed, announced, taken, gone, end_published } = state;
        let room = ring.as_ref().map_or(0, Ring::bytes);
        let unread = delivered.checked_sub(consumed);
        if announced > delivered
            || delivered > u64::MAX / 2
            || unread.is_none_or(|unread| unread > room && !gone)
        {
            return Err(Wrong::of(format!("bytes of socket {} of client {}", end.slot, end.client)));
        }
        let (reserved, published) = (delivered, delivered);
        let counts = Self { reserved, delivered, consumed, published, announced, ..Self::new(end) };
        Ok(Self { ring, taken, gone, end_published, ..counts })
    }

    pub fn end(&self) -> &Endpoint {
        &self.end
    }

    pub fn end_mut(&mut self) -> &mut Endpoint {
        &mut self.end
    }

    pub fn set_ring(&mut self, ring: Ring) {
        let Endpoint { slot, ref memory, .. } = self.end;
        memory.publish_u32(slot, socket_status::RING_REGION, ring.region.into());
        memory.publish_u32(slot, socket_status::RING_PAGE, ring.page);
        memory.publish_u32(slot, socket_status::RING_PAGES, ring.pages);
        self.sizing.begin(ring.is_first);
        self.ring = Some(ring);
        self.asked = false;
    }

    pub fn take_ring(&mut self) -> Option<Ring> {
        self.sizing.begin(false);
        self.ring.take()
    }

    #[inline]
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Returns the payer of the ring that it has or has asked for.
    pub fn payer(&self) -> PayerId {
        self.payer
    }

    /// Asks for a ring. Returns whether one was asked for already.
    pub fn ask(&mut self) -> bool {
        std::mem::replace(&mut self.asked, true)
    }

    /// Sets the payer of that ring.
    pub fn set_payer(&mut self, payer: PayerId) {
        self.payer = payer;
    }

    /// Tells whether a ring is asked for.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// Notes that the ring that was asked for does not come. Returns whether any was asked for.
    pub fn take_asked(&mut self) -> bool {
        std::mem::take(&mut self.asked)
    }

    /// Looks at each tick whether the ring is to be exchanged for one of another size. Returns whether the flow was busy since the last
    /// tick.
    pub fn check_size(&mut self, shares: Shares) -> bool {
        let Some(ring) = &self.ring else { return false };
        self.sizing.look((ring.bytes(), ring.wished), self.delivered, shares)
    }

    fn ring_bytes(&self) -> u64 {
        self.ring.as_ref().map_or(0, Ring::bytes)
    }

    fn refresh_consumed(&mut self) -> Result<(), Violation> {
        let Endpoint { slot, generation, ref memory, .. } = self.end;
        if !self.taken {
            self.taken = memory.slot_taken(slot, generation);
            if !self.taken {
                return Ok(());
            }
        }
        let consumed = memory.recv_consumer(slot);
        if consumed < self.consumed || consumed > self.published {
            return Err(Violation::ReceiveRing);
        }
        self.consumed = consumed;
        Ok(())
    }

    /// Returns the ring if bytes may be put there now, or the reason why not.
    ///
    /// # Errors
    /// The receiving client broke the protocol.
    pub fn open(&mut self) -> Result<Result<Place, Pump>, Violation> {
        if self.sizing.is_to_be_resized() {
            self.refresh_consumed()?;
            // All that ever went into the ring has been given back.
            if self.consumed == self.reserved {
                return Ok(Err(Pump::Resize));
            }
            if self.sizing.is_closed() {
                return Ok(Err(Pump::Full));
            }
        }
        let Some(ring) = &self.ring else { return Ok(Err(Pump::NoRing)) };
        let bytes = ring.bytes();
        let base = ring.map.address(ring.offset(), bytes as usize).as_ptr() as u64;
        Ok(Ok(Place { base, bytes }))
    }

    /// Returns room for `want` bytes or fewer, in one piece. `None`: the ring is full.
    ///
    /// # Errors
    /// The receiving client broke the protocol.
    #[inline]
    pub fn room(&mut self, place: Place, want: u64) -> Result<Option<Room>, Violation> {
        let mut room = place.bytes - (self.reserved - self.consumed);
        if room < want {
            self.refresh_consumed()?;
            room = place.bytes - (self.reserved - self.consumed);
        }
        if room == 0 {
            self.sizing.note_full(self.consumed);
            return Ok(None);
        }
        let position = self.reserved & (place.bytes - 1);
        Ok(Some(Room { position, len: want.min(room).min(place.bytes - position) }))
    }

    /// Returns the place for `len` bytes that are put there at once, if the ring has room for all of them in one piece.
    #[inline]
    pub fn room_at_once(&mut self, len: u64) -> Option<*mut u8> {
        if !self.rbt.is_empty() || self.sizing.is_to_be_resized() {
            return None;
        }
        let ring = self.ring.as_ref()?;
        let (bytes, offset) = (ring.bytes(), ring.offset());
        let position = self.reserved & (bytes - 1);
        if len > bytes - position {
            return None;
        }
        let place = ring.map.address(offset + position as usize, len as usize).as_ptr();
        let lacks_room = |sink: &Self| bytes - (sink.reserved - sink.consumed) < len;
        if lacks_room(self) && (self.refresh_consumed().is_err() || lacks_room(self)) {
            return None;
        }
        Some(place)
    }

    /// Begins a copy into this room. Returns its number, unless too many are under way.
    #[inline]
    pub fn begin_copy(&mut self, room: Room) -> Option<u64> {
        self.rbt.insert(room.position, room.len)
    }

    /// Ends a copy. Returns whether it was under way.
    pub fn end_copy(&mut self, number: u64) -> bool {
        self.rbt.finish(number)
    }

    /// Ends a copy by an engine's number of it. Returns whether it was under way.
    #[inline]
    pub fn end_command(&mut self, entry_seq: u16) -> bool {
        self.rbt.number(entry_seq).is_some_and(|number| self.rbt.finish(number))
    }

    /// Takes the oldest copy, if it has ended. Returns its bytes, which are next in the stream.
    #[inline]
    pub fn take_arrived(&mut self) -> Option<u64> {
        self.rbt.remove_finished().map(|entry| entry.size)
    }

    /// Reserves the next bytes of the ring.
    #[inline]
    pub fn reserve(&mut self, len: u64) {
        self.reserved += len;
    }

    /// Counts the next bytes of the stream as delivered: they are in the ring.
    #[inline]
    pub fn deliver(&mut self, len: u64) {
        self.delivered += len;
    }

    /// Tells whether no copy is under way.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.rbt.is_empty()
    }

    /// Returns the mapping in which the ring lies, and the ring's offset there.
    pub fn mapping(&self) -> Option<(&Arc<Mapping>, usize)> {
        self.ring.as_ref().map(|ring| (&ring.map, ring.offset()))
    }

    /// Tells whether a full ring has room by now.
    ///
    /// # Errors
    /// The receiving client broke the protocol.
    pub fn has_room(&mut self) -> Result<bool, Violation> {
        self.refresh_consumed()?;
        Ok(self.reserved - self.consumed < if self.sizing.is_closed() { 1 } else { self.ring_bytes() })
    }

    /// Asks the receiver to report when half of a full ring, or the pending bytes, are given back. A ring that takes nothing before has to
    /// be empty. The caller then makes a fence and looks at [`Self::has_room`].
    pub fn ask_for_room(&self, pending: u64) {
        if self.end_published {
            return;
        }
        let ring_bytes = self.ring_bytes();
        let want = if self.sizing.is_closed() { ring_bytes } else { pending.min(ring_bytes / 2).max(1) };
        let target = (self.reserved + want).saturating_sub(ring_bytes).max(self.consumed + 1);
        self.end.memory.publish_u64(self.end.slot, socket_status::SPACE_WAKE_AT, target);
    }

    /// Withdraws the request to report room.
    pub fn ask_for_nothing(&self) {
        if self.end_published {
            return; // an ended flow has asked for all
        }
        self.end.memory.publish_u64(self.end.slot, socket_status::SPACE_WAKE_AT, 0);
    }

    /// Tells the receiver of delivered bytes. Returns the number of bytes that are new to it.
    #[inline]
    pub fn publish(&mut self) -> u64 {
        let bytes = self.delivered - self.published;
        if bytes > 0 {
            self.published = self.delivered;
            // SYNC POINT: direct-begin (before the source is told of it)
            self.end.memory.publish_u64(self.end.slot, socket_status::RECV_PRODUCER, self.delivered);
        }
        bytes
    }

    /// Returns the last `len` bytes that were delivered, in the mapping in which the ring lies. The bytes stay as they are until the next
    /// copy begins.
    pub fn last_delivered(&self, len: u64) -> Option<(&Mapping, [Range<usize>; 2])> {
        let ring = self.ring.as_ref().filter(|ring| len <= ring.bytes())?;
        let first = (self.delivered.wrapping_sub(len) & (ring.bytes() - 1)) as usize;
        let before_end = (ring.bytes() as usize - first).min(len as usize);
        let (at, begin) = (ring.offset() + first, ring.offset());
        Some((&ring.map, [at..at + before_end, begin..begin + len as usize - before_end]))
    }

    /// Describes the state, for diagnosis.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn describe(&self) -> String {
        let Endpoint { client, slot, ref memory, .. } = self.end;
        format!(
            "to {slot} of client {client}: {} delivered, {} published, {} announced, event {} of {} read",
            self.delivered,
            self.published,
            self.announced,
            memory.event_ack(slot),
            memory.event_number(slot)
        )
    }

    /// Looks whether the receiver waits, if enough has come since the last time, or no more comes for now (`is_last`).
    #[inline]
    pub fn announce(&mut self, is_last: bool) -> Announced {
        let unannounced = self.delivered - self.announced;
        let mut announced = Announced::default();
        if unannounced >= WAKE_BYTES || (unannounced > 0 && is_last) {
            let Endpoint { slot, generation, ref memory, .. } = self.end;
            self.announced = self.delivered;
            if !self.taken {
                fence(Ordering::SeqCst);
                self.taken = memory.slot_taken(slot, generation);
            }
            if self.taken {
                announced.woke = self.waker.wake(&memory.recv_wait(slot), self.delivered);
                announced.wanted = announced.woke || wants_event(memory, slot);
            }
        }
        announced
    }

    /// Tells the receiver how its stream ends.
    pub fn publish_end(&mut self, end: u32) {
        self.end_published = true;
        let Endpoint { slot, ref memory, .. } = self.end;
        memory.publish_u32(slot, socket_status::RECV_END, end);
        self.waker.wake_always(&memory.recv_wait(slot));
        // The receiver reports when it has read to the end, so that the ring can be given back. The mover looks for that when it settles
        // the flow.
        memory.publish_u64(slot, socket_status::SPACE_WAKE_AT, self.delivered.max(1));
        // SYNC POINT: space-dekker
        fence(Ordering::SeqCst);
    }

    /// Tells whether the receiver has been told of the end, or need not be told any more.
    #[inline]
    pub fn is_end_published(&self) -> bool {
        self.end_published
    }

    /// Closes the stream: the receiver takes no more. `is_gone`: nobody reads the bytes that it was given.
    pub fn close(&mut self, is_gone: bool) {
        self.gone |= is_gone;
        self.end_published = true;
    }

    /// Tells whether nobody reads the bytes that the receiver was given.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Wakes the receiver, whatever it waits for.
    pub fn wake(&mut self) {
        let Endpoint { slot, ref memory, .. } = self.end;
        self.waker.wake_always(&memory.recv_wait(slot));
    }

    /// Tells whether all delivered bytes have been given back, or will be read by nobody.
    ///
    /// # Errors
    /// The receiving client broke the protocol.
    pub fn is_read_up(&mut self) -> Result<bool, Violation> {
        if self.gone {
            return Ok(true);
        }
        self.refresh_consumed()?;
        // Bytes that are delivered and not yet published lie there as well.
        Ok(self.consumed == self.delivered)
    }

    /// Tells whether delivered bytes have not been given back.
    pub fn has_unread(&mut self) -> bool {
        self.is_read_up().is_ok_and(|is_read_up| !is_read_up)
    }

    /// Begins again, at another client's socket, without a ring. Returns the previous ring, the first unread byte there, and the number of
    /// unread bytes. A client that forged its counter loses its unread bytes. A flow that was given up (`is_over`) has none that will be
    /// read.
    pub fn restart(&mut self, end: Endpoint, is_over: bool) -> (Option<Ring>, u64, u64) {
        let Endpoint { slot, memory, .. } = self.end.clone();
        let stale = Errno::STALE.raw_os_error() as u16;
        memory.publish_u32(slot, socket_status::RECV_END, moved::received(stale, false));
        // SYNC POINT: received-dekker (the receiver sees the word, or what it has given back is seen here)
        fence(Ordering::SeqCst);
        let consumed = self.refresh_consumed().map_or(self.delivered, |()| self.consumed);
        memory.publish_u64(slot, socket_status::SPACE_WAKE_AT, consumed);
        let unread = if is_over { 0 } else { self.delivered - consumed };
        (self.reserved, self.delivered, self.consumed) = (0, 0, 0);
        (self.published, self.announced) = (0, 0);
        (self.taken, self.gone) = (false, false);
        self.end_published = is_over;
        self.waker = Waker::default();
        self.end = end;
        (self.take_ring(), consumed, unread)
    }

    /// Returns the bytes ever reserved.
    pub fn position(&self) -> u64 {
        self.reserved
    }

    /// Gives back memory that is not needed at the moment.
    pub fn shrink(&mut self) {
        self.rbt.shrink();
    }
}
