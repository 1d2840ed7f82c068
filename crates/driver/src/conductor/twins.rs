//! Twins: connections of the fabric that carry the bytes of kernel connections (`abi::TwinOperation`). Programs that know only the kernel's
//! sockets can use them.
//!
//! The kernel decides on connects and accepts, and knows the holders of its sockets. A client's hold on a socket is proved by `/proc` and
//! `sock_diag` ([`crate::kernel_socket`]). A twin begins with one side. The other side goes to the process that holds the accepted socket
//! and claims it. Sides pass from process to process with the socket (fork, exec, descriptors sent). A process that uses the socket takes
//! the side. A side is *parked* if its process has gone while another still holds the kernel's socket. Nothing is lost until the last
//! holder has gone.
mod listeners;
mod parked;
mod passing;
mod questions;
mod slow;
mod takeover;
mod twin;

pub(super) use takeover::TwinsState;
pub(super) use twin::{is_unix, Held, Key, Place, Twin};

use listeners::{Registered, Registrant};
use parked::Parked;
use questions::Questions;
use twin::End;

use super::answer::{done, Answer};
use super::client::{Connected, SocketState};
use super::connections::{NewConnection, Reservation};
use super::names::{canonical, dressed};
use super::sidecars::Plane;
use super::tenants::Reached;
use super::Conductor;
use crate::hash::FastMap as HashMap;
use crate::identity::NamespaceId;
use crate::ids::{ClientId, ConnectionId, FlowId, MoverId, Side, Slot, TenantId};
use crate::kernel_socket::{Holder, SocketDiag};
use crate::memory::ClientMemory;
use crate::messages::{Endpoint, NewFlow, Payer, ToMover, Violation};
use crate::metrics::Metrics;
use crate::service::Chosen;
use crate::wanted::{Wanted, COOKIE_ANY};
use pd_abi::layout::{path, socket_status};
use pd_abi::{SocketId, TwinOperation, TwinRequest};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub struct Twins {
    listeners: HashMap<Place, Vec<Registered>>,
    registrants: HashMap<ClientId, Registrant>,
    /// Unclaimed connections, by name.
    unclaimed: HashMap<Key, Vec<ConnectionId>>,
    /// Likewise, by the place that they were made towards, with the payer of the side that connects.
    unclaimed_towards: HashMap<Place, Vec<(ConnectionId, Payer)>>,
    /// Connection and side of each kernel socket that has a twin.
    ends: HashMap<End, (ConnectionId, Side)>,
    /// Network namespace of each TCP socket in `ends`, by cookie. Those of unclaimed connections are not proved: one cookie may have several.
    namespaces: HashMap<u64, Vec<NamespaceId>>,
    parked: Parked,
    /// Sockets that several clients have had, and whose connections have gone on in the kernel: the last ones of each tenant.
    departed: HashMap<TenantId, VecDeque<End>>,
    pub(super) kernel: Questions,
    /// Number of claims to listen that helpers prove.
    proving: usize,
    /// Lines that no client reads: the other end of unclaimed connections.
    nobody: Arc<ClientMemory>,
}

/// Most sides that are looked at for one socket. More have its cookie only where clients lie.
const PLACES_MAX: usize = 8;

/// Most unclaimed connections of one name. The kernel is asked about each when one of the name is claimed.
const NAMESAKES_MAX: usize = 8;

/// Most unclaimed connections towards a place, as a listener's backlog has at most. Of these a payer has at most half of what others leave.
/// Others stay on the kernel.
const UNCLAIMED_MAX: usize = pd_abi::limits::BACKLOG_MAX as usize;

/// Most sockets of a tenant that are remembered after their twins.
const DEPARTED_MAX: usize = 256;

/// An unclaimed twin that is about to be made.
pub(super) struct NewTwin {
    pub(super) id: ClientId,
    pub(super) channel: usize,
    pub(super) reserved: Reservation,
    pub(super) key: Key,
    pub(super) place: Place,
    /// Clients with registered listeners at `place`.
    pub(super) registrants: Vec<ClientId>,
    pub(super) sides: [Held; 2],
    pub(super) connected: Connected,
    pub(super) tenants: [TenantId; 2],
    pub(super) reached: SocketAddr,
    pub(super) through: Option<Chosen>,
    /// See [`super::Connection::counted`].
    pub(super) counted: bool,
}

impl Twins {
    /// Makes an empty table.
    ///
    /// # Errors
    /// Too little memory for one page of lines.
    pub fn new() -> rustix::io::Result<Self> {
        let (nobody, _) = ClientMemory::new(u32::MAX, None)?;
        nobody.populate_slot(Slot::default())?;
        Ok(Self {
            listeners: HashMap::default(),
            registrants: HashMap::default(),
            unclaimed: HashMap::default(),
            unclaimed_towards: HashMap::default(),
            ends: HashMap::default(),
            namespaces: HashMap::default(),
            parked: Parked::default(),
            departed: HashMap::default(),
            kernel: Questions::default(),
            proving: 0,
            nobody: Arc::new(nobody),
        })
    }

    /// Returns the time of the next look at parked sides.
    pub fn look_at(&self) -> Option<Duration> {
        self.parked.next_look()
    }

    /// Iterates over the sides that belong to no client now.
    pub fn parked(&self) -> impl Iterator<Item = (ConnectionId, Side)> + '_ {
        self.parked.iter()
    }

    /// Returns an end that belongs to no client. The end's line is never taken into use.
    pub(super) fn nobody(&self, mover: MoverId) -> Endpoint {
        let memory = Arc::clone(&self.nobody);
        Endpoint { client: ClientId::NOBODY, serial: 0, slot: Slot::default(), generation: 1, memory, mover }
    }

    /// Iterates over unclaimed connections of AF_UNIX.
    pub(super) fn unclaimed_unix(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        let unix = self.unclaimed.iter().filter(|(key, _)| matches!(key, Key::Unix(_)));
        unix.flat_map(|(_, list)| list.iter().copied())
    }

    /// Returns the oldest unclaimed connection of a name that only one socket has.
    pub(super) fn first_unclaimed(&self, key: &Key) -> Option<ConnectionId> {
        self.unclaimed.get(key)?.first().copied()
    }

    /// Remembers the sides of an ended connection that have gone on in the kernel, for clients that had them before.
    pub(super) fn remember_departed(&mut self, tenants: [TenantId; 2], twin: &Twin) {
        for (side, end) in twin.departed() {
            let list = self.departed.entry(tenants[side]).or_default();
            if list.len() == DEPARTED_MAX {
                list.pop_front();
            }
            list.push_back(end);
        }
    }

    /// Returns the reason why a tenant's socket has no twin. `EREMCHG`: its connection has gone on in the kernel. `ENOENT`: there never was
    /// one.
    fn no_twin(&self, tenant: TenantId, end: End) -> Errno {
        match self.departed.get(&tenant).is_some_and(|list| list.contains(&end)) {
            true => Errno::REMCHG,
            false => Errno::NOENT,
        }
    }

    /// Remembers where a socket of `ends` is, for holders in other network namespaces.
    fn note_namespace(&mut self, held: &Held) {
        if held.unix {
            return;
        }
        let list = self.namespaces.entry(held.wanted.cookie).or_default();
        if !list.contains(&held.namespace) {
            list.push(held.namespace);
        }
    }

    /// Returns the sides whose sockets may have this cookie: that of the network namespace `own` first, and a bounded number.
    fn places(&self, cookie: u64, own: NamespaceId) -> Vec<(ConnectionId, Side)> {
        let others = self.namespaces.get(&cookie).into_iter().flatten().copied();
        let all = std::iter::once(own).chain(others.filter(|other| *other != own));
        all.filter_map(|namespace| self.ends.get(&End::Tcp(namespace, cookie)).copied())
            .take(PLACES_MAX)
            .collect()
    }

    /// Forgets a twin that is over or withdrawn.
    pub fn forget(&mut self, connection: ConnectionId, twin: &mut Twin) {
        for (side, held) in twin.sides() {
            if self.ends.get(&held.end()) == Some(&(connection, side)) {
                self.ends.remove(&held.end());
                if let Some(list) = self.namespaces.get_mut(&held.wanted.cookie).filter(|_| !held.unix) {
                    list.retain(|namespace| *namespace != held.namespace);
                    if list.is_empty() {
                        self.namespaces.remove(&held.wanted.cookie);
                    }
                }
            }
        }
        for side in Side::BOTH {
            self.parked.remove((connection, side));
        }
        self.no_longer_unclaimed(connection, twin);
    }

    fn no_longer_unclaimed(&mut self, connection: ConnectionId, twin: &mut Twin) {
        self.take_back_told(twin);
        take_out(&mut self.unclaimed, *twin.key(), |one| *one == connection);
        take_out(&mut self.unclaimed_towards, twin.place(), |(one, _)| *one == connection);
    }

    fn note_unclaimed(&mut self, key: Key, place: Place, connection: ConnectionId, payer: Payer) {
        self.unclaimed.entry(key).or_default().push(connection);
        self.unclaimed_towards.entry(place).or_default().push((connection, payer));
    }

    /// Tells whether a payer may have one more unclaimed connection of this name and towards this place.
    fn has_room(&self, key: &Key, place: Place, payer: Payer) -> bool {
        let towards = self.unclaimed_towards.get(&place).map(Vec::as_slice).unwrap_or_default();
        let own = towards.iter().filter(|(_, whose)| *whose == payer).count();
        let others = towards.len() - own;
        own < UNCLAIMED_MAX.saturating_sub(others) / 2
            && self.unclaimed.get(key).is_none_or(|list| list.len() < NAMESAKES_MAX)
    }
}

/// Returns what a client learns that names a socket by addresses which another one has.
fn unless_another(errno: Errno) -> Errno {
    match errno {
        Errno::STALE => Errno::NOENT,
        errno => errno,
    }
}

/// Returns the address that the kernel connects to: of none, the loopback one.
pub(super) fn reachable(to: SocketAddr) -> SocketAddr {
    let ip = canonical(to.ip());
    let loopback: IpAddr = if ip.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(if ip.is_unspecified() { loopback } else { ip }, to.port())
}

/// Takes a connection out of the list that has this name.
fn take_out<K: std::hash::Hash + Eq, T>(lists: &mut HashMap<K, Vec<T>>, name: K, is_it: impl Fn(&T) -> bool) {
    if let Some(list) = lists.get_mut(&name) {
        list.retain(|one| !is_it(one));
        if list.is_empty() {
            lists.remove(&name);
        }
    }
}

impl Conductor {
    /// Carries out a client's request about a kernel socket. Returns whether it is answered: if not, a helper proves that the client listens.
    pub(super) fn twin(
        &mut self,
        id: ClientId,
        channel: usize,
        asked: &TwinRequest,
    ) -> Result<bool, Violation> {
        let client = self.client(id).ok_or(Violation::Frame)?;
        let operation = TwinOperation::from_raw(asked.operation).ok_or(Violation::Frame)?;
        if channel >= client.channels {
            return Err(Violation::Frame);
        }
        let unix = is_unix(asked);
        let is_bound = self.keep_together(id);
        let answer = match operation {
            _ if !is_bound => Err(Errno::OPNOTSUPP),
            TwinOperation::Listen if unix => self.unix_listen(id, asked),
            TwinOperation::Connect if unix => self.unix_connect(id, channel, asked),
            TwinOperation::Claim if unix => self.unix_claim(id, channel, asked),
            TwinOperation::Listen => match self.twin_listen(id, channel, asked) {
                Some(answer) => answer,
                None => return Ok(false),
            },
            TwinOperation::Unlisten => self.unlisten(id, asked),
            TwinOperation::Connect => self.twin_connect(id, channel, asked),
            TwinOperation::Claim => self.twin_claim(id, channel, asked),
            TwinOperation::Take => self.twin_take(id, channel, asked),
        };
        self.answer((id, channel), SocketId(0), asked.tag, answer);
        Ok(true)
    }

    pub(super) fn namespace(&self, id: ClientId) -> Result<NamespaceId, Errno> {
        Ok(self.client(id).ok_or(Errno::BADF)?.identity.namespace)
    }

    fn twin_connect(&mut self, id: ClientId, channel: usize, asked: &TwinRequest) -> Answer {
        let asked_for = asked.peer.to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
        let namespace = self.namespace(id)?;
        let chosen = self.choose_on_kernel(namespace, asked.cookie, asked_for)?;
        let led = self.lead(id, asked_for, chosen.as_ref(), Plane::Kernel)?;
        let through = led.map(|(led, _)| led).or(chosen);
        let to = through.map_or(asked_for, |chosen| dressed(chosen.reached, asked_for.is_ipv6()));
        if self.names.is_mapped(namespace, to.ip()) {
            // The kernel has no way between networks.
            return Err(Errno::REMOTE);
        }
        let bound = asked.local.to_socket_addr().filter(|local| local.port() != 0).ok_or(Errno::INVAL)?;
        let there = self.names.namespace_of(namespace, to.ip())?;
        let place = Place::Tcp(there, to.port());
        let all = self.twins.registrants_at(place, to.ip(), None);
        let one = *all.first().ok_or(Errno::CONNREFUSED)?;
        // `EACCES` is for the policy alone.
        let inode = self.inode_asked(id, asked).map_err(|errno| match errno {
            Errno::ACCESS => Errno::OPNOTSUPP,
            errno => errno,
        })?;
        self.open_diag(id, namespace)?;
        self.open_diag(one, there)?;
        // A registration may have outlived its listener, and another user listen there by now.
        let listener =
            self.twins.kernel.listener(&*self.clock, there, reachable(to))?.ok_or(Errno::CONNREFUSED)?;
        let registrants = self.twins.registrants_at(place, to.ip(), Some(listener.uid));
        let peer = *registrants.first().ok_or(Errno::CONNREFUSED)?;
        // The kernel's connection follows, and is counted there.
        let counted = namespace == there || !self.gate.is_in_force();
        let at = Reached { at: to, asked: through.map(|chosen| chosen.asked) };
        let tenants = match led {
            Some((_, decision)) => self.admit_led(id, peer, decision, counted),
            None if counted => self.admit(id, peer, at),
            None => self.admit_uncounted(id, peer, at),
        };
        // `EDQUOT` replaces the `EMFILE` of [`super::Conductor::admit`]: a process has other limits with that errno.
        let tenants = tenants.map_err(|errno| if errno == Errno::MFILE { Errno::DQUOT } else { errno })?;
        self.check_room(peer)?;
        let local = match bound.ip().is_unspecified() {
            false => bound,
            true => SocketAddr::new(self.names.address_for(namespace, to.ip()), bound.port()),
        };
        let reserved = self.connections.reserve();
        let key = Key::Tcp([(namespace, local.port()), (there, to.port())]);
        let connected = Connected {
            connection: reserved.id(),
            side: Side::Connecting,
            local: dressed(local, to.is_ipv6()),
            remote: asked_for,
        };
        let wanted = Wanted { local: connected.local, peer: to, cookie: asked.cookie };
        let unknown = Wanted { local: to, peer: connected.local, cookie: COOKIE_ANY };
        let sides = [
            Held { namespace, wanted, inode, unix: false },
            Held { namespace: there, wanted: unknown, inode: 0, unix: false },
        ];
        self.new_twin(NewTwin {
            id,
            channel,
            reserved,
            key,
            place,
            registrants,
            sides,
            connected,
            tenants,
            reached: to,
            through,
            counted,
        })
    }

    /// Makes a twin with one side, which can send at once.
    pub(super) fn new_twin(&mut self, new: NewTwin) -> Answer {
        let NewTwin {
            id,
            channel,
            reserved,
            key,
            place,
            registrants,
            sides,
            connected,
            tenants,
            reached,
            through,
            counted,
        } = new;
        let index = reserved.id();
        let client = self.client(id).ok_or(Errno::BADF)?;
        let (mover, payer) = (client.mover, client.payer());
        if !self.twins.has_room(&key, place, payer) {
            return Err(Errno::NOBUFS);
        }
        let v6 = connected.remote.is_ipv6();
        let socket = self.fresh_socket(v6, channel, SocketState::Connected(connected));
        let send_ring_bytes = socket.send_ring_bytes;
        let (slot, generation) = self.open_slot(id, socket)?;
        self.serial += 1;
        let connection = NewConnection {
            sides: [Some((id, slot)), None],
            movers: [mover, mover],
            serial: self.serial,
            tenants,
            reached,
            mapped: None,
            lent: None,
            through,
            twin: Some(Box::new(Twin::new(key, place, self.twins.tell_of_twin(&registrants), sides))),
            // A direct path may begin when both ends are there.
            direct: None,
            counted,
        };
        self.connections.begin(reserved, connection);
        if let Some(source) = self.endpoint(id, slot) {
            let destination = self.twins.nobody(mover);
            let (id, tenant, serial) = (index.flow(Side::Connecting), tenants[0], self.serial);
            self.add_flow(NewFlow { id, tenant, lasts: true, source, destination, send_ring_bytes, serial });
        }
        self.show(index, Side::Connecting);
        self.twins.note_unclaimed(key, place, index, payer);
        // The side is not proved yet: it must not displace another.
        self.twins.ends.entry(sides[Side::Connecting].end()).or_insert((index, Side::Connecting));
        self.twins.note_namespace(&sides[Side::Connecting]);
        if counted {
            self.tenants.open(tenants);
        }
        Metrics::add(&self.metrics.connections_made, 1);
        Ok(done(slot.socket(generation)).with_number(send_ring_bytes))
    }

    fn twin_claim(&mut self, id: ClientId, channel: usize, asked: &TwinRequest) -> Answer {
        let held = self.prove(id, asked)?;
        let (local, remote) = (held.wanted.local, held.wanted.peer);
        let from = self.names.namespace_of(held.namespace, remote.ip())?;
        let key = Key::Tcp([(from, remote.port()), (held.namespace, local.port())]);
        let index = self.unclaimed_at(&key, local, remote).ok_or(Errno::NOENT)?;
        self.claim(id, channel, index, held)
    }

    /// Gives an unclaimed connection its other side.
    pub(super) fn claim(&mut self, id: ClientId, channel: usize, index: ConnectionId, held: Held) -> Answer {
        let (local, remote) = (held.wanted.local, held.wanted.peer);
        let tenant = self.client(id).ok_or(Errno::BADF)?.tenant;
        let Some(connection) = self.connections.get(index) else { return Err(Errno::NOENT) };
        if connection.tenants[Side::Accepting] != tenant {
            return Err(Errno::ACCESS);
        }
        let connected = Connected { connection: index, side: Side::Accepting, local, remote };
        let (slot, generation) = self
            .open_slot(id, self.fresh_socket(local.is_ipv6(), channel, SocketState::Connected(connected)))?;
        let endpoint = self.endpoint(id, slot).ok_or(Errno::BADF)?;
        let Some(connection) = self.connections.get_mut(index) else {
            return Err(Errno::NOENT);
        };
        connection.claim((id, slot), endpoint.mover);
        let (movers, serial, first) =
            (connection.movers, connection.serial, connection.owner(Side::Connecting));
        let Some(twin) = &mut connection.twin else { return Err(Errno::NOENT) };
        let send_end = twin.claim(held).map(|word| twin.send_end(word));
        self.twins.no_longer_unclaimed(index, twin);
        // Looked after if its connecting side has ended before.
        self.twins.parked.remove((index, Side::Accepting));
        for (side, held) in twin.sides() {
            self.twins.ends.insert(held.end(), (index, side));
            self.twins.note_namespace(held);
        }

        let (there, back) = (index.flow(Side::Connecting), index.flow(Side::Accepting));
        let send_ring_bytes = self.settings.ring_bytes_default;
        let other = first.and_then(|(client, slot)| self.endpoint(client, slot));
        // A client with both ends is told so.
        let own = other.as_ref().filter(|other| other.client == id);
        let own_peer = own.map_or(0, |own| own.slot.socket(own.generation).0);
        let other = other.unwrap_or_else(|| self.twins.nobody(movers[0]));
        if other.client != ClientId::NOBODY {
            // Published before either of the two sides can learn more.
            other.memory.publish_u32(other.slot, socket_status::PATH, path::CLAIMED);
        }
        self.tell_incoming(&endpoint, there, movers[0]);
        self.movers.send(
            movers[0],
            ToMover::HandoffDestination { flow: there, destination: endpoint.clone(), handoff: None },
        );
        let (source, destination) = (endpoint, other);
        self.add_flow(NewFlow {
            id: back,
            tenant,
            lasts: true,
            source,
            destination,
            send_ring_bytes,
            serial,
        });
        self.show(index, Side::Accepting);
        if let Some(send_end) = send_end {
            self.movers.send(movers[1], ToMover::Abort { flow: back, send_end, recv_end: None });
        } else {
            self.place(index);
        }
        Ok(done(slot.socket(generation)).with_number(send_ring_bytes).with_second(own_peer.into()))
    }

    /// Tells the receiving socket's mover which flow delivers to it.
    pub(super) fn tell_incoming(&self, to: &Endpoint, flow: FlowId, mover: MoverId) {
        if to.client != ClientId::NOBODY {
            let (client, slot) = (to.client, to.slot);
            self.movers.send(to.mover, ToMover::Incoming { client, slot, flow, mover });
        }
    }

    /// Withdraws a client's own twin as long as it is unclaimed. The bytes can go another way then.
    pub(super) fn withdraw(&mut self, id: ClientId, socket: SocketId) -> Answer {
        let Connected { connection, .. } = self.connected(id, Slot::of(socket))?;
        let Some(entry) = self.connections.get_mut(connection) else {
            return Err(Errno::NOTCONN);
        };
        let Some(twin) = entry.twin.as_mut().filter(|twin| !twin.is_claimed()) else {
            return Err(Errno::ISCONN);
        };
        twin.withdraw();
        // A holder of the kernel's socket cannot take the twin, either.
        self.twins.forget(connection, twin);
        Ok(done(socket))
    }

    /// Records for a later claim that the connecting side receives no more. Returns whether the twin is unclaimed.
    pub(super) fn detach_unclaimed(&mut self, index: ConnectionId, send_end: u32) -> bool {
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let Some(twin) = connection.twin.as_mut().filter(|twin| !twin.is_claimed()) else { return false };
        twin.detach(send_end);
        true
    }

    /// Returns the unclaimed connection of this name, if the kernel agrees that it is the same.
    fn unclaimed_at(&mut self, key: &Key, local: SocketAddr, remote: SocketAddr) -> Option<ConnectionId> {
        for index in self.twins.unclaimed.get(key)?.clone() {
            let Some(twin) = self.connection(index).and_then(|c| c.twin.as_ref()) else { continue };
            let &Held { namespace, wanted, inode, .. } = twin.side(Side::Connecting);
            let same = |a: SocketAddr, b: SocketAddr| canonical(a.ip()) == canonical(b.ip());
            if !same(wanted.peer, local) {
                continue;
            }
            let wanted = Wanted { local: remote, peer: local, cookie: wanted.cookie };
            match self.twins.kernel.inode(&*self.clock, namespace, &wanted) {
                Ok(found) if found == inode || found == 0 => {}
                // The socket is closed by now. No other socket can have had the name meanwhile: the twin still waits here.
                Err(Errno::NOENT) => {}
                // Another socket has the name, which is all that a client says of a socket that is not connected yet.
                _ => continue,
            }
            if let Some(connection) = self.connections.get_mut(index) {
                if let Some(twin) = &mut connection.twin {
                    twin.set_wanted(Side::Connecting, wanted);
                }
            }
            return Some(index);
        }
        None
    }

    /// Checks that a client holds the kernel's socket that it names. Returns the socket.
    fn prove(&mut self, id: ClientId, asked: &TwinRequest) -> Result<Held, Errno> {
        self.prove_towards(id, asked, None)
    }

    /// Checks as [`Self::prove`] does. `through`: the peer as the kernel connected it, where the program sees a service's address.
    fn prove_towards(
        &mut self,
        id: ClientId,
        asked: &TwinRequest,
        through: Option<SocketAddr>,
    ) -> Result<Held, Errno> {
        let namespace = self.namespace(id)?;
        let (Some(local), Some(peer)) = (asked.local.to_socket_addr(), asked.peer.to_socket_addr()) else {
            return Err(Errno::AFNOSUPPORT);
        };
        let wanted = Wanted { local, peer: through.unwrap_or(peer), cookie: asked.cookie };
        let inode = self.inode_asked(id, asked)?;
        self.open_diag(id, namespace)?;
        let found = self.twins.kernel.inode(&*self.clock, namespace, &wanted).map_err(unless_another)?;
        if found == 0 || found != inode {
            return Err(Errno::ACCESS);
        }
        Ok(Held { namespace, wanted, inode, unix: false })
    }

    /// Checks that a client holds the kernel's socket of a side, in whatever network namespace.
    fn prove_side(&self, id: ClientId, asked: &TwinRequest, held: Held) -> Result<Held, Errno> {
        let inode = self.inode_asked(id, asked)?;
        let found =
            self.twins.kernel.inode(&*self.clock, held.namespace, &held.wanted).map_err(unless_another)?;
        if found == 0 || found != inode {
            return Err(Errno::ACCESS);
        }
        Ok(held)
    }

    /// Checks as [`Self::prove_side`] does, for a socket whose connection has ended in the kernel in both directions. The socket has no
    /// address any more, but bytes on the fabric are still to be read. Only its inode identifies it, so the tenant has to be the side's.
    fn prove_ended(
        &self,
        id: ClientId,
        asked: &TwinRequest,
        held: Held,
        tenant: TenantId,
    ) -> Result<Held, Errno> {
        let inode = self.inode_asked(id, asked)?;
        let same = held.inode == inode
            && inode != 0
            && self.client(id).is_some_and(|client| client.tenant == tenant);
        same.then_some(held).ok_or(Errno::ACCESS)
    }

    /// Returns the inode of the socket that a client names.
    pub(super) fn inode_asked(&self, id: ClientId, asked: &TwinRequest) -> Result<u32, Errno> {
        let identity = &self.client(id).ok_or(Errno::BADF)?.identity;
        let (pid, uid, image, pidfd) = (identity.pid, identity.uid, identity.image, &*identity.pidfd);
        Holder { pid, uid, image, pidfd }.inode(asked.descriptor)
    }

    pub(super) fn open_diag(&mut self, id: ClientId, namespace: NamespaceId) -> Result<(), Errno> {
        if self.twins.kernel.diag(namespace).is_some() {
            return Ok(());
        }
        let client = self.client(id).ok_or(Errno::BADF)?;
        let diag = SocketDiag::new(&client.identity.namespace_fd).map_err(|error| {
            const UNKNOWN: &str = "cannot ask the kernel about sockets of a network namespace";
            if self.may_say(UNKNOWN, id) {
                tracing::warn!(%error, "{UNKNOWN}");
            }
            Errno::OPNOTSUPP
        })?;
        self.twins.kernel.insert(namespace, diag);
        Ok(())
    }
}
