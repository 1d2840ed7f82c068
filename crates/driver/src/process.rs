//! Questions to the kernel about a process, by its pidfd or its number: its end, its parent, its control groups, its network namespace.
//! A number may have been reused, which the caller has to rule out.
use crate::calls::simulated;
use crate::containers::{self, Container};
use crate::identity::NamespaceId;
use pd_shm::procfs;
use rustix::fd::OwnedFd;
use rustix::fs::{fstat, OFlags};
use rustix::io::{Errno, Result};
use rustix::process::{getpid, Pid};

/// Tells whether the process has died.
///
/// # Errors
/// Errors of `poll`.
pub fn has_exited(pidfd: &OwnedFd) -> Result<bool> {
    let mut fds = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::event::poll(&mut fds, Some(&now))? > 0)
}

/// Returns the control group that `pd run` made for the container of this name, if the process is in it.
pub fn container_group(pid: Pid, name: &str) -> Option<String> {
    control_groups(pid).ok()?.0.filter(|path| path.ends_with(&format!("/pipedevice/{name}")))
}

/// Returns the control group of a process, and the container that its control groups name. Neither where the kernel has no control groups.
///
/// # Errors
/// Errors of [`read_control_groups`].
pub fn control_groups(pid: Pid) -> Result<(Option<String>, Option<Container>)> {
    let text = read_control_groups(pid)?;
    let (path, container) = containers::read(&text);
    Ok((path.map(str::to_owned), container))
}

/// Tells whether a process is in a container in which this process is not.
///
/// # Errors
/// Errors of [`read_control_groups`].
pub fn is_in_another_container(pid: Pid) -> Result<bool> {
    Ok(containers::is_in_another(&read_control_groups(pid)?, &read_control_groups(getpid())?))
}

/// Reads what the kernel says of a process's control groups; nothing where it has none.
///
/// # Errors
/// Errors of reading `/proc`. Where the kernel tells no path of 4,096 bytes or more, a process that may make groups has it tell none.
fn read_control_groups(pid: Pid) -> Result<String> {
    match procfs::read(&format!("{}/cgroup", pid.as_raw_nonzero())) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Returns the parent of a process, which made it or adopted it.
pub fn parent(pid: u32) -> Option<u32> {
    if let Some(known) = simulated::parent(pid) {
        return known;
    }
    let text = procfs::read(&format!("{pid}/status")).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    number.trim().parse().ok().filter(|&parent| parent != 0)
}

/// Returns the network namespace that a file stands for.
///
/// # Errors
/// Errors of `stat`.
pub fn namespace_of_file(path: &std::path::Path) -> Result<NamespaceId> {
    Ok(NamespaceId::of(&rustix::fs::stat(path)?))
}

/// Returns the network namespace of a process.
///
/// # Errors
/// Errors of opening its file in `/proc`.
pub fn network_namespace(pid: Pid) -> Result<(NamespaceId, OwnedFd)> {
    let fd = procfs::open(&format!("{}/ns/net", pid.as_raw_nonzero()), OFlags::RDONLY)?;
    Ok((NamespaceId::of(&fstat(&fd)?), fd))
}
