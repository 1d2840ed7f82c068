//! Policy applied to clients and connections: their tenants, and the effects of a change.
use super::selectors::Facts;
use super::sidecars::Chains;
use super::tenants::Reached;
use super::Conductor;
use crate::admin::PolicyReport;
use crate::door::{Registration, ToDoor};
use crate::identity::{Identity, NamespaceId};
use crate::ids::{ClientId, ConnectionId, Side, TenantId};
use crate::messages::{SendEnd, ToMover};
use crate::metrics::Metrics;
use crate::policy::{Action, Policy, PolicyError};
use rustix::io::Errno;
use std::sync::Arc;

impl Conductor {
    /// Returns the network namespace of a client's container. The container is found by the control group, which the client cannot leave.
    /// Falls back to the client's own namespace.
    pub(super) fn home_of(&self, identity: &Identity) -> NamespaceId {
        self.containers.find(identity.cgroup.as_deref()).unwrap_or(identity.namespace)
    }

    /// Returns the registration by `pd run` of a client's container.
    pub(super) fn registration_of(&self, identity: &Identity) -> Option<&Registration> {
        self.names.registration(self.home_of(identity))
    }

    pub(super) fn tenant_of(&self, identity: &Identity) -> TenantId {
        self.tenants.find(&Facts {
            namespace: self.home_of(identity),
            cgroup: identity.cgroup.as_deref(),
            container: self.registration_of(identity).map(|r| (&*r.name, &*r.tenant)),
        })
    }

    /// Checks that client `id` may connect to `peer` at `reached`. Returns the tenants of the two.
    ///
    /// # Errors
    /// `EACCES`, `EMFILE`; `ECONNREFUSED` if one of the clients has gone.
    pub(super) fn admit(
        &mut self,
        id: ClientId,
        peer: ClientId,
        reached: Reached,
    ) -> Result<[TenantId; 2], Errno> {
        let (tenants, decision) = self.verdict(id, peer, reached)?;
        self.tenants.admit(tenants[0], decision).inspect_err(|errno| {
            let counter = match *errno {
                Errno::ACCESS => &self.metrics.connections_denied,
                _ => &self.metrics.connections_over_quota,
            };
            Metrics::add(counter, 1);
        })?;
        Ok(tenants)
    }

    /// Checks as [`Self::admit`] does. The kernel, which sees the connection as well, counts an allowed one.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub(super) fn admit_uncounted(
        &mut self,
        id: ClientId,
        peer: ClientId,
        reached: Reached,
    ) -> Result<[TenantId; 2], Errno> {
        match self.verdict(id, peer, reached)? {
            (tenants, (Action::Allow, _)) => Ok(tenants),
            _ => self.admit(id, peer, reached),
        }
    }

    /// Returns the tenants of the two, and the policy's decision. Counts nothing.
    fn verdict(
        &mut self,
        id: ClientId,
        peer: ClientId,
        reached: Reached,
    ) -> Result<([TenantId; 2], (Action, usize)), Errno> {
        let (Some(client), Some(other)) = (self.client(id), self.client(peer)) else {
            return Err(Errno::CONNREFUSED);
        };
        let (tenants, namespace) = ([client.tenant, other.tenant], client.identity.namespace);
        let [from, to] = tenants;
        if namespace == other.identity.namespace || self.chains.is_empty() {
            let at_home = namespace == other.identity.namespace;
            return Ok((tenants, self.tenants.decide(from, to, at_home, reached)));
        }
        let own = self.own_proxies(namespace);
        Ok((tenants, self.tenants.decide_leg(from, to, reached, |hop| own.contains(&hop.at)).0))
    }

    /// Puts a policy in force: limits, tenants of clients and connections, and who may attach. Returns the number of connections that it
    /// ended. Rules that open connections are to be judged by follow: [`Self::judge_all`].
    ///
    /// # Errors
    /// Resources that it reserves, or slots of its services, are not there. Nothing has changed then.
    pub(super) fn apply(&mut self, policy: Policy) -> Result<u64, PolicyError> {
        self.check_reserves(&policy)?;
        self.assign_slots(&policy)?;
        self.services.apply(&policy);
        self.chains = Chains::new(&policy, &self.services.slots);
        let changes = self.tenants.apply(policy);
        self.payers.apply(&self.tenants, &self.pool);
        for mover in self.movers.ids() {
            for &(tenant, ref budget) in &changes.budgets {
                let budget = Arc::clone(budget);
                self.movers.send(mover, ToMover::SetBudget { tenant, budget });
            }
            for &(tenant, weight) in &changes.weights {
                self.movers.send(mover, ToMover::SetWeight { tenant, weight });
            }
        }
        self.tell_pipes();
        self.sort_clients();
        self.place_namespaces();
        let cut = self.turn_out_denied();
        Metrics::add(&self.metrics.connections_cut, cut);
        Ok(cut)
    }

    /// Determines the tenants of all clients and connections anew.
    fn sort_clients(&mut self) {
        self.tenants.look();
        for id in self.clients.ids() {
            let Some(client) = self.client(id) else { continue };
            let tenant = self.tenant_of(&client.identity);
            if let Some(client) = self.clients.get_mut(id) {
                let was = std::mem::replace(&mut client.tenant, tenant);
                if was != tenant {
                    self.marks.mark_client(id);
                    let (movers, payer) = (client.movers(), client.payer());
                    let (namespace, is_present) = (client.identity.namespace, client.is_present());
                    if is_present {
                        self.resident_changed(namespace, was, tenant);
                    }
                    self.door.send(ToDoor::SetTenant { client: id, tenant });
                    movers.into_iter().for_each(|mover| {
                        self.movers.send(mover, ToMover::SetPayer { client: id, payer });
                    });
                    self.move_account(id);
                }
            }
        }
        let mut changed = Vec::new();
        for (index, connection) in self.connections.iter_mut() {
            let was = connection.tenants;
            let now = Side::BOTH.map(|side| {
                let client = connection.owner(side).and_then(|(id, _)| self.clients.get(id));
                client.map_or(was[side], |client| client.tenant)
            });
            if now == was {
                continue;
            }
            self.tenants.settle(index, connection, self.metrics.region());
            self.tenants.hand_over(connection, now);
            for side in Side::BOTH {
                let flow = index.flow(side);
                self.movers.send(connection.movers[side], ToMover::SetTenant { flow, tenant: now[side] });
            }
            changed.push(index);
        }
        changed.into_iter().for_each(|index| self.show_again(index));
    }

    /// Determines all tenants anew when a container has come or gone. Connections take the paths of their present tenants.
    pub(super) fn sort_anew(&mut self) {
        self.sort_clients();
        self.place_namespaces();
        let cut = self.cut_apart();
        Metrics::add(&self.metrics.connections_cut, cut);
        self.place_all();
    }

    pub(super) fn is_denied(&mut self, index: ConnectionId) -> bool {
        let Some(connection) = self.connection(index).filter(|c| !c.is_cut()) else { return false };
        let [from, to] = connection.owners().map(|side| self.client(side?.0));
        let (Some(from), Some(to)) = (from, to) else { return false };
        if self.is_astray(index) {
            return true;
        }
        let is_led = connection.through.is_some_and(|chosen| chosen.led.is_some());
        if is_led || !self.chains.is_empty() {
            let (Some((id, _)), to) =
                (connection.owner(Side::Connecting), (to.tenant, to.identity.namespace))
            else {
                return false;
            };
            let (reached, through) = (connection.reached, connection.through);
            return !self.may_stay(id, to, reached, through);
        }
        let at_home = from.identity.namespace == to.identity.namespace;
        self.tenants.decide(from.tenant, to.tenant, at_home, connection.led()).0 == Action::Deny
    }

    /// Ends a connection: both sides get `ECONNRESET`.
    pub(super) fn cut(&mut self, index: ConnectionId) {
        self.report_sides(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.cut();
        let errno = Errno::CONNRESET.raw_os_error() as u32;
        for side in Side::BOTH {
            let flow = index.flow(side);
            let abort = ToMover::Abort { flow, send_end: SendEnd::by(errno), recv_end: Some(errno) };
            self.movers.send(connection.movers[side], abort);
        }
    }

    /// Adds the traffic of a connection to its tenants' accounts.
    pub(super) fn settle_traffic(&mut self, index: ConnectionId) {
        if let Some(connection) = self.connections.get_mut_unmarked(index) {
            self.tenants.settle(index, connection, self.metrics.region());
        }
    }

    /// Reports the policy and tenants, to whose accounts the traffic of connections has been added.
    pub(super) fn policy_report(&mut self) -> PolicyReport {
        self.count_refused_on_kernel();
        let kernel = self.kernel_half();
        let report = self.tenants.report(self.settings.policy_file.clone(), &self.payers, kernel);
        PolicyReport {
            services: self.service_reports(),
            sidecars: self.sidecar_reports(),
            attaches_refused_by_reason: self.kernel.refusals(),
            ..report
        }
    }
}
