//! Owners of network namespaces, control groups and addresses. Pure: each change returns its effects, in time proportional to them.
//!
//! Within a network an address belongs to the namespace that `pd run` registered it for. Otherwise it belongs to the first known
//! namespace that holds it.
use crate::ids::TenantId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub cookie: u64,
    /// Number of namespaces that were known before.
    pub before: u64,
    pub tenant: TenantId,
    /// The number of its network.
    pub network: u32,
    /// The container that `pd run` registered there.
    pub container: Option<String>,
    /// Addresses that `pd run` registered.
    pub registered: Vec<IpAddr>,
    /// Addresses that are on its interfaces.
    pub held: Vec<IpAddr>,
}

/// A control group: number, depth, tenant.
pub type Group = (u64, u32, TenantId);

/// Owner of a namespace or a control group, the number of the namespace, and the number of its network. Both are 0 for a control
/// group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whose {
    pub tenant: TenantId,
    pub space: u32,
    pub network: u32,
}

/// A change for the programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Owner of a namespace or a control group, if any.
    Source { id: u64, is_group: bool, is: Option<Whose> },
    /// Owner of an address of a network, if any, and the owner's namespace.
    Place { network: u32, ip: IpAddr, is: Option<(TenantId, u32)> },
    /// Place of a container that `pd run` registered: number and network of the namespace, and the container's addresses.
    Container { name: String, is: Option<(u32, u32, Vec<IpAddr>)> },
}

impl Holder {
    fn whose(&self, number: u32) -> Whose {
        Whose { tenant: self.tenant, space: number, network: self.network }
    }
}

/// A claim to an address: false if it is registered, the number of namespaces that were known before, and the number of its own.
type Claim = (bool, u64, u32);

/// See the module.
#[derive(Debug, Default)]
pub struct Known {
    /// Namespaces by number.
    spaces: BTreeMap<u32, Holder>,
    /// Claims by network, the owner's first.
    claims: HashMap<IpAddr, BTreeMap<u32, BTreeSet<Claim>>>,
    /// Control groups by path.
    groups: BTreeMap<String, Group>,
}

impl Known {
    /// Sets or removes a namespace.
    pub fn set_space(&mut self, number: u32, new: Option<Holder>) -> Vec<Change> {
        let old = self.spaces.get(&number).cloned();
        if old == new {
            return Vec::new();
        }
        let network = |holder: &Option<Holder>| holder.as_ref().map_or(0, |holder| holder.network);
        let addresses = |holder: &Option<Holder>| {
            let network = network(holder);
            let lists = holder.iter().flat_map(|holder| {
                [(false, holder.before, &holder.registered), (true, holder.before, &holder.held)]
            });
            let claims = lists.flat_map(|(is_held, before, list)| {
                list.iter().map(move |ip| ((network, ip.to_canonical()), (is_held, before, number)))
            });
            claims.collect::<Vec<_>>()
        };
        let (before, after) = (addresses(&old), addresses(&new));
        let touched: BTreeSet<(u32, IpAddr)> = before.iter().chain(&after).map(|(at, _)| *at).collect();
        let was: Vec<_> =
            touched.iter().map(|&(network, ip)| (network, ip, self.owner(network, ip))).collect();
        for ((network, ip), claim) in before {
            let Some(networks) = self.claims.get_mut(&ip) else { continue };
            if let Some(claims) = networks.get_mut(&network) {
                claims.remove(&claim);
                if claims.is_empty() {
                    networks.remove(&network);
                }
            }
            if networks.is_empty() {
                self.claims.remove(&ip);
            }
        }
        for ((network, ip), claim) in after {
            self.claims.entry(ip).or_default().entry(network).or_default().insert(claim);
        }
        let mut changes = Vec::new();
        let source = |holder: &Holder| (holder.cookie, holder.tenant, holder.network);
        if old.as_ref().map(source) != new.as_ref().map(source) {
            let gone = old.as_ref().filter(|old| new.as_ref().is_none_or(|new| new.cookie != old.cookie));
            changes.extend(gone.map(|old| Change::Source { id: old.cookie, is_group: false, is: None }));
            changes.extend(new.as_ref().map(|new| Change::Source {
                id: new.cookie,
                is_group: false,
                is: Some(new.whose(number)),
            }));
        }
        let called = |holder: &Option<Holder>| {
            let holder = holder.as_ref()?;
            Some((holder.container.clone()?, (holder.network, holder.registered.clone())))
        };
        let (before, after) = (called(&old), called(&new));
        match new {
            Some(new) => drop(self.spaces.insert(number, new)),
            None => drop(self.spaces.remove(&number)),
        }
        if before != after {
            let names: BTreeSet<String> =
                [before, after].into_iter().flatten().map(|(name, _)| name).collect();
            changes.extend(names.into_iter().map(|name| self.container(name)));
        }
        let is = was.into_iter().map(|(network, ip, was)| (network, ip, was, self.owner(network, ip)));
        let news = is.filter(|(_, _, was, is)| was != is);
        changes.extend(news.map(|(network, ip, _, is)| Change::Place { network, ip, is }));
        changes
    }

    /// Sets or removes a control group.
    pub fn set_group(&mut self, path: &str, new: Option<Group>) -> Vec<Change> {
        let old = match new {
            Some(new) => self.groups.insert(path.to_owned(), new),
            None => self.groups.remove(path),
        };
        if old == new {
            return Vec::new();
        }
        let mut numbers: Vec<_> = [old, new].into_iter().flatten().map(|(number, ..)| number).collect();
        numbers.dedup();
        // Two paths may lead to one group.
        let of = |id: u64| {
            let found = self.groups.values().find(|(number, ..)| *number == id);
            found.map(|(.., tenant)| Whose { tenant: *tenant, space: 0, network: 0 })
        };
        numbers.into_iter().map(|id| Change::Source { id, is_group: true, is: of(id) }).collect()
    }

    /// Returns the place of a container.
    fn container(&self, name: String) -> Change {
        let mut named = self.spaces.iter().filter(|(_, holder)| holder.container.as_ref() == Some(&name));
        let is = named.next().map(|(number, holder)| {
            let canonical = holder.registered.iter().map(|ip| ip.to_canonical());
            (*number, holder.network, canonical.collect())
        });
        Change::Container { name, is }
    }

    /// Returns the owner of an address of a network, and the owner's namespace.
    pub fn owner(&self, network: u32, ip: IpAddr) -> Option<(TenantId, u32)> {
        let (_, _, number) = self.claims.get(&ip)?.get(&network)?.first()?;
        Some((self.spaces.get(number)?.tenant, *number))
    }

    /// Returns the numbers of the namespaces that have an address, in any network.
    pub fn owners(&self, ip: IpAddr) -> Vec<u32> {
        let networks = self.claims.get(&ip).into_iter().flat_map(|networks| networks.values());
        networks.filter_map(|claims| Some(claims.first()?.2)).collect()
    }

    /// Returns the namespaces: cookie and owner.
    pub fn spaces(&self) -> impl Iterator<Item = (u64, Whose)> + '_ {
        self.spaces.iter().map(|(number, holder)| (holder.cookie, holder.whose(*number)))
    }

    /// Returns the tenants of control groups, by the groups' numbers.
    pub fn groups(&self) -> HashMap<u64, TenantId> {
        self.groups.values().map(|(number, _, tenant)| (*number, *tenant)).collect()
    }

    /// Returns the depths of all control groups, a bit each.
    pub fn levels(&self) -> u32 {
        self.groups.values().fold(0, |all, (_, depth, _)| all | 1 << depth)
    }

    /// Returns all that is known, as changes from nothing.
    pub fn all(&self) -> Vec<Change> {
        let spaces = self.spaces.iter().map(|(number, holder)| Change::Source {
            id: holder.cookie,
            is_group: false,
            is: Some(holder.whose(*number)),
        });
        let mut by_number = BTreeMap::new();
        for (id, _, tenant) in self.groups.values() {
            by_number.entry(*id).or_insert(*tenant);
        }
        let groups = by_number.into_iter().map(|(id, tenant)| Change::Source {
            id,
            is_group: true,
            is: Some(Whose { tenant, space: 0, network: 0 }),
        });
        let places =
            self.claims.iter().flat_map(|(ip, networks)| networks.keys().map(move |network| (*ip, *network)));
        let places = places.map(|(ip, network)| Change::Place { network, ip, is: self.owner(network, ip) });
        let names: BTreeSet<_> = self.spaces.values().filter_map(|holder| holder.container.clone()).collect();
        let containers = names.into_iter().map(|name| self.container(name));
        spaces.chain(groups).chain(places).chain(containers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_registered_address_is_nobody_elses_and_others_are_the_firsts() {
        let mut known = Known::default();
        let holder = |tenant, registered: &[u8], held: &[u8]| {
            let list = |of: &[u8]| of.iter().map(|last| ip(*last)).collect();
            let (registered, held) = (list(registered), list(held));
            let (cookie, before) = (70 + tenant as u64, tenant as u64);
            let (tenant, network) = (TenantId::at(tenant), 0);
            Some(Holder { cookie, before, tenant, network, container: None, registered, held })
        };
        known.set_space(12, holder(2, &[], &[1, 2]));
        assert_eq!(known.set_space(3, holder(3, &[], &[1, 3])).len(), 2, "itself and one address");
        assert_eq!(known.owner(0, ip(1)), Some((TenantId::at(2), 12)), "the first, whatever the numbers");
        known.set_space(4, holder(4, &[1], &[]));
        assert_eq!(known.owner(0, ip(1)), Some((TenantId::at(4), 4)));
        // The next namespace has it.
        let gone = known.set_space(4, None);
        let is = Some((TenantId::at(2), 12));
        let expected = [
            Change::Source { id: 74, is_group: false, is: None },
            Change::Place { network: 0, ip: ip(1), is },
        ];
        assert_eq!(gone, expected);
        assert_eq!(known.set_space(12, holder(2, &[], &[1, 2])), [], "nothing has changed");
        // In another network it is an address of its own.
        known.set_space(5, holder(1, &[1], &[]).map(|holder| Holder { network: 7, ..holder }));
        assert_eq!((known.owner(0, ip(1)), known.owner(7, ip(1))), (is, Some((TenantId::at(1), 5))));
        assert_eq!(known.owners(ip(1)), [12, 5]);
    }

    fn holders() -> impl Strategy<Value = Vec<(u32, Option<Holder>)>> {
        let list = || prop::collection::vec((0u8..5).prop_map(ip), 0..3);
        let holder = (0usize..3, 0u32..3, list(), list());
        prop::collection::vec((0u32..4, prop::option::of(holder)), 0..20).prop_map(|steps| {
            let made = |number: u32, (tenant, network, registered, held)| Holder {
                cookie: 100 + u64::from(number),
                before: 100 - u64::from(number),
                tenant: TenantId::at(tenant),
                network,
                container: None,
                registered,
                held,
            };
            steps.into_iter().map(|(number, holder)| (number, holder.map(|of| made(number, of)))).collect()
        })
    }

    proptest! {
        /// Checks that changes add up to the whole.
        #[test]
        fn changes_add_up(
            steps in holders(),
            groups in prop::collection::vec((0usize..3, prop::option::of((1u64..4, 1u32..3, 0usize..3))), 0..10),
        ) {
            let mut known = Known::default();
            let mut told = HashMap::new();
            let mut changes = Vec::new();
            for (number, holder) in steps {
                changes.extend(known.set_space(number, holder));
            }
            for (path, group) in groups {
                let group = group.map(|(number, depth, tenant)| (number, depth, TenantId::at(tenant)));
                changes.extend(known.set_group(["/a", "/a/b", "a"][path], group));
            }
            let key = |change: &Change| match change {
                Change::Source { id, is_group, is } => {
                    let is = is.map(|is| (is.tenant, is.space, is.network));
                    ((Some((*id, *is_group)), None), is)
                }
                Change::Place { network, ip, is } => {
                    ((None, Some((*network, *ip))), is.map(|(tenant, space)| (tenant, space, *network)))
                }
                Change::Container { .. } => unreachable!("no container has a name"),
            };
            for change in &changes {
                let (key, is) = key(change);
                match is {
                    Some(is) => drop(told.insert(key, is)),
                    None => drop(told.remove(&key)),
                }
            }
            let all = known.all();
            let all: HashMap<_, _> = all.iter().map(key).map(|(key, is)| (key, is.expect("it is there"))).collect();
            prop_assert_eq!(all, told);
        }
    }
}
