//! Trust in a process that attaches, where no entry of the policy names it. It follows from its user, its network namespace and its
//! control group, as the kernel reports them.
//!
//! A network namespace that belongs to the driver's user namespace was made by root, and only root can enter it. A namespace of
//! another user namespace may be any user's.
use crate::calls::simulated;
use crate::containers::Container;
use crate::identity::{Identity, NamespaceId};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{fstat, stat};
use rustix::io::Result;
use rustix::process::{getegid, geteuid};
use std::mem::size_of_val;

/// `_IO(NSIO, 1)`.
pub const NS_GET_USERNS: u32 = 0xb701;
/// Most groups of a process; Linux allows no more.
const GROUPS_MAX: usize = 65_536;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Standing {
    /// Runs as root or the driver's user, or in the driver's group.
    Trusted,
    /// Runs in a container that root's engine made, or in a network namespace that root made.
    Contained,
    /// Runs in a network namespace that a user may have made, and in no such container.
    UsersNamespace,
    /// Runs in the host's network namespace, and in no such container.
    Host,
}

/// Place that a process attaches from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Place {
    /// Trust in the process.
    pub standing: Standing,
    /// Tells whether the process's network namespace is the host's.
    pub at_host: bool,
}

/// The place of a container.
#[cfg(any(test, fuzzing, feature = "testing"))]
impl Default for Place {
    fn default() -> Self {
        Self { standing: Standing::Contained, at_host: false }
    }
}

/// The host, as the driver sees it, with the user and group that the driver trusts.
#[derive(Debug)]
pub struct Host {
    namespace: NamespaceId,
    users: Option<NamespaceId>,
    uid: u32,
    gid: u32,
}

impl Host {
    /// Reads the host's namespaces from the first process that the driver sees. `group`: group of the attach socket, if it
    /// differs from the driver's.
    pub fn new(group: Option<u32>) -> Self {
        let id = |path: &str| stat(path).map(|file| NamespaceId::of(&file));
        Self {
            // Without the right to read that process, the driver takes its own network namespace.
            namespace: id("/proc/1/ns/net").or_else(|_| id("/proc/self/ns/net")).unwrap_or(NamespaceId::NONE),
            users: id("/proc/self/ns/user").ok(),
            uid: geteuid().as_raw(),
            gid: group.unwrap_or_else(|| getegid().as_raw()),
        }
    }

    /// Returns the place of the process that connected `socket`.
    pub fn place(&self, socket: &OwnedFd, identity: &Identity) -> Place {
        let Identity { namespace, ref namespace_fd, uid, ref container, .. } = *identity;
        let at_host = namespace == self.namespace;
        if simulated::is_on() {
            return Place { standing: Standing::Contained, at_host };
        }
        let standing = self.standing(socket, uid, (namespace, namespace_fd), container.as_ref());
        Place { standing, at_host }
    }

    fn standing(
        &self,
        socket: &OwnedFd,
        uid: u32,
        (namespace, fd): (NamespaceId, &OwnedFd),
        container: Option<&Container>,
    ) -> Standing {
        let is_trusted = uid == 0 || uid == self.uid || is_in_group(socket, self.gid);
        let is_contained = container.is_some_and(|container| !container.is_users);
        match namespace == self.namespace {
            _ if is_trusted => Standing::Trusted,
            _ if is_contained => Standing::Contained,
            true => Standing::Host,
            false if self.users.is_some() && owner(fd).ok() == self.users => Standing::Contained,
            false => Standing::UsersNamespace,
        }
    }
}

/// Returns the user namespace that a namespace belongs to.
///
/// # Errors
/// `EPERM` if it is neither this process's nor below.
fn owner(namespace: &OwnedFd) -> Result<NamespaceId> {
    // SAFETY: the call takes no memory; it returns a new descriptor or an error.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as libc::Ioctl, 0) };
    if fd < 0 {
        return Err(rustix::io::Errno::PERM);
    }
    // SAFETY: the call has returned a descriptor that nobody else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(NamespaceId::of(&fstat(&fd)?))
}

/// Tells whether the process that connected `socket` was in a group at that time.
fn is_in_group(socket: &OwnedFd, group: u32) -> bool {
    let own = rustix::net::sockopt::socket_peercred(socket).is_ok_and(|own| own.gid.as_raw() == group);
    own || further_groups(socket).is_some_and(|groups| groups.contains(&group))
}

/// Returns the supplementary groups of the process that connected `socket`, at that time.
fn further_groups(socket: &OwnedFd) -> Option<Vec<libc::gid_t>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let bytes = size_of_val(&*groups);
        let mut len = bytes as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes of group numbers, which `groups` has room for; both live through the call.
        let result = unsafe {
            let fd = socket.as_raw_fd();
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, groups.as_mut_ptr().cast(), &mut len)
        };
        let count = (len as usize / size_of::<libc::gid_t>()).min(GROUPS_MAX);
        if result == 0 {
            groups.truncate(count);
            return Some(groups);
        }
        if count <= groups.len() {
            return None;
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers::container_of;
    use crate::process::network_namespace;
    use std::os::unix::net::UnixStream;

    fn host(uid: u32, gid: u32) -> Host {
        Host { uid, gid, ..Host::new(None) }
    }

    #[test]
    fn users_and_groups_of_the_driver_are_trusted_and_containers_are_let_in() {
        let socket = OwnedFd::from(UnixStream::pair().unwrap().0);
        let own = network_namespace(rustix::process::getpid()).unwrap();
        let gid = getegid().as_raw();
        let at_host = |host: &Host, uid: u32, container: Option<&Container>| {
            Host { namespace: own.0, users: host.users, uid: host.uid, gid: host.gid }.standing(
                &socket,
                uid,
                (own.0, &own.1),
                container,
            )
        };
        let stranger = host(4711, gid.wrapping_add(4711));
        assert_eq!(at_host(&stranger, 0, None), Standing::Trusted);
        assert_eq!(at_host(&stranger, 4711, None), Standing::Trusted);
        assert_eq!(at_host(&stranger, 4712, None), Standing::Host);
        assert_eq!(at_host(&host(4711, gid), 4712, None), Standing::Trusted, "its group");
        let docker = container_of(&format!("/docker/{}", "a".repeat(64))).unwrap();
        assert_eq!(at_host(&stranger, 4712, Some(&docker)), Standing::Contained);
        let users = Container { is_users: true, ..docker };
        assert_eq!(at_host(&stranger, 4712, Some(&users)), Standing::Host);
        // Seen from another host, the owner of the user namespace made this namespace.
        let elsewhere = Host { namespace: NamespaceId::NONE, ..host(4711, gid.wrapping_add(1)) };
        let found = elsewhere.standing(&socket, 4712, (own.0, &own.1), None);
        assert!(matches!(found, Standing::Contained | Standing::UsersNamespace));
        let nobodys = Host { users: None, ..elsewhere };
        assert_eq!(nobodys.standing(&socket, 4712, (own.0, &own.1), None), Standing::UsersNamespace);
    }

    #[test]
    fn groups_of_this_process_are_found() {
        let socket = OwnedFd::from(UnixStream::pair().unwrap().0);
        let groups = further_groups(&socket).unwrap();
        let mut own: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|g| g.as_raw()).collect();
        let mut found = groups;
        own.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, own);
    }
}
