//! State that the conductor gives to another driver, and goes on with in its place.
//!
//! The policy is in force at the other driver before any of this comes: clients have the tenants and networks that it says. A state is
//! checked like the word of a client. Every index is looked up, and every amount is leased from an account. Memory of clients is not
//! written before [`Conductor::begin`].
mod giving;
mod movers;

use super::client::{Client, Connected, Listener, Socket, SocketState};
use super::connections::{Connection, Mapped, NewConnection};
use super::direct::{DirectState, DoorbellsTaken};
use super::ending::Life;
use super::gate::KernelState;
use super::growth::Growth;
use super::names::NamesState;
use super::twins::{Twin, TwinsState};
use super::Conductor;
use crate::admin::{Account as TenantAccount, TakenOver};
use crate::containers::Container;
use crate::door::ToDoor;
use crate::identity::{Identity, NamespaceId};
use crate::ids::{ClientId, ConnectionId, MoverId, Side, Slot, TenantId};
use crate::image::Image;
use crate::memory::{Amounts, ClientMemory, Cold, Region, RegionState, Space};
use crate::metrics::Metrics;
use crate::peer::is_namespace;
use crate::policy::Policy;
use crate::service::{Chosen, KnownSlots, SlotsState};
use crate::standing::Place;
use crate::takeover::arrivals::{Arrivals, Came};
use crate::takeover::pack::{Fd, Unpacked, Wrong};
use pd_abi::limits::{CHANNELS_MAX, SOCKETS_MAX};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// State of the conductor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConductorState {
    serial: u64,
    doorbells: u64,
    /// Tenants by number, with their accounts.
    tenants: Vec<(String, TenantAccount)>,
    /// Hits of the policy's rules on the fabric.
    hits: Vec<u64>,
    /// State of the kernel's half, if there is one. Its counts go over with the maps.
    kernel: Option<KernelState>,
    names: NamesState,
    containers: Vec<ContainerState>,
    clients: Vec<ClientState>,
    connections: Vec<ConnectionState>,
    twins: TwinsState,
    services: SlotsState,
    /// Choices for sockets of the kernel that are remembered.
    on_kernel: Vec<((NamespaceId, u64), Chosen)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContainerState {
    namespace: NamespaceId,
    pidfd: Fd,
    cgroup: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientState {
    id: ClientId,
    serial: u64,
    pid: u32,
    uid: u32,
    pidfd: Fd,
    namespace: NamespaceId,
    namespace_fd: Fd,
    cgroup: Option<String>,
    container: Option<Container>,
    place: Place,
    control: Fd,
    status: Fd,
    pages_of_lines: usize,
    channels: usize,
    regions: Vec<RegionState>,
    generations: Vec<u16>,
    sockets: Vec<(Slot, Socket)>,
    ring_bytes_max: u64,
    is_bound: bool,
    passes_files: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectionState {
    id: ConnectionId,
    sides: [Option<(ClientId, Slot)>; 2],
    life: [Life; 2],
    serial: u64,
    tenants: [TenantId; 2],
    cut: bool,
    counted: bool,
    reached: SocketAddr,
    mapped: Option<Mapped>,
    lent: Option<(NamespaceId, u16)>,
    through: Option<Chosen>,
    receives_no_more: [bool; 2],
    sends_no_more: [bool; 2],
    twin: Option<Box<Twin>>,
    direct: Option<Box<DirectState>>,
}

impl Conductor {
    /// Takes over state that another driver has given, with the policy that it has in force. The conductor has no clients and no policy.
    /// Service begins when the door and the mover have their states, too.
    ///
    /// # Errors
    /// The fault in it. The conductor is of no use then.
    pub fn take(
        &mut self,
        state: ConductorState,
        policy: Policy,
        fds: &mut Unpacked,
    ) -> Result<Arrivals, Wrong> {
        let ConductorState {
            serial,
            doorbells,
            tenants,
            hits,
            kernel,
            names,
            containers,
            clients,
            connections,
            twins,
            services,
            on_kernel,
        } = state;
        Wrong::unless(serial.max(doorbells) <= u64::MAX / 2, || "serials".to_owned())?;
        self.serial = serial;
        // Numbers of tenants and slots are in the kernel's records of sockets: they stay.
        self.tenants.resume(tenants).map_err(Wrong::of)?;
        let slots = self.services.slots.resume(&services)?;
        self.apply(policy).map_err(|error| Wrong::of(format!("the policy: {error}")))?;
        let on_kernel_hits = self.take_kernel(kernel)?;
        self.tenants.resume_hits(hits, on_kernel_hits).map_err(Wrong::of)?;
        // A policy may have lowered what clients may hold below what they held already.
        self.pool.root().set_exempt(true);
        self.rings.number_doorbells_from(doorbells);
        let mut names = names;
        for space in std::mem::take(&mut names.spaces) {
            let network = space.network.as_deref().map(|name| self.networks.number(name)).unwrap_or_default();
            self.names.resume_space(space, network, fds)?;
        }
        for container in containers {
            self.take_container(container, fds)?;
        }
        let mut came = Arrivals::with_capacity(clients.len());
        for client in clients {
            let id = client.id;
            let arrived = self.take_client(client, fds)?;
            Wrong::unless(came.insert(id, arrived).is_none(), || format!("client {id} is there twice"))?;
        }
        let bound = |client: ClientId, slot: Slot, port: u16| {
            let client = self.clients.get(client)?;
            let is_its = client.socket(slot)?.bound.is_some_and(|bound| bound.port() == port);
            is_its.then(|| (client.identity.namespace, client.payer()))
        };
        self.names.resume_bindings(names, bound)?;
        for (socket, chosen) in on_kernel {
            slots.check(&chosen)?;
            self.on_kernel.remember(socket, chosen);
        }
        self.take_connections(connections, &slots, fds)?;
        self.check_sockets()?;
        self.take_twins(twins, fds)?;
        self.counts_taken = Some(services);
        self.names.forget_empty();
        Ok(came)
    }

    fn take_container(&mut self, state: ContainerState, fds: &mut Unpacked) -> Result<(), Wrong> {
        let ContainerState { namespace, pidfd, cgroup } = state;
        let file = self.names.file(namespace).cloned();
        let file = file.ok_or_else(|| Wrong::of("a container in a namespace that is not there"))?;
        self.names.enter(namespace, &file);
        let tenant = self.names.registration(namespace).map(|said| said.tenant.clone());
        let tenant = tenant.ok_or_else(|| Wrong::of("a container that nobody registered"))?;
        self.tenants.enroll(&tenant).map_err(Wrong::of)?;
        let pidfd = Arc::new(fds.take(pidfd)?);
        self.door.send(ToDoor::Watch { pidfd: Arc::clone(&pidfd) });
        let previous = self.containers.add(namespace, pidfd, cgroup);
        Wrong::unless(previous.is_none(), || "two containers in a namespace".to_owned())
    }

    fn take_client(&mut self, state: ClientState, fds: &mut Unpacked) -> Result<Came, Wrong> {
        let id = state.id;
        let wrong = |what: &str| Wrong::of(format!("client {id}: {what}"));
        if id == ClientId::NOBODY || self.clients.get(id).is_some() || state.serial > self.serial {
            return Err(wrong("its number"));
        }
        let namespace_fd = fds.take(state.namespace_fd)?;
        let namespace = state.namespace;
        if !is_namespace(&namespace_fd, namespace) {
            return Err(wrong("its network namespace is another"));
        }
        let pidfd = Arc::new(fds.take(state.pidfd)?);
        let (pid, uid, place) = (state.pid, state.uid, state.place);
        let (cgroup, container) = (state.cgroup, state.container);
        let image = if uid == 0 { None } else { Image::of_user(pid, uid, None) };
        let known = Arc::clone(&pidfd);
        let identity = Identity { pid, uid, image, pidfd: known, namespace, namespace_fd, cgroup, container };
        self.tenants.look();
        let tenant = self.tenant_of(&identity);
        let opened = self.open_account(crate::messages::payer(tenant, uid));
        let exhausted = |exhausted| wrong(&format!("{exhausted}"));
        let (account, lease) = opened.map_err(exhausted)?;
        let file = self.names.file(namespace).cloned().ok_or_else(|| wrong("its namespace is not there"))?;
        self.names.enter(namespace, &file);
        let home = match self.movers.len() {
            1 => Default::default(),
            _ => self.families.enter(pid, &[MoverId::default()]),
        };
        let (pages, channels) = (state.pages_of_lines, state.channels);
        if channels > CHANNELS_MAX || pages > SOCKETS_MAX {
            return Err(wrong("too many channels or lines"));
        }
        let files = [fds.take(state.control)?, fds.take(state.status)?];
        let memory = ClientMemory::resume(files, id.get().into(), pages);
        let memory = memory.map_err(|errno| wrong(&format!("its lines: {errno}")))?;
        let memory = Arc::new(memory.rung_by(&account));
        memory.set_cores_scarce(self.cores_scarce);
        let of_lines = std::iter::once(Amounts::LINES)
            .chain(std::iter::repeat_n(Amounts::LINES_OF_CHANNEL, channels))
            .chain(std::iter::repeat_n(Amounts::PAGE_OF_LINES, pages));
        for amounts in of_lines {
            memory.keep(account.lease(amounts).map_err(exhausted)?);
        }
        let mut client = Client::new(state.serial, (identity, place), tenant, Arc::clone(&account), home);
        client.welcome(Arc::clone(&memory));
        client.attach();
        (client.channels, client.pages_of_lines) = (channels, pages);
        (client.growth, client.is_bound) = (Growth::resume(state.ring_bytes_max), state.is_bound);
        client.passes_files = state.passes_files;
        for region in state.regions {
            let number = region.number;
            let region = region.take(&account, fds, Region::resume_receive)?;
            let space = Space::new((region.map.len() / region.pages.bytes()) as u32);
            if client.regions.insert(number, (region, space)).is_some() {
                return Err(wrong("two regions of a number"));
            }
        }
        if !client.resume_slots(state.generations, state.sockets) {
            return Err(wrong("its sockets"));
        }
        self.clients.put(id, client);
        self.resident_came(namespace, tenant);
        Metrics::add(&self.metrics.clients_attached, 1);
        Ok(Came { tenant, uid, pid, namespace, pidfd, account, lease, memory, channels })
    }

    fn take_connections(
        &mut self,
        given: Vec<ConnectionState>,
        slots: &KnownSlots,
        fds: &mut Unpacked,
    ) -> Result<(), Wrong> {
        let most = self.settings.connections_max;
        Wrong::unless(given.len() <= most, || format!("{} connections: raise connections_max", given.len()))?;
        let (mut all, mut doorbells) = (Vec::with_capacity(given.len()), DoorbellsTaken::default());
        for state in given {
            let id = state.id;
            let wrong = |what: &str| Wrong::of(format!("connection {id}: {what}"));
            if id.index() > 2 * most.max(1 << 16) || state.serial > self.serial {
                return Err(wrong("its number"));
            }
            if !state.tenants.into_iter().all(|tenant| self.tenants.is_known(tenant)) {
                return Err(wrong("its tenants"));
            }
            let is_twin = state.twin.is_some();
            for side in Side::BOTH {
                let is_somebodys = state.sides[side].is_some();
                let is_sockets = state.sides[side].is_none_or(|(client, slot)| {
                    self.client(client).and_then(|client| client.socket(slot)).is_some()
                });
                let fits = state.life[side].fits(is_somebodys, is_twin && side == Side::Accepting);
                if !is_sockets || !fits {
                    return Err(wrong("its sides"));
                }
            }
            let through = state.through;
            through.as_ref().map_or(Ok(()), |chosen| slots.check(chosen))?;
            // The kernel counts the open ones of twins.
            if let Some(chosen) = through.as_ref().filter(|_| !is_twin) {
                self.services.reopen(chosen);
            }
            // The namespace of a client that has gone needs no ports.
            let lent = state.lent.filter(|(namespace, _)| self.names.knows(*namespace));
            if lent.is_some_and(|(namespace, port)| !self.names.lend(namespace, port)) {
                return Err(wrong("its port"));
            }
            let direct = state.direct.map(|direct| self.take_direct(*direct, &mut doorbells, fds));
            let new = NewConnection {
                sides: state.sides,
                movers: [MoverId::default(); 2],
                serial: state.serial,
                tenants: state.tenants,
                reached: state.reached,
                mapped: state.mapped,
                lent,
                through,
                twin: state.twin,
                direct: direct.transpose()?.map(Box::new),
                counted: state.counted,
            };
            Metrics::add(&self.metrics.connections_made, 1);
            let mut connection = Connection::new(new, state.life, state.cut);
            connection.receives_no_more = state.receives_no_more;
            connection.sends_no_more = state.sends_no_more;
            all.push((id, connection));
        }
        let are_apart = self.connections.resume(all);
        Wrong::unless(are_apart, || "a connection is there twice".to_owned())
    }

    /// Checks that sockets and connections know each other.
    fn check_sockets(&self) -> Result<(), Wrong> {
        let mut ends = HashSet::new();
        for (id, connection) in self.connections.iter() {
            for (side, owner) in Side::BOTH.into_iter().zip(connection.owners()) {
                let Some((client, slot)) = owner else { continue };
                let socket = self.client(client).and_then(|client| client.socket(slot));
                let is_known = match socket.map(|socket| &socket.state) {
                    Some(SocketState::Connected(known) | SocketState::Closing(Some(known))) => {
                        (known.connection, known.side) == (id, side)
                    }
                    _ => false,
                };
                let is_first = ends.insert((client, slot));
                Wrong::unless(is_known && is_first, || {
                    format!("connection {id} and socket {slot} of client {client} do not know each other")
                })?;
            }
        }
        for (id, client) in self.clients.iter() {
            for slot in client.slots() {
                let wrong = || Wrong::of(format!("socket {slot} of client {id}"));
                match client.socket(slot).map(|socket| &socket.state) {
                    Some(SocketState::Connected(Connected { connection, side, .. })) => {
                        let owner = self.connection(*connection).and_then(|it| it.owner(*side));
                        if owner != Some((id, slot)) {
                            return Err(wrong());
                        }
                    }
                    Some(SocketState::Listen(Listener { backlog, .. })) => {
                        let is_queued = |slot: &Slot| {
                            let socket = client.socket(*slot);
                            socket.is_some_and(|socket| matches!(socket.state, SocketState::Connected(_)))
                        };
                        let once: HashSet<_> = backlog.iter().collect();
                        if once.len() < backlog.len() || !backlog.iter().all(is_queued) {
                            return Err(wrong());
                        }
                    }
                    Some(SocketState::Active | SocketState::Closing(_) | SocketState::Taken(_)) | None => {}
                }
            }
        }
        Ok(())
    }

    /// Keeps the facts of the take-over for reports.
    pub fn note_taken_over(&mut self, taken_over: TakenOver) {
        self.taken_over = Some(taken_over);
    }

    /// Returns the number of clients, and of connections.
    pub fn counts(&self) -> (usize, usize) {
        (self.clients.iter().count(), self.connections.iter().count())
    }

    /// Returns the receive regions, in the state in which they came.
    pub fn cold_regions(&mut self) -> impl Iterator<Item = Cold> + '_ {
        self.clients
            .iter_mut()
            .flat_map(|(_, client)| client.regions.values_mut().map(|(region, _)| region.make_cold()))
    }

    /// Begins service with all state there. Clients are told their news.
    pub fn begin(&mut self, sleeps: &[u32]) {
        self.pool.root().set_exempt(false);
        self.resume_on_kernel();
        if let Some(counts) = self.counts_taken.take() {
            self.services.slots.resume_counts(counts, self.gate.is_heir());
        }
        self.twins.say_claimable();
        self.movers.own().begin(sleeps);
        let mut all = Vec::new();
        for (index, connection) in self.connections.iter() {
            // The connection has ended meanwhile, or is about to.
            if connection.is_over() {
                all.push(index);
            }
        }
        all.into_iter().for_each(|index| self.end_connection(index));
        self.tell_pipes();
        self.set_gauges();
    }
}
