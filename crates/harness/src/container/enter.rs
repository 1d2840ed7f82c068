//! Commands in a container that runs, and its end from outside.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, pidfd_send_signal, waitpid, Pid, PidfdFlags, Signal, WaitOptions};
use rustix::thread::{move_into_thread_name_spaces, ThreadNameSpaceType};

use super::jobs::{self, Lent, Terminal};
use super::state::{self, ProcessId, Record};
use super::{cgroup, confine};
use crate::signals::{Signals, Wake};

/// Returns the running container of this name.
///
/// # Errors
/// If there is none.
pub fn find(name: &str) -> Result<Record> {
    ensure!(rustix::process::getuid().is_root(), "containers need root; run pd as root (sudo)");
    let running = state::records()?.into_iter().filter(|r| r.owner.is_alive() && r.init.is_alive());
    let found = running.into_iter().find(|record| record.name == name);
    found.with_context(|| format!("no container named '{name}' runs; pd ls lists those that do"))
}

/// Opens a descriptor of the recorded process, not of a later one with its number.
fn open(process: ProcessId) -> Result<OwnedFd> {
    let pid = Pid::from_raw(process.pid as i32).context("the container has not started yet")?;
    let fd = pidfd_open(pid, PidfdFlags::empty()).context("the container has ended")?;
    ensure!(process.is_alive(), "the container has ended");
    Ok(fd)
}

/// Runs a command in a container, with its namespaces, control groups, environment and rights, and returns its exit
/// status. The calling process becomes one of the container's: to be called before it has threads, and last.
///
/// # Errors
/// If there is no such container, or the command cannot be run.
pub fn execute(record: &Record, environment: Vec<(String, String)>, command: &[OsString]) -> Result<i32> {
    let (program, arguments) = command.split_first().context("no command is named")?;
    let signals = Signals::watch()?;
    let init = open(record.init)?;
    let folder = std::env::current_dir();
    for group in record.cgroup.iter().chain(&record.limits) {
        cgroup::join(group, std::process::id())?;
    }
    let spaces = ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::MOUNT
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::PROCESS_ID;
    move_into_thread_name_spaces(init.as_fd(), spaces).context("cannot enter the container's namespaces")?;
    if let Ok(folder) = folder {
        // The file system is the same, except for the parts that the container hides.
        let _ = std::env::set_current_dir(folder);
    }
    let mut command = Command::new(program);
    command.args(arguments).envs(record.environment.iter().cloned()).envs(environment);
    if !record.privileged {
        confine::confine_command(&mut command)?;
    }
    let terminal = Terminal::of_caller();
    let children =
        crate::sys::signal_fd(&[nix::sys::signal::Signal::SIGCHLD]).context("cannot open a signalfd")?;
    let child = jobs::in_own_group(&mut command, terminal)
        .spawn()
        .with_context(|| format!("cannot run '{}'; check the path", program.to_string_lossy()))?;
    let child = Pid::from_raw(child.id() as i32).context("no process")?;
    let mut lent = Lent::new(terminal);
    loop {
        match signals.wait(children.as_fd(), None)? {
            Wake::Ready => {
                // The signal's record says no more than the child does.
                let _ = children.read_signal();
                if let Some(status) = turn(child, &mut lent)? {
                    return Ok(status);
                }
            }
            Wake::Signal(caught) => jobs::signal(child, caught.signal, caught.from_terminal),
            Wake::TimedOut => {}
        }
    }
}

/// Handles a change of a child: returns its exit status if it has ended. A child that the terminal has stopped goes on when the caller
/// does.
fn turn(child: Pid, lent: &mut Lent) -> Result<Option<i32>> {
    let status = match waitpid(Some(child), WaitOptions::UNTRACED | WaitOptions::NOHANG) {
        Ok(Some((_, status))) => status,
        Ok(None) | Err(rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error).context("cannot wait for the command"),
    };
    if let Some(signal) = status.stopping_signal() {
        if let Some(terminal) = lent.stopped(signal) {
            jobs::resume(child, terminal);
        }
        return Ok(None);
    }
    Ok(Some(jobs::exit_code(status)))
}

/// Asks a container's command to end (`SIGTERM`), and kills the rest after `patience`. Returns once nothing of the
/// container is left, with whether it ended by itself.
///
/// # Errors
/// If it cannot be told, or does not end within seconds although killed.
pub fn stop(record: &Record, patience: Duration) -> Result<bool> {
    // The process that holds the container passes the signal on.
    let holder = open(record.owner)?;
    pidfd_send_signal(&holder, Signal::TERM).context("cannot tell the container to end")?;
    if gone(&holder, patience)? {
        return Ok(true);
    }
    if let Ok(init) = open(record.init) {
        match pidfd_send_signal(&init, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error).context("cannot kill the container"),
        }
    }
    if !gone(&holder, Duration::from_secs(10))? {
        bail!("process {} still holds the container '{}'", record.owner.pid, record.name);
    }
    Ok(false)
}

fn gone(process: &OwnedFd, within: Duration) -> Result<bool> {
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("poll failed"),
        }
    }
}
