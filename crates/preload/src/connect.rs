//! Steps of `connect` on a socket of the table: a connection without the kernel, the driver's answer, the kernel's handshake, and what
//! the connection becomes. Steps return verdicts, on which [`connect`] acts.
use crate::call::{aside, checked, errno, Failure, Outcome};
use crate::entry::Entry;
use crate::fabric::NoTwin;
use crate::fallback_cache::Place;
use crate::log::note;
use crate::lookup::attach_twin;
use crate::short::{connecting, reuse};
use crate::twin::Twin;
use crate::unix::connecting::connect_to_file;
use crate::{address, ending, fabric, lookup, port, real, table};
use libc::{c_int, sockaddr, socklen_t};
use pd_client::core::{outside, KernelReason, Socket};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Longest handshake of the kernel, on one host, before the connection is left to the kernel.
const HANDSHAKE_MS: c_int = 5;

/// Answer of the driver, or of what is known without asking it.
enum Verdict {
    /// The connection has a twin with this end.
    Twin(Arc<Socket>),
    /// The kernel carries the connection. `may_be_mapped`: the driver was not asked, and may know the address from a map.
    Kernel { reason: KernelReason, may_be_mapped: bool },
    /// The policy denies the connection, with this errno.
    Denied(c_int),
    /// The address means one of another network, to which the kernel has no way.
    Mapped,
}

/// Result of the kernel's `connect`.
struct Handshake {
    result: c_int,
    errno: c_int,
}

/// Returns why a connection to the address, if it is one of an IP socket, is not worth a look. Errno stays as it is.
///
/// # Safety
/// The requirements of `connect`.
pub(crate) unsafe fn unreachable(address: *const sockaddr, len: socklen_t) -> Option<KernelReason> {
    let mut reason = None;
    // SAFETY: the caller's promise.
    aside(|| reason = unsafe { address::parse(address, len) }.and_then(fabric::unreachable));
    reason
}

/// Connects to where the kernel has found no way, if the address is one of a map. The driver was not asked before, as things stood.
///
/// # Safety
/// The requirements of `connect`.
pub(crate) unsafe fn connect_if_mapped(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    let to = unsafe { address::parse(address, len) }.ok_or(Failure::Plain)?;
    if !fabric::is_mapped(fd, to) {
        return Err(Failure::Plain);
    }
    let entry = lookup::find(fd).ok_or(Failure::Plain)?;
    connecting::connect_across(fd, &entry, to)
}

/// Connects a socket of the table.
///
/// # Safety
/// The requirements of `connect`.
pub(crate) unsafe fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> Outcome<c_int> {
    let entry = lookup::found(fd)?;
    if let Some(twin) = entry.twin() {
        // SAFETY: the caller's promise.
        return unsafe { connect_connected(fd, &entry, twin, address, len) };
    }
    let socket = entry.socket().ok_or(Failure::Plain)?;
    if socket.unix.load(Ordering::Relaxed) && socket.is_fresh() {
        // SAFETY: the caller's promise.
        return unsafe { connect_to_file(fd, &entry, address, len) };
    }
    // SAFETY: the caller's promise.
    let to = unsafe { address::parse(address, len) };
    let unfit = socket.unfit();
    if let Some(to) = to.filter(|_| socket.is_fresh() && unfit.is_none()) {
        match connecting::connect(fd, &entry, to) {
            Err(Failure::Plain) => socket.facts.leave_to_kernel(),
            connected => return connected,
        }
    }
    reuse::renew(&entry);
    let to = to.filter(|_| socket.is_fresh()).ok_or(Failure::Plain)?;
    let verdict = match unfit {
        Some(reason) => Verdict::Kernel { reason, may_be_mapped: false },
        None => ask_driver(fd, to),
    };
    let (end, may_be_mapped) = match verdict {
        Verdict::Denied(errno) => return Err(Failure::Errno(errno)),
        Verdict::Mapped => return connecting::connect_across(fd, &entry, to),
        Verdict::Twin(end) => (Ok(end), false),
        Verdict::Kernel { reason, may_be_mapped } => (Err(reason), may_be_mapped),
    };
    // SAFETY: the caller's promise.
    let result = outside(|| unsafe { real::connect(fd, address, len) });
    let handshake = Handshake { result, errno: errno() };
    settle(fd, &entry, to, end, &handshake);
    match handshake {
        Handshake { result: 0, .. } => Ok(0),
        Handshake { errno: libc::EHOSTUNREACH, .. } if may_be_mapped && fabric::is_mapped(fd, to) => {
            connecting::connect_across(fd, &entry, to)
        }
        Handshake { errno, .. } => Err(Failure::Errno(errno)),
    }
}

/// Asks the driver for a twin of the connection, unless the answer is known.
fn ask_driver(fd: c_int, to: SocketAddr) -> Verdict {
    let known = fabric::unreachable(to)
        // The kernel refuses to connect it again.
        .or_else(|| address::peer(fd).map(|_| KernelReason::Refused))
        .or_else(|| (!port::give(fd)).then_some(KernelReason::NoPort));
    if let Some(reason) = known {
        return Verdict::Kernel { reason, may_be_mapped: true };
    }
    match fabric::connect(fd, to) {
        Ok(end) => Verdict::Twin(end),
        Err(NoTwin::Denied(errno)) => Verdict::Denied(errno),
        Err(NoTwin::Mapped) => Verdict::Mapped,
        Err(NoTwin::Kernel(reason)) => Verdict::Kernel { reason, may_be_mapped: false },
    }
}

/// Gives the connection its twin if the kernel's handshake is over or will be. Leaves the connection to the kernel otherwise.
fn settle(
    fd: c_int,
    entry: &Arc<Entry>,
    to: SocketAddr,
    end: Result<Arc<Socket>, KernelReason>,
    handshake: &Handshake,
) {
    let reason = match end {
        Ok(end) if handshake.ends_well(fd, &end) => {
            note!("descriptor {fd}: connected to {to} on the fabric");
            attach_twin(entry, Twin::new(fd, end, true).towards(Place::Address(to)));
            return;
        }
        Ok(end) => {
            note!("descriptor {fd}: kernel TCP to {to}");
            let _ = end.close();
            KernelReason::PeerSlow
        }
        Err(reason) => reason,
    };
    if handshake.result == 0 || handshake.errno == libc::EINPROGRESS {
        fabric::stays_on_kernel(fd, reason);
        // Nothing to do with the library any more.
        table::give_up(entry);
    }
}

impl Handshake {
    /// Tells whether the kernel's connection is there, or will be: the peer has taken the twin.
    fn ends_well(&self, fd: c_int, end: &Socket) -> bool {
        self.result == 0
            || ([libc::EINPROGRESS, libc::EINTR].contains(&self.errno)
                && (is_established(fd) || !fabric::withdraw(end)))
    }
}

/// Connects a connected socket: an error, unless it undoes the connection.
///
/// # Safety
/// The requirements of `connect`.
unsafe fn connect_connected(
    fd: c_int,
    entry: &Arc<Entry>,
    twin: &Twin,
    address: *const sockaddr,
    len: socklen_t,
) -> Outcome<c_int> {
    if twin.names.is_some() {
        // SAFETY: the caller's promise.
        let family = unsafe { address::family(address, len) };
        return connecting::connect_again(entry, twin, family);
    }
    // SAFETY: the caller's promise.
    let result = checked(outside(|| unsafe { real::connect(fd, address, len) }))?;
    if address::peer(fd).is_none() {
        ending::undo(entry);
    }
    Ok(result)
}

/// Waits a moment for the kernel's handshake.
fn is_established(fd: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { real::poll(&mut poll, 1, HANDSHAKE_MS) };
    address::peer(fd).is_some()
}
