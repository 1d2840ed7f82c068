//! Which processes are clients: `[attach]` of the policy, asked when one arrives, and again of all when a policy changes.
use super::kernel::Refused;
use super::Conductor;
use crate::door::ToDoor;
use crate::identity::Identity;
use crate::ids::{ClientId, Side, TenantId};
use crate::messages::{payer, Violation};
use crate::metrics::Metrics;
use crate::policy::Newcomer;
use crate::refusal::Refusal;
use crate::standing::Place;
use rustix::io::Errno;

const NOT_LET_IN: &str = "a process was not let in";

impl Conductor {
    /// Whether a process may be, or stay, a client.
    ///
    /// # Errors
    /// Why not.
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

    /// Refuses a newcomer, and remembers it for those who ask.
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

    /// A line in the log, of each payer the first in a while.
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

    /// Cuts off clients that the policy in force does not let in. Returns how many connections end with them.
    pub(super) fn turn_out_denied(&mut self) -> u64 {
        let mut cut = 0;
        for id in self.clients.ids() {
            let Some(client) = self.client(id).filter(|client| client.is_present()) else { continue };
            let Err(refusal) = self.may_attach(&client.identity, client.place, client.tenant) else {
                continue;
            };
            let is_its = |side: Option<(ClientId, _)>| side.is_some_and(|(other, _)| other == id);
            let all = self.connections.iter().filter(|(_, connection)| !connection.cut);
            let its =
                all.filter(|(_, connection)| Side::BOTH.iter().any(|&side| is_its(connection.sides[side])));
            let its: Vec<_> = its.map(|(index, _)| index).collect();
            cut += its.len() as u64;
            its.into_iter().for_each(|index| self.cut(index));
            self.disconnect(id, Some(Violation::NotAllowed(refusal)));
        }
        cut
    }
}
