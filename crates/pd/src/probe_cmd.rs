//! `pd internal-probe`: the process beside the driver that probes backends of services. The driver starts it.
use anyhow::Result;
use clap::Args;
use pd_driver::probe;

/// Probes backends for a driver, which is at the other end of the standard input.
#[derive(Args)]
pub struct ProbeArgs {
    /// Probe in this process, rather than in a worker that it starts.
    #[arg(long)]
    worker: bool,
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &ProbeArgs) -> Result<i32> {
    match args.worker {
        true => probe::work()?,
        false => probe::supervise()?,
    }
    Ok(0)
}
