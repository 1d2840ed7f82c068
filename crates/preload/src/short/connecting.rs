//! Making sockets and connecting them without a connection of the kernel's.
use super::begun::{self, settle};
use super::names::Names;
use super::reuse::renew;
use super::socket_pool::{self, PooledSocket};
use super::{open_to_new, wanted, ACROSS};
use crate::call::{interrupts, Failure, Outcome};
use crate::entry::Entry;
use crate::log::note;
use crate::lookup::attach_twin;
use crate::sleep::sleep_on;
use crate::twin::{fit_buffers, Twin};
use crate::{address, ending, fabric, real, table};
use libc::c_int;
use pd_client::core::Socket;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between looks for room in a listener's backlog, at first and at last, and the longest wait for it: those of native sockets.
const ROOM_LOOK_FIRST: Duration = Duration::from_millis(1);
const ROOM_LOOK_LAST: Duration = Duration::from_millis(50);
const ROOM_WAIT_MAX: Duration = Duration::from_secs(127);

/// A new socket, as `socket` makes it: of a pooled one if there is one, or else the kernel's.
///
/// # Safety
/// The requirements of `socket`.
pub(crate) unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> (c_int, Option<PooledSocket>) {
    let tcp = wanted() && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    let family = socket_pool::family(domain, kind).filter(|_| tcp);
    match family.and_then(|v6| socket_pool::take(v6, kind)) {
        Some((fd, pooled)) => (fd, Some(pooled)),
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
    // A peer that was found before is likely to be found again, so the call need not wait for it. It does wait if the socket is in an
    // epoll instance already.
    let begins = nonblocking && begun::has_found(to) && !socket.is_watched();
    let connected = if begins { fabric::begin_short(to) } else { fabric::connect_short(to) };
    let end = connected?;
    let names = Names::new(v6, to, nonblocking);
    names.begun.store(begins, Ordering::Relaxed);
    if !attach_twin(entry, Twin::alone(end, nonblocking, timeouts, names)) {
        return Err(Failure::Errno(libc::EISCONN));
    }
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

/// `connect` to an address that means one of another network, to which the kernel has no way. In every mode.
pub(crate) fn connect_across(fd: c_int, entry: &Arc<Entry>, to: SocketAddr) -> Outcome<c_int> {
    let socket = entry.socket().ok_or(Failure::Plain)?;
    let (family, bound) = address::local(fd).ok_or(Failure::Plain)?;
    let v6 = family == libc::AF_INET6;
    if to.is_ipv6() && !v6 {
        return Err(Failure::Plain);
    }
    if v6 && to.is_ipv4() && address::option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1) {
        return Err(Failure::Errno(libc::ENETUNREACH));
    }
    let any: IpAddr = if to.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let local = match bound.ip().is_unspecified() {
        true => SocketAddr::new(any, bound.port()),
        false if bound.is_ipv6() == to.is_ipv6() => bound,
        false => return Err(Failure::Plain),
    };
    let nonblocking = address::is_nonblocking(fd);
    let timeouts = [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].map(|name| address::timeout_ns(fd, name));
    let end = connect_with_room(local, to, (!nonblocking).then_some(timeouts[1]))?;
    // Another thread may have closed the descriptor meanwhile, or connected it.
    let is_same = table::entry(fd).is_some_and(|known| Arc::ptr_eq(&known, entry));
    if !is_same || !socket.is_fresh() {
        let _ = end.close();
        return Err(Failure::Errno(if is_same { libc::EISCONN } else { libc::EBADF }));
    }
    note!("descriptor {fd}: connected to {to}, in another network, on the fabric alone");
    ACROSS.store(true, Ordering::Relaxed);
    // The kernel's socket may have a port now: the next connection gets another socket.
    socket.facts.behind.alter();
    fit_buffers(fd, &end);
    if !attach_twin(entry, Twin::alone(end, nonblocking, timeouts, Names::new(v6, to, nonblocking))) {
        return Err(Failure::Errno(libc::EISCONN));
    }
    if nonblocking {
        return Err(Failure::Errno(libc::EINPROGRESS));
    }
    Ok(0)
}

/// Connects to an address of another network, and waits for room in the listener's backlog, as TCP does. `limit_ns`: none if the program
/// does not wait, and 0 if it waits as long as TCP would.
fn connect_with_room(local: SocketAddr, to: SocketAddr, limit_ns: Option<u64>) -> Outcome<Arc<Socket>> {
    let (mut until, mut pause) = (None, ROOM_LOOK_FIRST);
    loop {
        match fabric::connect_mapped(local, to) {
            Err(libc::EAGAIN) => {}
            result => return result.map_err(Failure::Errno),
        }
        let Some(limit_ns) = limit_ns else { return Err(Failure::Errno(libc::ECONNREFUSED)) };
        let most =
            if limit_ns == 0 { ROOM_WAIT_MAX } else { ROOM_WAIT_MAX.min(Duration::from_nanos(limit_ns)) };
        let left =
            until.get_or_insert_with(|| Instant::now() + most).saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Errno(libc::ETIMEDOUT));
        }
        match sleep_on(Vec::new(), &mut Vec::new(), Some(left.min(pause)), std::ptr::null(), &|| false) {
            Err(Failure::Errno(libc::EINTR)) if !interrupts(limit_ns != 0) => {}
            other => other?,
        }
        pause = (pause * 2).min(ROOM_LOOK_LAST);
    }
}

/// `connect` on such a connection: an error, unless it undoes the connection.
pub(crate) fn connect_again(entry: &Arc<Entry>, twin: &Twin, family: c_int) -> Outcome<c_int> {
    settle(entry);
    let names = twin.names.as_ref().filter(|_| !twin.is_abandoned()).ok_or(Failure::Plain)?;
    if family == libc::AF_UNSPEC {
        renew(entry);
        ending::undo(entry);
        return Ok(0);
    }
    if names.connecting.swap(false, Ordering::Relaxed) {
        return Ok(0);
    }
    Err(Failure::Errno(libc::EISCONN))
}
