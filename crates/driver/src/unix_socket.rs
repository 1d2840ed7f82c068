//! Facts from the kernel about clients' AF_UNIX sockets: their bound files and their peers. As in
//! [`crate::kernel_socket`], a client's descriptor is looked up in `/proc`. The inode number then names the
//! socket, on the whole machine.
use crate::calls::simulated;
use crate::kernel_socket::{SocketDiag, HEADER_BYTES, NLMSG_ERROR, NLM_F_REQUEST, SOCK_DIAG_BY_FAMILY};
use crate::wanted::UnixSocket;
use rustix::io::{Errno, Result};
use rustix::net::{recv, send, RecvFlags, SendFlags};

const REQUEST_BYTES: usize = HEADER_BYTES + 24;
/// Attributes asked for: the bound file, the peer.
const SHOW: u32 = 2 | 4;
const STREAM: u8 = 1;
const LISTEN: u8 = 10;
const ATTRIBUTE_VFS: u16 = 1;
const ATTRIBUTE_PEER: u16 = 2;

impl SocketDiag {
    /// Returns the socket of this namespace that has this inode.
    ///
    /// # Errors
    /// `ENOENT` if there is none, or no process holds it; errors of the calls.
    pub fn unix(&self, inode: u32) -> Result<UnixSocket> {
        if let Some(found) = simulated::unix_socket(&self.0, inode) {
            return found;
        }
        let mut reply = [0u8; 1024];
        while recv(&self.0, &mut reply, RecvFlags::DONTWAIT).is_ok() {}
        send(&self.0, &request(inode), SendFlags::empty())?;
        let (count, _) = recv(&self.0, &mut reply, RecvFlags::DONTWAIT)?;
        parse(&reply[..count.min(reply.len())])
    }
}

fn request(inode: u32) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0u8; REQUEST_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    // struct unix_diag_req: family, all states, inode, what to show, any cookie.
    put(HEADER_BYTES, &[libc::AF_UNIX as u8]);
    put(HEADER_BYTES + 4, &u32::MAX.to_ne_bytes());
    put(HEADER_BYTES + 8, &inode.to_ne_bytes());
    put(HEADER_BYTES + 12, &SHOW.to_ne_bytes());
    put(HEADER_BYTES + 16, &u64::MAX.to_ne_bytes());
    bytes
}

fn parse(reply: &[u8]) -> Result<UnixSocket> {
    let word = |at: usize| -> Result<u32> {
        let bytes = reply.get(at..at + 4).ok_or(Errno::PROTO)?;
        Ok(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    match word(4)? as u16 {
        SOCK_DIAG_BY_FAMILY => {}
        NLMSG_ERROR => {
            let errno = (word(HEADER_BYTES)? as i32).wrapping_neg().clamp(1, 4095);
            return Err(Errno::from_raw_os_error(errno));
        }
        _ => return Err(Errno::PROTO),
    }
    // struct unix_diag_msg: family, type, state; then attributes.
    let [_, kind, state, _] = word(HEADER_BYTES)?.to_ne_bytes();
    if kind != STREAM {
        return Err(Errno::NOTSOCK);
    }
    let mut socket = UnixSocket { listens: state == LISTEN, ..UnixSocket::default() };
    let end = (word(0)? as usize).min(reply.len());
    let mut at = HEADER_BYTES + 16;
    while at + 4 <= end {
        let head = word(at)?;
        let (len, kind) = (usize::from(head as u16), (head >> 16) as u16);
        match kind {
            ATTRIBUTE_VFS if len >= 12 => socket.file = Some((word(at + 8)?, word(at + 4)?)),
            ATTRIBUTE_PEER if len >= 8 => socket.peer = word(at + 4)?,
            _ => {}
        }
        at += len.max(4).next_multiple_of(4);
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_socket::inode_of_descriptor;
    use std::os::fd::AsRawFd;
    use std::os::linux::fs::MetadataExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn two_ends_of_a_connection_know_each_other() {
        let (_, namespace) = crate::process::network_namespace(rustix::process::getpid()).unwrap();
        let diag = SocketDiag::new(&namespace).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let inode =
            |fd: &dyn AsRawFd| inode_of_descriptor(std::process::id(), fd.as_raw_fd() as u32).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let found = diag.unix(inode(&listener)).unwrap();
        let status = std::fs::metadata(&path).unwrap();
        let device = libc::major(status.st_dev()) << 20 | libc::minor(status.st_dev());
        assert!(found.listens);
        assert_eq!(found.file, Some((device, status.st_ino() as u32)));
        let client = UnixStream::connect(&path).unwrap();
        assert_eq!(diag.unix(inode(&client)).unwrap().peer, 0, "not accepted");
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(diag.unix(inode(&client)).unwrap().peer, inode(&accepted));
        assert_eq!(diag.unix(inode(&accepted)).unwrap().peer, inode(&client));
        let gone = inode(&client);
        drop(client);
        assert_eq!(diag.unix(gone), Err(Errno::NOENT));
    }
}
