//! The conductor's side of the gate ([`crate::gate`]): a policy is staged on the kernel, and then in force on both sides or on none.
//!
//! The gate learns of arrivals and departures as they happen. The whole view comes only with a policy.
use super::names::NetworkId;
use super::selectors::{Facts, Selectors};
use super::Conductor;
use crate::admin::{Answer, KernelHalf};
use crate::door::Registration;
use crate::gate::{
    binds, unbound, Changes, Gate, InForce, Outcome, Sealed, Space, Staged, ToGate, Words, World, RULES,
};
use crate::hash::HashMap;
use crate::identity::NamespaceId;
use crate::ids::TenantId;
use crate::metrics::Metrics;
use crate::policy::{is_below, Maps, Policy};
use crate::service::{Chosen, Slots};
use crate::takeover::pack::Wrong;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::sync::Arc;

/// The gate, and the state that it was told.
#[derive(Debug)]
pub(super) struct Teller {
    /// The gate, or the reason why there is none.
    gate: Result<Gate, String>,
    /// Policies to be staged. The gate has the first.
    applying: VecDeque<Applying>,
    /// Connections that the kernel has denied, and those beyond a quota, as last counted.
    refused: [u64; 2],
    residents: Residents,
    /// Number of tenants whose names the gate knows.
    tenants: usize,
    /// Tenant and network of each namespace, and whether containers are registered there, as the gate knows them by the policy in force.
    told: HashMap<NamespaceId, (TenantId, NetworkId, bool)>,
    /// Set while a policy is being put in force here: the gate is told afterwards.
    is_quiet: bool,
    /// Namespaces that have changed since the gate was given a policy to stage.
    spaces: BTreeSet<NamespaceId>,
    /// Control groups that have changed since then.
    groups: BTreeSet<String>,
}

/// A policy that the gate is staging, or is to stage.
#[derive(Debug)]
struct Applying {
    policy: Policy,
    reply: Option<Sender<Answer>>,
    /// Set if the policy is in force on the fabric already.
    is_here: bool,
    /// See [`ToGate::Stage`].
    goes_on: Option<u32>,
}

/// State of the gate's programs, for another driver.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KernelState {
    epoch: u32,
    /// Index of the first hit counter of the policy, if it is in force on the kernel.
    hits: Option<u32>,
}

/// Number of clients of each tenant, by network namespace.
#[derive(Debug, Default)]
struct Residents(HashMap<NamespaceId, BTreeMap<TenantId, usize>>);

impl Residents {
    fn enter(&mut self, namespace: NamespaceId, tenant: TenantId) {
        *self.0.entry(namespace).or_default().entry(tenant).or_default() += 1;
    }

    fn leave(&mut self, namespace: NamespaceId, tenant: TenantId) {
        let Some(tenants) = self.0.get_mut(&namespace) else { return };
        if let Some(count) = tenants.get_mut(&tenant) {
            *count -= 1;
            if *count == 0 {
                tenants.remove(&tenant);
            }
        }
        if tenants.is_empty() {
            self.0.remove(&namespace);
        }
    }

    /// Returns the tenant of all clients of a namespace, if there is only one.
    fn only(&self, namespace: NamespaceId) -> Option<TenantId> {
        let mut tenants = self.0.get(&namespace)?.keys();
        tenants.next().copied().filter(|_| tenants.next().is_none())
    }
}

impl Teller {
    pub(super) fn new(gate: Result<Gate, String>) -> Self {
        Self {
            gate,
            applying: VecDeque::new(),
            refused: [0; 2],
            residents: Residents::default(),
            tenants: 0,
            told: HashMap::default(),
            is_quiet: false,
            spaces: BTreeSet::new(),
            groups: BTreeSet::new(),
        }
    }

    /// Returns the memory that the gate shares with the kernel.
    pub(super) fn words(&self) -> Option<Arc<Words>> {
        self.gate.as_ref().ok().map(|gate| Arc::clone(&gate.words))
    }

    /// Tells whether a policy is in force on the kernel.
    pub(super) fn is_in_force(&self) -> bool {
        self.gate.as_ref().is_ok_and(Gate::is_in_force)
    }

    /// Returns the gate's counts of services, if there is a gate.
    pub(super) fn slots(&self) -> Option<Arc<Slots>> {
        self.gate.as_ref().ok().map(|gate| Arc::clone(&gate.slots))
    }

    /// Has the kernel connect the socket with this cookie to the backend that was chosen.
    pub(super) fn choose(&self, cookie: u64, chosen: &Chosen) {
        if let Ok(gate) = &self.gate {
            gate.choose(cookie, chosen);
        }
    }

    /// Tells whether a policy is on its way, or the gate has other work.
    pub(super) fn is_applying(&self) -> bool {
        !self.applying.is_empty() || self.gate.as_ref().is_ok_and(|gate| !gate.is_settled())
    }

    /// Returns the maps that go to the next driver.
    pub(super) fn lasting(&self) -> Vec<Arc<OwnedFd>> {
        self.gate.as_ref().map(|gate| gate.lasting.fds().to_vec()).unwrap_or_default()
    }

    /// Returns the policy that the gate is staging.
    pub(super) fn staging(&self) -> Option<&Policy> {
        self.applying.front().map(|applying| &applying.policy)
    }

    /// Goes on with the kernel's counts of the driver whose place is taken, if the maps are there.
    fn join(&self) {
        if let Ok(gate) = &self.gate {
            gate.join();
        }
    }

    /// Tells whether the counts are those of the driver whose place is taken.
    pub(super) fn is_heir(&self) -> bool {
        self.gate.as_ref().is_ok_and(Gate::is_heir)
    }

    fn send(&self, message: ToGate) {
        if let Ok(gate) = &self.gate {
            gate.send(message);
        }
    }

    /// Returns zero if no client or tenant of a network namespace is left.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub(super) fn leftovers(&self) -> usize {
        self.residents.0.len() + self.told.len() + self.spaces.len() + self.groups.len() + self.applying.len()
    }
}

impl Conductor {
    /// Puts a policy in force on the fabric and on the kernel, soon. `reply` gets the number of connections that it ended, or the reason
    /// why it is not in force.
    pub(super) fn begin_apply(&mut self, policy: Policy, reply: Option<Sender<Answer>>) {
        self.marks.mark_others();
        if let Err(why) = &self.gate.gate {
            let not_on_kernel = binds(&policy).then(|| why.clone());
            if let Some(why) = &not_on_kernel {
                tracing::warn!("the policy does not bind connections on the kernel: {why}");
            }
            match self.apply(policy) {
                Ok(cut) => {
                    let outcome = Outcome::new(reply, not_on_kernel);
                    outcome.add_cut(cut);
                    self.judge_all(Arc::new(outcome));
                }
                Err(why) => refuse(reply, why.to_string()),
            }
            return;
        }
        self.gate.applying.push_back(Applying { policy, reply, is_here: false, goes_on: None });
        if self.gate.applying.len() == 1 {
            self.stage_next();
        }
    }

    /// Puts the policy in force on the kernel, after it was taken over on the fabric.
    pub(super) fn resume_on_kernel(&mut self) {
        self.gate.join();
        self.tenants.tell_words();
        if self.gate.gate.is_ok() {
            let (policy, goes_on) = (self.tenants.policy().clone(), self.tenants.kernel_hits());
            self.gate.applying.push_back(Applying { policy, reply: None, is_here: true, goes_on });
            self.stage_next();
        }
    }

    /// Returns the state of the gate's programs for another driver.
    pub(super) fn give_kernel(&self) -> Option<KernelState> {
        let gate = self.gate.gate.as_ref().ok()?;
        Some(KernelState { epoch: gate.words.epoch(), hits: self.tenants.kernel_hits() })
    }

    /// Takes over the state of the gate's programs. Returns the index of the policy's first hit counter, if it is in force on the kernel.
    ///
    /// # Errors
    /// The fault.
    pub(super) fn take_kernel(&mut self, state: Option<KernelState>) -> Result<Option<u32>, Wrong> {
        let Some(gate) = self.gate.gate.as_ref().ok().filter(|gate| gate.is_heir()) else { return Ok(None) };
        let state = state.ok_or_else(|| Wrong::of("maps of the kernel's half, and no state of it"))?;
        let is_one = state.hits.is_none_or(|hits| [0, RULES].contains(&(hits as usize)));
        Wrong::unless(is_one && state.epoch < u32::MAX / 2, || "the state of the kernel's half".to_owned())?;
        gate.resume_epoch(state.epoch);
        Ok(state.hits)
    }

    /// Has the gate stage the oldest of the policies that wait.
    fn stage_next(&mut self) {
        while let Some(Applying { policy, goes_on, .. }) = self.gate.applying.front() {
            let (policy, goes_on) = (policy.clone(), *goes_on);
            if let Err(why) = self.check_reserves(&policy).and_then(|()| self.assign_slots(&policy)) {
                let refused = self.gate.applying.pop_front();
                refuse(refused.and_then(|refused| refused.reply), why.to_string());
                continue;
            }
            // The world names tenants by number.
            policy.tenants.iter().for_each(|tenant| drop(self.tenants.enroll(&tenant.name)));
            self.name_tenants();
            self.gate.spaces.clear();
            self.gate.groups.clear();
            let world = self.world(&policy);
            return self.gate.send(ToGate::Stage { policy: Box::new(policy), world, goes_on });
        }
    }

    /// Puts the oldest of the policies that wait in force, after the gate has staged it. Reports the reason if the gate could not.
    pub(super) fn staged(&mut self, staged: Result<Staged, String>) {
        let Some(applying) = self.gate.applying.pop_front() else { return };
        match staged {
            Ok(staged) => self.put_in_force(applying, staged),
            Err(why) => refuse(applying.reply, format!("the kernel does not take it: {why}")),
        }
        self.stage_next();
    }

    fn put_in_force(&mut self, Applying { policy, reply, is_here, .. }: Applying, staged: Staged) {
        self.marks.mark_others();
        self.gate.is_quiet = true;
        let applied = if is_here { Ok(0) } else { self.apply(policy) };
        self.gate.is_quiet = false;
        match applied {
            Ok(cut) => {
                if let Ok(gate) = &self.gate.gate {
                    gate.words.flip(staged.generation);
                }
                self.tenants.set_kernel_hits((staged.generation != 0).then_some(staged.hits));
                let twins = self.connections.iter().filter_map(|(_, connection)| connection.twin.as_ref());
                let twins = twins.flat_map(|twin| twin.inodes()).collect();
                let outcome = Arc::new(Outcome::new(reply, None));
                outcome.add_cut(cut);
                self.gate.send(ToGate::InForce(InForce { twins, outcome: Arc::clone(&outcome) }));
                self.tell_meanwhile();
                if !is_here {
                    self.judge_all(outcome);
                }
            }
            Err(why) => {
                self.gate.send(ToGate::Discard);
                refuse(reply, why.to_string());
            }
        }
    }

    /// Tells the gate of arrivals and departures while a policy was staged, by that policy.
    fn tell_meanwhile(&mut self) {
        let spaces = std::mem::take(&mut self.gate.spaces);
        let groups = std::mem::take(&mut self.gate.groups);
        self.gate.told.clear();
        if !binds(self.tenants.policy()) {
            return;
        }
        let known: Vec<_> = self.names.known().map(|(id, ..)| id).collect();
        let told = |this: &Self, id| Some((id, this.standing(id)?));
        // All others are as they were when the policy was given.
        self.gate.told = known.iter().filter_map(|&id| told(self, id)).collect();
        let spaces = spaces.into_iter().map(|id| (id, self.space(id))).collect();
        let groups = groups.into_iter().map(|path| (path.clone(), self.group(&path))).collect();
        self.gate.send(ToGate::Changed(Changes { spaces, groups }, None));
    }

    fn name_tenants(&mut self) {
        let new: Vec<_> = self.tenants.names_from(self.gate.tenants);
        if !new.is_empty() {
            self.gate.tenants += new.len();
            self.gate.send(ToGate::Enrolled(new));
        }
    }

    /// Adds a client of a tenant to a network namespace. Tells the gate if that concerns the namespace.
    pub(super) fn resident_came(&mut self, namespace: NamespaceId, tenant: TenantId) {
        self.gate.residents.enter(namespace, tenant);
        self.tell_of_space(namespace);
    }

    /// Removes a client of a tenant from a network namespace, which may be gone with it.
    pub(super) fn resident_left(&mut self, namespace: NamespaceId, tenant: TenantId) {
        self.gate.residents.leave(namespace, tenant);
        self.tell_of_space(namespace);
    }

    /// Changes the tenant of a client of a network namespace.
    pub(super) fn resident_changed(&mut self, namespace: NamespaceId, was: TenantId, is: TenantId) {
        self.gate.residents.leave(namespace, was);
        self.resident_came(namespace, is);
    }

    /// Tells the gate of a network namespace, if the gate knows otherwise.
    pub(super) fn tell_of_space(&mut self, id: NamespaceId) {
        if self.gate.gate.is_err() {
            return;
        }
        let standing = self.standing(id);
        if self.gate.is_quiet || self.gate.told.get(&id).copied() == standing {
            return;
        }
        match standing.filter(|_| binds(self.tenants.policy())) {
            Some(standing) => drop(self.gate.told.insert(id, standing)),
            None => drop(self.gate.told.remove(&id)),
        }
        let changes = Changes { spaces: vec![(id, self.space(id))], groups: Vec::new() };
        self.tell_gate(changes, None);
    }

    /// Tells the gate of a container that has come to, or gone from, a network namespace and perhaps a control group. `sealed`: an answer
    /// that is sent when the gate knows.
    pub(super) fn tell_of_container(
        &mut self,
        id: NamespaceId,
        cgroup: Option<&str>,
        sealed: Option<Sealed>,
    ) {
        if self.gate.gate.is_ok() {
            self.name_tenants();
        }
        match self.standing(id).filter(|_| self.gate.gate.is_ok() && binds(self.tenants.policy())) {
            Some(standing) => drop(self.gate.told.insert(id, standing)),
            None => drop(self.gate.told.remove(&id)),
        }
        let spaces = vec![(id, self.space(id))];
        let groups = cgroup.map(|cgroup| {
            let named = self.tenants.policy().tenants.iter().flat_map(|tenant| &tenant.cgroups);
            let all = named.map(|path| &**path).chain(self.containers.groups()).chain([cgroup]);
            let inside: BTreeSet<_> = all.filter(|path| is_below(path, cgroup)).map(str::to_owned).collect();
            inside.into_iter().map(|path| (path.clone(), self.group(&path))).collect()
        });
        self.tell_gate(Changes { spaces, groups: groups.unwrap_or_default() }, sealed);
    }

    fn tell_gate(&mut self, changes: Changes, sealed: Option<Sealed>) {
        if !self.gate.applying.is_empty() {
            self.gate.spaces.extend(changes.spaces.iter().map(|(id, _)| *id));
            self.gate.groups.extend(changes.groups.iter().map(|(path, _)| path.clone()));
        }
        if self.gate.gate.is_ok() && binds(self.tenants.policy()) {
            self.gate.send(ToGate::Changed(changes, sealed));
        } else if let Some(Sealed { to, answer }) = sealed {
            // The asker may have gone.
            let _ = to.send(answer);
        }
    }

    /// Returns the tenant and the network of a network namespace, and whether a container is registered there. `None`: the namespace is not
    /// known.
    pub(super) fn standing(&self, id: NamespaceId) -> Option<(TenantId, NetworkId, bool)> {
        if !self.names.knows(id) {
            return None;
        }
        let registration = self.names.registration(id);
        let container = registration.map(|r| (&*r.name, &*r.tenant));
        let named = self.tenants.find(&Facts { namespace: id, cgroup: None, container });
        let inside = self.gate.residents.only(id).filter(|_| named == TenantId::default());
        Some((inside.unwrap_or(named), self.names.network(id), registration.is_some()))
    }

    fn space(&self, id: NamespaceId) -> Option<Space> {
        let (tenant, network, _) = self.standing(id)?;
        let (container, addresses) = registered(self.names.registration(id));
        let (file, network) = (Arc::clone(self.names.file(id)?), network.number());
        Some(Space { file, tenant, network, container, addresses })
    }

    /// Returns the tenant of a control group, if the policy names it or a container has it.
    fn group(&self, path: &str) -> Option<TenantId> {
        let mut named = self.tenants.policy().tenants.iter().flat_map(|tenant| &tenant.cgroups);
        let is_there = named.any(|own| own == path) || self.containers.groups().any(|own| own == path);
        is_there.then(|| self.tenant_of_group(path, |facts| self.tenants.find(facts)))
    }

    fn tenant_of_group(&self, path: &str, find: impl Fn(&Facts<'_>) -> TenantId) -> TenantId {
        let namespace = self.containers.find(Some(path)).unwrap_or(NamespaceId::NONE);
        let container = self.names.registration(namespace).map(|r| (&*r.name, &*r.tenant));
        find(&Facts { namespace, cgroup: Some(path), container })
    }

    /// Returns everything that a policy can name, by that policy.
    fn world(&mut self, policy: &Policy) -> World {
        let networks = self.networks_by(policy);
        let numbers = self.number_networks(policy);
        let selectors = Selectors::new(policy);
        let find = |facts: &Facts<'_>| self.tenants.find_by(policy, &selectors, facts);
        // Clients still have the tenants of the policy in force.
        let mut residents = Residents::default();
        for (_, client) in self.clients.iter().filter(|(_, client)| client.is_present()) {
            let (identity, home) = (&client.identity, self.home_of(&client.identity));
            let container = self.names.registration(home).map(|r| (&*r.name, &*r.tenant));
            let facts = Facts { namespace: home, cgroup: identity.cgroup.as_deref(), container };
            residents.enter(identity.namespace, find(&facts));
        }
        let maps = Arc::new(Maps::new(&policy.maps, |name| numbers.get(name).copied().unwrap_or_default()));
        let mut world = World { maps, ..World::default() };
        for network in &policy.networks {
            let number = numbers.get(&*network.name).copied().unwrap_or_default();
            world.network_files.extend(network.namespaces.iter().map(|path| (path.clone(), number)));
            let tenants = network.tenants.iter().filter_map(|name| self.tenants.id(name));
            for tenant in tenants {
                world.tenant_networks.entry(tenant).or_insert(number);
            }
        }
        for (id, file, registration) in self.names.known() {
            let container = registration.map(|r| (&*r.name, &*r.tenant));
            let named = find(&Facts { namespace: id, cgroup: None, container });
            let inside = residents.only(id).filter(|_| named == TenantId::default());
            let (container, addresses) = registered(registration);
            let tenant = inside.unwrap_or(named);
            let network = networks.get(&id).copied().unwrap_or_default().number();
            let space = Space { file: Arc::clone(file), tenant, network, container, addresses };
            world.spaces.insert(id, space);
        }
        for tenant in &policy.tenants {
            let Some(id) = self.tenants.id(&tenant.name) else { continue };
            world.files.extend(tenant.namespaces.iter().map(|path| (path.clone(), id)));
        }
        let groups = policy.tenants.iter().flat_map(|tenant| &tenant.cgroups).map(|path| &**path);
        for path in groups.chain(self.containers.groups()) {
            let tenant = || self.tenant_of_group(path, find);
            world.groups.entry(path.to_owned()).or_insert_with(tenant);
        }
        world
    }

    /// Counts the connections that the kernel has refused since the last time.
    pub(super) fn count_refused_on_kernel(&mut self) {
        let now = self.tenants.refused_on_kernel();
        let was = std::mem::replace(&mut self.gate.refused, now);
        Metrics::add(&self.metrics.connections_denied, now[0].saturating_sub(was[0]));
        Metrics::add(&self.metrics.connections_over_quota, now[1].saturating_sub(was[1]));
    }

    /// Reports how the policy in force stands on the kernel.
    pub(super) fn kernel_half(&self) -> KernelHalf {
        let policy = self.tenants.policy();
        let in_force = self.gate.is_in_force();
        let why_not = match &self.gate.gate {
            _ if in_force || !binds(policy) => None,
            Ok(_) => Some("it is not there yet".to_owned()),
            Err(why) => Some(why.clone()),
        };
        KernelHalf { in_force, why_not, unbound: unbound(policy) }
    }
}

/// Returns the name and the addresses of a container, as the gate is told of them.
fn registered(registration: Option<&Registration>) -> (Option<String>, Vec<IpAddr>) {
    registration.map(|r| (Some(r.name.clone()), r.addresses.clone())).unwrap_or_default()
}

/// Reports why a policy is not in force.
fn refuse(reply: Option<Sender<Answer>>, why: String) {
    match reply {
        // The asker may have gone.
        Some(reply) => drop(reply.send(Answer::Error(why))),
        None => tracing::error!("the policy stays as it is: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_a_tenants_while_all_its_clients_are() {
        let [one, other] = [1, 2].map(NamespaceId::for_test);
        let [red, blue] = [1, 2].map(TenantId::at);
        let mut residents = Residents::default();
        assert_eq!(residents.only(one), None);
        residents.enter(one, red);
        residents.enter(one, red);
        residents.enter(other, blue);
        assert_eq!((residents.only(one), residents.only(other)), (Some(red), Some(blue)));
        residents.enter(one, blue);
        assert_eq!(residents.only(one), None);
        residents.leave(one, red);
        residents.leave(one, red);
        assert_eq!(residents.only(one), Some(blue));
        residents.leave(one, blue);
        residents.leave(other, blue);
        assert!(residents.0.is_empty());
    }
}
