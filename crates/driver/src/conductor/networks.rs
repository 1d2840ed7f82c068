//! Networks of the policy: the network of each namespace, and the effect of a change on connections.
//!
//! A namespace is in the network of the container registered in it, or of the first of its clients that the policy puts into one. The
//! clients of the host's namespace put it into none. Numbers of networks are kept by name. Another policy thus moves no namespace whose
//! network has the same name.
use super::connections::Mapped;
use super::names::{canonical, NetworkId};
use super::selectors::{Facts, Selectors};
use super::Conductor;
use crate::admin::{MapReport, NetworkReport};
use crate::door::Registration;
use crate::hash::HashMap;
use crate::identity::{Identity, NamespaceId};
use crate::ids::{ConnectionId, TenantId};
use crate::metrics::Metrics;
use crate::policy::{Maps, Member, Network, NetworkPlaces, Policy};
use crate::standing::Place;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Numbers of networks that any policy had.
#[derive(Debug, Default)]
pub struct Networks {
    numbers: HashMap<String, NetworkId>,
    /// Names by number less one.
    names: Vec<String>,
}

impl Networks {
    /// Returns the name of a network. `None`: the common one.
    pub fn name(&self, id: NetworkId) -> Option<&str> {
        id.number().checked_sub(1).and_then(|at| self.names.get(at as usize)).map(|name| &**name)
    }

    /// Returns the number of the network of this name, new or known.
    pub fn number(&mut self, name: &str) -> NetworkId {
        if let Some(&known) = self.numbers.get(name) {
            return known;
        }
        self.names.push(name.to_owned());
        let number = NetworkId::at(self.names.len() as u32);
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

impl Conductor {
    /// Returns the network that the policy has for a member.
    fn network_by(&mut self, places: &NetworkPlaces, member: &Member<'_>) -> Option<NetworkId> {
        let name = &places.find(&self.tenants.policy().networks, member)?.name;
        Some(self.networks.number(name))
    }

    fn look_at_places(&self) -> NetworkPlaces {
        NetworkPlaces::look(&self.tenants.policy().networks)
    }

    fn network_of_client(&mut self, identity: &Identity, tenant: TenantId) -> Option<NetworkId> {
        let (namespace, tenant) = (identity.namespace, self.tenants.name(tenant).to_owned());
        let said = self.names.registration(namespace).cloned();
        let network = said.as_ref().and_then(|said| said.network.as_deref());
        let (cgroup, container) = (identity.cgroup.as_deref(), said.as_ref().map(|said| &*said.name));
        let places = self.look_at_places();
        self.network_by(&places, &Member { namespace, cgroup, container, tenant: &tenant, network })
    }

    fn network_of_container(
        &mut self,
        places: &NetworkPlaces,
        namespace: NamespaceId,
        said: &Registration,
    ) -> Option<NetworkId> {
        let name = &*said.name;
        let facts = Facts { namespace, cgroup: None, container: Some((name, &said.tenant)) };
        let tenant = self.tenants.name(self.tenants.find(&facts)).to_owned();
        let network = said.network.as_deref();
        let container = Some(name);
        self.network_by(places, &Member { namespace, cgroup: None, container, tenant: &tenant, network })
    }

    /// Puts the namespace of a new client into the client's network, unless it is in one.
    pub(super) fn enter_network(&mut self, identity: &Identity, place: Place, tenant: TenantId) {
        if self.tenants.policy().networks.is_empty() || place.at_host {
            return;
        }
        if self.names.network(identity.namespace).is_common() {
            if let Some(network) = self.network_of_client(identity, tenant) {
                self.move_to(identity.namespace, network);
            }
        }
    }

    /// Puts a namespace into the network of a container that is about to be registered there.
    pub(super) fn enter_container(&mut self, namespace: NamespaceId, said: &Registration) {
        if !self.tenants.policy().networks.is_empty() {
            let places = self.look_at_places();
            if let Some(network) = self.network_of_container(&places, namespace, said) {
                self.move_to(namespace, network);
            }
        }
    }

    fn move_to(&mut self, namespace: NamespaceId, network: NetworkId) {
        if self.names.set_network(namespace, network) {
            self.tell_of_space(namespace);
            let cut = self.cut_apart();
            Metrics::add(&self.metrics.connections_cut, cut);
        }
    }

    /// Returns the networks, by name, of the namespaces that a policy puts into one.
    fn network_names<'a>(&self, policy: &'a Policy) -> BTreeMap<NamespaceId, &'a str> {
        let mut found = BTreeMap::new();
        if policy.networks.is_empty() {
            return found;
        }
        let (tenants, files) = (Selectors::new(policy), NetworkPlaces::look(&policy.networks));
        let tenant = |facts: &Facts<'_>| self.tenants.name(self.tenants.find_by(policy, &tenants, facts));
        let network = |member: &Member<'_>| Some(&*files.find(&policy.networks, member)?.name);
        for (id, _, said) in self.names.known() {
            let Some(said) = said else { continue };
            let facts = Facts { namespace: id, cgroup: None, container: Some((&said.name, &said.tenant)) };
            let member = Member {
                namespace: id,
                cgroup: None,
                container: Some(&said.name),
                tenant: tenant(&facts),
                network: said.network.as_deref(),
            };
            found.extend(network(&member).map(|network| (id, network)));
        }
        let clients = self.clients.iter().filter(|(_, client)| client.is_present() && !client.place.at_host);
        let mut clients: Vec<_> = clients.collect();
        clients.sort_unstable_by_key(|(_, client)| client.serial);
        for (_, client) in clients {
            let identity = &client.identity;
            let (namespace, cgroup, home) =
                (identity.namespace, identity.cgroup.as_deref(), self.home_of(identity));
            if found.contains_key(&namespace) {
                continue;
            }
            let container = self.names.registration(home).map(|r| (&*r.name, &*r.tenant));
            let tenant = tenant(&Facts { namespace: home, cgroup, container });
            let member = Member { namespace, cgroup, container: None, tenant, network: None };
            found.extend(network(&member).map(|network| (namespace, network)));
        }
        found
    }

    /// Returns the networks of the namespaces that a policy puts into one.
    pub(super) fn networks_by(&mut self, policy: &Policy) -> BTreeMap<NamespaceId, NetworkId> {
        let names = self.network_names(policy);
        names.into_iter().map(|(id, name)| (id, self.networks.number(name))).collect()
    }

    /// Returns the numbers of a policy's networks, by name.
    pub(super) fn number_networks<'a>(&mut self, policy: &'a Policy) -> HashMap<&'a str, u32> {
        let names = policy.networks.iter().map(|network| &*network.name);
        names.map(|name| (name, self.networks.number(name).number())).collect()
    }

    /// Determines the networks of all namespaces anew.
    pub(super) fn place_namespaces(&mut self) {
        let policy = self.tenants.policy();
        let names = self.network_names(policy);
        let found: BTreeMap<_, _> =
            names.into_iter().map(|(id, name)| (id, self.networks.number(name))).collect();
        let maps = Maps::new(&policy.maps, |name| self.networks.number(name));
        let known: Vec<_> = self.names.known().map(|(id, ..)| id).collect();
        for id in known {
            if self.names.set_network(id, found.get(&id).copied().unwrap_or_default()) {
                self.tell_of_space(id);
            }
        }
        self.names.set_maps(maps);
    }

    /// Tells whether the two names of an open connection no longer mean its two ends. Its namespaces are in different networks then, or a
    /// map has come or gone.
    pub(super) fn is_astray(&self, index: ConnectionId) -> bool {
        let Some(connection) = self.connection(index).filter(|connection| !connection.is_cut()) else {
            return false;
        };
        let [from, to] = connection.owners().map(|side| Some(self.client(side?.0)?.identity.namespace));
        let (Some(from), Some(to)) = (from, to) else { return false };
        if from == to {
            return false;
        }
        let reached = canonical(connection.reached.ip());
        let [there, back] = [from, to].map(|id| self.names.network(id));
        let means = |id, name| {
            let (network, ip) = self.names.place(id, name);
            (network, canonical(ip))
        };
        match connection.mapped {
            None => means(from, reached) != (back, reached),
            Some(Mapped { name, own, seen }) => {
                means(from, name) != (back, reached) || means(to, seen) != (there, canonical(own))
            }
        }
    }

    /// Returns the addresses by which the two ends of a connection to `to` know each other, if `to` is in another network.
    ///
    /// # Errors
    /// `EHOSTUNREACH` if the other network has no address for the connecting side.
    pub(super) fn mapped(&self, from: NamespaceId, to: IpAddr, own: IpAddr) -> Result<Option<Mapped>, Errno> {
        if !self.names.is_mapped(from, to) {
            return Ok(None);
        }
        let (network, _) = self.names.place(from, to);
        let seen = self.names.seen_in(network, from, own).ok_or(Errno::HOSTUNREACH)?;
        Ok(Some(Mapped { name: to, own, seen }))
    }

    /// Ends connections between different networks that no map joins. Returns their number.
    pub(super) fn cut_apart(&mut self) -> u64 {
        let ends: Vec<_> = self.connections.ids().filter(|&id| self.is_astray(id)).collect();
        ends.iter().for_each(|&index| self.cut(index));
        ends.len() as u64
    }

    /// Checks that the policy has the network that a container asks for, and that the container's addresses are in a range of that network.
    ///
    /// # Errors
    /// A sentence that names the remedy.
    pub(super) fn check_network(&self, said: &Registration) -> Result<(), String> {
        let Some(name) = &said.network else { return Ok(()) };
        let ranges = &self.network_of_policy(name)?.ranges;
        let outside = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => !ranges.iter().any(|range| range.contains(ip)),
            // An IPv6 address follows from the IPv4 address.
            IpAddr::V6(_) => false,
        };
        match said.addresses.iter().find(|ip| outside(ip)) {
            Some(ip) => Err(format!("{ip} is not in a range of network {name}")),
            None => Ok(()),
        }
    }

    fn network_of_policy(&self, name: &str) -> Result<&Network, String> {
        let networks = &self.tenants.policy().networks;
        networks.iter().find(|network| network.name == name).ok_or_else(|| {
            let known = networks.iter().map(|network| &*network.name).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none".to_owned() } else { known };
            format!("the policy in force has no network '{name}'; add [[network]] name = \"{name}\" with a range (it has: {known})")
        })
    }

    /// Reports a network's ranges and maps to `pd run --network`.
    ///
    /// # Errors
    /// A sentence that names the remedy.
    pub(super) fn network_report(&self, name: &str) -> Result<NetworkReport, String> {
        let network = self.network_of_policy(name)?;
        if network.ranges.is_empty() {
            return Err(format!(
                "network {name} has no range; add one to its [[network]], like range = \"10.0.0.0/24\""
            ));
        }
        let maps = self.tenants.policy().maps.iter().filter(|map| map.from == name);
        let maps = maps.map(|map| MapReport {
            prefix: map.prefix.to_string(),
            to: map.to.clone(),
            at: map.at.to_string(),
        });
        let ranges = network.ranges.iter().map(ToString::to_string).collect();
        Ok(NetworkReport { ranges, maps: maps.collect() })
    }

    /// Returns the name of a namespace's network. `None`: the common one.
    pub(super) fn network_name(&self, namespace: NamespaceId) -> Option<&str> {
        let network = self.names.network(namespace);
        self.networks
            .names
            .iter()
            .find(|name| self.networks.numbers.get(*name) == Some(&network))
            .map(|name| &**name)
    }
}
