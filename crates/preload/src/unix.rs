//! AF_UNIX stream connections to a file. They have twins as TCP connections have, and one rule more: a message
//! with descriptors or credentials goes over the kernel, and with it the connection, for good ([`crate::aside`]).
//!
//! Sockets without a file (abstract names, socket pairs) are the kernel's alone.
pub(crate) mod connecting;

use crate::{address, real};
use libc::{c_int, c_void, msghdr, sockaddr, sockaddr_un, socklen_t};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Of the kernel's interface, not in `libc` everywhere.
const SO_PASSPIDFD: c_int = 76;
/// Where the path begins in an address.
const PATH_AT: usize = size_of::<libc::sa_family_t>();

/// Returns whether `socket` makes one that may get a twin.
pub(crate) fn is_kind(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    domain == libc::AF_UNIX && kind & 0xf == libc::SOCK_STREAM && protocol == 0
}

/// Returns whether the descriptor is one of these.
pub(crate) fn is_unix(fd: c_int) -> bool {
    address::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
        && address::option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
}

/// Options with which the kernel adds something to each message.
pub(crate) fn adds_to_messages(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET && [libc::SO_PASSCRED, libc::SO_PASSSEC, SO_PASSPIDFD].contains(&name)
}

/// The path in an address; none for an abstract or empty one.
fn path_in(bytes: &[u8]) -> Option<&Path> {
    let path = bytes.get(PATH_AT..)?;
    let path = &path[..path.iter().position(|&byte| byte == 0).unwrap_or(path.len())];
    (!path.is_empty()).then(|| Path::new(OsStr::from_bytes(path)))
}

type Ask = unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// None: the call fails. Otherwise whether there is a path.
fn has_path(fd: c_int, ask: Ask) -> Option<bool> {
    let mut bytes = [0u8; size_of::<sockaddr_un>() + 1];
    let mut len = size_of::<sockaddr_un>() as socklen_t;
    // SAFETY: so much room.
    let result = unsafe { ask(fd, bytes.as_mut_ptr().cast(), &mut len) };
    let len = bytes.len().min(len as usize);
    (result == 0).then(|| path_in(&bytes[..len]).is_some())
}

/// Returns whether a bound socket that begins to listen may take twins.
pub(crate) fn may_listen(fd: c_int) -> bool {
    let adds = |name| address::option(fd, libc::SOL_SOCKET, name).is_some_and(|value| value != 0);
    has_path(fd, real::getsockname) == Some(true)
        && ![libc::SO_PASSCRED, libc::SO_PASSSEC, SO_PASSPIDFD].into_iter().any(adds)
}

/// Returns whether an inherited socket is connected: then whether it may have a twin.
pub(crate) fn connected(fd: c_int) -> Option<bool> {
    let peer = has_path(fd, real::getpeername)?;
    Some(peer || has_path(fd, real::getsockname) == Some(true))
}

/// Writes the peer's address, if it has one, as the kernel does with each message; returns its length.
///
/// # Safety
/// `room` bytes at `at` may be written.
pub(crate) unsafe fn write_sender(fd: c_int, at: *mut c_void, room: socklen_t) -> socklen_t {
    let mut len = room;
    // SAFETY: the caller's promise.
    let result = unsafe { real::getpeername(fd, at.cast(), &mut len) };
    if result == 0 && len as usize > PATH_AT {
        len
    } else {
        0
    }
}

/// Adds the credentials of the peer to a message, as the kernel does for a socket with `SO_PASSCRED`.
///
/// # Safety
/// `message` is one, with room as it says.
pub(crate) unsafe fn add_credentials(fd: c_int, message: *mut msghdr, room: usize) {
    if room == 0 || address::option(fd, libc::SOL_SOCKET, libc::SO_PASSCRED) != Some(1) {
        return;
    }
    // SAFETY: zeroes are a value; the sizes are right; the control part has so much room.
    unsafe {
        let mut peer: libc::ucred = std::mem::zeroed();
        let mut len = size_of::<libc::ucred>() as socklen_t;
        let at: *mut c_void = (&raw mut peer).cast();
        let space = libc::CMSG_SPACE(len) as usize;
        if real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len) != 0 {
            return;
        }
        if room < space {
            (*message).msg_flags |= libc::MSG_CTRUNC;
            return;
        }
        (*message).msg_controllen = space as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_CREDENTIALS;
        (*header).cmsg_len = libc::CMSG_LEN(len) as _;
        libc::CMSG_DATA(header).cast::<libc::ucred>().write_unaligned(peer);
    }
}
