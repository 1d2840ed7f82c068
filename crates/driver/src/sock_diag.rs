//! Messages of `sock_diag` (sock_diag(7)), as the kernel's headers `netlink.h`, `inet_diag.h` and `unix_diag.h` lay them out.
//!
//! The structures say where fields lie, and are never made: messages are arrays of bytes, which the kernel writes.
// Not every field of the kernel's is used.
#![allow(dead_code)]

use rustix::fd::OwnedFd;
use rustix::io::{Errno, Result};
use rustix::net::{recv, send, RecvFlags, SendFlags};
use std::mem::offset_of;

pub const SOCK_DIAG_BY_FAMILY: u16 = 20;
pub const NLMSG_ERROR: u16 = 2;
pub const NLMSG_DONE: u16 = 3;
pub const NLM_F_DUMP: u16 = 0x300;
const NLM_F_REQUEST: u16 = 1;

/// `struct nlmsghdr`.
#[repr(C)]
pub struct Header {
    pub length: u32,
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub port: u32,
}

/// `struct inet_diag_sockid`. Ports and addresses have the order of the network.
#[repr(C)]
pub struct SocketName {
    pub local_port: u16,
    pub peer_port: u16,
    pub local: [u32; 4],
    pub peer: [u32; 4],
    pub interface: u32,
    pub cookie: [u32; 2],
}

/// `struct inet_diag_req_v2`, behind a header.
#[repr(C)]
pub struct InetRequest {
    pub header: Header,
    pub family: u8,
    pub protocol: u8,
    pub extensions: u8,
    padding: u8,
    pub states: u32,
    pub name: SocketName,
}

/// `struct inet_diag_msg`, behind a header. Attributes follow.
#[repr(C)]
pub struct InetReply {
    pub header: Header,
    pub family: u8,
    pub state: u8,
    pub timer: u8,
    pub retransmits: u8,
    pub name: SocketName,
    pub expires: u32,
    pub receive_queue: u32,
    pub send_queue: u32,
    pub uid: u32,
    pub inode: u32,
}

/// `struct unix_diag_req`, behind a header.
#[repr(C)]
pub struct UnixRequest {
    pub header: Header,
    pub family: u8,
    pub protocol: u8,
    padding: u16,
    pub states: u32,
    pub inode: u32,
    pub show: u32,
    pub cookie: [u32; 2],
}

/// `struct unix_diag_msg`, behind a header. Attributes follow.
#[repr(C)]
pub struct UnixReply {
    pub header: Header,
    pub family: u8,
    pub kind: u8,
    pub state: u8,
    padding: u8,
    pub inode: u32,
    pub cookie: [u32; 2],
}

const _: () = assert!(size_of::<Header>() == 16 && size_of::<SocketName>() == 48);
const _: () = assert!(size_of::<InetRequest>() == 16 + 56 && size_of::<InetReply>() == 16 + 72);
const _: () = assert!(size_of::<UnixRequest>() == 16 + 24 && size_of::<UnixReply>() == 16 + 16);

/// A message to the kernel of `N` bytes, zero where nothing was put.
pub struct Message<const N: usize>([u8; N]);

impl<const N: usize> Message<N> {
    /// Makes a request of this kind, with these flags beside that of a request.
    pub fn new(kind: u16, flags: u16) -> Self {
        Self([0; N])
            .with(offset_of!(Header, length), (N as u32).to_ne_bytes())
            .with(offset_of!(Header, kind), kind.to_ne_bytes())
            .with(offset_of!(Header, flags), (NLM_F_REQUEST | flags).to_ne_bytes())
    }

    /// Puts bytes at an offset, within the message.
    pub fn with<const M: usize>(mut self, at: usize, bytes: [u8; M]) -> Self {
        self.0[at..at + M].copy_from_slice(&bytes);
        self
    }

    /// Returns the bytes to be sent.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A message from the kernel about one socket.
pub struct Reply<'a>(&'a [u8]);

impl<'a> Reply<'a> {
    /// Takes a message that describes a socket.
    ///
    /// # Errors
    /// The errno of a message that carries one; `EPROTO` for others.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let reply = Self(bytes);
        match u16::from_ne_bytes(reply.part(offset_of!(Header, kind))?) {
            SOCK_DIAG_BY_FAMILY => Ok(reply),
            NLMSG_ERROR => {
                let errno = (reply.word(size_of::<Header>())? as i32).wrapping_neg().clamp(1, 4095);
                Err(Errno::from_raw_os_error(errno))
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// Returns the bytes at an offset.
    ///
    /// # Errors
    /// `EPROTO` beyond the message's end.
    pub fn part<const M: usize>(&self, at: usize) -> Result<[u8; M]> {
        self.0.get(at..at + M).and_then(|part| part.try_into().ok()).ok_or(Errno::PROTO)
    }

    /// Returns `len` bytes at an offset.
    ///
    /// # Errors
    /// `EPROTO` beyond the message's end.
    pub fn bytes(&self, at: usize, len: usize) -> Result<&'a [u8]> {
        self.0.get(at..at + len).ok_or(Errno::PROTO)
    }

    /// Returns the word at an offset.
    ///
    /// # Errors
    /// `EPROTO` beyond the message's end.
    pub fn word(&self, at: usize) -> Result<u32> {
        self.part(at).map(u32::from_ne_bytes)
    }

    /// Returns the number of bytes that came.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Asks for a list of sockets, and calls `each` with every message about one. Drops replies to earlier questions.
///
/// # Errors
/// Errors of the calls, and of `each`; those of [`Reply::new`].
pub fn dump(diag: &OwnedFd, request: &[u8], mut each: impl FnMut(&Reply<'_>) -> Result<()>) -> Result<()> {
    let mut bytes = vec![0u8; 64 << 10];
    while recv(diag, &mut bytes[..], RecvFlags::DONTWAIT).is_ok() {}
    send(diag, request, SendFlags::empty())?;
    // The kernel answers a dump within the calls: the socket need not wait.
    loop {
        let (count, _) = recv(diag, &mut bytes[..], RecvFlags::DONTWAIT)?;
        let mut rest = &bytes[..count.min(bytes.len())];
        while let Some((one, after)) = next_message(rest) {
            if kind_of(one) == Some(NLMSG_DONE) {
                return Ok(());
            }
            each(&Reply::new(one)?)?;
            rest = after;
        }
    }
}

/// Splits the first of several messages off.
fn next_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let one = bytes.get(..len).filter(|_| len >= size_of::<Header>())?;
    Some((one, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

fn kind_of(message: &[u8]) -> Option<u16> {
    let at = offset_of!(Header, kind);
    Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?))
}

/// Asks about one socket. Drops replies to earlier questions.
///
/// # Errors
/// Errors of the calls; those of [`Reply::new`].
pub fn ask<'a>(diag: &OwnedFd, request: &[u8], reply: &'a mut [u8]) -> Result<Reply<'a>> {
    while recv(diag, &mut *reply, RecvFlags::DONTWAIT).is_ok() {}
    send(diag, request, SendFlags::empty())?;
    let (count, _) = recv(diag, &mut *reply, RecvFlags::DONTWAIT)?;
    let count = count.min(reply.len());
    Reply::new(&reply[..count])
}
