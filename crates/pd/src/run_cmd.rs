//! `pd run`: a command in a container of its own, in the foreground.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Result;
use rustix::process::Signal;

use pd_harness::container::address::InterfaceAddress;
use pd_harness::container::{Container, Invocation, Spec};
use pd_harness::signals::{Signals, Wake};
use pd_harness::tuning::Network;

/// Runs a command in a container of its own.
///
/// The command gets the driver's socket in PD_SOCKET, its own name in PD_CONTAINER and its own IPv4
/// address in PD_ADDRESS. Exits with the command's status (128 + n if signal n ended it), or 125 if the
/// container could not be started.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Name and host name of the container: letters, digits and '-'
    #[arg(long)]
    name: String,
    /// Address on the bridge, as 10.88.0.2/24 [default: the lowest free one]
    #[arg(long)]
    ip: Option<InterfaceAddress>,
    /// Tenant that the container belongs to, for policy and accounting
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Bridge, created if absent and removed again with its last container
    #[arg(long, default_value = "pd0")]
    bridge: String,
    /// Socket of the driver; it is told of the container on admin.sock in the same directory
    #[arg(long, default_value = pd_harness::config::DEFAULT_SOCKET)]
    socket: PathBuf,
    /// The command's TCP connections to other such commands run on PipeDevice, by LD_PRELOAD: see
    /// libpd_preload(7). With "short" connections are made without the kernel, for many short ones; with "all"
    /// those that are too brief to gain by it run on PipeDevice, too
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    preload: Option<Preload>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// How programs that do not know of PipeDevice are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Preload {
    /// The kernel connects, the fabric carries the bytes, but for brief connections in a row
    On,
    /// Brief ones, too
    All,
    /// The fabric connects, too
    Short,
}

/// Runs it; returns the status to exit with.
pub fn main(mut args: RunArgs) -> Result<i32> {
    let signals = Signals::watch()?;
    if let Some(mode) = args.preload {
        let mut setting = OsString::from("LD_PRELOAD=");
        setting.push(pd_harness::preload_library()?);
        let mode = match mode {
            Preload::On => None,
            Preload::All => Some("PD_PRELOAD=all".into()),
            Preload::Short => Some("PD_PRELOAD=short".into()),
        };
        args.command.splice(0..0, ["env".into(), setting].into_iter().chain(mode));
    }
    let spec = Spec {
        name: args.name,
        address: args.ip,
        tenant: args.tenant,
        bridge: args.bridge,
        socket: args.socket,
        // A container's network is its user's: only measurements set it.
        network: Network::default(),
    };
    let invocation = Invocation { command: args.command, stdin: Stdio::inherit(), stdout: Stdio::inherit() };
    let mut container = Container::start(&spec, invocation)?;
    loop {
        use std::os::fd::AsFd;
        match signals.wait(container.as_fd(), None)? {
            Wake::Ready => return container.wait(),
            // What the terminal sends, the command has received from the terminal.
            Wake::Signal(caught) if caught.from_terminal => {}
            Wake::Signal(caught) => {
                if let Some(signal) = Signal::from_named_raw(caught.signal) {
                    // Fails only when the command is ending already.
                    let _ = container.kill(signal);
                }
            }
            Wake::TimedOut => {}
        }
    }
}
