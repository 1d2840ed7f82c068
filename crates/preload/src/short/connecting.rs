//! Making sockets and connecting them without a connection of the kernel's.
use super::begun::{self, settle};
use super::names::Names;
use super::reuse::renew;
use super::spare::{self, Spare};
use super::{open_to_new, wanted};
use crate::call::{Failure, Outcome};
use crate::entry::Entry;
use crate::log::note;
use crate::lookup::attach_twin;
use crate::twin::Twin;
use crate::{address, ending, fabric, lookup, real};
use libc::c_int;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// A new socket, as `socket` makes it: of a spare one if there is one, or else the kernel's.
///
/// # Safety
/// The requirements of `socket`.
pub(crate) unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> (c_int, Option<Spare>) {
    let tcp = wanted() && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    let family = spare::family(domain, kind).filter(|_| tcp);
    match family.and_then(|v6| spare::take(v6, kind)) {
        Some((fd, spare)) => (fd, Some(spare)),
        // SAFETY: the caller's promise.
        None => (unsafe { real::socket(domain, kind, protocol) }, None),
    }
}

/// `connect` of a socket that is not connected, if somebody listens at `to` in this mode.
pub(crate) fn connect(fd: c_int, entry: &Arc<Entry>, to: SocketAddr) -> Outcome<c_int> {
    let socket = entry.socket().filter(|_| open_to_new()).ok_or(Failure::Plain)?;
    if !fabric::may_reach_short(to) {
        return Err(Failure::Plain);
    }
    let facts = &socket.facts;
    if facts.tried.load(Ordering::Relaxed) {
        return Err(Failure::Plain);
    }
    let (mut nonblocking, mut v6) = (facts.nonblocking(), facts.behind.is_v6());
    let mut timeouts = [0; 2];
    if !facts.untouched.load(Ordering::Relaxed) {
        let (family, local) = address::local(fd).ok_or(Failure::Plain)?;
        if local.port() != 0 || !local.ip().is_unspecified() || address::peer(fd).is_some() {
            return Err(Failure::Plain);
        }
        v6 = family == libc::AF_INET6;
        // SAFETY: only asks.
        nonblocking = unsafe { real::fcntl(fd, libc::F_GETFL, 0) } & libc::O_NONBLOCK != 0;
        timeouts = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].map(|name| address::timeout_ns(fd, name));
    }
    // Whom it has found before it is likely to find again: then it need not wait for that. Who waits already might.
    let begins = nonblocking && begun::has_found(to) && !socket.is_watched();
    let connected = if begins { fabric::begin_short(to) } else { fabric::connect_short(to) };
    let end = connected?;
    let names = Names::new(v6, to, nonblocking);
    names.begun.store(begins, Ordering::Relaxed);
    attach_twin(fd, Twin::alone(end, nonblocking, timeouts, names));
    if begins {
        begun::add(entry);
    } else {
        note!("descriptor {fd}: connected to {to}, on the fabric alone");
        begun::found(to);
    }
    if nonblocking {
        // As over TCP: it is told by `poll` that the connection is there.
        return Err(Failure::Errno(libc::EINPROGRESS));
    }
    Ok(0)
}

/// `connect` on such a connection: an error, unless it undoes the connection.
pub(crate) fn connect_again(fd: c_int, entry: &Arc<Entry>, twin: &Twin, family: c_int) -> Outcome<c_int> {
    settle(entry);
    let names = twin.names.as_ref().filter(|_| !twin.is_abandoned()).ok_or(Failure::Plain)?;
    if family == libc::AF_UNSPEC {
        renew(entry);
        ending::release(fd);
        lookup::adopt(fd, None);
        return Ok(0);
    }
    if names.connecting.swap(false, Ordering::Relaxed) {
        return Ok(0);
    }
    Err(Failure::Errno(libc::EISCONN))
}
