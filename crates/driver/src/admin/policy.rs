//! The policy in force and the tenants' accounts.
use super::{ServiceReport, SidecarReport};
use crate::memory::Standing;
use crate::policy::{moved, Path as BytesPath};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

/// The policy in force, and its effects.
#[derive(Debug, Serialize, Deserialize)]
pub struct PolicyReport {
    /// The file that the driver reads at its start and on `SIGHUP`.
    pub file: Option<PathBuf>,
    /// Every tenant that the driver has learned of, with its account since the driver's start.
    pub tenants: Vec<TenantReport>,
    /// Path of bytes without rates, where no rule names one.
    pub path: BytesPath,
    /// Rules in their order, and the default behind them.
    pub rules: Vec<RuleReport>,
    /// Services.
    pub services: Vec<ServiceReport>,
    /// Networks, with their members.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Rule of attaching, a sentence for each entry and for the default.
    #[serde(default)]
    pub attach: Vec<String>,
    /// Processes that were not let in since the driver's start, by the label of their [`crate::Refusal`].
    #[serde(default)]
    pub attaches_refused_by_reason: BTreeMap<String, u64>,
    /// Rules that lead through proxies.
    #[serde(default)]
    pub sidecars: Vec<SidecarReport>,
    /// State of the policy on the kernel.
    #[serde(default)]
    pub kernel: KernelHalf,
}

/// The kernel's half of a policy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KernelHalf {
    /// Tells whether the policy is in force.
    pub in_force: bool,
    /// Reason why it is not in force, though the policy binds connections on the kernel.
    pub why_not: Option<String>,
    /// Parts of the policy that the kernel cannot hold, a sentence for each.
    pub unbound: Vec<String>,
}

/// A tenant.
#[derive(Debug, Serialize, Deserialize)]
pub struct TenantReport {
    /// The tenant's name.
    pub name: String,
    /// The policy's terms for the tenant; none, if it does not name the tenant.
    pub policy: Option<String>,
    /// The tenant's account.
    #[serde(flatten)]
    pub account: Account,
    /// Times that the tenant's flows waited for tokens, since its limits came into force.
    pub rate_waits: u64,
    /// Resources that the tenant holds; of the default tenant, those that each user holds.
    pub holdings: Vec<HoldingReport>,
}

/// Resources of the driver that a tenant, or a user of the default one, holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HoldingReport {
    /// The user, of the default tenant.
    pub user: Option<u32>,
    /// Clients.
    pub clients: StandingReport,
    /// Descriptors of the driver.
    pub descriptors: StandingReport,
    /// Bytes of regions, direct rings, and control and status regions.
    pub memory_bytes: StandingReport,
}

/// State of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandingReport {
    /// Amount held.
    pub used: u64,
    /// Amount that may be held at the moment.
    pub max: u64,
    /// Amount reserved for the holder.
    pub reserved: u64,
    /// Requests for more that were refused.
    pub refused: u64,
}

impl From<Standing> for StandingReport {
    fn from(Standing { used, most, reserved, refused }: Standing) -> Self {
        Self { used, max: most, reserved, refused }
    }
}

/// Actions of a tenant's clients since the driver started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Open connections that they have made.
    pub connections_open: u64,
    /// Connections that they have made.
    pub connections_made: u64,
    /// Connections made to them.
    pub connections_accepted: u64,
    /// Connections that they asked for and the policy denied.
    pub connections_denied: u64,
    /// Connections that they asked for beyond `connections_max`.
    pub connections_over_quota: u64,
    /// Bytes that they sent and that were delivered.
    pub bytes_sent: u64,
    /// Bytes delivered to them.
    pub bytes_received: u64,
    /// Their sends completed.
    pub messages_sent: u64,
    /// Sends to them completed.
    pub messages_received: u64,
}

impl Account {
    /// Returns all counts.
    pub(crate) fn counts(&self) -> [u64; 9] {
        [
            self.connections_open,
            self.connections_made,
            self.connections_accepted,
            self.connections_denied,
            self.connections_over_quota,
            self.bytes_sent,
            self.bytes_received,
            self.messages_sent,
            self.messages_received,
        ]
    }
}

/// A rule.
#[derive(Debug, Serialize, Deserialize)]
pub struct RuleReport {
    /// The rule, as text.
    pub rule: String,
    /// Connects that the rule decided since it came into force.
    pub hits: u64,
}

/// A network of the policy, as `pd run --network` needs it.
#[derive(Debug, Serialize, Deserialize)]
pub struct NetworkReport {
    /// Ranges that containers get their addresses of, like `10.0.0.0/24`.
    pub ranges: Vec<String>,
    /// The network's addresses that mean those of other networks.
    pub maps: Vec<MapReport>,
}

/// Addresses of a network that mean those of another one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MapReport {
    /// The addresses, like `10.9.0.0/24`.
    pub prefix: String,
    /// The other network.
    pub to: String,
    /// The other network's addresses that they mean.
    pub at: String,
}

impl MapReport {
    /// Returns the address that means `ip` of the other network, if one does.
    pub fn seen(&self, ip: IpAddr) -> Option<IpAddr> {
        let (prefix, at): (IpNet, IpNet) = (self.prefix.parse().ok()?, self.at.parse().ok()?);
        at.contains(&ip).then(|| moved(ip, &prefix))
    }
}
