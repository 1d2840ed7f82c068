//! Direct connections of which one side goes to another client. The connections are offloaded from then on.
use crate::conductor::client::SocketState;
use crate::conductor::{Conductor, Connection};
use crate::ids::{ClientId, ConnectionId, FlowId, Side, Slot};
use crate::memory::{DirectRing, RingEnds, UndrainedRing};
use crate::messages::{FlowEnd, Leave};
use pd_abi::layout::path;
use pd_abi::{Frame, FrameKind, SocketId};
use pd_shm::barrier;
use rustix::io::Errno;
use std::sync::atomic::{fence, Ordering};

/// Bits of a side's `path` word, for bytes that it receives and bytes that it sends: see [`Connection::has_undrained`].
const UNDRAINED: [u32; 2] = [path::RECV_UNDRAINED, path::SEND_UNDRAINED];

/// Result for a direct connection of which one side goes to another client.
#[derive(Debug, Default)]
pub(in crate::conductor) struct DirectHandoff {
    /// The connection leaves the direct path, or has left it.
    pub(in crate::conductor) left: bool,
    /// Bytes of its peer's ring that the side had not read.
    pub(in crate::conductor) undrained_ring: Option<UndrainedRing>,
    /// Set if the peer has still to read bytes that the side wrote.
    pub(in crate::conductor) held: bool,
    /// News for the peer.
    pub(in crate::conductor) leave: Option<Leave>,
    /// Ends of the rings for the previous owner.
    pub(in crate::conductor) ends: Option<RingEnds>,
}

impl Conductor {
    /// Tells whether two clients may go on with the direct path of a connection, one side of which is new to its client.
    fn stays_direct(&self, index: ConnectionId, sides: [(ClientId, Slot); 2], side: Side) -> bool {
        let Some(Connection { tenants, reached, direct: Some(direct), .. }) = self.connection(index) else {
            return false;
        };
        let clients = sides.map(|(client, _)| client);
        let mut tenants = *tenants;
        if let Some(client) = self.client(clients[side]) {
            tenants[side] = client.tenant;
        }
        self.plan(sides, tenants, *reached, true) == Some(direct.plan) && !self.is_full(clients)
    }

    /// Gives one side of a connection to another client, or to none. A connection without rings may stay as it is. Any other is offloaded
    /// from now on.
    ///
    /// # Errors
    /// The rest of a ring cannot be mapped. The connection cannot go on.
    pub(in crate::conductor) fn hand_off_direct(
        &mut self,
        index: ConnectionId,
        side: Side,
        owner: Option<(ClientId, Slot)>,
    ) -> Result<DirectHandoff, Errno> {
        let peer = self.connection(index).and_then(|connection| connection.owner(side.other()));
        let Some(direct) = self.direct_mut(index) else { return Ok(DirectHandoff::default()) };
        let (previous, word) = (direct.clients[side], direct.words[side]);
        if direct.is_unused() && direct.is_in_use() {
            let stays = match (owner, peer) {
                (Some(new), Some(peer)) => {
                    let mut sides = [new; 2];
                    sides[side.other()] = peer;
                    self.stays_direct(index, sides, side)
                }
                _ => true, // no client has the side
            };
            if stays {
                self.exit_direct(previous);
                let word = word | self.undrained(index, side);
                let entered = owner.map_or((ClientId::NOBODY, 0), |owner| self.enter_direct(owner, word));
                if let Some(direct) = self.direct_mut(index) {
                    (direct.clients[side], direct.words[side]) = (entered, word);
                }
                return Ok(DirectHandoff::default());
            }
        }
        self.report_sides(index);
        let ends = self.fix_ends(index, side);
        let Some(direct) = self.direct_mut(index) else { return Ok(DirectHandoff::default()) };
        let first = !std::mem::replace(&mut direct.left[side], true);
        let (own, others) = (direct.rings[side].as_ref(), direct.rings[side.other()].as_ref());
        let recall = direct.recall.as_ref();
        let mut handoff = DirectHandoff { left: true, ends, ..DirectHandoff::default() };
        if first {
            let read = ends.map_or(0, |ends| ends.received);
            let end = direct.ends[side.other()].map(|ends| ends.sent);
            let is_last =
                direct.left[side.other()] || recall.is_some_and(|recall| recall.stopped[side.other()]);
            let is_read_up = recall.is_some_and(|recall| recall.read_up[side.other()]);
            let sealed = others.filter(|ring| ring.is_sealed() && !is_read_up);
            handoff.undrained_ring = sealed.map(|ring| ring.undrained(read, is_last, end)).transpose()?;
        }
        if first && !direct.left[side.other()] {
            let is_read_up = recall.is_some_and(|recall| recall.read_up[side]);
            let ready = own.is_some_and(DirectRing::is_sealed);
            handoff.held = ready && !is_read_up && ends.is_some_and(|ends| ends.sent > 0);
            let ready = if ready { path::PEER_READY } else { 0 };
            let taken = if ends.is_some() { path::PEER_TAKEN } else { 0 };
            direct.words[side.other()] |= path::LEFT | path::LAST | taken | ready;
            let path = direct.words[side.other()];
            let to = peer.and_then(|(peer, slot)| self.endpoint(peer, slot));
            handoff.leave = to.map(|to| Leave { to, path });
        }
        Ok(handoff)
    }

    /// Fixes where the rings end for the owner of a side that goes to another client, if there are rings. The owner's threads may be
    /// writing one and reading the other: each publishes an index only if the driver has counted it, or has not looked yet.
    fn fix_ends(&mut self, index: ConnectionId, side: Side) -> Option<RingEnds> {
        self.direct_mut(index).filter(|direct| !direct.left[side] && !direct.is_unused())?;
        let owner = self.connection(index).and_then(|connection| connection.owner(side));
        let memory = owner.and_then(|(client, slot)| Some((self.client(client)?.memory()?, slot)));
        if let Some((memory, slot)) = memory {
            // Movers store the lower half where the other side went before.
            memory.publish_taken(slot);
            // SYNC POINT: ring-ends
            barrier::everywhere();
        }
        let direct = self.direct_mut(index)?;
        let own = direct.rings[side].as_ref().filter(|ring| ring.is_sealed());
        let ends = RingEnds {
            sent: own.map_or(0, DirectRing::said_sent),
            received: own.map_or(0, DirectRing::said_received),
        };
        direct.ends[side] = Some(ends);
        Some(ends)
    }

    /// Answers where the rings of a client's socket end.
    pub(super) fn ring_ends(&mut self, id: ClientId, socket: SocketId) {
        let ends = match self.state_of(id, socket) {
            Some(SocketState::Taken(Some(ends))) => Some(*ends),
            _ => self.direct_of(id, socket).and_then(|(index, side)| {
                let direct = self.connection(index)?.direct.as_ref()?;
                let received = direct.ends[side.other()].map_or(u64::MAX, |ends| ends.sent);
                Some(RingEnds { sent: u64::MAX, received })
            }),
        };
        match ends {
            Some(RingEnds { sent, received }) => {
                let frame = Frame::new(FrameKind::RingEnds).with_id(socket.0).with_bytes(sent, received);
                self.tell_client(id, &frame, None);
            }
            None => self.refuse(id, Errno::NOTCONN, "the connection has no rings, or is over"),
        }
    }

    /// Returns the bits of a side's `path` word for bytes of its previous clients.
    pub(super) fn undrained(&self, index: ConnectionId, side: Side) -> u32 {
        let open = self.connection(index).map_or([false; 2], |connection| connection.has_undrained(side));
        let bits = open.into_iter().zip(UNDRAINED).map(|(is_open, bit)| if is_open { bit } else { 0 });
        bits.fold(0, |word, bit| word | bit)
    }

    /// Tells the client of an offloaded side whether bytes of previous clients are under way. On the direct path `Direct::words` has that.
    pub(in crate::conductor) fn tell_undrained(&self, index: ConnectionId, side: Side) {
        let direct = self.connection(index).and_then(|connection| connection.direct.as_ref());
        if direct.is_none_or(|direct| direct.left[side]) {
            // `CLAIMED` is for twins: the other end is there.
            self.publish_path(index, side, path::CLAIMED | self.undrained(index, side));
        }
    }

    /// Notes that nothing is under way any more for the previous clients of one end of a flow, after `moves` moves. The ring may be used when
    /// all moves are done.
    pub(in crate::conductor) fn drained(&mut self, flow: FlowId, end: FlowEnd, moves: u32) {
        let index = flow.connection();
        let (side, what) = match end {
            FlowEnd::Destination => (flow.side().other(), 0),
            FlowEnd::Source => (flow.side(), 1),
        };
        let Some(connection) = self.connections.get_mut(index) else { return };
        let (was_open, is_drained) = connection.count_drained(side, what, moves);
        let bit = UNDRAINED[what];
        let word =
            connection.direct.as_ref().filter(|direct| !direct.left[side]).map(|direct| direct.words[side]);
        if was_open && is_drained && word.is_none() {
            self.tell_undrained(index, side);
        } else if is_drained && word.is_some_and(|word| word & bit != 0) {
            // SYNC POINT: direct-drained (all was delivered before a client reads, or writes, a ring)
            self.change_word(index, side, |word| word & !bit);
            fence(Ordering::SeqCst);
            self.wake_ends(index);
        }
    }
}
