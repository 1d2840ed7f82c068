//! Addresses and ports as another driver goes on with them.
use super::bindings::{Binding, Takes};
use super::{Names, Namespace, NetworkId};
use crate::addresses::ADDRESSES_MAX;
use crate::door::Registration;
use crate::identity::NamespaceId;
use crate::ids::{ClientId, Slot};
use crate::messages::Payer;
use crate::peer::is_namespace;
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use pd_abi::limits::{EPHEMERAL_PORT_FIRST, EPHEMERAL_PORT_LAST};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamesState {
    /// Network namespaces.
    pub spaces: Vec<SpaceState>,
    bindings: Vec<BindingState>,
}

/// A network namespace.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceState {
    /// Id of the namespace.
    pub id: NamespaceId,
    file: Fd,
    /// Name of its network, if it is in one.
    pub network: Option<String>,
    addresses: Vec<(IpAddr, u8)>,
    /// Addresses that it was the first to claim.
    owned: Vec<IpAddr>,
    registration: Option<Registration>,
    next_port: u16,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindingState {
    space: NamespaceId,
    port: u16,
    ip: IpAddr,
    v6_only: bool,
    client: ClientId,
    slot: Slot,
    takes: Takes,
    share: Option<u32>,
}

impl Names {
    /// Returns the state that another driver goes on with. `network` returns the name of a network.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(
        &self,
        pack: &mut Pack,
        network: impl Fn(NetworkId) -> Option<String>,
    ) -> Result<NamesState, Hindrance> {
        let mut spaces = Vec::with_capacity(self.namespaces.len());
        for (&id, namespace) in &self.namespaces {
            let owned = self.owners.iter().filter(|(_, owner)| **owner == id);
            spaces.push(SpaceState {
                id,
                file: pack.add(&*namespace.file)?,
                network: network(namespace.network),
                addresses: namespace.addresses.iter().map(|(ip, prefix)| (*ip, *prefix)).collect(),
                owned: owned.map(|((_, ip), _)| *ip).collect(),
                registration: namespace.registration.clone(),
                next_port: namespace.next_port,
            });
        }
        let bindings = self.ports.iter().flat_map(|(space, ports)| {
            let all = ports.iter();
            all.map(|(port, binding)| {
                let Binding { ip, v6_only, client, slot, takes, share, payer: _ } = *binding;
                BindingState { space: *space, port, ip, v6_only, client, slot, takes, share }
            })
        });
        Ok(NamesState { spaces, bindings: bindings.collect() })
    }

    /// Takes over a namespace that another driver has given. The namespace has no users yet.
    ///
    /// # Errors
    /// The fault in it.
    pub fn resume_space(
        &mut self,
        state: SpaceState,
        network: NetworkId,
        fds: &mut Unpacked,
    ) -> Result<(), Wrong> {
        let SpaceState { id, file, network: _, addresses, owned, registration, next_port } = state;
        let file = fds.take(file)?;
        let is_it = is_namespace(&file, id);
        Wrong::unless(is_it && !self.namespaces.contains_key(&id), || {
            "a network namespace is another, or there twice".to_owned()
        })?;
        let few = addresses.len() <= ADDRESSES_MAX && owned.len() <= 2 * ADDRESSES_MAX;
        Wrong::unless(few, || "too many addresses of a network namespace".to_owned())?;
        for &ip in &owned {
            let owner = *self.owners.entry((network, ip)).or_insert(id);
            Wrong::unless(owner == id, || format!("{ip} has two owners"))?;
        }
        let namespace = Namespace {
            users: 0,
            network,
            file: Arc::new(file),
            addresses: addresses.into_iter().collect(),
            read_at: None,
            resume_at: None,
            claimed_at: None,
            registration,
            next_port: next_port.clamp(EPHEMERAL_PORT_FIRST, EPHEMERAL_PORT_LAST),
        };
        self.namespaces.insert(id, namespace);
        self.changes += 1;
        Ok(())
    }

    /// Forgets namespaces that have no users after all.
    pub fn forget_empty(&mut self) {
        let empty: Vec<_> = self.namespaces.iter().filter(|(_, n)| n.users == 0).map(|(id, _)| *id).collect();
        for id in empty {
            self.namespaces.remove(&id);
            self.owners.retain(|_, owner| *owner != id);
        }
    }

    /// Takes over the bindings that another driver has given. `of` returns the namespace and the payer of a client that has such a bound
    /// socket.
    ///
    /// # Errors
    /// The fault in them.
    pub fn resume_bindings(
        &mut self,
        state: NamesState,
        of: impl Fn(ClientId, Slot, u16) -> Option<(NamespaceId, Payer)>,
    ) -> Result<(), Wrong> {
        for state in state.bindings {
            let BindingState { space, port, ip, v6_only, client, slot, takes, share } = state;
            let wrong = || Wrong::of(format!("port {port} of socket {slot} of client {client}"));
            let known = of(client, slot, port).filter(|(id, _)| *id == space && self.knows(*id));
            let (_, payer) = known.ok_or_else(wrong)?;
            let binding = Binding { ip, v6_only, client, slot, takes, share, payer };
            let ports = self.ports.entry(space).or_default();
            if ports.at(port).is_some_and(|list| list.iter().any(|b| (b.client, b.slot) == (client, slot))) {
                return Err(wrong());
            }
            ports.bind(port, binding).map_err(|_| wrong())?;
            *self.paid.entry(payer).or_default() += 1;
        }
        Ok(())
    }
}
