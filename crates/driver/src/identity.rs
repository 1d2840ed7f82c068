//! Who a client is, from the kernel and never from the client.
use crate::calls::{may, simulated, Call};
use crate::containers::{self, Container};
use crate::peer::Peer;
use rustix::fd::OwnedFd;
use rustix::fs::{fstat, open, Mode, OFlags, Stat};
use rustix::io::Result;
use rustix::process::Pid;
use std::sync::Arc;

/// A network namespace: device and inode of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceId {
    device: u64,
    inode: u64,
}

impl NamespaceId {
    /// That of no namespace.
    pub const NONE: Self = Self { device: 0, inode: 0 };

    /// Of the file that was looked at.
    pub fn of(file: &Stat) -> Self {
        Self { device: file.st_dev, inode: file.st_ino }
    }

    /// A number that no other namespace has as long as this one is there.
    pub fn number(self) -> u64 {
        self.inode
    }
}

#[cfg(any(test, fuzzing, feature = "hostile"))]
impl NamespaceId {
    /// A namespace that does not exist.
    pub const fn for_test(inode: u64) -> Self {
        Self { device: 0, inode }
    }
}

/// A client's identity at the moment it attached.
#[derive(Debug)]
pub struct Identity {
    /// Process id in the driver's pid namespace.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Readable when the process has died.
    pub pidfd: Arc<OwnedFd>,
    /// Its network namespace.
    pub namespace: NamespaceId,
    /// Holds the namespace, so that its id is not reused.
    pub namespace_fd: OwnedFd,
    /// Its control group in the unified hierarchy (or systemd's), as the driver's namespace names it.
    pub cgroup: Option<String>,
    /// The container that its control groups name.
    pub container: Option<Container>,
}

impl Identity {
    /// The identity of the process that connected `socket`.
    ///
    /// # Errors
    /// Those of [`Peer::of`] and [`Self::of`].
    pub fn of_socket(socket: &OwnedFd) -> Result<Self> {
        may(Call::Identify)?;
        simulated::identity(socket).unwrap_or_else(|| Peer::of(socket).and_then(Self::of))
    }

    /// The identity of a peer.
    ///
    /// # Errors
    /// `ESRCH` if it has died by now; those of the calls.
    pub fn of(peer: Peer) -> Result<Self> {
        let (namespace, namespace_fd) = peer.network_namespace()?;
        let (cgroup, container) = control_groups(peer.pid());
        peer.check_alive()?;
        let (pid, uid) = (peer.pid().as_raw_nonzero().get().unsigned_abs(), peer.uid());
        Ok(Self { pid, uid, pidfd: Arc::new(peer.into_pidfd()), namespace, namespace_fd, cgroup, container })
    }
}

/// Whether the process has died.
///
/// # Errors
/// Those of `poll`.
pub fn has_exited(pidfd: &OwnedFd) -> Result<bool> {
    let mut fds = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(rustix::event::poll(&mut fds, Some(&now))? > 0)
}

/// The control group of a process, if it can be read.
pub fn control_group(pid: Pid) -> Option<String> {
    control_groups(pid).0
}

/// The same, and the container that the control groups of the process name.
fn control_groups(pid: Pid) -> (Option<String>, Option<Container>) {
    let text = std::fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero())).unwrap_or_default();
    let (path, container) = containers::read(&text);
    (path.map(str::to_owned), container)
}

/// The process that made a process, or took it in.
pub fn parent(pid: u32) -> Option<u32> {
    if simulated::is_on() {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    number.trim().parse().ok().filter(|&parent| parent != 0)
}

/// The network namespace that a file stands for.
///
/// # Errors
/// Those of `stat`.
pub fn namespace_of_file(path: &std::path::Path) -> Result<NamespaceId> {
    Ok(NamespaceId::of(&rustix::fs::stat(path)?))
}

/// The network namespace of a process.
///
/// # Errors
/// Those of opening its file in `/proc`.
pub fn network_namespace(pid: Pid) -> Result<(NamespaceId, OwnedFd)> {
    let path = format!("/proc/{}/ns/net", pid.as_raw_nonzero());
    let fd = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok((NamespaceId::of(&fstat(&fd)?), fd))
}
