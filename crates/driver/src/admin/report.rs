//! The driver at a moment: clients, and connections on the fabric and on the kernel.
use super::{KernelHalf, ServiceReport, SidecarReport};
use crate::containers::Container;
use crate::policy::Path as BytesPath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The driver at a moment.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Bytes of all regions.
    pub memory_used_bytes: u64,
    /// Most bytes that all regions may have.
    pub memory_budget_bytes: u64,
    /// Flows that wait for memory.
    pub rings_waiting: usize,
    /// Clients attached.
    pub clients: Vec<ClientReport>,
    /// Connections.
    pub connections: Vec<ConnectionReport>,
    /// Connections that are or were on the kernel, by the label of their [`pd_abi::KernelReason`], as the clients
    /// report. Counts all clients that there are or were.
    pub kernel_connections_by_reason: BTreeMap<String, u64>,
    /// Processes that were not let in since the driver's start, by the label of their [`crate::Refusal`].
    #[serde(default)]
    pub attaches_refused_by_reason: BTreeMap<String, u64>,
    /// State of the policy on the kernel.
    #[serde(default)]
    pub policy_on_kernel: KernelHalf,
    /// Services of the policy.
    #[serde(default)]
    pub services: Vec<ServiceReport>,
    /// Rules of the policy that lead through proxies.
    #[serde(default)]
    pub sidecars: Vec<SidecarReport>,
    /// Counters, by the names that [`pd_abi::counters::AgentCounters`] gives them.
    pub metrics: BTreeMap<String, u64>,
    /// The take-over by which the driver began, if it took another one's place.
    #[serde(default)]
    pub taken_over: Option<TakenOver>,
    /// More threads want to run on the machine than it has cores, so that clients do not spin for long.
    #[serde(default)]
    pub cores_scarce: bool,
}

/// A completed take-over.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct TakenOver {
    /// Time for which no client was served, from the previous driver's last work to this one's first, in microseconds.
    pub pause_us: u64,
    /// Attempts of the previous driver, each of which stopped it for a moment. The last one succeeded.
    pub attempts: u32,
    /// Time for which the previous driver was stopped by the attempts before the last one, in microseconds.
    pub earlier_us: u64,
    /// Clients that came.
    pub clients: usize,
    /// Connections that came.
    pub connections: usize,
    /// Descriptors that came.
    pub descriptors: usize,
    /// Bytes of the state that came.
    pub state_bytes: usize,
}

/// A client.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClientReport {
    /// The client's number.
    pub client: u16,
    /// A number that no other client of this driver has or will have.
    pub serial: u64,
    /// The client's process.
    pub pid: u32,
    /// The client's user.
    pub uid: u32,
    /// The client's container, if `pd run` made it. `pd` fills in the names of other containers.
    pub container: Option<String>,
    /// The client's network, if the policy puts it into one.
    #[serde(default)]
    pub network: Option<String>,
    /// The image of the client's container. Empty in the driver, which reads no files of engines; `pd` fills it in.
    #[serde(default)]
    pub image: Option<String>,
    /// The pod of the client's container. `pd` fills it in.
    #[serde(default)]
    pub pod: Option<String>,
    /// The container that its control group names.
    #[serde(default)]
    pub engine_container: Option<Container>,
    /// The client's tenant.
    pub tenant: Option<String>,
    /// Channels.
    pub channels: usize,
    /// Regions.
    pub regions: usize,
    /// Bytes of them.
    pub region_bytes: u64,
    /// Bytes of them that are receive rings in use.
    pub ring_bytes: u64,
    /// Sockets in all.
    pub sockets: usize,
    /// Addresses that it listens on, with the connections waiting.
    pub listening: Vec<(SocketAddr, usize)>,
    /// The client's connections that are or were on the kernel, by the label of their [`pd_abi::KernelReason`], as the client
    /// reports.
    pub kernel_connections_by_reason: BTreeMap<String, u64>,
}

/// Connections and processes that stay on the kernel, as far as the driver knows.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KernelReport {
    /// Clients.
    pub clients: Vec<KernelClient>,
    /// Inodes of kernel sockets whose bytes go by the fabric.
    pub twins: Vec<u32>,
    /// Processes that were refused lately.
    pub refused: Vec<RefusedReport>,
}

/// A client's connections on the kernel, as the client reports them.
#[derive(Debug, Serialize, Deserialize)]
pub struct KernelClient {
    /// The client's process.
    pub pid: u32,
    /// Inode of a socket, and the number of its [`pd_abi::KernelReason`].
    pub connections: Vec<(u32, u32)>,
}

/// A process that the driver refused or cut off.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusedReport {
    /// Process id; another process may have it now.
    pub pid: u32,
    /// User id of the process.
    pub uid: u32,
    /// The errno that the process received.
    pub errno: i32,
    /// The reason, as a sentence.
    pub why: String,
    /// The reason in one word, if the process was not let in: see [`crate::Refusal`].
    #[serde(default)]
    pub reason: Option<String>,
    /// Seconds since the refusal.
    pub seconds_ago: f64,
}

/// A connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// The connection's number.
    pub connection: u32,
    /// A number that no other connection of this driver has or will have.
    pub serial: u64,
    /// The connecting client and its address, unless gone.
    pub from: Option<(u16, SocketAddr)>,
    /// The accepting client and its address, unless gone.
    pub to: Option<(u16, SocketAddr)>,
    /// The path of the connection's bytes.
    pub path: BytesPath,
    /// Bytes delivered, there and back; on the direct path, bytes that the clients say they have sent.
    pub bytes: [u64; 2],
    /// Sends completed, there and back.
    pub messages: [u64; 2],
    /// Address that the connecting side asked for, if that is a service or a rule led the connection to a proxy.
    #[serde(default)]
    pub asked: Option<SocketAddr>,
}
