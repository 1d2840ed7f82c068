//! The first helper of a container: enters the cgroup and namespaces, sets up the network, starts
//! [`super::init`] as the first process of the new pid namespace and passes its exit status on.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use rustix::thread::UnshareFlags;

use super::control::{Channel, Message};
use super::{links, NOT_STARTED};
use crate::sys::unshare;
use crate::tuning::{self, Network};

/// Arguments of the hidden subcommands that start a container.
#[derive(Debug, clap::Args)]
pub struct StageArgs {
    /// Control socket of the holder.
    #[arg(long)]
    pub control: PathBuf,
    /// Host name.
    #[arg(long)]
    pub name: String,
    /// IPv4 address and prefix.
    #[arg(long)]
    pub address: String,
    /// IPv6 address and prefix.
    #[arg(long)]
    pub address6: String,
    /// Destinations on the bridge beside those of its addresses.
    #[arg(long = "route")]
    pub routes: Vec<String>,
    /// Settings of the network namespace, as JSON.
    #[arg(long, default_value = "{}")]
    pub network: String,
    /// The command.
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// Runs the helper; returns the status to exit with.
pub fn main(args: &StageArgs) -> Result<i32> {
    let stream = UnixStream::connect(&args.control)
        .with_context(|| format!("cannot reach the holder at {}", args.control.display()))?;
    let mut channel = Channel::new(stream);
    match prepare(args, &mut channel).and_then(|()| start_init(args)) {
        Ok(mut init) => Ok(exit_code(init.wait()?)),
        Err(e) => {
            channel.send(&Message::Failed { reason: format!("{e:#}") })?;
            Ok(NOT_STARTED.into())
        }
    }
}

fn prepare(args: &StageArgs, channel: &mut Channel) -> Result<()> {
    // The holder answers once this process is in its control group.
    channel.expect(&Message::Proceed)?;
    let outside = File::open(tuning::OWN_NETWORK).context("cannot open the machine's network namespace")?;
    unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC)
        .context("cannot make namespaces; run as root with CAP_SYS_ADMIN")?;
    channel.send(&Message::Unshared)?;
    channel.expect(&Message::Proceed)?;
    rustix::system::sethostname(args.name.as_bytes()).context("cannot set the host name")?;
    let network: Network =
        serde_json::from_str(&args.network).context("the container's network is no JSON")?;
    let set_up = links::configure_inside(&args.address, &args.address6, &args.routes)
        .and_then(|()| network.apply_inside(&outside));
    set_up.context("cannot set up the container's network")
}

fn start_init(args: &StageArgs) -> Result<std::process::Child> {
    // Last, for the next child becomes the first process in there, and everything ends with it.
    unshare(UnshareFlags::NEWPID).context("cannot make a pid namespace")?;
    let mut command = Command::new(crate::own_exe());
    command.args(["internal-init", "--control"]).arg(&args.control).arg("--");
    command.args(&args.command).spawn().context("cannot start the container's first process")
}

/// Returns the status that a shell would report: 128 + n for a process that signal n ended.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
