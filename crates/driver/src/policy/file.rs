//! The policy file: TOML. Everything is optional. Unknown keys, values out of range and contradictions are refused,
//! with line and remedy.
//!
//! ```toml
//! default = "deny"                    # of connections that no rule matches; "allow" if absent
//! path = "offloaded"                  # of connections without rates; as the driver says if absent
//!
//! [[tenant]]
//! name = "red"
//! containers = ["web"]                # names of `pd run`
//! cgroups = ["/red.slice"]            # and all below
//! namespaces = ["/run/netns/red"]
//! connections_max = 1000
//! weight = 2                          # beside others; 1 if absent
//! clients_max = 100                   # absent: half of what others leave, as the next two
//! descriptors_max = 10000             # of the driver
//! memory_bytes_max = "1GB"
//! reserved = { clients = 10, descriptors = 100, memory_bytes = "100MB" }
//! rate = { bytes_per_second = "1GB", messages_per_second = 100000 }
//! connection_rate = { bytes_per_second = "100MB", burst_bytes = "10MB" }
//!
//! [[rule]]                            # the first that matches decides
//! from = "red"
//! to = ["red", "blue"]
//! address = "10.88.0.0/16"
//! port = [80, "8000-8999"]
//! action = "allow"
//! path = "direct"                     # whatever the tenants are, and without their rates
//! trust = true                        # received bytes may be lent where the peer wrote them; within a tenant if absent
//! via = ["container:proxy:15001"]     # proxies that its connections pass, in their order
//! on_failure = "close"                # or "bypass": what becomes of connections while a proxy has no listener
//!
//! [[service]]
//! address = "10.96.0.1:80"
//! backends = ["10.88.0.2:8080", { address = "10.88.0.3:8080", weight = 2, drain = true }]
//! balance = "maglev"                  # or "least_connections"
//! affinity_seconds = 600              # a client keeps its backend so long; absent: not at all
//! health = { interval_ms = 500, rise = 1, fall = 1, probe = "http", timeout_ms = 500, path = "/healthz" }   # or probe = "tcp"; absent: listeners
//!
//! [[network]]                         # addresses of its members count among them alone
//! name = "red"
//! containers = ["web"]
//! cgroups = ["/red.slice"]
//! namespaces = ["/run/netns/red"]
//! tenants = ["red"]
//! range = "10.0.0.0/24"               # addresses of `pd run --network red`
//!
//! [[map]]                             # in this network these addresses mean those of another one
//! from = "red"
//! prefix = "10.9.0.0/24"
//! to = "blue"
//! at = "10.0.0.0/24"
//!
//! [attach]                            # which processes may attach; deny, allow, default
//! default = "containers"              # or "anyone", or "nobody"
//! allow = [{ uid = "1000-1999", namespace = "host" }, { cgroup = "/user.slice/**/libpod-*.scope" }]
//! deny = [{ tenant = "red" }]
//! ```
//!
//! `[[bind]]` applies to pipes: [`super::bind`].
use super::attach::AttachTable;
use super::bind::{BindTable, Binds, BINDS_MAX};
use super::limits::{Rate, Rates, BURSTS_PER_SECOND_MAX, BURST_SECONDS_MAX};
use super::many::Many;
use super::map::{self, MapTable};
use super::network::{NetworkTable, Taken};
use super::service::{fits, loops, ServiceTable};
use super::text;
use super::via::{self, Hop, OnFailure};
use super::{Action, Limits, Path, Policy, Rule, Source, Tenant, DEFAULT_TENANT, WEIGHT_MAX};
use crate::memory::{Cap, Caps};
use crate::size::Bytes;
use ipnet::{IpNet, Ipv4Net};
use serde::Deserialize;
use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use toml::Spanned;

/// Most tenants that a policy may name.
const TENANTS_MAX: usize = 1024;
/// Most rules of a policy.
const RULES_MAX: usize = 65_535;
/// Most names of tenants and of what selects them. The conductor goes through all of them when a policy comes into force.
const SELECTORS_MAX: usize = 16_384;
/// Bits before an address of IPv4 in one of IPv6.
const MAPPED_BITS: u8 = 96;
/// Least default burst of a rate of bytes.
const BURST_BYTES_MIN: u64 = 64 << 10;
/// Least tokens of bytes worth waiting for: those of a short copy.
const LEAST_BYTES: u64 = 4 << 10;

/// The fault of a policy, its place, and its remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(String);

impl PolicyError {
    /// Makes an error with this text.
    pub(crate) fn of(why: impl AsRef<str>) -> Self {
        Self(text::shown(why.as_ref()))
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    default: Action,
    path: Option<Path>,
    tenant: Vec<Spanned<TenantTable>>,
    rule: Vec<Spanned<RuleTable>>,
    service: Vec<Spanned<ServiceTable>>,
    attach: AttachTable,
    bind: Vec<Spanned<BindTable>>,
    network: Vec<Spanned<NetworkTable>>,
    map: Vec<Spanned<MapTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantTable {
    name: String,
    #[serde(default)]
    containers: Vec<String>,
    #[serde(default)]
    cgroups: Vec<String>,
    #[serde(default)]
    namespaces: Vec<PathBuf>,
    connections_max: Option<u64>,
    weight: Option<i64>,
    clients_max: Option<u64>,
    descriptors_max: Option<u64>,
    memory_bytes_max: Option<Bytes>,
    #[serde(default)]
    reserved: ReservedTable,
    #[serde(default)]
    rate: RateTable,
    #[serde(default)]
    connection_rate: RateTable,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ReservedTable {
    clients: u64,
    descriptors: u64,
    memory_bytes: Bytes,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateTable {
    bytes_per_second: Option<Bytes>,
    burst_bytes: Option<Bytes>,
    messages_per_second: Option<u64>,
    burst_messages: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    from: Option<Many<String>>,
    to: Option<Many<String>>,
    address: Option<Many<Network>>,
    port: Option<Many<Ports>>,
    action: Action,
    path: Option<Path>,
    trust: Option<bool>,
    via: Option<Many<Hop>>,
    on_failure: Option<OnFailure>,
}

struct Network(IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        net.map(|net| Self(canonical(net))).map_err(|_| {
            format!("'{text}' is no network; write one like 10.88.0.0/16, 10.88.0.2 or fd00::/8")
        })
    }
}

/// Returns the network by which connections to its addresses are judged: those of IPv4 in IPv6 are addresses of IPv4.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(six) = net else { return net };
    let four = six.addr().to_ipv4_mapped().filter(|_| six.prefix_len() >= MAPPED_BITS);
    let four = four.and_then(|ip| Ipv4Net::new(ip, six.prefix_len() - MAPPED_BITS).ok());
    four.map_or(net, IpNet::V4)
}

struct Ports(RangeInclusive<u16>);

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self(first..=last)),
            _ => Err(format!("'{text}' is no port; write 1 to 65535, or a range like \"8000-8999\"")),
        }
    }
}

impl Policy {
    /// Reads the text of a policy file.
    ///
    /// # Errors
    /// Line, key and remedy.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        text::check_length(text.len()).map_err(PolicyError::of)?;
        let file: File = toml::from_str(text).map_err(|error| text::misread(&error, text))?;
        let at = |start: usize, why: String| {
            PolicyError::of(format!("line {}: {why}", text[..start].matches('\n').count() + 1))
        };
        let source = Source(Some(text.into()));
        let mut policy = Self { default: file.default, path: file.path, source, ..Self::default() };
        let mut taken = HashMap::new();
        for table in file.tenant {
            let start = table.span().start;
            let tenant = tenant(table.into_inner()).map_err(|why| at(start, why))?;
            claim(&mut taken, &tenant).map_err(|why| at(start, why))?;
            if taken.len() > SELECTORS_MAX {
                return Err(at(
                    start,
                    format!(
                        "tenants have more than {SELECTORS_MAX} names, containers, cgroups and namespaces in all; \
                         write cgroups above several of them"
                    ),
                ));
            }
            policy.tenants.push(tenant);
        }
        if policy.tenants.len() > TENANTS_MAX {
            return Err(PolicyError::of(format!("more than {TENANTS_MAX} tenants; join some")));
        }
        if let Some(table) = file.rule.get(RULES_MAX) {
            return Err(at(table.span().start, format!("more than {RULES_MAX} rules; join some")));
        }
        let mut of_rules = Vec::new();
        for (index, table) in file.rule.into_iter().enumerate() {
            let start = table.span().start;
            let of = |why| at(start, format!("rule {}: {why}", index + 1));
            let rule = rule(table.into_inner()).map_err(of)?;
            policy.knows(&rule).map_err(of)?;
            policy.rules.push(rule);
            of_rules.push(start);
        }
        policy.binds = Binds { default: file.default, rules: Vec::new() };
        for table in file.bind {
            let start = table.span().start;
            let bind = table.into_inner().check(|name| policy.tenant(name).is_some());
            policy.binds.rules.push(bind.map_err(|why| at(start, why))?);
        }
        if policy.binds.rules.len() > BINDS_MAX {
            return Err(PolicyError::of(format!("more than {BINDS_MAX} bindings; join some")));
        }
        let mut starts = Vec::new();
        for table in file.service {
            let start = table.span().start;
            let service = table.into_inner().check().map_err(|why| at(start, why))?;
            fits(&service, &policy.services).map_err(|why| at(start, why))?;
            policy.services.push(service);
            starts.push(start);
        }
        for (service, start) in policy.services.iter().zip(starts) {
            loops(service, &policy.services).map_err(|why| at(start, why))?;
        }
        let mut named = Taken::default();
        for table in file.network {
            let start = table.span().start;
            let network = table.into_inner().check(&mut named, |name| policy.tenant(name).is_some());
            policy.networks.push(network.map_err(|why| at(start, why))?);
        }
        let mut of_maps = Vec::new();
        for table in file.map {
            let start = table.span().start;
            let map = table.into_inner().check(&policy.networks, &policy.maps);
            policy.maps.push(map.map_err(|why| at(start, why))?);
            of_maps.push(start);
        }
        for (map, start) in policy.maps.iter().zip(of_maps) {
            map::fits(map, &policy.maps).map_err(|why| at(start, why))?;
        }
        let attach = file.attach.check(|name| policy.tenant(name).is_some());
        policy.attach = attach.map_err(|(start, why)| at(start, why))?;
        for (index, start) in of_rules.into_iter().enumerate() {
            let (before, rule) = (&policy.rules[..index], &policy.rules[index]);
            via::fits(rule, before, &policy.tenants, &policy.services)
                .map_err(|why| at(start, format!("rule {}: {why}", index + 1)))?;
        }
        Ok(policy)
    }

    fn knows(&self, rule: &Rule) -> Result<(), String> {
        let (path, trust) = (rule.path.is_some(), rule.trust.is_some());
        if (path || trust) && rule.action == Action::Deny {
            let key = if path { "path" } else { "trust" };
            return Err(format!("a connection that is denied has no {key}; take the key out"));
        }
        let unknown = |name: &&String| *name != DEFAULT_TENANT && self.tenant(name).is_none();
        match rule.from.iter().chain(&rule.to).find(unknown) {
            Some(name) => Err(format!(
                "'{name}' is no tenant; add [[tenant]] name = \"{name}\", or write one of: {}",
                super::list([DEFAULT_TENANT].into_iter().chain(self.tenants.iter().map(|t| &*t.name)))
            )),
            None => Ok(()),
        }
    }
}

fn tenant(table: TenantTable) -> Result<Tenant, String> {
    let name = table.name;
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !(1..=63).contains(&name.len()) || !name.chars().all(good) {
        return Err(format!(
            "name = \"{name}\" is no tenant's; use 1 to 63 letters, digits, '-', '_' or '.'"
        ));
    }
    for cgroup in &table.cgroups {
        if !cgroup.starts_with('/') || cgroup.ends_with('/') {
            return Err(format!(
                "tenant {name}: cgroup \"{cgroup}\" is not usable; write a path below the root of the hierarchy, \
                 as in /proc/PID/cgroup: \"/red.slice\""
            ));
        }
    }
    if let Some(path) = table.namespaces.iter().find(|path| !path.is_absolute()) {
        return Err(format!("tenant {name}: namespace \"{}\" is no absolute path", path.display()));
    }
    let limits = Limits {
        tenant: table.rate.rates().map_err(|why| format!("tenant {name}: rate.{why}"))?,
        connection: table
            .connection_rate
            .rates()
            .map_err(|why| format!("tenant {name}: connection_rate.{why}"))?,
    };
    let weight = table.weight.map(|weight| match u32::try_from(weight) {
        Ok(weight @ 1..=WEIGHT_MAX) => Ok(weight),
        _ => Err(format!(
            "tenant {name}: weight = {weight} is out of range; use 1 to {WEIGHT_MAX}, or leave it out"
        )),
    });
    let weight = weight.transpose()?;
    let caps = Caps {
        clients: cap(&name, "clients", table.clients_max, table.reserved.clients)?,
        descriptors: cap(&name, "descriptors", table.descriptors_max, table.reserved.descriptors)?,
        memory_bytes: cap(
            &name,
            "memory_bytes",
            table.memory_bytes_max.map(|bytes| bytes.0),
            table.reserved.memory_bytes.0,
        )?,
    };
    Ok(Tenant {
        name,
        caps,
        containers: table.containers,
        cgroups: table.cgroups,
        namespaces: table.namespaces,
        connections_max: table.connections_max,
        limits,
        weight,
    })
}

fn cap(tenant: &str, key: &str, most: Option<u64>, reserved: u64) -> Result<Cap, String> {
    if most == Some(0) {
        return Err(format!(
            "tenant {tenant}: {key}_max = 0 lets nobody in; deny its connections, or raise it"
        ));
    }
    if most.is_some_and(|most| most < reserved) {
        return Err(format!(
            "tenant {tenant}: reserved.{key} = {reserved} is more than its {key}_max; lower the one or raise the other"
        ));
    }
    if reserved > 0 && tenant == DEFAULT_TENANT {
        return Err(format!(
            "tenant {tenant}: reserved.{key} would be every user's; take it out, or name a tenant for those who need it"
        ));
    }
    Ok(Cap { most, reserved })
}

/// Records the tenant's name and selectors, which must be unique.
fn claim(taken: &mut HashMap<String, String>, tenant: &Tenant) -> Result<(), String> {
    let mut words = vec![format!("name \"{}\"", tenant.name)];
    words.extend(tenant.containers.iter().map(|name| format!("container \"{name}\"")));
    words.extend(tenant.cgroups.iter().map(|path| format!("cgroup \"{path}\"")));
    words.extend(tenant.namespaces.iter().map(|path| format!("namespace \"{}\"", path.display())));
    for word in words {
        if let Some(other) = taken.insert(word.clone(), tenant.name.clone()) {
            return Err(format!(
                "tenant {}: {word} belongs to tenant {other} already; take it out here or there",
                tenant.name
            ));
        }
    }
    Ok(())
}

fn rule(table: RuleTable) -> Result<Rule, String> {
    Ok(Rule {
        via: via::via(table.via.map(|many| many.0), table.on_failure, table.action)?,
        from: table.from.map_or_else(Vec::new, |many| many.0),
        to: table.to.map_or_else(Vec::new, |many| many.0),
        addresses: table.address.map_or_else(Vec::new, |many| many.0.into_iter().map(|net| net.0).collect()),
        ports: table.port.map_or_else(Vec::new, |many| many.0.into_iter().map(|ports| ports.0).collect()),
        action: table.action,
        path: table.path,
        trust: table.trust,
    })
}

impl RateTable {
    fn rates(&self) -> Result<Rates, String> {
        let plain = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
        let bytes = (plain(self.bytes_per_second), plain(self.burst_bytes));
        Ok(Rates {
            bytes: rate(bytes, ["bytes_per_second", "burst_bytes"], (1 << 10, BURST_BYTES_MIN, LEAST_BYTES))?,
            messages: rate(
                (self.messages_per_second, self.burst_messages),
                ["messages_per_second", "burst_messages"],
                (1, 1, 1),
            )?,
        })
    }
}

/// Returns the rate that two keys say. Without a burst: a tenth of a second's worth, and at least `burst_min`.
fn rate(
    (per_second, burst): (Option<u64>, Option<u64>),
    [rate_key, burst_key]: [&str; 2],
    (rate_min, burst_min, least): (u64, u64, u64),
) -> Result<Option<Rate>, String> {
    let Some(per_second) = per_second else {
        return match burst {
            Some(_) => Err(format!("{burst_key} without {rate_key} means nothing; add {rate_key}")),
            None => Ok(None),
        };
    };
    let most = 1 << 50;
    if !(rate_min..=most).contains(&per_second) {
        return Err(format!(
            "{rate_key} = {per_second} is out of range; use {rate_min} to {most}, or leave it out"
        ));
    }
    let burst = burst.unwrap_or((per_second / 10).max(burst_min));
    let range = (per_second / BURSTS_PER_SECOND_MAX).max(least)..=per_second * BURST_SECONDS_MAX;
    if !range.contains(&burst) {
        let (low, high) = range.into_inner();
        return Err(format!(
            "{burst_key} = {burst} is out of range; use {low} to {high}, a hundredth of a second's worth to an hour's"
        ));
    }
    Ok(Some(Rate { per_second, burst, least }))
}
