//! Identity of a client, as the kernel reports it, never the client. [`crate::peer`] finds it out.
use crate::containers::Container;
use crate::image::Image;
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
    /// No namespace.
    pub const NONE: Self = Self { device: 0, inode: 0 };

    /// Returns the id of the namespace whose file was looked at.
    pub fn of(file: &Stat) -> Self {
        Self { device: file.st_dev, inode: file.st_ino }
    }

    /// Returns a number that no other namespace has during this one's life.
    pub fn number(self) -> u64 {
        self.inode
    }
}

#[cfg(any(test, fuzzing, feature = "testing"))]
impl NamespaceId {
    /// Returns the id of a namespace that does not exist.
    pub const fn for_test(inode: u64) -> Self {
        Self { device: 0, inode }
    }
}

/// A client's identity at the moment it attached.
#[derive(Debug)]
pub struct Identity {
    /// Process id in the driver's pid namespace.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// The program that has attached. None if the process has other rights than its user's, as a set-id program has, and of root.
    pub image: Option<Image>,
    /// Readable when the process has died.
    pub pidfd: Arc<OwnedFd>,
    /// The client's network namespace.
    pub namespace: NamespaceId,
    /// Holds the namespace, so that its id is not reused.
    pub namespace_fd: OwnedFd,
    /// The client's control group in the unified hierarchy (or systemd's), as the driver's namespace names it.
    pub cgroup: Option<String>,
    /// The container that the client's control groups name.
    pub container: Option<Container>,
}
