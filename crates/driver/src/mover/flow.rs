//! A direction of a connection: from the sends of one socket to the receive ring of another
//! (paper, section III-E).
mod allowance;
mod copying;
mod file;
mod migration;
mod schedule;
mod sink;
mod source;
mod takeover;

pub use allowance::Allowance;
pub use migration::Impossible;
pub use takeover::{FlowState, Moving, Said};

use super::ring_sizing::Shares;
use super::scheduler::PayerId;
use crate::ids::{ClientId, FlowId, Slot, TenantId};
use crate::memory::ClientMemory;
use crate::messages::{Endpoint, Finish, NewFlow, Ring, SendEnd, Violation};
use allowance::Own;
use migration::Migration;
use pd_abi::layout::{ELSEWHERE, ENDED, SHUT};
use pd_shm::Mapping;
use rustix::io::Errno;
use schedule::Schedule;
use sink::Sink;
use source::Source;
use std::ops::Range;
use std::time::Duration;

/// Time for the delivery of a source's last bytes, from when a client takes an end that was nobody's.
const PARKED_MORE: Duration = Duration::from_millis(500);

/// A flow. All of its state is private to one mover; shared memory only ever gets copies.
#[derive(Debug)]
pub struct Flow {
    pub id: FlowId,
    /// Tenant whose rates it keeps to.
    pub tenant: TenantId,
    /// Set for a twin. The flow stays as long as its destination, which may go to another client. That one learns of the same end, and bytes
    /// in a ring of the source are to be read, too.
    pub lasts: bool,

    source: Source,
    sink: Sink,
    /// Bytes accepted and not yet under way.
    pending: u64,
    pub schedule: Schedule,
    /// Set while it is in the mover's list of flows with news.
    pub touched: bool,
    /// Buckets of its own rates, if any.
    own: Option<Box<Own>>,
    finish: Option<Finish>,
    aborted: bool,
    /// Ends that the two sides were told when it was aborted.
    ends_told: (u32, u32),
    /// End that the source is told instead when it turns out that bytes of it are lost.
    lost_end: u32,
    pub last_active: Duration,
    /// State of moves, if one of its ends ever went from one client to another.
    migration: Option<Box<Migration>>,
}

/// Result of [`Flow::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pump {
    /// Nothing left to copy.
    Drained,
    /// More to copy when its turn comes again.
    More,
    /// The receive ring is full, or takes nothing until it is empty.
    Full,
    /// No receive ring.
    NoRing,
    /// The receive ring is empty and too small or too large: it is to be exchanged.
    Resize,
    /// The next bytes are on a disk: the reader is to read them ([`Flow::take_cold`]).
    PageCacheMiss,
    /// A file lacks bytes that were sent.
    FileError,
}

/// News for one side of the flow, to be turned into `Ready` events.
#[derive(Clone, Copy, Debug, Default)]
pub struct News {
    pub source: bool,
    pub destination: bool,
    pub moved: Moved,
}

/// News of a flow, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes delivered.
    pub bytes: u64,
    /// Sends completed.
    pub messages: u64,
    /// Times that the receive ring was full.
    pub rings_full: u64,
    /// Times that the sender was woken.
    pub source_woken: u64,
    /// Times that the receiver was woken.
    pub destination_woken: u64,
}

impl Flow {
    pub fn new(new: NewFlow) -> Self {
        let NewFlow { id, tenant, source, destination, lasts, send_ring_bytes, serial: _ } = new;
        Self {
            id,
            tenant,
            lasts,
            source: Source::new(source, send_ring_bytes),
            sink: Sink::new(destination),
            pending: 0,
            schedule: Schedule::Idle,
            touched: false,
            own: None,
            finish: None,
            aborted: false,
            ends_told: (0, 0),
            lost_end: 0,
            last_active: Duration::ZERO,
            migration: None,
        }
    }

    /// Returns the sending end.
    #[inline]
    pub fn source(&self) -> &Endpoint {
        self.source.end()
    }

    /// Returns the receiving end.
    #[inline]
    pub fn destination(&self) -> &Endpoint {
        self.sink.end()
    }

    /// Returns the state of moves of its ends, if there ever was one.
    pub fn migration(&mut self) -> Option<&mut Migration> {
        self.migration.as_deref_mut()
    }

    /// Returns the state of moves of its ends, made now if there never was one.
    pub fn migration_mut(&mut self) -> &mut Migration {
        self.migration.get_or_insert_default()
    }

    /// Tells whether one of its ends ever went to another client.
    pub fn has_migrated(&self) -> bool {
        self.migration.is_some()
    }

    /// Returns the bytes accepted and not yet under way.
    #[inline]
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Adds bytes that previous owners have left, and that are to be put under way.
    pub fn add_pending(&mut self, bytes: u64) {
        self.pending += bytes;
    }

    /// Forgets the source, if that is `client`, which is no more.
    pub fn forget_source(&mut self, client: ClientId) {
        self.source.end_mut().forget(client);
    }

    /// Accepts one or several sends of `len` bytes at `address` in the driver's mapping. With `joins` they may become one block with bytes
    /// that lie before them, so that all are done at once.
    ///
    /// # Errors
    /// The client sends more than its send ring holds.
    pub fn accept(&mut self, address: u64, len: u64, sends: u64, joins: bool) -> Result<(), Violation> {
        if self.accepts(sends) {
            self.source.accept(address, len, sends, joins).ok_or(Violation::SendRing)?;
            self.pending += len;
        }
        Ok(())
    }

    /// Tells whether sends are to be delivered. Counts them if not.
    fn accepts(&mut self, sends: u64) -> bool {
        let refused = self.aborted || self.finish.is_some();
        if refused {
            self.source.refuse(sends);
        }
        if self.aborted && self.ends_told.0 != self.lost_end {
            self.ends_told.0 = self.lost_end;
            if !self.source_gone() && self.is_source_last() {
                self.source.publish_end(self.lost_end, true);
            }
        }
        !refused
    }

    pub fn set_send_ring(&mut self, bytes: u64) {
        self.source.set_bytes_max(bytes);
        if !self.is_source_last() {
            self.source.make_room_for_successor();
        }
    }

    /// Lets a further client fill its send ring, while sends of those before it are not yet delivered.
    pub fn make_room_for_successor(&mut self) {
        self.source.make_room_for_successor();
    }

    pub fn set_ring(&mut self, ring: Ring) {
        self.sink.set_ring(ring);
    }

    pub fn take_ring(&mut self) -> Option<Ring> {
        self.sink.take_ring()
    }

    pub fn has_ring(&self) -> bool {
        self.sink.has_ring()
    }

    /// Returns the payer of the ring that it has or has asked for.
    pub fn ring_payer(&self) -> PayerId {
        self.sink.payer()
    }

    /// Waits for a ring from now on. Returns whether one is asked for already.
    pub fn await_ring(&mut self) -> bool {
        self.schedule.block();
        self.sink.ask()
    }

    /// Sets the payer of the ring that is asked for.
    pub fn set_ring_payer(&mut self, payer: PayerId) {
        self.sink.set_payer(payer);
    }

    /// Notes that the ring that was asked for does not come. Returns whether any was asked for.
    pub fn take_ring_asked(&mut self) -> bool {
        self.sink.take_asked()
    }

    /// Looks at each tick whether the ring is to be exchanged for one of another size. Returns whether the flow was busy since the last
    /// tick.
    pub fn check_size(&mut self, shares: Shares) -> bool {
        self.sink.check_size(shares)
    }

    /// Returns the sends to be allowed before the present block is copied to its end.
    pub fn messages_wanted(&self) -> u64 {
        self.source.messages_wanted()
    }

    fn is_moving(&self) -> bool {
        self.migration.as_ref().is_some_and(|migration| migration.is_waiting())
    }

    /// Tells whether a full ring has room by now.
    ///
    /// # Errors
    /// The receiving client broke the protocol.
    pub fn has_room(&mut self) -> Result<bool, Violation> {
        self.sink.has_room()
    }

    /// Asks the receiver to report room. The caller then makes a fence and looks at [`Self::has_room`].
    pub fn ask_for_room(&self) {
        self.sink.ask_for_room(self.pending);
    }

    /// Withdraws the request to report room.
    pub fn ask_for_nothing(&self) {
        self.sink.ask_for_nothing();
    }

    /// Tells both sides of everything since the last time.
    pub fn publish(&mut self, now: Duration) -> News {
        let mut news =
            News { moved: Moved { bytes: self.sink.publish(), ..Moved::default() }, ..News::default() };
        if news.moved.bytes > 0 {
            self.last_active = now;
            if let Some(migration) = &mut self.migration {
                news.moved.bytes -= migration.take_counted(news.moved.bytes);
            }
        }
        // Bytes that wait for a disk do not come for now.
        let is_last = self.pending == 0 || self.schedule.is_blocked() || self.source.is_cold();
        let announced = self.sink.announce(is_last);
        news.moved.destination_woken = announced.woke.into();
        news.destination = announced.wanted;
        news.moved.messages = self.source.take_unpublished();
        if news.moved.messages > 0 && !self.source_gone() {
            news.source = self.publish_sends_done();
            news.moved.source_woken = news.source.into();
        }
        if !self.sink.is_end_published() && self.is_drained() {
            if let (Some(finish), false) = (self.finish, self.aborted) {
                self.sink.publish_end(finish.end);
                news.destination = true;
            }
        }
        news
    }

    /// Returns the last `len` bytes that it has delivered: see [`Sink::last_delivered`].
    pub fn last_delivered(&self, len: u64) -> Option<(&Mapping, [Range<usize>; 2])> {
        self.sink.last_delivered(len)
    }

    /// Notes that the source sends no more. Sends so far are still delivered, until the deadline.
    pub fn finish(&mut self, finish: Finish) {
        if finish.source_gone || self.finish.is_none() {
            // A stream that was shut down, or goes on elsewhere, ends like that whatever becomes of its source.
            let end = self.finish.map_or(finish.end, |known| known.end);
            self.finish = Some(Finish { end, ..finish });
        }
    }

    /// Gives up delivering if the deadline has passed. Returns the news.
    pub fn check_deadline(&mut self, now: Duration) -> News {
        let late = self.finish.is_some_and(|f| f.deadline.is_some_and(|d| d <= now));
        if !late || self.aborted || self.is_drained() {
            return News::default();
        }
        if self.sink.end().client == ClientId::NOBODY {
            // A process that holds the kernel's socket may take the end. Then it has as much time as any receiver.
            let later = Some(now + PARKED_MORE);
            self.finish.iter_mut().for_each(|finish| finish.deadline = later);
            return News::default();
        }
        let errno = self.finish.map_or(0, |f| f.late_errno);
        self.abort(SendEnd::by(errno), Some(errno))
    }

    /// Ends delivery, because the destination takes no more. The destination has gone (no `recv_end`), or is to read the delivered bytes
    /// and then learn `recv_end`. The source learns `send_end`.
    pub fn abort(&mut self, send_end: SendEnd, recv_end: Option<u32>) -> News {
        let mut news = News::default();
        if let (Some(errno), false) = (recv_end, self.sink.is_end_published()) {
            self.sink.publish_end(errno);
            news.destination = true;
        }
        let is_lost = !self.source.is_empty() || self.sink.has_unread();
        let word = if is_lost { send_end.if_lost } else { send_end.word };
        self.sink.close(recv_end.is_none());
        let was_shut = self.is_shut();
        if self.aborted && !was_shut {
            return news;
        }
        (self.ends_told.0, self.lost_end) = (word, send_end.if_lost);
        if !was_shut {
            self.aborted = true;
            self.ends_told.1 = recv_end.unwrap_or(ENDED);
            self.pending = 0;
            if self.sink.is_quiet() {
                self.source.drop_sends();
            }
        }
        if self.learns_end(word) {
            // An orderly close after a shutdown is nothing new to the source.
            news.source = !was_shut || ![SHUT, ENDED].contains(&word);
            self.source.publish_end(word, news.source);
        }
        news
    }

    /// Tells whether the destination has shut down receiving, and has not closed.
    pub fn is_shut(&self) -> bool {
        self.aborted && self.ends_told.0 == SHUT
    }

    /// Tells whether the source is to learn of an end of its sends. One that has left the fabric sends in the kernel, where a peer receives
    /// that has read the fabric's part, and closes its end here.
    fn learns_end(&self, word: u32) -> bool {
        let has_left = self.finish.is_some_and(|finish| finish.end == ELSEWHERE);
        !self.source_gone() && self.is_source_last() && !(has_left && word == ENDED)
    }

    /// Tells the source how many of its own sends are done. Returns whether it was woken.
    fn publish_sends_done(&mut self) -> bool {
        let (first, end) =
            self.migration.as_ref().map_or((0, u64::MAX), |migration| migration.sends_of_present());
        self.source.publish(first, end)
    }

    /// Takes the sends of another client from now on, and tells that client the state. Returns the previous source, and the news.
    pub fn replace_source(&mut self, source: Endpoint) -> (Endpoint, News) {
        let previous = self.source.replace_end(source);
        if self.is_source_last() {
            self.source.forget_previous_sends();
        }
        let mut news = News { source: self.publish_sends_done(), ..News::default() };
        if (self.aborted || self.finish.is_some()) && self.is_source_last() {
            let word = if self.aborted { self.ends_told.0 } else { ENDED };
            self.source.publish_end(word, true);
            news.source = true;
        }
        (previous, news)
    }

    /// Tells whether no client comes after the source. A source with a successor knows by the same word that it sends no more, and is not
    /// to forget that.
    fn is_source_last(&self) -> bool {
        self.migration.as_ref().is_none_or(|migration| migration.last_successor().is_none())
    }

    /// Tells whether the receiving end may go to another client: no copy is under way to it.
    pub fn can_switch(&self) -> bool {
        self.sink.is_quiet() && self.migration.as_ref().is_some_and(|migration| migration.is_switching())
    }

    /// Delivers to another client from now on, with an empty ring. Returns the previous destination and its ring, the first unread byte
    /// there, and the number of unread bytes.
    pub fn replace_destination(&mut self, destination: Endpoint) -> (Endpoint, Option<Ring>, u64, u64) {
        let previous = self.sink.end().clone();
        let (ring, first, unread) = self.sink.restart(destination, self.aborted);
        (previous, ring, first, unread)
    }

    /// Tells a new destination of an end that its predecessor knew.
    pub fn repeat_recv_end(&mut self) -> News {
        if self.aborted {
            self.sink.publish_end(self.ends_told.1);
        }
        News { destination: self.aborted, ..News::default() }
    }

    /// Describes the state, for diagnosis.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn describe(&self) -> String {
        let Self { id, schedule, pending, touched, .. } = self;
        format!(
            "flow {id}, {schedule:?}, touched {touched}, {pending} bytes pending, {}",
            self.sink.describe()
        )
    }

    /// Returns the end from which it accepts sends now.
    pub fn last_sender(&self) -> &Endpoint {
        self.migration.as_ref().and_then(|migration| migration.last_successor()).unwrap_or(self.source.end())
    }

    /// Returns the numbers of sends ever accepted, and done.
    pub fn sends(&self) -> (u64, u64) {
        self.source.sends()
    }

    /// Returns the position in the destination's stream up to which bytes were accepted.
    pub fn position(&self) -> u64 {
        self.sink.position() + self.pending
    }

    /// Wakes both sides, whatever they wait for.
    pub fn wake_ends(&mut self) -> News {
        if !self.sink.is_gone() {
            self.sink.wake();
        }
        if !self.source_gone() {
            self.source.wake();
        }
        News { source: !self.source_gone(), destination: !self.sink.is_gone(), ..News::default() }
    }

    fn source_gone(&self) -> bool {
        self.finish.is_some_and(|f| f.source_gone)
    }

    /// Tells whether nothing is pending, and nothing under way.
    pub fn is_drained(&self) -> bool {
        self.pending == 0 && self.sink.is_quiet()
    }

    /// Tells whether bytes of this client may still be copied. The client is the source, or comes after it, and may have died meanwhile.
    pub fn needs_memory_of(&self, client: ClientId) -> bool {
        let sends = self.source().client == client && !self.is_drained();
        sends || self.migration.as_ref().is_some_and(|migration| migration.has_successor(client))
    }

    /// Calls `change` with each end that it has or is going to have.
    pub fn each_end(&mut self, change: &mut impl FnMut(&mut Endpoint)) {
        change(self.source.end_mut());
        change(self.sink.end_mut());
        if let Some(migration) = &mut self.migration {
            migration.each_end(change);
        }
    }

    /// Tells whether `are` holds for each end that sends by this flow, now or later.
    pub fn has_senders(&self, are: impl Fn(&Endpoint) -> bool) -> bool {
        are(self.source()) && self.migration.as_ref().is_none_or(|migration| migration.successors().all(are))
    }

    /// Tells whether no copy is under way.
    pub fn is_quiet(&self) -> bool {
        self.sink.is_quiet()
    }

    /// Tells whether it has asked for a ring that has not come yet.
    pub fn is_ring_asked(&self) -> bool {
        self.sink.is_asked()
    }

    /// Tells whether the flow touches nothing of its source any more.
    pub fn is_done_with_source(&self) -> bool {
        self.is_drained() && self.finish.is_some()
    }

    /// Tells whether the ring can be given back: all delivered bytes have been given back, or will be read by nobody.
    ///
    /// # Errors
    /// The receiving client broke the protocol.
    pub fn is_ring_idle(&mut self) -> Result<bool, Violation> {
        if !self.is_drained() {
            return Ok(false);
        }
        self.sink.is_read_up()
    }

    /// Tells whether the flow can be forgotten, given that its ring is idle.
    pub fn is_over(&self) -> bool {
        self.is_drained()
            && self.finish.is_some()
            && self.sink.is_end_published()
            && (self.sink.is_gone() || !self.lasts)
    }

    /// Tells whether there is a ring of the source's that the destination cannot read.
    pub fn is_draining(&self) -> bool {
        self.migration.as_ref().is_some_and(|migration| migration.is_draining())
    }

    /// Tells whether the source sends no more.
    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Tells whether the flow was given up.
    pub fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// Tells whether no bytes of a send are under way.
    pub fn has_no_send_under_way(&self) -> bool {
        self.source.is_empty() || self.sink.is_quiet()
    }

    /// Tells whether its ring may fall idle, or the flow is ending.
    pub fn needs_ticks(&self) -> bool {
        self.has_ring() || self.finish.is_some()
    }

    pub fn shrink(&mut self) {
        self.source.shrink();
        self.sink.shrink();
    }

    /// Returns the errno that both sides get when the flow fails for reasons of the driver.
    pub fn failure() -> u32 {
        Errno::CONNRESET.raw_os_error() as u32
    }
}

/// Tells whether the client waits for a `Ready` event of the socket and has acknowledged the last one. A fence has to lie between the news
/// and this call.
pub fn wants_event(memory: &ClientMemory, slot: Slot) -> bool {
    // SYNC POINT: event-ack (the client acknowledges, fences, looks at its line)
    memory.subscribed(slot) && memory.event_ack(slot) == memory.event_number(slot)
}
