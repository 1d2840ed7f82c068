//! One direction of a connection: from the sends of one socket to the receive ring of another
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
pub use takeover::FlowState;

use super::fit::Shares;
use super::scheduler::PayerId;
use crate::ids::{ClientId, FlowId, Slot, TenantId};
use crate::memory::ClientMemory;
use crate::messages::{Endpoint, Finish, NewFlow, Ring, Violation};
use allowance::Own;
use migration::Migration;
use pd_abi::layout::{ELSEWHERE, ENDED};
use pd_shm::Mapping;
use rustix::io::Errno;
use schedule::Schedule;
use sink::Sink;
use source::Source;
use std::ops::Range;
use std::time::Duration;

/// A flow. All of its state is private to one mover; shared memory only ever gets copies.
#[derive(Debug)]
pub struct Flow {
    pub id: FlowId,
    /// Whose rates it keeps to.
    pub tenant: TenantId,
    /// Of a twin on the direct path: it is there as long as its destination, which may go to another client, for what
    /// lies in a ring of the source is to be read, too.
    pub lasts: bool,

    source: Source,
    sink: Sink,
    /// Bytes accepted and not yet under way.
    pending: u64,
    pub schedule: Schedule,
    /// In the mover's list of those that have something to tell.
    pub touched: bool,
    /// Its own rates, if any.
    own: Option<Box<Own>>,
    finish: Option<Finish>,
    aborted: bool,
    /// What the two sides were told when it was aborted.
    ends_told: (u32, u32),
    pub last_active: Duration,
    /// If one of its ends ever went from one client to another.
    migration: Option<Box<Migration>>,
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
        let NewFlow { id, tenant, source, destination, send_ring_bytes, serial: _ } = new;
        Self {
            id,
            tenant,
            lasts: false,
            source: Source::new(source, send_ring_bytes),
            sink: Sink::new(destination),
            pending: 0,
            schedule: Schedule::Idle,
            touched: false,
            own: None,
            finish: None,
            aborted: false,
            ends_told: (0, 0),
            last_active: Duration::ZERO,
            migration: None,
        }
    }

    /// Whose sends it carries.
    #[inline]
    pub fn source(&self) -> &Endpoint {
        self.source.end()
    }

    /// Where to.
    #[inline]
    pub fn destination(&self) -> &Endpoint {
        self.sink.end()
    }

    /// What it remembers of ends that went to other clients, if any ever did.
    pub fn migration(&mut self) -> Option<&mut Migration> {
        self.migration.as_deref_mut()
    }

    /// The same, made now if none ever did.
    pub fn migration_mut(&mut self) -> &mut Migration {
        self.migration.get_or_insert_default()
    }

    /// Whether one ever did.
    pub fn has_migrated(&self) -> bool {
        self.migration.is_some()
    }

    /// Bytes accepted and not yet under way.
    #[inline]
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// So much more is to be put under way, of what former owners have left.
    pub fn add_pending(&mut self, bytes: u64) {
        self.pending += bytes;
    }

    /// Its source, if that is the client, is no more.
    pub fn forget_source(&mut self, client: ClientId) {
        self.source.end_mut().forget(client);
    }

    /// Accepts one or several sends of `len` bytes at `address` in the driver's mapping. With `joins` they may become one block
    /// with what lies before them, so that all are done at once.
    ///
    /// # Errors
    /// If the client sends more than its send ring holds.
    pub fn accept(&mut self, address: u64, len: u64, sends: u64, joins: bool) -> Result<(), Violation> {
        if self.accepts(sends) {
            self.source.accept(address, len, sends, joins).ok_or(Violation::SendRing)?;
            self.pending += len;
        }
        Ok(())
    }

    /// Whether sends are to be delivered; if not, they are counted.
    fn accepts(&mut self, sends: u64) -> bool {
        let refused = self.aborted || self.finish.is_some();
        if refused {
            self.source.refuse(sends);
        }
        !refused
    }

    pub fn set_send_ring(&mut self, bytes: u64) {
        self.source.set_bytes_max(bytes);
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

    /// Who pays for the ring that it has or has asked for.
    pub fn ring_payer(&self) -> PayerId {
        self.sink.payer()
    }

    /// It waits for a ring. Says whether one is asked for already.
    pub fn await_ring(&mut self) -> bool {
        self.schedule.block();
        self.sink.ask()
    }

    /// Who pays for the ring that is asked for.
    pub fn set_ring_payer(&mut self, payer: PayerId) {
        self.sink.set_payer(payer);
    }

    /// The ring that was asked for does not come. Says whether any was.
    pub fn take_ring_asked(&mut self) -> bool {
        self.sink.take_asked()
    }

    /// At each tick: lets a ring be exchanged that has not the size that it should have. Returns whether the flow
    /// was busy since the last one.
    pub fn check_size(&mut self, shares: Shares) -> bool {
        self.sink.check_size(shares)
    }

    /// Sends to be allowed before the present block is copied to its end.
    pub fn messages_wanted(&self) -> u64 {
        self.source.messages_wanted()
    }

    fn is_moving(&self) -> bool {
        self.migration.as_ref().is_some_and(|migration| migration.is_waiting())
    }

    /// Whether a full ring has room by now.
    ///
    /// # Errors
    /// If the receiving client broke the protocol.
    pub fn has_room(&mut self) -> Result<bool, Violation> {
        self.sink.has_room()
    }

    /// Asks the receiver to say when there is room. Look at [`Self::has_room`] after this and a fence.
    pub fn ask_for_room(&self) {
        self.sink.ask_for_room(self.pending);
    }

    /// The receiver need not say anything.
    pub fn ask_for_nothing(&self) {
        self.sink.ask_for_nothing();
    }

    /// Tells both sides what has happened since the last time.
    pub fn publish(&mut self, now: Duration) -> News {
        let mut news =
            News { moved: Moved { bytes: self.sink.publish(), ..Moved::default() }, ..News::default() };
        if news.moved.bytes > 0 {
            self.last_active = now;
            if let Some(migration) = &mut self.migration {
                news.moved.bytes -= migration.take_counted(news.moved.bytes);
            }
        }
        // Of what waits for a disk no more comes for now.
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

    /// The last `len` bytes that it has delivered: see [`Sink::last_delivered`].
    pub fn last_delivered(&self, len: u64) -> Option<(&Mapping, [Range<usize>; 2])> {
        self.sink.last_delivered(len)
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
        if let (Some(errno), false) = (recv_end, self.sink.is_end_published()) {
            self.sink.publish_end(errno);
            news.destination = true;
        }
        self.sink.close(recv_end.is_none());
        if !self.aborted {
            self.aborted = true;
            self.ends_told = (send_end, recv_end.unwrap_or(ENDED));
            self.pending = 0;
            if self.sink.is_quiet() {
                self.source.drop_sends();
            }
            if !self.source_gone() && self.is_source_last() {
                self.source.publish_end(send_end);
                news.source = true;
            }
        }
        news
    }

    /// Tells the source how many of its own sends are done. Says whether it was woken.
    fn publish_sends_done(&mut self) -> bool {
        let (first, end) =
            self.migration.as_ref().map_or((0, u64::MAX), |migration| migration.sends_of_present());
        self.source.publish(first, end)
    }

    /// Carries the sends of another client from now on, and tells it how things stand. Returns the former source, and the news.
    pub fn replace_source(&mut self, source: Endpoint) -> (Endpoint, News) {
        let former = self.source.replace_end(source);
        let mut news = News { source: self.publish_sends_done(), ..News::default() };
        if (self.aborted || self.finish.is_some()) && self.is_source_last() {
            self.source.publish_end(if self.aborted { self.ends_told.0 } else { ENDED });
            news.source = true;
        }
        (former, news)
    }

    /// Tells whether no client comes after the source. One that has a successor knows by the same word that it sends no more, and is not to
    /// forget that.
    fn is_source_last(&self) -> bool {
        self.migration.as_ref().is_none_or(|migration| migration.last_successor().is_none())
    }

    /// Whether the receiving end may go to another client: no copy is under way to it.
    pub fn can_switch(&self) -> bool {
        self.sink.is_quiet() && self.migration.as_ref().is_some_and(|migration| migration.is_switching())
    }

    /// Delivers to another client from now on, with an empty ring. Returns the former destination, its ring, and which bytes of
    /// that are unread: the first, and how many.
    pub fn replace_destination(&mut self, destination: Endpoint) -> (Endpoint, Option<Ring>, u64, u64) {
        let former = self.sink.end().clone();
        let (ring, first, unread) = self.sink.restart(destination, self.aborted);
        (former, ring, first, unread)
    }

    /// Tells a new destination of an end that its predecessor knew.
    pub fn repeat_recv_end(&mut self) -> News {
        if self.aborted {
            self.sink.publish_end(self.ends_told.1);
        }
        News { destination: self.aborted, ..News::default() }
    }

    /// How it stands, for those who wonder.
    #[cfg(any(test, fuzzing, feature = "hostile"))]
    pub fn describe(&self) -> String {
        let Self { id, schedule, pending, touched, .. } = self;
        format!(
            "flow {id}, {schedule:?}, touched {touched}, {pending} bytes pending, {}",
            self.sink.describe()
        )
    }

    /// Whose sends it accepts now.
    pub fn last_sender(&self) -> &Endpoint {
        self.migration.as_ref().and_then(|migration| migration.last_successor()).unwrap_or(self.source.end())
    }

    /// Sends ever accepted, and done.
    pub fn sends(&self) -> (u64, u64) {
        self.source.sends()
    }

    /// Position in the destination's stream of the last byte that was accepted.
    pub fn position(&self) -> u64 {
        self.sink.position() + self.pending
    }

    /// Wakes both sides, whatever they wait for.
    pub fn kick(&mut self) -> News {
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

    /// Nothing pending and nothing under way.
    pub fn is_drained(&self) -> bool {
        self.pending == 0 && self.sink.is_quiet()
    }

    /// Whether bytes of this client's may still be copied: it is the source, or one that comes after it, and may have
    /// died meanwhile.
    pub fn needs_memory_of(&self, client: ClientId) -> bool {
        let sends = self.source().client == client && !self.is_drained();
        sends || self.migration.as_ref().is_some_and(|migration| migration.has_successor(client))
    }

    /// Lets `change` see each end that it has or is going to have.
    pub fn each_end(&mut self, change: &mut impl FnMut(&mut Endpoint)) {
        change(self.source.end_mut());
        change(self.sink.end_mut());
        if let Some(migration) = &mut self.migration {
            migration.each_end(change);
        }
    }

    /// Whether all whose sends it carries, now or later, are such.
    pub fn has_senders(&self, are: impl Fn(&Endpoint) -> bool) -> bool {
        are(self.source()) && self.migration.as_ref().is_none_or(|migration| migration.successors().all(are))
    }

    /// Whether no copy is under way.
    pub fn is_quiet(&self) -> bool {
        self.sink.is_quiet()
    }

    /// Whether it has asked for a ring that has not come yet.
    pub fn is_ring_asked(&self) -> bool {
        self.sink.is_asked()
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
        self.sink.is_read_up()
    }

    /// Whether the flow can be forgotten, given that its ring is idle.
    pub fn is_over(&self) -> bool {
        self.is_drained()
            && self.finish.is_some()
            && self.sink.is_end_published()
            && (self.sink.is_gone() || !self.lasts)
    }

    /// Whether there is a ring of the source's that the destination cannot read.
    pub fn has_remainder(&self) -> bool {
        self.migration.as_ref().is_some_and(|migration| migration.has_remainder())
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
        self.source.is_empty() || self.sink.is_quiet()
    }

    /// Whether its ring may fall idle, or it is ending.
    pub fn needs_ticks(&self) -> bool {
        self.has_ring() || self.finish.is_some()
    }

    pub fn shrink(&mut self) {
        self.source.shrink();
        self.sink.shrink();
    }

    /// The errno that both sides get when the flow fails for reasons of the driver.
    pub fn failure() -> u32 {
        Errno::CONNRESET.raw_os_error() as u32
    }
}

/// Whether the client waits for a `Ready` event of the socket and has taken note of the last one. A
/// fence has to lie between the news and this.
pub fn wants_event(memory: &ClientMemory, slot: Slot) -> bool {
    // SYNC POINT: event-ack (the client acknowledges, fences, looks at its line)
    memory.subscribed(slot) && memory.event_ack(slot) == memory.event_number(slot)
}
