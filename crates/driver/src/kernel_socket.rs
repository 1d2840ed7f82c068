//! Facts from the kernel about clients' TCP sockets: whether a process holds one, and whether it still exists.
//!
//! The driver never takes a client's socket, whose closing could block it (a linger time). It looks the descriptor up in
//! `/proc`. Then it asks `sock_diag` (sock_diag(7)) in the client's network namespace for the socket with the addresses
//! and the cookie that the client gave.
use crate::calls::{may, simulated, Call};
use crate::wanted::Wanted;
use pd_shm::procfs;
use rustix::fd::AsFd;
use rustix::io::{Errno, Result};
use rustix::net::{
    netlink, recv, send, socket_with, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// Asks about the sockets of one network namespace.
#[derive(Debug)]
pub struct SocketDiag(pub(crate) OwnedFd);

pub(crate) const SOCK_DIAG_BY_FAMILY: u16 = 20;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLM_F_REQUEST: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const TIME_WAIT: u8 = 6;
/// Offsets of `idiag_state` and `idiag_inode` in a reply.
const STATE_AT: usize = HEADER_BYTES + 1;
const INODE_AT: usize = HEADER_BYTES + 68;

impl SocketDiag {
    /// Opens one for the namespace of this file. Enters the namespace in a thread of its own, unless this thread is in it.
    ///
    /// # Errors
    /// Errors of `setns` and `socket`.
    pub fn new(namespace: &OwnedFd) -> std::io::Result<Self> {
        may(Call::Diag)?;
        if let Some(opened) = simulated::diag(namespace) {
            return Ok(Self(opened?));
        }
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))
        };
        let same = |fd: &OwnedFd| {
            let own = procfs::stat("thread-self/ns/net")?;
            let other = rustix::fs::fstat(fd)?;
            Ok::<_, Errno>((own.st_dev, own.st_ino) == (other.st_dev, other.st_ino))
        };
        if same(namespace)? {
            return Ok(Self(open()?));
        }
        let namespace = namespace.try_clone()?;
        let thread = std::thread::Builder::new().name("pd-diag".into()).spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok::<_, std::io::Error>(Self(open()?))
        })?;
        thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread panicked")))
    }

    /// Returns the inode of the socket, if it exists: 0 if no process holds it any more.
    ///
    /// # Errors
    /// `ENOENT`, `ESTALE` if there is none; errors of the calls.
    pub fn inode(&self, wanted: &Wanted) -> Result<u32> {
        if let Some(found) = simulated::socket_inode(&self.0, wanted) {
            return found;
        }
        let mut reply = [0u8; 1024];
        // Replies to an earlier question.
        while recv(&self.0, &mut reply, RecvFlags::DONTWAIT).is_ok() {}
        send(&self.0, &request(wanted), SendFlags::empty())?;
        let (count, _) = recv(&self.0, &mut reply, RecvFlags::DONTWAIT)?;
        let kind = u16::from_ne_bytes([reply[4], reply[5]]);
        let word = |at: usize| u32::from_ne_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
        match kind {
            // A socket in TIME_WAIT does not count.
            SOCK_DIAG_BY_FAMILY if count >= INODE_AT + 4 && reply[STATE_AT] == TIME_WAIT => Err(Errno::NOENT),
            SOCK_DIAG_BY_FAMILY if count >= INODE_AT + 4 => Ok(word(INODE_AT)),
            NLMSG_ERROR if count >= HEADER_BYTES + 4 => {
                Err(Errno::from_raw_os_error((word(HEADER_BYTES) as i32).wrapping_neg().clamp(1, 4095)))
            }
            _ => Err(Errno::PROTO),
        }
    }
}

fn request(wanted: &Wanted) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0u8; REQUEST_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    // struct inet_diag_req_v2: family, protocol, states of all kinds, then the socket.
    let family = if wanted.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(HEADER_BYTES, &[family as u8, libc::IPPROTO_TCP as u8]);
    put(HEADER_BYTES + 4, &u32::MAX.to_ne_bytes());
    let at = HEADER_BYTES + 8;
    put(at, &wanted.local.port().to_be_bytes());
    put(at + 2, &wanted.peer.port().to_be_bytes());
    for (at, ip) in [(at + 4, wanted.local.ip()), (at + 20, wanted.peer.ip())] {
        match ip {
            IpAddr::V4(ip) => put(at, &ip.octets()),
            IpAddr::V6(ip) => put(at, &ip.octets()),
        }
    }
    put(at + 40, &(wanted.cookie as u32).to_ne_bytes());
    put(at + 44, &((wanted.cookie >> 32) as u32).to_ne_bytes());
    bytes
}

/// Returns the inode of the socket that a process's descriptor refers to.
///
/// # Errors
/// `ENOTSOCK` if it is no socket; errors of reading `/proc`.
pub fn inode_of_descriptor(pid: u32, descriptor: u32) -> Result<u32> {
    if let Some(found) = simulated::descriptor(pid, descriptor) {
        return found;
    }
    let target = procfs::read_link(&format!("{pid}/fd/{descriptor}"))?;
    let inode = target.to_str().ok().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
    inode.and_then(|text| text.parse().ok()).ok_or(Errno::NOTSOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn cookie(socket: &impl AsFd) -> u64 {
        rustix::net::sockopt::socket_cookie(socket).unwrap()
    }

    #[test]
    fn a_held_socket_is_found_and_others_are_not() {
        let (_, namespace) = crate::process::network_namespace(rustix::process::getpid()).unwrap();
        let diag = SocketDiag::new(&namespace).unwrap();
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue }; // without IPv6
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            let wanted = |s: &TcpStream| Wanted {
                local: s.local_addr().unwrap(),
                peer: s.peer_addr().unwrap(),
                cookie: cookie(s),
            };
            let pid = std::process::id();
            for socket in [&client, &accepted] {
                let inode = diag.inode(&wanted(socket)).unwrap();
                assert_eq!(inode_of_descriptor(pid, socket.as_raw_fd() as u32), Ok(inode));
            }
            let other = Wanted { cookie: cookie(&accepted) ^ 1, ..wanted(&accepted) };
            assert!(diag.inode(&other).is_err());
            let ours = wanted(&client);
            drop(client);
            assert!(diag.inode(&ours).map_or(true, |inode| inode == 0), "held by nobody");
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(inode_of_descriptor(std::process::id(), file.as_raw_fd() as u32), Err(Errno::NOTSOCK));
    }
}
