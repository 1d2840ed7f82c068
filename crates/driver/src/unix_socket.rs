//! Facts from the kernel about clients' AF_UNIX sockets: their bound files and their peers. As in
//! [`crate::kernel_socket`], a client's descriptor is looked up in `/proc`. The inode number then names the
//! socket, on the whole machine.
use crate::calls::simulated;
use crate::kernel_socket::SocketDiag;
use crate::sock_diag::{ask, Header, Message, Reply, UnixReply, UnixRequest, SOCK_DIAG_BY_FAMILY};
use crate::wanted::UnixSocket;
use rustix::io::{Errno, Result};
use std::mem::offset_of;

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
        let mut bytes = [0u8; 1024];
        parse(&ask(&self.0, request(inode).bytes(), &mut bytes)?)
    }
}

fn request(inode: u32) -> Message<{ size_of::<UnixRequest>() }> {
    Message::new(SOCK_DIAG_BY_FAMILY, 0)
        .with(offset_of!(UnixRequest, family), [libc::AF_UNIX as u8])
        .with(offset_of!(UnixRequest, states), u32::MAX.to_ne_bytes())
        .with(offset_of!(UnixRequest, inode), inode.to_ne_bytes())
        .with(offset_of!(UnixRequest, show), SHOW.to_ne_bytes())
        // Any cookie.
        .with(offset_of!(UnixRequest, cookie), u64::MAX.to_ne_bytes())
}

fn parse(reply: &Reply<'_>) -> Result<UnixSocket> {
    if reply.part(offset_of!(UnixReply, kind))? != [STREAM] {
        return Err(Errno::NOTSOCK);
    }
    let listens = reply.part(offset_of!(UnixReply, state))? == [LISTEN];
    let mut socket = UnixSocket { listens, ..UnixSocket::default() };
    let end = (reply.word(offset_of!(Header, length))? as usize).min(reply.len());
    let mut at = size_of::<UnixReply>();
    while at + 4 <= end {
        let head = reply.word(at)?;
        let (len, kind) = (usize::from(head as u16), (head >> 16) as u16);
        match kind {
            ATTRIBUTE_VFS if len >= 12 => socket.file = Some((reply.word(at + 8)?, reply.word(at + 4)?)),
            ATTRIBUTE_PEER if len >= 8 => socket.peer = reply.word(at + 4)?,
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
