//! Facts from the kernel about clients' AF_UNIX sockets: their bound files and their peers. As in
//! [`crate::kernel_socket`], a client's descriptor is looked up in `/proc`. The inode number then names the
//! socket, on the whole machine.
//!
//! The kernel finds an inode by a walk over all sockets of AF_UNIX of a network namespace, of which a client makes hundreds of thousands. A
//! namespace with many is asked about seldom, and by [`SocketDiag::unix_of_many`] alone.
use crate::calls::simulated;
use crate::kernel_socket::SocketDiag;
use crate::sock_diag::{
    ask, dump, Header, Message, Reply, UnixReply, UnixRequest, NLM_F_DUMP, SOCK_DIAG_BY_FAMILY,
};
use crate::wanted::UnixSocket;
use rustix::io::{pread, Errno, Result};
use std::cell::Cell;
use std::mem::offset_of;
use std::time::{Duration, Instant};

/// Attributes asked for about one socket: the bound file, the peer.
const SHOW: u32 = 2 | 4;
/// Attributes asked for in a list: the name, the peer.
const SHOW_IN_LIST: u32 = 1 | 4;
const STREAM: u8 = 1;
const CONNECTED: u8 = 1;
const LISTEN: u8 = 10;
/// Most sockets of a namespace in which one is looked for: a walk takes up to a millisecond.
pub const SOCKETS_MAX: u64 = 8192;
/// Time for which a count is taken for the number of sockets, and up to which number: no process makes more than some thousands meanwhile.
const COUNT_HOLDS: Duration = Duration::from_millis(10);
const COUNT_HOLDS_UP_TO: u64 = 1024;
/// Most bytes of a list of protocols.
const PROTOCOLS_BYTES_MAX: usize = 16 << 10;
const ATTRIBUTE_NAME: u16 = 0;
const ATTRIBUTE_VFS: u16 = 1;
const ATTRIBUTE_PEER: u16 = 2;

/// A stream socket of AF_UNIX that listens or is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixStreamSocket {
    /// The socket's inode.
    pub inode: u32,
    /// Tells whether the socket listens.
    pub listens: bool,
    /// The inode of its peer, or 0.
    pub peer: u32,
    /// Its name as it was bound: a path, or bytes that begin with a zero. Empty if it has none.
    pub name: Vec<u8>,
}

/// Number of a namespace's sockets, and when it was asked for. The kernel takes as long to tell as to make a socket and connect it.
#[derive(Debug, Default)]
pub(crate) struct Counted(Cell<Option<(Instant, u64)>>);

impl Counted {
    fn or_count(&self, count: impl FnOnce() -> u64) -> u64 {
        let holds = |&(at, count): &(Instant, u64)| count <= COUNT_HOLDS_UP_TO && at.elapsed() < COUNT_HOLDS;
        if let Some((_, count)) = self.0.get().filter(holds) {
            return count;
        }
        let count = count();
        self.0.set(Some((Instant::now(), count)));
        count
    }
}

impl SocketDiag {
    /// Returns the socket of this namespace that has this inode.
    ///
    /// # Errors
    /// `ENOENT` if there is none, or no process holds it; `ENOBUFS` if the namespace has too many; errors of the calls.
    pub fn unix(&self, inode: u32) -> Result<UnixSocket> {
        self.unix_among(inode, &mut { SOCKETS_MAX })
    }

    /// Returns the socket of this namespace that has this inode, if the namespace has no more sockets than are `left`, of which it takes
    /// theirs.
    ///
    /// # Errors
    /// As [`Self::unix`].
    pub fn unix_among(&self, inode: u32, left: &mut u64) -> Result<UnixSocket> {
        *left = left.checked_sub(self.unix_sockets()).ok_or(Errno::NOBUFS)?;
        self.unix_of_many(inode)
    }

    /// Returns the socket of this namespace that has this inode, however long that takes.
    ///
    /// # Errors
    /// As [`Self::unix`], but for `ENOBUFS`.
    pub fn unix_of_many(&self, inode: u32) -> Result<UnixSocket> {
        if let Some(found) = simulated::unix_socket(&self.diag, inode) {
            return found;
        }
        let mut bytes = [0u8; 1024];
        parse(&ask(&self.diag, request(inode).bytes(), &mut bytes)?)
    }

    /// Returns the stream sockets of this namespace that listen or are connected. One walk for all of them.
    ///
    /// # Errors
    /// Errors of the calls.
    pub fn unix_streams(&self) -> Result<Vec<UnixStreamSocket>> {
        let mut sockets = Vec::new();
        dump(&self.diag, message(NLM_F_DUMP, 0, SHOW_IN_LIST).bytes(), |reply| {
            sockets.extend(listed(reply)?);
            Ok(())
        })?;
        Ok(sockets)
    }

    /// Returns the number of sockets of AF_UNIX in this namespace, 0 where it cannot be read.
    pub fn unix_sockets(&self) -> u64 {
        let Some(file) = &self.protocols else { return 0 };
        self.counted.or_count(|| {
            let mut text = vec![0; PROTOCOLS_BYTES_MAX];
            let len = pread(file, &mut text[..], 0).unwrap_or(0);
            std::str::from_utf8(&text[..len]).map_or(0, count)
        })
    }
}

/// Returns the sum of the lines of `/proc/net/protocols` that are about AF_UNIX: streams have one of their own from Linux 5.15 on.
fn count(protocols: &str) -> u64 {
    let number = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let name = fields.next().filter(|name| name.starts_with("UNIX"));
        name.and(fields.nth(1)?.parse::<u64>().ok())
    };
    protocols.lines().filter_map(number).sum()
}

fn request(inode: u32) -> Message<{ size_of::<UnixRequest>() }> {
    message(0, inode, SHOW)
}

fn message(flags: u16, inode: u32, show: u32) -> Message<{ size_of::<UnixRequest>() }> {
    Message::new(SOCK_DIAG_BY_FAMILY, flags)
        .with(offset_of!(UnixRequest, family), [libc::AF_UNIX as u8])
        .with(offset_of!(UnixRequest, states), u32::MAX.to_ne_bytes())
        .with(offset_of!(UnixRequest, inode), inode.to_ne_bytes())
        .with(offset_of!(UnixRequest, show), show.to_ne_bytes())
        // Any cookie.
        .with(offset_of!(UnixRequest, cookie), u64::MAX.to_ne_bytes())
}

fn parse(reply: &Reply<'_>) -> Result<UnixSocket> {
    if reply.part(offset_of!(UnixReply, kind))? != [STREAM] {
        return Err(Errno::NOTSOCK);
    }
    let listens = reply.part(offset_of!(UnixReply, state))? == [LISTEN];
    let mut socket = UnixSocket { listens, ..UnixSocket::default() };
    for_attributes(reply, |kind, at, len| {
        match kind {
            ATTRIBUTE_VFS if len >= 8 => socket.file = Some((reply.word(at + 4)?, reply.word(at)?)),
            ATTRIBUTE_PEER if len >= 4 => socket.peer = reply.word(at)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(socket)
}

/// Returns the stream socket of a list's message, if it is one that listens or is connected.
fn listed(reply: &Reply<'_>) -> Result<Option<UnixStreamSocket>> {
    let [state] = reply.part(offset_of!(UnixReply, state))?;
    if reply.part(offset_of!(UnixReply, kind))? != [STREAM] || !matches!(state, LISTEN | CONNECTED) {
        return Ok(None);
    }
    let inode = reply.word(offset_of!(UnixReply, inode))?;
    let mut socket = UnixStreamSocket { inode, listens: state == LISTEN, peer: 0, name: Vec::new() };
    for_attributes(reply, |kind, at, len| {
        match kind {
            ATTRIBUTE_NAME => socket.name = reply.bytes(at, len)?.to_vec(),
            ATTRIBUTE_PEER if len >= 4 => socket.peer = reply.word(at)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(Some(socket))
}

/// Calls `each` with kind, offset and length of the content of each attribute of a message about a socket of AF_UNIX.
fn for_attributes(reply: &Reply<'_>, mut each: impl FnMut(u16, usize, usize) -> Result<()>) -> Result<()> {
    const HEAD: usize = 4;
    let end = (reply.word(offset_of!(Header, length))? as usize).min(reply.len());
    let mut at = size_of::<UnixReply>();
    while at + HEAD <= end {
        let head = reply.word(at)?;
        let (len, kind) = (usize::from(head as u16).max(HEAD), (head >> 16) as u16);
        each(kind, at + HEAD, len - HEAD)?;
        at += len.next_multiple_of(4);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_socket::inode_of_descriptor;
    use pd_shm::procfs;
    use rustix::process::{getpid, pidfd_open, PidfdFlags};
    use std::os::fd::AsRawFd;
    use std::os::linux::fs::MetadataExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn two_ends_of_a_connection_know_each_other() {
        let (_, namespace) = crate::process::network_namespace(rustix::process::getpid()).unwrap();
        let diag = SocketDiag::new(&namespace).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let inode = |fd: &dyn AsRawFd| {
            inode_of_descriptor(std::process::id(), &pidfd, fd.as_raw_fd() as u32).unwrap()
        };
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
        let list = diag.unix_streams().unwrap();
        let listed =
            |fd: &dyn AsRawFd| list.iter().find(|socket| socket.inode == inode(fd)).cloned().unwrap();
        let name = [path.as_os_str().as_encoded_bytes(), b"\0"].concat();
        let (listening, theirs) = (listed(&listener), listed(&accepted));
        assert_eq!((listening.listens, listening.peer, &listening.name), (true, 0, &name));
        assert_eq!((theirs.listens, theirs.peer, &theirs.name), (false, inode(&client), &name));
        assert_eq!(listed(&client).peer, inode(&accepted));
        assert!(listed(&client).name.is_empty());
        let mut left = SOCKETS_MAX;
        assert!(diag.unix_among(inode(&client), &mut left).is_ok());
        assert!(left < SOCKETS_MAX);
        assert_eq!(diag.unix_among(inode(&client), &mut 0), Err(Errno::NOBUFS));
        let gone = inode(&client);
        drop(client);
        assert_eq!(diag.unix(gone), Err(Errno::NOENT));
    }

    #[test]
    fn sockets_are_counted_by_their_protocols() {
        let list = "protocol  size sockets  memory press maxhdr  slab module\n\
                    PACKET    1600      9      -1   NI       0   no   kernel\n\
                    UNIX-STREAM 1152     17      -1   NI       0   yes  kernel\n\
                    UNIX      1152      7      -1   NI       0   yes  kernel\n";
        assert_eq!(count(list), 24);
        assert_eq!(count("UNIX\nUNIX 1\n\n"), 0);
    }

    /// Makes sockets of AF_UNIX in a network namespace of the test's own, more than are looked through.
    #[test]
    fn a_namespace_with_very_many_sockets_is_not_searched() {
        let in_namespace = || {
            // SAFETY: of this thread alone, which ends with the test.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                println!("SKIPPED: needs root for a network namespace");
                return;
            }
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
            let namespace = procfs::open("thread-self/ns/net", rustix::fs::OFlags::RDONLY).unwrap();
            let diag = SocketDiag::new(&namespace).unwrap();
            let (one, _other) = UnixStream::pair().unwrap();
            let number = std::fs::metadata(format!("/proc/self/fd/{}", one.as_raw_fd())).unwrap().st_ino();
            let inode = number as u32;
            assert!(diag.unix(inode).is_ok());
            let crowd: Vec<_> =
                (0..SOCKETS_MAX).map(|_| std::os::unix::net::UnixDatagram::unbound()).collect();
            assert!(crowd.iter().all(|socket| socket.is_ok()), "{:?}", crowd.last());
            std::thread::sleep(COUNT_HOLDS);
            assert_eq!(diag.unix(inode), Err(Errno::NOBUFS));
            assert!(diag.unix_of_many(inode).is_ok());
            drop(crowd);
            assert!(diag.unix(inode).is_ok());
        };
        std::thread::spawn(in_namespace).join().unwrap();
    }
}
