//! The short-connection mode (`PD_PRELOAD=short`): connections without one of the kernel's beside them. The
//! program's descriptor is a kernel socket that is never connected; a fabric socket connects, is accepted
//! and carries the bytes. Towards addresses where nobody listens in this way, connections have twins as ever.
//!
//! The kernel knows nothing of such a connection, so it cannot be proved to another process: it stays with
//! the process that made it. A process that forks while it has a connection, of this kind or with a twin, or sends one in a message, has no new
//! ones from then on, and neither has the child.
mod begun;
mod listener;
mod names;
mod spare;

pub(crate) use begun::{settle, settle_all};
pub(crate) use listener::{accept, resume, Listening};
pub(crate) use names::Names;
pub(crate) use spare::{alter, keep, renew, Behind, Spare};

use crate::call::{Failure, Outcome};
use crate::entry::{attach_twin, Entry, State};
use crate::log::note;
use crate::twin::Twin;
use crate::{address, fabric, real, table};
use libc::c_int;
use pd_client::core::Socket;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

static WANTED: AtomicBool = AtomicBool::new(false);
static SUSPENDED: AtomicBool = AtomicBool::new(false);

/// Turns the mode on, at start.
pub(crate) fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Whether the mode is on.
#[inline]
pub(crate) fn wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// Whether new connections may be of this kind.
fn open_to_new() -> bool {
    wanted() && !SUSPENDED.load(Ordering::Relaxed)
}

/// From now on new connections have twins, which go from process to process.
fn suspend() {
    if !SUSPENDED.swap(true, Ordering::Relaxed) {
        note!("no more short connections: they could not be handed on");
    }
}

/// A new socket, as `socket` makes it: of a spare one if there is one, or else the kernel's.
///
/// # Safety
/// That of `socket`.
pub(crate) unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> (c_int, Option<Spare>) {
    let tcp = wanted() && (protocol == 0 || protocol == libc::IPPROTO_TCP);
    let family = spare::family(domain, kind).filter(|_| tcp);
    match family.and_then(|v6| spare::take(v6, kind)) {
        Some((fd, spare)) => (fd, Some(spare)),
        // SAFETY: the caller's promise.
        None => (unsafe { real::socket(domain, kind, protocol) }, None),
    }
}

/// A forked child has begun no connections, and has no spare sockets.
pub(crate) fn forget() {
    begun::forget();
    spare::forget();
}

/// What is known of a socket without asking the kernel.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Made here, not bound and without time-outs.
    untouched: AtomicBool,
    /// The kernel was asked to connect it.
    tried: AtomicBool,
    nonblocking: AtomicBool,
    pub(crate) behind: Behind,
}

impl Facts {
    /// It is made just now, with a spare socket of the kernel's or a new one.
    pub(crate) fn made(&self, domain: c_int, kind: c_int, spare: Option<Spare>) {
        self.nonblocking.store(kind & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
        self.behind.made(domain == libc::AF_INET6, spare);
        self.untouched.store(true, Ordering::Relaxed);
    }

    /// It stands for a connection that was accepted with these flags.
    fn accepted(&self, v6: bool, flags: c_int, spare: Option<Spare>) {
        self.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
        self.behind.made(v6, spare);
    }

    /// The program makes calls wait, or not. What the kernel says of a listener's is not always that: see
    /// [`accept`].
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// It gets an address or a time-out: ask the kernel from now on.
    pub(crate) fn touch(&self) {
        self.untouched.store(false, Ordering::Relaxed);
    }

    /// The kernel is asked to connect it, and may not be done when the call returns.
    pub(crate) fn leave_to_kernel(&self) {
        self.tried.store(true, Ordering::Relaxed);
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
    let (mut nonblocking, mut v6) = (facts.nonblocking.load(Ordering::Relaxed), facts.behind.is_v6());
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
        table::release(fd);
        crate::entry::adopt(fd, None);
        return Ok(0);
    }
    if names.connecting.swap(false, Ordering::Relaxed) {
        return Ok(0);
    }
    Err(Failure::Errno(libc::EISCONN))
}

/// Before a fork.
pub(crate) fn before_fork() {
    if !wanted() {
        return;
    }
    settle_all();
    let mut seen = HashSet::new();
    for fd in (0..table::end()).filter(|&fd| table::look(fd) == table::SOCKET) {
        let Some(entry) = table::entry(fd).filter(|entry| seen.insert(Arc::as_ptr(entry))) else { continue };
        match entry.socket().and_then(|socket| socket.state()) {
            // A later one could not be handed on, as this one can.
            Some(State::Twin(_)) => suspend(),
            Some(State::Listener(listener)) => listener.short.pause(),
            // The child has it, too.
            _ => renew(&entry),
        }
    }
}

/// Whether a message would hand on such a connection, which nobody else could use.
pub(crate) fn refuses_to_pass(fd: c_int) -> bool {
    let alone = |entry: &Arc<Entry>| entry.twin().is_some_and(|twin| twin.names.is_some());
    let Some(entry) = table::entry(fd).filter(|_| table::look(fd) == table::SOCKET) else { return false };
    alter(&entry);
    if entry.twin().is_some() {
        suspend();
    }
    alone(&entry)
}

/// The kernel has accepted a connection, for which there is a twin.
pub(crate) fn has_accepted(from: c_int, accepted: &Arc<Entry>) {
    if !wanted() {
        return;
    }
    let Some(listener) = table::entry(from) else { return };
    if let Some(State::Listener(listener)) = listener.socket().and_then(|socket| socket.state()) {
        listener.short.has_accepted(accepted);
    }
}

/// The fabric end of a listener, for waits.
pub(crate) fn listening(entry: &Arc<Entry>) -> Option<Arc<Socket>> {
    if !wanted() {
        return None;
    }
    match entry.socket()?.state()? {
        State::Listener(listener) => listener.short.opened(),
        State::Twin(_) => None,
    }
}
