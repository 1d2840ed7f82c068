//! Questions and answers.
use super::{KernelReport, NetworkReport, PipesReport, PolicyReport, PortSpec, Report, TapOf};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A question or an order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Everything there is: [`Report`].
    List,
    /// The counter region: [`super::counters`].
    Counters,
    /// Connections and processes that stay on the kernel, with reasons: [`KernelReport`].
    Kernel,
    /// The policy in force and the tenants' accounts: [`PolicyReport`].
    Policy,
    /// Puts a policy in force.
    Apply {
        /// The text of a policy file.
        text: String,
    },
    /// The network namespace of process `pid` belongs to a container with these addresses.
    Register {
        /// The container's name.
        name: String,
        /// The container's tenant.
        tenant: String,
        /// A process in it.
        pid: u32,
        /// The container's addresses.
        addresses: Vec<IpAddr>,
        /// The network of the policy that it is run in; none: as the policy says.
        #[serde(default)]
        network: Option<String>,
    },
    /// Facts that a container in a network of the policy needs: [`NetworkReport`].
    Network {
        /// The network's name.
        name: String,
    },
    /// Makes a port for pipes.
    PortAdd {
        /// The port's name.
        name: String,
        /// Kind of the port.
        port: PortSpec,
    },
    /// Removes a port; its pipes end.
    PortRemove {
        /// The port's name; of a link, without the end.
        name: String,
    },
    /// Ports and pipes: [`PipesReport`].
    Pipes,
    /// Asks whether a tenant may have pipes on these ports: [`Answer::Done`], or the reason why not.
    MayUse {
        /// The tenant.
        tenant: String,
        /// Names of ports.
        ports: Vec<String>,
    },
    /// Another driver is to take this one's place: [`Answer::Offer`]. Carries the versions of the handed-over state and of the memory
    /// layout that the other driver knows.
    TakeOver {
        /// Version of the handed-over state.
        format: u32,
        /// [`pd_abi::VERSION`].
        abi: u32,
    },
    /// Copies frames into memory; the answer has its descriptors: [`super::tap`].
    Tap {
        /// The port or pipe whose frames are copied.
        of: TapOf,
        /// Most bytes of each frame.
        snap_bytes: usize,
    },
}

impl Ask {
    /// Returns whether the driver may be asked twice: the request changes nothing, or to the same.
    pub(super) fn may_repeat(&self) -> bool {
        match self {
            Self::List
            | Self::Counters
            | Self::Kernel
            | Self::Policy
            | Self::Apply { .. }
            | Self::Network { .. }
            | Self::Pipes
            | Self::MayUse { .. } => true,
            Self::Register { .. }
            | Self::PortAdd { .. }
            | Self::PortRemove { .. }
            | Self::TakeOver { .. }
            | Self::Tap { .. } => false,
        }
    }
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// Refusal, with the reason.
    Error(String),
    /// To [`Ask::Counters`], with two descriptors: the region, and a pipe that hangs up when the driver ends.
    Counters,
    /// To [`Ask::PortAdd`] of a port that is made of descriptors: send them with a byte, and another answer follows.
    Descriptors,
    /// To [`Ask::List`].
    Report(Box<Report>),
    /// To [`Ask::Kernel`].
    Kernel(Box<KernelReport>),
    /// To [`Ask::Policy`].
    Policy(Box<PolicyReport>),
    /// To [`Ask::Network`].
    Network(Box<NetworkReport>),
    /// To [`Ask::Pipes`].
    Pipes(Box<PipesReport>),
    /// To [`Ask::Tap`], with five descriptors: three files, a doorbell, and a pipe whose end ends the tap. The asker maps them and
    /// sends a line; a second answer follows.
    Tap,
    /// To [`Ask::TakeOver`]: the bytes that follow are for the other driver.
    Offer {
        /// The text of the policy in force, within the driver.
        policy: Option<String>,
    },
    /// To [`Ask::Apply`]: done.
    Applied {
        /// Connections that it denies, and ended.
        cut: u64,
        /// Connections on the kernel that it denies, and ended.
        #[serde(default)]
        cut_on_kernel: u64,
        /// Connections on the kernel that it denies and could not end.
        #[serde(default)]
        kept_on_kernel: u64,
        /// Reason why it does not bind connections on the kernel.
        #[serde(default)]
        not_on_kernel: Option<String>,
    },
}
