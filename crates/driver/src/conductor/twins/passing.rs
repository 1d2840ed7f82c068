//! Sides of twins that go from one client to another, or to none.
use super::twin::{is_unix, End, Held};
use crate::conductor::answer::{done, Answer};
use crate::conductor::client::{Connected, Socket, SocketState};
use crate::conductor::direct::DirectHandoff;
use crate::conductor::ending::Event;
use crate::conductor::Conductor;
use crate::identity::NamespaceId;
use crate::ids::{ClientId, ConnectionId, Side, Slot};
use crate::memory::RingEnds;
use crate::messages::{Endpoint, Handoff, PreviousOwner, ToMover};
use crate::wanted::Wanted;
use pd_abi::layout::ELSEWHERE;
use pd_abi::{TwinRequest, TAKEN_ASIDE};
use rustix::io::Errno;

impl Conductor {
    /// Gives the side of a kernel socket to a client that holds it.
    pub(super) fn twin_take(&mut self, id: ClientId, channel: usize, asked: &TwinRequest) -> Answer {
        let held = match is_unix(asked) {
            true => self.unix_held(id, asked)?,
            false => self.tcp_held(id, asked)?,
        };
        let tenant = self.client(id).ok_or(Errno::BADF)?.tenant;
        let found = self.twins.ends.get(&held.end());
        let &(index, side) = found.ok_or_else(|| self.twins.no_twin(tenant, held.end()))?;
        let Some(connection) = self.connections.get(index) else { return Err(Errno::NOENT) };
        let twin = connection.twin.as_ref().ok_or(Errno::NOENT)?;
        let (known, is_aside) = (*twin.side(side), twin.is_aside(side));
        if twin.is_over(side) {
            return Err(Errno::REMCHG);
        }
        if (known.end(), known.inode) != (held.end(), held.inode) {
            return Err(Errno::NOENT);
        }
        let client = self.client(id).ok_or(Errno::BADF)?;
        if client.mover != connection.movers[side] {
            // A flow stays with its mover.
            return Err(Errno::OPNOTSUPP);
        }
        if connection.owner(side).is_some_and(|(owner, _)| owner == id) {
            return Err(Errno::ALREADY);
        }
        let Wanted { local, peer: remote, .. } = held.wanted;
        let connected = Connected { connection: index, side, local, remote };
        let previous = connection.owner(side);
        let previous_socket = previous.and_then(|(owner, slot)| self.client(owner)?.socket(slot));
        let fresh = self.fresh_socket(local.is_ipv6(), channel, SocketState::Connected(connected));
        let socket = match previous_socket {
            Some(previous) => Socket {
                send_ring_bytes: previous.send_ring_bytes,
                receive_ring_bytes: previous.receive_ring_bytes,
                ..fresh
            },
            None => fresh,
        };
        let send_ring_bytes = socket.send_ring_bytes;
        let (slot, generation) = self.open_slot(id, socket)?;
        let endpoint = self.endpoint(id, slot).ok_or(Errno::BADF)?;
        self.befall(index, side, Event::Taken);
        if let Some(twin) = self.connections.get_mut(index).and_then(|connection| connection.twin.as_mut()) {
            twin.pass(side);
        }
        let mover = endpoint.mover;
        let ends = self.move_side(index, side, endpoint, Some((id, slot)));
        // The client is told this size, whatever a previous owner of a parked side had asked for.
        let flow = index.flow(side);
        self.movers.send(mover, ToMover::SetSendRing { flow, bytes: send_ring_bytes });
        self.twins.parked.remove((index, side));
        if let Some((owner, slot)) = previous {
            // The slot is free when the bytes that it sent are delivered, and the client has closed the socket.
            if let Some(socket) = self.client_mut(owner).and_then(|c| c.socket_mut(slot)) {
                socket.state = SocketState::Taken(ends);
            }
        }
        let aside = if is_aside { TAKEN_ASIDE } else { 0 };
        Ok(done(slot.socket(generation)).with_number(send_ring_bytes | aside))
    }

    /// Returns the kernel's TCP socket that a client holds, if it has a twin. The process may have gone into another network namespace
    /// since it had the socket.
    fn tcp_held(&mut self, id: ClientId, asked: &TwinRequest) -> Result<Held, Errno> {
        // Most sockets have no twin, and nothing to prove.
        let own = self.namespace(id)?;
        let tenant = self.client(id).ok_or(Errno::BADF)?.tenant;
        let mut failure = self.twins.no_twin(tenant, End::Tcp(own, asked.cookie));
        for (index, side) in self.twins.places(asked.cookie, own) {
            match self.tcp_held_at(id, asked, own, index, side) {
                Ok(held) => return Ok(held),
                Err(errno) => failure = errno,
            }
        }
        Err(failure)
    }

    /// Returns the socket as that of one side of a connection, if the proof succeeds.
    fn tcp_held_at(
        &mut self,
        id: ClientId,
        asked: &TwinRequest,
        own: NamespaceId,
        index: ConnectionId,
        side: Side,
    ) -> Result<Held, Errno> {
        let connection = self.connection(index).ok_or(Errno::NOENT)?;
        let twin = connection.twin.as_ref().ok_or(Errno::NOENT)?;
        let (mut known, is_claimed) = (*twin.side(side), twin.is_claimed());
        let tenant = connection.tenants[side];
        let by_service = connection.through.is_some() && side == Side::Connecting;
        if let (false, Some(local)) = (is_claimed, asked.local.to_socket_addr()) {
            // The kernel may have chosen another one when it connected.
            known.wanted.local = local;
        }
        let proved = match known.namespace == own {
            true => self.prove_towards(id, asked, by_service.then_some(known.wanted.peer)),
            false => self.prove_side(id, asked, known),
        };
        proved.or_else(|errno| self.prove_ended(id, asked, known, tenant).map_err(|_| errno))
    }

    /// Gives one side of a connection to another client, or to none. Returns the ends of its rings for the previous owner.
    pub(super) fn move_side(
        &mut self,
        index: ConnectionId,
        side: Side,
        to: Endpoint,
        owner: Option<(ClientId, Slot)>,
    ) -> Option<RingEnds> {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.count_move(side);
        }
        let handoff = self.hand_off_direct(index, side, owner);
        if handoff.is_err() {
            // Before the move, so that the new client is told of the end, and is brought nothing behind the bytes that are lost.
            self.cut(index);
        }
        let DirectHandoff { left, undrained_ring, held, leave, ends } =
            handoff.unwrap_or_else(|_| DirectHandoff { left: true, ..DirectHandoff::default() });
        let Some(connection) = self.connections.get_mut(index) else { return ends };
        let owned = connection.set_owner(side, owner);
        let movers = connection.movers;
        let claimed = connection.twin.as_ref().is_none_or(|twin| twin.is_claimed());
        let is_aside = connection.twin.as_ref().is_some_and(|twin| twin.is_aside(side.other()));
        let peers_end = match is_aside {
            _ if connection.is_cut() => Errno::CONNRESET.raw_os_error() as u32,
            true => ELSEWHERE,
            false => 0,
        };
        let previous_end = owned.and_then(|(client, slot)| self.endpoint(client, slot));
        let previous = owned.and_then(|(client, slot)| {
            let state = self.client_mut(client)?;
            state.socket_mut(slot)?.flows_left = 1 + u8::from(claimed);
            Some(PreviousOwner { client, serial: state.serial, slot })
        });
        let (outgoing, incoming) = (index.flow(side), index.flow(side.other()));
        if claimed {
            // Before the client learns that the side is its.
            self.tell_undrained(index, side);
            self.tell_incoming(&to, incoming, movers[side.other()]);
            self.movers.send(
                movers[side.other()],
                ToMover::HandoffDestination {
                    flow: incoming,
                    destination: to.clone(),
                    handoff: Some(Box::new(Handoff {
                        previous,
                        previous_end: previous_end.clone(),
                        left,
                        undrained_ring,
                        peers_end,
                        ..Handoff::default()
                    })),
                },
            );
            self.ask_again(incoming);
        }
        self.movers.send(
            movers[side],
            ToMover::HandoffSource {
                flow: outgoing,
                source: to,
                handoff: Box::new(Handoff {
                    previous,
                    previous_end,
                    held,
                    leave,
                    ring_end: ends.map(|ends| ends.sent),
                    unclaimed: !claimed,
                    peers_end,
                    ..Handoff::default()
                }),
            },
        );
        ends
    }
}
