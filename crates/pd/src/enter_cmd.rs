//! `pd exec` and `pd stop`: actions on a running container.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Result};
use pd_harness::container::enter;
use pd_harness::container::state::{self, Record};

use crate::run_cmd::Setting;

/// Runs a command in a container that runs.
///
/// The command has the container's namespaces, control group, rights and environment. Exits with the command's status (128 + n if
/// signal n ended it), or 125 if it could not be started.
#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    /// Set a variable of its environment; without a value, to that of this one
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<Setting>,
    /// Name of the container
    name: String,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Ends containers.
///
/// The command gets SIGTERM, and SIGKILL with all others of the container if it is still there when the time is over.
#[derive(Debug, clap::Args)]
pub struct StopArgs {
    /// Seconds until SIGKILL
    #[arg(short, long, value_name = "SECONDS", default_value_t = 10)]
    time: u32,
    /// All containers of this network of the policy
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// Admin socket of the driver that has the network
    #[arg(long, default_value = pd_harness::config::DEFAULT_ADMIN_SOCKET)]
    admin_socket: PathBuf,
    /// Names of the containers
    #[arg(required_unless_present = "network")]
    names: Vec<String>,
}

/// Runs `pd exec`; returns the status to exit with.
pub fn exec(args: ExecArgs) -> Result<i32> {
    let record = enter::find(&args.name)?;
    enter::execute(&record, args.env.into_iter().filter_map(Setting::pair).collect(), &args.command)
}

/// Runs `pd stop`; returns the status to exit with.
pub fn stop(args: &StopArgs) -> Result<i32> {
    let mut status = 0;
    let mut names = args.names.clone();
    if let Some(network) = &args.network {
        let runs = |record: &Record| record.owner.is_alive() && record.is_of(&args.admin_socket);
        let records = state::records()?.into_iter().filter(runs);
        let inside = records.filter(|record| record.network.as_ref() == Some(network));
        names.extend(inside.map(|record| record.name));
        ensure!(!names.is_empty(), "no container runs in network '{network}'; `pd ls` shows which run");
    }
    for name in &names {
        let stopped =
            enter::find(name).and_then(|record| enter::stop(&record, Duration::from_secs(args.time.into())));
        match stopped {
            Ok(_) => println!("{name}"),
            Err(error) => {
                eprintln!("pd: {error:#}");
                status = 1;
            }
        }
    }
    Ok(status)
}
