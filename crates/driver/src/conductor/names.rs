//! Addresses and ports of network namespaces, and the listeners there.
//!
//! A client may bind only addresses that its network namespace holds. An address other than loopback belongs to the first namespace that
//! claims it. A container that gives itself a neighbour's address thus gains nothing. A namespace registered by `pd run` claims its
//! addresses before it runs anything.
//!
//! A namespace is in one network, within which an address means its owner: two networks may use the same addresses.
mod bindings;
mod ports;
mod takeover;

pub use bindings::{Takes, Wish};
pub use takeover::NamesState;

use crate::addresses::{self, Addresses};
use crate::door::Registration;
use crate::hash::FastMap as HashMap;
use crate::identity::NamespaceId;
use crate::messages::Payer;
use crate::policy::Maps;
use pd_abi::limits::EPHEMERAL_PORT_FIRST;
use ports::Ports;
use rustix::io::Errno;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Age from which on a namespace's address list is read again for a request.
const ADDRESSES_FRESH: Duration = Duration::from_millis(50);
/// Pause after a long list, in multiples of the time that reading it took. Reading takes a tenth of a core at most.
const PAUSE_FACTOR: u32 = 9;

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

    /// Records the addresses that a namespace holds. Reading them took the time `took`. `None`: they could not be read, and the previous ones
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
    #[cfg(any(test, fuzzing, feature = "testing"))]
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

    /// Tells whether a namespace is in a network of the policy's, to which a map can lead.
    pub fn is_in_a_network(&self, id: NamespaceId) -> bool {
        self.network(id) != NetworkId::default()
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

fn is_loopback(ip: IpAddr) -> bool {
    ip.is_loopback()
}

/// Tells whether an address means something else in each namespace.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests;
