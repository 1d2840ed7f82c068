//! Bindings: tenants may have pipes on ports of the driver, with given flows and addresses.
//!
//! ```toml
//! [[bind]]                            # a pipe needs a rule for each of its ports; the first that matches decides
//! tenant = "red"                      # one or a list, as the next; every tenant if absent
//! port = "wan"                        # every port if absent
//! protocol = "udp"                    # with the next two: flows that it may receive; all if absent
//! address = "10.88.0.0/16"            # destinations
//! l4_port = [53, "8000-8999"]         # destination ports
//! mac = "02:00:00:00:00:07"           # with the next: what its frames come from, all others being dropped; anything if absent
//! ipv4 = "10.88.0.7"
//! mirror = true                       # also ports that copy another port's frames; none of these if absent
//! ```
//!
//! Without any binding the policy's default applies to pipes. Pipes on mirrors always need a binding.
use super::{Action, DEFAULT_TENANT};
use crate::pipes::report::is_port_name;
use pd_pipe::{Flow, Lease, Net};
use serde::Deserialize;
use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// Most bindings of a policy.
pub const BINDS_MAX: usize = 1024;

/// A binding. An empty list matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bind {
    /// Tenants of the pipes.
    pub tenants: Vec<String>,
    /// Ports of the driver.
    pub ports: Vec<String>,
    /// IPv4 protocol of the flows.
    pub protocol: Option<u8>,
    /// Destinations of the flows.
    pub addresses: Vec<Net>,
    /// Destination ports of the flows.
    pub l4_ports: Vec<RangeInclusive<u16>>,
    /// Source addresses of sent frames.
    pub lease: Option<Lease>,
    /// Set if the binding applies to mirrors, too.
    pub mirror: bool,
}

/// Bindings of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Binds {
    /// Verdict on pipes if there is no binding at all.
    pub default: Action,
    /// Bindings; the first match decides.
    pub rules: Vec<Bind>,
}

impl Binds {
    /// Tells whether `tenant` may have a pipe on `ports`, the first being its own, for frames of `flow`. Returns the source addresses
    /// that sent frames then have. `is_mirror` tells whether a port copies another's frames.
    pub fn judge(
        &self,
        tenant: &str,
        ports: &[&str],
        flow: &Flow,
        is_mirror: impl Fn(&str) -> bool,
    ) -> Result<Option<Lease>, Denied> {
        if let Some(mirror) = ports.iter().find(|port| self.rules.is_empty() && is_mirror(port)) {
            return Err(Denied::Mirror((*mirror).to_owned()));
        }
        if self.rules.is_empty() {
            return if self.default == Action::Allow { Ok(None) } else { Err(Denied::Default) };
        }
        let mut leases = Vec::new();
        for (place, port) in ports.iter().enumerate() {
            // Flows apply to frames from the pipe's own port.
            let flow = (place == 0).then_some(flow);
            let mirror = is_mirror(port);
            let rule =
                self.rules.iter().find(|rule| rule.matches(tenant, port, flow) && (rule.mirror || !mirror));
            let denied = if mirror { Denied::Mirror } else { Denied::Port };
            leases.push(rule.ok_or_else(|| denied((*port).to_owned()))?.lease);
        }
        leases.dedup();
        match leases[..] {
            [lease] => Ok(lease),
            _ => Err(Denied::Leases),
        }
    }

    /// Tells whether `tenant` may have a pipe on `port` for frames of some flow.
    pub fn check_port(&self, tenant: &str, port: &str, is_mirror: bool) -> Result<(), Denied> {
        let matches = |rule: &Bind| rule.matches(tenant, port, None) && (rule.mirror || !is_mirror);
        match self.default {
            _ if is_mirror && !self.rules.iter().any(matches) => Err(Denied::Mirror(port.to_owned())),
            Action::Allow if self.rules.is_empty() => Ok(()),
            _ if self.rules.is_empty() => Err(Denied::Default),
            _ if self.rules.iter().any(matches) => Ok(()),
            _ => Err(Denied::Port(port.to_owned())),
        }
    }
}

/// Reason why a pipe is denied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no binding, and the default denies.
    #[error("the policy denies what it does not name: add a [[bind]]")]
    Default,
    /// No binding matches.
    #[error("no [[bind]] of the policy allows this on port {0}")]
    Port(String),
    /// No binding applies to mirrors.
    #[error("port {0} is a mirror: no [[bind]] with mirror = true allows this")]
    Mirror(String),
    /// The port shows connections of others.
    #[error("port {0} shows connections of another tenant, or of all: pd pipe dump has them")]
    Connections(String),
    /// The bindings of the ports have different source addresses.
    #[error("the policy has other addresses for each of the ports: open a pipe for each")]
    Leases,
}

impl Bind {
    fn matches(&self, tenant: &str, port: &str, flow: Option<&Flow>) -> bool {
        let named = |names: &[String], name| names.is_empty() || names.iter().any(|own| own == name);
        named(&self.tenants, tenant) && named(&self.ports, port) && flow.is_none_or(|flow| self.covers(flow))
    }

    /// Tells whether all frames of a flow match the binding.
    fn covers(&self, flow: &Flow) -> bool {
        let port = flow.ports[1];
        self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && (self.addresses.is_empty() || self.addresses.iter().any(|net| net.covers(flow.addresses[1])))
            && (self.l4_ports.is_empty() || self.l4_ports.iter().any(|ports| ports.contains(&port)))
    }
}

/// A value, or a list of values.
#[derive(Deserialize)]
#[serde(untagged)]
enum Many<T> {
    One(T),
    List(Vec<T>),
}

impl<T> Many<T> {
    fn list(this: Option<Self>, key: &str) -> Result<Vec<T>, String> {
        match this {
            None => Ok(Vec::new()),
            Some(Self::One(one)) => Ok(vec![one]),
            Some(Self::List(list)) if list.is_empty() => {
                Err(format!("{key} = [] matches nothing; leave the key out to match everything"))
            }
            Some(Self::List(list)) => Ok(list),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Number(u16),
    Text(String),
}

/// `[[bind]]` in the file's form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindTable {
    tenant: Option<Many<String>>,
    port: Option<Many<String>>,
    protocol: Option<Word>,
    address: Option<Many<String>>,
    l4_port: Option<Many<Word>>,
    mac: Option<String>,
    ipv4: Option<Ipv4Addr>,
    #[serde(default)]
    mirror: bool,
}

impl BindTable {
    /// Returns the binding, if it is valid and the policy `knows` its tenants.
    pub fn check(self, knows: impl Fn(&str) -> bool) -> Result<Bind, String> {
        let tenants = Many::list(self.tenant, "tenant")?;
        if let Some(name) = tenants.iter().find(|name| *name != DEFAULT_TENANT && !knows(name)) {
            return Err(format!("bind: '{name}' is no tenant; add [[tenant]] name = \"{name}\""));
        }
        let protocol = self.protocol.map(protocol).transpose()?;
        let l4_ports: Vec<_> =
            Many::list(self.l4_port, "l4_port")?.into_iter().map(range).collect::<Result<_, _>>()?;
        if !l4_ports.is_empty() && !protocol.is_some_and(|protocol| [6, 17].contains(&protocol)) {
            return Err(
                "bind: l4_port without protocol = \"tcp\" or \"udp\" means nothing; add it".to_owned()
            );
        }
        let addresses = Many::list(self.address, "address")?;
        let lease = match (self.mac, self.ipv4) {
            (None, None) => None,
            (Some(text), Some(ipv4)) => Some(Lease { mac: mac(&text)?, ipv4: ipv4.octets() }),
            _ => return Err("bind: mac and ipv4 belong together; write both, or neither".to_owned()),
        };
        Ok(Bind {
            tenants,
            ports: Many::list(self.port, "port")?.into_iter().map(port).collect::<Result<_, _>>()?,
            protocol,
            addresses: addresses.iter().map(|text| net(text)).collect::<Result<_, _>>()?,
            l4_ports,
            lease,
            mirror: self.mirror,
        })
    }
}

fn protocol(word: Word) -> Result<u8, String> {
    let text = match word {
        Word::Number(number) => number.to_string(),
        Word::Text(text) => text,
    };
    match &*text {
        "icmp" => Ok(1),
        "tcp" => Ok(6),
        "udp" => Ok(17),
        other => other.parse().ok().filter(|&number| number != 0).ok_or_else(|| {
            format!("bind: '{text}' is no protocol; write \"udp\", \"tcp\", \"icmp\" or 1 to 255")
        }),
    }
}

fn range(word: Word) -> Result<RangeInclusive<u16>, String> {
    let text = match word {
        Word::Number(number) => number.to_string(),
        Word::Text(text) => text,
    };
    let (first, last) = text.split_once('-').unwrap_or((&text, &text));
    match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err(format!("bind: '{text}' is no port; write 1 to 65535, or a range like \"8000-8999\"")),
    }
}

fn net(text: &str) -> Result<Net, String> {
    let wrong = || format!("bind: '{text}' is no network of IPv4; write one like 10.88.0.0/16 or 10.88.0.2");
    let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
    let address: Ipv4Addr = address.parse().map_err(|_| wrong())?;
    let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
    let net = Net { address: address.octets(), prefix };
    let flow = Flow { addresses: [Net::default(), net], ..Flow::default() };
    if flow.is_sound() {
        Ok(net)
    } else {
        Err(wrong())
    }
}

/// Reads the name of a port, or of an end of a link. A name that no port can have would deny what it is to allow.
fn port(name: String) -> Result<String, String> {
    let port = name.strip_suffix(".0").or(name.strip_suffix(".1")).unwrap_or(&name);
    if is_port_name(port) {
        return Ok(name);
    }
    Err(format!("bind: '{name}' is no port; write a name of pd port ls, as \"wan\" or \"wire.0\""))
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let byte = |text: &str| {
        let are_digits = text.bytes().all(|digit| digit.is_ascii_hexdigit());
        u8::from_str_radix(text, 16).ok().filter(|_| are_digits)
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    match bytes {
        Some(bytes) if bytes[0] & 1 == 0 => Ok(bytes),
        Some(_) => Err(format!("bind: '{text}' is the address of a group, and no frame comes from one")),
        None => Err(format!("bind: '{text}' is no MAC address; write one like 02:00:00:00:00:07")),
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |names: &[String], all: &str| match names {
            [] => all.to_owned(),
            names => super::list(names),
        };
        write!(f, "{} on {}", names(&self.tenants, "anyone"), names(&self.ports, "every port"))?;
        if let Some(protocol) = self.protocol {
            write!(f, ", protocol {protocol}")?;
        }
        if !self.addresses.is_empty() {
            let nets =
                self.addresses.iter().map(|net| format!("{}/{}", Ipv4Addr::from(net.address), net.prefix));
            write!(f, ", to {}", super::list(nets))?;
        }
        if !self.l4_ports.is_empty() {
            let ports = self.l4_ports.iter().map(|range| format!("{}-{}", range.start(), range.end()));
            write!(f, ", port {}", super::list(ports))?;
        }
        if let Some(Lease { mac, ipv4 }) = self.lease {
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            write!(f, ", as {mac} {}", Ipv4Addr::from(ipv4))?;
        }
        if self.mirror {
            write!(f, ", mirrors too")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const FILE: &str = r#"
        [[tenant]]
        name = "red"
        [[bind]]
        tenant = "red"
        port = ["wan", "lan"]
        protocol = "udp"
        address = "10.88.0.0/16"
        l4_port = [53, "8000-8999"]
        mac = "02:00:00:00:00:07"
        ipv4 = "10.88.0.7"
        [[bind]]
        tenant = "red"
        port = "lan"
        mac = "02:00:00:00:00:07"
        ipv4 = "10.88.0.7"
        [[bind]]
        port = "public"
    "#;

    fn flow(protocol: u8, address: [u8; 4], port: u16) -> Flow {
        Flow { protocol, addresses: [Net::default(), Net { address, prefix: 32 }], ports: [0, port] }
    }

    #[test]
    fn a_mirror_needs_a_binding_that_says_so() {
        let any = Flow::default();
        let judge = |text: &str, tenant: &str| {
            let binds = Policy::parse(text).unwrap().binds;
            let judged = binds.judge(tenant, &["eye"], &any, |port| port == "eye").map(drop);
            assert_eq!(binds.check_port(tenant, "eye", true), judged);
            judged
        };
        let denied = Err(Denied::Mirror("eye".to_owned()));
        assert_eq!(judge("", "red"), denied);
        assert_eq!(judge("[[bind]]", "red"), denied);
        let file =
            "[[tenant]]\nname = \"red\"\n[[bind]]\nport = \"eye\"\n[[bind]]\ntenant = \"red\"\nmirror = true";
        assert_eq!((judge(file, "red"), judge(file, "blue")), (Ok(()), denied));
    }

    #[test]
    fn a_pipe_needs_a_binding_for_each_port_and_its_flow() {
        let binds = Policy::parse(FILE).unwrap().binds;
        let lease = Some(Lease { mac: [2, 0, 0, 0, 0, 7], ipv4: [10, 88, 0, 7] });
        let dns = flow(17, [10, 88, 1, 1], 53);
        let any = Flow::default();
        let judge = |tenant, ports: &[&str], flow: &Flow| binds.judge(tenant, ports, flow, |_| false);
        assert_eq!(judge("red", &["wan"], &dns), Ok(lease));
        assert_eq!(judge("red", &["wan", "lan"], &dns), Ok(lease));
        assert_eq!(judge("red", &["lan"], &any), Ok(lease));
        assert_eq!(judge("blue", &["public"], &any), Ok(None));
        let denied = |port: &str| Err(Denied::Port(port.to_owned()));
        assert_eq!(judge("blue", &["wan"], &dns), denied("wan"));
        for other in
            [any, flow(6, [10, 88, 1, 1], 53), flow(17, [10, 89, 1, 1], 53), flow(17, [10, 88, 1, 1], 54)]
        {
            assert_eq!(judge("red", &["wan"], &other), denied("wan"), "{other:?}");
        }
        assert_eq!(judge("blue", &["public", "wan"], &any), denied("wan"));
        assert_eq!(judge("red", &["lan", "public"], &any), Err(Denied::Leases));
        assert_eq!(Policy::default().binds.judge("red", &["wan"], &any, |_| false), Ok(None));
        let deny = Policy::parse("default = \"deny\"").unwrap().binds;
        assert_eq!(deny.judge("red", &["wan"], &any, |_| false), Err(Denied::Default));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_line() {
        for (keys, says) in [
            ("tenant = \"blue\"", "no tenant"),
            ("tenant = []", "matches nothing"),
            ("protocol = \"sctp\"", "no protocol"),
            ("l4_port = 53", "add it"),
            ("protocol = \"udp\"\nl4_port = \"9-8\"", "no port"),
            ("address = \"10.0.0.1/8\"", "no network"),
            ("mac = \"02:00:00:00:00:07\"", "belong together"),
            ("port = \"\"", "no port"),
            ("port = [\"wan\", \"wire.2\"]", "no port"),
            ("port = \"a-name-that-is-too-long.0\"", "no port"),
            ("mac = \"03:00:00:00:00:07\"\nipv4 = \"10.0.0.1\"", "group"),
            ("mac = \"+2:00:00:00:00:07\"\nipv4 = \"10.0.0.1\"", "no MAC"),
            ("mac = \"02\"\nipv4 = \"10.0.0.1\"", "no MAC"),
            ("colour = 1", "unknown field"),
        ] {
            let why = Policy::parse(&format!("\n[[bind]]\n{keys}")).unwrap_err().to_string();
            assert!(why.contains(says) && why.contains("line "), "{keys}: {why}");
        }
    }

    #[test]
    fn a_binding_is_said_in_a_line() {
        let policy = Policy::parse(FILE).unwrap();
        let text = policy.to_string();
        assert!(text.contains(
            "bind red on wan, lan, protocol 17, to 10.88.0.0/16, port 53-53, 8000-8999, as 02:00:00:00:00:07 10.88.0.7"
        ), "{text}");
        assert!(text.contains("bind anyone on public"), "{text}");
    }
}
