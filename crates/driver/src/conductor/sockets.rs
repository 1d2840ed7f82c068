//! Requests other than sends: sockets, addresses, connections.
use super::answer::{done, Answer};
use super::client::{Connected, Listener, Socket, SocketState};
use super::connections::{Mapped, NewConnection};
use super::ending::Ending;
use super::names::{dressed, Takes, Wish};
use super::sidecars::Plane;
use super::tenants::Reached;
use super::twins::reachable;
use super::Conductor;
use crate::identity::NamespaceId;
use crate::ids::{ClientId, ConnectionId, Side, Slot, TenantId};
use crate::messages::{Asking, Endpoint, Gone, NewFlow, SendEnd, ToMover};
use crate::metrics::Metrics;
use crate::service::Chosen;
use pd_abi::layout::{socket_status, ELSEWHERE, ENDED, SHUT};
use pd_abi::limits::{ANSWERS_MAX, BACKLOG_MAX, RING_BYTES_MAX, RING_BYTES_MIN};
use pd_abi::{
    Address, Event, Operation, Request, SocketId, SocketOption, BESIDE_KERNEL, CLOSE_LEFT, CLOSE_RESETS,
    LISTENS_TO_OTHERS, OTHER_NETWORKS, RECEIVES_SHARED, STEP_ASIDE_BY_CHOICE, STEP_ASIDE_CLAIM_MARK,
    STEP_ASIDE_UNMARKED,
};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A `connect` whose listener is found.
#[derive(Clone, Copy)]
struct Call {
    slot: Slot,
    v6: bool,
    send_ring_bytes: u64,
    local: SocketAddr,
    /// Address that the connecting side sees.
    remote: SocketAddr,
    /// Address of the listener.
    reached: SocketAddr,
    mapped: Option<Mapped>,
    /// Network namespace and port that the driver has chosen.
    lent: Option<(NamespaceId, u16)>,
    through: Option<Chosen>,
    peer: ClientId,
    listener: Slot,
    tenants: [TenantId; 2],
}

impl Conductor {
    pub(super) fn control(&mut self, id: ClientId, channel: usize, request: &Request) {
        let Some(operation) = Operation::from_raw(request.operation) else { return };
        let Some(client) = self.client(id) else { return };
        let socket = SocketId(request.socket);
        let is_current = client.generation(Slot::of(socket)) == socket.generation();
        let state = client.socket(Slot::of(socket)).map(|socket| &socket.state).filter(|_| is_current);
        let is_open = state.is_some_and(|state| !matches!(state, SocketState::Closing(_)));
        let is_taken = matches!(state, Some(SocketState::Taken(_)));
        let answer = match operation {
            Operation::Socket => {
                // The last slots are for clients that use them at once.
                let many = if client.has_many_slots() { request.value } else { 1 };
                self.several((id, channel), request.tag, many, |this| this.open(id, channel, request))
            }
            Operation::Close => {
                if is_open {
                    if request.value == CLOSE_LEFT {
                        self.left_for_good(id, Slot::of(socket));
                    }
                    let resets = request.value == CLOSE_RESETS;
                    self.close_socket(
                        id,
                        Slot::of(socket),
                        if resets { Ending::Reset } else { Ending::Closed },
                    );
                }
                return;
            }
            Operation::Broken => return self.break_direct(id, socket),
            // The mover carries these out, and what waits for no address.
            Operation::Send
            | Operation::SendFile
            | Operation::OpenFile
            | Operation::Space
            | Operation::Nudge
            | Operation::Left
            | Operation::Sync => return,
            // The client may not have learned of it when it asked.
            _ if is_taken => Err(Errno::STALE),
            _ if !is_open => Err(Errno::BADF),
            Operation::Bind => self.bind(id, socket, request),
            Operation::Listen => self.listen(id, socket, request),
            Operation::Connect => self.connect(id, socket, request),
            Operation::Accept => {
                let many = request.value;
                self.several((id, channel), request.tag, many, |this| this.accept(id, socket, channel))
            }
            Operation::Shutdown => self.shutdown(id, socket, request.numbers().0),
            Operation::StepAside => match self.step_aside((id, channel), socket, request) {
                // The mover of the peer's flow answers.
                Ok(()) => return,
                Err(errno) => Err(errno),
            },
            Operation::SetOption => self.set_option(id, socket, request),
            Operation::Withdraw => self.withdraw(id, socket),
            Operation::Adopt => match self.home(id, Slot::of(socket), channel) {
                true => Ok(done(socket)),
                false => Err(Errno::AGAIN),
            },
        };
        if answer.as_ref().is_err_and(|errno| *errno != Errno::AGAIN) {
            Metrics::add(&self.metrics.requests_refused, 1);
        }
        self.answer((id, channel), socket, request.tag, answer);
    }

    /// Calls `one` up to `many` times, as long as it succeeds. Posts all answers but the last, which it returns.
    fn several(
        &mut self,
        (client, channel): (ClientId, usize),
        tag: u32,
        many: u32,
        mut one: impl FnMut(&mut Self) -> Answer,
    ) -> Answer {
        let mut last = one(self)?;
        for _ in 1..many.min(ANSWERS_MAX) {
            let Ok(next) = one(self) else { break };
            let event = Event { tag, ..std::mem::replace(&mut last, next) }.and_more();
            self.post((client, channel), event);
        }
        Ok(last)
    }

    fn open(&mut self, id: ClientId, channel: usize, request: &Request) -> Answer {
        let v6 = match request.family {
            4 => false,
            6 => true,
            _ => return Err(Errno::AFNOSUPPORT),
        };
        let socket = self.fresh_socket(v6, channel, SocketState::Active);
        let (slot, generation) = self.open_slot(id, socket)?;
        Ok(done(slot.socket(generation)).with_number(self.settings.ring_bytes_default))
    }

    pub(super) fn fresh_socket(&self, v6: bool, channel: usize, state: SocketState) -> Socket {
        Socket {
            v6,
            v6_only: false,
            channel,
            bound: None,
            state,
            send_ring_bytes: self.settings.ring_bytes_default,
            receive_ring_bytes: self.settings.ring_bytes_default,
            receives_shared: false,
            flows_left: 0,
        }
    }

    pub(super) fn open_slot(&mut self, id: ClientId, socket: Socket) -> Result<(Slot, u16), Errno> {
        let client = self.client_mut(id).ok_or(Errno::BADF)?;
        client.memory().ok_or(Errno::BADF)?;
        let (mover, channel) = (client.mover_of(socket.channel), socket.channel);
        let (slot, generation) = client.open(socket).ok_or(Errno::MFILE)?;
        if let Err(exhausted) = client.make_lines(slot) {
            client.close(slot);
            let errno = exhausted.errno();
            self.note_cap_of(id, exhausted);
            return Err(errno);
        }
        let memory = client.memory().ok_or(Errno::BADF)?;
        memory.open_slot(slot, generation);
        self.movers.send(mover, ToMover::OpenSocket { client: id, slot, generation, channel });
        Ok((slot, generation))
    }

    /// Makes a channel the home of a socket. Returns false while an engine copies bytes that another mover serves.
    fn home(&mut self, id: ClientId, slot: Slot, channel: usize) -> bool {
        let Some(client) = self.client(id) else { return false };
        if client.mover_of_slot(slot) != client.mover_of(channel) && !self.gather(id) {
            return false;
        }
        let Some(client) = self.client_mut(id) else { return false };
        let mover = client.mover_of(channel);
        if let Some(socket) = client.socket_mut(slot) {
            socket.channel = channel;
            self.movers.send(mover, ToMover::Home { client: id, slot, channel });
        }
        true
    }

    fn bind(&mut self, id: ClientId, socket: SocketId, request: &Request) -> Answer {
        let wanted = request.address().to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
        let client = self.client(id).ok_or(Errno::BADF)?;
        let namespace = client.identity.namespace;
        let state = client.socket(Slot::of(socket)).ok_or(Errno::BADF)?;
        if state.bound.is_some() || !matches!(state.state, SocketState::Active) {
            return Err(Errno::INVAL);
        }
        let wanted = family_of(state, wanted)?;
        let share = (request.value & BESIDE_KERNEL != 0).then_some(client.identity.uid);
        let (v6_only, owner) = (state.v6_only, (id, Slot::of(socket)));
        let payer = client.payer();
        let wish = Wish { wanted, v6_only, owner, share, payer };
        let bound = self.names.bind(namespace, &wish)?;
        if let Some(state) = self.client_mut(id).and_then(|c| c.socket_mut(Slot::of(socket))) {
            state.bound = Some(bound);
        }
        Ok(done(socket).with_address(bound.into()))
    }

    fn listen(&mut self, id: ClientId, socket: SocketId, request: &Request) -> Answer {
        let backlog_max = request.numbers().0.clamp(1, BACKLOG_MAX.into()) as usize;
        let slot = Slot::of(socket);
        let client = self.client_mut(id).ok_or(Errno::BADF)?;
        let namespace = client.identity.namespace;
        let state = client.socket_mut(slot).ok_or(Errno::BADF)?;
        state.receives_shared |= request.value & RECEIVES_SHARED != 0;
        match &mut state.state {
            SocketState::Active => {}
            SocketState::Listen(listener) => {
                listener.backlog_max = backlog_max;
                let bound = state.bound.ok_or(Errno::INVAL)?;
                return Ok(done(socket).with_address(bound.into()));
            }
            _ => return Err(Errno::INVAL),
        }
        if state.bound.is_none() {
            let ip: IpAddr =
                if state.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
            let any = Request::default().with_address(SocketAddr::new(ip, 0).into());
            self.bind(id, socket, &any)?;
        }
        let state = self.client(id).and_then(|c| c.socket(slot)).ok_or(Errno::BADF)?;
        let bound = state.bound.ok_or(Errno::INVAL)?;
        if self.is_anothers(id, bound) {
            return Err(Errno::ADDRINUSE);
        }
        let state = self.client_mut(id).and_then(|c| c.socket_mut(slot)).ok_or(Errno::BADF)?;
        state.state = SocketState::Listen(Listener { backlog_max, backlog: VecDeque::new(), arrived: 0 });
        let takes = match request.value & LISTENS_TO_OTHERS {
            0 => Takes::All,
            _ => Takes::OtherNetworks,
        };
        self.names.set_listening(namespace, bound.port(), (id, slot), takes);
        Ok(done(socket).with_address(bound.into()))
    }

    fn connect(&mut self, id: ClientId, socket: SocketId, request: &Request) -> Answer {
        let call = self.call(id, socket, request)?;
        let Call { slot, v6, local, remote, reached, mapped, through, peer, listener, tenants, .. } = call;
        let reserved = self.connections.reserve();
        let index = reserved.id();
        let accepted = self.accepted_socket(&call, index)?;
        let peer_send = accepted.send_ring_bytes;
        let (peer_slot, _) = self.open_slot(peer, accepted).map_err(|_| Errno::CONNREFUSED)?;
        let ends = (self.endpoint(id, slot), self.endpoint(peer, peer_slot));
        let (Some(source), Some(destination)) = ends else {
            self.release_slot(peer, peer_slot);
            return Err(Errno::CONNREFUSED);
        };
        if let Some(state) = self.client_mut(id).and_then(|c| c.socket_mut(slot)) {
            let (connection, side) = (index, Side::Connecting);
            let local = dressed(local, v6);
            state.state = SocketState::Connected(Connected { connection, side, local, remote });
            state.receives_shared |= request.value & RECEIVES_SHARED != 0;
        }
        let sides = [(id, slot), (peer, peer_slot)];
        let plan = self.plan(sides, tenants, reached, false).filter(|_| !self.is_full([id, peer]));
        let direct = plan.map(|plan| Box::new(self.open_direct(sides, plan, [0; 2])));
        let lent = call.lent.filter(|&(namespace, port)| self.names.lend(namespace, port));
        self.serial += 1;
        let serial = self.serial;
        let movers = [source.mover, destination.mover];
        let flow = |side: Side, source: Endpoint, destination: Endpoint, send_ring_bytes| {
            let (id, tenant) = (index.flow(side), tenants[side]);
            NewFlow { id, tenant, lasts: false, source, destination, send_ring_bytes, serial }
        };
        let send_ring_bytes = call.send_ring_bytes;
        self.add_flow(flow(Side::Connecting, source.clone(), destination.clone(), send_ring_bytes));
        self.add_flow(flow(Side::Accepting, destination, source, peer_send));
        let connection = NewConnection {
            sides: sides.map(Some),
            movers,
            serial,
            tenants,
            reached,
            mapped,
            lent,
            through,
            twin: None,
            direct,
            counted: true,
        };
        self.connections.begin(reserved, connection);
        Side::BOTH.into_iter().for_each(|side| self.show(index, side));
        self.tenants.open(tenants);
        if let Some(chosen) = &through {
            self.services.open(chosen);
        }
        Metrics::add(&self.metrics.connections_made, 1);
        self.queue(peer, listener, peer_slot);
        Ok(done(socket).with_address(dressed(local, v6).into()))
    }

    /// Finds the listener that a socket reaches. Changes nothing but the policy's counts.
    fn call(&mut self, id: ClientId, socket: SocketId, request: &Request) -> Result<Call, Errno> {
        let to = request.address().to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
        let slot = Slot::of(socket);
        let client = self.client(id).ok_or(Errno::BADF)?;
        let namespace = client.identity.namespace;
        let state = client.socket(slot).ok_or(Errno::BADF)?;
        match state.state {
            SocketState::Active => {}
            SocketState::Connected(_) => return Err(Errno::ISCONN),
            _ => return Err(Errno::OPNOTSUPP),
        }
        let to = family_of(state, to)?;
        let (v6, bound, send_ring_bytes) = (state.v6, state.bound, state.send_ring_bytes);
        let chosen = self.choose(id, socket, to)?;
        let led = self.lead(id, to, chosen.as_ref(), Plane::Fabric)?;
        let through = led.map(|(led, _)| led).or(chosen);
        let reached = through.map_or(to, |chosen| chosen.reached);
        let (peer, listener) = self.names.listener(namespace, reached)?;
        // Another user's listener of the kernel may have begun since.
        let at = SocketAddr::new(self.names.place(namespace, reached.ip()).1, reached.port());
        if self.is_anothers(peer, reachable(at)) {
            return Err(Errno::CONNREFUSED);
        }
        let local = match bound {
            Some(bound) if !bound.ip().is_unspecified() => bound,
            Some(bound) => SocketAddr::new(self.names.address_for(namespace, reached.ip()), bound.port()),
            None => self.names.local_for(namespace, reached.ip()),
        };
        let lent = bound.is_none().then_some((namespace, local.port()));
        let mapped = self.mapped(namespace, reached.ip(), local.ip())?;
        // Rules are about the address that the listener has.
        let reached = SocketAddr::new(self.names.place(namespace, reached.ip()).1, reached.port());
        let tenants = match led {
            Some((_, decision)) => self.admit_led(id, peer, decision, true)?,
            None => {
                let asked = through.map(|chosen| chosen.asked);
                self.admit(id, peer, Reached { at: reached, asked })?
            }
        };
        self.check_room(peer)?;
        // The connecting side sees the address that it asked for, the other side its own.
        let own = |at: SocketAddr| match at.ip().is_unspecified() {
            true => SocketAddr::new(local.ip(), at.port()),
            false => at,
        };
        let (remote, reached) = (own(to), own(reached));
        Ok(Call {
            slot,
            v6,
            send_ring_bytes,
            local,
            remote,
            reached,
            mapped,
            lent,
            through,
            peer,
            listener,
            tenants,
        })
    }

    /// Returns the socket that the listener gets.
    ///
    /// # Errors
    /// `EAGAIN` if the backlog is full. The errno is not that of an address without a listener, because the client may wait.
    fn accepted_socket(&self, call: &Call, connection: ConnectionId) -> Result<Socket, Errno> {
        let peer = self.client(call.peer).ok_or(Errno::CONNREFUSED)?;
        let listening = peer.socket(call.listener).ok_or(Errno::CONNREFUSED)?;
        let SocketState::Listen(listener) = &listening.state else { return Err(Errno::CONNREFUSED) };
        // Connections that the client was given, and has not accepted by its own count, wait as well.
        let accepted = peer.memory().map_or(0, |memory| memory.recv_consumer(call.listener));
        let waiting = listener.arrived.saturating_sub(accepted).max(listener.backlog.len() as u64);
        if waiting >= listener.backlog_max as u64 {
            return Err(Errno::AGAIN);
        }
        let (side, v6) = (Side::Accepting, listening.v6);
        let from =
            SocketAddr::new(call.mapped.map_or(call.local.ip(), |mapped| mapped.seen), call.local.port());
        let (local, remote) = (dressed(call.reached, v6), dressed(from, v6));
        let connected = Connected { connection, side, local, remote };
        Ok(Socket {
            send_ring_bytes: listening.send_ring_bytes,
            receive_ring_bytes: listening.receive_ring_bytes,
            receives_shared: listening.receives_shared,
            ..self.fresh_socket(v6, listening.channel, SocketState::Connected(connected))
        })
    }

    /// Tells the movers of a direction of a connection.
    pub(super) fn add_flow(&self, new: NewFlow) {
        let from = new.source.mover;
        if new.destination.mover != from {
            self.tell_incoming(&new.destination, new.id, from);
        }
        self.movers.send(from, ToMover::AddFlow(Some(Box::new(new))));
    }

    /// Checks that there is room for one more connection, and memory for `peer` to receive something.
    pub(super) fn check_room(&mut self, peer: ClientId) -> Result<(), Errno> {
        if self.connections.count() >= self.settings.connections_max {
            return Err(Errno::NOBUFS);
        }
        let (used, budget) = self.pool.usage();
        if used + RING_BYTES_MIN > budget && self.client(peer).is_none_or(|c| c.free_ring_bytes() == 0) {
            self.reclaim();
            if !self.make_room() {
                return Err(Errno::NOBUFS);
            }
        }
        Ok(())
    }

    /// Puts a connection into a listener's backlog.
    fn queue(&mut self, id: ClientId, listener_slot: Slot, slot: Slot) {
        let Some(client) = self.client_mut(id) else { return };
        let mover = client.mover_of_slot(listener_slot);
        let Some(SocketState::Listen(listener)) = client.socket_mut(listener_slot).map(|s| &mut s.state)
        else {
            return;
        };
        listener.backlog.push_back(slot);
        listener.arrived += 1;
        let count = listener.arrived;
        if let Some(memory) = client.memory() {
            // The count is published here, because the slot may be another socket's when the mover gets to it.
            memory.publish_u64(listener_slot, socket_status::RECV_PRODUCER, count);
        }
        self.movers.send(mover, ToMover::Backlog { client: id, slot: listener_slot, count });
    }

    fn accept(&mut self, id: ClientId, socket: SocketId, channel: usize) -> Answer {
        let client = self.client_mut(id).ok_or(Errno::BADF)?;
        let state = client.socket_mut(Slot::of(socket)).ok_or(Errno::BADF)?;
        let SocketState::Listen(listener) = &mut state.state else { return Err(Errno::INVAL) };
        let slot = *listener.backlog.front().ok_or(Errno::AGAIN)?;
        let generation = client.generation(slot);
        let remote = match client.socket(slot).map(|s| &s.state) {
            Some(SocketState::Connected(connected)) => connected.remote.into(),
            _ => Address::NONE,
        };
        if !self.home(id, slot, channel) {
            return Err(Errno::AGAIN);
        }
        if let Some(SocketState::Listen(listener)) =
            self.client_mut(id).and_then(|client| client.socket_mut(Slot::of(socket))).map(|s| &mut s.state)
        {
            listener.backlog.pop_front();
        }
        Ok(done(slot.socket(generation)).with_address(remote))
    }

    pub(super) fn connected(&self, id: ClientId, slot: Slot) -> Result<Connected, Errno> {
        match self.client(id).and_then(|c| c.socket(slot)).map(|s| &s.state) {
            Some(SocketState::Connected(connected)) => Ok(*connected),
            _ => Err(Errno::NOTCONN),
        }
    }

    fn shutdown(&mut self, id: ClientId, socket: SocketId, how: u64) -> Answer {
        if how == 0 || how > 3 {
            return Err(Errno::INVAL);
        }
        let Connected { connection, side, .. } = self.connected(id, Slot::of(socket))?;
        let Some(entry) = self.connections.get_mut(connection) else { return Err(Errno::NOTCONN) };
        entry.receives_no_more[side] |= how & 1 != 0;
        entry.sends_no_more[side] |= how & 2 != 0;
        let movers = entry.movers;
        let outgoing = connection.flow(side);
        let incoming = connection.flow(side.other());
        if how & 2 != 0 {
            let finish =
                crate::messages::Finish { end: ENDED, late_errno: 0, deadline: None, source_gone: false };
            // Said before the peer learns of the end, so that it reads its ring to there.
            self.gone(outgoing, Gone::Writer);
            self.movers.send(movers[side], ToMover::Finish { flow: outgoing, finish });
            self.tell_of_end(connection, side);
        }
        if how & 1 != 0 {
            self.movers.send(
                movers[side.other()],
                ToMover::Abort { flow: incoming, send_end: SendEnd::by(SHUT), recv_end: Some(ENDED) },
            );
            self.detach_unclaimed(connection, SHUT);
        }
        Ok(done(socket))
    }

    /// Posts an event to a peer that has shut receiving, when a side's stream ends. The peer knows the end of the stream already, and the
    /// flow may be over. On the kernel the end is one more edge.
    pub(super) fn tell_of_end(&self, connection: ConnectionId, side: Side) {
        let peer = side.other();
        let Some(entry) = self.connection(connection).filter(|entry| entry.receives_no_more[peer]) else {
            return;
        };
        if let Some((client, slot)) = entry.owner(peer) {
            self.movers.send(entry.movers[peer], ToMover::Ready { client, slot });
        }
    }

    /// Notes that the connection of a twin has gone on in the kernel, in both directions.
    fn left_for_good(&mut self, id: ClientId, slot: Slot) {
        let Ok(Connected { connection, side, .. }) = self.connected(id, slot) else { return };
        if let Some(twin) = self.connections.get_mut(connection).and_then(|entry| entry.twin.as_mut()) {
            twin.leave_for_good(side);
        }
    }

    /// Lets the connection of a twin go on in the kernel. Refuses a client's own choice to do so where a rate or a mirror needs movers.
    fn step_aside(
        &mut self,
        (client, channel): (ClientId, usize),
        socket: SocketId,
        request: &Request,
    ) -> Result<(), Errno> {
        let mover = self.client(client).ok_or(Errno::BADF)?.mover_of(channel);
        let Connected { connection, side, .. } = self.connected(client, Slot::of(socket))?;
        if request.value & STEP_ASIDE_BY_CHOICE != 0 && self.needs_mover(connection) {
            return Err(Errno::ACCESS);
        }
        let other = side.other();
        // A process that has closed or was killed cannot decline it.
        let due = self.connection(connection).and_then(|entry| entry.twin.as_ref());
        let is_vain = due.is_some_and(|twin| twin.may_mark(side)) && self.is_let_go(connection, other);
        let Some(entry) = self.connections.get_mut(connection) else {
            return Err(Errno::NOTCONN);
        };
        let movers = entry.movers;
        // Both sides of a connection that was cut have learnt more.
        let peer = entry.owner(other).filter(|_| !entry.is_cut());
        let is_shut = entry.receives_no_more[other];
        let is_over = entry.receives_no_more[side] && entry.sends_no_more[side];
        let twin = entry.twin.as_mut().ok_or(Errno::OPNOTSUPP)?;
        if request.value == STEP_ASIDE_CLAIM_MARK {
            let answer = done(socket).with_number(twin.claim_mark(side));
            self.answer((client, channel), socket, request.tag, Ok(answer));
            return Ok(());
        }
        // The kernel's connection is shut, too: TCP would answer a mark with a reset.
        if is_vain || is_shut && !twin.side(other).unix {
            twin.decline_mark(other);
        }
        let unmarked = request.value & STEP_ASIDE_UNMARKED != 0;
        let learnt = twin.step_aside(side, unmarked).ok_or(Errno::NOTCONN)?;
        let (outgoing, incoming) = (connection.flow(side), connection.flow(side.other()));
        let finish =
            crate::messages::Finish { end: ELSEWHERE, late_errno: 0, deadline: None, source_gone: false };
        self.gone(outgoing, Gone::Writer);
        self.movers.send(movers[side], ToMover::Finish { flow: outgoing, finish });
        let event = Event { tag: request.tag, ..done(socket) }.with_number(learnt);
        let asker = Asking { client, mover, channel };
        let source = peer.and_then(|(peer, slot)| self.endpoint(peer, slot)).map(Box::new);
        let told = ToMover::Elsewhere { flow: incoming, source, is_over, asker, event };
        self.movers.send(movers[side.other()], told);
        Ok(())
    }

    fn set_option(&mut self, id: ClientId, socket: SocketId, request: &Request) -> Answer {
        let option = SocketOption::from_raw(request.value).ok_or(Errno::NOPROTOOPT)?;
        let (value, _) = request.numbers();
        let slot = Slot::of(socket);
        let ring = value.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two();
        if option == SocketOption::SendRingBytes {
            if let Ok(connected) = self.connected(id, slot) {
                let flow = connected.connection.flow(connected.side);
                if let Some(mover) = self.source_mover(flow) {
                    self.movers.send(mover, ToMover::SetSendRing { flow, bytes: ring });
                }
            }
        }
        let state = self.client_mut(id).and_then(|c| c.socket_mut(slot)).ok_or(Errno::BADF)?;
        let taken = match option {
            SocketOption::SendRingBytes => {
                state.send_ring_bytes = ring;
                ring
            }
            SocketOption::ReceiveRingBytes => {
                state.receive_ring_bytes = ring;
                ring
            }
            SocketOption::ReceivesShared if value == 0 => return Err(Errno::INVAL),
            SocketOption::ReceivesShared => {
                state.receives_shared = true;
                if let SocketState::Connected(Connected { connection, .. }) = state.state {
                    self.place(connection);
                }
                1
            }
            SocketOption::ReuseAddress => value.min(1),
            SocketOption::V6Only => {
                if !state.v6 || state.bound.is_some() {
                    return Err(Errno::INVAL);
                }
                state.v6_only = value != 0;
                value.min(1)
            }
            SocketOption::LocalAddress => {
                let local = match &state.state {
                    SocketState::Connected(connected) => Some(connected.local),
                    _ => state.bound,
                };
                return Ok(done(socket).with_address(local.map_or(Address::NONE, Into::into)));
            }
            SocketOption::OriginalAddress => {
                let SocketState::Connected(connected) = &state.state else { return Err(Errno::NOTCONN) };
                let Connected { connection, side, .. } = *connected;
                let accepted = self.connection(connection).filter(|_| side == Side::Accepting);
                let through = accepted.and_then(|connection| connection.through);
                let asked = through.ok_or(Errno::NOENT)?.asked;
                return Ok(done(socket).with_address(asked.into()));
            }
            SocketOption::Paused => {
                let (SocketState::Listen(_), Some(bound)) = (&state.state, state.bound) else {
                    return Err(Errno::INVAL);
                };
                let namespace = self.namespace(id)?;
                let takes = match value {
                    0 => Takes::All,
                    OTHER_NETWORKS => Takes::OtherNetworks,
                    _ => Takes::None,
                };
                self.names.set_listening(namespace, bound.port(), (id, slot), takes);
                value.min(OTHER_NETWORKS)
            }
        };
        Ok(done(socket).with_number(taken))
    }
}

/// Returns the address as a socket of this family means it.
fn family_of(socket: &Socket, address: SocketAddr) -> Result<SocketAddr, Errno> {
    match (socket.v6, address) {
        (false, SocketAddr::V6(_)) => Err(Errno::AFNOSUPPORT),
        (true, SocketAddr::V4(_)) => Err(Errno::INVAL),
        (true, SocketAddr::V6(v6)) if socket.v6_only && v6.ip().to_ipv4_mapped().is_some() => {
            Err(Errno::NETUNREACH)
        }
        _ => Ok(address),
    }
}
