//! A helper that becomes another program, which dies when the process that started it dies.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use rustix::process::{getppid, set_parent_process_death_signal, Signal};

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub struct TiedArgs {
    /// The process that starts it.
    #[arg(long)]
    parent: i32,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub fn main(args: &TiedArgs) -> Result<i32> {
    crate::sys::unblock_signals();
    set_parent_process_death_signal(Some(Signal::TERM)).context("prctl failed")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    ensure!(parent == Some(args.parent), "the process that started this one is gone");
    let (program, arguments) = args.command.split_first().expect("clap requires one");
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.to_string_lossy()))
}
