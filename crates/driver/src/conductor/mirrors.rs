//! Mirrors of connections, and the connections that each shows. Movers copy, and the agent of pipes shows ([`crate::mirror`]).
//!
//! A connection that a mirror shows is offloaded, because bytes in direct rings pass no mover. A connection of AF_UNIX has no addresses,
//! and is not shown.
use super::{Conductor, Connection, SocketState};
use crate::ids::{payer, ClientId, ConnectionId, Payer, Side, Slot, TenantId};
use crate::messages::{ToMover, DRIVER};
use crate::mirror::{Copies, Showing, Subject};
use std::net::SocketAddr;
use std::sync::Arc;

/// Most mirrors of connections in a driver.
const MIRRORS_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Mirrors(Vec<Mirror>);

#[derive(Debug)]
struct Mirror {
    /// Name of its port.
    name: String,
    copies: Arc<Copies>,
    /// Tenant whose connections it shows. `None`: all tenants.
    tenant: Option<TenantId>,
}

impl Mirror {
    fn shows(&self, tenants: [TenantId; 2]) -> bool {
        self.tenant.is_none_or(|tenant| tenants.contains(&tenant))
    }

    /// Returns the account that pays for copies.
    fn payer(&self) -> Payer {
        self.tenant.map_or(DRIVER, |tenant| payer(tenant, 0))
    }
}

impl Conductor {
    /// Begins to show connections at a port that the agent of pipes has. Open connections are shown, too.
    pub(super) fn add_mirror(
        &mut self,
        name: String,
        tenant: Option<&str>,
        copies: Arc<Copies>,
    ) -> Result<(), String> {
        if self.mirrors.0.len() >= MIRRORS_MAX {
            return Err(format!("a driver has {MIRRORS_MAX} mirrors of connections at most"));
        }
        let id = |name: &str| {
            let unknown = || format!("there is no tenant {name}: pd policy says which there are");
            self.tenants.id(name).ok_or_else(unknown)
        };
        let tenant = tenant.map(id).transpose()?;
        self.mirrors.0.push(Mirror { name, copies, tenant });
        self.show_all();
        Ok(())
    }

    /// Stops showing connections at a port that is removed.
    pub(super) fn remove_mirror(&mut self, name: &str) {
        let before = self.mirrors.0.len();
        self.mirrors.0.retain(|mirror| mirror.name != name);
        if self.mirrors.0.len() < before {
            self.show_all();
        }
    }

    /// Tells whether a mirror shows a connection between two tenants.
    pub(super) fn is_shown(&self, tenants: [TenantId; 2], reached: SocketAddr) -> bool {
        reached.port() != 0 && self.mirrors.0.iter().any(|mirror| mirror.shows(tenants))
    }

    fn show_all(&mut self) {
        for index in self.connections.ids() {
            self.show_again(index);
        }
        self.place_all();
    }

    /// Shows a connection that has begun, or has got its other side.
    #[inline]
    pub(super) fn show(&mut self, index: ConnectionId, side: Side) {
        if !self.mirrors.0.is_empty() {
            self.show_flow(index, side, true);
        }
    }

    /// Updates what is shown of a connection after tenants or mirrors have changed.
    pub(super) fn show_again(&mut self, index: ConnectionId) {
        for side in Side::BOTH {
            self.show_flow(index, side, false);
        }
    }

    fn show_flow(&mut self, index: ConnectionId, side: Side, begins: bool) {
        let Some(connection) = self.connection(index) else { return };
        let sides = connection.owners();
        let &Connection { movers, tenants, reached, ref subject, .. } = connection;
        let mirrors = self.mirrors.0.iter().filter(|mirror| reached.port() != 0 && mirror.shows(tenants));
        let to: Vec<_> = mirrors.map(|mirror| (Arc::clone(&mirror.copies), mirror.payer())).collect();
        let known = subject.clone();
        if to.is_empty() && known.is_none() {
            return;
        }
        let subject = known.or_else(|| Some(Subject::new([self.connecting_address(sides)?, reached])));
        let Some(subject) = subject else { return };
        if let Some(connection) = self.connections.get_mut_unmarked(index) {
            connection.subject = Some(Arc::clone(&subject));
        }
        let begins = begins && side == Side::Connecting;
        let showing = (!to.is_empty()).then(|| Box::new(Showing { subject, to, begins }));
        self.movers.send(movers[side], ToMover::Show { flow: index.flow(side), showing });
    }

    /// Returns the address of the side that has connected.
    fn connecting_address(&self, sides: [Option<(ClientId, Slot)>; 2]) -> Option<SocketAddr> {
        let of = |side: Side| {
            let (client, slot) = sides[side]?;
            match &self.client(client)?.socket(slot)?.state {
                SocketState::Connected(connected) => Some((connected.local, connected.remote)),
                _ => None,
            }
        };
        of(Side::Connecting).map(|(local, _)| local).or_else(|| of(Side::Accepting).map(|(_, remote)| remote))
    }
}
