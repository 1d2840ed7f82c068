//! What the library asks of the driver, all in one place.
use crate::log::note;
use crate::{address, call};
use libc::c_int;
use pd_client::core::Socket;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a driver that was not there is not asked for again.
const ABSENT_FOR: Duration = Duration::from_secs(2);
/// How long an address where nobody listened is not tried again.
const REFUSED_FOR: Duration = Duration::from_millis(500);
/// Addresses remembered for that.
const REFUSED: usize = 64;

static ABSENT_UNTIL_NS: AtomicU64 = AtomicU64::new(0);
static REFUSALS: [AtomicU64; REFUSED] = [const { AtomicU64::new(0) }; REFUSED];

fn now_ns() -> u64 {
    // SAFETY: room for a time.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Whether there is a driver, as far as is known; attaches at first.
fn available() -> bool {
    if now_ns() < ABSENT_UNTIL_NS.load(Ordering::Relaxed) {
        return false;
    }
    let available = pd_client::core::available();
    if !available {
        note!("no driver; kernel TCP for now");
        ABSENT_UNTIL_NS.store(now_ns() + ABSENT_FOR.as_nanos() as u64, Ordering::Relaxed);
    }
    available
}

/// A word for an address and the time until which it is not to be tried: 24 bits of a hash, 40 bits of
/// milliseconds.
fn refusal(to: SocketAddr) -> (&'static AtomicU64, u64) {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    to.hash(&mut hasher);
    let hash = hasher.finish();
    (&REFUSALS[hash as usize % REFUSED], hash >> 40)
}

fn is_refused(to: SocketAddr) -> bool {
    let (word, hash) = refusal(to);
    let word = word.load(Ordering::Relaxed);
    word >> 40 == hash && word & ((1 << 40) - 1) > now_ns() / 1_000_000
}

fn remember_refusal(to: SocketAddr) {
    let (word, hash) = refusal(to);
    let until_ms = now_ns() / 1_000_000 + REFUSED_FOR.as_millis() as u64;
    word.store(hash << 40 | until_ms & ((1 << 40) - 1), Ordering::Relaxed);
}

/// Whether a connection to `to` is worth a try.
pub(crate) fn may_reach(to: SocketAddr) -> bool {
    address::is_eligible(to) && !is_refused(to) && available()
}

/// The kernel listener also takes fabric connections. False if that cannot be.
pub(crate) fn listen(fd: c_int) -> bool {
    if !available() {
        return false;
    }
    match driver::listen(fd) {
        Ok(()) => true,
        Err(error) => {
            note!("descriptor {fd} listens on kernel TCP only: {error}");
            false
        }
    }
}

/// The listener is closed in this process.
pub(crate) fn unlisten(fd: c_int) {
    driver::unlisten(fd);
}

/// A twin for the connection that `fd`, which has its local port, is about to make to `to`.
pub(crate) fn connect(fd: c_int, to: SocketAddr) -> Option<Arc<Socket>> {
    match driver::connect(fd, to) {
        Ok(socket) => {
            socket.set_nonblocking(true);
            Some(socket)
        }
        Err(error) => {
            note!("to {to} by kernel TCP: {error}");
            remember_refusal(to);
            None
        }
    }
}

/// The twin that came with an accepted connection, if one did.
pub(crate) fn claim(fd: c_int) -> Option<Arc<Socket>> {
    let socket = driver::claim(fd).ok().flatten()?;
    socket.set_nonblocking(true);
    Some(socket)
}

/// The twin of a connection that another process had.
pub(crate) fn take(fd: c_int) -> Option<Arc<Socket>> {
    if !available() {
        return None;
    }
    let socket = driver::take(fd).ok().flatten()?;
    socket.set_nonblocking(true);
    Some(socket)
}

/// This process gives the twin up, another one will take it.
pub(crate) fn release(socket: &Arc<Socket>) {
    driver::release(socket);
}

/// Whether the peer has the twin.
pub(crate) fn is_claimed(socket: &Socket) -> bool {
    driver::is_claimed(socket)
}

/// Takes back a twin that the peer has not claimed; false: it has.
pub(crate) fn withdraw(socket: &Arc<Socket>) -> bool {
    driver::withdraw(socket).unwrap_or(false)
}

/// Stands in for the driver's support of twins, with sockets of its own beside the kernel's. Holds
/// within one process on each side; nothing can be taken over.
mod driver {
    use super::*;
    use pd_client::{Error, Result};

    static LISTENERS: Mutex<Vec<(c_int, SocketAddr, Arc<Socket>)>> = Mutex::new(Vec::new());
    static PENDING: Mutex<Option<HashMap<SocketAddr, Arc<Socket>>>> = Mutex::new(None);

    fn no_address() -> Error {
        Error::invalid("the socket has no address")
    }

    pub(super) fn listen(fd: c_int) -> Result<()> {
        let (_, local) = address::local(fd).ok_or_else(no_address)?;
        let socket = Socket::new(local.is_ipv6())?;
        socket.set_nonblocking(true);
        socket.bind(local)?;
        socket.listen(1024)?;
        crate::entry::lock(&LISTENERS).push((fd, local, socket));
        Ok(())
    }

    pub(super) fn unlisten(fd: c_int) {
        crate::entry::lock(&LISTENERS).retain(|(known, _, socket)| {
            if *known == fd {
                let _ = socket.close();
            }
            *known != fd
        });
    }

    fn source_of(to: SocketAddr) -> Option<IpAddr> {
        let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().ok()?;
        let probe = std::net::UdpSocket::bind(any).ok()?;
        probe.connect(to).ok()?;
        Some(probe.local_addr().ok()?.ip())
    }

    pub(super) fn connect(fd: c_int, to: SocketAddr) -> Result<Arc<Socket>> {
        let (_, local) = address::local(fd).ok_or_else(no_address)?;
        let ip = if local.ip().is_unspecified() { source_of(to) } else { Some(local.ip()) };
        let socket = Socket::new(to.is_ipv6())?;
        let connected = socket
            .bind(SocketAddr::new(ip.ok_or_else(no_address)?, local.port()))
            .and_then(|()| socket.connect(to));
        connected.inspect_err(|_| drop(socket.close()))?;
        Ok(socket)
    }

    pub(super) fn claim(fd: c_int) -> Result<Option<Arc<Socket>>> {
        let (Some((_, local)), Some(peer)) = (address::local(fd), address::peer(fd)) else { return Ok(None) };
        let mut pending = crate::entry::lock(&PENDING);
        let pending = pending.get_or_insert_with(HashMap::new);
        if let Some(socket) = pending.remove(&peer) {
            return Ok(Some(socket));
        }
        let listeners = crate::entry::lock(&LISTENERS);
        let found = listeners.iter().find(|(_, address, _)| {
            address.port() == local.port() && (address.ip() == local.ip() || address.ip().is_unspecified())
        });
        let Some((_, _, listener)) = found else { return Ok(None) };
        while let Ok(socket) = listener.accept() {
            let from = socket.peer_addr()?;
            if from == peer {
                return Ok(Some(socket));
            }
            pending.insert(from, socket);
        }
        Ok(None)
    }

    pub(super) fn take(_fd: c_int) -> Result<Option<Arc<Socket>>> {
        Ok(None)
    }

    pub(super) fn release(socket: &Arc<Socket>) {
        let _ = socket.close();
    }

    pub(super) fn is_claimed(_socket: &Socket) -> bool {
        true
    }

    pub(super) fn withdraw(_socket: &Arc<Socket>) -> Result<bool> {
        call::set_errno(0);
        Ok(false)
    }
}
