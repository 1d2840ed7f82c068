//! Services and proxies of the policy.
use crate::policy::via::OnFailure;
use crate::policy::Balance;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// A service. Counts are kept while the policy has the service and its backends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceReport {
    /// The service's address.
    pub address: SocketAddr,
    /// Method by which a backend is chosen.
    pub balance: Balance,
    /// Seconds for which a client keeps its backend.
    pub affinity_seconds: Option<u64>,
    /// Connections through the service. `connections_failed`: connections that no backend could take.
    #[serde(flatten)]
    pub counts: ServiceCounts,
    /// Backends that the service leads to.
    pub backends: Vec<BackendReport>,
}

/// A backend of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendReport {
    /// The backend's address.
    pub address: SocketAddr,
    /// The backend's share, relative to other weights.
    pub weight: u32,
    /// Set if the backend gets no new connections.
    pub drain: bool,
    /// Tells whether a native client finds a listener there.
    pub on_fabric: bool,
    /// Tells whether a known container has the address and no listener on the kernel.
    pub no_listener: bool,
    /// Tells whether the backlog of the backend's listener on the kernel is full.
    pub backlog_full: bool,
    /// Fault that a probe has found, if any.
    pub probe: Option<ProbeFailure>,
    /// Connections to the backend through the service. `connections_failed`: connections on the kernel that failed.
    #[serde(flatten)]
    pub counts: ServiceCounts,
}

/// Fault that a probe of a backend has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeFailure {
    /// The connection was refused.
    Refused,
    /// No answer came in time.
    TimedOut,
    /// The answer has another status than 2xx or 3xx, or is not HTTP.
    BadAnswer,
}

/// A rule that leads through proxies. Counts are kept while the policy has the rule, word for word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SidecarReport {
    /// The rule's number, from 1 on.
    pub rule: usize,
    /// Fate of connections while a proxy is not there.
    pub on_failure: OnFailure,
    /// Connects that went on without a proxy.
    pub connections_bypassed: u64,
    /// Connections to the rule's proxies. `connections_failed`: connections refused for lack of a proxy.
    #[serde(flatten)]
    pub counts: ServiceCounts,
    /// The rule's proxies, in order.
    pub proxies: Vec<ProxyReport>,
}

/// A proxy of a rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProxyReport {
    /// The proxy, as the rule names it.
    pub proxy: String,
    /// The proxy's addresses, if they are known.
    pub addresses: Vec<IpAddr>,
    /// Tells whether a native client finds a listener there.
    pub on_fabric: bool,
    /// Tells whether the proxy has a listener on the kernel.
    pub on_kernel: bool,
    /// Connections that were led to the proxy. `connections_failed`: connections that failed, and connections made while the
    /// proxy was absent.
    #[serde(flatten)]
    pub counts: ServiceCounts,
}

/// Counts of a service or a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCounts {
    /// Connections made.
    pub connections_made: u64,
    /// Connections that are open.
    pub connections_open: u64,
    /// Failed connections; see the field with these counts for their meaning.
    pub connections_failed: u64,
    /// Bytes to backends, of connections that are over.
    pub bytes_sent: u64,
    /// Bytes from backends, likewise.
    pub bytes_received: u64,
}
