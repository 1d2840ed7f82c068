//! One direction of a connection: from the sends of one socket to the receive ring of another
//! (paper, section III-E).
mod copying;
mod file;
mod schedule;

use super::counting::Moved;
use super::fair::{PayerId, NOBODY};
use super::fit::{Fit, Shares};
use super::moving::Moves;
use super::table::BufferTable;
use super::throttle::Own;
use crate::ids::{ClientId, FlowId, Slot, TenantId};
use crate::memory::ClientMemory;
use crate::messages::{Endpoint, Finish, NewFlow, Ring, Violation};
use pd_abi::layout::{socket_status, ELSEWHERE, ENDED};
use pd_shm::wait::Waker;
use rustix::io::Errno;
use schedule::Schedule;
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

/// A receiver is woken when all that was sent is delivered, when its ring is full, or when this much is:
/// a wake-up for every message would cost more than the messages. (Measured: half as much costs a third
/// more system calls, and moves no more.)
const WAKE_BYTES: u64 = 1 << 20;

/// A flow. All of its state is private to one mover; shared memory only ever gets copies.
#[derive(Debug)]
pub struct Flow {
    pub id: FlowId,
    /// Whose rates it keeps to.
    pub tenant: TenantId,
    pub source: Endpoint,
    pub destination: Endpoint,
    /// Of a twin on the direct path: it is there as long as its destination, which may go to another client, for what
    /// lies in a ring of the source is to be read, too.
    pub lasts: bool,

    /// Sends accepted and not yet completed, oldest first.
    sbt: BufferTable,
    /// Number of the send to be copied next, and how much of it is already under way.
    cursor: (u64, u64),
    /// Bytes of the oldest send that are delivered.
    oldest_delivered: u64,
    /// Bytes accepted and not yet under way.
    pub pending: u64,
    sends_accepted: u64,
    sends_done: u64,

    pub ring: Option<Ring>,
    pub ring_asked: bool,
    /// Who pays for the ring that it has or has asked for.
    pub ring_payer: PayerId,
    fit: Fit,
    /// Copies under way in the receive ring, in order of the stream.
    rbt: BufferTable,
    /// Bytes ever reserved, delivered and given back; the ring holds what lies between.
    reserved: u64,
    delivered: u64,
    consumed: u64,
    destination_taken: bool,

    published: (u64, u64),
    /// Bytes delivered when it was last seen whether the receiver waits.
    announced: u64,
    recv_waker: Waker,
    send_waker: Waker,

    pub schedule: Schedule,
    /// In the mover's list of those that have something to tell.
    pub touched: bool,
    /// Its own rates, if any.
    pub own: Option<Box<Own>>,
    /// If it ever sent any.
    files: Option<Box<file::Files>>,
    finish: Option<Finish>,
    aborted: bool,
    destination_gone: bool,
    end_published: bool,
    /// What the two sides were told when it was aborted.
    ends_told: (u32, u32),
    pub last_active: Duration,
    /// If one of its ends ever went from one client to another.
    pub moves: Option<Box<Moves>>,
}

/// What [`Flow::pump`] ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pump {
    /// Nothing left to copy.
    Drained,
    /// More to copy when its turn comes again.
    More,
    /// The receive ring is full, or takes nothing until it is empty.
    Full,
    /// There is no receive ring.
    NoRing,
    /// The receive ring is empty and too small or too large: it shall be exchanged.
    Poor,
    /// What comes next is on a disk: the reader shall read it ([`Flow::take_cold`]).
    Cold,
    /// A file has not what was sent of it.
    Failed,
}

/// News for one side of the flow, to be turned into `Ready` events.
#[derive(Clone, Copy, Debug, Default)]
pub struct News {
    pub source: bool,
    pub destination: bool,
    pub moved: Moved,
}

impl Flow {
    pub fn new(new: NewFlow) -> Self {
        let NewFlow { id, tenant, source, destination, send_ring_bytes, serial: _ } = new;
        Self {
            id,
            tenant,
            source,
            destination,
            lasts: false,
            sbt: BufferTable::new(send_ring_bytes),
            cursor: (0, 0),
            oldest_delivered: 0,
            pending: 0,
            sends_accepted: 0,
            sends_done: 0,
            ring: None,
            ring_asked: false,
            ring_payer: NOBODY,
            fit: Fit::default(),
            rbt: BufferTable::new(u64::MAX),
            reserved: 0,
            delivered: 0,
            consumed: 0,
            destination_taken: false,
            published: (0, 0),
            announced: 0,
            recv_waker: Waker::default(),
            send_waker: Waker::default(),
            schedule: Schedule::Idle,
            touched: false,
            own: None,
            files: None,
            finish: None,
            aborted: false,
            destination_gone: false,
            end_published: false,
            ends_told: (0, 0),
            last_active: Duration::ZERO,
            moves: None,
        }
    }

    /// Accepts a send of `len` bytes at `address` in the driver's mapping. Returns its number if it is to be delivered.
    ///
    /// # Errors
    /// If the client sends more than its send ring holds.
    pub fn accept(&mut self, address: u64, len: u64) -> Result<Option<u64>, Violation> {
        self.sends_accepted += 1;
        if self.aborted || self.finish.is_some() {
            // Nobody will read it. Its span may be reused once those before it may.
            if self.sbt.is_empty() {
                self.sends_done = self.sends_accepted;
            }
            return Ok(None);
        }
        let number = self.sbt.insert(address, len).ok_or(Violation::SendRing)?;
        self.pending += len;
        Ok(Some(number))
    }

    pub fn set_send_ring(&mut self, bytes: u64) {
        self.sbt.set_bytes_max(bytes.max(self.sbt.used()));
    }

    pub fn set_ring(&mut self, ring: Ring) {
        let memory = &self.destination.memory;
        let slot = self.destination.slot;
        memory.publish_u32(slot, socket_status::RING_REGION, ring.region.into());
        memory.publish_u32(slot, socket_status::RING_PAGE, ring.page);
        memory.publish_u32(slot, socket_status::RING_PAGES, ring.pages);
        self.ring = Some(ring);
        self.ring_asked = false;
        self.fit.begin();
    }

    pub fn take_ring(&mut self) -> Option<Ring> {
        self.fit.begin();
        self.ring.take()
    }

    /// At each tick: lets a ring be exchanged that has not the size that it should have. Returns whether the flow
    /// was busy since the last one.
    pub fn check_size(&mut self, shares: Shares) -> bool {
        let Some(ring) = &self.ring else { return false };
        self.fit.look((ring.bytes(), ring.wished), self.delivered, shares)
    }

    /// Whether all that ever went into the ring has been given back.
    fn is_ring_empty(&mut self) -> Result<bool, Violation> {
        self.refresh_consumed()?;
        Ok(self.consumed == self.reserved)
    }

    fn ring_bytes(&self) -> u64 {
        self.ring.as_ref().map_or(0, Ring::bytes)
    }

    /// Whether the next byte is the first of a send.
    pub fn starts_message(&self) -> bool {
        self.cursor.1 == 0
    }

    fn is_moving(&self) -> bool {
        self.moves.as_ref().is_some_and(|moves| moves.is_waiting())
    }

    fn refresh_consumed(&mut self) -> Result<(), Violation> {
        let Endpoint { slot, generation, ref memory, .. } = self.destination;
        if !self.destination_taken {
            self.destination_taken = memory.slot_taken(slot, generation);
            if !self.destination_taken {
                return Ok(());
            }
        }
        let consumed = memory.recv_consumer(slot);
        if consumed < self.consumed || consumed > self.published.0 {
            return Err(Violation::ReceiveRing);
        }
        self.consumed = consumed;
        Ok(())
    }

    /// Whether a full ring has room by now.
    ///
    /// # Errors
    /// If the receiving client broke the protocol.
    pub fn has_room(&mut self) -> Result<bool, Violation> {
        self.refresh_consumed()?;
        Ok(self.reserved - self.consumed < if self.fit.is_closed() { 1 } else { self.ring_bytes() })
    }

    /// Asks the receiver to say when half of a full ring, or what is pending, is given back, or all of one that takes
    /// nothing before. Look at [`Self::has_room`] after this and a fence.
    pub fn ask_for_room(&self) {
        if self.end_published {
            return;
        }
        let ring_bytes = self.ring_bytes();
        let want = if self.fit.is_closed() { ring_bytes } else { self.pending.min(ring_bytes / 2).max(1) };
        let target = (self.reserved + want).saturating_sub(ring_bytes).max(self.consumed + 1);
        self.destination.memory.publish_u64(self.destination.slot, socket_status::SPACE_WAKE_AT, target);
    }

    /// The receiver need not say anything.
    pub fn ask_for_nothing(&self) {
        if self.end_published {
            return; // an ended flow has asked for all
        }
        self.destination.memory.publish_u64(self.destination.slot, socket_status::SPACE_WAKE_AT, 0);
    }

    /// Tells both sides what has happened since the last time.
    pub fn publish(&mut self, now: Duration) -> News {
        let mut news = News::default();
        let Endpoint { slot, generation, ref memory, .. } = self.destination;
        if self.delivered != self.published.0 {
            news.moved.bytes = self.delivered - self.published.0;
            if let Some(moves) = &mut self.moves {
                let again = moves.counted.min(news.moved.bytes);
                moves.counted -= again;
                news.moved.bytes -= again;
            }
            self.published.0 = self.delivered;
            self.last_active = now;
            // SYNC POINT: direct-begin (before the source is told of it)
            memory.publish_u64(slot, socket_status::RECV_PRODUCER, self.delivered);
        }
        let unannounced = self.delivered - self.announced;
        if unannounced >= WAKE_BYTES || (unannounced > 0 && (self.pending == 0 || self.schedule.is_blocked()))
        {
            self.announced = self.delivered;
            if !self.destination_taken {
                fence(Ordering::SeqCst);
                self.destination_taken = memory.slot_taken(slot, generation);
            }
            if self.destination_taken {
                let woke = self.recv_waker.wake(&memory.recv_wait(slot), self.delivered);
                news.moved.destination_woken = woke.into();
                news.destination = woke || wants_event(memory, slot);
            }
        }
        if self.sends_done != self.published.1 {
            news.moved.messages = self.sends_done - self.published.1;
            self.published.1 = self.sends_done;
            if !self.source_gone() {
                news.source = self.publish_sends_done();
                news.moved.source_woken = news.source.into();
            }
        }
        if !self.end_published && self.is_drained() {
            if let (Some(finish), false) = (self.finish, self.aborted) {
                news.destination |= self.publish_recv_end(finish.end);
            }
        }
        news
    }

    /// The source sends no more. What it has sent is still delivered, until the deadline.
    pub fn finish(&mut self, finish: Finish) {
        if finish.source_gone || self.finish.is_none() {
            // What goes on elsewhere does so whoever closes the socket here.
            let end =
                self.finish.filter(|known| known.end == ELSEWHERE).map_or(finish.end, |known| known.end);
            self.finish = Some(Finish { end, ..finish });
        }
    }

    /// Gives up delivering if the deadline has passed. Returns news of it.
    pub fn check_deadline(&mut self, now: Duration) -> News {
        let late = self.finish.is_some_and(|f| f.deadline.is_some_and(|d| d <= now));
        if !late || self.aborted || self.is_drained() {
            return News::default();
        }
        let errno = self.finish.map_or(0, |f| f.late_errno);
        self.abort(errno, Some(errno))
    }

    /// The destination takes no more: it has gone (no `recv_end`), or shall read what was delivered and
    /// then learn `recv_end`.
    pub fn abort(&mut self, send_end: u32, recv_end: Option<u32>) -> News {
        let mut news = News::default();
        self.destination_gone |= recv_end.is_none();
        if let (Some(errno), false) = (recv_end, self.end_published) {
            news.destination = self.publish_recv_end(errno);
        }
        self.end_published = true;
        if !self.aborted {
            self.aborted = true;
            self.ends_told = (send_end, recv_end.unwrap_or(ENDED));
            self.pending = 0;
            if self.rbt.is_empty() {
                self.drop_sends();
            }
            if !self.source_gone() {
                let Endpoint { slot, ref memory, .. } = self.source;
                memory.publish_u32(slot, socket_status::SEND_END, send_end);
                self.send_waker.wake_always(&memory.send_wait(slot));
                news.source = true;
            }
        }
        news
    }

    /// Tells the source how many of its own sends are done. Says whether it was woken.
    fn publish_sends_done(&mut self) -> bool {
        let Endpoint { slot, ref memory, .. } = self.source;
        let (base, end) = self.moves.as_ref().map_or((0, u64::MAX), |m| (m.base, m.sends_of_present()));
        let own = self.sends_done.min(end).saturating_sub(base);
        memory.publish_u64(slot, socket_status::SEND_CONSUMER, own);
        self.send_waker.wake(&memory.send_wait(slot), own)
    }

    /// Tells a new source how things stand.
    pub fn introduce_source(&mut self) -> News {
        self.send_waker = Waker::default();
        let mut news = News { source: self.publish_sends_done(), ..News::default() };
        let end = if self.aborted { self.ends_told.0 } else { ENDED };
        if self.aborted || self.finish.is_some() {
            let Endpoint { slot, ref memory, .. } = self.source;
            memory.publish_u32(slot, socket_status::SEND_END, end);
            self.send_waker.wake_always(&memory.send_wait(slot));
            news.source = true;
        }
        news
    }

    /// Whether the receiving end may go to another client: no copy is under way to it.
    pub fn can_switch(&self) -> bool {
        self.rbt.is_empty() && self.moves.as_ref().is_some_and(|moves| moves.is_switching())
    }

    /// Starts again with an empty ring. Returns which bytes of the present one are unread: the first, and how
    /// many. Who broke its counter has lost them.
    pub fn restart_receiving(&mut self) -> (u64, u64) {
        let consumed = self.refresh_consumed().map_or(self.delivered, |()| self.consumed);
        let unread = if self.aborted { 0 } else { self.delivered - consumed };
        (self.reserved, self.delivered, self.consumed) = (0, 0, 0);
        (self.published.0, self.announced) = (0, 0);
        (self.destination_taken, self.destination_gone) = (false, false);
        self.end_published = self.aborted;
        self.recv_waker = Waker::default();
        (consumed, unread)
    }

    /// Tells a new destination of an end that its predecessor knew.
    pub fn repeat_recv_end(&mut self) -> News {
        let destination = self.aborted && self.publish_recv_end(self.ends_told.1);
        News { destination, ..News::default() }
    }

    /// Whose sends it accepts now.
    pub fn last_sender(&self) -> &Endpoint {
        self.moves.as_ref().and_then(|moves| moves.last_heir()).unwrap_or(&self.source)
    }

    /// Sends ever accepted, and done.
    pub fn sends(&self) -> (u64, u64) {
        (self.sends_accepted, self.sends_done)
    }

    /// Position in the destination's stream of the last byte that was accepted.
    pub fn position(&self) -> u64 {
        self.reserved + self.pending
    }

    /// Wakes both sides, whatever they wait for.
    pub fn kick(&mut self) -> News {
        if !self.destination_gone {
            let Endpoint { slot, ref memory, .. } = self.destination;
            self.recv_waker.wake_always(&memory.recv_wait(slot));
        }
        if !self.source_gone() {
            let Endpoint { slot, ref memory, .. } = self.source;
            self.send_waker.wake_always(&memory.send_wait(slot));
        }
        News { source: !self.source_gone(), destination: !self.destination_gone, ..News::default() }
    }

    fn drop_sends(&mut self) {
        self.sbt.clear();
        if let Some(files) = &mut self.files {
            files.forget_before(u64::MAX);
        }
        self.sends_done = self.sends_accepted;
    }

    fn publish_recv_end(&mut self, end: u32) -> bool {
        self.end_published = true;
        let Endpoint { slot, ref memory, .. } = self.destination;
        memory.publish_u32(slot, socket_status::RECV_END, end);
        self.recv_waker.wake_always(&memory.recv_wait(slot));
        // So that the ring can be given back when the receiver has read to the end: the mover looks
        // whether it has by now when it settles the flow.
        memory.publish_u64(slot, socket_status::SPACE_WAKE_AT, self.delivered.max(1));
        // SYNC POINT: space-dekker
        fence(Ordering::SeqCst);
        true
    }

    fn source_gone(&self) -> bool {
        self.finish.is_some_and(|f| f.source_gone)
    }

    /// Nothing pending and nothing under way.
    pub fn is_drained(&self) -> bool {
        self.pending == 0 && self.rbt.is_empty()
    }

    /// Whether bytes of this client's may still be copied: it is the source, or one that comes after it, and may have
    /// died meanwhile.
    pub fn needs_memory_of(&self, client: ClientId) -> bool {
        let sends = self.source.client == client && !self.is_drained();
        sends || self.moves.as_ref().is_some_and(|moves| moves.has_heir(client))
    }

    /// Whether the flow touches nothing of its source any more.
    pub fn is_done_with_source(&self) -> bool {
        self.is_drained() && self.finish.is_some()
    }

    /// Whether the ring can be given back: all that was delivered has been given back, or will be
    /// read by nobody.
    ///
    /// # Errors
    /// If the receiving client broke the protocol.
    pub fn is_ring_idle(&mut self) -> Result<bool, Violation> {
        if !self.is_drained() {
            return Ok(false);
        }
        if self.destination_gone {
            return Ok(true);
        }
        self.refresh_consumed()?;
        // What is delivered and not yet published lies there as well.
        Ok(self.consumed == self.delivered)
    }

    /// Whether the flow can be forgotten, given that its ring is idle.
    pub fn is_over(&self) -> bool {
        self.is_drained()
            && self.finish.is_some()
            && self.end_published
            && (self.destination_gone || !self.lasts)
    }

    /// Whether there is a ring of the source's that the destination cannot read.
    pub fn has_remainder(&self) -> bool {
        self.moves.as_ref().is_some_and(|moves| moves.remainder.is_some())
    }

    /// Whether the source sends no more.
    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Whether it was given up.
    pub fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// Whether no bytes of a send are under way.
    pub fn has_no_send_under_way(&self) -> bool {
        self.sbt.is_empty() || self.rbt.is_empty()
    }

    /// Whether its ring may fall idle, or it is ending.
    pub fn needs_ticks(&self) -> bool {
        self.ring.is_some() || self.finish.is_some()
    }

    pub fn shrink(&mut self) {
        self.sbt.shrink();
        self.rbt.shrink();
    }

    /// The errno that both sides get when the flow fails for reasons of the driver.
    pub fn failure() -> u32 {
        Errno::CONNRESET.raw_os_error() as u32
    }
}

/// Whether the client waits for a `Ready` event of the socket and has taken note of the last one. A
/// fence has to lie between the news and this.
pub fn wants_event(memory: &ClientMemory, slot: Slot) -> bool {
    memory.subscribed(slot) && memory.event_ack(slot) == memory.event_number(slot)
}
