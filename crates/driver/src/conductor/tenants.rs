//! Tenants: their numbers, their accounts, and the policy in force with its counts.
use super::payers::Payers;
use super::selectors::{Facts, Selectors};
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
use crate::policy::{is_below, Action, Attempt, Limits, Path, Policy, DEFAULT_TENANT, WEIGHT_DEFAULT};
#[cfg(any(test, fuzzing, feature = "testing"))]
use crate::policy::{rate::Bucket, Rate};
use crate::process::has_exited;
use pd_abi::counters::FlowCounters;
use pd_shm::counters::CounterRegion;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Most of any count that another driver gives: additions to it do not overflow.
const COUNT_MAX: u64 = 1 << 62;

/// Most tenants that a driver keeps accounts of. `pd run` is refused further ones.
const TENANTS_MAX: usize = 4096;

/// Containers that `pd run` registered, by network namespace. [`super::names`] has their names and addresses.
#[derive(Debug, Default)]
pub struct Containers(HashMap<NamespaceId, Container>);

#[derive(Debug)]
struct Container {
    /// Descriptor of the container's process, readable when that has ended.
    pidfd: Arc<OwnedFd>,
    /// Control group of the container, if it has one of its own.
    cgroup: Option<String>,
}

impl Containers {
    /// Adds a container. Returns the control group of the container that had the namespace before, if there was one.
    pub fn add(
        &mut self,
        id: NamespaceId,
        pidfd: Arc<OwnedFd>,
        cgroup: Option<String>,
    ) -> Option<Option<String>> {
        self.0.insert(id, Container { pidfd, cgroup }).map(|previous| previous.cgroup)
    }

    /// Finds the container of a client in `cgroup`. Returns its namespace.
    pub fn find(&self, cgroup: Option<&str>) -> Option<NamespaceId> {
        let inside = |entry: &Container| is_inside(cgroup, entry.cgroup.as_deref());
        self.0.iter().find(|(_, entry)| inside(entry)).map(|(id, _)| *id)
    }

    /// Iterates over all containers: namespace, process, control group.
    pub fn iter(&self) -> impl Iterator<Item = (NamespaceId, &Arc<OwnedFd>, Option<&str>)> {
        self.0.iter().map(|(id, entry)| (*id, &entry.pidfd, entry.cgroup.as_deref()))
    }

    /// Iterates over the control groups of all containers that have one.
    pub fn groups(&self) -> impl Iterator<Item = &str> + '_ {
        self.0.values().filter_map(|entry| entry.cgroup.as_deref())
    }

    /// Forgets containers that have ended. Returns their namespaces and control groups.
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

    /// Returns the traffic since an earlier count.
    pub fn since(self, was: Self) -> Self {
        Self { bytes: self.bytes - was.bytes, messages: self.messages - was.messages }
    }
}

impl From<FlowCounters> for Traffic {
    fn from(counters: FlowCounters) -> Self {
        Self { bytes: counters.bytes, messages: counters.messages }
    }
}

/// Destination of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// The listener's address.
    pub at: SocketAddr,
    /// The service's address, if the client asked for that.
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
    /// Path of bytes where the policy names none.
    path: Path,
    /// Hits of each rule, and of the default.
    hits: Vec<u64>,
    /// Existing namespaces that the policy names, each with its tenant's index in the policy.
    selectors: Selectors,
    numbers: HashMap<String, TenantId>,
    entries: Vec<Entry>,
    /// Words shared with the gate: the kernel's counts, and limits. `None`: the kernel does not hold the policy.
    words: Option<Arc<Words>>,
    /// Index of the kernel's first hit counter of the policy in force. `None`: the policy is not in force there.
    kernel_hits: Option<u32>,
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

/// Changes of a policy that movers have to know, by tenant.
#[derive(Debug, Default)]
pub struct Changes {
    pub budgets: Vec<(TenantId, Arc<Budget>)>,
    pub weights: Vec<(TenantId, u32)>,
}

impl Tenants {
    /// Makes a table with the default tenant alone, and no policy. `path` holds where a policy names none. `words` are those of the gate,
    /// if there is one.
    pub fn new(path: Path, words: Option<Arc<Words>>) -> Self {
        let mut this = Self {
            words,
            kernel_hits: None,
            policy: Policy::default(),
            path,
            hits: vec![0],
            selectors: Selectors::default(),
            numbers: HashMap::default(),
            entries: Vec::new(),
        };
        let _ = this.enroll(DEFAULT_TENANT);
        this
    }

    /// Returns the number of a tenant, which is added if it is not known.
    ///
    /// # Errors
    /// Too many tenants.
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

    /// Returns names and accounts by number, and the hits of the policy in force, for another driver. What the kernel has counted stays in
    /// the words that it shares with the gate, which that driver goes on with.
    pub fn give(&self) -> (Vec<(String, Account)>, Vec<u64>) {
        (self.entries.iter().map(|entry| (entry.name.clone(), entry.account)).collect(), self.hits.clone())
    }

    /// Takes over accounts that another driver has given, with the numbers of the tenants. None but the default tenant is known.
    ///
    /// # Errors
    /// Too many tenants, other numbers, or counts beyond any that a driver reaches.
    pub fn resume(&mut self, accounts: Vec<(String, Account)>) -> Result<(), String> {
        check_counts(accounts.iter().flat_map(|(_, account)| account.counts()))?;
        for (number, (name, account)) in accounts.into_iter().enumerate() {
            let id = self.enroll(&name)?;
            if id.index() != number {
                return Err(format!("tenant {name} has another number"));
            }
            self.entries[number].account = account;
        }
        Ok(())
    }

    /// Takes over the hits of the policy in force. `on_kernel`: index of the kernel's first hit counter, if the policy is in force there.
    ///
    /// # Errors
    /// Counts beyond any that a driver reaches.
    pub fn resume_hits(&mut self, hits: Vec<u64>, on_kernel: Option<u32>) -> Result<(), String> {
        check_counts(hits.iter().copied())?;
        if hits.len() == self.hits.len() {
            self.hits = hits;
        }
        self.kernel_hits = on_kernel;
        Ok(())
    }

    /// Sets all limits and open connections in the words shared with the gate, which have become those of another driver.
    pub fn tell_words(&self) {
        for (id, entry) in self.entries.iter().enumerate() {
            if let Some(words) = &self.words {
                words.tenant(TenantId::at(id)).set(entry.connections_max, &entry.budget.limits);
            }
            self.tell_open(TenantId::at(id));
        }
    }

    /// Tells whether there is a tenant of this number.
    pub fn is_known(&self, id: TenantId) -> bool {
        id.index() < self.entries.len()
    }

    /// Returns the number of a known tenant.
    pub fn id(&self, name: &str) -> Option<TenantId> {
        self.numbers.get(name).copied()
    }

    /// Returns the tenant's name.
    pub fn name(&self, id: TenantId) -> &str {
        &self.entries[id.index()].name
    }

    /// Returns the caps of the tenant's payers.
    pub fn caps(&self, id: TenantId) -> Caps {
        self.entries[id.index()].caps
    }

    /// Tells whether a resource is reserved for the tenant.
    pub fn has_reserve(&self, id: TenantId) -> bool {
        let caps = self.caps(id);
        Resource::ALL.iter().any(|&resource| caps.of(resource).reserved > 0)
    }

    /// Iterates over the tenants with reserves.
    pub fn with_reserves(&self) -> impl Iterator<Item = TenantId> + '_ {
        (0..self.entries.len()).map(TenantId::at).filter(|&id| self.has_reserve(id))
    }

    /// Puts a policy in force. Returns the changes.
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

    /// Looks up which namespaces of the policy exist by now. Comes before [`Self::find`], once for many calls.
    pub fn look(&mut self) {
        self.selectors = Selectors::new(&self.policy);
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the bindings of pipes, and all tenants by number.
    pub fn of_pipes(&self) -> (Binds, Vec<TenantNow>) {
        let binds = Binds { default: self.policy.default, rules: self.policy.binds.rules.clone() };
        let now = |entry: &Entry| TenantNow { name: entry.name.clone(), budget: Arc::clone(&entry.budget) };
        (binds, self.entries.iter().map(now).collect())
    }

    /// Returns the names of tenants by number, from `first` on.
    pub fn names_from(&self, first: usize) -> Vec<String> {
        self.entries.iter().skip(first).map(|entry| entry.name.clone()).collect()
    }

    /// Sets the index of the kernel's first hit counter of the policy in force.
    pub fn set_kernel_hits(&mut self, base: Option<u32>) {
        self.kernel_hits = base;
    }

    /// Returns that index.
    pub fn kernel_hits(&self) -> Option<u32> {
        self.kernel_hits
    }

    /// Returns the connects on the kernel since the driver's start that were denied, and those beyond a quota.
    pub fn refused_on_kernel(&self) -> [u64; 2] {
        let Some(words) = &self.words else { return [0; 2] };
        let tenants = (0..self.entries.len()).map(|id| words.tenant(TenantId::at(id)));
        tenants.fold([0; 2], |[denied, over], tenant| {
            [denied + tenant.denied.load(Relaxed), over + tenant.over_quota.load(Relaxed)]
        })
    }

    /// Finds a client's tenant. The first tenant of the policy that selects it by container or control group comes first. The next is one
    /// that selects it by namespace, which a privileged client can change. The last is the one that `pd run` registered.
    pub fn find(&self, facts: &Facts<'_>) -> TenantId {
        self.find_by(&self.policy, &self.selectors, facts)
    }

    /// Finds a client's tenant by another policy, which has the selectors.
    pub fn find_by(&self, policy: &Policy, selectors: &Selectors, facts: &Facts<'_>) -> TenantId {
        let tenant = selectors.find(facts).and_then(|index| policy.tenants.get(index));
        let selected = tenant.map(|tenant| &*tenant.name);
        let name = selected.or(facts.container.map(|(_, tenant)| tenant));
        name.and_then(|name| self.numbers.get(name).copied()).unwrap_or_default()
    }

    /// Decides whether a connection is allowed. Returns the index of the deciding rule in `hits`, too. Clients of one tenant in one network
    /// namespace may always connect: they could without the driver.
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

    /// Decides as [`Self::decide`] does, for a connection to another network namespace. Returns the rule and the first proxy that it is led
    /// to, as well. `is_own` tells whether the connection comes from a proxy.
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

    /// Returns the path of a connection, and whether the two sides trust each other. A rule's word holds. Otherwise bytes that have to be
    /// metered are offloaded, and clients of one tenant trust each other. The default tenant is no name: its clients trust each other only
    /// within a network namespace and as one user (`kin`).
    pub fn path(&self, tenants: [TenantId; 2], kin: bool, reached: SocketAddr) -> (Path, bool) {
        let named = tenants[0] != TenantId::default();
        let (path, trust) = self.asked(tenants, reached);
        (path.unwrap_or(self.path), trust.unwrap_or(tenants[0] == tenants[1] && (named || kin)))
    }

    /// Tells whether one of a connection's tenants has a rate.
    pub fn have_rates(&self, tenants: [TenantId; 2]) -> bool {
        tenants.iter().any(|id| self.entries[id.index()].budget.limits != Limits::default())
    }

    /// Returns the path and the trust that the policy asks for, if it does.
    fn asked(&self, tenants: [TenantId; 2], reached: SocketAddr) -> (Option<Path>, Option<bool>) {
        let [from, to] = tenants.map(|id| &self.entries[id.index()]);
        let (address, port) = (reached.ip().to_canonical(), reached.port());
        let attempt = Attempt { from: &from.name, to: &to.name, address, port };
        let rule = self.policy.decide(&attempt).1.map(|index| &self.policy.rules[index]);
        let usual = if self.have_rates(tenants) { Some(Path::Offloaded) } else { self.policy.path };
        (rule.and_then(|rule| rule.path).or(usual), rule.and_then(|rule| rule.trust))
    }

    fn usual_path(&self) -> Path {
        self.policy.path.unwrap_or(self.path)
    }

    /// Counts a decision on a connect, and checks the tenant's quota.
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

    /// Counts a connection that has been made.
    pub fn open(&mut self, [from, to]: [TenantId; 2]) {
        let account = &mut self.entries[from.index()].account;
        account.connections_open += 1;
        account.connections_made += 1;
        self.entries[to.index()].account.connections_accepted += 1;
        self.tell_open(from);
    }

    /// Publishes the number of open connections. The kernel adds it to its own number when it checks the quota.
    fn tell_open(&self, id: TenantId) {
        if let Some(words) = &self.words {
            words.tenant(id).open_on_fabric.store(self.entries[id.index()].account.connections_open, Relaxed);
        }
    }

    /// Settles a connection that is over, and counts it no more.
    pub fn close(&mut self, index: ConnectionId, connection: &mut Connection, counters: &CounterRegion) {
        self.settle(index, connection, counters);
        if connection.counted {
            self.entries[connection.tenants[0].index()].account.connections_open -= 1;
            self.tell_open(connection.tenants[0]);
        }
    }

    /// Makes `tenants` the owners of the sides. The connection has been settled.
    pub fn hand_over(&mut self, connection: &mut Connection, tenants: [TenantId; 2]) {
        if connection.counted {
            self.entries[connection.tenants[0].index()].account.connections_open -= 1;
            self.entries[tenants[0].index()].account.connections_open += 1;
            self.tell_open(connection.tenants[0]);
            self.tell_open(tenants[0]);
        }
        connection.tenants = tenants;
    }

    /// Adds a connection's traffic since the last time to its tenants' accounts.
    pub fn settle(&mut self, index: ConnectionId, connection: &mut Connection, counters: &CounterRegion) {
        for side in Side::BOTH {
            let flow = index.flow(side);
            // The mover has not learned of the connection yet.
            let Some(now) = counters.flow(flow.get(), connection.serial).map(Traffic::from) else { continue };
            let Traffic { bytes, messages } = connection.settle(side, now);
            let sender = &mut self.entries[connection.tenants[side].index()].account;
            sender.bytes_sent += bytes;
            sender.messages_sent += messages;
            let receiver = &mut self.entries[connection.tenants[side.other()].index()].account;
            receiver.bytes_received += bytes;
            receiver.messages_received += messages;
        }
    }

    /// Reports everything. Connections have been settled.
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
        self.words
            .as_ref()
            .zip(self.kernel_hits)
            .map_or(0, |(words, base)| words.hits(base, rule).load(Relaxed))
    }
}

/// Access that only the simulation has.
#[cfg(any(test, fuzzing, feature = "testing"))]
impl Tenants {
    /// Lists the tenants with a rate of bytes, and all bytes that they have sent.
    pub fn spending<'a>(
        &self,
        connections: impl Iterator<Item = (ConnectionId, &'a Connection)>,
        counters: &CounterRegion,
    ) -> Vec<(TenantId, Rate, u64)> {
        let mut sent: Vec<_> = self.entries.iter().map(|entry| entry.account.bytes_sent).collect();
        for (index, connection) in connections {
            for side in Side::BOTH {
                let now = counters.flow(index.flow(side).get(), connection.serial).unwrap_or_default().bytes;
                sent[connection.tenants[side].index()] += now.saturating_sub(connection.moved()[side]);
            }
        }
        let rated = self.entries.iter().zip(sent).enumerate();
        rated
            .filter_map(|(id, (entry, sent))| {
                Some((TenantId::at(id), entry.budget.limits.tenant.bytes?, sent))
            })
            .collect()
    }

    /// Forgets the bytes that tenants have sent.
    pub fn forget_spending(&self) {
        self.entries.iter().filter_map(|entry| entry.budget.bytes.as_ref()).for_each(Bucket::fill);
    }
}

impl Entry {
    fn report(
        &self,
        policy: &Policy,
        holdings: Vec<HoldingReport>,
        on_kernel: Option<&TenantWords>,
    ) -> TenantReport {
        let mut account = self.account_with(on_kernel);
        let (open, drops) =
            on_kernel.map_or((0, 0), |words| (words.open.load(Relaxed), words.drops.load(Relaxed)));
        account.connections_open += open;
        TenantReport {
            name: self.name.clone(),
            policy: policy.tenant(&self.name).map(ToString::to_string),
            account,
            rate_waits: self.budget.waits.load(Relaxed) + drops,
            holdings,
        }
    }

    /// Returns the account with what connections on the kernel have added to it, but for those that are open.
    fn account_with(&self, on_kernel: Option<&TenantWords>) -> Account {
        let mut account = self.account;
        let Some(words) = on_kernel else { return account };
        for (sum, word) in [
            (&mut account.connections_made, &words.made),
            (&mut account.connections_accepted, &words.accepted),
            (&mut account.connections_denied, &words.denied),
            (&mut account.connections_over_quota, &words.over_quota),
            (&mut account.bytes_sent, &words.sent),
            (&mut account.bytes_received, &words.received),
        ] {
            *sum += word.load(Relaxed);
        }
        account
    }
}

/// Fails if one of the counts that another driver has given is beyond any that a driver reaches.
fn check_counts(mut counts: impl Iterator<Item = u64>) -> Result<(), String> {
    match counts.find(|&count| count > COUNT_MAX) {
        Some(count) => Err(format!("a count of {count} is beyond any that a driver reaches")),
        None => Ok(()),
    }
}

/// Tells whether a client in `cgroup` is in the container that has `group`.
fn is_inside(cgroup: Option<&str>, group: Option<&str>) -> bool {
    cgroup.zip(group).is_some_and(|(path, group)| is_below(path, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_paths_have_the_driver_move_bytes() {
        let told = |text: &str| {
            let mut tenants = Tenants::new(Path::Direct, None);
            let red = tenants.enroll("red").unwrap();
            tenants.apply(Policy::parse(text).unwrap());
            let both = [TenantId::default(), red];
            let path = tenants.path(both, false, "10.0.0.1:80".parse().unwrap()).0;
            (path == Path::Offloaded, tenants.have_rates(both))
        };
        let rate = "[[tenant]]\nname = \"red\"\nrate = { bytes_per_second = \"1GB\" }\n";
        let rule = |path: &str| format!("[[rule]]\nport = 80\naction = \"allow\"\npath = {path:?}\n");
        assert_eq!(told(""), (false, false));
        assert_eq!(told("path = \"offloaded\""), (true, false));
        assert_eq!(told(&rule("offloaded")), (true, false));
        assert_eq!(told(rate), (true, true));
        assert_eq!(told(&format!("{rate}{}", rule("direct"))), (false, true));
        assert_eq!(told(&format!("path = \"offloaded\"\n{}", rule("direct"))), (false, false));
    }
}
