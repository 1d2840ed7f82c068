//! The entries of one generation in the kernel's maps. Programs look up those of the generation in force alone.
use super::known::{Change, Whose};
use super::plan::{Party, Plan, Verdicts};
use super::program::Maps;
use super::services::Services;
use super::sidecars::{Sidecars, There};
use super::table::{Table, ANY};
use crate::bpf::Plain;
use crate::ids::TenantId;
use crate::policy::via::At;
use crate::policy::{Policy, DEFAULT_TENANT};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Addresses of one network that mean those of another one, by number.
type Names = crate::policy::Maps<u32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
struct SourceKey {
    id: u64,
    generation: u32,
    is_group: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
struct PlaceKey {
    prefix: u32,
    generation: u32,
    network: u32,
    address: [u8; 16],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
struct PairKey {
    prefix: u32,
    generation: u32,
    from: u32,
    to: u32,
    port: [u8; 2],
    zero: [u8; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Whom {
    tenant: u32,
    class: u32,
    space: u32,
    network: u32,
}

// SAFETY: structures of numbers without padding, as `gate.bpf.h` has them.
unsafe impl Plain for SourceKey {}
// SAFETY: see above.
unsafe impl Plain for PlaceKey {}
// SAFETY: see above.
unsafe impl Plain for PairKey {}
// SAFETY: see above.
unsafe impl Plain for Whom {}

/// Network in the key of a place: the only one that has an address.
const ONLY: u32 = u32::MAX - 1;
/// Network in the value of a place: the address means one of another network.
const FAR: u32 = 1;
/// A class that no rule names.
const NO_CLASS: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub struct Generation {
    number: u32,
    hits: u32,
    policy: Arc<Policy>,
    maps: Arc<Names>,
    plan: Plan,
    /// Networks that have an address, for packets that do not carry their network.
    holders: HashMap<IpAddr, BTreeMap<u32, Whom>>,
    sources: Table<SourceKey, Whom>,
    places: Table<PlaceKey, Whom>,
    verdicts: Table<PairKey, u32>,
    services: Services,
    sidecars: Sidecars,
    /// Set after an entry could not be added. No further entries are added then.
    is_short: bool,
}

impl Generation {
    /// Makes the entries of a policy without any namespace, control group or address. `hits`: index of its first hit counter.
    ///
    /// # Errors
    /// A sentence; nothing is left then.
    pub fn new(
        number: u32,
        policy: Arc<Policy>,
        names: Arc<Names>,
        hits: u32,
        maps: Option<&Maps>,
    ) -> Result<Self, String> {
        let mut this = Self {
            maps: names,
            holders: HashMap::new(),
            number,
            hits,
            plan: Plan::new(Arc::clone(&policy))?,
            policy,
            sources: Table::new(maps.map(|maps| &maps.sources)),
            places: Table::new(maps.map(|maps| &maps.places)),
            verdicts: Table::new(maps.map(|maps| &maps.verdicts)),
            services: Services::new(number, maps.map(|maps| &maps.of_services)),
            sidecars: Sidecars::new(number, maps.map(|maps| &maps.of_sidecars)),
            is_short: false,
        };
        let networks: Vec<_> = this.plan.networks().collect();
        // Names cost a single look-up in the common network.
        let named =
            networks.into_iter().flat_map(|(net, party)| [0, ANY].map(|of| (of, net, whom(party, 0))));
        let nobody = Party { tenant: TenantId::default(), class: NO_CLASS };
        let far = Whom { network: FAR, ..whom(nobody, 0) };
        let mapped: Vec<_> = this.maps.prefixes().map(|(of, prefix)| (of, prefix, far)).collect();
        for (of, net, whom) in named.chain(mapped) {
            let key = this.place(of, net.addr(), net.prefix_len());
            if let Err(errno) = this.places.put(key, whom) {
                this.clear();
                return Err(full(errno));
            }
        }
        let filled = this.services.fill(&this.policy.services, this.plan.services());
        if let Err(errno) = filled.and_then(|()| this.sidecars.fill(&this.policy)) {
            this.clear();
            return Err(full(errno));
        }
        Ok(this)
    }

    /// Applies changes, in time proportional to them. `names`: names of tenants, by number.
    ///
    /// # Errors
    /// A sentence. The generation then takes no more changes, and has to be replaced.
    pub fn put(&mut self, changes: &[Change], names: &[String]) -> Result<(), String> {
        for change in changes {
            let done = match change {
                Change::Source { id, is_group, is: None } => {
                    self.sources.take(self.source(*id, *is_group));
                    Ok(())
                }
                Change::Place { network, ip, is: None } => self.free(*network, *ip),
                Change::Container { name, is } => {
                    let is =
                        is.clone().map(|(space, network, addresses)| There { space, network, addresses });
                    self.move_proxy(At::Container(name.clone()), is)
                }
                _ if self.is_short => Ok(()),
                Change::Source { id, is_group, is: Some(whose) } => {
                    self.connect(self.source(*id, *is_group), *whose, names)
                }
                Change::Place { network, ip, is: Some((tenant, space)) } => {
                    self.hold(*ip, Whose { tenant: *tenant, space: *space, network: *network }, names)
                }
            };
            if let Err(why) = done {
                self.is_short = true;
                return Err(why);
            }
        }
        Ok(())
    }

    fn connect(
        &mut self,
        key: SourceKey,
        Whose { tenant, space, network }: Whose,
        names: &[String],
    ) -> Result<(), String> {
        let (party, new) = self.plan.connects(tenant, name(names, tenant))?;
        // Nothing finds a class before it has a member.
        self.add(new)?;
        self.sources.put(key, Whom { network, ..whom(party, space) }).map_err(full)
    }

    fn hold(
        &mut self,
        ip: IpAddr,
        Whose { tenant, space, network }: Whose,
        names: &[String],
    ) -> Result<(), String> {
        if self.maps.real(network, ip).is_some() {
            // The address means another one there, whoever has it.
            return Ok(());
        }
        let called = name(names, tenant);
        self.lead(network, ip, called)?;
        let (party, new) = self.plan.holds(tenant, called, network, ip)?;
        self.add(new)?;
        let is = whom(party, space);
        self.places.put(self.place(network, ip, bits(ip)), is).map_err(full)?;
        self.holders.entry(ip).or_default().insert(network, is);
        self.tell_only(ip)?;
        for (viewer, alias) in self.maps.aliases(network, ip).collect::<Vec<_>>() {
            // Rules apply to the address that it means.
            self.plan.means(viewer, alias, party);
            self.lead(viewer, alias, called)?;
            let key = self.place(viewer, alias, bits(alias));
            self.places.put(key, Whom { network: FAR, ..is }).map_err(full)?;
        }
        if network != 0 {
            return Ok(());
        }
        self.move_proxy(At::Address(ip), Some(There { space, network, addresses: vec![ip] }))
    }

    /// Updates the entry that names the only network of an address.
    fn tell_only(&mut self, ip: IpAddr) -> Result<(), String> {
        let key = self.place(ONLY, ip, bits(ip));
        let holders = self.holders.get(&ip);
        match holders.filter(|of| of.len() == 1).and_then(|of| of.values().next()).copied() {
            Some(one) => self.places.put(key, one).map_err(full),
            None => {
                self.places.take(key);
                Ok(())
            }
        }
    }

    /// Records that a proxy that the policy may name is at a place from now on, or nowhere. Its own connections are known before
    /// others are led to it.
    fn move_proxy(&mut self, at: At, is: Option<There>) -> Result<(), String> {
        let policy = Arc::clone(&self.policy);
        if !Sidecars::names(&policy, &at) {
            return Ok(());
        }
        let (comes, touched) = (is.is_some(), self.sidecars.set(at, is));
        if !comes {
            self.sidecars.fill(&policy).map_err(full)?;
        }
        for space in touched {
            let rules = self.sidecars.rules_at(&policy, space);
            let class = if rules.is_empty() {
                None
            } else {
                let (class, new) = self.plan.passes(rules)?;
                self.add(new)?;
                Some(class)
            };
            self.sidecars.classify(space, class).map_err(full)?;
        }
        if comes {
            self.sidecars.fill(&policy).map_err(full)?;
        }
        Ok(())
    }

    fn free(&mut self, network: u32, ip: IpAddr) -> Result<(), String> {
        if self.maps.real(network, ip).is_some() {
            return Ok(());
        }
        if network == 0 {
            self.move_proxy(At::Address(ip), None)?;
        }
        if let Some(of) = self.holders.get_mut(&ip) {
            of.remove(&network);
            if of.is_empty() {
                self.holders.remove(&ip);
            }
        }
        self.tell_only(ip)?;
        let aliases: Vec<_> = self.maps.aliases(network, ip).collect();
        for (network, ip) in [(network, ip)].into_iter().chain(aliases) {
            let key = self.place(network, ip, bits(ip));
            match self.plan.frees(network, ip).filter(|_| network == 0) {
                // A rule names this very address.
                Some(party) => self.places.put(key, whom(party, 0)).map_err(full)?,
                None => self.places.take(key),
            }
            for backend in self.plan.backends(ip) {
                self.services.free(backend, network);
            }
        }
        Ok(())
    }

    /// Records the tenant `name` of an address that services lead to. The verdicts of rules for these services may change.
    fn lead(&mut self, network: u32, ip: IpAddr, name: &str) -> Result<(), String> {
        let (led, new) = self.plan.leads(ip, name)?;
        self.add(new)?;
        let mut led = led.into_iter();
        led.try_for_each(|(backend, class)| self.services.classify(backend, network, class)).map_err(full)
    }

    fn add(&mut self, new: Verdicts) -> Result<(), String> {
        for ((from, to, port, bits), verdict) in new {
            let (prefix, generation) = (96 + u32::from(bits), self.number);
            let key = PairKey { prefix, generation, from, to, port: port.to_be_bytes(), zero: [0; 2] };
            self.verdicts.put(key, verdict.0).map_err(full)?;
        }
        Ok(())
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.sources.clear();
        self.places.clear();
        self.verdicts.clear();
        self.services.clear();
        self.sidecars.clear();
    }

    fn source(&self, id: u64, is_group: bool) -> SourceKey {
        SourceKey { id, generation: self.number, is_group: u32::from(is_group) }
    }

    fn place(&self, network: u32, ip: IpAddr, bits: u8) -> PlaceKey {
        let (address, bits) = match ip {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped(), u32::from(bits) + 96),
            IpAddr::V6(v6) => (v6, u32::from(bits)),
        };
        PlaceKey { prefix: 64 + bits, generation: self.number, network, address: address.octets() }
    }

    /// Returns the generation's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the index of the policy's first hit counter.
    pub fn hits(&self) -> u32 {
        self.hits
    }

    /// Returns the policy that the entries are of.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Returns the policy, compiled.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the places of the policy's proxies.
    pub fn sidecars(&self) -> &Sidecars {
        &self.sidecars
    }

    /// Tells whether this generation has to be replaced.
    pub fn is_short(&self) -> bool {
        self.is_short
    }
}

fn name(names: &[String], tenant: TenantId) -> &str {
    names.get(tenant.index()).map_or(DEFAULT_TENANT, |name| name)
}

fn whom(party: Party, space: u32) -> Whom {
    Whom { tenant: u32::from(party.tenant.get()), class: party.class, space, network: 0 }
}

/// Returns the number of bits of an address.
fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() {
        32
    } else {
        128
    }
}

fn full(errno: Errno) -> String {
    format!("the kernel takes no more entries: {errno}")
}

#[cfg(test)]
mod tests {
    use super::super::known::{Holder, Known};
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 3] = [DEFAULT_TENANT, "red", "blue"];
    const POLICY: &str = r#"
        [[tenant]]
        name = "red"
        cgroups = ["/red"]
        [[tenant]]
        name = "blue"
        cgroups = ["/blue"]
        [[rule]]
        from = "red"
        to = "blue"
        port = ["1-1023", 9000]
        action = "deny"
        [[rule]]
        address = "10.0.0.2"
        port = 80
        action = "deny"
        [[rule]]
        to = "red"
        address = "10.0.0.0/29"
        action = "deny"
        [[rule]]
        from = "blue"
        action = "deny"
        port = 443
        [[rule]]
        to = "blue"
        address = "10.96.0.1"
        action = "deny"
        [[service]]
        address = "10.96.0.1:80"
        backends = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:9000"]
    "#;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn names() -> Vec<String> {
        NAMES.map(str::to_owned).into()
    }

    fn fresh(number: u32) -> Generation {
        Generation::new(number, Arc::new(Policy::parse(POLICY).unwrap()), Arc::default(), 0, None).unwrap()
    }

    impl Generation {
        /// Returns the result of `judge` in `gate.bpf.c`: tenants, and the verdict; none if it looks no further.
        fn judge(&self, cookie: u64, group: Option<u64>, to: IpAddr, port: u16) -> Option<(u32, u32, u32)> {
            let address = self.place(0, to, bits(to));
            let covers = |key: &&PlaceKey| {
                let bits = key.prefix - 64;
                let of =
                    |address: [u8; 16]| u128::from_be_bytes(address).checked_shr(128 - bits).unwrap_or(0);
                key.network == 0 && of(key.address) == of(address.address)
            };
            let place = self.places.there.keys().filter(covers).max_by_key(|key| key.prefix)?;
            let to = self.places.there[place];
            let space = self.sources.there.get(&self.source(cookie, false));
            let group = group.and_then(|id| self.sources.there.get(&self.source(id, true)));
            let from = group.or(space)?;
            if space.is_some_and(|space| space.space == to.space) {
                return None;
            }
            let found = self.named(from.class, to.class, port);
            Some((from.tenant, to.tenant, found.unwrap_or(self.plan.otherwise())))
        }

        /// Returns the verdict of the rules that name a pair of classes.
        fn named(&self, from: u32, to: u32, port: u16) -> Option<u32> {
            (0..=16u32).rev().find_map(|bits| {
                let port = (u32::from(port) & !(0xffff >> bits)) as u16;
                let (prefix, generation) = (96 + bits, self.number);
                let key = PairKey { prefix, generation, from, to, port: port.to_be_bytes(), zero: [0; 2] };
                self.verdicts.there.get(&key).copied()
            })
        }

        /// Returns the verdicts of rules that name the service, for each backend.
        fn of_service(&self, cookie: u64, port: u16) -> Vec<Option<u32>> {
            let from = self.sources.there.get(&self.source(cookie, false));
            let class = |backend| self.services.class((0, backend)).unwrap();
            (0..3).map(|backend| self.named(from?.class, class(backend), port)).collect()
        }
    }

    type Step = (u32, Option<(usize, Vec<u8>, Vec<u8>)>);

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let list = || prop::collection::vec(0u8..6, 0..3);
        prop::collection::vec((1u32..5, prop::option::of((0usize..3, list(), list()))), 1..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Namespaces and groups that came and went one after the other leave the entries of a fresh generation.
        #[test]
        fn differences_add_up_to_a_generation(steps in steps(), groups in prop::collection::vec(0usize..4, 0..6)) {
            let (mut known, mut generation) = (Known::default(), fresh(1));
            let verdicts = |generation: &Generation| {
                let ports = [1, 80, 443, 1023, 1024, 9000];
                let sources = (1..5u64).flat_map(|cookie| [(100 + cookie, None), (100 + cookie, Some(7))]);
                let all = sources.flat_map(|source| (0..6).flat_map(move |to| ports.map(|port| (source, to, port))));
                all.map(|((cookie, group), to, port)| generation.judge(cookie, group, ip(to), port)).collect::<Vec<_>>()
            };
            let mut groups = groups.into_iter();
            for (number, step) in steps {
                let holder = step.map(|(tenant, registered, held)| Holder {
                    cookie: 100 + u64::from(number),
                    before: u64::from(number),
                    tenant: TenantId::at(tenant),
                    network: 0,
                    container: None,
                    registered: registered.into_iter().map(ip).collect(),
                    held: held.into_iter().map(ip).collect(),
                });
                let changes = known.set_space(number, holder);
                generation.put(&changes, &names()).unwrap();
                if let Some(tenant) = groups.next() {
                    let group = (tenant < 3).then(|| (7, 1, TenantId::at(tenant)));
                    generation.put(&known.set_group("/a", group), &names()).unwrap();
                }
                let mut whole = fresh(2);
                whole.put(&known.all(), &names()).unwrap();
                prop_assert_eq!(verdicts(&generation), verdicts(&whole));
                for cookie in 101..105 {
                    let found = generation.of_service(cookie, 80);
                    prop_assert_eq!(&found, &whole.of_service(cookie, 80));
                    let is_blue = |last| known.owner(0, ip(last)).is_some_and(|(tenant, _)| tenant == TenantId::at(2));
                    let is_known = generation.sources.there.contains_key(&generation.source(cookie, false));
                    let expected = [1, 2, 3].map(|last| (is_known && is_blue(last)).then_some(4 << 1 | 1));
                    prop_assert_eq!(found, expected, "the rule for blue alone names the service");
                }
                prop_assert_eq!(generation.sources.there.len(), whole.sources.there.len());
                prop_assert_eq!(generation.places.there.len(), whole.places.there.len());
            }
        }
    }

    /// A further namespace touches its own entries only, with any number of others.
    #[test]
    fn one_more_namespace_costs_its_own_entries() {
        let (mut known, mut generation) = (Known::default(), fresh(1));
        let holder = |number: u32| Holder {
            cookie: u64::from(number),
            before: u64::from(number),
            tenant: TenantId::at(1 + number as usize % 2),
            network: 0,
            container: None,
            registered: Vec::new(),
            held: vec![IpAddr::from([10, 1, (number >> 8) as u8, number as u8])],
        };
        for number in 1..2000 {
            let changes = known.set_space(number, Some(holder(number)));
            assert_eq!(changes.len(), 2, "the namespace and its address");
            generation.put(&changes, &names()).unwrap();
        }
        let before = generation.verdicts.there.len();
        let gone = known.set_space(77, None);
        assert_eq!(gone.len(), 2);
        generation.put(&gone, &names()).unwrap();
        assert_eq!(generation.sources.there.len(), 1998);
        assert_eq!(generation.verdicts.there.len(), before, "verdicts are of classes");
    }
}
