//! The kernel's stream sockets of network namespaces and of processes, as `/proc` and `sock_diag` tell them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use pd_driver::{SocketDiag, UnixStreamSocket};
use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{FDTarget, Process};

use crate::foreign::printable;

/// A stream socket that listens or is connected, or about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// A listener, and its address.
    Listens(String),
    /// A connected socket: its own end and the other.
    Connected(String, String),
}

/// The sockets of some network namespaces.
#[derive(Debug, Default)]
pub struct Sockets {
    tcp: HashMap<u64, Ends>,
    /// Sockets of AF_UNIX, by inode. `sock_diag` has them: in `/proc/net/unix` a name with a line feed looks like another socket.
    unix: HashMap<u64, UnixStreamSocket>,
}

/// Returns the inode of a process's network namespace.
pub fn namespace(pid: i32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino())
}

/// Inodes of the sockets that a process holds.
pub fn held(process: &Process) -> Vec<u64> {
    let Ok(descriptors) = process.fd() else { return Vec::new() };
    let mut inodes: Vec<u64> = descriptors
        .filter_map(|descriptor| match descriptor.ok()?.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect();
    inodes.sort_unstable();
    inodes.dedup();
    inodes
}

impl Sockets {
    /// Adds those of the namespace that a process is in.
    pub fn add(&mut self, process: &Process) {
        let tcp = [process.tcp(), process.tcp6()].into_iter().flatten().flatten();
        self.tcp.extend(tcp.filter_map(|entry| Some((entry.inode, tcp_ends(&entry)?))));
        let file = File::open(format!("/proc/{}/ns/net", process.pid())).map(OwnedFd::from);
        let diag = file.ok().and_then(|file| SocketDiag::new(&file).ok());
        let unix = diag.and_then(|diag| diag.unix_streams().ok()).unwrap_or_default();
        self.unix.extend(unix.into_iter().map(|socket| (socket.inode.into(), socket)));
    }

    /// Returns the ends of the socket with this inode, if it is a stream socket of TCP, or one of AF_UNIX with a name at one end.
    pub fn find(&self, inode: u64) -> Option<Ends> {
        if let Some(ends) = self.tcp.get(&inode) {
            return Some(ends.clone());
        }
        let socket = self.unix.get(&inode)?;
        match (name(socket), socket.listens) {
            (Some(name), true) => Some(Ends::Listens(name)),
            (Some(name), false) => Some(Ends::Connected(name, String::new())),
            (None, false) => {
                Some(Ends::Connected(String::new(), name(self.unix.get(&u64::from(socket.peer))?)?))
            }
            (None, true) => None,
        }
    }
}

fn tcp_ends(entry: &TcpNetEntry) -> Option<Ends> {
    match entry.state {
        // No process holds it.
        _ if entry.inode == 0 => None,
        TcpState::TimeWait | TcpState::Close | TcpState::NewSynRecv => None,
        TcpState::Listen => Some(Ends::Listens(entry.local_address.to_string())),
        _ => Some(Ends::Connected(entry.local_address.to_string(), entry.remote_address.to_string())),
    }
}

/// Returns the name of a socket of AF_UNIX in one line. A name that is no path begins with `@`.
fn name(socket: &UnixStreamSocket) -> Option<String> {
    let name = match socket.name.as_slice() {
        [] => return None,
        [0, name @ ..] => format!("@{}", String::from_utf8_lossy(name)),
        path => String::from_utf8_lossy(path.strip_suffix(b"\0").unwrap_or(path)).into_owned(),
    };
    Some(printable(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    fn inode(socket: &impl AsRawFd) -> u64 {
        fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino()
    }

    #[test]
    fn own_sockets_are_found_with_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (listener, unix_listener) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind(&path).unwrap());
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let unix = UnixStream::connect(&path).unwrap();
        let _accepted = unix_listener.accept().unwrap();
        let (pair, _other) = UnixStream::pair().unwrap();
        let process = Process::myself().unwrap();
        let mut sockets = Sockets::default();
        sockets.add(&process);
        let (at, path) = (listener.local_addr().unwrap().to_string(), path.to_str().unwrap().to_owned());
        let held = held(&process);
        for socket in [inode(&listener), inode(&stream), inode(&unix), inode(&unix_listener), inode(&pair)] {
            assert!(held.contains(&socket));
        }
        assert_eq!(sockets.find(inode(&listener)), Some(Ends::Listens(at.clone())));
        let own = stream.local_addr().unwrap().to_string();
        assert_eq!(sockets.find(inode(&stream)), Some(Ends::Connected(own, at)));
        assert_eq!(sockets.find(inode(&unix_listener)), Some(Ends::Listens(path.clone())));
        assert_eq!(sockets.find(inode(&unix)), Some(Ends::Connected(String::new(), path)));
        // The socket has no name to connect to.
        assert_eq!(sockets.find(inode(&pair)), None);
    }

    #[test]
    fn no_name_passes_for_another_socket() {
        let folder = tempfile::tempdir().unwrap();
        let forged = "0000000000000000: 00000002 00000000 00010000 0001 01 4711 @other";
        let path = folder.path().join(OsStr::from_bytes(format!("a\n{forged}\nb\x1b[2J").as_bytes()));
        let listener = UnixListener::bind(&path).unwrap();
        let abstract_name = SocketAddr::from_abstract_name(b"c\nd\0\xff").unwrap();
        let other = UnixListener::bind_addr(&abstract_name).unwrap();
        let mut sockets = Sockets::default();
        sockets.add(&Process::myself().unwrap());
        let shown = path.to_str().unwrap().replace(['\n', '\x1b'], " ");
        assert_eq!(sockets.find(inode(&listener)), Some(Ends::Listens(shown)));
        assert_eq!(sockets.find(inode(&other)), Some(Ends::Listens("@c d \u{fffd}".to_owned())));
        assert_eq!(sockets.find(4711), None);
    }
}
