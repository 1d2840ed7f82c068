//! Settings of a driver.
use crate::filter::Confined;
use crate::policy::{Path, Policy};
use crate::rights::Namespaces;
use crate::HugepageUse;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a driver. Each has a sensible default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Unix socket that clients attach to.
    pub socket: PathBuf,
    /// Unix socket for `pd ls` and `pd run`; mode 0600.
    pub admin_socket: PathBuf,
    /// Mode of `socket`.
    pub socket_mode: u32,
    /// Group of `socket`, if it differs from the driver's.
    pub socket_group: Option<u32>,
    /// Processes that the driver serves.
    pub namespaces: Namespaces,
    /// The program that probes backends when it is called with `internal-probe` ([`crate::probe`]); none: health is by listeners alone.
    pub prober: Option<PathBuf>,
    /// Threads that are confined to the system calls of a driver.
    pub confined: Confined,
    /// Most bytes of all regions of all clients.
    pub budget_bytes: u64,
    /// Most bytes of the regions of one client.
    pub client_budget_bytes: u64,
    /// Use of hugepages for regions.
    pub hugepages: HugepageUse,
    /// Default size of the send and receive ring of a socket.
    pub ring_bytes_default: u64,
    /// Movers.
    pub movers: usize,
    /// Tells whether movers beyond the first have threads only while there is load for them.
    pub movers_auto: bool,
    /// Processors that movers are pinned to, in turn; none: any.
    pub mover_cores: Vec<usize>,
    /// For tests: interval at which something moves from one mover to another, whatever the load.
    pub movers_shuffled: Option<Duration>,
    /// Longest time that a mover looks for work before it sleeps.
    pub spin: Duration,
    /// Time for which an empty receive ring stays with an idle connection.
    pub ring_idle: Duration,
    /// Most connections in all; `ENOBUFS` beyond.
    pub connections_max: usize,
    /// Most clients in all; refused beyond.
    pub clients_max: usize,
    /// Path of bytes where the policy names none.
    pub path: Path,
    /// Policy in force at the start.
    pub policy: Policy,
    /// File of that policy, for reports.
    pub policy_file: Option<PathBuf>,
    /// Tells whether connections outlive a crash, if the service manager stores descriptors.
    pub crash_store: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket: "/run/pipedevice/driver.sock".into(),
            admin_socket: "/run/pipedevice/admin.sock".into(),
            socket_mode: 0o666,
            socket_group: None,
            namespaces: Namespaces::default(),
            prober: None,
            confined: Confined::default(),
            budget_bytes: 4 << 30,
            client_budget_bytes: 2 << 30,
            hugepages: HugepageUse::Auto,
            ring_bytes_default: pd_abi::limits::RING_BYTES_DEFAULT,
            movers: 1,
            movers_auto: false,
            mover_cores: Vec::new(),
            movers_shuffled: None,
            spin: pd_shm::Spin::LIMIT_DEFAULT,
            ring_idle: Duration::from_secs(1),
            connections_max: 131_072,
            clients_max: 4096,
            path: Path::default(),
            policy: Policy::default(),
            policy_file: None,
            crash_store: true,
        }
    }
}
