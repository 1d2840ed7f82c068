//! Networks of the policy: which one each network namespace is in, and what becomes of connections when that changes.
//!
//! A namespace is in the network of the container registered in it, or of the first of its clients that the policy puts into one. The host's
//! namespace is in none by its clients. Numbers of networks are kept by name, so that another policy moves nobody whose network has the same name.
use super::names::NetworkId;
use super::tenants::Facts;
use super::Conductor;
use crate::hash::HashMap;
use crate::identity::{Identity, NamespaceId};
use crate::ids::{ConnectionId, TenantId};
use crate::metrics::Metrics;
use crate::policy::{Member, NetworkPlaces};
use crate::standing::Place;
use std::collections::BTreeMap;

/// Numbers of networks that any policy had.
#[derive(Debug, Default)]
pub struct Networks {
    numbers: HashMap<String, NetworkId>,
    /// By number less one.
    names: Vec<String>,
}

impl Networks {
    fn number(&mut self, name: &str) -> NetworkId {
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
    /// The network that the policy has for somebody.
    fn network_by(&mut self, places: &NetworkPlaces, member: &Member<'_>) -> Option<NetworkId> {
        let name = &places.find(&self.tenants.policy().networks, member)?.name;
        Some(self.networks.number(name))
    }

    fn look_at_places(&self) -> NetworkPlaces {
        NetworkPlaces::look(&self.tenants.policy().networks)
    }

    fn network_of_client(&mut self, identity: &Identity, tenant: TenantId) -> Option<NetworkId> {
        let (namespace, tenant) = (identity.namespace, self.tenants.name(tenant).to_owned());
        let container = self.names.registration(namespace).map(|registration| registration.name.clone());
        let (cgroup, container) = (identity.cgroup.as_deref(), container.as_deref());
        let places = self.look_at_places();
        self.network_by(&places, &Member { namespace, cgroup, container, tenant: &tenant })
    }

    fn network_of_container(
        &mut self,
        places: &NetworkPlaces,
        namespace: NamespaceId,
        name: &str,
        tenant: &str,
    ) -> Option<NetworkId> {
        let facts = Facts { namespace, cgroup: None, container: Some((name, tenant)) };
        let tenant = self.tenants.name(self.tenants.find(&facts)).to_owned();
        self.network_by(places, &Member { namespace, cgroup: None, container: Some(name), tenant: &tenant })
    }

    /// A client has come to a namespace.
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

    /// A container is about to be registered in a namespace.
    pub(super) fn enter_container(&mut self, namespace: NamespaceId, name: &str, tenant: &str) {
        if !self.tenants.policy().networks.is_empty() {
            let places = self.look_at_places();
            if let Some(network) = self.network_of_container(&places, namespace, name, tenant) {
                self.move_to(namespace, network);
            }
        }
    }

    fn move_to(&mut self, namespace: NamespaceId, network: NetworkId) {
        if self.names.set_network(namespace, network) {
            let cut = self.cut_apart();
            Metrics::add(&self.metrics.connections_cut, cut);
        }
    }

    /// Finds out anew which networks namespaces are in.
    pub(super) fn place_namespaces(&mut self) {
        let mut found = BTreeMap::new();
        if !self.tenants.policy().networks.is_empty() {
            let places = self.look_at_places();
            let containers: Vec<_> =
                self.names.known().filter_map(|(id, _, said)| Some((id, said?.clone()))).collect();
            for (id, said) in containers {
                found.extend(
                    self.network_of_container(&places, id, &said.name, &said.tenant)
                        .map(|network| (id, network)),
                );
            }
            let mut clients: Vec<_> = self.clients.iter().filter(|(_, client)| client.is_present()).collect();
            clients.sort_unstable_by_key(|(_, client)| client.serial);
            let ids: Vec<_> =
                clients.into_iter().filter(|(_, c)| !c.place.at_host).map(|(id, _)| id).collect();
            for id in ids {
                let Some(client) = self.clients.get(id) else { continue };
                let namespace = client.identity.namespace;
                if found.contains_key(&namespace) {
                    continue;
                }
                let (cgroup, tenant) = (client.identity.cgroup.clone(), client.tenant);
                let (cgroup, tenant) = (cgroup.as_deref(), self.tenants.name(tenant).to_owned());
                let member = Member { namespace, cgroup, container: None, tenant: &tenant };
                found.extend(self.network_by(&places, &member).map(|network| (namespace, network)));
            }
        }
        let known: Vec<_> = self.names.known().map(|(id, ..)| id).collect();
        for id in known {
            self.names.set_network(id, found.get(&id).copied().unwrap_or_default());
        }
    }

    /// Tells whether two namespaces are in different networks.
    pub(super) fn are_apart(&self, a: NamespaceId, b: NamespaceId) -> bool {
        a != b && self.names.network(a) != self.names.network(b)
    }

    /// Ends connections between different networks. Returns how many.
    pub(super) fn cut_apart(&mut self) -> u64 {
        let spans = |this: &Self, index: ConnectionId| {
            let connection = this.connection(index).filter(|connection| !connection.cut)?;
            let [from, to] = connection.sides.map(|side| this.client(side?.0));
            Some(this.are_apart(from?.identity.namespace, to?.identity.namespace))
        };
        let ends: Vec<_> = self.connections.ids().filter(|&id| spans(self, id) == Some(true)).collect();
        ends.iter().for_each(|&index| self.cut(index));
        ends.len() as u64
    }

    /// The name of a client's network; none: the common one.
    pub(super) fn network_name(&self, namespace: NamespaceId) -> Option<&str> {
        let network = self.names.network(namespace);
        self.networks
            .names
            .iter()
            .find(|name| self.networks.numbers.get(*name) == Some(&network))
            .map(|name| &**name)
    }
}
