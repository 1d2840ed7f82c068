//! Tenants: their numbers, their accounts, and the policy in force with its counts.
use super::payers::Payers;
use super::Connection;
use crate::admin::{Account, HoldingReport, KernelHalf, PolicyReport, RuleReport, TenantReport};
use crate::gate::{TenantWords, Words};
use crate::hash::HashMap;
use crate::identity::NamespaceId;
use crate::ids::{ConnectionId, Side, TenantId};
use crate::memory::{Caps, Resource};
use crate::pipes::TenantNow;
use crate::policy::bind::Binds;
use crate::policy::budget::Budget;
use crate::policy::via::{Decision, Hop};
use crate::policy::{
    is_below, Action, Attempt, Limits, Path, Policy, Tenant, DEFAULT_TENANT, WEIGHT_DEFAULT,
};
#[cfg(any(test, fuzzing, feature = "hostile"))]
use crate::policy::{rate::Bucket, Rate};
use crate::process::{has_exited, namespace_of_file};
use pd_abi::counters::FlowCounters;
use pd_shm::counters::CounterRegion;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Tenants that a driver keeps accounts of. Those of `pd run` beyond are refused.
const TENANTS_MAX: usize = 4096;

/// Containers that `pd run` registered, by their network namespaces; their names and addresses are the names' to know.
#[derive(Debug, Default)]
pub struct Containers(HashMap<NamespaceId, Container>);

#[derive(Debug)]
struct Container {
    /// Readable when it has ended.
    pidfd: Arc<OwnedFd>,
    /// Its control group, if it has one of its own.
    cgroup: Option<String>,
}

impl Containers {
    /// Adds one. If its namespace had another, returns the control group of that one.
    pub fn add(
        &mut self,
        id: NamespaceId,
        pidfd: Arc<OwnedFd>,
        cgroup: Option<String>,
    ) -> Option<Option<String>> {
        self.0.insert(id, Container { pidfd, cgroup }).map(|former| former.cgroup)
    }

    /// The namespace of the one that a client in `cgroup` is in.
    pub fn find(&self, cgroup: Option<&str>) -> Option<NamespaceId> {
        let inside = |entry: &Container| is_inside(cgroup, entry.cgroup.as_deref());
        self.0.iter().find(|(_, entry)| inside(entry)).map(|(id, _)| *id)
    }

    /// All of them: namespaces, processes, control groups.
    pub fn iter(&self) -> impl Iterator<Item = (NamespaceId, &Arc<OwnedFd>, Option<&str>)> {
        self.0.iter().map(|(id, entry)| (*id, &entry.pidfd, entry.cgroup.as_deref()))
    }

    /// Control groups of all that have one.
    pub fn groups(&self) -> impl Iterator<Item = &str> + '_ {
        self.0.values().filter_map(|entry| entry.cgroup.as_deref())
    }

    /// Forgets those that have ended. Returns their namespaces and control groups.
    pub fn forget_ended(&mut self) -> Vec<(NamespaceId, Option<String>)> {
        let has_ended = |container: &Container| has_exited(&container.pidfd).unwrap_or(false);
        let ended: Vec<_> = self.0.iter().filter(|(_, entry)| has_ended(entry)).map(|(id, _)| *id).collect();
        ended.into_iter().filter_map(|id| Some((id, self.0.remove(&id)?.cgroup))).collect()
    }
}

/// Bytes and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    bytes: u64,
    messages: u64,
}

impl Traffic {
    pub fn bytes(self) -> u64 {
        self.bytes
    }
}

impl From<FlowCounters> for Traffic {
    fn from(counters: FlowCounters) -> Self {
        Self { bytes: counters.bytes, messages: counters.messages }
    }
}

/// What is known of a client when its tenant is looked for. All of it is the kernel's word or `pd run`'s.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub namespace: NamespaceId,
    pub cgroup: Option<&'a str>,
    /// Container and tenant that `pd run` registered.
    pub container: Option<(&'a str, &'a str)>,
}

/// Where a connection leads.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// The listener's address.
    pub at: SocketAddr,
    /// The service's, if it was asked for by that.
    pub asked: Option<SocketAddr>,
}

impl From<SocketAddr> for Reached {
    fn from(at: SocketAddr) -> Self {
        Self { at, asked: None }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Tenants {
    policy: Policy,
    /// How bytes travel where the policy does not say.
    path: Path,
    /// Of the rules, and of the default.
    hits: Vec<u64>,
    /// Namespaces that the policy names and that exist, with their tenants' places in it.
    places: Vec<(NamespaceId, usize)>,
    numbers: HashMap<String, TenantId>,
    entries: Vec<Entry>,
    /// What the kernel counts, and is told, if it holds the policy, too.
    words: Option<Arc<Words>>,
    /// Where the hits of the policy in force begin there.
    kernel_hits: u32,
}

#[derive(Debug)]
struct Entry {
    name: String,
    account: Account,
    connections_max: Option<u64>,
    budget: Arc<Budget>,
    weight: u32,
    caps: Caps,
}

/// What a policy has changed that movers have to know, by tenant.
#[derive(Debug, Default)]
pub struct Changes {
    pub budgets: Vec<(TenantId, Arc<Budget>)>,
    pub weights: Vec<(TenantId, u32)>,
}

impl Tenants {
    /// The default tenant alone, and no policy. `path`: how bytes travel where a policy does not say.
    /// `words`: of the gate, if there is one.
    pub fn new(path: Path, words: Option<Arc<Words>>) -> Self {
        let mut this = Self {
            words,
            kernel_hits: 0,
            policy: Policy::default(),
            path,
            hits: vec![0],
            places: Vec::new(),
            numbers: HashMap::default(),
            entries: Vec::new(),
        };
        let _ = this.enroll(DEFAULT_TENANT);
        this
    }

    /// The number of a tenant, new or known.
    ///
    /// # Errors
    /// If there are too many.
    pub fn enroll(&mut self, name: &str) -> Result<TenantId, String> {
        if let Some(&id) = self.numbers.get(name) {
            return Ok(id);
        }
        if self.entries.len() >= TENANTS_MAX {
            return Err(format!("tenant {name}: the driver knows {TENANTS_MAX} tenants; use one of them"));
        }
        let id = TenantId::at(self.entries.len());
        let (account, budget) = (Account::default(), Budget::new(Limits::default()));
        if let Some(words) = &self.words {
            words.tenant(id).set(None, &Limits::default());
        }
        let (connections_max, weight) = (None, WEIGHT_DEFAULT);
        let (name_of, caps) = (name.to_owned(), Caps::default());
        self.entries.push(Entry { name: name_of, account, connections_max, budget, weight, caps });
        self.numbers.insert(name.to_owned(), id);
        Ok(id)
    }

    /// Names and accounts by number, and the hits of the policy in force: for another driver.
    pub fn give(&self) -> (Vec<(String, Account)>, Vec<u64>) {
        let accounts = self.entries.iter().map(|entry| (entry.name.clone(), entry.account));
        (accounts.collect(), self.hits.clone())
    }

    /// Goes on with accounts that another driver has given, and with hits of the same policy. Returns the numbers of its tenants.
    ///
    /// # Errors
    /// If there are too many.
    pub fn resume(
        &mut self,
        accounts: Vec<(String, Account)>,
        hits: Vec<u64>,
    ) -> Result<Vec<TenantId>, String> {
        let mut ids = Vec::with_capacity(accounts.len());
        for (name, account) in accounts {
            let id = self.enroll(&name)?;
            self.entries[id.index()].account = account;
            self.tell_open(id);
            ids.push(id);
        }
        if hits.len() == self.hits.len() {
            self.hits = hits;
        }
        Ok(ids)
    }

    /// The number of a tenant that is known.
    pub fn id(&self, name: &str) -> Option<TenantId> {
        self.numbers.get(name).copied()
    }

    /// The tenant's name.
    pub fn name(&self, id: TenantId) -> &str {
        &self.entries[id.index()].name
    }

    /// What the tenant's payers may hold.
    pub fn caps(&self, id: TenantId) -> Caps {
        self.entries[id.index()].caps
    }

    /// Whether something is kept for the tenant.
    pub fn has_reserve(&self, id: TenantId) -> bool {
        let caps = self.caps(id);
        Resource::ALL.iter().any(|&resource| caps.of(resource).reserved > 0)
    }

    /// Tenants that something is kept for.
    pub fn with_reserves(&self) -> impl Iterator<Item = TenantId> + '_ {
        (0..self.entries.len()).map(TenantId::at).filter(|&id| self.has_reserve(id))
    }

    /// Puts a policy in force. Returns what is new.
    pub fn apply(&mut self, policy: Policy) -> Changes {
        for tenant in &policy.tenants {
            if let Err(why) = self.enroll(&tenant.name) {
                tracing::error!("{why}; its limits are not in force");
            }
        }
        self.hits = vec![0; policy.rules.len() + 1];
        let mut changed = Changes::default();
        for (id, entry) in self.entries.iter_mut().enumerate() {
            let tenant = policy.tenant(&entry.name);
            entry.connections_max = tenant.and_then(|tenant| tenant.connections_max);
            let limits = tenant.map_or_else(Limits::default, |tenant| tenant.limits);
            if let Some(words) = &self.words {
                words.tenant(TenantId::at(id)).set(entry.connections_max, &limits);
            }
            if entry.budget.limits != limits {
                entry.budget = match &self.words {
                    Some(words) => Budget::shared(limits, words, TenantId::at(id)),
                    None => Budget::new(limits),
                };
                changed.budgets.push((TenantId::at(id), Arc::clone(&entry.budget)));
            }
            entry.caps = tenant.map_or_else(Caps::default, |tenant| tenant.caps);
            let weight = tenant.and_then(|tenant| tenant.weight).unwrap_or(WEIGHT_DEFAULT);
            if std::mem::replace(&mut entry.weight, weight) != weight {
                changed.weights.push((TenantId::at(id), weight));
            }
        }
        self.policy = policy;
        changed
    }

    /// Looks which of the namespaces that the policy names exist by now. Before [`Self::find`], once for many.
    pub fn look(&mut self) {
        self.places = places(&self.policy);
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Bindings of pipes, and all tenants by number.
    pub fn of_pipes(&self) -> (Binds, Vec<TenantNow>) {
        let binds = Binds { default: self.policy.default, rules: self.policy.binds.rules.clone() };
        let now = |entry: &Entry| TenantNow { name: entry.name.clone(), budget: Arc::clone(&entry.budget) };
        (binds, self.entries.iter().map(now).collect())
    }

    /// Names of tenants by number, from this one on.
    pub fn names_from(&self, first: usize) -> Vec<String> {
        self.entries.iter().skip(first).map(|entry| entry.name.clone()).collect()
    }

    /// Takes note of where the hits of the policy in force begin on the kernel.
    pub fn set_kernel_hits(&mut self, base: u32) {
        self.kernel_hits = base;
    }

    /// Connects on the kernel that were denied, and those beyond a quota, since the driver's start.
    pub fn refused_on_kernel(&self) -> [u64; 2] {
        let Some(words) = &self.words else { return [0; 2] };
        let tenants = (0..self.entries.len()).map(|id| words.tenant(TenantId::at(id)));
        tenants.fold([0; 2], |[denied, over], tenant| {
            [denied + tenant.denied.load(Relaxed), over + tenant.over_quota.load(Relaxed)]
        })
    }

    /// Whose a client is: the first tenant of the policy that selects it by container or control group, else by
    /// namespace, which a privileged client can change; else the one that `pd run` registered.
    pub fn find(&self, facts: &Facts<'_>) -> TenantId {
        self.find_by(&self.policy, &self.places, facts)
    }

    /// Whose it would be by another policy, whose namespaces are at these `places`.
    pub fn find_by(&self, policy: &Policy, places: &[(NamespaceId, usize)], facts: &Facts<'_>) -> TenantId {
        let surely = |tenant: &&Tenant| {
            facts.container.is_some_and(|(name, _)| tenant.containers.iter().any(|own| own == name))
                || facts.cgroup.is_some_and(|path| tenant.has_cgroup(path))
        };
        let there = || places.iter().find(|(id, _)| *id == facts.namespace).map(|(_, index)| *index);
        let tenants = &policy.tenants;
        let selected =
            tenants.iter().find(surely).or_else(|| tenants.get(there()?)).map(|tenant| &*tenant.name);
        let name = selected.or(facts.container.map(|(_, tenant)| tenant));
        name.and_then(|name| self.numbers.get(name).copied()).unwrap_or_default()
    }

    /// Whether a connection is allowed, and the number of what says so in `hits`. Within a network namespace
    /// one tenant's clients may always talk to each other: they could without the driver.
    pub fn decide(&self, from: TenantId, to: TenantId, at_home: bool, reached: Reached) -> (Action, usize) {
        if at_home && from == to {
            return (Action::Allow, usize::MAX);
        }
        let attempt = |at: SocketAddr| {
            let (address, port) = (at.ip().to_canonical(), at.port());
            Attempt { from: self.name(from), to: self.name(to), address, port }
        };
        let (action, rule) = match reached.asked {
            Some(asked) => self.policy.decide_service(&attempt(asked), &attempt(reached.at)),
            None => self.policy.decide(&attempt(reached.at)),
        };
        (action, rule.unwrap_or(self.policy.rules.len()))
    }

    /// The same of a connection to another network namespace, and the rule and the first proxy that it is led to. `is_own`: tells whether a proxy is
    /// where it comes from.
    pub fn decide_leg(
        &self,
        from: TenantId,
        to: TenantId,
        reached: Reached,
        is_own: impl Fn(&Hop) -> bool,
    ) -> ((Action, usize), Option<(usize, usize)>) {
        let attempt = |at: SocketAddr| {
            let (address, port) = (at.ip().to_canonical(), at.port());
            Attempt { from: self.name(from), to: self.name(to), address, port }
        };
        let asked = reached.asked.map(attempt);
        let Decision { action, rule, leg } =
            self.policy.decide_leg(asked.as_ref(), &attempt(reached.at), is_own);
        ((action, rule.unwrap_or(self.policy.rules.len())), leg)
    }

    /// How a connection's bytes travel, and whether the two sides trust each other. What a rule says holds; otherwise
    /// bytes that have to be metered are offloaded, and who is of one tenant is trusted. Nobody named the clients of the
    /// default tenant: they are one tenant's only within a network namespace and as one user (`kin`).
    pub fn path(&self, tenants: [TenantId; 2], kin: bool, reached: SocketAddr) -> (Path, bool) {
        let named = tenants[0] != TenantId::default();
        let (path, trust) = self.asked(tenants, reached);
        (path.unwrap_or(self.path), trust.unwrap_or(tenants[0] == tenants[1] && (named || kin)))
    }

    /// Tells whether the policy has the driver move the bytes of such a connection: a rule says so, a rate needs it, or the policy
    /// wants it of all.
    pub fn demands_driver(&self, tenants: [TenantId; 2], reached: SocketAddr) -> bool {
        self.asked(tenants, reached).0 == Some(Path::Offloaded)
    }

    /// The path and the trust that the policy asks for, if it does.
    fn asked(&self, tenants: [TenantId; 2], reached: SocketAddr) -> (Option<Path>, Option<bool>) {
        let [from, to] = tenants.map(|id| &self.entries[id.index()]);
        let (address, port) = (reached.ip().to_canonical(), reached.port());
        let attempt = Attempt { from: &from.name, to: &to.name, address, port };
        let rule = self.policy.decide(&attempt).1.map(|index| &self.policy.rules[index]);
        let limited = [from, to].iter().any(|entry| entry.budget.limits != Limits::default());
        let usual = if limited { Some(Path::Offloaded) } else { self.policy.path };
        (rule.and_then(|rule| rule.path).or(usual), rule.and_then(|rule| rule.trust))
    }

    fn usual_path(&self) -> Path {
        self.policy.path.unwrap_or(self.path)
    }

    /// Counts a decision on a connect and the tenant's connections.
    ///
    /// # Errors
    /// `EACCES` if it was denied, `EMFILE` if the tenant has too many connections.
    pub fn admit(&mut self, from: TenantId, (action, rule): (Action, usize)) -> Result<(), Errno> {
        if let Some(hits) = self.hits.get_mut(rule) {
            *hits += 1;
        }
        let entry = &mut self.entries[from.index()];
        if action == Action::Deny {
            entry.account.connections_denied += 1;
            return Err(Errno::ACCESS);
        }
        let on_kernel = self.words.as_ref().map_or(0, |words| words.tenant(from).open.load(Relaxed));
        let open = entry.account.connections_open + on_kernel;
        if entry.connections_max.is_some_and(|most| open >= most) {
            entry.account.connections_over_quota += 1;
            return Err(Errno::MFILE);
        }
        Ok(())
    }

    /// A connection has been made.
    pub fn open(&mut self, [from, to]: [TenantId; 2]) {
        let account = &mut self.entries[from.index()].account;
        account.connections_open += 1;
        account.connections_made += 1;
        self.entries[to.index()].account.connections_accepted += 1;
        self.tell_open(from);
    }

    /// The kernel adds these to its own when it looks at the quota.
    fn tell_open(&self, id: TenantId) {
        if let Some(words) = &self.words {
            words.tenant(id).open_on_fabric.store(self.entries[id.index()].account.connections_open, Relaxed);
        }
    }

    /// A connection is over.
    pub fn close(&mut self, index: ConnectionId, connection: &mut Connection, counters: &CounterRegion) {
        self.settle(index, connection, counters);
        if connection.counted {
            self.entries[connection.tenants[0].index()].account.connections_open -= 1;
            self.tell_open(connection.tenants[0]);
        }
    }

    /// Its sides are other tenants' from now on. It has been settled.
    pub fn hand_over(&mut self, connection: &mut Connection, tenants: [TenantId; 2]) {
        if connection.counted {
            self.entries[connection.tenants[0].index()].account.connections_open -= 1;
            self.entries[tenants[0].index()].account.connections_open += 1;
            self.tell_open(connection.tenants[0]);
            self.tell_open(tenants[0]);
        }
        connection.tenants = tenants;
    }

    /// Puts what a connection has moved since the last time on its tenants' accounts.
    pub fn settle(&mut self, index: ConnectionId, connection: &mut Connection, counters: &CounterRegion) {
        for side in Side::BOTH {
            let flow = index.flow(side);
            // Its mover has not heard of it yet.
            let Some(now) = counters.flow(flow.get(), connection.serial).map(Traffic::from) else { continue };
            let was = std::mem::replace(&mut connection.settled[side], now);
            let (bytes, messages) = (now.bytes - was.bytes, now.messages - was.messages);
            let sender = &mut self.entries[connection.tenants[side].index()].account;
            sender.bytes_sent += bytes;
            sender.messages_sent += messages;
            let receiver = &mut self.entries[connection.tenants[side.other()].index()].account;
            receiver.bytes_received += bytes;
            receiver.messages_received += messages;
        }
    }

    /// Everything there is to say. Connections have been settled.
    pub fn report(&self, file: Option<PathBuf>, payers: &Payers, kernel: KernelHalf) -> PolicyReport {
        let policy = &self.policy;
        let otherwise = format!("otherwise: {}", policy.default);
        let rules = policy.rules.iter().map(ToString::to_string).chain([otherwise]);
        PolicyReport {
            file,
            path: self.usual_path(),
            tenants: (self.entries.iter().enumerate())
                .map(|(id, entry)| {
                    let id = TenantId::at(id);
                    let on_kernel = self.words.as_ref().map(|words| words.tenant(id));
                    entry.report(policy, payers.report(id), on_kernel)
                })
                .collect(),
            rules: (rules.zip(&self.hits).enumerate())
                .map(|(index, (rule, &hits))| RuleReport { rule, hits: hits + self.hits_on_kernel(index) })
                .collect(),
            kernel,
            services: Vec::new(),
            networks: policy.networks.iter().map(ToString::to_string).collect(),
            attach: policy.attach.to_string().lines().map(str::to_owned).collect(),
            attaches_refused_by_reason: Default::default(),
            sidecars: Vec::new(),
        }
    }
}

impl Tenants {
    fn hits_on_kernel(&self, rule: usize) -> u64 {
        let hits = |words: &Arc<Words>| words.hits(self.kernel_hits, rule).load(Relaxed);
        self.words.as_ref().filter(|words| words.generation() != 0).map_or(0, hits)
    }
}

/// What the simulation asks and breaks.
#[cfg(any(test, fuzzing, feature = "hostile"))]
impl Tenants {
    /// Tenants with a rate of bytes, and what they have sent in all.
    pub fn spending<'a>(
        &self,
        connections: impl Iterator<Item = (ConnectionId, &'a Connection)>,
        counters: &CounterRegion,
    ) -> Vec<(TenantId, Rate, u64)> {
        let mut sent: Vec<_> = self.entries.iter().map(|entry| entry.account.bytes_sent).collect();
        for (index, connection) in connections {
            for side in Side::BOTH {
                let now = counters.flow(index.flow(side).get(), connection.serial).unwrap_or_default().bytes;
                sent[connection.tenants[side].index()] += now.saturating_sub(connection.settled[side].bytes);
            }
        }
        let rated = self.entries.iter().zip(sent).enumerate();
        rated
            .filter_map(|(id, (entry, sent))| {
                Some((TenantId::at(id), entry.budget.limits.tenant.bytes?, sent))
            })
            .collect()
    }

    /// Forgets what they have sent.
    pub fn forget_spending(&self) {
        self.entries.iter().filter_map(|entry| entry.budget.bytes.as_ref()).for_each(Bucket::fill);
    }
}

/// The namespaces that a policy names and that exist, with their tenants' places in it.
pub fn places(policy: &Policy) -> Vec<(NamespaceId, usize)> {
    let tenants = policy.tenants.iter().enumerate();
    let files = tenants.flat_map(|(index, tenant)| tenant.namespaces.iter().map(move |file| (file, index)));
    files.filter_map(|(file, index)| Some((namespace_of_file(file).ok()?, index))).collect()
}

impl Entry {
    fn report(
        &self,
        policy: &Policy,
        holdings: Vec<HoldingReport>,
        on_kernel: Option<&TenantWords>,
    ) -> TenantReport {
        let mut account = self.account;
        let mut drops = 0;
        if let Some(words) = on_kernel {
            for (sum, word) in [
                (&mut account.connections_open, &words.open),
                (&mut account.connections_made, &words.made),
                (&mut account.connections_accepted, &words.accepted),
                (&mut account.connections_denied, &words.denied),
                (&mut account.connections_over_quota, &words.over_quota),
                (&mut account.bytes_sent, &words.sent),
                (&mut account.bytes_received, &words.received),
                (&mut drops, &words.drops),
            ] {
                *sum += word.load(Relaxed);
            }
        }
        TenantReport {
            name: self.name.clone(),
            policy: policy.tenant(&self.name).map(ToString::to_string),
            account,
            rate_waits: self.budget.waits.load(Relaxed) + drops,
            holdings,
        }
    }
}

/// Whether a client in `cgroup` is of the container that has `group`.
fn is_inside(cgroup: Option<&str>, group: Option<&str>) -> bool {
    cgroup.zip(group).is_some_and(|(path, group)| is_below(path, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A usual path that is the engine's is no demand; a rule's, a rate's and the policy's are.
    #[test]
    fn the_driver_is_demanded_by_policies_alone() {
        let demanded = |text: &str| {
            let mut tenants = Tenants::new(Path::Offloaded, None);
            let red = tenants.enroll("red").unwrap();
            tenants.apply(Policy::parse(text).unwrap());
            let reached = "10.0.0.1:80".parse().unwrap();
            let both = [TenantId::default(), red];
            assert_eq!(
                tenants.path(both, false, reached).0 == Path::Direct,
                text.contains("direct"),
                "{text}"
            );
            tenants.demands_driver(both, reached)
        };
        assert!(!demanded(""));
        assert!(!demanded("path = \"direct\""));
        assert!(demanded("path = \"offloaded\""));
        assert!(demanded("[[tenant]]\nname = \"red\"\nrate = { bytes_per_second = \"1GB\" }"));
        let rule = "[[rule]]\nport = 80\naction = \"allow\"\npath = ";
        assert!(demanded(&format!("{rule}\"offloaded\"")));
        assert!(!demanded(&format!("path = \"direct\"\n{rule}\"direct\"")));
    }
}
