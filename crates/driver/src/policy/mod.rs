//! Rules on connections: permission, rate and addresses, as a file gives them.
//!
//! [`Policy::parse`] reads a file ([`mod@file`] describes it), [`Policy::decide`] decides on one connection, and
//! [`rate`] holds the token buckets. Nothing here knows clients or connections: the conductor finds a client's
//! tenant and asks; movers spend the tokens.
mod attach;
pub mod bind;
pub mod budget;
mod file;
mod glob;
mod limits;
mod many;
mod map;
mod network;
pub mod rate;
mod service;
mod text;
pub mod via;

pub use crate::memory::{Cap, Caps};
pub use attach::{Attach, Entry as AttachEntry, Newcomer, Otherwise};
pub use file::PolicyError;
pub use limits::{Limits, Rate, Rates};
pub use map::{moved, AddressMap, Maps};
pub use network::{Member, Network, NetworkPlaces};
pub use service::{
    Backend, Balance, Health, Probe, Service, BACKENDS_MAX, BACKENDS_TOTAL_MAX, PATH_BYTES_MAX, SERVICES_MAX,
};
pub use text::{read_policy_file, POLICY_BYTES_MAX};

use crate::memory::{Amounts, Resource};
use ipnet::IpNet;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

/// The tenant of clients that belong to no other.
pub const DEFAULT_TENANT: &str = "default";

/// Default weight of a tenant, and the largest. In a turn of a mover a tenant has 256 KiB for each unit, and others wait some 25 µs
/// for them.
pub const WEIGHT_DEFAULT: u32 = 1;
/// See [`WEIGHT_DEFAULT`].
pub const WEIGHT_MAX: u32 = 100;

/// A policy. The default one allows everything and limits nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// Action on connections that no rule matches.
    pub default: Action,
    /// Tenants with selectors or limits. A client belongs to the first whose selectors match.
    pub tenants: Vec<Tenant>,
    /// Rules; the first match decides.
    pub rules: Vec<Rule>,
    /// Service addresses.
    pub services: Vec<Service>,
    /// Path of bytes where no rule names one; none: the path of the driver's settings.
    pub path: Option<Path>,
    /// Rule of attaching.
    pub attach: Attach,
    /// Bindings of pipes to ports.
    pub binds: bind::Binds,
    /// Networks, within which addresses are unique. A namespace belongs to the first network that has it.
    pub networks: Vec<Network>,
    /// Addresses of one network that mean those of another one.
    pub maps: Vec<AddressMap>,
    /// Text that the policy was read from.
    pub source: Source,
}

/// The text that a policy was read from, if it was. Policies are equal whatever their texts.
#[derive(Clone, Default)]
pub struct Source(Option<Arc<str>>);

impl Source {
    /// Returns the text.
    pub fn text(&self) -> Option<Arc<str>> {
        self.0.clone()
    }
}

impl PartialEq for Source {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a text" } else { "no text" })
    }
}

/// Path of a connection's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Path {
    /// The driver moves them.
    Offloaded,
    /// The two clients share a ring for each direction, written by the sender and mapped read-only by the receiver. The
    /// driver neither sees nor meters the bytes.
    #[default]
    Direct,
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The connection is made.
    #[default]
    Allow,
    /// The connection fails with `EACCES`.
    Deny,
}

/// A tenant: its clients, and their limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tenant {
    /// The tenant's name.
    pub name: String,
    /// Names of containers that `pd run` registered.
    pub containers: Vec<String>,
    /// Control groups, with all groups below them.
    pub cgroups: Vec<String>,
    /// Files of network namespaces.
    pub namespaces: Vec<PathBuf>,
    /// Most open connections that the tenant's clients have made; `EMFILE` beyond.
    pub connections_max: Option<u64>,
    /// Limits on sends of the tenant's clients.
    pub limits: Limits,
    /// The tenant's weight in a mover's time; of the default tenant, each user's.
    pub weight: Option<u32>,
    /// Caps and reserves of the tenant's clients; of the default tenant, each user's.
    pub caps: Caps,
}

/// A rule. An empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// Tenants of the connecting client.
    pub from: Vec<String>,
    /// Tenants of the listening client.
    pub to: Vec<String>,
    /// Networks of the address connected to.
    pub addresses: Vec<IpNet>,
    /// Ports connected to.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Action on a match.
    pub action: Action,
    /// Path of the bytes; none: the policy's path, and offloaded where a tenant has rates.
    pub path: Option<Path>,
    /// Tells whether the two sides trust each other not to change bytes that were sent; none: only within a tenant.
    pub trust: Option<bool>,
    /// Proxies that the rule's connections pass; none: they go straight.
    pub via: Option<via::Via>,
}

/// A connection to be decided on.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Tenant of the connecting client.
    pub from: &'a str,
    /// Tenant of the listening client.
    pub to: &'a str,
    /// Address connected to; mapped IPv4 addresses as IPv4.
    pub address: IpAddr,
    /// Port connected to.
    pub port: u16,
}

impl Policy {
    /// Returns the action on the connection, and the number of the deciding rule; none: the default.
    pub fn decide(&self, attempt: &Attempt<'_>) -> (Action, Option<usize>) {
        match self.rules.iter().position(|rule| rule.matches(attempt)) {
            Some(index) => (self.rules[index].action, Some(index)),
            None => (self.default, None),
        }
    }

    /// Returns the action on a connection through a service. `asked` is the attempt at the service's address, `reached` the attempt at
    /// the chosen backend. Rules that name the service's address apply to `asked`, all rules to `reached`. Either may deny, and a rule
    /// that allows the service replaces the default.
    pub fn decide_service(&self, asked: &Attempt<'_>, reached: &Attempt<'_>) -> (Action, Option<usize>) {
        let names = |rule: &Rule| !rule.addresses.is_empty() && rule.matches(asked);
        let named = self.rules.iter().position(names);
        let (action, rule) = self.decide(reached);
        match (named, rule) {
            (Some(index), _) if self.rules[index].action == Action::Deny => (Action::Deny, named),
            (Some(_), None) => (Action::Allow, named),
            _ => (action, rule),
        }
    }

    /// Returns the number of parts of rules that a connection may be compared with.
    pub fn parts(&self) -> usize {
        let parts =
            |rule: &Rule| 1 + rule.from.len() + rule.to.len() + rule.addresses.len() + rule.ports.len();
        self.rules.iter().map(parts).sum()
    }

    /// Tells whether the total covers all reserves of the policy.
    ///
    /// # Errors
    /// An error for the first tenant whose reserve does not fit beside those before it.
    pub fn check_reserves(&self, total: &Amounts) -> Result<(), PolicyError> {
        for (resource, key, raise) in [
            (Resource::Clients, "clients", "clients_max of the driver"),
            (Resource::Descriptors, "descriptors", "the driver's limit on open files"),
            (Resource::Memory, "memory_bytes", "memory.budget_bytes"),
        ] {
            let (total, mut reserved) = (total.of_pool(resource), 0u64);
            for tenant in &self.tenants {
                let own = tenant.caps.of(resource).reserved;
                if reserved.saturating_add(own) > total {
                    return Err(PolicyError::of(format!(
                        "tenant {}: reserved.{key} = {own} does not fit: tenants above reserve {reserved}, and there are \
                         {total}; lower it, or raise {raise}",
                        tenant.name
                    )));
                }
                reserved += own;
            }
        }
        Ok(())
    }

    /// Returns the tenant of this name, if the policy has it.
    pub fn tenant(&self, name: &str) -> Option<&Tenant> {
        self.tenants.iter().find(|tenant| tenant.name == name)
    }
}

impl Rule {
    fn matches(&self, attempt: &Attempt<'_>) -> bool {
        is_in(&self.from, attempt.from) && self.leads_to(attempt)
    }

    /// Tells whether the rule names an address and a port.
    pub fn names(&self, address: IpAddr, port: u16) -> bool {
        (self.addresses.is_empty() || self.addresses.iter().any(|net| net.contains(&address)))
            && (self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(&port)))
    }

    /// Tells whether the rule matches the destination, with any connecting side.
    fn leads_to(&self, attempt: &Attempt<'_>) -> bool {
        is_in(&self.to, attempt.to) && self.names(attempt.address, attempt.port)
    }
}

fn is_in(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|own| own == name)
}

/// Tells whether control group `path` is `group` or below it.
pub fn is_below(path: &str, group: &str) -> bool {
    path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Offloaded => "offloaded",
            Self::Direct => "direct",
        })
    }
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |names: &[String]| if names.is_empty() { "anyone".to_owned() } else { list(names) };
        write!(f, "{} {} to {}", self.action, names(&self.from), names(&self.to))?;
        if !self.addresses.is_empty() {
            write!(f, ", address {}", list(&self.addresses))?;
        }
        if !self.ports.is_empty() {
            let ports = self.ports.iter().map(|range| match (range.start(), range.end()) {
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first}-{last}"),
            });
            write!(f, ", port {}", list(ports))?;
        }
        if let Some(path) = self.path {
            write!(f, ", path {path}")?;
        }
        if let Some(trust) = self.trust {
            write!(f, ", {}", if trust { "trusted" } else { "not trusted" })?;
        }
        if let Some(via) = &self.via {
            write!(f, ", {via}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut whose: Vec<String> = Vec::new();
        whose.extend(self.containers.iter().map(|name| format!("container {name}")));
        whose.extend(self.cgroups.iter().map(|path| format!("cgroup {path}")));
        whose.extend(self.namespaces.iter().map(|path| format!("namespace {}", path.display())));
        if whose.is_empty() {
            whose.push("containers of `pd run --tenant`".to_owned());
        }
        write!(f, "{}: {}", self.name, whose.join(", "))?;
        if let Some(most) = self.connections_max {
            write!(f, "; at most {most} connections")?;
        }
        let held = [
            ("clients", self.caps.clients),
            ("descriptors", self.caps.descriptors),
            ("bytes of memory", self.caps.memory_bytes),
        ];
        for (what, Cap { most, reserved }) in held {
            if let Some(most) = most {
                write!(f, "; at most {most} {what}")?;
            }
            if reserved > 0 {
                write!(f, "; {reserved} {what} reserved")?;
            }
        }
        if let Some(weight) = self.weight {
            write!(f, "; weight {weight}")?;
        }
        for (what, rates) in [("", self.limits.tenant), (" a connection", self.limits.connection)] {
            let say = |rate: Option<Rate>, unit: &str| match rate {
                Some(rate) => format!("; {} {unit}/s{what}, burst {}", rate.per_second, rate.burst),
                None => String::new(),
            };
            write!(f, "{}{}", say(rates.bytes, "bytes"), say(rates.messages, "messages"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tenant in &self.tenants {
            writeln!(f, "tenant {tenant}")?;
        }
        for (index, rule) in self.rules.iter().enumerate() {
            writeln!(f, "rule {}: {rule}", index + 1)?;
        }
        writeln!(f, "otherwise: {}", self.default)?;
        match self.path {
            Some(path) => writeln!(f, "path without rates: {path}")?,
            None => writeln!(f, "path without rates: direct, offloaded with another engine than cpu")?,
        }
        for service in &self.services {
            writeln!(f, "service {service}")?;
        }
        for bind in &self.binds.rules {
            writeln!(f, "bind {bind}")?;
        }
        for network in &self.networks {
            writeln!(f, "network {network}")?;
        }
        for map in &self.maps {
            writeln!(f, "map {map}")?;
        }
        writeln!(f, "{}", self.attach)
    }
}

#[cfg(test)]
mod tests;
