//! `[[network]]` of the policy file: network namespaces with one space of addresses. Two networks may use the same addresses.
use super::glob::Glob;
use super::many::Many;
use super::{list, DEFAULT_TENANT};
use crate::identity::NamespaceId;
use crate::process::namespace_of_file;
use ipnet::Ipv4Net;
use serde::Deserialize;
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

/// Most networks of a policy.
const NETWORKS_MAX: usize = 1024;
/// Most names of networks and of their members. The conductor looks at all of them for each client and container.
const SELECTORS_MAX: usize = 16_384;
/// Most ranges of a network, each of which is compared with the others.
const RANGES_MAX: usize = 256;
/// Prefix lengths of ranges: the smallest range has two addresses beside those of the network and of broadcast.
const RANGE_BITS: std::ops::RangeInclusive<u8> = 8..=30;

/// A network: among its members, an address means the member that has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// The network's name.
    pub name: String,
    /// Names of containers that `pd run` registered.
    pub containers: Vec<String>,
    /// Control groups, with all groups below them.
    pub cgroups: Vec<Glob>,
    /// Files of network namespaces.
    pub namespaces: Vec<PathBuf>,
    /// Tenants whose containers are in the network.
    pub tenants: Vec<String>,
    /// Addresses of containers of `pd run --network`.
    pub ranges: Vec<Ipv4Net>,
}

/// Facts about a client or container in a network namespace.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The control group.
    pub cgroup: Option<&'a str>,
    /// The container's name.
    pub container: Option<&'a str>,
    /// The tenant.
    pub tenant: &'a str,
    /// The network that `pd run --network` registered it for, which goes before all other facts.
    pub network: Option<&'a str>,
}

impl Network {
    /// Tells whether the network has a member by other facts than the namespace's file.
    pub fn has(&self, member: &Member<'_>) -> bool {
        let is = |own: &String| own == member.tenant;
        member.container.is_some_and(|name| self.containers.iter().any(|own| own == name))
            || member.cgroup.is_some_and(|path| self.cgroups.iter().any(|glob| glob.holds(path)))
            || self.tenants.iter().any(is)
    }
}

/// Existing namespaces whose files networks name, each with the index of the first network that names it.
#[derive(Debug, Default)]
pub struct NetworkPlaces(HashMap<NamespaceId, usize>);

impl NetworkPlaces {
    /// Looks at the files of all networks.
    pub fn look(networks: &[Network]) -> Self {
        let mut places = HashMap::new();
        for (index, network) in networks.iter().enumerate() {
            for id in network.namespaces.iter().filter_map(|path| namespace_of_file(path).ok()) {
                places.entry(id).or_insert(index);
            }
        }
        Self(places)
    }

    /// Returns the network of a member, the first that has it.
    pub fn find<'a>(&self, networks: &'a [Network], member: &Member<'_>) -> Option<&'a Network> {
        if let Some(name) = member.network {
            return networks.iter().find(|network| network.name == name);
        }
        let by_file = self.0.get(&member.namespace).copied();
        let before = &networks[..by_file.unwrap_or(networks.len()).min(networks.len())];
        before.iter().find(|network| network.has(member)).or_else(|| networks.get(by_file?))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NetworkTable {
    name: String,
    #[serde(default)]
    containers: Vec<String>,
    #[serde(default)]
    cgroups: Vec<String>,
    #[serde(default)]
    namespaces: Vec<PathBuf>,
    #[serde(default)]
    tenants: Vec<String>,
    range: Option<Many<String>>,
}

/// Words that earlier networks have claimed, and the number of these networks.
#[derive(Default)]
pub(super) struct Taken {
    words: HashMap<String, String>,
    count: usize,
}

impl NetworkTable {
    /// Checks the network beside those before it, and returns it.
    ///
    /// # Errors
    /// A sentence that names the fault and the remedy.
    pub(super) fn check(
        self,
        taken: &mut Taken,
        is_tenant: impl Fn(&str) -> bool,
    ) -> Result<Network, String> {
        let Self { name, containers, cgroups, namespaces, tenants, range } = self;
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !(1..=63).contains(&name.len()) || !name.chars().all(good) {
            return Err(format!(
                "name = \"{name}\" is no network's; use 1 to 63 letters, digits, '-', '_' or '.'"
            ));
        }
        let of = |why: String| format!("network {name}: {why}");
        taken.count += 1;
        if taken.count > NETWORKS_MAX {
            return Err(of(format!("more than {NETWORKS_MAX} networks; join some")));
        }
        let is_empty = containers.is_empty() && cgroups.is_empty() && namespaces.is_empty();
        if is_empty && tenants.is_empty() && range.is_none() {
            return Err(of("it has no members; add containers, cgroups, namespaces or tenants, \
                 or a range for `pd run --network`"
                .into()));
        }
        if range.as_ref().is_some_and(|Many(texts)| texts.len() > RANGES_MAX) {
            return Err(of(format!("more than {RANGES_MAX} ranges; join some to larger ones")));
        }
        let mut ranges: Vec<Ipv4Net> = Vec::new();
        for text in range.iter().flat_map(|Many(texts)| texts) {
            let range = read_range(text).map_err(of)?;
            let shares = |other: &&Ipv4Net| other.contains(&range.addr()) || range.contains(&other.addr());
            if let Some(other) = ranges.iter().find(shares) {
                return Err(of(format!("range {range} overlaps its range {other}; take one of them out")));
            }
            ranges.push(range);
        }
        if let Some(path) = namespaces.iter().find(|path| !path.is_absolute()) {
            return Err(of(format!("namespace \"{}\" is no absolute path", path.display())));
        }
        if let Some(tenant) = tenants.iter().find(|tenant| *tenant != DEFAULT_TENANT && !is_tenant(tenant)) {
            return Err(of(format!("'{tenant}' is no tenant; add [[tenant]] name = \"{tenant}\"")));
        }
        let mut words = vec![format!("name \"{name}\"")];
        words.extend(containers.iter().map(|name| format!("container \"{name}\"")));
        words.extend(cgroups.iter().map(|path| format!("cgroup \"{path}\"")));
        words.extend(namespaces.iter().map(|path| format!("namespace \"{}\"", path.display())));
        words.extend(tenants.iter().map(|name| format!("tenant \"{name}\"")));
        for word in words {
            if let Some(other) = taken.words.insert(word.clone(), name.clone()) {
                return Err(of(format!("{word} is network {other}'s already; take it out here or there")));
            }
        }
        if taken.words.len() > SELECTORS_MAX {
            return Err(of(format!(
                "networks have more than {SELECTORS_MAX} names, containers, cgroups, namespaces and tenants in all; \
                 write cgroups above several of them, or tenants"
            )));
        }
        let cgroups = cgroups.iter().map(|text| Glob::parse(text)).collect::<Result<_, _>>().map_err(of)?;
        Ok(Network { name, containers, cgroups, namespaces, tenants, ranges })
    }
}

fn read_range(text: &str) -> Result<Ipv4Net, String> {
    let range: Ipv4Net = text
        .parse()
        .map_err(|_| format!("range \"{text}\" is no IPv4 network; write one like 10.0.0.0/24"))?;
    if range != range.trunc() {
        return Err(format!("range \"{text}\" has bits beyond its length; write {}", range.trunc()));
    }
    if range.prefix_len() > *RANGE_BITS.end() {
        return Err(format!("range {range} is too small for two containers; use /30 or larger"));
    }
    if !RANGE_BITS.contains(&range.prefix_len()) {
        return Err(format!("range {range} is too large; use /8 or smaller"));
    }
    let first = range.addr();
    if first.is_loopback() || first.octets()[0] == 0 || first.octets()[0] >= 224 {
        return Err(format!("range {range} is no container's; use one like 10.0.0.0/24"));
    }
    Ok(range)
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut members = Vec::new();
        members.extend(self.containers.iter().map(|name| format!("container {name}")));
        members.extend(self.cgroups.iter().map(|glob| format!("cgroup {}", glob.as_str())));
        members.extend(self.namespaces.iter().map(|path| format!("namespace {}", path.display())));
        members.extend(self.tenants.iter().map(|name| format!("tenant {name}")));
        if !self.ranges.is_empty() {
            members.push(format!("`pd run --network {}` in {}", self.name, list(&self.ranges)));
        }
        write!(f, "{}: {}", self.name, list(members))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Policy;
    use super::*;

    #[test]
    fn members_are_found_by_each_key() {
        let policy = Policy::parse(
            "[[tenant]]\nname = \"red\"\n\
             [[network]]\nname = \"a\"\ncontainers = [\"web\"]\ncgroups = [\"/a.slice/*\"]\n\
             [[network]]\nname = \"b\"\nnamespaces = [\"/proc/self/ns/net\"]\ntenants = [\"red\"]",
        )
        .unwrap();
        let nobody = Member {
            namespace: NamespaceId::NONE,
            cgroup: None,
            container: None,
            tenant: "default",
            network: None,
        };
        let own = namespace_of_file("/proc/self/ns/net".as_ref()).unwrap();
        let places = NetworkPlaces::look(&policy.networks);
        for (member, expected) in [
            (nobody, None),
            (Member { container: Some("web"), ..nobody }, Some("a")),
            (Member { cgroup: Some("/a.slice/x/y"), ..nobody }, Some("a")),
            (Member { cgroup: Some("/a.slice"), ..nobody }, None),
            (Member { namespace: own, ..nobody }, Some("b")),
            (Member { tenant: "red", ..nobody }, Some("b")),
            // The registration of `pd run`.
            (Member { network: Some("b"), container: Some("web"), ..nobody }, Some("b")),
            (Member { network: Some("c"), container: Some("web"), ..nobody }, None),
            // The first network that has it.
            (Member { tenant: "red", container: Some("web"), ..nobody }, Some("a")),
            (Member { namespace: own, container: Some("web"), ..nobody }, Some("a")),
        ] {
            let found = places.find(&policy.networks, &member).map(|network| &*network.name);
            assert_eq!(found, expected, "{member:?}");
        }
        let told = policy.to_string();
        let line = "network b: namespace /proc/self/ns/net, tenant red";
        assert!(told.lines().any(|l| l == line), "{told}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_a_remedy() {
        for (text, parts) in [
            ("\n[[network]]\nname = \"a\"", &["line 2", "network a", "no members", "add containers"][..]),
            ("[[network]]\nname = \"a b\"\ncontainers = [\"x\"]", &["line 1", "a b", "letters"]),
            ("[[network]]\nname = \"a\"\ntenants = [\"x\"]", &["line 1", "'x' is no tenant", "[[tenant]]"]),
            ("[[network]]\nname = \"a\"\nnamespaces = [\"x\"]", &["line 1", "\"x\"", "absolute"]),
            ("[[network]]\nname = \"a\"\ncgroups = [\"x\"]", &["line 1", "cgroup \"x\"", "/red.slice"]),
            (
                "[[network]]\nname = \"a\"\ncontainers = [\"x\"]\n[[network]]\nname = \"b\"\ncontainers = [\"x\"]",
                &["line 4", "network b", "container \"x\"", "network a's already"],
            ),
            (
                "[[network]]\nname = \"a\"\ncontainers = [\"x\"]\n[[network]]\nname = \"a\"\ncontainers = [\"y\"]",
                &["line 4", "name \"a\"", "take it out"],
            ),
            ("[[network]]\nname = \"a\"\nmembers = []", &["line 3", "members", "expected"]),
            ("[[network]]\nname = \"a\"\nrange = \"x\"", &["line 1", "network a", "\"x\"", "10.0.0.0/24"]),
            ("[[network]]\nname = \"a\"\nrange = \"10.0.0.1/24\"", &["line 1", "write 10.0.0.0/24"]),
            ("[[network]]\nname = \"a\"\nrange = \"10.0.0.0/31\"", &["line 1", "too small", "use /30"]),
            ("[[network]]\nname = \"a\"\nrange = \"10.0.0.0/7\"", &["line 1", "too large", "use /8"]),
            ("[[network]]\nname = \"a\"\nrange = \"127.0.0.0/24\"", &["line 1", "127.0.0.0/24", "use one like"]),
            (
                "[[network]]\nname = \"a\"\nrange = [\"10.0.0.0/24\", \"10.0.0.64/26\"]",
                &["line 1", "range 10.0.0.64/26 overlaps its range 10.0.0.0/24", "take one"],
            ),
        ] {
            let error = Policy::parse(text).unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{part:?} is missing in {error:?} of {text:?}");
            }
        }
    }

    #[test]
    fn names_members_and_ranges_are_bounded() {
        let list = |count: usize, word: &dyn Fn(usize) -> String| {
            (0..count).map(|n| format!("\"{}\"", word(n))).collect::<Vec<_>>().join(",")
        };
        let members = |count| {
            let of = |name: &str| {
                let words = list(count / 2, &|n| format!("{name}{n}"));
                format!("[[network]]\nname = \"{name}\"\ncontainers = [{words}]\n")
            };
            of("a") + &of("b")
        };
        let ranges = |count| {
            let words = list(count, &|n| format!("10.{}.{}.0/24", n >> 8, n & 255));
            format!("[[network]]\nname = \"a\"\nrange = [{words}]")
        };
        // Each network's name counts, too.
        for (text, is_refused) in [
            (members(SELECTORS_MAX - 2), false),
            (members(SELECTORS_MAX), true),
            (ranges(RANGES_MAX), false),
            (ranges(RANGES_MAX + 1), true),
        ] {
            let error = Policy::parse(&text).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), is_refused, "{error:?}");
            assert!(error.is_none_or(|error| error.contains("more than") && error.contains("; ")));
        }
    }
}
