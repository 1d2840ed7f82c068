//! The process at the other end of a Unix socket, held by a pidfd of the kernel's choice.
//!
//! A process id alone names the process that has it at the moment of a look-up, which a client can arrange: it connects,
//! leaves the socket to a child, exits, and waits until its number is reused. [`Peer::of`] therefore takes the pidfd that
//! the kernel kept with the socket (`SO_PEERPIDFD`, Linux 6.5). Facts that are then read by number are used only if the
//! process is alive after the look-up ([`Peer::check_alive`]), for then the number was its own all the time.
//!
//! Before Linux 6.5 a pidfd is opened by number. It counts only if its process has the user and group that the kernel recorded
//! at `connect`.
use crate::calls::{may, simulated, Call};
use crate::identity::{Identity, NamespaceId};
use crate::image::Image;
use crate::process::{control_groups, has_exited, is_in_another_container};
use pd_shm::procfs;
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::fs::{fstat, OFlags};
use rustix::io::{Errno, Result};
use rustix::net::sockopt;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use std::sync::Arc;

/// `SO_PEERPIDFD` of every architecture but parisc and sparc.
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PASSRIGHTS` of every architecture but parisc and sparc.
const SO_PASSRIGHTS: libc::c_int = 83;
/// `_IO(PIDFS_IOCTL_MAGIC, 4)`.
pub const PIDFD_GET_NET_NAMESPACE: u32 = 0xff04;

/// See the module.
#[derive(Debug)]
pub struct Peer {
    /// Process id in this process's namespace, valid if a later [`Self::check_alive`] succeeds.
    pid: Pid,
    /// User and group at the time of `connect`.
    uid: u32,
    gid: u32,
    pidfd: OwnedFd,
}

impl Peer {
    /// Returns the process that connected `socket`.
    ///
    /// # Errors
    /// `ESRCH` if it has died, or its number is reused; errors of the calls.
    pub fn of(socket: impl AsFd) -> Result<Self> {
        let credentials = sockopt::socket_peercred(&socket)?;
        let pidfd = match peer_pidfd(&socket) {
            Err(Errno::NOPROTOOPT) => {
                let pidfd = pidfd_open(credentials.pid, PidfdFlags::NONBLOCK)?;
                let known = procfs::stat(&credentials.pid.as_raw_nonzero().to_string())?;
                let ids = (credentials.uid.as_raw(), credentials.gid.as_raw());
                if (known.st_uid, known.st_gid) != ids {
                    return Err(Errno::SRCH);
                }
                pidfd
            }
            // Errors for a process that has ended, by version of the kernel.
            Err(Errno::NODATA | Errno::INVAL) => return Err(Errno::SRCH),
            pidfd => pidfd?,
        };
        let (uid, gid) = (credentials.uid.as_raw(), credentials.gid.as_raw());
        let this = Self { pid: credentials.pid, uid, gid, pidfd };
        this.check_alive()?;
        Ok(this)
    }

    /// Returns the peer's user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns the facts by which a client is known.
    ///
    /// # Errors
    /// `ESRCH` if the process has died; errors of the calls.
    fn identity(self) -> Result<Identity> {
        let (namespace, namespace_fd) = self.network_namespace()?;
        let (cgroup, container) = control_groups(self.pid)?;
        let (pid, uid) = (self.pid.as_raw_nonzero().get().unsigned_abs(), self.uid);
        let image = if uid == 0 { None } else { Image::of_user(pid, uid, Some(self.gid)) };
        self.check_alive()?;
        let pidfd = Arc::new(self.pidfd);
        Ok(Identity { pid, uid, image, pidfd, namespace, namespace_fd, cgroup, container })
    }

    /// Fails if the process has died: facts read by its number since [`Self::of`] may be another's.
    ///
    /// # Errors
    /// `ESRCH`; errors of `poll`.
    fn check_alive(&self) -> Result<()> {
        match has_exited(&self.pidfd)? {
            true => Err(Errno::SRCH),
            false => Ok(()),
        }
    }

    /// Returns the peer's network namespace, and a descriptor that holds it.
    ///
    /// # Errors
    /// `ESRCH` if the process has died; errors of opening a file.
    pub fn network_namespace(&self) -> Result<(NamespaceId, OwnedFd)> {
        // SAFETY: the call takes no memory; it returns a new descriptor or an error.
        let fd = unsafe { libc::ioctl(self.pidfd.as_raw_fd(), PIDFD_GET_NET_NAMESPACE as libc::Ioctl, 0) };
        let fd = if fd >= 0 {
            // SAFETY: the call has returned a descriptor that nobody else owns.
            unsafe { OwnedFd::from_raw_fd(fd) }
        } else {
            // Before Linux 6.11.
            let path = format!("{}/ns/net", self.pid.as_raw_nonzero());
            let fd = procfs::open(&path, OFlags::RDONLY)?;
            self.check_alive()?;
            fd
        };
        Ok((NamespaceId::of(&fstat(&fd)?), fd))
    }

    /// Tells whether the peer is in this process's namespace of process ids, as processes in containers are not.
    ///
    /// # Errors
    /// `ESRCH` if the process has died; errors of `stat`.
    pub fn shares_pid_namespace(&self) -> Result<bool> {
        let theirs = procfs::stat(&format!("{}/ns/pid", self.pid.as_raw_nonzero()))?;
        let ours = procfs::stat("self/ns/pid")?;
        self.check_alive()?;
        Ok(NamespaceId::of(&theirs) == NamespaceId::of(&ours))
    }

    /// Tells whether the peer is in a container in which this process is not. Such a process may share the host's process ids.
    ///
    /// # Errors
    /// `ESRCH` if the process has died; errors of reading `/proc`.
    pub fn is_in_another_container(&self) -> Result<bool> {
        let is_in_another = is_in_another_container(self.pid)?;
        self.check_alive()?;
        Ok(is_in_another)
    }
}

/// Returns the identity of the process that connected `socket`.
///
/// # Errors
/// Errors of [`Peer::of`]; `ESRCH` if the process has died meanwhile.
pub fn identify(socket: &OwnedFd) -> Result<Identity> {
    may(Call::Identify)?;
    simulated::identity(socket).unwrap_or_else(|| Peer::of(socket).and_then(Peer::identity))
}

/// Tells whether a file is this network namespace.
pub fn is_namespace(file: &OwnedFd, id: NamespaceId) -> bool {
    simulated::is_namespace(file, id)
        .unwrap_or_else(|| fstat(file).is_ok_and(|file| NamespaceId::of(&file) == id))
}

/// Returns the process id and user of the process that connected `socket`, at that time.
///
/// # Errors
/// Errors of the call.
pub fn credentials(socket: &OwnedFd) -> Result<(u32, u32)> {
    if let Some(known) = simulated::credentials(socket) {
        return Ok(known);
    }
    let credentials = sockopt::socket_peercred(socket)?;
    Ok((credentials.pid.as_raw_nonzero().get().unsigned_abs(), credentials.uid.as_raw()))
}

/// Makes the kernel refuse to pass descriptors to this Unix socket, and to sockets that it accepts from then on. To
/// be called before `listen`: a message can be sent before it is accepted.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.16.
pub fn refuse_descriptors(socket: impl AsFd) -> Result<()> {
    set_passing(socket, 0)
}

/// Makes the kernel pass descriptors to this Unix socket again.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.16, which always passes them.
pub fn accept_descriptors(socket: impl AsFd) -> Result<()> {
    set_passing(socket, 1)
}

fn set_passing(socket: impl AsFd, passing: libc::c_int) -> Result<()> {
    // SAFETY: the option's value is an int, which lives through the call.
    let result = unsafe {
        let value = std::ptr::from_ref(&passing).cast();
        let (fd, len) = (socket.as_fd().as_raw_fd(), size_of_val(&passing) as libc::socklen_t);
        libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, value, len)
    };
    last_error(result)
}

fn peer_pidfd(socket: impl AsFd) -> Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: the option's value is an int, and `len` says so; both live through the call.
    let result = unsafe {
        let value = std::ptr::from_mut(&mut fd).cast();
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, value, &mut len)
    };
    last_error(result)?;
    // SAFETY: the kernel has stored a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn last_error(result: libc::c_int) -> Result<()> {
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Child, Command};

    #[test]
    fn who_connects_is_known_by_pidfd() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let _own = UnixStream::connect(&path).unwrap();
        let peer = Peer::of(listener.accept().unwrap().0).unwrap();
        assert_eq!(peer.pid, rustix::process::getpid());
        assert!(peer.shares_pid_namespace().unwrap());
        let own = procfs::stat("self/ns/net").unwrap();
        assert_eq!(peer.network_namespace().unwrap().0, NamespaceId::of(&own));
    }

    /// Starts a child that connects to `path`, leaves its socket to a child of its own, and exits.
    fn connect_and_exit(path: &std::path::Path) -> (u32, Child) {
        let script = format!(
            "import os, socket, sys\n\
             s = socket.socket(socket.AF_UNIX)\n\
             s.connect({path:?})\n\
             s.set_inheritable(True)\n\
             if os.fork() == 0:\n\
             \x20   sys.stdin.read()\n\
             os._exit(0)\n"
        );
        let mut child = Command::new("python3")
            .args(["-c", &script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("python3");
        let pid = child.id();
        let held = child.stdin.take();
        child.wait().unwrap();
        child.stdin = held;
        (pid, child)
    }

    #[test]
    fn a_number_that_is_anothers_by_now_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (pid, _held) = connect_and_exit(&path);
        // Gives its number to another process; needs root. Without root, the number stays unused.
        let mut others = Vec::new();
        for _ in 0..50 {
            if std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).is_err() {
                break;
            }
            others.push(Command::new("sleep").arg("60").spawn().unwrap());
            if others.last().is_some_and(|other| other.id() == pid) {
                break;
            }
        }
        let is_reused = others.last().is_some_and(|other| other.id() == pid);
        assert!(is_reused || !rustix::process::geteuid().is_root(), "the number was not to be had");
        let socket = listener.accept().unwrap().0;
        assert_eq!(sockopt::socket_peercred(&socket).unwrap().pid.as_raw_nonzero().get() as u32, pid);
        let found = Peer::of(&socket).map(|peer| peer.pid);
        for mut other in others {
            other.kill().unwrap();
            other.wait().unwrap();
        }
        assert_eq!(found, Err(Errno::SRCH));
    }

    #[test]
    fn no_descriptors_come_before_accept_either() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        match refuse_descriptors(&listener) {
            Err(Errno::NOPROTOOPT) => return,
            refused => refused.unwrap(),
        }
        let client = UnixStream::connect(&path).unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [listener.as_fd()];
        assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [std::io::IoSlice::new(b"x")];
        let sent = rustix::net::sendmsg(&client, &bytes, &mut ancillary, rustix::net::SendFlags::empty());
        assert_eq!(sent, Err(Errno::PERM));
    }
}
