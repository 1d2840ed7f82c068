//! Addresses and ports of network namespaces, and the listeners there.
//!
//! A client may bind only addresses that its network namespace holds. An address other than loopback belongs to the first namespace that
//! claims it. A container that gives itself a neighbour's address thus gains nothing. A namespace registered by `pd run` claims its
//! addresses before it runs anything.
//!
//! A namespace is in one network, within which an address means its owner: two networks may use the same addresses.
mod ports;
mod takeover;

pub use takeover::NamesState;

use crate::addresses::{self, Addresses};
use crate::door::Registration;
use crate::hash::FastMap as HashMap;
use crate::identity::NamespaceId;
use crate::ids::{ClientId, Slot};
use crate::messages::Payer;
use crate::policy::Maps;
use pd_abi::limits::{EPHEMERAL_PORT_FIRST, EPHEMERAL_PORT_LAST};
use ports::Ports;
use rustix::io::Errno;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Age from which on a namespace's address list is read again for a request.
const ADDRESSES_FRESH: Duration = Duration::from_millis(50);
/// Pause after a long list, in multiples of the time that reading it took. Reading takes a tenth of a core at most.
const PAUSE_FACTOR: u32 = 9;

/// Most bindings of one payer.
const BINDINGS_MAX: usize = 65_536;

/// A network, within which an address has one owner. The common network has number 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkId(u32);

impl NetworkId {
    /// Returns the network with this number.
    pub fn at(number: u32) -> Self {
        Self(number)
    }

    /// Returns its number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Tells whether it is the common network: that of all namespaces that the policy puts nowhere else.
    pub fn is_common(self) -> bool {
        self == Self::default()
    }
}

#[derive(Default)]
pub struct Names {
    namespaces: HashMap<NamespaceId, Namespace>,
    owners: HashMap<(NetworkId, IpAddr), NamespaceId>,
    /// Addresses of one network that mean addresses of another one. An address that is only a name has no owner.
    maps: Maps<NetworkId>,
    ports: HashMap<NamespaceId, Ports>,
    /// Number of bindings of each payer.
    paid: HashMap<Payer, usize>,
    /// Number of changes after which a namespace may own other addresses than before.
    changes: u64,
}

struct Namespace {
    users: usize,
    network: NetworkId,
    /// File of the namespace, for reading its addresses.
    file: Arc<OwnedFd>,
    addresses: Addresses,
    read_at: Option<Duration>,
    /// The end of the pause after the last list, if that was long.
    resume_at: Option<Duration>,
    /// Value of [`Names::changes`] when it last claimed its addresses.
    claimed_at: Option<u64>,
    registration: Option<Registration>,
    next_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Binding {
    ip: IpAddr,
    v6_only: bool,
    client: ClientId,
    slot: Slot,
    takes: Takes,
    /// The user whose other listeners of this kind may have the port, too.
    share: Option<u32>,
    payer: Payer,
}

/// Connections that a bound socket takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Takes {
    None,
    /// Connections that come by a map of the policy's, which the kernel cannot bring.
    OtherNetworks,
    All,
}

/// A socket that is to be bound.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Address to bind to; port 0 asks for any port.
    pub wanted: SocketAddr,
    pub v6_only: bool,
    pub owner: (ClientId, Slot),
    /// User whose other sockets may share the port, if they ask for that, too.
    pub share: Option<u32>,
    pub payer: Payer,
}

impl Namespace {
    /// Tells whether a request of the time `as_of` needs a later list.
    fn is_stale(&self, as_of: Duration) -> bool {
        let is_old = self.read_at.is_none_or(|at| as_of.saturating_sub(at) >= ADDRESSES_FRESH);
        is_old && self.resume_at.is_none_or(|at| as_of >= at)
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("owners", &self.owners)
            .field("ports", &self.ports)
            .finish_non_exhaustive()
    }
}

impl Names {
    /// Adds a user of a namespace: a client that attached, or a registration by `pd run`. Returns whether its addresses were never read.
    pub fn enter(&mut self, id: NamespaceId, file: &Arc<OwnedFd>) -> bool {
        let namespace = self.namespaces.entry(id).or_insert_with(|| Namespace {
            users: 0,
            network: NetworkId::default(),
            file: Arc::clone(file),
            addresses: Addresses::default(),
            read_at: None,
            resume_at: None,
            claimed_at: None,
            registration: None,
            next_port: EPHEMERAL_PORT_FIRST,
        });
        namespace.users += 1;
        namespace.read_at.is_none()
    }

    /// Returns the network of a namespace.
    pub fn network(&self, id: NamespaceId) -> NetworkId {
        self.namespaces.get(&id).map_or_else(NetworkId::default, |namespace| namespace.network)
    }

    /// Puts a namespace into a network, where it comes last: addresses that other members own stay theirs. Returns whether it was in
    /// another network.
    pub fn set_network(&mut self, id: NamespaceId, network: NetworkId) -> bool {
        let Some(namespace) = self.namespaces.get_mut(&id).filter(|n| n.network != network) else {
            return false;
        };
        (namespace.network, namespace.claimed_at) = (network, None);
        self.owners.retain(|_, owner| *owner != id);
        self.changes += 1;
        let registered = namespace.registration.iter().flat_map(|registration| &registration.addresses);
        for &ip in registered.filter(|ip| self.maps.real(network, canonical(**ip)).is_none()) {
            self.owners.entry((network, ip)).or_insert(id);
        }
        true
    }

    /// Puts maps in force.
    pub fn set_maps(&mut self, maps: Maps<NetworkId>) {
        if self.maps == maps {
            return;
        }
        self.maps = maps;
        self.changes += 1;
        let is_name = |network: NetworkId, ip: IpAddr| self.maps.real(network, canonical(ip)).is_some();
        self.owners.retain(|(network, ip), _| !is_name(*network, *ip));
        for (id, namespace) in &mut self.namespaces {
            namespace.claimed_at = None;
            let registered = namespace.registration.iter().flat_map(|registration| &registration.addresses);
            for &ip in registered.filter(|ip| !is_name(namespace.network, **ip)) {
                self.owners.entry((namespace.network, ip)).or_insert(*id);
            }
        }
    }

    /// Returns the network and the address there that an address means in a namespace.
    pub fn place(&self, id: NamespaceId, ip: IpAddr) -> (NetworkId, IpAddr) {
        let network = self.network(id);
        self.maps.real(network, canonical(ip)).unwrap_or((network, ip))
    }

    /// Tells whether an address means one of another network in a namespace.
    pub fn is_mapped(&self, id: NamespaceId, ip: IpAddr) -> bool {
        self.maps.real(self.network(id), canonical(ip)).is_some()
    }

    /// Returns the address under which the namespace `viewer` sees an address of the namespace `owner`. `None`: there is none.
    pub fn seen(&self, viewer: NamespaceId, owner: NamespaceId, ip: IpAddr) -> Option<IpAddr> {
        self.seen_in(self.network(viewer), owner, ip)
    }

    /// Returns the address under which the network `viewer` sees an address of the namespace `owner`. `None`: there is none.
    pub fn seen_in(&self, viewer: NetworkId, owner: NamespaceId, ip: IpAddr) -> Option<IpAddr> {
        let network = self.network(owner);
        match viewer == network {
            true => Some(ip),
            false => self.maps.seen(viewer, network, canonical(ip)),
        }
    }

    /// Returns the owner of the address that `ip` means in a namespace.
    fn owner(&self, id: NamespaceId, ip: IpAddr) -> Option<NamespaceId> {
        self.owners.get(&self.place(id, ip)).copied()
    }

    /// Records the addresses that a namespace holds. Reading them took the time `took`. `None`: they could not be read, and the former ones
    /// stay.
    pub fn learn(&mut self, id: NamespaceId, found: Option<Addresses>, took: Duration, now: Duration) {
        let Some(namespace) = self.namespaces.get_mut(&id) else { return };
        // The list may be as old as the start of its reading.
        (namespace.read_at, namespace.resume_at) = (Some(now.saturating_sub(took)), None);
        let Some(found) = found else { return };
        namespace.resume_at = addresses::is_long(&found).then(|| now + took * PAUSE_FACTOR);
        (namespace.addresses, namespace.claimed_at) = (found, None);
    }

    /// Iterates over all namespaces, with their files and registrations.
    pub fn known(&self) -> impl Iterator<Item = (NamespaceId, &Arc<OwnedFd>, Option<&Registration>)> + '_ {
        self.namespaces.iter().map(|(id, namespace)| (*id, &namespace.file, namespace.registration.as_ref()))
    }

    /// Returns the file of a namespace.
    pub fn file(&self, id: NamespaceId) -> Option<&Arc<OwnedFd>> {
        Some(&self.namespaces.get(&id)?.file)
    }

    /// Returns the namespaces whose addresses have to be read before the owner of `ip` in namespace `id` is known. `as_of` is the time of
    /// the request. If the request is to `reach` that address, any namespace may own it.
    pub fn unread(&self, id: NamespaceId, ip: IpAddr, reach: bool, as_of: Duration) -> Vec<NamespaceId> {
        let ip = canonical(ip);
        if is_loopback(ip) || ip.is_unspecified() {
            return Vec::new();
        }
        let is_stale = |id: &NamespaceId| self.namespaces.get(id).is_some_and(|n| n.is_stale(as_of));
        let (network, _) = self.place(id, ip);
        match self.owner(id, ip) {
            None if reach => {
                let members = self.namespaces.iter().filter(|(_, namespace)| namespace.network == network);
                members.map(|(other, _)| *other).filter(is_stale).collect()
            }
            Some(owner) if owner != id => [owner, id].into_iter().filter(is_stale).collect(),
            _ => [id].into_iter().filter(is_stale).collect(),
        }
    }

    /// Returns the namespaces whose addresses have to be read before [`Self::register`], for a request of the time `as_of`.
    pub fn unread_owners(&self, addresses: &[IpAddr], as_of: Duration) -> Vec<NamespaceId> {
        // The container's network is not known yet: owners in all networks count.
        let named = self.owners.iter().filter(|((_, ip), _)| addresses.contains(ip));
        let mut owners: Vec<_> = named.map(|(_, owner)| *owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.retain(|owner| self.namespaces.get(owner).is_some_and(|n| n.is_stale(as_of)));
        owners
    }

    /// Tells whether a client or a registration is in the namespace.
    pub fn knows(&self, id: NamespaceId) -> bool {
        self.namespaces.contains_key(&id)
    }

    /// Removes a user of a namespace: the opposite of [`Self::enter`].
    pub fn leave(&mut self, id: NamespaceId) {
        let Some(namespace) = self.namespaces.get_mut(&id) else { return };
        namespace.users -= 1;
        if namespace.users == 0 {
            self.namespaces.remove(&id);
            self.owners.retain(|_, owner| *owner != id);
            self.changes += 1;
        }
    }

    /// Returns zero if no name is left.
    #[cfg(any(test, fuzzing, feature = "hostile"))]
    pub fn leftovers(&self) -> usize {
        self.namespaces.len() + self.owners.len() + self.ports.len() + self.paid.len()
    }

    /// Records a registration by `pd run`. The namespace must have been entered.
    ///
    /// # Errors
    /// `EADDRINUSE` if another namespace holds one of the addresses, `EADDRNOTAVAIL` if one of them means an address of another network.
    pub fn register(&mut self, id: NamespaceId, registration: Registration) -> Result<(), Errno> {
        for &ip in &registration.addresses {
            if self.is_mapped(id, ip) {
                return Err(Errno::ADDRNOTAVAIL);
            }
            if self.claimed_owner(id, ip).is_some_and(|owner| owner != id) {
                return Err(Errno::ADDRINUSE);
            }
        }
        let network = self.network(id);
        self.owners.extend(registration.addresses.iter().map(|&ip| ((network, ip), id)));
        self.changes += 1;
        if let Some(namespace) = self.namespaces.get_mut(&id) {
            namespace.registration = Some(registration);
        }
        Ok(())
    }

    /// Returns the registration of a namespace by `pd run`.
    pub fn registration(&self, id: NamespaceId) -> Option<&Registration> {
        self.namespaces.get(&id)?.registration.as_ref()
    }

    /// Has a namespace claim the addresses that it is known to hold, and give up others. A registered address stays its own.
    fn claim(&mut self, id: NamespaceId) {
        let Some(namespace) = self.namespaces.get_mut(&id) else { return };
        if namespace.claimed_at == Some(self.changes) {
            return;
        }
        let registered = namespace.registration.as_ref().map(|r| &r.addresses);
        if let Some(registered) = registered {
            namespace.addresses.retain(|ip, _| is_local(*ip) || registered.contains(ip));
        }
        let (held, network) = (&namespace.addresses, namespace.network);
        let before = self.owners.len();
        self.owners.retain(|(_, ip), owner| {
            *owner != id || held.contains_key(ip) || registered.is_some_and(|r| r.contains(ip))
        });
        self.changes += u64::from(self.owners.len() != before);
        let is_name = |ip: IpAddr| self.maps.real(network, canonical(ip)).is_some();
        for &ip in held.keys().filter(|ip| !is_local(**ip) && !is_name(**ip)) {
            self.owners.entry((network, ip)).or_insert(id);
        }
        namespace.claimed_at = Some(self.changes);
    }

    /// Returns the owner of the address in the network of `id`, unless the owner is known to have given it up.
    fn claimed_owner(&mut self, id: NamespaceId, ip: IpAddr) -> Option<NamespaceId> {
        let owner = self.owner(id, ip)?;
        self.claim(owner);
        self.owner(id, ip)
    }

    /// Tells whether a namespace may use an address: it holds the address, and held it first.
    pub fn holds(&mut self, id: NamespaceId, ip: IpAddr) -> bool {
        if is_loopback(ip) {
            return true;
        }
        if self.claimed_owner(id, ip) != Some(id) {
            self.claim(id);
        }
        self.owner(id, ip) == Some(id)
            || (is_local(ip) && self.namespaces.get(&id).is_some_and(|n| n.addresses.contains_key(&ip)))
    }

    /// Binds a socket. Port 0 asks for any free port. Returns the address bound.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the namespace does not hold the address, `EADDRINUSE` if the port is taken, `ENOBUFS` if the payer has too many
    /// bindings.
    pub fn bind(&mut self, id: NamespaceId, wish: &Wish) -> Result<SocketAddr, Errno> {
        let &Wish { wanted, v6_only, owner: (client, slot), share, payer } = wish;
        let ip = canonical(wanted.ip());
        if !ip.is_unspecified() && !self.holds(id, ip) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let mut binding = Binding { ip, v6_only, client, slot, takes: Takes::None, share, payer };
        if wanted.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            binding.ip = wanted.ip();
        }
        let paid = self.paid.get(&payer).copied().unwrap_or(0);
        if paid >= BINDINGS_MAX {
            return Err(Errno::NOBUFS);
        }
        let port = match wanted.port() {
            0 => {
                let from = self.next_port(id);
                let ports = self.ports.entry(id).or_default();
                let port = ports.free(&binding, from).ok_or(Errno::ADDRINUSE)?;
                if let Some(namespace) = self.namespaces.get_mut(&id) {
                    namespace.next_port = following(port);
                }
                port
            }
            port => port,
        };
        self.ports.entry(id).or_default().bind(port, binding)?;
        self.paid.insert(payer, paid + 1);
        Ok(SocketAddr::new(wanted.ip(), port))
    }

    fn next_port(&mut self, id: NamespaceId) -> u16 {
        let Some(namespace) = self.namespaces.get_mut(&id) else { return EPHEMERAL_PORT_FIRST };
        let port = namespace.next_port;
        namespace.next_port = following(port);
        port
    }

    /// Sets the connections that a bound socket takes from now on.
    pub fn set_listening(&mut self, id: NamespaceId, port: u16, owner: (ClientId, Slot), takes: Takes) {
        if let Some(binding) = self.binding_mut(id, port, owner) {
            binding.takes = takes;
        }
    }

    #[cfg(test)]
    fn listen(&mut self, id: NamespaceId, port: u16, owner: (ClientId, Slot)) {
        self.set_listening(id, port, owner, Takes::All);
    }

    /// Tells whether a namespace is in a network of the policy's, to which a map can lead.
    pub fn is_in_a_network(&self, id: NamespaceId) -> bool {
        self.network(id) != NetworkId::default()
    }

    fn binding_mut(&mut self, id: NamespaceId, port: u16, owner: (ClientId, Slot)) -> Option<&mut Binding> {
        self.ports.get_mut(&id)?.at(port)?.iter_mut().find(|b| (b.client, b.slot) == owner)
    }

    /// Takes a binding back.
    pub fn unbind(&mut self, id: NamespaceId, port: u16, owner: (ClientId, Slot)) {
        let Some(ports) = self.ports.get_mut(&id) else { return };
        for binding in ports.unbind(port, |b| (b.client, b.slot) == owner) {
            if let Some(paid) = self.paid.get_mut(&binding.payer) {
                *paid -= 1;
                if *paid == 0 {
                    self.paid.remove(&binding.payer);
                }
            }
        }
        if ports.is_empty() {
            self.ports.remove(&id);
        }
    }

    /// Returns the namespace that `ip` means in namespace `id`.
    ///
    /// # Errors
    /// `EHOSTUNREACH` if no container holds the address.
    pub fn namespace_of(&mut self, id: NamespaceId, ip: IpAddr) -> Result<NamespaceId, Errno> {
        let ip = canonical(ip);
        if is_loopback(ip) || ip.is_unspecified() || self.holds(id, ip) {
            return Ok(id);
        }
        if self.owner(id, ip).is_none() {
            let (network, _) = self.place(id, ip);
            let members = self.namespaces.iter().filter(|(_, namespace)| namespace.network == network);
            let members: Vec<_> = members.map(|(other, _)| *other).collect();
            members.into_iter().for_each(|other| self.claim(other));
        }
        self.owner(id, ip).ok_or(Errno::HOSTUNREACH)
    }

    /// Tells whether a connection from `id` to `to` reaches a listener.
    pub fn has_listener(&mut self, id: NamespaceId, to: SocketAddr) -> bool {
        self.listeners(id, to).is_ok()
    }

    /// Returns the listener that a connection from `id` to `to` reaches. Listeners that share a port take turns.
    ///
    /// # Errors
    /// `EHOSTUNREACH` if no container holds the address, `ECONNREFUSED` if nothing listens there.
    pub fn listener(&mut self, id: NamespaceId, to: SocketAddr) -> Result<(ClientId, Slot), Errno> {
        let (list, at) = self.listeners(id, to)?;
        let chosen = list[at];
        if chosen.share.is_some() {
            list[at..].rotate_left(1);
        }
        Ok((chosen.client, chosen.slot))
    }

    /// Returns the bindings of the port of `to`, and the index of the first that a connection from `id` reaches.
    fn listeners(&mut self, id: NamespaceId, to: SocketAddr) -> Result<(&mut Vec<Binding>, usize), Errno> {
        let ip = canonical(to.ip());
        let target = self.namespace_of(id, ip)?;
        let least = if self.is_mapped(id, ip) { Takes::OtherNetworks } else { Takes::All };
        let (_, ip) = self.place(id, ip);
        let list =
            self.ports.get_mut(&target).and_then(|ports| ports.at(to.port())).ok_or(Errno::CONNREFUSED)?;
        let fits = |b: &&Binding| (b.takes == Takes::All || b.takes == least) && b.accepts(ip);
        let exact = list.iter().filter(fits).any(|b| !b.ip.is_unspecified());
        let found = list.iter().position(|b| fits(&b) && b.ip.is_unspecified() != exact);
        found.map(|at| (list, at)).ok_or(Errno::CONNREFUSED)
    }

    /// Returns the address that a socket of `id` gets when it connects to `to` without being bound.
    pub fn local_for(&mut self, id: NamespaceId, to: IpAddr) -> SocketAddr {
        let port = self.next_port(id);
        let ip = canonical(to);
        if is_loopback(ip) || ip.is_unspecified() || self.owner(id, ip) == Some(id) {
            let own = if ip.is_unspecified() { loopback(ip) } else { ip };
            return SocketAddr::new(own, port);
        }
        self.claim(id);
        let (owners, network, (there, _)) = (&self.owners, self.network(id), self.place(id, ip));
        let best = self.namespaces.get(&id).and_then(|namespace| {
            let usable = namespace.addresses.iter().filter(|(own, _)| {
                own.is_ipv4() == ip.is_ipv4()
                    && !is_local(**own)
                    && owners.get(&(network, **own)) == Some(&id)
                    && self.seen_in(there, id, **own).is_some()
            });
            usable.max_by_key(|(own, prefix)| (same_prefix(**own, ip, **prefix), **own)).map(|(own, _)| *own)
        });
        SocketAddr::new(best.unwrap_or_else(|| unspecified(ip)), port)
    }
}

impl Binding {
    fn overlaps(&self, other: &Self) -> bool {
        self.accepts(other.ip)
            || other.accepts(self.ip)
            || (self.ip.is_unspecified()
                && other.ip.is_unspecified()
                && self.ip.is_ipv4() == other.ip.is_ipv4())
    }

    /// Tells whether a connection to `ip` may reach this binding.
    fn accepts(&self, ip: IpAddr) -> bool {
        match self.ip {
            IpAddr::V4(own) if own.is_unspecified() => ip.is_ipv4(),
            IpAddr::V6(own) if own.is_unspecified() => ip.is_ipv6() || !self.v6_only,
            own => own == ip,
        }
    }
}

/// Returns the IPv4 address for an IPv4-mapped one, and any other address as it is.
pub fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Returns the address in the form of the socket's family: an IPv4 address is mapped if `v6`.
pub fn dressed(address: SocketAddr, v6: bool) -> SocketAddr {
    match (v6, canonical(address.ip())) {
        (true, IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        (_, ip) => SocketAddr::new(ip, address.port()),
    }
}

/// Returns the ephemeral port to be tried after `port`.
fn following(port: u16) -> u16 {
    if port >= EPHEMERAL_PORT_LAST {
        EPHEMERAL_PORT_FIRST
    } else {
        port + 1
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.is_loopback()
}

/// Tells whether an address means something else in each namespace.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn loopback(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() {
        Ipv4Addr::LOCALHOST.into()
    } else {
        Ipv6Addr::LOCALHOST.into()
    }
}

fn unspecified(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    }
}

fn same_prefix(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let ((a, _), (b, _)) = (bits(a), bits(b));
    prefix == 0 || (a ^ b).leading_zeros() >= u32::from(prefix.min(128))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::policy::AddressMap;

    fn id(inode: u64) -> NamespaceId {
        NamespaceId::for_test(inode)
    }

    /// Returns a file that nobody reads.
    fn file() -> Arc<OwnedFd> {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    fn names(list: &[(u64, &[&str])]) -> Names {
        let mut names = Names::default();
        for &(inode, addresses) in list {
            names.enter(id(inode), &file());
            hold(&mut names, inode, addresses);
        }
        names
    }

    /// Has a namespace hold these addresses, as if they had been read.
    fn hold(names: &mut Names, inode: u64, addresses: &[&str]) {
        let found = addresses.iter().map(|a| (a.parse().unwrap(), 24)).collect();
        names.learn(id(inode), Some(found), Duration::ZERO, Duration::ZERO);
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn registration(addresses: &[&str]) -> Registration {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        Registration { name: "a".into(), tenant: "t".into(), addresses, network: None }
    }

    #[test]
    fn a_list_is_used_until_it_is_old() {
        let (mut names, now) = (Names::default(), Duration::from_secs(1));
        let (own, other): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap());
        assert!(names.enter(id(1), &file()) && names.enter(id(2), &file()), "nobody has read them");
        assert_eq!(names.unread(id(1), own, false, now), [id(1)]);
        names.learn(id(1), Some([(own, 24)].into_iter().collect()), Duration::ZERO, now);
        assert!(!names.enter(id(1), &file()));
        assert!(names.holds(id(1), own) && !names.holds(id(2), own));
        let unread = |names: &Names, inode, ip, reach, as_of| {
            let mut unread = names.unread(id(inode), ip, reach, as_of);
            unread.sort();
            unread
        };
        assert_eq!(unread(&names, 1, own, false, now), []);
        assert_eq!(unread(&names, 2, own, false, now), [id(2)]);
        let late = now + ADDRESSES_FRESH;
        assert_eq!(unread(&names, 1, own, true, late), [id(1)]);
        assert_eq!(unread(&names, 2, own, true, late), [id(1), id(2)]);
        assert_eq!(unread(&names, 1, other, false, late), [id(1)]);
        assert_eq!(unread(&names, 1, other, true, late), [id(1), id(2)], "whose is it?");
        assert_eq!(unread(&names, 1, Ipv4Addr::LOCALHOST.into(), true, late), []);
        assert_eq!(names.unread_owners(&[own, other], late), [id(1)]);
        // A list that came after the request is late enough for it, however long others take.
        names.learn(id(1), None, Duration::ZERO, late);
        assert_eq!(unread(&names, 1, own, true, late), []);
        assert!(names.holds(id(1), own), "it could not be read: what was known holds");
    }

    #[test]
    fn after_a_long_list_there_is_a_pause() {
        let mut names = Names::default();
        names.enter(id(1), &file());
        let address = |n: u32| (IpAddr::from((0x0a00_0001 + n).to_be_bytes()), 8);
        let (now, took, old) = (Duration::from_secs(1), Duration::from_millis(20), address(0).0);
        let unread = |names: &Names, as_of| !names.unread(id(1), old, false, as_of).is_empty();
        for (count, pause) in
            [(addresses::ADDRESSES_MAX as u32, took * PAUSE_FACTOR), (10, ADDRESSES_FRESH - took)]
        {
            names.learn(id(1), Some((0..count).map(address).collect()), took, now);
            let just = Duration::from_nanos(1);
            assert!(!unread(&names, now + pause - just) && unread(&names, now + pause), "{count}");
            assert!(names.holds(id(1), old), "it was the namespace's");
        }
    }

    fn own(client: u16, slot: u16) -> (ClientId, Slot) {
        (ClientId::new(client), Slot::new(slot))
    }

    impl Names {
        fn bind_alone(
            &mut self,
            id: NamespaceId,
            wanted: SocketAddr,
            v6_only: bool,
            owner: (ClientId, Slot),
        ) -> Result<SocketAddr, Errno> {
            self.bind(id, &Wish { wanted, v6_only, owner, share: None, payer: (TenantId::default(), None) })
        }
    }

    #[test]
    fn binds_only_what_the_namespace_holds() {
        let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2"])]);
        assert_eq!(names.bind_alone(id(1), at("10.0.0.2:5"), false, own(1, 1)), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(names.bind_alone(id(1), at("10.0.0.1:5"), false, own(1, 1)), Ok(at("10.0.0.1:5")));
        assert_eq!(names.bind_alone(id(1), at("0.0.0.0:5"), false, own(1, 2)), Err(Errno::ADDRINUSE));
        assert_eq!(names.bind_alone(id(2), at("0.0.0.0:5"), false, own(2, 1)), Ok(at("0.0.0.0:5")));
        names.unbind(id(1), 5, own(1, 1));
        assert_eq!(names.bind_alone(id(1), at("0.0.0.0:5"), false, own(1, 2)), Ok(at("0.0.0.0:5")));
        assert_eq!(names.bind_alone(id(1), at("[::]:5"), false, own(1, 3)), Err(Errno::ADDRINUSE));
        assert_eq!(names.bind_alone(id(1), at("[::]:5"), true, own(1, 3)), Ok(at("[::]:5")));
        let any = names.bind_alone(id(1), at("127.0.0.1:0"), false, own(1, 4)).unwrap();
        assert!((EPHEMERAL_PORT_FIRST..=EPHEMERAL_PORT_LAST).contains(&any.port()));
    }

    #[test]
    fn loopback_stays_at_home_and_addresses_cross() {
        let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2", "fd00::2"])]);
        names.bind_alone(id(2), at("0.0.0.0:80"), false, own(2, 1)).unwrap();
        assert_eq!(names.listener(id(1), at("10.0.0.2:80")), Err(Errno::CONNREFUSED), "not listening");
        names.listen(id(2), 80, own(2, 1));
        assert_eq!(names.listener(id(1), at("10.0.0.2:80")), Ok(own(2, 1)));
        assert_eq!(names.listener(id(1), at("[::ffff:10.0.0.2]:80")), Ok(own(2, 1)));
        assert_eq!(names.listener(id(1), at("127.0.0.1:80")), Err(Errno::CONNREFUSED));
        assert_eq!(names.listener(id(2), at("127.0.0.1:80")), Ok(own(2, 1)));
        assert_eq!(names.listener(id(1), at("10.0.0.9:80")), Err(Errno::HOSTUNREACH));
        assert_eq!(names.listener(id(1), at("[fd00::2]:80")), Err(Errno::CONNREFUSED), "IPv4 only");
        assert_eq!(names.local_for(id(1), at("10.0.0.2:80").ip()).ip(), at("10.0.0.1:0").ip());
    }

    #[test]
    fn listeners_of_one_user_share_a_port_and_take_turns() {
        let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2"])]);
        let wanted = at("0.0.0.0:80");
        let wish = |client, share| Wish {
            wanted,
            v6_only: false,
            owner: own(client, 1),
            share: Some(share),
            payer: (TenantId::default(), None),
        };
        names.bind(id(1), &wish(1, 7)).unwrap();
        names.bind(id(1), &wish(2, 7)).unwrap();
        let others = names.bind(id(1), &wish(3, 8));
        assert_eq!(others, Err(Errno::ADDRINUSE), "another user");
        assert_eq!(
            names.bind_alone(id(1), wanted, false, own(4, 1)),
            Err(Errno::ADDRINUSE),
            "does not share"
        );
        names.listen(id(1), 80, own(1, 1));
        names.listen(id(1), 80, own(2, 1));
        let mut next = || names.listener(id(2), at("10.0.0.1:80")).unwrap().0;
        assert_eq!([next(), next(), next(), next()], [1, 2, 1, 2].map(ClientId::new));
        names.set_listening(id(1), 80, own(1, 1), Takes::None);
        let mut next = || names.listener(id(2), at("10.0.0.1:80")).unwrap().0;
        assert_eq!([next(), next()], [2, 2].map(ClientId::new));
    }

    #[test]
    fn a_stolen_address_gains_nothing() {
        let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1"])]);
        names.bind_alone(id(1), at("10.0.0.1:80"), false, own(1, 1)).unwrap();
        names.listen(id(1), 80, own(1, 1));
        assert_eq!(names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)), Err(Errno::ADDRNOTAVAIL));
        names.bind_alone(id(2), at("0.0.0.0:80"), false, own(2, 2)).unwrap();
        names.listen(id(2), 80, own(2, 2));
        assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(1, 1)));
        names.leave(id(1));
        names.unbind(id(1), 80, own(1, 1));
        assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(2, 2)));
    }

    #[test]
    fn registered_addresses_are_taken() {
        let mut names = names(&[(1, &["10.0.0.1", "10.0.0.7"]), (2, &["10.0.0.1"])]);
        names.register(id(1), registration(&["10.0.0.1"])).unwrap();
        assert_eq!(names.register(id(2), registration(&["10.0.0.1"])), Err(Errno::ADDRINUSE));
        assert_eq!(names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(names.bind_alone(id(1), at("10.0.0.7:80"), false, own(1, 1)), Err(Errno::ADDRNOTAVAIL));
        assert!(names.bind_alone(id(1), at("10.0.0.1:80"), false, own(1, 1)).is_ok());
    }

    #[test]
    fn an_address_that_moved_is_the_new_holders_at_once() {
        let mut names = names(&[(1, &[]), (2, &[])]);
        hold(&mut names, 1, &["10.0.0.1"]);
        names.bind_alone(id(1), at("10.0.0.1:80"), false, own(1, 1)).unwrap();
        hold(&mut names, 1, &[]);
        hold(&mut names, 2, &["10.0.0.1"]);
        names.bind_alone(id(2), at("0.0.0.0:81"), false, own(2, 1)).unwrap();
        names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 2)).unwrap();
        names.listen(id(2), 80, own(2, 2));
        assert_eq!(names.listener(id(1), at("10.0.0.1:80")), Ok(own(2, 2)));
        assert_eq!(names.bind_alone(id(1), at("10.0.0.1:82"), false, own(1, 2)), Err(Errno::ADDRNOTAVAIL));
        // The address moves back, registered.
        hold(&mut names, 2, &[]);
        hold(&mut names, 1, &["10.0.0.1"]);
        names.register(id(1), registration(&["10.0.0.1"])).unwrap();
        names.bind_alone(id(1), at("10.0.0.1:82"), false, own(1, 2)).unwrap();
    }

    #[test]
    fn what_is_registered_or_cannot_be_read_is_not_given_up() {
        let mut names = names(&[(1, &[]), (2, &[])]);
        let refused = Err(Errno::ADDRNOTAVAIL);
        hold(&mut names, 1, &["10.0.0.1"]);
        hold(&mut names, 2, &["10.0.0.1"]);
        names.bind_alone(id(1), at("10.0.0.1:80"), false, own(1, 1)).unwrap();
        names.learn(id(1), None, Duration::ZERO, Duration::ZERO);
        assert_eq!(names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)), refused, "unreadable");
        names.register(id(1), registration(&["10.0.0.1"])).unwrap();
        hold(&mut names, 1, &[]);
        assert_eq!(names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)), refused, "registered");
        names.leave(id(1));
        names.bind_alone(id(2), at("10.0.0.1:80"), false, own(2, 1)).unwrap();
    }

    #[test]
    fn two_networks_use_the_same_addresses() {
        let mut names =
            names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.2"]), (3, &["10.0.0.1"]), (4, &["10.0.0.2"])]);
        let (red, blue) = (NetworkId::at(1), NetworkId::at(2));
        for (inode, network) in [(1, red), (2, red), (3, blue), (4, blue)] {
            assert!(names.set_network(id(inode), network));
        }
        for inode in [1, 3] {
            names.bind_alone(id(inode), at("10.0.0.1:80"), false, own(inode as u16, 1)).unwrap();
            names.listen(id(inode), 80, own(inode as u16, 1));
        }
        assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(1, 1)));
        assert_eq!(names.listener(id(4), at("10.0.0.1:80")), Ok(own(3, 1)));
        names.register(id(1), registration(&["10.0.0.1"])).unwrap();
        names.register(id(3), registration(&["10.0.0.1"])).unwrap();
        // A namespace that moves comes after those that are there. Its former network finds it no more.
        assert!(names.set_network(id(3), red) && !names.set_network(id(3), red));
        assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(1, 1)));
        assert_eq!(names.listener(id(4), at("10.0.0.1:80")), Err(Errno::HOSTUNREACH));
        assert!(!names.holds(id(3), "10.0.0.1".parse().unwrap()));
        names.leave(id(1));
        assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(3, 1)));
    }

    fn maps(list: &[(u32, &str, u32, &str)]) -> Maps<NetworkId> {
        let map = |&(from, prefix, to, at): &(u32, &str, u32, &str)| AddressMap {
            from: from.to_string(),
            prefix: prefix.parse().unwrap(),
            to: to.to_string(),
            at: at.parse().unwrap(),
        };
        let list: Vec<_> = list.iter().map(map).collect();
        Maps::new(&list, |name| NetworkId::at(name.parse().unwrap()))
    }

    #[test]
    fn a_mapped_address_means_one_of_the_other_network() {
        let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.0.0.1", "10.9.0.1"]), (3, &["10.0.0.7"])]);
        for (inode, network) in [(1, 1), (2, 2), (3, 2)] {
            names.set_network(id(inode), NetworkId::at(network));
        }
        // The address is network 2's own before it is mapped.
        assert!(names.holds(id(2), "10.9.0.1".parse().unwrap()));
        for inode in [1, 2] {
            names.bind_alone(id(inode), at("10.0.0.1:80"), false, own(inode as u16, 1)).unwrap();
            names.listen(id(inode), 80, own(inode as u16, 1));
        }
        let both = [(2, "10.9.0.0/24", 1, "10.0.0.0/24"), (1, "10.8.0.0/30", 2, "10.0.0.0/30")];
        names.set_maps(maps(&both));
        assert_eq!(names.listener(id(2), at("10.9.0.1:80")), Ok(own(1, 1)));
        assert_eq!(names.listener(id(2), at("[::ffff:10.9.0.1]:80")), Ok(own(1, 1)));
        assert_eq!(names.listener(id(2), at("10.0.0.1:80")), Ok(own(2, 1)));
        assert_eq!(names.listener(id(1), at("10.8.0.1:80")), Ok(own(2, 1)));
        assert_eq!(names.listener(id(2), at("10.9.0.2:80")), Err(Errno::HOSTUNREACH));
        // The listener takes connections from other networks alone.
        names.set_listening(id(1), 80, own(1, 1), Takes::OtherNetworks);
        assert_eq!(names.listener(id(2), at("10.9.0.1:80")), Ok(own(1, 1)));
        assert_eq!(names.listener(id(1), at("10.0.0.1:80")), Err(Errno::CONNREFUSED), "the kernel brings it");
        names.set_listening(id(1), 80, own(1, 1), Takes::None);
        assert_eq!(names.listener(id(2), at("10.9.0.1:80")), Err(Errno::CONNREFUSED));
        names.listen(id(1), 80, own(1, 1));
        // A mapped address is no namespace's own.
        assert!(!names.holds(id(2), "10.9.0.1".parse().unwrap()));
        assert_eq!(names.local_for(id(2), at("10.9.0.1:80").ip()).ip(), at("10.0.0.1:0").ip());
        let seen =
            |names: &Names, viewer, owner, ip: &str| names.seen(id(viewer), id(owner), ip.parse().unwrap());
        assert_eq!(seen(&names, 1, 2, "10.0.0.1"), Some("10.8.0.1".parse().unwrap()));
        assert_eq!(seen(&names, 1, 3, "10.0.0.7"), None, "beyond the map back");
        assert!(names.local_for(id(3), at("10.9.0.1:80").ip()).ip().is_unspecified());
        // All is as before without the maps.
        names.set_maps(Maps::default());
        assert_eq!(names.listener(id(2), at("10.9.0.1:80")), Err(Errno::CONNREFUSED), "it is its own again");
        assert!(names.holds(id(2), "10.9.0.1".parse().unwrap()));
    }

    #[test]
    fn a_registered_address_yields_to_a_map_and_comes_back() {
        let mut names = names(&[(1, &["10.0.0.1"]), (2, &["10.9.0.1"])]);
        names.set_network(id(1), NetworkId::at(1));
        names.set_network(id(2), NetworkId::at(2));
        names.register(id(2), registration(&["10.9.0.1"])).unwrap();
        names.set_maps(maps(&[(2, "10.9.0.0/24", 1, "10.0.0.0/24")]));
        let ip = "10.9.0.1".parse().unwrap();
        assert_eq!(names.namespace_of(id(2), ip), Ok(id(1)));
        assert_eq!(names.register(id(2), registration(&["10.9.0.1"])), Err(Errno::ADDRNOTAVAIL));
        names.set_maps(Maps::default());
        assert_eq!(names.namespace_of(id(2), ip), Ok(id(2)));
    }

    proptest::proptest! {
        /// A lookup within a network finds the same as a driver for that network alone.
        #[test]
        fn a_network_is_a_driver_of_its_own(
            held in proptest::collection::vec((0u32..3, proptest::collection::btree_set(1u8..5, 0..3)), 1..7),
            moves in proptest::collection::vec((0usize..7, 0u32..3), 0..6),
        ) {
            let ip = |last: u8| IpAddr::from([10, 0, 0, last]);
            let list = |set: &std::collections::BTreeSet<u8>| set.iter().map(|&last| (ip(last), 24)).collect();
            let mut all = Names::default();
            let mut network: Vec<u32> = Vec::new();
            // The order in which namespaces came into the network that they are in.
            let mut order: Vec<usize> = Vec::new();
            for (index, (net, addresses)) in held.iter().enumerate() {
                let inode = index as u64 + 1;
                all.enter(id(inode), &file());
                all.set_network(id(inode), NetworkId::at(*net));
                all.learn(id(inode), Some(list(addresses)), Duration::ZERO, Duration::ZERO);
                all.claim(id(inode));
                network.push(*net);
                order.push(index);
            }
            for &(index, net) in moves.iter().filter(|(index, _)| *index < held.len()) {
                if all.set_network(id(index as u64 + 1), NetworkId::at(net)) {
                    network[index] = net;
                    order.retain(|&other| other != index);
                    order.push(index);
                }
                // An address that is free now goes to the namespaces that wait for it, in the order in which they came.
                for &other in &order {
                    all.claim(id(other as u64 + 1));
                }
            }
            for net in 0..3u32 {
                let mut alone = Names::default();
                let members: Vec<usize> = order.iter().copied().filter(|&index| network[index] == net).collect();
                for &index in &members {
                    alone.enter(id(index as u64 + 1), &file());
                    alone.learn(id(index as u64 + 1), Some(list(&held[index].1)), Duration::ZERO, Duration::ZERO);
                    alone.claim(id(index as u64 + 1));
                }
                for &index in &members {
                    for last in 1..5 {
                        let found = all.namespace_of(id(index as u64 + 1), ip(last));
                        let expected = alone.namespace_of(id(index as u64 + 1), ip(last));
                        proptest::prop_assert_eq!(found.is_ok(), expected.is_ok());
                        // The first of several holders to claim an address owns it. The owner is in the network and holds the address.
                        if let Ok(owner) = found {
                            let owner = owner.number() as usize - 1;
                            proptest::prop_assert!(network[owner] == net && held[owner].1.contains(&last));
                        }
                    }
                }
            }
        }
    }
}
