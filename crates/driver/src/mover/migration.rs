//! Endpoint migration: one end of a connection goes from one client to another, for which the same kernel socket is theirs in
//! turn (`abi::TwinOperation`): the receiving end of one flow and the sending end of the other.
//!
//! *Receiving*: what the old client has not given back goes to the new one first, as copies from ring to ring.
//! *Sending*: what the old client has sent is delivered first; its socket is released after that. Both are
//! private to the mover, like all of a flow, and cost one pointer in flows that never move.
//!
//! A connection on the direct path leaves it when one of its ends moves. Receiving: the mover drains the sender's ring
//! in the old client's place, until the sender says that it has left it. Sending: what the new client sends waits until
//! the receiver says that it has read the old one's ring. So does what a client sends that leaves the path itself.
//!
//! This file has all of it: what a flow remembers ([`Migration`]), which rings are drained ([`Drains`]), and what the mover
//! does when it is told.
use super::flow::Flow;
use super::{counting, Mover};
use crate::ids::{ClientId, FlowId};
use crate::memory::Remainder;
use crate::messages::{Endpoint, Former, Gone, Leave, Parted, Ring, ToConductor, ToMover};
use pd_abi::layout::{direct, moved, socket_status, ELSEWHERE, ENDED};
use pd_shm::wait::Waker;
use pd_shm::Mapping;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// How soon after a look at a ring that its writer has not left there is another one; twice as long each time...
const LOOK_FIRST: Duration = Duration::from_millis(1);
/// ...up to this.
const LOOK_LAST: Duration = Duration::from_secs(1);

/// What a flow that was moved has to remember.
#[derive(Debug, Default)]
pub struct Migration {
    /// Where it shall deliver as soon as no copy is under way, and whose end that was.
    next: Option<Endpoint>,
    formers: Vec<Former>,
    /// Unread bytes in rings of former receivers, in the order of the stream.
    undrained: VecDeque<Undrained>,
    /// Bytes of them that were counted when they were delivered first.
    counted: u64,
    /// Senders to come, each with the number of sends that were accepted before it.
    successors: VecDeque<(u64, Endpoint)>,
    /// Sends accepted before those of the present sender.
    base: u64,
    /// The sender's ring, as long as it may write there and the receiver cannot read it.
    remainder: Option<Box<DrainRing>>,
    /// The receiver has still to read a ring that the present sender has left, or a former one had.
    held: bool,
    /// The sender's ring is read here: its receiver has gone to another client.
    read_here: bool,
    /// The sender writes nothing more into its ring; the receiver has read it to the end. Both for good.
    sender_left: bool,
    receiver_left: bool,
}

/// Where a former receiver's bytes are.
#[derive(Debug)]
enum FormerRing {
    /// In its receive ring.
    Receive(Ring),
    /// In the ring of the sender that it read: the ring's offset in the mapping, and its bytes.
    Direct(Arc<Mapping>, usize, u64),
}

impl FormerRing {
    /// Address and bytes of the ring.
    fn place(&self) -> (u64, u64) {
        let (map, offset, bytes) = match self {
            Self::Receive(ring) => (&ring.map, ring.offset(), ring.bytes()),
            Self::Direct(map, head, bytes) => (map, *head, *bytes),
        };
        (map.address(offset, bytes as usize).as_ptr() as u64, bytes)
    }
}

/// Bytes in a former receiver's ring.
#[derive(Debug)]
struct Undrained {
    ring: FormerRing,
    /// Offset in the ring of the next byte to be put under way (free-running), and how many there are.
    at: u64,
    left: u64,
    /// Bytes not yet delivered.
    undelivered: u64,
}

/// Flows with a ring of the source's that is drained here, and when to look at one of them next.
#[derive(Debug, Default)]
pub struct Drains {
    flows: Vec<FlowId>,
    next_look: Duration,
}

impl Drains {
    /// The ring of one more is drained here.
    pub fn add(&mut self, id: FlowId) {
        self.flows.push(id);
        self.next_look = Duration::ZERO;
    }

    /// When to look at one of them.
    #[inline]
    pub fn next(&self) -> Option<Duration> {
        (!self.flows.is_empty()).then_some(self.next_look)
    }
}

/// A ring that the mover reads until its writer has left it.
#[derive(Debug)]
pub struct DrainRing {
    map: Arc<Mapping>,
    head: usize,
    bytes: u64,
    /// Bytes that the former receiver has given back: nobody gives back more, so that no more than a ring comes.
    given_back: u64,
    /// Bytes that were read, by the former receiver or here.
    read: u64,
    /// When to look again, and how long to wait after that.
    look_at: Duration,
    pause: Duration,
}

impl From<Remainder> for DrainRing {
    fn from(Remainder { map, head, bytes, read, is_last: _ }: Remainder) -> Self {
        let (map, look_at, pause) = (Arc::new(map), Duration::ZERO, LOOK_FIRST);
        Self { map, head, bytes, given_back: read, read, look_at, pause }
    }
}

/// A client's counter cannot be what it is.
struct Impossible;

impl Migration {
    /// Whether the flow must not put anything under way.
    pub fn is_waiting(&self) -> bool {
        self.held || self.is_switching()
    }

    /// Whether it is to have another destination.
    pub fn is_switching(&self) -> bool {
        self.next.is_some()
    }

    /// Whether there is a ring of the source's that the destination cannot read.
    pub fn has_remainder(&self) -> bool {
        self.remainder.is_some()
    }

    /// Address and length of what is to be copied next.
    pub fn next_undrained(&self) -> Option<(u64, u64)> {
        let piece = self.undrained.iter().find(|piece| piece.left > 0)?;
        let (base, bytes) = piece.ring.place();
        let position = piece.at & (bytes - 1);
        Some((base + position, piece.left.min(bytes - position)))
    }

    /// `len` bytes of it are under way.
    pub fn take_undrained(&mut self, len: u64) {
        if let Some(piece) = self.undrained.iter_mut().find(|piece| piece.left > 0) {
            piece.at += len;
            piece.left -= len;
        }
    }

    /// A copy of `len` bytes has ended. Says whether it was one of these.
    pub fn deliver_undrained(&mut self, len: u64) -> bool {
        let Some(piece) = self.undrained.iter_mut().find(|piece| piece.undelivered > 0) else { return false };
        piece.undelivered -= len;
        true
    }

    /// Where bytes lay that are all delivered.
    fn read_up(&mut self) -> Option<FormerRing> {
        self.undrained.front().filter(|piece| piece.undelivered == 0)?;
        self.undrained.pop_front().map(|piece| piece.ring)
    }

    /// The sender that comes next, if all sends before its own are done.
    fn inherit(&mut self, sends_done: u64) -> Option<Endpoint> {
        self.successors.front().filter(|(base, _)| sends_done >= *base)?;
        let (base, successor) = self.successors.pop_front()?;
        self.base = base;
        Some(successor)
    }

    /// Sends that were accepted before those of the last sender.
    fn base_of_last(&self) -> u64 {
        self.successors.back().map_or(self.base, |(base, _)| *base)
    }

    /// The last of the senders to come.
    pub fn last_successor(&self) -> Option<&Endpoint> {
        self.successors.back().map(|(_, successor)| successor)
    }

    /// The senders to come.
    pub fn successors(&self) -> impl Iterator<Item = &Endpoint> {
        self.successors.iter().map(|(_, successor)| successor)
    }

    /// Lets `change` see each end that is to come.
    pub fn each_end(&mut self, change: &mut impl FnMut(&mut Endpoint)) {
        self.successors.iter_mut().map(|(_, successor)| successor).chain(&mut self.next).for_each(change);
    }

    /// Whether this client is one of the senders to come.
    pub fn has_successor(&self, client: ClientId) -> bool {
        self.successors.iter().any(|(_, successor)| successor.client == client)
    }

    /// Numbers of the present sender's first send, and of its successor's.
    pub fn sends_of_present(&self) -> (u64, u64) {
        (self.base, self.successors.front().map_or(u64::MAX, |(base, _)| *base))
    }

    /// How many of so many bytes were counted when they were delivered first.
    pub fn take_counted(&mut self, bytes: u64) -> u64 {
        let again = self.counted.min(bytes);
        self.counted -= again;
        again
    }

    /// Bytes that have come into the sender's ring since the last look; none if this is not their place in the stream.
    ///
    /// # Errors
    /// If there are more than it holds.
    fn look_at_remainder(&mut self, now: Duration, in_order: bool) -> Result<u64, Impossible> {
        let Some(ring) = self.remainder.as_deref_mut() else { return Ok(0) };
        ring.look_at = now + ring.pause;
        ring.pause = (ring.pause * 2).min(LOOK_LAST);
        if !in_order {
            return Ok(0);
        }
        let written = ring.map.load_u64(direct::PRODUCER, Ordering::Acquire);
        if written.wrapping_sub(ring.given_back) > ring.bytes || written < ring.read {
            return Err(Impossible);
        }
        let len = written - std::mem::replace(&mut ring.read, written);
        match self.undrained.back_mut() {
            _ if len == 0 => {}
            Some(piece) if matches!(piece.ring, FormerRing::Direct(..)) => {
                piece.left += len;
                piece.undelivered += len;
            }
            _ => {
                let place = FormerRing::Direct(Arc::clone(&ring.map), ring.head, ring.bytes);
                let at = written - len;
                self.undrained.push_back(Undrained { ring: place, at, left: len, undelivered: len });
            }
        }
        Ok(len)
    }
}

impl Flow {
    /// Delivers to the next client from now on. Returns the former one, and its ring if it has read all.
    fn switch_destination(&mut self) -> Option<(Endpoint, Option<Ring>)> {
        let next = self.migration()?.next.take()?;
        let (former, ring, at, left) = self.replace_destination(next);
        let (Some(migration), Some(ring)) = (self.migration(), ring) else { return Some((former, None)) };
        if left == 0 {
            return Some((former, Some(ring)));
        }
        migration.counted += left;
        migration.undrained.push_front(Undrained {
            ring: FormerRing::Receive(ring),
            at,
            left,
            undelivered: left,
        });
        self.add_pending(left);
        Some((former, None))
    }
}

impl Mover {
    /// A client learns that its socket is another's by now: by the word that tells how its sends, or what it receives, end.
    fn tell_moved(&mut self, former: &Endpoint, word: usize, end: u32) {
        let Endpoint { client, slot, ref memory, mover, .. } = *former;
        if client == ClientId::NOBODY {
            return;
        }
        memory.publish_u32(slot, word, end);
        let receives = word == socket_status::RECV_END;
        let wait = if receives { memory.recv_wait(slot) } else { memory.send_wait(slot) };
        Waker::default().wake_always(&wait);
        if receives {
            self.ready_at((mover, client, slot));
        }
    }

    /// Flow `id` delivers to another client's socket from now on.
    pub(super) fn retarget(&mut self, id: FlowId, destination: Endpoint, parted: Parted) {
        let Parted { former, left, remainder, end, .. } = parted;
        let Some(flow) = self.flows.get(id) else {
            self.let_go(former);
            // It is over, and its last receiver has read all.
            let (memory, slot) = (&destination.memory, destination.slot);
            memory.publish_u32(slot, socket_status::RECV_END, if end == 0 { ENDED } else { end });
            Waker::default().wake_always(&memory.recv_wait(slot));
            self.ready_at((destination.mover, destination.client, slot));
            return;
        };
        let finished = flow.is_finished();
        let migration = flow.migration_mut();
        // The client that should have had it meanwhile learns the same as the former one.
        let between = migration.next.replace(destination);
        migration.read_here |= left;
        migration.formers.extend(former);
        // Of a former sender's ring the new destination gets what the former one had not read, here.
        migration.held = false;
        if let Some(remainder) = remainder {
            let is_last = remainder.is_last || finished || migration.sender_left;
            migration.remainder = Some(Box::new(DrainRing::from(remainder)));
            self.drains.add(id);
            self.read_on(id, is_last);
        }
        if let Some(between) = between {
            self.tell_moved(&between, socket_status::RECV_END, Errno::STALE.raw_os_error() as u32);
        }
        self.switch(id);
    }

    /// The sender writes nothing more into its ring. What it sends from now on waits until the receiver has read that,
    /// unless it is read here.
    pub(super) fn leave_ring(&mut self, id: FlowId) {
        self.read_on(id, true);
        let Some(flow) = self.flows.get(id) else { return };
        let migration = flow.migration_mut();
        migration.sender_left = true;
        migration.held |= !migration.read_here && !migration.receiver_left;
        self.tell_conductor(ToConductor::Gone { flow: id, gone: Gone::Writer });
    }

    /// The receiver has read a ring that the sender has left.
    pub(super) fn release(&mut self, id: FlowId) {
        self.tell_conductor(ToConductor::Gone { flow: id, gone: Gone::Reader });
        let Some(flow) = self.flows.get(id) else { return };
        let migration = flow.migration_mut();
        migration.receiver_left = true;
        if std::mem::take(&mut migration.held) {
            self.resume(id);
        }
    }

    /// Carries out [`Self::retarget`] if no copy is under way.
    pub(super) fn switch(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if !flow.can_switch() {
            return;
        }
        let (had_ring, payer) = (flow.has_ring(), flow.ring_payer());
        let Some((former, read_up)) = flow.switch_destination() else { return };
        counting::open_clients(&self.metrics, self.outbox.own(), [flow.source(), flow.destination()]);
        let news = flow.repeat_recv_end();
        if had_ring {
            self.division.give(&mut self.scheduler, payer);
        }
        if let Some(ring) = read_up {
            self.tell_conductor(ToConductor::FreeRing { ring });
        }
        self.tell_moved(&former, socket_status::RECV_END, Errno::STALE.raw_os_error() as u32);
        self.tell(id, news);
        self.resume(id);
        self.let_go_formers(id);
    }

    /// The flow touches the line of this socket no more.
    fn let_go(&self, former: impl IntoIterator<Item = Former>) {
        former.into_iter().for_each(|former| self.tell_conductor(ToConductor::LetGo { former }));
    }

    fn let_go_formers(&mut self, id: FlowId) {
        let migration = self.flows.used(id).and_then(|flow| flow.migration());
        let formers = migration.map(|migration| std::mem::take(&mut migration.formers)).unwrap_or_default();
        self.let_go(formers);
    }

    /// The sends of another client's socket are this flow's from now on, after those of its present one.
    pub(super) fn hand_over(&mut self, id: FlowId, source: Endpoint, parted: &Parted) {
        self.read_on(id, true);
        let Some(flow) = self.flows.get(id) else {
            self.let_go(parted.former);
            let (memory, slot) = (&source.memory, source.slot);
            memory.publish_u32(
                slot,
                socket_status::SEND_END,
                if parted.end == 0 { ENDED } else { parted.end },
            );
            Waker::default().wake_always(&memory.send_wait(slot));
            return;
        };
        let former = flow.last_sender().clone();
        if parted.end == ELSEWHERE {
            // As the former one has learnt, or would have with its next send.
            source.memory.publish_u32(source.slot, socket_status::SEND_END, ELSEWHERE);
        }
        let stale = Errno::STALE.raw_os_error() as u16;
        // It sees the word before it posts, or what it has posted is seen here.
        former.memory.publish_u32(former.slot, socket_status::SEND_END, moved::word(stale, None));
        // SYNC POINT: moved-dekker
        fence(Ordering::SeqCst);
        self.catch_up(former.client, former.slot);
        let Some(flow) = self.flows.get(id) else { return };
        let successor = (source.client, source.slot);
        let (base, _) = flow.sends();
        let migration = flow.migration_mut();
        let taken = base - migration.base_of_last();
        migration.successors.push_back((base, source));
        migration.held |= parted.held && !migration.receiver_left;
        self.tell_moved(&former, socket_status::SEND_END, moved::word(stale, Some(taken)));
        if parted.unclaimed {
            self.tell_moved(&former, socket_status::RECV_END, u32::from(stale));
        }
        if let Some(socket) = self.clients.socket_mut(former.client, former.slot) {
            socket.outgoing = None;
        }
        if let Some(socket) = self.clients.socket_mut(successor.0, successor.1) {
            (socket.outgoing, socket.sends) = (Some(id), Some(id));
        }
        self.touch(id);
    }

    /// Passes the sending end on where the present sender's sends are done. Rings that were read up go back.
    pub(super) fn settle_migration(&mut self, id: FlowId) {
        loop {
            let Some(flow) = self.flows.get(id) else { return };
            let (_, sends_done) = flow.sends();
            let Some(migration) = flow.migration() else { return };
            if let Some(former) = migration.read_up() {
                if let FormerRing::Receive(ring) = former {
                    self.tell_conductor(ToConductor::FreeRing { ring });
                }
                continue;
            }
            let Some(successor) = migration.inherit(sends_done) else { return };
            let (former, news) = flow.replace_source(successor);
            counting::open_clients(&self.metrics, self.outbox.own(), [flow.source(), flow.destination()]);
            let Endpoint { client, serial, slot, .. } = former;
            self.let_go((client != ClientId::NOBODY).then_some(Former { client, serial, slot }));
            self.forget_client(former.client);
            self.tell(id, news);
            self.touch(id);
        }
    }

    /// Gives back the rings of former receivers: nobody will read them.
    pub(super) fn drop_undrained(&mut self, id: FlowId) {
        self.let_go_formers(id);
        let Some(flow) = self.flows.get(id) else { return };
        let unread =
            flow.migration().map(|migration| std::mem::take(&mut migration.undrained)).unwrap_or_default();
        for piece in unread {
            if let FormerRing::Receive(ring) = piece.ring {
                self.tell_conductor(ToConductor::FreeRing { ring });
            }
        }
    }

    /// Tells a client that its connection leaves the direct path, when both flows know: `id`, which brings it bytes, and the
    /// one back. That one's mover, the client's, tells it; it heard of the move from the conductor before this mover did.
    pub(super) fn tell_to_leave(&mut self, id: FlowId, leave: &Leave) {
        let Leave { to, path } = leave;
        if to.mover != self.outbox.own() {
            self.outbox.tell_mover(to.mover, ToMover::Leave { flow: id, leave: Box::new(leave.clone()) });
            return;
        }
        let incoming = self.clients.socket(to.client, to.slot.socket(to.generation)).and_then(|s| s.incoming);
        // SYNC POINT: direct-left (the peer sees all that the former client wrote)
        to.memory.publish_u32(to.slot, socket_status::PATH, *path);
        fence(Ordering::SeqCst);
        self.kick(id, incoming.map_or(self.outbox.own(), |(mover, _)| mover));
        self.kick(id.peer(), self.outbox.own());
    }

    /// Takes what has come into a ring that is read in a former receiver's place. `last`: the sender has left it.
    pub(super) fn read_on(&mut self, id: FlowId, last: bool) {
        let now = self.now;
        let Some(flow) = self.flows.used(id).filter(|flow| flow.has_remainder()) else { return };
        // Copies of sends and bytes in the ring never come together, unless the sender breaks the protocol.
        let in_order = flow.has_no_send_under_way() && !flow.is_aborted();
        let Some(migration) = flow.migration() else { return };
        let found = migration.look_at_remainder(now, in_order);
        if last {
            migration.remainder = None;
        }
        match found {
            Ok(0) => {}
            Ok(len) => {
                // They count as the sender says (`Reported`).
                migration.counted += len;
                flow.add_pending(len);
                self.resume(id);
            }
            Err(Impossible) => self.break_flow(id),
        }
    }

    /// The sender's words about its ring are impossible.
    fn break_flow(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if let Some(migration) = flow.migration() {
            migration.remainder = None;
        }
        let client = flow.source().client;
        self.tell_conductor(ToConductor::BrokeRing { client });
        self.abort(id, Flow::failure(), Some(Flow::failure()));
    }

    /// Looks at the rings whose writers have not left them.
    pub(super) fn look_at_drains(&mut self) {
        self.drains.next_look = Duration::MAX;
        for at in (0..self.drains.flows.len()).rev() {
            let id = self.drains.flows[at];
            if self.look_at(id).is_some_and(|at| at <= self.now) {
                self.read_on(id, false);
            }
            match self.look_at(id) {
                Some(at) => self.drains.next_look = self.drains.next_look.min(at),
                None => {
                    self.drains.flows.swap_remove(at);
                }
            }
        }
    }

    /// When the ring of a flow is to be looked at, if it has one that is read here.
    fn look_at(&mut self, id: FlowId) -> Option<Duration> {
        Some(self.flows.used(id)?.migration()?.remainder.as_ref()?.look_at)
    }
}
