//! Admission of clients by `[attach]` of the policy: of each that arrives, and of all again when a policy changes.
use super::Conductor;
use crate::door::ToDoor;
use crate::identity::Identity;
use crate::ids::{ClientId, Side, TenantId};
use crate::messages::{payer, Violation};
use crate::metrics::Metrics;
use crate::policy::Newcomer;
use crate::refusal::{Refusal, Refused};
use crate::standing::Place;
use rustix::io::Errno;
use std::collections::BTreeMap;

const NOT_LET_IN: &str = "a process was not let in";

impl Conductor {
    /// Tells whether a process may be, or stay, a client.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn may_attach(
        &self,
        identity: &Identity,
        place: Place,
        tenant: TenantId,
    ) -> Result<(), Refusal> {
        self.tenants.policy().attach.decide(&Newcomer {
            place,
            namespace: identity.namespace,
            uid: identity.uid,
            cgroup: identity.cgroup.as_deref(),
            tenant: self.tenants.name(tenant),
        })
    }

    /// Refuses a new client, and records the refusal for administrators.
    pub(super) fn turn_away(
        &mut self,
        id: ClientId,
        identity: &Identity,
        refusal: Refusal,
        errno: Errno,
        why: String,
    ) {
        Metrics::add(&self.metrics.clients_cut_off, 1);
        let told = why.as_str().into();
        let refused = Refused { pid: identity.pid, uid: identity.uid, errno, why, refusal: Some(refusal) };
        self.kernel.refuse(refused, self.clock.now());
        self.door.send(ToDoor::TurnAway { client: id, errno, why: told });
    }

    /// Logs a refusal: of each payer the first in a while.
    pub(super) fn say_refused(&mut self, refusal: Refusal, identity: &Identity, tenant: TenantId) {
        if self.log.may_say((NOT_LET_IN, payer(tenant, identity.uid)), self.clock.now()) {
            let (pid, uid, cgroup) = (identity.pid, identity.uid, identity.cgroup.as_deref().unwrap_or(""));
            tracing::warn!(
                pid,
                uid,
                cgroup,
                reason = refusal.text(),
                remedy = refusal.remedy(),
                "{NOT_LET_IN}"
            );
        }
    }

    /// Returns the client and the reason, if the policy does not let it stay.
    fn denied(&self, id: ClientId) -> Option<(ClientId, Refusal)> {
        let client = self.client(id).filter(|client| client.is_present())?;
        let refusal = self.may_attach(&client.identity, client.place, client.tenant).err()?;
        Some((id, refusal))
    }

    /// Cuts off clients that the policy in force does not let in. Returns the number of connections that end with them.
    pub(super) fn turn_out_denied(&mut self) -> u64 {
        let denied: BTreeMap<_, _> = self.clients.ids().filter_map(|id| self.denied(id)).collect();
        if denied.is_empty() {
            return 0;
        }
        let mut cut = 0;
        for index in self.connections.ids() {
            let Some(connection) = self.connection(index).filter(|connection| !connection.is_cut()) else {
                continue;
            };
            let mut sides = Side::BOTH.iter().filter_map(|&side| connection.owner(side));
            if sides.any(|(client, _)| denied.contains_key(&client)) {
                self.cut(index);
                cut += 1;
            }
        }
        for (id, refusal) in denied {
            self.disconnect(id, Some(Violation::NotAllowed(refusal)));
        }
        cut
    }
}
