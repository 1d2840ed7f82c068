//! `[[map]]` of the policy file: addresses of one network that mean those of another one.
//!
//! [`Maps`] answers which address a mapped one means, and under which address another network sees one. Maps are never chained.
use super::network::Network;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most maps of a policy.
const MAPS_MAX: usize = 1024;

/// A map: in the network `from` an address in `prefix` means the address at the same offset of `at` in the network `to`.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressMap {
    /// Network in which the map applies.
    pub from: String,
    /// Mapped addresses of `from`.
    pub prefix: IpNet,
    /// Network whose addresses are meant.
    pub to: String,
    /// Addresses of `to`, as many as in `prefix`.
    pub at: IpNet,
}

impl fmt::Display for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, prefix, to, at } = self;
        write!(f, "{prefix} in {from} means {at} in {to}")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MapTable {
    from: String,
    prefix: String,
    to: String,
    at: String,
}

impl MapTable {
    /// Reads a map, beside those before it.
    ///
    /// # Errors
    /// A sentence that names the fault and the remedy.
    pub(super) fn check(self, networks: &[Network], before: &[AddressMap]) -> Result<AddressMap, String> {
        let Self { from, prefix, to, at } = self;
        let of = |why: String| format!("map from {from} to {to}: {why}");
        if before.len() >= MAPS_MAX {
            return Err(of(format!("more than {MAPS_MAX} maps; join some")));
        }
        for name in [&from, &to] {
            if !networks.iter().any(|network| network.name == *name) {
                return Err(of(format!("'{name}' is no network; add [[network]] name = \"{name}\"")));
            }
        }
        if from == to {
            return Err(of("it stays within one network; name another one as `to`".to_owned()));
        }
        let (prefix, at) = (net("prefix", &prefix).map_err(of)?, net("at", &at).map_err(of)?);
        if prefix.prefix_len() != at.prefix_len() || prefix.addr().is_ipv4() != at.addr().is_ipv4() {
            return Err(of(format!(
                "prefix {prefix} and at {at} have different sizes; write two of one family and length"
            )));
        }
        let own = networks.iter().find(|network| network.name == from);
        let mut ranges = own.into_iter().flat_map(|network| &network.ranges);
        if let Some(range) = ranges.find(|range| overlap(&prefix, &IpNet::V4(**range))) {
            return Err(of(format!(
                "prefix {prefix} overlaps range {range} of {from} itself; use addresses that {from} has not"
            )));
        }
        if let Some(other) = before.iter().find(|map| map.from == from && overlap(&map.prefix, &prefix)) {
            return Err(of(format!(
                "prefix {prefix} overlaps that of the map '{other}'; take one of them out"
            )));
        }
        Ok(AddressMap { from, prefix, to, at })
    }
}

/// Fails if the map back to `from` is missing, or if the map leads to another one.
///
/// # Errors
/// A sentence that names the fault and the remedy.
pub(super) fn fits(map: &AddressMap, all: &[AddressMap]) -> Result<(), String> {
    let AddressMap { from, to, at, .. } = map;
    let of = |why: String| Err(format!("map from {from} to {to}: {why}"));
    if let Some(other) = all.iter().find(|other| other.from == *to && overlap(&other.prefix, at)) {
        return of(format!(
            "at {at} overlaps the map '{other}', and maps do not follow one another; name the network that has the addresses"
        ));
    }
    if !all.iter().any(|other| other.from == *to && other.to == *from) {
        return of(format!(
            "{to} has no address for those who connect; add [[map]] from = \"{to}\" to = \"{from}\" with a prefix for them"
        ));
    }
    Ok(())
}

fn net(key: &str, text: &str) -> Result<IpNet, String> {
    let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let net = net.map_err(|_| format!("{key} = \"{text}\" is no network; write one like 10.9.0.0/24"))?;
    if net != net.trunc() {
        return Err(format!("{key} = \"{text}\" has bits beyond its length; write {}", net.trunc()));
    }
    let reserved = [
        IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8)),
        IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
        IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 3)),
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 8)),
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10)),
        IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
    ];
    match reserved.iter().find(|reserved| overlap(reserved, &net)) {
        Some(reserved) => {
            Err(format!("{key} = \"{text}\" overlaps {reserved}, which no container has; use others"))
        }
        None => Ok(net),
    }
}

/// Tells whether two networks share an address.
fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.addr()) || b.contains(&a.addr())
}

/// Returns the address at the same offset of another network of the same size.
pub fn moved(ip: IpAddr, to: &IpNet) -> IpAddr {
    match (ip, to) {
        (IpAddr::V4(ip), IpNet::V4(to)) => {
            let mask = u32::from(to.hostmask());
            Ipv4Addr::from(u32::from(to.addr()) | u32::from(ip) & mask).into()
        }
        (IpAddr::V6(ip), IpNet::V6(to)) => {
            let mask = u128::from(to.hostmask());
            Ipv6Addr::from(u128::from(to.addr()) | u128::from(ip) & mask).into()
        }
        // Unreachable: a map is of one family.
        (ip, _) => ip,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry<N> {
    from: N,
    prefix: IpNet,
    to: N,
    at: IpNet,
}

/// The maps of a policy by the numbers of their networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maps<N: Eq + Hash> {
    /// Entries by network and first address. Those of one network do not overlap.
    entries: Vec<Entry<N>>,
    /// Places in `entries` by (from, to), in the order of the file.
    between: HashMap<(N, N), Vec<usize>>,
    /// Places in `entries` by `to`.
    towards: HashMap<N, Vec<usize>>,
}

impl<N: Eq + Hash> Default for Maps<N> {
    fn default() -> Self {
        Self { entries: Vec::new(), between: HashMap::new(), towards: HashMap::new() }
    }
}

impl<N: Copy + Ord + Hash> Maps<N> {
    /// Makes the maps. `number`: returns the number of a network.
    pub fn new(maps: &[AddressMap], mut number: impl FnMut(&str) -> N) -> Self {
        let mut all: Vec<_> = maps
            .iter()
            .enumerate()
            .map(|(place, map)| {
                let (from, to) = (number(&map.from), number(&map.to));
                (place, Entry { from, prefix: map.prefix, to, at: map.at })
            })
            .collect();
        all.sort_by_key(|(_, entry)| (entry.from, entry.prefix.addr()));
        let mut of_file: Vec<_> = all.iter().enumerate().map(|(index, (place, _))| (*place, index)).collect();
        of_file.sort_unstable();
        let mut this = Self::default();
        for (_, index) in of_file {
            let entry = &all[index].1;
            this.between.entry((entry.from, entry.to)).or_default().push(index);
            this.towards.entry(entry.to).or_default().push(index);
        }
        this.entries = all.into_iter().map(|(_, entry)| entry).collect();
        this
    }

    /// Tells whether there are no maps.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the network and the address that a mapped address means in a network; none: it is not mapped. `ip`: canonical.
    pub fn real(&self, network: N, ip: IpAddr) -> Option<(N, IpAddr)> {
        let after = self.entries.partition_point(|entry| (entry.from, entry.prefix.addr()) <= (network, ip));
        let entry = self.entries.get(after.checked_sub(1)?)?;
        let is_there = entry.from == network && entry.prefix.contains(&ip);
        is_there.then(|| (entry.to, moved(ip, &entry.at)))
    }

    /// Returns the address under which the network `viewer` sees an address of the network `owner`; none: it does not see it. `ip`:
    /// canonical.
    pub fn seen(&self, viewer: N, owner: N, ip: IpAddr) -> Option<IpAddr> {
        let places = self.between.get(&(viewer, owner))?;
        let mut entries = places.iter().map(|&index| &self.entries[index]);
        entries.find(|entry| entry.at.contains(&ip)).map(|entry| moved(ip, &entry.prefix))
    }

    /// Returns all networks that see an address of the network `owner`, each with every address under which it does. `ip`:
    /// canonical.
    pub fn aliases(&self, owner: N, ip: IpAddr) -> impl Iterator<Item = (N, IpAddr)> + '_ {
        let places = self.towards.get(&owner).into_iter().flatten().map(|&index| &self.entries[index]);
        places
            .filter(move |entry| entry.at.contains(&ip))
            .map(move |entry| (entry.from, moved(ip, &entry.prefix)))
    }

    /// Returns the mapped addresses of all networks.
    pub fn prefixes(&self) -> impl Iterator<Item = (N, IpNet)> + '_ {
        self.entries.iter().map(|entry| (entry.from, entry.prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::*;
    use proptest::prelude::*;

    const NETWORKS: &str = "[[network]]\nname = \"red\"\nrange = \"10.0.0.0/24\"\n\
                            [[network]]\nname = \"blue\"\nrange = \"10.0.0.0/24\"\n";

    fn map(from: &str, prefix: &str, to: &str, at: &str) -> String {
        format!("[[map]]\nfrom = \"{from}\"\nprefix = \"{prefix}\"\nto = \"{to}\"\nat = \"{at}\"\n")
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_a_remedy() {
        let back = map("red", "10.8.0.0/24", "blue", "10.0.0.0/24");
        for (text, parts) in [
            (
                map("blue", "10.9.0.0/24", "green", "10.0.0.0/24"),
                &["line 7", "'green' is no network", "[[network]]"][..],
            ),
            (
                map("blue", "10.9.0.0/24", "blue", "10.0.0.0/24"),
                &["line 7", "within one network", "name another"],
            ),
            (map("blue", "10.9.0.0/24", "red", "10.0.0.0/25"), &["line 7", "different sizes", "10.0.0.0/25"]),
            (map("blue", "10.9.0.0/24", "red", "fd00::/24"), &["line 7", "different sizes", "family"]),
            (
                map("blue", "10.9.0.1/24", "red", "10.0.0.0/24"),
                &["line 7", "10.9.0.1/24", "write 10.9.0.0/24"],
            ),
            (map("blue", "x", "red", "10.0.0.0/24"), &["line 7", "prefix = \"x\"", "write one like"]),
            (map("blue", "127.0.0.0/24", "red", "10.0.0.0/24"), &["line 7", "127.0.0.0/24", "use others"]),
            (map("blue", "0.0.0.0/0", "red", "0.0.0.0/0"), &["line 7", "0.0.0.0/0", "use others"]),
            (
                map("blue", "10.0.0.128/25", "red", "10.0.0.0/25"),
                &["line 7", "range 10.0.0.0/24", "of blue itself"],
            ),
            (
                map("blue", "10.9.0.0/24", "red", "10.0.0.0/24"),
                &["line 7", "red has no address", "add [[map]] from = \"red\""],
            ),
            (
                format!("{back}{0}{0}", map("blue", "10.9.0.0/24", "red", "10.0.0.0/24")),
                &["line 17", "prefix 10.9.0.0/24 overlaps", "take one of them out"],
            ),
            (
                format!("{back}{}", map("blue", "10.9.0.0/24", "red", "10.8.0.0/24")),
                &["line 12", "at 10.8.0.0/24", "do not follow one another"],
            ),
        ] {
            let error = Policy::parse(&format!("{NETWORKS}{text}")).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part:?} is missing in {error:?} of {text}");
            }
        }
        let good = format!("{NETWORKS}{back}{}", map("blue", "10.9.0.0/24", "red", "10.0.0.0/24"));
        let told = Policy::parse(&good).unwrap().to_string();
        assert!(told.contains("map 10.9.0.0/24 in blue means 10.0.0.0/24 in red"), "{told}");
    }

    proptest! {
        /// Compares with a model: a list of maps that is searched from the front.
        #[test]
        fn maps_are_what_a_list_of_them_says(
            raw in prop::collection::vec((0u32..3, 0u8..16, 24u8..=32, 0u32..3, 0u8..16, any::<bool>()), 0..24),
            asked in prop::collection::vec((0u32..3, 0u32..3, 0u8..16, any::<u8>(), any::<bool>()), 1..40),
        ) {
            let net = |third: u8, bits: u8, is_v6: bool| match is_v6 {
                false => IpNet::V4(Ipv4Net::new(Ipv4Addr::new(10, 9, third, 0), bits).unwrap().trunc()),
                true => IpNet::V6(
                    Ipv6Net::new(Ipv6Addr::from((0xfd00u128 << 112) | u128::from(third) << 8), bits + 96).unwrap().trunc(),
                ),
            };
            let mut list: Vec<AddressMap> = Vec::new();
            for (from, third, bits, to, at, is_v6) in raw {
                let (prefix, at) = (net(third, bits, is_v6), net(at, bits, is_v6));
                let (from, to) = (from.to_string(), to.to_string());
                if from != to && !list.iter().any(|map| map.from == from && overlap(&map.prefix, &prefix)) {
                    list.push(AddressMap { from, prefix, to, at });
                }
            }
            let maps = Maps::new(&list, |name| name.parse::<u32>().unwrap());
            // Offset from the first address.
            let place = |net: &IpNet, ip: IpAddr| match (net.addr(), ip) {
                (IpAddr::V4(first), IpAddr::V4(ip)) => {
                    let after = u32::from(ip).checked_sub(u32::from(first)).map(u128::from);
                    after.filter(|&after| after < 1 << (32 - net.prefix_len()))
                }
                (IpAddr::V6(first), IpAddr::V6(ip)) => {
                    let after = u128::from(ip).checked_sub(u128::from(first));
                    after.filter(|&after| after < 1 << (128 - net.prefix_len()))
                }
                _ => None,
            };
            let at = |net: &IpNet, place: u128| match net.addr() {
                IpAddr::V4(first) => IpAddr::from((u32::from(first) + place as u32).to_be_bytes()),
                IpAddr::V6(first) => IpAddr::from((u128::from(first) + place).to_be_bytes()),
            };
            for (network, other, third, last, is_v6) in asked {
                let ip = at(&net(third, 32, is_v6), u128::from(last));
                let is = |name: &str, number: u32| name.parse() == Ok(number);
                let real = list.iter().filter(|map| is(&map.from, network)).find_map(|map| {
                    Some((map.to.parse().unwrap(), at(&map.at, place(&map.prefix, ip)?)))
                });
                prop_assert_eq!(maps.real(network, ip), real);
                let between = list.iter().filter(|map| is(&map.from, network) && is(&map.to, other));
                let seen = between.into_iter().find_map(|map| Some(at(&map.prefix, place(&map.at, ip)?)));
                prop_assert_eq!(maps.seen(network, other, ip), seen);
                // An address that a network sees means the original one.
                if let Some(seen) = seen {
                    prop_assert_eq!(maps.real(network, seen), Some((other, ip)));
                }
                let towards = list.iter().filter(|map| is(&map.to, network));
                let aliases: Vec<_> = towards
                    .filter_map(|map| Some((map.from.parse().unwrap(), at(&map.prefix, place(&map.at, ip)?))))
                    .collect();
                prop_assert_eq!(maps.aliases(network, ip).collect::<Vec<_>>(), aliases);
            }
        }
    }
}
