//! What a driver can be told.
use crate::filter::Confined;
use crate::policy::{Path, Policy};
use crate::rights::Namespaces;
use crate::HugepageUse;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a driver. Every one has a sensible default.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Unix socket that clients attach to.
    pub socket: PathBuf,
    /// Unix socket for `pd ls` and `pd run`; mode 0600.
    pub admin_socket: PathBuf,
    /// Mode of `socket`.
    pub socket_mode: u32,
    /// Group of `socket`, if not the driver's.
    pub socket_group: Option<u32>,
    /// Whose processes it serves.
    pub namespaces: Namespaces,
    /// The program that probes backends when it is called with `internal-probe` ([`crate::probe`]); none: health is by listeners alone.
    pub prober: Option<PathBuf>,
    /// Which threads are confined to what a driver does.
    pub confined: Confined,
    /// Bytes that all regions of all clients may have.
    pub budget_bytes: u64,
    /// Bytes that the regions of one client may have.
    pub client_budget_bytes: u64,
    /// What regions are made of.
    pub hugepages: HugepageUse,
    /// Send and receive ring of a socket that does not say.
    pub ring_bytes_default: u64,
    /// Movers.
    pub movers: usize,
    /// Whether those beyond the first have threads only while there is load for them.
    pub movers_auto: bool,
    /// The processors that movers keep to, in turn; any, if there are none.
    pub mover_cores: Vec<usize>,
    /// For tests: how often something goes from one mover to another, whatever there is to do.
    pub movers_shuffled: Option<Duration>,
    /// How long a mover looks for work at most before it sleeps.
    pub spin: Duration,
    /// How long an empty receive ring stays with an idle connection.
    pub ring_idle: Duration,
    /// Connections in all; `ENOBUFS` beyond.
    pub connections_max: usize,
    /// Clients in all; refused beyond.
    pub clients_max: usize,
    /// How bytes travel where the policy does not say.
    pub path: Path,
    /// What is in force at the start.
    pub policy: Policy,
    /// Where it came from, for those who ask.
    pub policy_file: Option<PathBuf>,
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
        }
    }
}
