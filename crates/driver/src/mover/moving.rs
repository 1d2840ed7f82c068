//! One end of a connection goes from one client to another, for which the same kernel socket is theirs in turn
//! (`abi::TwinOperation`): the receiving end of one flow and the sending end of the other.
//!
//! *Receiving*: what the old client has not given back goes to the new one first, as copies from ring to ring.
//! *Sending*: what the old client has sent is delivered first; its socket is released after that. Both are
//! private to the mover, like all of a flow, and cost one pointer in flows that never move.
//!
//! A connection on the direct path leaves it when one of its ends moves. Receiving: the mover reads the sender's ring
//! in the old client's place, until the sender says that it has left it. Sending: what the new client sends waits until
//! the receiver says that it has read the old one's ring. So does what a client sends that leaves the path itself.
mod remainder;

pub use remainder::Unfinished;

use super::flow::Flow;
use super::{counting, Mover};
use crate::ids::{ClientId, FlowId};
use crate::messages::{Endpoint, Former, Gone, Parted, Ring, ToConductor};
use pd_abi::layout::{socket_status, ENDED};
use pd_shm::wait::Waker;
use pd_shm::Mapping;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What a flow that was moved has to remember.
#[derive(Debug, Default)]
pub struct Moves {
    /// Where it shall deliver as soon as no copy is under way, and whose end that was.
    next: Option<Endpoint>,
    formers: Vec<Former>,
    /// Unread bytes in rings of former receivers, in the order of the stream.
    unread: VecDeque<Piece>,
    /// Bytes of them that were counted when they were delivered first.
    counted: u64,
    /// Senders to come, each with the number of sends that were accepted before it.
    heirs: VecDeque<(u64, Endpoint)>,
    /// Sends accepted before those of the present sender.
    base: u64,
    /// The sender's ring, as long as it may write there and the receiver cannot read it.
    pub remainder: Option<Box<Unfinished>>,
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
enum Source {
    /// In its receive ring.
    Ring(Ring),
    /// In the ring of the sender that it read: the ring's offset in the mapping, and its bytes.
    Direct(Arc<Mapping>, usize, u64),
}

impl Source {
    /// Address and bytes of the ring.
    fn place(&self) -> (u64, u64) {
        let (map, offset, bytes) = match self {
            Self::Ring(ring) => (&ring.map, ring.offset(), ring.bytes()),
            Self::Direct(map, head, bytes) => (map, *head, *bytes),
        };
        (map.address(offset, bytes as usize).as_ptr() as u64, bytes)
    }
}

/// Bytes in a former receiver's ring.
#[derive(Debug)]
struct Piece {
    source: Source,
    /// Offset in the ring of the next byte to be put under way (free-running), and how many there are.
    at: u64,
    left: u64,
    /// Bytes not yet delivered.
    undelivered: u64,
}

impl Moves {
    /// Whether the flow must not put anything under way.
    pub fn is_waiting(&self) -> bool {
        self.held || self.is_switching()
    }

    /// Whether it is to have another destination.
    pub fn is_switching(&self) -> bool {
        self.next.is_some()
    }

    /// Address and length of what is to be copied next.
    pub fn next_unread(&self) -> Option<(u64, u64)> {
        let piece = self.unread.iter().find(|piece| piece.left > 0)?;
        let (base, bytes) = piece.source.place();
        let position = piece.at & (bytes - 1);
        Some((base + position, piece.left.min(bytes - position)))
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

    /// Where bytes lay that are all delivered.
    fn read_up(&mut self) -> Option<Source> {
        self.unread.front().filter(|piece| piece.undelivered == 0)?;
        self.unread.pop_front().map(|piece| piece.source)
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

    /// Whether this client is one of the senders to come.
    pub fn has_heir(&self, client: ClientId) -> bool {
        self.heirs.iter().any(|(_, heir)| heir.client == client)
    }

    /// Numbers of the present sender's first send, and of its successor's.
    pub fn sends_of_present(&self) -> (u64, u64) {
        (self.base, self.heirs.front().map_or(u64::MAX, |(base, _)| *base))
    }

    /// How many of so many bytes were counted when they were delivered first.
    pub fn take_counted(&mut self, bytes: u64) -> u64 {
        let again = self.counted.min(bytes);
        self.counted -= again;
        again
    }
}

impl Flow {
    /// Delivers to the next client from now on. Returns the former one, and its ring if it has read all.
    fn switch_destination(&mut self) -> Option<(Endpoint, Option<Ring>)> {
        let next = self.moves.as_mut()?.next.take()?;
        let (former, ring, at, left) = self.replace_destination(next);
        let (Some(moves), Some(ring)) = (&mut self.moves, ring) else { return Some((former, None)) };
        if left == 0 {
            return Some((former, Some(ring)));
        }
        moves.counted += left;
        moves.unread.push_front(Piece { source: Source::Ring(ring), at, left, undelivered: left });
        self.pending += left;
        Some((former, None))
    }
}

impl Mover {
    /// A client learns that its socket is another's by now: by the word that tells how its sends, or what it receives, end.
    fn tell_moved(&mut self, former: &Endpoint, word: usize) {
        let Endpoint { client, slot, ref memory, mover, .. } = *former;
        if client == ClientId::NOBODY {
            return;
        }
        memory.publish_u32(slot, word, Errno::STALE.raw_os_error() as u32);
        let receives = word == socket_status::RECV_END;
        let wait = if receives { memory.recv_wait(slot) } else { memory.send_wait(slot) };
        Waker::default().wake_always(&wait);
        if receives {
            self.ready_at((mover, client, slot));
        }
    }

    /// Flow `id` delivers to another client's socket from now on.
    pub(super) fn retarget(&mut self, id: FlowId, destination: Endpoint, parted: Parted) {
        let Parted { former, left, remainder, .. } = parted;
        let Some(flow) = self.flows.get(id) else {
            self.let_go(former);
            // It is over, and its last receiver has read all.
            let (memory, slot) = (&destination.memory, destination.slot);
            memory.publish_u32(slot, socket_status::RECV_END, ENDED);
            Waker::default().wake_always(&memory.recv_wait(slot));
            self.ready_at((destination.mover, destination.client, slot));
            return;
        };
        let finished = flow.is_finished();
        let moves = flow.moves.get_or_insert_default();
        // The client that should have had it meanwhile learns the same as the former one.
        let between = moves.next.replace(destination);
        moves.read_here |= left;
        moves.formers.extend(former);
        // Of a former sender's ring the new destination gets what the former one had not read, here.
        moves.held = false;
        if let Some(remainder) = remainder {
            let is_last = remainder.is_last || finished || moves.sender_left;
            moves.remainder = Some(Box::new(Unfinished::from(remainder)));
            self.unfinished.push(id);
            self.next_look = Duration::ZERO;
            self.read_on(id, is_last);
        }
        if let Some(between) = between {
            self.tell_moved(&between, socket_status::RECV_END);
        }
        self.switch(id);
    }

    /// The sender writes nothing more into its ring. What it sends from now on waits until the receiver has read that,
    /// unless it is read here.
    pub(super) fn leave_ring(&mut self, id: FlowId) {
        self.read_on(id, true);
        let Some(flow) = self.flows.get(id) else { return };
        let moves = flow.moves.get_or_insert_default();
        moves.sender_left = true;
        moves.held |= !moves.read_here && !moves.receiver_left;
        self.tell_conductor(ToConductor::Gone { flow: id, gone: Gone::Writer });
    }

    /// The receiver has read a ring that the sender has left.
    pub(super) fn release(&mut self, id: FlowId) {
        self.tell_conductor(ToConductor::Gone { flow: id, gone: Gone::Reader });
        let Some(flow) = self.flows.get(id) else { return };
        let moves = flow.moves.get_or_insert_default();
        moves.receiver_left = true;
        if std::mem::take(&mut moves.held) {
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
        counting::open_clients(&self.metrics, self.settings.id, [flow.source(), flow.destination()]);
        let news = flow.repeat_recv_end();
        if had_ring {
            self.division.give(&mut self.fair, payer);
        }
        if let Some(ring) = read_up {
            self.tell_conductor(ToConductor::FreeRing { ring });
        }
        self.tell_moved(&former, socket_status::RECV_END);
        self.tell(id, news);
        self.resume(id);
        self.let_go_formers(id);
    }

    /// The flow touches the line of this socket no more.
    fn let_go(&self, former: impl IntoIterator<Item = Former>) {
        former.into_iter().for_each(|former| self.tell_conductor(ToConductor::LetGo { former }));
    }

    fn let_go_formers(&mut self, id: FlowId) {
        let moves = self.flows.used(id).and_then(|flow| flow.moves.as_mut());
        let formers = moves.map(|moves| std::mem::take(&mut moves.formers)).unwrap_or_default();
        self.let_go(formers);
    }

    /// The sends of another client's socket are this flow's from now on, after those of its present one.
    pub(super) fn hand_over(&mut self, id: FlowId, source: Endpoint, parted: &Parted) {
        self.read_on(id, true);
        let Some(flow) = self.flows.get(id) else {
            self.let_go(parted.former);
            let (memory, slot) = (&source.memory, source.slot);
            memory.publish_u32(slot, socket_status::SEND_END, ENDED);
            Waker::default().wake_always(&memory.send_wait(slot));
            return;
        };
        let former = flow.last_sender().clone();
        // What it has sent before the conductor heard of its heir may still lie in its request ring.
        self.catch_up(former.client, former.slot);
        let Some(flow) = self.flows.get(id) else { return };
        let heir = (source.client, source.slot);
        let (base, _) = flow.sends();
        let moves = flow.moves.get_or_insert_default();
        moves.heirs.push_back((base, source));
        moves.held |= parted.held && !moves.receiver_left;
        self.tell_moved(&former, socket_status::SEND_END);
        if parted.unclaimed {
            self.tell_moved(&former, socket_status::RECV_END);
        }
        if let Some(socket) = self.socket_mut(former.client, former.slot) {
            socket.outgoing = None;
        }
        if let Some(socket) = self.socket_mut(heir.0, heir.1) {
            (socket.outgoing, socket.sends) = (Some(id), Some(id));
        }
        self.touch(id);
    }

    /// Passes the sending end on where the present sender's sends are done. Rings that were read up go back.
    pub(super) fn settle_moves(&mut self, id: FlowId) {
        loop {
            let Some(flow) = self.flows.get(id) else { return };
            let (_, sends_done) = flow.sends();
            let Some(moves) = &mut flow.moves else { return };
            if let Some(source) = moves.read_up() {
                if let Source::Ring(ring) = source {
                    self.tell_conductor(ToConductor::FreeRing { ring });
                }
                continue;
            }
            let Some(heir) = moves.inherit(sends_done) else { return };
            let (former, news) = flow.replace_source(heir);
            counting::open_clients(&self.metrics, self.settings.id, [flow.source(), flow.destination()]);
            let Endpoint { client, serial, slot, .. } = former;
            self.let_go((client != ClientId::NOBODY).then_some(Former { client, serial, slot }));
            self.forget_client(former.client);
            self.tell(id, news);
            self.touch(id);
        }
    }

    /// Gives back the rings of former receivers: nobody will read them.
    pub(super) fn drop_unread(&mut self, id: FlowId) {
        self.let_go_formers(id);
        let Some(flow) = self.flows.get(id) else { return };
        let unread = flow.moves.as_mut().map(|moves| std::mem::take(&mut moves.unread)).unwrap_or_default();
        for piece in unread {
            if let Source::Ring(ring) = piece.source {
                self.tell_conductor(ToConductor::FreeRing { ring });
            }
        }
    }
}
