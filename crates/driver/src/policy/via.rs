//! Sidecars: proxies that a rule leads connections through, as the policy file defines them, and their order.
//!
//! A connection towards a destination of the rule is made to the first proxy instead. A proxy's own connections there go on to the proxy
//! after it, and those of the last one to the destination. A proxy is known by the network namespace that has its address. Its
//! connections follow the first rule that names it, on whose behalf they may be. Each step therefore goes to an earlier rule, or further
//! on in the same one: no set of rules makes a loop.
use super::{list, Action, Attempt, Policy, Rule, Service, Tenant};
use ipnet::IpNet;
use serde::Deserialize;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Most proxies of one rule.
pub const HOPS_MAX: usize = 4;
/// Most rules with proxies.
pub const CHAINS_MAX: usize = 256;

/// Proxies that a rule leads connections through, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Via {
    /// Proxies; at least one.
    pub hops: Vec<Hop>,
    /// Fate of connections while a proxy is absent.
    pub on_failure: OnFailure,
}

/// A proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, Deserialize)]
pub struct Hop {
    /// The proxy's place.
    pub at: At,
    /// The proxy's port; none: the port that was asked for.
    pub port: Option<u16>,
}

/// Place of a proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, Deserialize)]
pub enum At {
    /// A container that `pd run` registers.
    Container(String),
    /// The network namespace that has this address.
    Address(IpAddr),
}

/// Fate of connections while a proxy has no listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// Connections fail with `ECONNREFUSED`.
    #[default]
    Close,
    /// Connections go on without the proxy.
    Bypass,
}

/// Verdict of the policy on a connect, and the proxy that it is led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Action on the connection.
    pub action: Action,
    /// The deciding rule; none: the default.
    pub rule: Option<usize>,
    /// The rule whose proxies the connection passes, and the first proxy that it has not passed.
    pub leg: Option<(usize, usize)>,
}

/// Rules that lead connections through proxies, by number, and decisions on them.
impl Policy {
    /// Returns the rules with proxies, by number.
    pub fn chains(&self) -> impl Iterator<Item = (usize, &Rule, &Via)> {
        let rules = self.rules.iter().enumerate();
        rules.filter_map(|(number, rule)| Some((number, rule, rule.via.as_ref()?)))
    }

    /// Returns the verdict on a connection. `asked`: the attempt at a service's address, whose chosen backend is in `reached`. `is_own`:
    /// tells whether the connection comes from a proxy.
    pub fn decide_leg(
        &self,
        asked: Option<&Attempt<'_>>,
        reached: &Attempt<'_>,
        is_own: impl Fn(&Hop) -> bool,
    ) -> Decision {
        let (action, rule) = match asked {
            Some(asked) => self.decide_service(asked, reached),
            None => self.decide(reached),
        };
        let leads = |rule: &Rule| {
            let is_named = asked.is_some_and(|asked| !rule.addresses.is_empty() && rule.leads_to(asked));
            is_named || rule.leads_to(reached)
        };
        let own = self.chains().find_map(|(number, rule, via)| {
            let at = via.hops.iter().rposition(&is_own).filter(|_| leads(rule))?;
            Some((number, at + 1, via.hops.len()))
        });
        if let Some((number, next, len)) = own {
            // The first matching rule decides, as for all connections.
            if action == Action::Deny && rule.is_some_and(|rule| rule < number) {
                return Decision { action, rule, leg: None };
            }
            let leg = (next < len).then_some((number, next));
            return Decision { action: Action::Allow, rule: Some(number), leg };
        }
        let named = asked.and_then(|asked| {
            let names = |rule: &Rule| !rule.addresses.is_empty() && rule.matches(asked);
            self.rules.iter().position(names)
        });
        let by_itself = || self.rules.iter().position(|rule| rule.matches(reached));
        let leading = |number: &usize| self.rules[*number].via.is_some();
        let first = named.filter(leading).or_else(|| by_itself().filter(leading));
        let leg = first.filter(|_| action == Action::Allow).map(|number| (number, 0));
        Decision { action, rule, leg }
    }
}

impl FromStr for Hop {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("'{text}' is no proxy; write \"container:proxy\", \"container:proxy:15001\" or \"10.88.0.9:15001\"")
        };
        let of_port = |port: &str| port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong);
        if let Some(name) = text.strip_prefix("container:") {
            let (name, port) = match name.split_once(':') {
                Some((name, port)) => (name, Some(of_port(port)?)),
                None => (name, None),
            };
            let good = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '/');
            let at = At::Container(name.to_owned());
            return if good { Ok(Self { at, port }) } else { Err(wrong()) };
        }
        let (ip, port) = match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
            (Ok(at), _) if at.port() > 0 => (at.ip(), Some(at.port())),
            (_, Ok(ip)) => (ip, None),
            _ => return Err(wrong()),
        };
        let ip = ip.to_canonical();
        if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
            return Err(wrong());
        }
        Ok(Self { at: At::Address(ip), port })
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.at, self.port) {
            (At::Container(name), None) => write!(f, "container:{name}"),
            (At::Container(name), Some(port)) => write!(f, "container:{name}:{port}"),
            (At::Address(ip), None) => write!(f, "{ip}"),
            (At::Address(ip), Some(port)) => write!(f, "{}", SocketAddr::new(*ip, port)),
        }
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Close => "close",
            Self::Bypass => "bypass",
        })
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "via {}, on failure {}", list(&self.hops), self.on_failure)
    }
}

/// Returns the proxies that a rule's keys give.
///
/// # Errors
/// A sentence.
pub(super) fn via(
    hops: Option<Vec<Hop>>,
    on_failure: Option<OnFailure>,
    action: Action,
) -> Result<Option<Via>, String> {
    let Some(hops) = hops else {
        return match on_failure {
            Some(_) => Err("on_failure without via means nothing; add via, or take the key out".to_owned()),
            None => Ok(None),
        };
    };
    if action == Action::Deny {
        return Err("a connection that is denied has no via; take the key out".to_owned());
    }
    if hops.len() > HOPS_MAX {
        return Err(format!("via names more than {HOPS_MAX} proxies; join some"));
    }
    Ok(Some(Via { hops, on_failure: on_failure.unwrap_or_default() }))
}

/// Fails if a rule's proxies do not fit beside those of the rules before it.
pub(super) fn fits(
    rule: &Rule,
    before: &[Rule],
    tenants: &[Tenant],
    services: &[Service],
) -> Result<(), String> {
    let Some(own) = &rule.via else { return Ok(()) };
    if before.iter().filter(|other| other.via.is_some()).count() >= CHAINS_MAX {
        return Err(format!("more than {CHAINS_MAX} rules with via; join some"));
    }
    for (at, hop) in own.hops.iter().enumerate() {
        if own.hops[..at].iter().any(|other| other.at == hop.at) {
            return Err(format!("a loop of via: {hop} comes twice; take one of the two out"));
        }
        known(hop, rule, tenants, services)?;
    }
    for (number, other) in before.iter().enumerate() {
        let Some(via) = other.via.as_ref().filter(|_| meet(rule, other, services)) else { continue };
        for hop in &own.hops {
            let (Some(next), Some(of_other)) = (after(own, hop), after(via, hop)) else { continue };
            if next.map(|hop| &hop.at) == of_other.map(|hop| &hop.at) {
                continue;
            }
            let words =
                |next: Option<&Hop>| next.map_or_else(|| "the destination".to_owned(), ToString::to_string);
            let kind =
                if next.is_some_and(|next| comes_before(via, next, hop)) { "a loop of via: " } else { "" };
            return Err(format!(
                "{kind}it leads from {hop} to {}, and rule {} from there to {}, for destinations that both name: a proxy's connections \
                 go one way; give the two rules the same order of proxies, or one of them another proxy",
                words(next),
                number + 1,
                words(of_other)
            ));
        }
    }
    Ok(())
}

/// Refuses a proxy that the policy does not know, or that cannot take the rule's connections.
fn known(hop: &Hop, rule: &Rule, tenants: &[Tenant], services: &[Service]) -> Result<(), String> {
    match &hop.at {
        At::Container(name) => {
            if tenants.iter().any(|tenant| tenant.containers.contains(name)) {
                return Ok(());
            }
            Err(format!(
                "via names {hop}, an unknown proxy; add containers = [\"{name}\"] to the tenant whose it is, so that no other container is taken for it"
            ))
        }
        At::Address(ip) => {
            let is_service = |service: &Service| {
                service.address.ip() == *ip && hop.port.is_none_or(|port| port == service.address.port())
            };
            if services.iter().any(is_service) {
                return Err(format!("via names {hop}, which is a service; write the address of its backend"));
            }
            let other = |net: &IpNet| net.addr().is_ipv4() != ip.is_ipv4();
            let (family, all) = if ip.is_ipv4() { ("IPv4", "0.0.0.0/0") } else { ("IPv6", "::/0") };
            if rule.addresses.is_empty() || rule.addresses.iter().any(other) {
                return Err(format!(
                    "via names {hop}, which takes {family} alone; add address = \"{all}\" or narrower, or name a container"
                ));
            }
            Ok(())
        }
    }
}

/// Returns the proxy after this one, in a chain that has it.
fn after<'a>(via: &'a Via, hop: &Hop) -> Option<Option<&'a Hop>> {
    let at = via.hops.iter().position(|own| own.at == hop.at)?;
    Some(via.hops.get(at + 1))
}

fn comes_before(via: &Via, one: &Hop, other: &Hop) -> bool {
    let at = |hop: &Hop| via.hops.iter().position(|own| own.at == hop.at);
    matches!((at(one), at(other)), (Some(one), Some(other)) if one < other)
}

/// Tells whether two rules can match one connection, directly or by a service that may reach destinations of either.
fn meet(one: &Rule, other: &Rule, services: &[Service]) -> bool {
    let lists =
        |a: &[String], b: &[String]| a.is_empty() || b.is_empty() || a.iter().any(|name| b.contains(name));
    let nets = one.addresses.is_empty()
        || other.addresses.is_empty()
        || one.addresses.iter().any(|a| other.addresses.iter().any(|b| a.contains(b) || b.contains(a)));
    let ports = one.ports.is_empty()
        || other.ports.is_empty()
        || one.ports.iter().any(|a| other.ports.iter().any(|b| a.start() <= b.end() && b.start() <= a.end()));
    let names = |rule: &Rule, at: &SocketAddr| {
        (rule.addresses.is_empty() || rule.addresses.iter().any(|net| net.contains(&at.ip())))
            && (rule.ports.is_empty() || rule.ports.iter().any(|ports| ports.contains(&at.port())))
    };
    let by_service = services.iter().any(|service| {
        let all = || service.backends.iter().map(|backend| &backend.address).chain([&service.address]);
        all().any(|at| names(one, at)) && all().any(|at| names(other, at))
    });
    by_service || lists(&one.to, &other.to) && nets && ports
}

#[cfg(test)]
mod tests;
