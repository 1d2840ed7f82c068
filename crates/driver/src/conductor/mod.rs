//! The control agent: clients, sockets, addresses, connections, memory (paper, section III-D).
//!
//! Touches no payload. Learns of requests and flows from the movers, and of new and dead clients from the door. Answers go through the
//! movers, so that an answer never overtakes the command that makes it true.
mod answer;
mod attaching;
mod balance;
mod client;
mod connections;
mod deferred;
mod direct;
mod ending;
mod families;
mod gate;
mod growth;
mod guests;
mod kernel;
mod listing;
mod mirrors;
mod movers;
mod names;
mod networks;
mod payers;
mod pipes;
mod queues;
mod recovery;
mod report;
mod review;
mod rings;
mod selectors;
mod services;
mod sidecars;
mod sockets;
mod syncs;
mod table;
mod takeover;
mod tenancy;
mod tenants;
#[cfg(any(test, fuzzing, feature = "testing"))]
mod testing;
mod twins;
mod unix;

pub use movers::{Crew, Movers};
pub use recovery::Doubts;
pub use takeover::ConductorState;

use crate::admin::TakenOver;
use crate::clock::Clock;
use crate::crash::marks::Marker;
use crate::door::{FromDoor, ToDoor};
use crate::gate::Gate;
use crate::ids::{ClientId, ConnectionId, FlowId, MoverId, Side, Slot};
use crate::limiter::Limiter;
use crate::mailbox::Mailbox;
use crate::memory::{Exhausted, Pool};
use crate::messages::{
    Endpoint, FlowEnd, Gone, Payer, PreviousOwner, SendEnd, ToConductor, ToMover, Violation, DRIVER,
};
use crate::metrics::Metrics;
use crate::mover::Mover;
use crate::pipes::Pipes;
use crate::refusal::Refused;
use crate::service::{Services, Slots, SlotsState};
use crate::settings::Settings;
use crate::takeover::early::Numbers;
use crate::StartError;
use balance::Balance;
use client::{Client, Connected, SocketState};
use connections::{Connection, Connections};
use deferred::Deferred;
use ending::{Ending, Event, Farewell};
use families::Families;
use kernel::Kernel;
use names::Names;
use payers::Payers;
use pd_abi::layout::path;
use pd_abi::{Frame, FrameKind};
use rustix::event::epoll;
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use table::Table;
use tenants::{Containers, Tenants};
use twins::Twins;

/// Time for which the flows of a dead client go on delivering bytes that it had sent.
const GRACE: Duration = Duration::from_millis(500);
/// Messages of the door carried out in one turn. The mover of the same thread has its turns in between.
const DOOR_PER_TURN: usize = 2;

const CUT_OFF: &str = "client cut off";
const EXHAUSTED: &str = "a receive ring is smaller than asked for, or has to wait";

/// See the module.
pub struct Conductor {
    settings: Settings,
    clock: Arc<dyn Clock>,
    inboxes: Inboxes,
    door: Arc<Mailbox<ToDoor>>,
    movers: Movers,
    metrics: Arc<Metrics>,
    pool: Arc<Pool>,
    names: Names,
    clients: Table<ClientId, Client>,
    connections: Connections,
    /// Flows that wait for memory.
    waiting: rings::Waiting,
    /// Limiter of log lines, by text and payer.
    log: Limiter<(&'static str, Payer)>,
    containers: Containers,
    networks: networks::Networks,
    tenants: Tenants,
    payers: Payers,
    twins: Twins,
    rings: direct::Rings,
    families: Families,
    balance: Balance,
    kernel: Kernel,
    deferred: Deferred,
    review: review::Review,
    listings: listing::Listings,
    syncs: syncs::Syncs,
    /// The kernel's half of the policy.
    gate: gate::Teller,
    /// The agent of pipes.
    pipes: Arc<Pipes>,
    mirrors: mirrors::Mirrors,
    services: Services,
    on_kernel: services::OnKernel,
    chains: sidecars::Chains,
    /// More threads want to run on the machine than it has cores.
    cores_scarce: bool,
    /// Clients and connections numbered so far.
    serial: u64,
    /// Epoll instance: ready when a message was put into an inbox while the conductor slept.
    epoll: OwnedFd,
    messages: VecDeque<ToConductor>,
    /// Messages of the door that are still to be carried out.
    from_door: VecDeque<FromDoor>,
    /// Socket of a driver that waits to take over.
    successor: Option<(UnixStream, Numbers)>,
    /// The take-over by which the driver began.
    taken_over: Option<TakenOver>,
    /// Counts of services that have come from another driver, until service begins.
    counts_taken: Option<SlotsState>,
    /// Notes for the driver after a crash.
    marks: Marker,
}

/// Mailboxes of the conductor.
#[derive(Clone, Debug)]
pub struct Inboxes {
    /// Messages of the movers, and of the code that runs the driver.
    pub movers: Arc<Mailbox<ToConductor>>,
    /// Messages of the door.
    pub door: Arc<Mailbox<FromDoor>>,
}

impl Inboxes {
    /// Makes empty mailboxes.
    ///
    /// # Errors
    /// Errors of `eventfd`.
    pub fn new() -> rustix::io::Result<Self> {
        Ok(Self { movers: Mailbox::new()?, door: Mailbox::new()? })
    }

    /// Sets whether the conductor sleeps: see [`Mailbox::set_asleep`].
    pub fn set_asleep(&self, asleep: bool) {
        self.movers.set_asleep(asleep);
        self.door.set_asleep(asleep);
    }

    /// Tells whether one of them holds a message.
    pub fn are_filled(&self) -> bool {
        self.movers.is_filled() || self.door.is_filled()
    }
}

/// Agents that the conductor sends messages to.
pub struct Others {
    /// Mailbox of the door.
    pub door: Arc<Mailbox<ToDoor>>,
    /// See [`Movers`].
    pub movers: Movers,
    /// The kernel's half of the policy, or the reason why there is none.
    pub gate: Result<Gate, String>,
    /// The agent of pipes.
    pub pipes: Arc<Pipes>,
}

impl Conductor {
    /// Makes a conductor without a policy, which learns of clients from the door. [`Self::put_first_in_force`] or [`Self::take`] follows.
    ///
    /// # Errors
    /// Errors of `epoll`; too little memory.
    pub fn new(
        settings: Settings,
        clock: Arc<dyn Clock>,
        inboxes: Inboxes,
        others: Others,
        pool: Arc<Pool>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let Others { door, movers, gate, pipes } = others;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, inboxes.movers.fd(), epoll::EventData::new_u64(0), edge)?;
        epoll::add(&epoll, inboxes.door.fd(), epoll::EventData::new_u64(1), edge)?;
        let gate = gate::Teller::new(gate);
        let mut this = Self {
            pool,
            tenants: Tenants::new(settings.path, gate.words()),
            services: Services::new(match gate.slots() {
                Some(slots) => slots,
                None => Arc::new(Slots::own()?),
            }),
            on_kernel: services::OnKernel::default(),
            chains: sidecars::Chains::default(),
            gate,
            pipes,
            mirrors: mirrors::Mirrors::default(),
            settings,
            clock,
            inboxes,
            door,
            movers,
            metrics,
            names: Names::default(),
            clients: Table::default(),
            connections: Connections::default(),
            waiting: rings::Waiting::default(),
            log: Limiter::default(),
            containers: Containers::default(),
            networks: networks::Networks::default(),
            payers: Payers::default(),
            twins: Twins::new()?,
            rings: direct::Rings::default(),
            families: Families::default(),
            balance: Balance::default(),
            kernel: Kernel::default(),
            deferred: Deferred::default(),
            review: review::Review::default(),
            listings: listing::Listings::default(),
            syncs: syncs::Syncs::default(),
            serial: 0,
            epoll,
            messages: VecDeque::new(),
            from_door: VecDeque::new(),
            successor: None,
            taken_over: None,
            counts_taken: None,
            marks: Marker::default(),
            cores_scarce: false,
        };
        this.movers.own().watch(&this.epoll)?;
        Ok(this)
    }

    /// Puts the policy of the settings in force.
    ///
    /// # Errors
    /// Too little memory for its reserves.
    pub fn put_first_in_force(&mut self) -> Result<(), StartError> {
        let policy = std::mem::take(&mut self.settings.policy);
        self.apply(policy.clone())?;
        self.begin_apply(policy, None);
        Ok(())
    }

    /// Returns the maps that go to the next driver.
    pub fn lasting_maps(&self) -> Vec<Arc<OwnedFd>> {
        self.gate.lasting()
    }

    /// Carries out messages of the movers, of the door, and of the code that runs the driver. Returns whether there were any.
    pub fn step(&mut self) -> bool {
        let mut messages = std::mem::take(&mut self.messages);
        self.movers.take_messages(&mut messages);
        let mut worked = self.apply_all(&mut messages);
        self.inboxes.movers.drain(&mut messages);
        worked |= self.apply_all(&mut messages);
        self.messages = messages;
        if self.from_door.is_empty() {
            self.inboxes.door.drain(&mut self.from_door);
        }
        for _ in 0..DOOR_PER_TURN {
            let Some(message) = self.from_door.pop_front() else { break };
            self.take_door(message);
            worked = true;
        }
        worked |= self.replay();
        worked |= self.serve_waiting();
        worked |= self.review_some();
        worked |= self.list_some();
        worked |= self.collect_some();
        if worked {
            self.set_gauges();
        }
        worked
    }

    fn apply_all(&mut self, messages: &mut VecDeque<ToConductor>) -> bool {
        let worked = !messages.is_empty();
        messages.iter_mut().for_each(|message| self.apply_message(message));
        messages.clear();
        worked
    }

    /// Takes the socket of a driver that waits to take over, if one does, and the numbers of the direct rings that it has.
    pub fn take_successor(&mut self) -> Option<(UnixStream, Numbers)> {
        self.successor.take()
    }

    /// Returns the mover of the same thread.
    pub fn mover(&mut self) -> &mut Mover {
        self.movers.own()
    }

    /// Starts the threads of all other movers.
    ///
    /// # Errors
    /// Errors of making a thread.
    pub fn start_movers(&mut self) -> std::io::Result<()> {
        let ids: Vec<_> = self.movers.ids().collect();
        ids.into_iter().try_for_each(|id| self.movers.start(id))
    }

    /// Joins the threads of movers, which have been told to stop.
    pub fn join_movers(&mut self) {
        self.movers.join();
    }

    /// Waits at most `timeout` for a message, or for work of the mover of the same thread. `None`: without a limit.
    pub fn poll(&mut self, timeout: Option<Duration>) {
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let mut space = [MaybeUninit::uninit(); 4];
        // An interrupted wait is a wake-up like any other.
        let _ = epoll::wait(&self.epoll, &mut space, timeout.as_ref());
    }

    /// Returns the time at which [`Self::tick`] is due. `None`: nothing is.
    pub fn wake_by(&self) -> Option<Duration> {
        let times = [self.retry_at(), self.twins.look_at(), self.direct_wake_by(), self.log.wake_by()];
        times.into_iter().chain([self.deferred.wake_by(), self.shuffle_by()]).flatten().min()
    }

    /// Does all work that is due.
    pub fn tick(&mut self) {
        self.look_after_parked();
        self.say_unsaid();
        self.tick_direct();
        self.give_up_deferred();
    }

    /// Returns the inboxes.
    pub fn inboxes(&self) -> &Inboxes {
        &self.inboxes
    }

    fn apply_message(&mut self, message: &mut ToConductor) {
        match *message {
            ToConductor::Control { client, channel, ref request, ref mut permit } => {
                self.take_request(client, channel, request, permit.take())
            }
            ToConductor::Scanned { sync } => self.scanned(sync),
            ToConductor::Violation { client, violation } => self.disconnect(client, Some(violation)),
            ToConductor::BrokeRing { client } => self.warn_broken_ring(client),
            ToConductor::NeedRing { flow, bytes_max } => self.need_ring(flow, bytes_max),
            ToConductor::RegionAdded { client, region } => {
                if self.client_mut(client).is_some_and(|client| client.note_known(region)) {
                    self.tell_client(client, &Frame::new(FrameKind::Ready).with_id(region.into()), None);
                }
            }
            ToConductor::FreeRing { ref ring } => self.free_ring(ring),
            ToConductor::Released { previous: PreviousOwner { client, serial, slot } } => {
                let client_state = self.client_mut(client).filter(|client| client.serial == serial);
                if let Some(socket) = client_state.and_then(|client| client.socket_mut(slot)) {
                    socket.flows_left = socket.flows_left.saturating_sub(1);
                    if socket.flows_left == 0 && !matches!(socket.state, SocketState::Taken(_)) {
                        self.release_slot(client, slot);
                    }
                }
            }
            ToConductor::FlowDone { flow } => self.flow_done(flow),
            ToConductor::Drained { flow, end, moves } => self.drained(flow, end, moves),
            ToConductor::Gone { flow, gone } => self.gone(flow, gone),
            ToConductor::Apply { ref mut policy } => self.begin_apply(std::mem::take(policy), None),
            ToConductor::Staged { ref mut staged } => {
                self.staged(std::mem::replace(staged, Err(String::new())));
            }
            ToConductor::KernelCounted => self.count_refused_on_kernel(),
            ToConductor::Cores { scarce } => self.note_cores(scarce),
            ToConductor::ClientGone { client } => {
                let Some(state) = self.client_mut(client) else { return };
                if state.is_forgotten_by_one_more() {
                    self.forget(client);
                    self.retry_rings();
                }
            }
        }
    }

    fn client(&self, id: ClientId) -> Option<&Client> {
        self.clients.get(id)
    }

    /// Returns a client to be changed.
    fn client_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.marks.mark_client(id);
        self.clients.get_mut(id)
    }

    fn connection(&self, index: ConnectionId) -> Option<&Connection> {
        self.connections.get(index)
    }

    /// Returns the receiving socket of a flow, if its client lives.
    fn destination(&self, flow: FlowId) -> Option<(ClientId, Slot)> {
        self.connection(flow.connection())?.owner(flow.side().other())
    }

    fn source_mover(&self, flow: FlowId) -> Option<MoverId> {
        Some(self.connection(flow.connection())?.movers[flow.side()])
    }

    fn endpoint(&self, client: ClientId, slot: Slot) -> Option<Endpoint> {
        let state = self.client(client)?;
        let memory = Arc::clone(state.memory()?);
        let (serial, generation) = (state.serial, state.generation(slot));
        let mover = state.mover_of_slot(slot);
        Some(Endpoint { client, serial, slot, generation, memory, mover })
    }

    fn flow_done(&mut self, flow: FlowId) {
        self.stop_waiting(flow);
        let index = flow.connection();
        for end in [FlowEnd::Source, FlowEnd::Destination] {
            self.drained(flow, end, u32::MAX);
        }
        self.befall(index, flow.side(), Event::FlowOver);
        self.end_connection(index);
    }

    /// Applies an event to a side of a connection.
    fn befall(&mut self, index: ConnectionId, side: Side, event: Event) {
        if let Some(connection) = self.connections.get_mut(index) {
            connection.befall(side, event);
        }
    }

    /// Forgets a connection whose flows are over and whose sockets are closed. Until then clients may read the ends in their lines, and
    /// direct rings.
    fn end_connection(&mut self, index: ConnectionId) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.is_over() {
            return;
        }
        self.tenants.close(index, connection, self.metrics.region());
        if let Some(chosen) = &connection.through {
            self.services.close(chosen, connection.moved(), connection.twin.is_none());
        }
        Metrics::add(&self.metrics.connections_closed, 1);
        let Some(connection) = self.connections.remove(index) else { return };
        let owners = connection.owners();
        let Connection { direct, twin, tenants, lent, .. } = connection;
        if let Some((namespace, port)) = lent {
            self.names.give_back(namespace, port);
        }
        if let Some(direct) = direct {
            self.close_direct(*direct);
        }
        for (client, slot) in owners.into_iter().flatten() {
            self.release_slot(client, slot);
        }
        if let Some(mut twin) = twin {
            self.twins.remember_departed(tenants, &twin);
            self.twins.forget(index, &mut twin);
        }
    }

    fn release_slot(&mut self, id: ClientId, slot: Slot) {
        let Some(client) = self.client_mut(id) else { return };
        let mover = client.mover_of_slot(slot);
        if let Some(memory) = client.memory() {
            memory.close_slot(slot);
        }
        if client.close(slot).is_some() {
            self.movers.send(mover, ToMover::CloseSocket { client: id, slot });
        }
    }

    /// Ends one side of a connection.
    fn end_side(&mut self, connection: ConnectionId, side: Side, ending: Ending) {
        self.report_sides(connection);
        let Some(entry) = self.connections.get_mut(connection) else { return };
        let (outgoing, incoming) = (connection.flow(side), connection.flow(side.other()));
        let Farewell { finish, send_end, is_reset, is_gone } = ending.farewell();
        let twin = entry.twin.as_ref();
        let last = twin.map_or_else(|| SendEnd::of_stream(send_end), |twin| twin.send_end(send_end));
        if is_gone {
            entry.set_owner(side, None);
        }
        let movers = entry.movers;
        self.befall(connection, side, Event::Ended);
        if is_reset {
            // Said before the peer learns of the reset, so that it reads its ring to the end.
            self.say(connection, side.other(), path::LAST);
        }
        self.gone(outgoing, Gone::Writer);
        self.movers.send(movers[side], ToMover::Finish { flow: outgoing, finish });
        self.tell_of_end(connection, side);
        let abort = ToMover::Abort { flow: incoming, send_end: last, recv_end: None };
        self.movers.send(movers[side.other()], abort);
        if side == Side::Connecting && self.detach_unclaimed(connection, send_end) {
            // A twin that was detached has no flow back to wait for.
            self.flow_done(incoming);
            self.look_after(connection, Side::Accepting, false);
        }
        self.end_connection(connection);
    }

    /// Disconnects a client that has died, or cuts it off for a violation.
    fn disconnect(&mut self, id: ClientId, violation: Option<Violation>) {
        let Some(client) = self.client_mut(id) else { return };
        if !client.is_present() {
            return;
        }
        let (attached, uid) = (client.memory().is_some(), client.identity.uid);
        let left = u64::from(client.is_attached());
        let channels = client.channels;
        let movers = client.leave();
        let (pid, namespace, tenant) = (client.identity.pid, client.identity.namespace, client.tenant);
        self.take_kernel_counts(id);
        if let Some(violation) = violation {
            Metrics::add(&self.metrics.clients_cut_off, 1);
            let (errno, why) = (violation.errno(), violation.to_string());
            self.kernel.refuse(Refused { pid, uid, errno, why, refusal: None }, self.clock.now());
            if self.may_say(CUT_OFF, id) {
                tracing::warn!(client = %id, pid, reason = %violation, "{CUT_OFF}");
            }
        }
        self.door.send(ToDoor::CutOff { client: id, violation });
        self.families.leave(pid);
        self.deferred.forget(id, channels);
        Metrics::add(&self.metrics.clients_left, left);
        let now = self.clock.now();
        if attached {
            movers.iter().for_each(|&mover| self.movers.send(mover, ToMover::Drain { client: id }));
        }
        for slot in self.client(id).map(Client::slots).unwrap_or_default() {
            let ending = match violation {
                Some(_) => Ending::CutOff(now),
                None => Ending::Died { deadline: now + GRACE, resets: self.has_unread(id, slot) },
            };
            self.close_socket(id, slot, ending);
        }
        self.stop_growing(id);
        self.twins.leave(id);
        self.names.leave(namespace);
        self.resident_left(namespace, tenant);
        self.drop_diags();
        if attached {
            movers.iter().for_each(|&mover| self.movers.send(mover, ToMover::RemoveClient { client: id }));
        } else {
            self.forget(id);
        }
    }

    /// Removes a client that no mover remembers.
    fn forget(&mut self, id: ClientId) {
        self.marks.mark_client(id);
        let Some(client) = self.clients.remove(id) else { return };
        let filled = client.regions.into_values().map(|(region, _)| region);
        let regions = filled.chain(client.emptied.into_values()).collect();
        self.door.send(ToDoor::Forget { client: id, regions });
    }

    /// Tells whether a socket has bytes that its client has not given back. Its close would be a reset.
    fn has_unread(&self, id: ClientId, slot: Slot) -> bool {
        let Some(client) = self.client(id) else { return false };
        let state = client.socket(slot).map(|socket| &socket.state);
        let (Some(SocketState::Connected(connected)), Some(memory)) = (state, client.memory()) else {
            return false;
        };
        let in_ring = self.connection(connected.connection).is_some_and(|it| it.has_unread(connected.side));
        in_ring || memory.recv_producer(slot) != memory.recv_consumer(slot)
    }

    /// Closes a socket that its client uses no more.
    fn close_socket(&mut self, id: ClientId, slot: Slot, ending: Ending) {
        let Some(client) = self.client_mut(id) else { return };
        let namespace = client.identity.namespace;
        let Some(socket) = client.socket_mut(slot) else { return };
        let bound = socket.bound.take();
        let closing = match socket.state {
            SocketState::Connected(connected) => Some(connected),
            SocketState::Closing(closing) => closing,
            _ => None,
        };
        let state = std::mem::replace(&mut socket.state, SocketState::Closing(closing));
        let is_let_go = socket.flows_left == 0;
        if let Some(bound) = bound {
            self.names.unbind(namespace, bound.port(), (id, slot));
        }
        match state {
            SocketState::Active => self.release_slot(id, slot),
            SocketState::Taken(_) if is_let_go => self.release_slot(id, slot),
            // The connection may outlive its client, whose number is then reused.
            SocketState::Closing(Some(Connected { connection, side, .. })) => {
                let is_gone = ending.farewell().is_gone;
                if let Some(entry) = self.connections.get_mut(connection).filter(|_| is_gone) {
                    entry.let_go(side, (id, slot));
                }
            }
            SocketState::Closing(None) | SocketState::Taken(_) => {}
            SocketState::Connected(Connected { connection, side, .. }) => {
                if !self.park(connection, side, ending) {
                    self.end_side(connection, side, ending);
                }
            }
            SocketState::Listen(listener) => {
                for waiting in listener.backlog {
                    self.close_socket(id, waiting, ending);
                }
                self.release_slot(id, slot);
            }
        }
    }

    /// Tells whether to write a log line that the client has caused. Counts the line if not.
    fn may_say(&mut self, what: &'static str, id: ClientId) -> bool {
        let payer = self.client(id).map_or(DRIVER, Client::payer);
        self.log.may_say((what, payer), self.clock.now())
    }

    fn warn_exhausted(&mut self, id: ClientId, exhausted: &Exhausted) {
        self.note_cap_of(id, exhausted.clone());
        self.note_short(id, exhausted);
        if self.may_say(EXHAUSTED, id) {
            tracing::warn!(%exhausted, "{EXHAUSTED}");
        }
    }

    fn warn_broken_ring(&mut self, id: ClientId) {
        Metrics::add(&self.metrics.connections_broken, 1);
        const BROKEN: &str = "a client broke the protocol of its direct ring; its connection ends";
        if self.may_say(BROKEN, id) {
            tracing::warn!(client = %id, "{BROKEN}");
        }
    }

    /// Logs how often suppressed lines have recurred.
    fn say_unsaid(&mut self) {
        for ((what, (tenant, user)), times) in self.log.take_unsaid(self.clock.now()) {
            let tenant = if tenant == DRIVER.0 { "" } else { self.tenants.name(tenant) };
            tracing::warn!(what, tenant, user, times, "the same again");
        }
    }
}
