//! Identity of a client, in the kernel's words, never the client's. [`crate::peer`] finds it out.
use crate::containers::Container;
use rustix::fd::OwnedFd;
use rustix::fs::Stat;
use std::sync::Arc;

/// A network namespace: device and inode of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
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
