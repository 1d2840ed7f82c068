//! One end of a connection goes from one client to another, for which the same kernel socket is theirs in turn
//! (`abi::TwinOperation`): the receiving end of one flow and the sending end of the other.
//!
//! *Receiving*: what the old client has not given back goes to the new one first, as copies from ring to ring.
//! *Sending*: what the old client has sent is delivered first; its socket is released after that. Both are
//! private to the mover, like all of a flow, and cost one pointer in flows that never move.
use super::flow::Flow;
use super::{counting, Mover};
use crate::messages::{ClientId, Endpoint, FlowId, Ring, ToConductor};
use pd_abi::layout::{socket_status, ENDED};
use pd_abi::limits::PAGE_BYTES;
use pd_shm::wait::{SharedCells, Waker};
use rustix::io::Errno;
use std::collections::VecDeque;

/// What a flow that was moved has to remember.
#[derive(Debug, Default)]
pub struct Moves {
    /// Where it shall deliver as soon as no copy is under way.
    next: Option<Endpoint>,
    /// Unread bytes in rings of former receivers, in the order of the stream.
    unread: VecDeque<Piece>,
    /// Bytes of them that were counted when they were delivered first.
    pub counted: u64,
    /// Senders to come, each with the number of sends that were accepted before it.
    heirs: VecDeque<(u64, Endpoint)>,
    /// Sends accepted before those of the present sender.
    pub base: u64,
}

/// Bytes in a former receiver's ring.
#[derive(Debug)]
struct Piece {
    ring: Ring,
    /// Offset in the ring of the next byte to be put under way (free-running), and how many there are.
    at: u64,
    left: u64,
    /// Bytes not yet delivered.
    undelivered: u64,
}

impl Piece {
    fn ring_bytes(&self) -> u64 {
        u64::from(self.ring.pages) * PAGE_BYTES as u64
    }
}

impl Moves {
    /// Whether the flow must not put anything under way.
    pub fn is_switching(&self) -> bool {
        self.next.is_some()
    }

    /// Address and length of what is to be copied next.
    pub fn next_unread(&self) -> Option<(u64, u64)> {
        let piece = self.unread.iter().find(|piece| piece.left > 0)?;
        let bytes = piece.ring_bytes();
        let position = piece.at & (bytes - 1);
        let len = piece.left.min(bytes - position);
        let base = piece.ring.map.address(piece.ring.page as usize * PAGE_BYTES, bytes as usize);
        Some((base.as_ptr() as u64 + position, len))
    }

    /// `len` bytes of it are under way.
    pub fn take_unread(&mut self, len: u64) {
        if let Some(piece) = self.unread.iter_mut().find(|piece| piece.left > 0) {
            piece.at += len;
            piece.left -= len;
        }
    }

    /// A copy of `len` bytes has ended. Says whether it was one of these.
    pub fn deliver_unread(&mut self, len: u64) -> bool {
        let Some(piece) = self.unread.iter_mut().find(|piece| piece.undelivered > 0) else { return false };
        piece.undelivered -= len;
        true
    }

    /// A ring whose bytes are all delivered.
    fn read_up(&mut self) -> Option<Ring> {
        self.unread.front().filter(|piece| piece.undelivered == 0)?;
        self.unread.pop_front().map(|piece| piece.ring)
    }

    /// The sender that comes next, if all sends before its own are done.
    fn inherit(&mut self, sends_done: u64) -> Option<Endpoint> {
        self.heirs.front().filter(|(base, _)| sends_done >= *base)?;
        let (base, heir) = self.heirs.pop_front()?;
        self.base = base;
        Some(heir)
    }

    /// The last of the senders to come.
    pub fn last_heir(&self) -> Option<&Endpoint> {
        self.heirs.back().map(|(_, heir)| heir)
    }

    /// The number of sends at which the present sender's end.
    pub fn sends_of_present(&self) -> u64 {
        self.heirs.front().map_or(u64::MAX, |(base, _)| *base)
    }
}

impl Flow {
    /// Delivers to the next client from now on. Returns the former one's ring if it has read all.
    fn switch_destination(&mut self) -> Option<Ring> {
        let next = self.moves.as_mut()?.next.take()?;
        let (at, left) = self.restart_receiving();
        self.destination = next;
        let ring = self.take_ring()?;
        if left == 0 {
            return Some(ring);
        }
        let moves = self.moves.as_mut()?;
        moves.counted += left;
        moves.unread.push_front(Piece { ring, at, left, undelivered: left });
        self.pending += left;
        None
    }
}

/// A client learns that its socket is another's by now.
fn tell_moved(former: &Endpoint, word: usize, wait: &SharedCells<'_>) {
    if former.client != ClientId::MAX {
        former.memory.publish_u32(former.slot, word, Errno::STALE.raw_os_error() as u32);
        Waker::default().wake_always(wait);
    }
}

impl Mover {
    /// Flow `id` delivers to another client's socket from now on.
    pub(super) fn retarget(&mut self, id: FlowId, destination: Endpoint) {
        let Some(flow) = self.flows.get(id) else {
            // It is over, and its last receiver has read all.
            let (memory, slot) = (&destination.memory, destination.slot);
            memory.publish_u32(slot, socket_status::RECV_END, ENDED);
            Waker::default().wake_always(&memory.recv_wait(slot));
            self.ready_at((destination.mover, destination.client, slot));
            return;
        };
        flow.moves.get_or_insert_default().next = Some(destination);
        self.switch(id);
    }

    /// Carries out [`Self::retarget`] if no copy is under way.
    pub(super) fn switch(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if !flow.can_switch() {
            return;
        }
        let had_ring = flow.ring.is_some();
        let former = flow.destination.clone();
        let read_up = flow.switch_destination();
        counting::open_clients(&self.metrics, self.settings.id, [&flow.source, &flow.destination]);
        let news = flow.repeat_recv_end();
        self.rings -= u64::from(had_ring);
        if let Some(ring) = read_up {
            self.conductor.send(ToConductor::FreeRing { ring });
        }
        tell_moved(&former, socket_status::RECV_END, &former.memory.recv_wait(former.slot));
        self.ready_at((former.mover, former.client, former.slot));
        self.tell(id, news);
        self.resume(id);
    }

    /// The sends of another client's socket are this flow's from now on, after those of its present one.
    pub(super) fn hand_over(&mut self, id: FlowId, source: Endpoint) {
        let Some(flow) = self.flows.get(id) else {
            let (memory, slot) = (&source.memory, source.slot);
            memory.publish_u32(slot, socket_status::SEND_END, ENDED);
            Waker::default().wake_always(&memory.send_wait(slot));
            return;
        };
        let former = flow.last_sender().clone();
        let heir = (source.client, source.slot);
        let (base, _) = flow.sends();
        flow.moves.get_or_insert_default().heirs.push_back((base, source));
        tell_moved(&former, socket_status::SEND_END, &former.memory.send_wait(former.slot));
        if let Some(socket) = self.socket_mut(former.client, former.slot) {
            socket.outgoing = None;
        }
        if let Some(socket) = self.socket_mut(heir.0, heir.1) {
            socket.outgoing = Some(id);
        }
        self.touch(id);
    }

    /// Passes the sending end on where the present sender's sends are done. Rings that were read up go back.
    pub(super) fn settle_moves(&mut self, id: FlowId) {
        loop {
            let Some(flow) = self.flows.get(id) else { return };
            let (_, sends_done) = flow.sends();
            let Some(moves) = &mut flow.moves else { return };
            if let Some(ring) = moves.read_up() {
                self.conductor.send(ToConductor::FreeRing { ring });
                continue;
            }
            let Some(heir) = moves.inherit(sends_done) else { return };
            let former = std::mem::replace(&mut flow.source, heir);
            counting::open_clients(&self.metrics, self.settings.id, [&flow.source, &flow.destination]);
            let news = flow.introduce_source();
            self.conductor.send(ToConductor::Inherited {
                client: former.client,
                serial: former.serial,
                slot: former.slot,
            });
            self.forget_client(former.client);
            self.tell(id, news);
            self.touch(id);
        }
    }

    /// Gives back the rings of former receivers: nobody will read them.
    pub(super) fn drop_unread(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        let unread = flow.moves.as_mut().map(|moves| std::mem::take(&mut moves.unread)).unwrap_or_default();
        for piece in unread {
            self.conductor.send(ToConductor::FreeRing { ring: piece.ring });
        }
    }
}
