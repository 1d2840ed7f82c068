//! AF_UNIX stream connections to a file. They have twins as TCP connections have, and one rule more: a message
//! with descriptors or credentials goes over the kernel, and with it the connection, for good ([`crate::aside`]).
//!
//! Sockets without a file (abstract names, socket pairs) are the kernel's alone.
use crate::call::{errno, Failure, Outcome};
use crate::entry::Entry;
use crate::fabric::NoTwin;
use crate::fallback_cache::{File, Place};
use crate::log::note;
use crate::lookup::attach_twin;
use crate::twin::Twin;
use crate::{address, fabric, real, table};
use libc::{c_int, c_void, msghdr, sockaddr, sockaddr_un, socklen_t};
use pd_client::core::{outside, KernelReason};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Of the kernel's interface, not in `libc` everywhere.
const SO_PASSPIDFD: c_int = 76;
/// Where the path begins in an address.
const PATH_AT: usize = size_of::<libc::sa_family_t>();

/// Whether `socket` makes one that may get a twin.
pub(crate) fn is_kind(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    domain == libc::AF_UNIX && kind & 0xf == libc::SOCK_STREAM && protocol == 0
}

/// Whether the descriptor is one of these.
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

/// Whether a bound socket that begins to listen may take twins.
pub(crate) fn may_listen(fd: c_int) -> bool {
    let adds = |name| address::option(fd, libc::SOL_SOCKET, name).is_some_and(|value| value != 0);
    has_path(fd, real::getsockname) == Some(true)
        && ![libc::SO_PASSCRED, libc::SO_PASSSEC, SO_PASSPIDFD].into_iter().any(adds)
}

/// Whether an inherited socket is connected: then whether it may have a twin.
pub(crate) fn connected(fd: c_int) -> Option<bool> {
    let peer = has_path(fd, real::getpeername)?;
    Some(peer || has_path(fd, real::getsockname) == Some(true))
}

/// `connect`.
///
/// # Safety
/// As for `connect`.
pub(crate) unsafe fn connect(
    fd: c_int,
    entry: &Arc<Entry>,
    address: *const sockaddr,
    len: socklen_t,
) -> Outcome<c_int> {
    let socket = entry.socket().ok_or(Failure::Plain)?;
    let end = match socket.unfit() {
        Some(reason) => Err(reason),
        // SAFETY: the caller's address.
        None => match unsafe { twin_towards(fd, address, len) } {
            Err(NoTwin::Denied(errno)) => return Err(Failure::Errno(errno)),
            Err(NoTwin::Kernel(reason)) => Err(reason),
            Ok(end) => Ok(end),
        },
    };
    // SAFETY: the caller's promise.
    let result = outside(|| unsafe { real::connect(fd, address, len) });
    let failed = errno();
    match (end, result) {
        (Ok((end, file)), 0) => {
            note!("descriptor {fd}: connected to a file on the fabric");
            attach_twin(fd, Twin::new(fd, end, true).towards(Place::File(file)));
        }
        (Ok((end, _)), _) => {
            fabric::withdraw(&end);
            let _ = end.close();
        }
        (Err(reason), 0) => {
            fabric::stays_on_kernel(fd, reason);
            table::give_up(entry);
        }
        (Err(_), _) => {}
    }
    match result {
        0 => Ok(0),
        _ => Err(Failure::Errno(failed)),
    }
}

unsafe fn twin_towards(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<(Arc<pd_client::core::Socket>, File), NoTwin> {
    // SAFETY: the caller's address.
    let bytes = unsafe {
        if address::family(address, len) != libc::AF_UNIX || len as usize > size_of::<sockaddr_un>() {
            return Err(KernelReason::Address.into());
        }
        std::slice::from_raw_parts(address.cast::<u8>(), len as usize)
    };
    let path = path_in(bytes).ok_or(KernelReason::Address)?;
    let status = std::fs::metadata(path).map_err(|_| KernelReason::Address)?;
    let file = (status.dev(), status.ino());
    fabric::connect_unix(fd, path, file).map(|end| (end, file))
}

/// A message with more than bytes is about to be sent, which only the kernel can.
pub(crate) fn leave_for_control(entry: &Arc<Entry>, twin: &Twin) -> Outcome<()> {
    Err(twin.for_kernel(entry, KernelReason::ControlData, libc::EOPNOTSUPP))
}

/// Writes the peer's address, if it has one, as the kernel does with each message; returns its length.
///
/// # Safety
/// So much room is at `at`.
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

/// What the kernel would add to a message of a socket with `SO_PASSCRED`: whom the connection is to.
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
