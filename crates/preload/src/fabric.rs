//! What the library asks of the driver, all in one place.
use crate::address;
use crate::log::note;
use crate::refusals::{self, now_ns, Place};
use crate::unix::File;
use crate::unseen;
use libc::c_int;
use pd_client::core::{twin, Socket};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// How long a driver that was not there is not asked for again.
const ABSENT_FOR: Duration = Duration::from_secs(2);
/// Marks addresses that were tried without a kernel connection.
const SHORT: &str = "short";

static ABSENT_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// Whether there is a driver, as far as is known; attaches at first.
fn available() -> bool {
    if unseen::is_found() {
        return false;
    }
    reaches_driver()
}

/// The same for what is on the fabric already.
fn reaches_driver() -> bool {
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

/// Whether a connection to `to` is worth a try.
pub(crate) fn may_reach(to: SocketAddr) -> bool {
    address::is_eligible(to) && !refusals::holds(Place::Address(to)) && available()
}

/// The same for one without a kernel connection.
pub(crate) fn may_reach_short(to: SocketAddr) -> bool {
    address::is_eligible(to) && !refusals::holds((to, SHORT)) && available()
}

/// A connection to `to` without one of the kernel's, if somebody takes such there.
pub(crate) fn connect_short(to: SocketAddr) -> Option<Arc<Socket>> {
    let connected = Socket::beside_kernel(to.is_ipv6()).and_then(|socket| match socket.connect(to) {
        Ok(()) => Ok(socket),
        Err(error) => socket.close().and(Err(error)),
    });
    take_short(to, connected)
}

/// Begins such a connection: see [`Socket::begin_connect`].
pub(crate) fn begin_short(to: SocketAddr) -> Option<Arc<Socket>> {
    let begun = Socket::beside_kernel(to.is_ipv6()).and_then(|socket| match socket.begin_connect(to) {
        Ok(()) => Ok(socket),
        Err(error) => socket.close().and(Err(error)),
    });
    take_short(to, begun)
}

fn take_short(to: SocketAddr, connected: pd_client::Result<Arc<Socket>>) -> Option<Arc<Socket>> {
    match connected {
        Ok(socket) => {
            socket.set_nonblocking(true);
            Some(socket)
        }
        Err(error) => {
            refuse_short(to, &error);
            None
        }
    }
}

/// Nobody takes such connections at `to`.
pub(crate) fn refuse_short(to: SocketAddr, error: &pd_client::Error) {
    note!("to {to} not on the fabric alone: {error}");
    refusals::refused((to, SHORT));
}

/// A listener of the fabric's beside the kernel's.
pub(crate) fn listen_short(fd: c_int, local: SocketAddr, v6_only: bool, backlog: u32) -> Option<Arc<Socket>> {
    if refusals::holds((local, SHORT)) || !available() {
        return None;
    }
    let listen = |socket: &Socket| {
        if v6_only && local.is_ipv6() {
            socket.set_v6_only(true)?;
        }
        socket.bind(local)?;
        socket.listen(backlog)
    };
    let listening = Socket::beside_kernel(local.is_ipv6()).and_then(|socket| match listen(&socket) {
        Ok(()) => Ok(socket),
        Err(error) => socket.close().and(Err(error)),
    });
    match listening {
        Ok(socket) => {
            socket.set_nonblocking(true);
            Some(socket)
        }
        Err(error) => {
            note!("descriptor {fd} takes no short connections: {error}");
            refusals::refused((local, SHORT));
            None
        }
    }
}

/// The kernel listener also takes connections with twins. False if that cannot be, for now.
pub(crate) fn listen(fd: c_int) -> bool {
    if !available() {
        return false;
    }
    match twin::listen(borrow(fd)) {
        Ok(()) => true,
        Err(error) => {
            note!("descriptor {fd} listens on kernel TCP only: {error}");
            false
        }
    }
}

/// The listener is about to be closed in this process.
pub(crate) fn unlisten(fd: c_int) {
    // Without a driver there is nothing to take back.
    let _ = twin::unlisten(borrow(fd));
}

/// A twin for the connection that `fd`, which has its local port, is about to make to `to`.
pub(crate) fn connect(fd: c_int, to: SocketAddr) -> Option<Arc<Socket>> {
    match twin::connect(borrow(fd), to) {
        Ok(socket) => {
            socket.set_nonblocking(true);
            Some(socket)
        }
        Err(error) => {
            note!("to {to} by kernel TCP: {error}");
            refusals::refused(Place::Address(to));
            None
        }
    }
}

/// The twin that came with an accepted connection, if one did.
pub(crate) fn claim(fd: c_int) -> Option<Arc<Socket>> {
    match twin::claim(borrow(fd)) {
        Ok(socket) => socket.inspect(|socket| socket.set_nonblocking(true)),
        Err(error) => {
            note!("descriptor {fd} has no twin: {error}");
            None
        }
    }
}

/// What [`take`] has found.
pub(crate) enum Taken {
    /// The twin, from now on this process's.
    Twin(Arc<Socket>),
    /// It is this process's already.
    Own,
    /// The connection has none, or none that can be had.
    None,
}

/// The twin of a connection that another process had.
pub(crate) fn take(fd: c_int) -> Taken {
    if !reaches_driver() {
        return Taken::None;
    }
    match twin::take(borrow(fd)) {
        Ok(Some(socket)) => {
            socket.set_nonblocking(true);
            Taken::Twin(socket)
        }
        Ok(None) => Taken::None,
        Err(error) if error.errno() == libc::EALREADY => Taken::Own,
        Err(error) => {
            note!("descriptor {fd}: the connection cannot be taken over: {error}");
            Taken::None
        }
    }
}

/// A twin for the AF_UNIX connection that `fd` is about to make to the file at `path`.
pub(crate) fn connect_unix(fd: c_int, path: &Path, file: File) -> Option<Arc<Socket>> {
    if refusals::holds(Place::File(file)) || !available() {
        return None;
    }
    match twin::connect_unix(borrow(fd), path) {
        Ok(socket) => {
            socket.set_nonblocking(true);
            Some(socket)
        }
        Err(error) => {
            note!("to {} by the kernel: {error}", path.display());
            refusals::refused(Place::File(file));
            None
        }
    }
}

/// Takes back a twin that the peer has not claimed; false: it has.
pub(crate) fn withdraw(socket: &Socket) -> bool {
    twin::withdraw(socket).is_ok()
}

fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: the program's, which is in a call on it, or about to close it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
