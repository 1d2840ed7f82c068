//! A policy compiled into the entries of the kernel's maps. Pure: nothing here knows maps or namespaces.
//!
//! Two classes and a port decide a connect. The class of a tenant that connects is the list of rules that name it as `from`. The class of
//! an address is the list of rules that name its tenant as `to` and the address itself. The rules that are in both lists of a pair, in
//! order, give disjoint ranges of ports, each with its deciding rule. A range is stored as prefixes of the port's 16 bits, and the
//! longest match counts: one look-up, whatever the number of rules. A pair that no rule names is not stored.
use crate::ids::TenantId;
use crate::policy::via::{At, Hop};
use crate::policy::{Action, Limits, Policy, Rule, DEFAULT_TENANT};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Most entries of one policy; a policy with more is refused.
const ENTRIES_MAX: usize = 1 << 18;
/// Bits of a port.
const PORT_BITS: u32 = 16;

/// Numbers of rules, ascending.
type Rules = Vec<u32>;

/// Flag of a verdict: the rule leads through proxies.
const LEADS: u32 = 1 << 31;

/// The deciding rule: its number, doubled, plus 1 if it denies; and [`LEADS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict(pub u32);

impl Verdict {
    /// Denial without a rule.
    pub const DENIED: Self = Self(1);

    fn new(rule: usize, action: Action) -> Self {
        Self((rule as u32) << 1 | u32::from(action == Action::Deny))
    }

    fn of(number: u32, rule: &Rule) -> Self {
        let Self(word) = Self::new(number as usize, rule.action);
        Self(if rule.via.is_some() { word | LEADS } else { word })
    }

    /// Returns the rule's number.
    pub fn rule(self) -> usize {
        ((self.0 & !LEADS) >> 1) as usize
    }

    /// Tells whether the connection is denied.
    pub fn is_denied(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Tenant and class of a party of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    pub tenant: TenantId,
    pub class: u32,
}

/// A pair of classes, a port, and the number of the port's leading bits that count.
pub type Key = (u32, u32, u16, u8);

/// Verdicts that a new class brings.
pub type Verdicts = Vec<(Key, Verdict)>;

/// A service's backend, and its class in the rules that name the service's address.
pub type Led = ((usize, usize), u32);

/// See the module. Tenants and addresses may be added later: each call returns the new verdicts, and earlier ones stay.
#[derive(Debug)]
pub struct Plan {
    policy: Arc<Policy>,
    /// Tenants that connect.
    from: HashMap<TenantId, Party>,
    /// Known addresses, by network.
    places: HashMap<(u32, IpAddr), Party>,
    /// Networks that rules name: an unknown party there is of the default tenant.
    networks: BTreeMap<IpNet, Party>,
    nets: Nets,
    from_classes: Classes,
    to_classes: Classes,
    /// Rules that name a tenant as `to` without an address.
    bare: HashMap<TenantId, Rules>,
    /// Class of each backend of each service, in the rules that name the service's address.
    services: Vec<Vec<u32>>,
    /// Backends by address: index of the service, and index of the backend in it.
    backends: HashMap<IpAddr, Vec<(usize, usize)>>,
    /// Verdicts by pair and prefix of the port.
    verdicts: HashMap<Key, Verdict>,
    otherwise: Verdict,
}

/// Tells whether anything in the policy concerns the kernel.
pub fn binds(policy: &Policy) -> bool {
    let limits = |tenant: &crate::policy::Tenant| {
        tenant.connections_max.is_some()
            || tenant.limits.tenant.bytes.is_some()
            || tenant.limits.connection.bytes.is_some()
    };
    policy.default == Action::Deny
        || !policy.rules.is_empty()
        || !policy.services.is_empty()
        || !policy.maps.is_empty()
        || policy.tenants.iter().any(limits)
}

/// Returns the parts of the policy that the kernel cannot hold, a sentence for each.
pub fn unbound(policy: &Policy) -> Vec<String> {
    let mut sentences = Vec::new();
    for tenant in &policy.tenants {
        let Limits { tenant: all, connection } = tenant.limits;
        if all.messages.is_some() || connection.messages.is_some() {
            sentences.push(format!(
                "tenant {}: messages_per_second binds the fabric only, for kernel TCP knows no messages; add bytes_per_second",
                tenant.name
            ));
        }
        let is_named = |rule: &Rule| rule.to.contains(&tenant.name);
        if !tenant.cgroups.is_empty() && tenant.namespaces.is_empty() && policy.rules.iter().any(is_named) {
            sentences.push(format!(
                "tenant {}: on the kernel its listeners are known by the network namespaces of its control groups; in one that it shares \
                 with others, such as the host's, they are not told apart: add namespaces or containers",
                tenant.name
            ));
        }
    }
    if !policy.networks.is_empty() && !policy.services.is_empty() {
        sentences.push(
            "networks: a backend that several networks have at one address counts as down only if it has a listener in none of them"
                .to_owned(),
        );
    }
    let is_placed = |hop: &Hop| matches!(hop.at, At::Address(_));
    if !policy.networks.is_empty() && policy.chains().any(|(.., via)| via.hops.iter().any(is_placed)) {
        sentences.push(
            "networks: on the kernel a proxy named by an address is one of the common network; name a container instead"
                .to_owned(),
        );
    }
    if !policy.maps.is_empty() {
        sentences.push(
            "maps: the kernel has no way between networks: a connect to a mapped address fails there with EHOSTUNREACH, as that of a \
             static program; connect natively, or with --preload"
                .to_owned(),
        );
    }
    sentences
}

impl Plan {
    /// Begins with a policy, without any tenant or address.
    ///
    /// # Errors
    /// If it is too large, a sentence.
    pub fn new(policy: Arc<Policy>) -> Result<Self, String> {
        if policy.rules.len() >= super::words::RULES {
            return Err(format!("the kernel takes {} rules at most; join some", super::words::RULES - 1));
        }
        let mut this = Self {
            otherwise: Verdict::new(policy.rules.len(), policy.default),
            nets: Nets::new(&policy),
            policy,
            from: HashMap::new(),
            places: HashMap::new(),
            networks: BTreeMap::new(),
            from_classes: Classes::default(),
            to_classes: Classes::default(),
            bare: HashMap::new(),
            services: Vec::new(),
            backends: HashMap::new(),
            verdicts: HashMap::new(),
        };
        for net in this.nets.all().collect::<Vec<_>>() {
            let (party, _) = this.party_at(TenantId::default(), DEFAULT_TENANT, net)?;
            this.networks.insert(net, party);
        }
        let policy = Arc::clone(&this.policy);
        this.services = policy.services.iter().map(|service| vec![0; service.backends.len()]).collect();
        for (number, service) in policy.services.iter().enumerate() {
            for (part, backend) in service.backends.iter().enumerate() {
                let ip = backend.address.ip().to_canonical();
                this.backends.entry(ip).or_default().push((number, part));
            }
        }
        for ip in this.backends.keys().copied().collect::<Vec<_>>() {
            this.leads(ip, DEFAULT_TENANT)?;
        }
        Ok(this)
    }

    /// Adds a tenant, called `name`, that connects. Returns its class, and the new verdicts.
    ///
    /// # Errors
    /// If there are too many verdicts, a sentence; the tenant is not added then.
    pub fn connects(&mut self, tenant: TenantId, name: &str) -> Result<(Party, Verdicts), String> {
        if let Some(party) = self.from.get(&tenant) {
            return Ok((*party, Vec::new()));
        }
        let rules = numbers(&self.policy, |rule| has(&rule.from, name));
        let (class, new) = self.class(rules, true)?;
        let party = Party { tenant, class };
        self.from.insert(tenant, party);
        Ok((party, new))
    }

    /// Gives an address of a network to the tenant that is called `name`. Returns its class, and the new verdicts.
    ///
    /// # Errors
    /// If there are too many verdicts, a sentence; the address has no owner then.
    pub fn holds(
        &mut self,
        tenant: TenantId,
        name: &str,
        network: u32,
        ip: IpAddr,
    ) -> Result<(Party, Verdicts), String> {
        let ip = ip.to_canonical();
        self.places.remove(&(network, ip));
        let (party, new) = self.party_at(tenant, name, ip.into())?;
        self.places.insert((network, ip), party);
        Ok((party, new))
    }

    /// Records that an address means, in a network, one with the class of `party`.
    pub fn means(&mut self, network: u32, ip: IpAddr, party: Party) {
        self.places.insert((network, ip.to_canonical()), party);
    }

    /// Removes the owner of an address of a network. Returns the class of the address as a prefix, if rules name it.
    pub fn frees(&mut self, network: u32, ip: IpAddr) -> Option<Party> {
        let ip = ip.to_canonical();
        self.places.remove(&(network, ip));
        self.networks.get(&IpNet::from(ip)).copied()
    }

    /// Records the tenant `name` of an address. Returns the backends of services there, with their classes, and the new verdicts.
    ///
    /// # Errors
    /// If there are too many verdicts, a sentence.
    pub fn leads(&mut self, ip: IpAddr, name: &str) -> Result<(Vec<Led>, Verdicts), String> {
        let (policy, mut led, mut all) = (Arc::clone(&self.policy), Vec::new(), Verdicts::new());
        for (service, backend) in self.backends.get(&ip.to_canonical()).cloned().unwrap_or_default() {
            let mut rules = self.nets.around(policy.services[service].address.ip().to_canonical().into());
            rules.retain(|&rule| has(&policy.rules[rule as usize].to, name));
            rules.sort_unstable();
            rules.dedup();
            let (class, new) = self.class(rules, false)?;
            self.services[service][backend] = class;
            led.push(((service, backend), class));
            all.extend(new);
        }
        Ok((led, all))
    }

    /// Returns the backends of services at an address.
    pub fn backends(&self, ip: IpAddr) -> Vec<(usize, usize)> {
        self.backends.get(&ip.to_canonical()).cloned().unwrap_or_default()
    }

    /// Returns the class of connections by the proxies of these rules, and the new verdicts.
    ///
    /// # Errors
    /// If there are too many verdicts, a sentence.
    pub fn passes(&mut self, rules: Vec<u32>) -> Result<(u32, Verdicts), String> {
        self.class(rules, true)
    }

    /// Returns the class of each backend of each service, in the rules that name the service's address.
    pub fn services(&self) -> &[Vec<u32>] {
        &self.services
    }

    /// Returns the networks that rules name, and their classes.
    pub fn networks(&self) -> impl Iterator<Item = (IpNet, Party)> + '_ {
        self.networks.iter().map(|(net, party)| (*net, *party))
    }

    fn party_at(&mut self, tenant: TenantId, name: &str, net: IpNet) -> Result<(Party, Verdicts), String> {
        let policy = &self.policy;
        let bare = self
            .bare
            .entry(tenant)
            .or_insert_with(|| numbers(policy, |rule| rule.addresses.is_empty() && has(&rule.to, name)));
        let mut rules = self.nets.around(net);
        rules.retain(|&rule| has(&policy.rules[rule as usize].to, name));
        rules.extend(&*bare);
        rules.sort_unstable();
        rules.dedup();
        let (class, new) = self.class(rules, false)?;
        Ok((Party { tenant, class }, new))
    }

    /// Returns the number of a class, and its verdicts with all classes of the other side if it is new.
    fn class(&mut self, rules: Rules, is_from: bool) -> Result<(u32, Verdicts), String> {
        let (own, others) = match is_from {
            true => (&self.from_classes, &self.to_classes),
            false => (&self.to_classes, &self.from_classes),
        };
        if let Some(class) = own.number(&rules) {
            return Ok((class, Vec::new()));
        }
        let (class, mut new) = (own.next(), Vec::new());
        for (other, of_other) in others.iter() {
            let pair = if is_from { (class, other) } else { (other, class) };
            pair_up(&self.policy, pair, &common(&rules, of_other), &mut new);
            if self.verdicts.len() + new.len() > ENTRIES_MAX {
                return Err(format!(
                    "the policy is too large for the kernel: more than {ENTRIES_MAX} entries; join rules or tenants"
                ));
            }
        }
        self.verdicts.extend(new.iter().copied());
        let own = if is_from { &mut self.from_classes } else { &mut self.to_classes };
        own.add(rules);
        Ok((class, new))
    }

    /// Returns the verdict on a connect, as the kernel's programs find it. None: the policy has no such party.
    pub fn decide(&self, from: TenantId, network: u32, to: IpAddr, port: u16) -> Option<Verdict> {
        let (from, to) = (self.from.get(&from)?, self.place(network, to)?);
        Some(self.named(from.class, to.class, port).unwrap_or(self.otherwise))
    }

    /// Returns the verdict on a connect through a service, by the steps of the kernel's programs.
    #[cfg(test)]
    fn decide_service(
        &self,
        from: TenantId,
        (service, backend): (usize, usize),
        asked: std::net::SocketAddr,
        reached: std::net::SocketAddr,
    ) -> Option<Verdict> {
        let class = self.services[service][backend];
        let from = self.from.get(&from)?.class;
        let named = self.named(from, class, asked.port());
        if named.is_some_and(Verdict::is_denied) {
            return named;
        }
        let Some(to) = self.place(0, reached.ip()) else { return named };
        self.named(from, to.class, reached.port()).or(named).or(Some(self.otherwise))
    }

    /// Returns the verdict of the rules that name a pair.
    fn named(&self, from: u32, to: u32, port: u16) -> Option<Verdict> {
        (0..=PORT_BITS as u8).rev().find_map(|bits| {
            let mask = (u32::from(u16::MAX) << (PORT_BITS - u32::from(bits))) as u16;
            self.verdicts.get(&(from, to, port & mask, bits)).copied()
        })
    }

    /// Returns the party at an address of a network: its own, or that of the smallest prefix around it.
    fn place(&self, network: u32, ip: IpAddr) -> Option<Party> {
        let ip = ip.to_canonical();
        let around = || {
            let nets = self.networks.iter().filter(|(net, _)| net.contains(&ip));
            nets.max_by_key(|(net, _)| net.prefix_len()).map(|(_, party)| *party)
        };
        self.places.get(&(network, ip)).copied().or_else(around)
    }

    /// Returns the verdict where no rule is named.
    pub fn otherwise(&self) -> u32 {
        self.otherwise.0
    }
}

/// Adds the verdicts of a pair of classes that both contain these rules.
fn pair_up(policy: &Policy, (from, to): (u32, u32), rules: &[u32], into: &mut Verdicts) {
    // Ranges of ports that no rule has decided yet: first port, last port.
    let mut open = BTreeMap::from([(0u16, u16::MAX)]);
    for &number in rules {
        let rule = &policy.rules[number as usize];
        let verdict = Verdict::of(number, rule);
        if rule.ports.is_empty() {
            // The remaining ports.
            into.push(((from, to, 0, 0), verdict));
            return;
        }
        for ports in &rule.ports {
            for range in take(&mut open, ports) {
                into.extend(
                    prefixes(range).into_iter().map(|(port, bits)| ((from, to, port, bits), verdict)),
                );
            }
        }
    }
}

/// Lists of rules, numbered.
#[derive(Debug, Default)]
struct Classes(HashMap<Rules, u32>);

impl Classes {
    fn number(&self, rules: &Rules) -> Option<u32> {
        self.0.get(rules).copied()
    }

    fn next(&self) -> u32 {
        self.0.len() as u32
    }

    fn add(&mut self, rules: Rules) {
        let next = self.next();
        self.0.insert(rules, next);
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &Rules)> {
        self.0.iter().map(|(rules, number)| (*number, rules))
    }
}

/// Networks that rules name, with the rules.
#[derive(Debug)]
struct Nets {
    rules: BTreeMap<IpNet, Rules>,
    /// Lengths of prefixes, of IPv4 (true) and of IPv6.
    lens: BTreeSet<(bool, u8)>,
}

impl Nets {
    fn new(policy: &Policy) -> Self {
        let mut this = Self { rules: BTreeMap::new(), lens: BTreeSet::new() };
        for (number, rule) in policy.rules.iter().enumerate() {
            for net in &rule.addresses {
                this.lens.insert((net.addr().is_ipv4(), net.prefix_len()));
                this.rules.entry(net.trunc()).or_default().push(number as u32);
            }
        }
        this
    }

    fn all(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.rules.keys().copied()
    }

    /// Returns the rules of all networks that contain this one.
    fn around(&self, net: IpNet) -> Rules {
        let family = net.addr().is_ipv4();
        let lens = self.lens.range((family, 0)..=(family, net.prefix_len()));
        let nets = lens.filter_map(|(_, len)| Some(IpNet::new(net.addr(), *len).ok()?.trunc()));
        nets.filter_map(|net| self.rules.get(&net)).flatten().copied().collect()
    }
}

fn has(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|own| own == name)
}

fn numbers(policy: &Policy, names: impl Fn(&Rule) -> bool) -> Rules {
    let all = policy.rules.iter().enumerate();
    all.filter(|(_, rule)| names(rule)).map(|(number, _)| number as u32).collect()
}

/// Returns the common elements of two ascending lists.
fn common(a: &[u32], b: &[u32]) -> Rules {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    short.iter().copied().filter(|rule| long.binary_search(rule).is_ok()).collect()
}

/// Takes from `open` the ports that lie in `ports`.
fn take(open: &mut BTreeMap<u16, u16>, ports: &RangeInclusive<u16>) -> Vec<RangeInclusive<u16>> {
    let (first, last) = (*ports.start(), *ports.end());
    let before = open.range(..first).next_back().map(|(begin, _)| *begin);
    let inside = open.range(first..=last).map(|(begin, _)| *begin);
    let begins: Vec<_> = before.into_iter().chain(inside).collect();
    let mut taken = Vec::new();
    for begin in begins {
        let Some(&end) = open.get(&begin).filter(|&&end| end >= first) else { continue };
        open.remove(&begin);
        if begin < first {
            open.insert(begin, first - 1);
        }
        if end > last {
            open.insert(last + 1, end);
        }
        taken.push(begin.max(first)..=end.min(last));
    }
    taken
}

/// Splits a range of ports into prefixes: the first port, and the number of bits that count.
fn prefixes(range: RangeInclusive<u16>) -> Vec<(u16, u8)> {
    let (mut at, end) = (u32::from(*range.start()), u32::from(*range.end()) + 1);
    let mut found = Vec::new();
    while at < end {
        // The largest block that begins here and does not go beyond.
        let aligned = if at == 0 { PORT_BITS } else { at.trailing_zeros() };
        let free = aligned.min((end - at).ilog2());
        found.push((at as u16, (PORT_BITS - free) as u8));
        at += 1 << free;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Attempt;
    use proptest::prelude::*;

    const NAMES: [&str; 4] = [DEFAULT_TENANT, "red", "blue", "green"];
    const ADDRESSES: [&str; 6] = ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.9.9.9", "fd00::1", "192.0.2.1"];
    const NETS: [&str; 6] =
        ["10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32", "10.9.9.9/32", "fd00::/8", "10.0.1.0/31"];

    fn some<T: Clone + std::fmt::Debug + 'static>(of: Vec<T>) -> impl Strategy<Value = Vec<T>> {
        let len = of.len();
        prop::sample::subsequence(of, 0..=len.min(2))
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let names = || some(NAMES.map(str::to_owned).to_vec());
        let nets = some(NETS.iter().map(|net| net.parse::<IpNet>().unwrap()).collect());
        let port = prop_oneof![1u16..20, any::<u16>().prop_map(|p| p.max(1)), Just(u16::MAX)];
        let ports = prop::collection::vec((port.clone(), port), 0..3);
        let ports = ports.prop_map(|ends| ends.into_iter().map(|(a, b)| a.min(b)..=a.max(b)).collect());
        (names(), names(), nets, ports, any::<bool>()).prop_map(|(from, to, addresses, ports, denies)| Rule {
            from,
            to,
            addresses,
            ports,
            action: if denies { Action::Deny } else { Action::Allow },
            ..Rule::default()
        })
    }

    proptest! {
        /// Checks that the kernel's entries and the policy itself give the same rule and verdict.
        #[test]
        fn the_kernel_decides_as_the_policy_does(
            rules in prop::collection::vec(rule(), 0..12),
            denies in any::<bool>(),
            ports in prop::collection::vec(prop_oneof![0u16..24, any::<u16>()], 24),
            owners in prop::collection::vec(0usize..4, 4),
        ) {
            let default = if denies { Action::Deny } else { Action::Allow };
            let policy = Policy { rules, default, ..Policy::default() };
            let tenants: Vec<_> = (0..4).map(TenantId::at).collect();
            let ips: Vec<IpAddr> = ADDRESSES.iter().map(|ip| ip.parse().unwrap()).collect();
            // Two of them have no owner.
            let places: Vec<_> = ips[..4].iter().zip(&owners).map(|(ip, owner)| (*ip, TenantId::at(*owner)))
                .filter(|(ip, _)| *ip != ips[3]).collect();
            let mut plan = Plan::new(Arc::new(policy.clone())).unwrap();
            // In any order: an address may have had another owner.
            for (tenant, name) in tenants.iter().zip(NAMES) {
                plan.holds(*tenant, name, 0, ips[0]).unwrap();
            }
            plan.frees(0, ips[0]);
            for (ip, tenant) in &places {
                plan.holds(*tenant, NAMES[tenant.index()], 0, *ip).unwrap();
            }
            for (tenant, name) in tenants.iter().zip(NAMES) {
                plan.connects(*tenant, name).unwrap();
            }
            for (tenant, from) in tenants.iter().zip(NAMES) {
                for &ip in &ips {
                    let known = places.iter().find(|(own, _)| *own == ip).map(|(_, tenant)| NAMES[tenant.index()]);
                    let is_named = policy.rules.iter().any(|rule| rule.addresses.iter().any(|net| net.contains(&ip)));
                    for &port in &ports {
                        let found = plan.decide(*tenant, 0, ip, port);
                        if known.is_none() && !is_named {
                            prop_assert_eq!(found, None);
                            continue;
                        }
                        let to = known.unwrap_or(DEFAULT_TENANT);
                        let (action, rule) = policy.decide(&Attempt { from, to, address: ip, port });
                        let expected = Verdict::new(rule.unwrap_or(policy.rules.len()), action);
                        prop_assert_eq!(found, Some(expected), "{} to {} {}:{}", from, to, ip, port);
                    }
                }
            }
        }

        /// Checks that entries and policy agree on connects through a service.
        #[test]
        fn the_kernel_decides_on_services_as_the_policy_does(
            rules in prop::collection::vec(rule(), 0..12),
            denies in any::<bool>(),
            owners in prop::collection::vec(0usize..4, 3),
            asked in 1u16..24,
            port in 1u16..24,
        ) {
            let services = Policy::parse(&format!(
                "[[service]]\naddress = \"10.9.9.9:{asked}\"\n\
                 backends = [\"10.0.0.1:{port}\", \"10.0.0.2:{port}\", \"10.0.1.1:{port}\"]"
            )).unwrap().services;
            let default = if denies { Action::Deny } else { Action::Allow };
            let policy = Policy { rules, default, services, ..Policy::default() };
            let tenants: Vec<_> = (0..4).map(TenantId::at).collect();
            let service = &policy.services[0];
            let mut plan = Plan::new(Arc::new(policy.clone())).unwrap();
            for (tenant, name) in tenants.iter().zip(NAMES) {
                plan.connects(*tenant, name).unwrap();
            }
            // An address may have had another owner, or none.
            for owners in [[3; 3].as_slice(), &[0; 3], &owners] {
                for (backend, &owner) in service.backends.iter().zip(owners) {
                    plan.holds(TenantId::at(owner), NAMES[owner], 0, backend.address.ip()).unwrap();
                    plan.leads(backend.address.ip(), NAMES[owner]).unwrap();
                }
            }
            for (tenant, from) in tenants.iter().zip(NAMES) {
                for (index, (backend, &owner)) in service.backends.iter().zip(&owners).enumerate() {
                    let found = plan.decide_service(*tenant, (0, index), service.address, backend.address);
                    let attempt = |at: std::net::SocketAddr| {
                        Attempt { from, to: NAMES[owner], address: at.ip(), port: at.port() }
                    };
                    let (action, rule) = policy.decide_service(&attempt(service.address), &attempt(backend.address));
                    prop_assert_eq!(found, Some(Verdict::new(rule.unwrap_or(policy.rules.len()), action)));
                }
            }
        }

        #[test]
        fn prefixes_are_the_range(a in any::<u16>(), b in any::<u16>()) {
            let range = a.min(b)..=a.max(b);
            let mut next = u32::from(*range.start());
            for (port, bits) in prefixes(range.clone()) {
                prop_assert_eq!(u32::from(port), next);
                next += 1 << (PORT_BITS - u32::from(bits));
            }
            prop_assert_eq!(next, u32::from(*range.end()) + 1);
        }
    }

    #[test]
    fn entries_grow_with_the_rules_and_not_with_their_square() {
        let rule = |n: u16| Rule { ports: vec![n..=n], action: Action::Deny, ..Rule::default() };
        let policy = Policy { rules: (1..=10_000).map(rule).collect(), ..Policy::default() };
        let mut plan = Plan::new(Arc::new(policy.clone())).unwrap();
        let mut entries = 0;
        for n in 0..100u8 {
            let (tenant, name) = (TenantId::at(n.into()), format!("t{n}"));
            entries += plan.holds(tenant, &name, 0, IpAddr::from([10, 0, 0, n])).unwrap().1.len();
            entries += plan.connects(tenant, &name).unwrap().1.len();
        }
        assert_eq!((entries, plan.verdicts.len()), (10_000, 10_000));
        assert!(binds(&policy) && !binds(&Policy::default()));
    }

    #[test]
    fn what_the_kernel_cannot_hold_is_said() {
        let text = "[[tenant]]\nname = \"red\"\ncgroups = [\"/red\"]\nrate = { messages_per_second = 10 }\n\
                    [[rule]]\nto = \"red\"\naction = \"deny\"";
        let sentences = unbound(&Policy::parse(text).unwrap());
        for (sentence, word) in sentences.iter().zip(["messages_per_second", "control groups"]) {
            assert!(sentence.contains(word), "{sentence}");
        }
        assert_eq!(sentences.len(), 2);
        assert!(unbound(&Policy::default()).is_empty());
    }
}
