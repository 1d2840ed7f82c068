//! The conductor's side of the gate ([`crate::gate`]): a policy is staged on the kernel, and then in force on both sides or on none.
use super::tenants::{places, Facts};
use super::Conductor;
use crate::admin::{Answer, KernelHalf};
use crate::gate::{binds, unbound, InForce, Sealed, Space, Staged, ToGate, Whose, World};
use crate::identity::{namespace_of_file, NamespaceId};
use crate::ids::TenantId;
use crate::metrics::Metrics;
use crate::policy::Policy;
use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::Arc;

/// A policy that the gate is staging.
#[derive(Debug)]
pub(super) struct Applying {
    policy: Policy,
    reply: Option<Sender<Answer>>,
}

impl Conductor {
    /// Puts a policy in force on the fabric and on the kernel, soon. `reply` is told what it ended, or why it is not in force.
    pub(super) fn begin_apply(&mut self, policy: Policy, reply: Option<Sender<Answer>>) {
        let Ok(gate) = &self.gate else {
            let not_on_kernel = binds(&policy).then(|| self.gate.as_ref().err().cloned()).flatten();
            if let Some(why) = &not_on_kernel {
                tracing::warn!("the policy does not bind connections on the kernel: {why}");
            }
            let applied = self.apply(policy).map_err(|why| why.to_string());
            let applied = applied.map(|cut| (cut, not_on_kernel));
            return tell(reply, applied);
        };
        let inbox = Arc::clone(&gate.inbox);
        if let Err(why) = self.check_reserves(&policy) {
            return tell(reply, Err(why.to_string()));
        }
        // The world names them by number.
        policy.tenants.iter().for_each(|tenant| drop(self.tenants.enroll(&tenant.name)));
        let world = self.world(&policy);
        inbox.send(ToGate::Stage { policy: Box::new(policy.clone()), world });
        self.applying.push_back(Applying { policy, reply });
    }

    /// The gate has staged the oldest of the policies that wait, or could not.
    pub(super) fn staged(&mut self, staged: Result<Staged, String>) {
        let Some(Applying { policy, reply }) = self.applying.pop_front() else { return };
        let Ok(gate) = &self.gate else { return };
        let (inbox, words) = (Arc::clone(&gate.inbox), Arc::clone(&gate.words));
        let staged = match staged {
            Ok(staged) => staged,
            Err(why) => return tell(reply, Err(format!("the kernel does not take it: {why}"))),
        };
        match self.apply(policy) {
            Ok(cut) => {
                words.flip(staged.generation);
                self.tenants.set_kernel_hits(staged.hits);
                let twins = self.connections.iter().filter_map(|(_, connection)| connection.twin.as_ref());
                let twins = twins.flat_map(|twin| twin.inodes()).collect();
                inbox.send(ToGate::InForce(InForce { cut, twins, reply }));
                // Whoever came meanwhile.
                self.tell_gate(None);
            }
            Err(why) => {
                inbox.send(ToGate::Discard);
                tell(reply, Err(why.to_string()));
            }
        }
    }

    /// Tells the gate what there is by now, if a policy concerns it. `sealed`: an answer that is given when it knows.
    pub(super) fn tell_gate(&self, sealed: Option<Sealed>) {
        match &self.gate {
            Ok(gate) if binds(self.tenants.policy()) => {
                gate.inbox.send(ToGate::World(self.world(self.tenants.policy()), sealed));
            }
            _ => {
                if let Some(Sealed { to, answer }) = sealed {
                    // Who asked may have gone.
                    let _ = to.send(answer);
                }
            }
        }
    }

    /// Everything that a policy can name.
    fn world(&self, policy: &Policy) -> World {
        let places = places(policy);
        let find = |namespace, cgroup, container| {
            self.tenants.find_by(policy, &places, &Facts { namespace, cgroup, container })
        };
        // Whose the clients of a namespace are, if they are of one tenant.
        let mut inside: HashMap<NamespaceId, Option<TenantId>> = HashMap::new();
        for (_, client) in self.clients.iter() {
            let (identity, home) = (&client.identity, self.home_of(&client.identity));
            let container = self.names.registration(home).map(|r| (&*r.name, &*r.tenant));
            let tenant = find(home, identity.cgroup.as_deref(), container);
            let known = inside.entry(identity.namespace).or_insert(Some(tenant));
            *known = known.filter(|known| *known == tenant);
        }
        let mut world = World { tenants: self.tenants.names(), ..World::default() };
        for (id, file, registration) in self.names.known() {
            let named = find(id, None, registration.map(|r| (&*r.name, &*r.tenant)));
            let tenant = match inside.get(&id) {
                Some(Some(tenant)) if named == TenantId::default() => *tenant,
                _ => named,
            };
            let addresses = registration.map(|r| r.addresses.clone()).unwrap_or_default();
            world.spaces.push(Space { whose: Whose::Known(id, Arc::clone(file)), tenant, addresses });
        }
        for tenant in &policy.tenants {
            let Some(id) = self.tenants.id(&tenant.name) else { continue };
            for path in &tenant.namespaces {
                if !namespace_of_file(path).is_ok_and(|space| self.names.knows(space)) {
                    let whose = Whose::File(path.clone());
                    world.spaces.push(Space { whose, tenant: id, addresses: Vec::new() });
                }
            }
        }
        let containers = self.containers.groups();
        let groups = policy.tenants.iter().flat_map(|tenant| &tenant.cgroups).map(|path| &**path);
        let groups: std::collections::BTreeSet<&str> = groups.chain(containers).collect();
        for path in groups {
            let home = self.containers.find(Some(path)).unwrap_or(NamespaceId::NONE);
            let container = self.names.registration(home).map(|r| (&*r.name, &*r.tenant));
            world.groups.push((path.to_owned(), find(home, Some(path), container)));
        }
        world
    }

    /// Takes over what the kernel has refused since the last time.
    pub(super) fn count_refused_on_kernel(&mut self) {
        let now = self.tenants.refused_on_kernel();
        let was = std::mem::replace(&mut self.refused_on_kernel, now);
        Metrics::add(&self.metrics.connections_denied, now[0].saturating_sub(was[0]));
        Metrics::add(&self.metrics.connections_over_quota, now[1].saturating_sub(was[1]));
    }

    /// How the policy in force stands on the kernel.
    pub(super) fn kernel_half(&self) -> KernelHalf {
        let policy = self.tenants.policy();
        let in_force = self.gate.as_ref().is_ok_and(|gate| gate.is_in_force());
        let why_not = match &self.gate {
            _ if in_force || !binds(policy) => None,
            Ok(_) => Some("it is not there yet".to_owned()),
            Err(why) => Some(why.clone()),
        };
        KernelHalf { in_force, why_not, unbound: unbound(policy) }
    }
}

fn tell(reply: Option<Sender<Answer>>, applied: Result<(u64, Option<String>), String>) {
    let answer = match applied {
        Ok((cut, not_on_kernel)) => {
            Answer::Applied { cut, cut_on_kernel: 0, kept_on_kernel: 0, not_on_kernel }
        }
        Err(why) => Answer::Error(why),
    };
    match (reply, answer) {
        // Who asked may have gone.
        (Some(reply), answer) => drop(reply.send(answer)),
        (None, Answer::Error(why)) => tracing::error!("the policy stays as it is: {why}"),
        (None, _) => tracing::info!("policy applied"),
    }
}
