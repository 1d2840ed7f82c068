//! Endpoint migration: one end of a connection goes from one client to another, which have the same kernel socket in turn
//! (`abi::TwinOperation`). An end is the receiving end of one flow and the sending end of the other.
//!
//! *Receiving*: bytes that the old client has not given back go to the new one first, as copies from ring to ring. *Sending*: bytes that
//! the old client has sent are delivered first; its socket is released after that. Both are private to the mover, like all of a flow, and
//! cost one pointer in flows that never move.
//!
//! A connection on the direct path leaves it when one of its ends moves. Receiving: the mover drains the sender's ring in the old client's
//! place, until the sender says that it has left the ring. Sending: sends of the new client wait until the receiver says that it has read
//! the old one's ring. Sends of a client that leaves the path itself wait as well.
//!
//! The state of a flow's migration is in `flow/migration.rs`. The commands to a mover are here, and the rings that are drained
//! ([`Drains`]).
use super::flow::{Flow, Impossible};
use super::{counting, Mover};
use crate::ids::{ClientId, FlowId};
use crate::messages::{
    Endpoint, FlowEnd, Gone, Handoff, Leave, PreviousOwner, SendEnd, ToConductor, ToMover,
};
use pd_abi::layout::{moved, socket_status, ELSEWHERE};
use pd_shm::wait::Waker;
use rustix::io::Errno;
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

/// Flows with a ring of the source's that is drained here, and the time of the next look at one of them.
#[derive(Debug, Default)]
pub struct Drains {
    flows: Vec<FlowId>,
    next_look: Duration,
}

impl Drains {
    /// Adds a flow whose source's ring is drained here.
    pub fn add(&mut self, id: FlowId) {
        self.flows.push(id);
        self.next_look = Duration::ZERO;
    }

    /// Returns the time of the next look. `None`: no ring is drained here.
    #[inline]
    pub fn next(&self) -> Option<Duration> {
        (!self.flows.is_empty()).then_some(self.next_look)
    }
}

impl Mover {
    /// Tells a client that another has its socket by now. `word` is the word by which the client's sends, or received bytes, end.
    fn tell_moved(&mut self, previous: &Endpoint, word: usize, end: u32) {
        let Endpoint { client, slot, ref memory, mover, .. } = *previous;
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

    /// Tells a client that another one receives what it has not. The number of bytes is in its line.
    fn tell_received(&mut self, previous: &Endpoint) {
        let stale = Errno::STALE.raw_os_error() as u16;
        self.tell_moved(previous, socket_status::RECV_END, moved::received(stale, true));
    }

    /// Makes flow `id` deliver to another client's socket from now on.
    pub(super) fn hand_off_destination(
        &mut self,
        id: FlowId,
        destination: Endpoint,
        handoff: Option<Box<Handoff>>,
    ) {
        let is_move = handoff.is_some();
        let handoff = handoff.map_or_else(Handoff::default, |handoff| *handoff);
        let end = handoff.end_of_over();
        let Handoff { previous, previous_end, left, undrained_ring, .. } = handoff;
        let Some(flow) = self.flows.get(id) else {
            // The flow is over, and its last receiver has read all.
            if let Some(Endpoint { memory, slot, .. }) = &previous_end {
                memory.publish_u64(*slot, socket_status::SPACE_WAKE_AT, u64::MAX);
            }
            previous_end.iter().for_each(|end| self.tell_received(end));
            self.release_previous(previous);
            let (memory, slot) = (&destination.memory, destination.slot);
            memory.publish_u32(slot, socket_status::RECV_END, end);
            Waker::default().wake_always(&memory.recv_wait(slot));
            self.ready_at((destination.mover, destination.client, slot));
            return;
        };
        let finished = flow.is_finished();
        let migration = flow.migration_mut();
        // A client that was to have the end meanwhile learns the same as the previous one.
        let between = migration.hand_off_destination(destination, previous, left, is_move);
        if let Some(undrained_ring) = undrained_ring {
            let is_last = migration.drain(undrained_ring) || finished;
            self.drains.add(id);
            self.read_on(id, is_last);
        }
        if let Some(between) = between {
            self.tell_received(&between);
        }
        self.switch(id);
    }

    /// Notes that the sender writes nothing more into its ring. Further sends wait until the receiver has read the ring, unless the mover
    /// reads it.
    pub(super) fn leave_ring(&mut self, id: FlowId) {
        self.read_on(id, true);
        let Some(flow) = self.flows.get(id) else { return };
        flow.migration_mut().leave_ring();
        self.tell_conductor(ToConductor::Gone { flow: id, gone: Gone::Writer });
    }

    /// Notes that the receiver has read a ring that the sender has left.
    pub(super) fn release(&mut self, id: FlowId) {
        self.tell_conductor(ToConductor::Gone { flow: id, gone: Gone::Reader });
        let Some(flow) = self.flows.get(id) else { return };
        if flow.migration_mut().release() {
            self.resume(id);
        }
    }

    /// Carries out [`Self::hand_off_destination`] if no copy is under way.
    pub(super) fn switch(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if !flow.can_switch() {
            return;
        }
        let (had_ring, payer) = (flow.has_ring(), flow.ring_payer());
        let Some((previous, read_up)) = flow.switch_destination() else { return };
        counting::open_clients(&self.metrics, self.outbox.own(), [flow.source(), flow.destination()]);
        let news = flow.repeat_recv_end();
        if had_ring {
            self.division.give(&mut self.scheduler, payer);
        }
        if let Some(ring) = read_up {
            self.tell_conductor(ToConductor::FreeRing { ring });
        }
        self.tell_received(&previous);
        self.tell(id, news);
        self.resume(id);
        self.release_previous_owners(id);
        self.tell_drained(id);
    }

    /// Tells the conductor which ends have nothing of their previous clients under way, if it has asked.
    fn tell_drained(&mut self, id: FlowId) {
        for end in [FlowEnd::Source, FlowEnd::Destination] {
            let migration = self.flows.used(id).and_then(|flow| flow.migration());
            if let Some(moves) = migration.and_then(|migration| migration.take_drained(end)) {
                self.tell_conductor(ToConductor::Drained { flow: id, end, moves });
            }
        }
    }

    /// Tells the conductor that the flow touches the line of this socket no more.
    fn release_previous(&self, previous: impl IntoIterator<Item = PreviousOwner>) {
        previous.into_iter().for_each(|previous| self.tell_conductor(ToConductor::Released { previous }));
    }

    fn release_previous_owners(&mut self, id: FlowId) {
        let migration = self.flows.used(id).and_then(|flow| flow.migration());
        let previous_owners = migration.map(|migration| migration.take_previous_owners()).unwrap_or_default();
        self.release_previous(previous_owners);
    }

    /// Takes the sends of another client's socket from now on, after those of the present one.
    pub(super) fn hand_off_source(&mut self, id: FlowId, source: Endpoint, handoff: &Handoff) {
        if let Some(migration) = self.flows.used(id).and_then(|flow| flow.migration()) {
            migration.fix_end(handoff.ring_end);
        }
        self.read_on(id, true);
        let end = handoff.end_of_over();
        let stale = Errno::STALE.raw_os_error() as u16;
        let Some(flow) = self.flows.get(id) else {
            if let Some(end) = &handoff.previous_end {
                // All that it sent is done.
                let sends = end.memory.published(end.slot, socket_status::SEND_CONSUMER);
                self.tell_moved(end, socket_status::SEND_END, moved::word(stale, Some(sends)));
            }
            self.release_previous(handoff.previous);
            let (memory, slot) = (&source.memory, source.slot);
            memory.publish_u32(slot, socket_status::SEND_END, end);
            Waker::default().wake_always(&memory.send_wait(slot));
            return;
        };
        let previous = flow.last_sender().clone();
        if handoff.peers_end == ELSEWHERE {
            // The previous one has learnt the same, or would have with its next send.
            source.memory.publish_u32(source.slot, socket_status::SEND_END, ELSEWHERE);
        }
        // The previous client sees the word before it posts a send, or the send is seen here.
        previous.memory.publish_u32(previous.slot, socket_status::SEND_END, moved::word(stale, None));
        // SYNC POINT: moved-dekker
        fence(Ordering::SeqCst);
        self.catch_up(previous.client, previous.slot);
        let Some(flow) = self.flows.get(id) else { return };
        let successor = (source.client, source.slot);
        let (base, _) = flow.sends();
        flow.make_room_for_successor();
        let migration = flow.migration_mut();
        let taken = migration.hand_off_source(base, source, handoff.held);
        self.tell_moved(&previous, socket_status::SEND_END, moved::word(stale, Some(taken)));
        if handoff.unclaimed {
            self.tell_received(&previous);
        }
        if let Some(socket) = self.clients.socket_mut(previous.client, previous.slot) {
            socket.outgoing = None;
        }
        if let Some(socket) = self.clients.socket_mut(successor.0, successor.1) {
            (socket.outgoing, socket.sends) = (Some(id), Some(id));
        }
        self.touch(id);
    }

    /// Passes the sending end on when the present sender's sends are done. Gives back rings that were read up.
    pub(super) fn settle_migration(&mut self, id: FlowId) {
        loop {
            let Some(flow) = self.flows.get(id) else { return };
            let (_, sends_done) = flow.sends();
            let Some(migration) = flow.migration() else { return };
            if let Some(previous) = migration.read_up() {
                if let Some(ring) = previous.into_receive_ring() {
                    self.tell_conductor(ToConductor::FreeRing { ring });
                }
                continue;
            }
            let Some(successor) = migration.inherit(sends_done) else { return self.tell_drained(id) };
            let (previous, news) = flow.replace_source(successor);
            counting::open_clients(&self.metrics, self.outbox.own(), [flow.source(), flow.destination()]);
            let Endpoint { client, serial, slot, .. } = previous;
            self.release_previous((client != ClientId::NOBODY).then_some(PreviousOwner {
                client,
                serial,
                slot,
            }));
            self.forget_client(previous.client);
            self.tell(id, news);
            self.touch(id);
        }
    }

    /// Gives back the rings of previous receivers: nobody will read them.
    pub(super) fn drop_undrained(&mut self, id: FlowId) {
        self.release_previous_owners(id);
        let Some(flow) = self.flows.get(id) else { return };
        let unread = flow.migration().map(|migration| migration.drop_undrained());
        for ring in unread.into_iter().flatten() {
            self.tell_conductor(ToConductor::FreeRing { ring });
        }
    }

    /// Tells a client that its connection leaves the direct path, when both flows know: `id`, which brings it bytes, and the flow back. The
    /// client's mover tells the client. The conductor told that mover of the move before it told this one.
    pub(super) fn tell_to_leave(&mut self, id: FlowId, leave: &Leave) {
        let Leave { to, path } = leave;
        if to.mover != self.outbox.own() {
            self.outbox.tell_mover(to.mover, ToMover::Leave { flow: id, leave: Box::new(leave.clone()) });
            return;
        }
        let incoming = self.clients.socket(to.client, to.slot.socket(to.generation)).and_then(|s| s.incoming);
        // SYNC POINT: direct-left (the peer sees all that the previous client wrote)
        to.memory.publish_path(to.slot, *path);
        fence(Ordering::SeqCst);
        self.wake_ends(id, incoming.map_or(self.outbox.own(), |(mover, _)| mover));
        self.wake_ends(id.peer(), self.outbox.own());
    }

    /// Takes bytes that have come into a ring that is read in a previous receiver's place. `last`: the sender has left the ring.
    pub(super) fn read_on(&mut self, id: FlowId, last: bool) {
        let now = self.now;
        let Some(flow) = self.flows.used(id).filter(|flow| flow.is_draining()) else { return };
        // Copies of sends and bytes in the ring never come together, unless the sender breaks the protocol.
        let in_order = flow.has_no_send_under_way() && !flow.is_aborted();
        let Some(migration) = flow.migration() else { return };
        let found = migration.look_at_drain_ring(now, in_order);
        if last {
            migration.end_drain();
        }
        match found {
            Ok(0) => self.tell_drained(id),
            Ok(len) => {
                flow.add_pending(len);
                self.resume(id);
            }
            Err(Impossible) => self.break_flow(id),
        }
    }

    /// Ends a flow whose sender's words about its ring are impossible.
    fn break_flow(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if let Some(migration) = flow.migration() {
            migration.end_drain();
        }
        let client = flow.source().client;
        self.tell_conductor(ToConductor::BrokeRing { client });
        self.abort(id, SendEnd::by(Flow::failure()), Some(Flow::failure()));
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

    /// Returns the time of the next look at a flow's ring, if the ring is read here.
    fn look_at(&mut self, id: FlowId) -> Option<Duration> {
        self.flows.used(id)?.migration()?.look_at()
    }
}
