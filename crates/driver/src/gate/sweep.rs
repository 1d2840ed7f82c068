//! Open TCP connections on the kernel that a policy denies: found and ended by `sock_diag` (sock_diag(7)).
use rustix::fd::OwnedFd;
use rustix::io::{Errno, Result};
use rustix::net::{recv, send, RecvFlags, SendFlags};
use std::collections::HashSet;
use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};

use crate::sock_diag::{
    Header, InetReply, InetRequest, Message, SocketName, NLMSG_DONE, NLMSG_ERROR, NLM_F_DUMP,
    SOCK_DIAG_BY_FAMILY,
};

const SOCK_DESTROY: u16 = 21;
const NLM_F_ACK: u16 = 4;
const HEADER_BYTES: usize = size_of::<Header>();
const NAME_BYTES: usize = size_of::<SocketName>();
const INET_DIAG_CGROUP_ID: u16 = 21;
const INET_DIAG_SKV6ONLY: u16 = 11;
const LISTEN: u32 = 1 << 10;
/// States of connected and connecting sockets: ESTABLISHED, SYN_SENT, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
const CONNECTED: u32 = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
/// The kernel's usual range of ephemeral ports.
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// A TCP socket of the kernel.
#[derive(Clone, Debug)]
pub struct Found {
    family: u8,
    name: [u8; NAME_BYTES],
    pub local: SocketAddr,
    pub peer: SocketAddr,
    pub inode: u32,
    /// The socket's control group.
    pub group: u64,
    /// Of a listener: connections in its backlog, and the backlog's size.
    queued: u32,
    room: u32,
    v6_only: bool,
}

impl Found {
    /// Tells whether a listener takes connections to an address.
    pub fn takes(&self, to: SocketAddr) -> bool {
        let own = self.local.ip();
        let is_any =
            own.is_unspecified() && (own.is_ipv4() == to.is_ipv4() || (own.is_ipv6() && !self.v6_only));
        self.local.port() == to.port() && (own == to.ip() || is_any)
    }

    /// Tells whether a listener's backlog is full.
    pub fn is_full(&self) -> bool {
        self.queued > self.room
    }

    /// Tells whether the socket is the side that connected. `listened`: local ports with a listener.
    pub fn connects(&self, listened: &HashSet<u16>) -> bool {
        // Without a listener, the side with the ephemeral port is the one that connected.
        !listened.contains(&self.local.port())
            && (EPHEMERAL.contains(&self.local.port()) || !EPHEMERAL.contains(&self.peer.port()))
    }
}

fn request(
    kind: u16,
    flags: u16,
    family: u8,
    states: u32,
    name: Option<&[u8; NAME_BYTES]>,
) -> Message<{ size_of::<InetRequest>() }> {
    let request = Message::new(kind, flags)
        .with(offset_of!(InetRequest, family), [family])
        .with(offset_of!(InetRequest, protocol), [libc::IPPROTO_TCP as u8])
        .with(offset_of!(InetRequest, states), states.to_ne_bytes());
    match name {
        Some(name) => request.with(offset_of!(InetRequest, name), *name),
        None => request,
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Returns all sockets of these states.
fn dump(diag: &OwnedFd, states: u32) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut bytes = vec![0u8; 64 << 10];
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        // Replies to an earlier question.
        while recv(diag, &mut bytes[..], RecvFlags::DONTWAIT).is_ok() {}
        send(
            diag,
            request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, states, None).bytes(),
            SendFlags::empty(),
        )?;
        // The kernel answers a dump within the calls: the socket need not wait.
        'dump: loop {
            let (count, _) = recv(diag, &mut bytes[..], RecvFlags::DONTWAIT)?;
            let mut rest = &bytes[..count];
            while let Some(len) = word(rest, 0).map(u32::from_ne_bytes) {
                let len = len as usize;
                if len < HEADER_BYTES || len > rest.len() {
                    break;
                }
                match word(rest, 4).map(u16::from_ne_bytes) {
                    Some(NLMSG_DONE) => break 'dump,
                    Some(NLMSG_ERROR) => return Err(Errno::PROTO),
                    _ => found.extend(parse(&rest[..len])),
                }
                rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
    Ok(found)
}

fn parse(message: &[u8]) -> Option<Found> {
    let family = *message.get(offset_of!(InetReply, family))?;
    let name: [u8; NAME_BYTES] = word(message, offset_of!(InetReply, name))?;
    let at = |port: usize, address: usize| -> Option<SocketAddr> {
        let ip = match i32::from(family) {
            libc::AF_INET => IpAddr::from(word::<4>(&name, address)?),
            _ => IpAddr::from(word::<16>(&name, address)?).to_canonical(),
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(word(&name, port)?)))
    };
    let local = at(offset_of!(SocketName, local_port), offset_of!(SocketName, local))?;
    let peer = at(offset_of!(SocketName, peer_port), offset_of!(SocketName, peer))?;
    let inode = u32::from_ne_bytes(word(message, offset_of!(InetReply, inode))?);
    let queues = [offset_of!(InetReply, receive_queue), offset_of!(InetReply, send_queue)];
    let [queued, room] = queues.map(|at| word(message, at).map_or(0, u32::from_ne_bytes));
    let (mut group, mut v6_only, mut rest) = (0, false, message.get(size_of::<InetReply>()..)?);
    while let (Some(len), Some(kind)) = (word(rest, 0), word(rest, 2)) {
        let len = usize::from(u16::from_ne_bytes(len));
        if len < 4 {
            break;
        }
        match u16::from_ne_bytes(kind) {
            INET_DIAG_CGROUP_ID => group = word(rest, 4).map_or(0, u64::from_ne_bytes),
            INET_DIAG_SKV6ONLY => v6_only = rest.get(4) == Some(&1),
            _ => {}
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Found { family, name, local, peer, inode, group, queued, room, v6_only })
}

/// Returns the connected sockets of a namespace, and the ports with a listener there.
///
/// # Errors
/// Errors of the calls.
pub fn sockets(diag: &OwnedFd) -> Result<(Vec<Found>, HashSet<u16>)> {
    let listened = dump(diag, LISTEN)?.iter().map(|found| found.local.port()).collect();
    Ok((dump(diag, CONNECTED)?, listened))
}

/// Returns the listeners of a namespace.
///
/// # Errors
/// Errors of the calls.
pub fn listeners(diag: &OwnedFd) -> Result<Vec<Found>> {
    dump(diag, LISTEN)
}

/// Ends a connection: both sides get a reset.
///
/// # Errors
/// `EPERM` without CAP_NET_ADMIN, `EOPNOTSUPP` without CONFIG_INET_DIAG_DESTROY, `ENOENT` if it is gone.
pub fn destroy(diag: &OwnedFd, found: &Found) -> Result<()> {
    let mut reply = [0u8; 1024];
    while recv(diag, &mut reply[..], RecvFlags::DONTWAIT).is_ok() {}
    let states = u32::MAX;
    send(
        diag,
        request(SOCK_DESTROY, NLM_F_ACK, found.family, states, Some(&found.name)).bytes(),
        SendFlags::empty(),
    )?;
    let (count, _) = recv(diag, &mut reply[..], RecvFlags::DONTWAIT)?;
    match word(&reply[..count], HEADER_BYTES).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(Errno::from_raw_os_error(error.wrapping_neg().clamp(1, 4095))),
        None => Err(Errno::PROTO),
    }
}
