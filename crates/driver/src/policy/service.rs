//! Service addresses, as the policy file defines them.
use super::list;
use pd_maglev::Table;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::Deserialize;
use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// Most services of a policy.
pub const SERVICES_MAX: usize = 256;
/// Most backends of one service.
pub const BACKENDS_MAX: usize = 256;
/// Most backends of all services.
pub const BACKENDS_TOTAL_MAX: usize = 4096;
/// Largest weight of a backend.
pub const WEIGHT_MAX: u32 = 1000;
/// Longest affinity: a week.
const AFFINITY_SECONDS_MAX: u64 = 604_800;
/// Shortest and longest interval between two looks at a backend.
const LOOK_MS: [u64; 2] = [100, 3_600_000];
/// Most looks in a row that a change may need.
const LOOKS_MAX: u64 = 100;
/// Most probes of all services in a second.
pub const PROBES_PER_SECOND_MAX: u64 = 1000;
/// Longest path of a probe's request.
pub const PATH_BYTES_MAX: usize = 256;
/// Shortest time-out of a probe, and the default one, unless the interval is shorter.
const TIMEOUT_MS_MIN: u64 = 10;
const TIMEOUT_MS_DEFAULT: i64 = 1000;

/// A service: a connection to its address is made to one of its backends.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// The service's address.
    pub address: SocketAddr,
    /// Method by which a backend is chosen.
    pub balance: Balance,
    /// Time for which a client keeps its backend after a connection.
    pub affinity: Option<Duration>,
    /// Method by which a backend is found to be down.
    pub health: Health,
    /// Backends that the service leads to.
    pub backends: Vec<Backend>,
    /// The backends by hash. Drained backends have no entry.
    pub table: Table,
}

/// Method by which a backend is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// By Maglev hashing.
    #[default]
    Maglev,
    /// The backend with the fewest open connections for its weight.
    LeastConnections,
}

/// A backend of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The backend's address.
    pub address: SocketAddr,
    /// The backend's share, relative to other weights.
    pub weight: u32,
    /// Set if the backend gets no new connections; open ones go on.
    pub drain: bool,
}

/// Parameters of the driver's looks at the kernel's listeners of a service's backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Interval of looks.
    pub interval: Duration,
    /// Looks in a row that have to find a listener with room before a backend is chosen again.
    pub rise: u32,
    /// Looks in a row that have to find no listener with room before a backend is no longer chosen.
    pub fall: u32,
    /// Probe of each backend that has a listener; none: a listener is enough.
    pub probe: Option<Probe>,
}

/// A connection that shows the state of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Longest time for a backend's answer.
    pub timeout: Duration,
    /// Path of an HTTP request, which has to be answered with a status of 2xx or 3xx; none: the connection is enough.
    pub path: Option<Box<str>>,
}

/// Kinds of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ProbeKind {
    Tcp,
    Http,
}

impl Default for Health {
    fn default() -> Self {
        Self { interval: Duration::from_millis(500), rise: 1, fall: 1, probe: None }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceTable {
    address: SocketAddr,
    #[serde(default)]
    balance: Balance,
    affinity_seconds: Option<i64>,
    #[serde(default)]
    health: HealthTable,
    #[serde(default)]
    backends: Vec<BackendTable>,
}

/// A backend, given by its address alone or as a table.
struct BackendTable(WholeBackend);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WholeBackend {
    address: SocketAddr,
    #[serde(default = "one")]
    weight: i64,
    #[serde(default)]
    drain: bool,
}

fn one() -> i64 {
    1
}

impl<'de> Deserialize<'de> for BackendTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BackendVisitor)
    }
}

struct BackendVisitor;

impl<'de> Visitor<'de> for BackendVisitor {
    type Value = BackendTable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "an address like \"10.88.0.2:80\", or { address = \"10.88.0.2:80\", weight = 2, drain = true }",
        )
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<BackendTable, E> {
        let address = word.parse().map_err(|_| {
            E::custom(format!("'{word}' is no address of a backend; write one like 10.88.0.2:80"))
        })?;
        Ok(BackendTable(WholeBackend { address, weight: 1, drain: false }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BackendTable, A::Error> {
        WholeBackend::deserialize(MapAccessDeserializer::new(map)).map(BackendTable)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HealthTable {
    interval_ms: i64,
    rise: i64,
    fall: i64,
    probe: Option<ProbeKind>,
    timeout_ms: Option<i64>,
    path: Option<String>,
}

impl Default for HealthTable {
    fn default() -> Self {
        let Health { interval, rise, fall, .. } = Health::default();
        Self {
            interval_ms: interval.as_millis() as i64,
            rise: rise.into(),
            fall: fall.into(),
            probe: None,
            timeout_ms: None,
            path: None,
        }
    }
}

fn within(key: &str, value: i64, low: u64, high: u64) -> Result<u64, String> {
    match u64::try_from(value) {
        Ok(value) if (low..=high).contains(&value) => Ok(value),
        _ => Err(format!("{key} = {value} is out of range; use {low} to {high}, or leave it out")),
    }
}

/// Returns the address, as IPv4 if it is mapped. Fails if a container cannot have it.
fn usable(key: &str, at: SocketAddr) -> Result<SocketAddr, String> {
    let at = SocketAddr::new(at.ip().to_canonical(), at.port());
    if at.port() == 0 {
        return Err(format!("{key} \"{at}\" has port 0; write the port, as in 10.88.0.2:80"));
    }
    if at.ip().is_unspecified() || at.ip().is_loopback() || at.ip().is_multicast() {
        return Err(format!("{key} \"{at}\" is no address of a container; write one like 10.88.0.2:80"));
    }
    Ok(at)
}

impl ServiceTable {
    /// Checks the service alone, without the others, and returns it.
    pub(super) fn check(self) -> Result<Service, String> {
        let address = usable("service", self.address)?;
        let of = |why: String| format!("service {address}: {why}");
        if self.backends.is_empty() {
            return Err(of("it has no backends; add backends = [\"10.88.0.2:8080\"]".into()));
        }
        if self.backends.len() > BACKENDS_MAX {
            return Err(of(format!("more than {BACKENDS_MAX} backends; make two services of it")));
        }
        let (mut backends, mut seen) = (Vec::new(), HashSet::new());
        for table in self.backends {
            let backend = table.check().map_err(of)?;
            if backend.address.is_ipv4() != address.is_ipv4() {
                return Err(of(format!(
                    "backend {} is of another family than the service; write both as IPv4 or as IPv6",
                    backend.address
                )));
            }
            if !seen.insert(backend.address) {
                return Err(of(format!("backend {} is there twice; give it a weight", backend.address)));
            }
            backends.push(backend);
        }
        let affinity = self.affinity_seconds.map(|seconds| {
            within("affinity_seconds", seconds, 1, AFFINITY_SECONDS_MAX).map(Duration::from_secs)
        });
        let names: Vec<_> = backends.iter().map(|backend| backend.address.to_string()).collect();
        let weights = backends.iter().map(|backend| if backend.drain { 0 } else { backend.weight });
        let weighed: Vec<_> = names.iter().map(|name| name.as_bytes()).zip(weights).collect();
        Ok(Service {
            address,
            balance: self.balance,
            affinity: affinity.transpose().map_err(of)?,
            health: self.health.check().map_err(of)?,
            table: Table::new(&weighed),
            backends,
        })
    }
}

impl BackendTable {
    fn check(self) -> Result<Backend, String> {
        let WholeBackend { address, weight, drain } = self.0;
        let address = usable("backend", address)?;
        match u32::try_from(weight) {
            Ok(weight @ 1..=WEIGHT_MAX) => Ok(Backend { address, weight, drain }),
            _ => Err(format!(
                "backend {address}: weight = {weight} is out of range; use 1 to {WEIGHT_MAX}, or drain = true"
            )),
        }
    }
}

impl HealthTable {
    fn probe(&self) -> Result<Option<Probe>, String> {
        let Some(kind) = self.probe else {
            let keys = [("timeout_ms", self.timeout_ms.is_some()), ("path", self.path.is_some())];
            return match keys.into_iter().find(|(_, is_there)| *is_there) {
                Some((key, _)) => Err(format!(
                    "health.{key} is about probes; set probe = \"tcp\" or \"http\", or leave it out"
                )),
                None => Ok(None),
            };
        };
        let longest = self.interval_ms.clamp(0, TIMEOUT_MS_DEFAULT);
        let timeout_ms =
            within("health.timeout_ms", self.timeout_ms.unwrap_or(longest), TIMEOUT_MS_MIN, LOOK_MS[1])?;
        if timeout_ms as i64 > self.interval_ms {
            return Err(format!(
                "health.timeout_ms = {timeout_ms} is more than interval_ms = {}; lower it, or raise the interval",
                self.interval_ms
            ));
        }
        let path = match (kind, self.path.as_deref()) {
            (ProbeKind::Tcp, None) => None,
            (ProbeKind::Tcp, Some(_)) => {
                return Err("health.path is for probe = \"http\"; set that, or leave the path out".to_owned())
            }
            (ProbeKind::Http, path) => Some(path.unwrap_or("/")),
        };
        let is_wrong = |path: &&str| {
            !path.starts_with('/')
                || path.len() > PATH_BYTES_MAX
                || !path.bytes().all(|b| b.is_ascii_graphic())
        };
        if let Some(path) = path.filter(is_wrong) {
            return Err(format!(
                "health.path = {path:?} is no path; write one like \"/healthz\", of at most {PATH_BYTES_MAX} letters without spaces"
            ));
        }
        Ok(Some(Probe { timeout: Duration::from_millis(timeout_ms), path: path.map(Into::into) }))
    }

    fn check(self) -> Result<Health, String> {
        let count = |key, value| within(key, value, 1, LOOKS_MAX).map(|count| count as u32);
        let [shortest, longest] = LOOK_MS;
        Ok(Health {
            interval: Duration::from_millis(within(
                "health.interval_ms",
                self.interval_ms,
                shortest,
                longest,
            )?),
            rise: count("health.rise", self.rise)?,
            fall: count("health.fall", self.fall)?,
            probe: self.probe()?,
        })
    }
}

/// Returns the number of probes of a service's backends in a second.
fn probes_per_second(service: &Service) -> u64 {
    let probed = service.health.probe.iter().count() * service.backends.len();
    (probed as u64 * 1000).div_ceil(service.health.interval.as_millis() as u64)
}

/// Fails if a service does not fit beside those before it.
pub(super) fn fits(service: &Service, others: &[Service]) -> Result<(), String> {
    if others.iter().any(|other| other.address == service.address) {
        let address = service.address;
        return Err(format!("service {address} is there already; keep one of the two, with all backends"));
    }
    if others.len() >= SERVICES_MAX {
        return Err(format!("more than {SERVICES_MAX} services; take some out"));
    }
    let all = others.iter().chain([service]).map(|service| service.backends.len()).sum::<usize>();
    if all > BACKENDS_TOTAL_MAX {
        return Err(format!(
            "the services have more than {BACKENDS_TOTAL_MAX} backends in all; take some out"
        ));
    }
    let rate: u64 = others.iter().chain([service]).map(probes_per_second).sum();
    if rate > PROBES_PER_SECOND_MAX && probes_per_second(service) > 0 {
        return Err(format!(
            "service {}: the services have {rate} probes in a second, of which {PROBES_PER_SECOND_MAX} may be; raise health.interval_ms",
            service.address
        ));
    }
    Ok(())
}

/// Fails if a backend of the service is itself a service.
pub(super) fn loops(service: &Service, all: &[Service]) -> Result<(), String> {
    let is_service = |address: SocketAddr| all.iter().any(|other| other.address == address);
    match service.backends.iter().find(|backend| is_service(backend.address)) {
        Some(backend) => Err(format!(
            "service {}: backend {} is itself a service; write the addresses of its backends",
            service.address, backend.address
        )),
        None => Ok(()),
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Maglev => "maglev",
            Self::LeastConnections => "least_connections",
        })
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        if self.weight != 1 {
            write!(f, " (weight {})", self.weight)?;
        }
        if self.drain {
            write!(f, " (drained)")?;
        }
        Ok(())
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; {}", self.address, list(&self.backends), self.balance)?;
        if let Some(affinity) = self.affinity {
            write!(f, "; a client keeps its backend for {} s", affinity.as_secs())?;
        }
        if self.health != Health::default() {
            let Health { interval, rise, fall, probe } = &self.health;
            write!(f, "; looked at every {} ms, rise {rise}, fall {fall}", interval.as_millis())?;
            if let Some(Probe { timeout, path }) = probe {
                let what = path.as_ref().map_or("connecting".to_owned(), |path| format!("GET {path}"));
                write!(f, ", probed by {what} within {} ms", timeout.as_millis())?;
            }
        }
        Ok(())
    }
}
