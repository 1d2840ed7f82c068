//! The kernel's stream sockets of network namespaces and of processes, as `/proc` and `sock_diag` tell them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use pd_driver::SocketDiag;
use procfs::net::{TcpNetEntry, TcpState, UnixNetEntry, UnixState};
use procfs::process::{FDTarget, Process};

use crate::foreign::printable;

/// `SOCK_STREAM` in `/proc/net/unix`.
const STREAM: u16 = 1;

/// A stream socket that listens or is connected, or about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ends {
    /// A listener, and its address.
    Listens(String),
    /// A connected socket: its own end and the other.
    Connected(String, String),
}

/// An AF_UNIX socket, as `/proc` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unix {
    path: Option<String>,
    connected: bool,
}

/// The sockets of some network namespaces.
#[derive(Debug, Default)]
pub struct Sockets {
    tcp: HashMap<u64, Ends>,
    unix: HashMap<u64, Unix>,
    /// Inodes of connected sockets of AF_UNIX with those of their peers, which `/proc` does not have.
    peers: HashMap<u32, u32>,
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
        let unix = process.unix().unwrap_or_default();
        self.unix.extend(unix.into_iter().filter_map(|entry| Some((entry.inode, unix_socket(&entry)?))));
        let file = File::open(format!("/proc/{}/ns/net", process.pid())).map(OwnedFd::from);
        let diag = file.ok().and_then(|file| SocketDiag::new(&file).ok());
        self.peers.extend(diag.and_then(|diag| diag.unix_peers().ok()).unwrap_or_default());
    }

    /// Returns the ends of the socket with this inode, if it is a stream socket of TCP, or one of AF_UNIX with a name at one end.
    pub fn find(&self, inode: u64) -> Option<Ends> {
        if let Some(ends) = self.tcp.get(&inode) {
            return Some(ends.clone());
        }
        let socket = self.unix.get(&inode)?;
        match (&socket.path, socket.connected) {
            (Some(path), false) => Some(Ends::Listens(path.clone())),
            (Some(path), true) => Some(Ends::Connected(path.clone(), String::new())),
            (None, true) => {
                Some(Ends::Connected(String::new(), self.unix.get(&self.peer(inode)?)?.path.clone()?))
            }
            (None, false) => None,
        }
    }

    fn peer(&self, inode: u64) -> Option<u64> {
        self.peers.get(&u32::try_from(inode).ok()?).map(|&peer| peer.into())
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

fn unix_socket(entry: &UnixNetEntry) -> Option<Unix> {
    let connected = matches!(entry.state, UnixState::CONNECTED | UnixState::CONNECTING);
    let path = entry.path.as_ref().map(|path| printable(&path.to_string_lossy()));
    (entry.socket_type == STREAM).then_some(Unix { path, connected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

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
}
