//! The library's questions to the driver, all in one place.
use crate::call::{Failure, Outcome};
use crate::fallback_cache::{self, now_ns, File, Place};
use crate::log::note;
use crate::{address, confined, file_lock, heap, unseen};
use libc::c_int;
use pd_client::core::{sleep_for, twin, KernelReason, Patience, Socket, Takes};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Time without attempts to attach after the driver was not there.
const ABSENT_FOR: Duration = Duration::from_secs(2);
/// Time for which a process that is to take a connection over tries to attach while the driver has no room for it, and time
/// between attempts.
pub(crate) const ROOM_WITHIN: Duration = Duration::from_secs(10);
pub(crate) const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_millis(5);
/// Marks addresses that were tried without a kernel connection.
const SHORT: &str = "short";

static ABSENT_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

/// The errno of the last attempt to attach; 0: it came to something. Each is said once, until it is another.
static REFUSED_WITH: AtomicI32 = AtomicI32::new(0);

/// Returns the reason for which no connection of this process is to be tried. Attaches, if the process is not attached.
fn unavailable() -> Option<KernelReason> {
    if unseen::is_found() {
        return Some(KernelReason::UnseenWait);
    }
    if heap::is_low() {
        return Some(KernelReason::NoMemory);
    }
    match reaches_driver() && !confined::is_barren() {
        true => None,
        false if REFUSED_WITH.load(Ordering::Relaxed) == libc::EACCES => Some(KernelReason::NotLetIn),
        false => Some(KernelReason::NoDriver),
    }
}

/// Returns whether there is a driver for connections that are on the fabric already. Attaches, if the process is not attached.
pub(crate) fn reaches_driver() -> bool {
    now_ns() >= ABSENT_UNTIL_NS.load(Ordering::Relaxed) && attaches()
}

/// Attaches, if the process is not attached.
fn attaches() -> bool {
    let attached = pd_client::core::attach();
    match &attached {
        Ok(()) => REFUSED_WITH.store(0, Ordering::Relaxed),
        Err(error) => {
            if REFUSED_WITH.swap(error.errno(), Ordering::Relaxed) != error.errno() {
                note!("connections are the kernel's for now: {error}");
            }
            ABSENT_UNTIL_NS.store(now_ns() + ABSENT_FOR.as_nanos() as u64, Ordering::Relaxed);
        }
    }
    attached.is_ok()
}

/// Returns the reason for which a connection to `to` is not worth a try, if there is one.
pub(crate) fn unreachable(to: SocketAddr) -> Option<KernelReason> {
    if !address::is_eligible(to) {
        return Some(KernelReason::Address);
    }
    fallback_cache::holds(Place::Address(to)).or_else(unavailable)
}

/// Returns whether one without a kernel connection is worth a try.
pub(crate) fn may_reach_short(to: SocketAddr) -> bool {
    address::is_eligible(to) && fallback_cache::holds((to, SHORT)).or_else(unavailable).is_none()
}

/// Connections of a process that are all named; of the others a part. Many are short-lived, and have no system call to spare.
const NAMED: u32 = 256;
const NAMED_ONE_IN: u32 = 16;

/// Reports to the driver the reason for which the connection of `fd` is the kernel's.
pub(crate) fn stays_on_kernel(fd: c_int, reason: KernelReason) {
    static SAID: AtomicU32 = AtomicU32::new(0);
    let said = SAID.fetch_add(1, Ordering::Relaxed);
    let of_many = matches!(
        reason,
        KernelReason::ShortLived
            | KernelReason::PeerPlain
            | KernelReason::PeerWithout
            | KernelReason::NoDriver
            | KernelReason::NotLetIn
    );
    if of_many && said >= NAMED && said % NAMED_ONE_IN != 0 {
        return pd_client::core::stays_on_kernel(reason, 0);
    }
    // SAFETY: room for what the call writes; zeroes are a value of it.
    let inode = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(fd, &mut status);
        status.st_ino
    };
    // The kernel's numbers of sockets have 32 bits.
    pd_client::core::stays_on_kernel(reason, inode as u32);
}

/// Makes a socket beside the kernel's, does `work` with it, and lets its calls not wait. Closes it if `work` fails.
fn beside_kernel(
    v6: bool,
    work: impl FnOnce(&Socket) -> pd_client::Result<()>,
) -> pd_client::Result<Arc<Socket>> {
    let socket = Socket::beside_kernel(v6)?;
    match work(&socket) {
        Ok(()) => {
            socket.set_nonblocking(true);
            Ok(socket)
        }
        Err(error) => socket.close().and(Err(error)),
    }
}

/// A connection to `to` without one of the kernel's, if somebody takes such there and the policy allows it.
pub(crate) fn connect_short(to: SocketAddr) -> Outcome<Arc<Socket>> {
    take_short(to, beside_kernel(to.is_ipv6(), |socket| socket.connect(to)))
}

/// Begins such a connection: see [`Socket::begin_connect`].
pub(crate) fn begin_short(to: SocketAddr) -> Outcome<Arc<Socket>> {
    take_short(to, beside_kernel(to.is_ipv6(), |socket| socket.begin_connect(to)))
}

fn take_short(to: SocketAddr, connected: pd_client::Result<Arc<Socket>>) -> Outcome<Arc<Socket>> {
    match connected {
        Ok(socket) => Ok(socket),
        Err(error) if denial(error.errno()) == Some(libc::EACCES) => {
            note!("to {to} not at all: {error}");
            Err(Failure::Errno(libc::EACCES))
        }
        Err(error) => {
            refuse_short(to, &error);
            Err(Failure::Plain)
        }
    }
}

/// Nobody takes such connections at `to`.
pub(crate) fn refuse_short(to: SocketAddr, error: &pd_client::Error) {
    note!("to {to} not on the fabric alone: {error}");
    fallback_cache::refused((to, SHORT), KernelReason::of_errno(error.errno()));
}

/// A listener of the fabric's beside the kernel's.
pub(crate) fn listen_short(
    fd: c_int,
    local: SocketAddr,
    v6_only: bool,
    backlog: u32,
    takes: Takes,
) -> Option<Arc<Socket>> {
    if fallback_cache::holds((local, SHORT)).or_else(unavailable).is_some() {
        return None;
    }
    let listen = |socket: &Socket| {
        if v6_only && local.is_ipv6() {
            socket.set_v6_only(true)?;
        }
        socket.bind(local)?;
        socket.set_takes(takes)?;
        socket.listen(backlog)
    };
    match beside_kernel(local.is_ipv6(), listen) {
        Ok(socket) => Some(socket),
        Err(error) => {
            note!("descriptor {fd} takes no short connections: {error}");
            fallback_cache::refused((local, SHORT), KernelReason::of_errno(error.errno()));
            None
        }
    }
}

/// A listener that the driver knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listening {
    /// The listener is in a network of the policy's: connections may come to it that the kernel cannot bring.
    pub(crate) in_a_network: bool,
}

/// The kernel listener also takes connections with twins. None if that cannot be, for now; the driver's errno if it refuses.
pub(crate) fn listen(fd: c_int) -> Result<Option<Listening>, c_int> {
    if unavailable().is_some() {
        return Ok(None);
    }
    twin::listen(borrow(fd)).map(|in_a_network| Some(Listening { in_a_network })).map_err(|error| {
        note!("descriptor {fd} listens on kernel TCP only: {error}");
        error.errno()
    })
}

/// The listener is about to be closed in this process.
pub(crate) fn unlisten(fd: c_int) {
    // Without a driver there is nothing to take back.
    let _ = twin::unlisten(borrow(fd));
}

/// Reason for which a connection has no twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTwin {
    /// The connection is the kernel's.
    Kernel(KernelReason),
    /// The policy does not allow it on any way: this errno is the program's.
    Denied(c_int),
    /// The address means one of another network, to which the kernel has no way.
    Mapped,
}

impl From<KernelReason> for NoTwin {
    fn from(reason: KernelReason) -> Self {
        Self::Kernel(reason)
    }
}

/// The errno of `connect` if the driver's is a policy's: a denial, or a quota, which has another errno there than limits of the process.
/// A driver that has not let the process in says nothing of its connections.
pub(crate) fn denial(errno: c_int) -> Option<c_int> {
    if !pd_client::core::is_attached() {
        return None;
    }
    match errno {
        libc::EACCES => Some(libc::EACCES),
        libc::EDQUOT => Some(libc::EMFILE),
        _ => None,
    }
}

/// A twin for the connection that `fd`, which has its local port, is about to make to `to`.
pub(crate) fn connect(fd: c_int, to: SocketAddr) -> Result<Arc<Socket>, NoTwin> {
    match twin::connect(borrow(fd), to) {
        Ok(socket) => {
            socket.set_nonblocking(true);
            Ok(socket)
        }
        Err(error) if error.errno() == libc::EREMOTE => Err(NoTwin::Mapped),
        Err(error) => {
            note!("to {to} not on the fabric: {error}");
            if let Some(errno) = denial(error.errno()) {
                // Asked anew each time: policies change.
                return Err(NoTwin::Denied(errno));
            }
            let reason = KernelReason::of_errno(error.errno());
            fallback_cache::refused(Place::Address(to), reason);
            Err(NoTwin::Kernel(reason))
        }
    }
}

/// Tells whether `to` means an address of another network. For a connection that the kernel has no way for, and of which the driver has
/// not been asked.
pub(crate) fn is_mapped(fd: c_int, to: SocketAddr) -> bool {
    if !address::is_eligible(to) || unavailable().is_some() {
        return false;
    }
    match twin::connect(borrow(fd), to) {
        Ok(end) => {
            let _ = end.close();
            false
        }
        Err(error) => error.errno() == libc::EREMOTE,
    }
}

/// A connection without one of the kernel's from `local`, where that has a port, to `to`, which means an address of another network.
///
/// # Errors
/// The errno for the program; `EAGAIN` if the listener's backlog has no room.
pub(crate) fn connect_mapped(local: SocketAddr, to: SocketAddr) -> Result<Arc<Socket>, c_int> {
    let connect = |socket: &Socket| {
        if local.port() != 0 {
            let bound = socket.bind(local);
            // The port alone is the library's choice, as a rule, and any other will do.
            bound.or_else(|error| if local.ip().is_unspecified() { Ok(()) } else { Err(error) })?;
        }
        socket.connect(to)
    };
    beside_kernel(to.is_ipv6(), connect).map_err(|error| {
        note!("to {to}, in another network, not now: {error}");
        match error.errno() {
            errno @ (libc::ECONNREFUSED | libc::EACCES | libc::EMFILE | libc::EAGAIN) => errno,
            errno @ (libc::EADDRNOTAVAIL | libc::EADDRINUSE | libc::ENOBUFS) => errno,
            _ => libc::EHOSTUNREACH,
        }
    })
}

/// The twin that came with an accepted connection, if one did. `is_told`: the driver tells when there may be one.
pub(crate) fn claim(fd: c_int, is_told: bool) -> Result<Arc<Socket>, KernelReason> {
    if heap::is_low() {
        return Err(KernelReason::NoMemory);
    }
    let claimed = if is_told { twin::claim(borrow(fd)) } else { twin::claim_again(borrow(fd)) };
    match claimed {
        Ok(socket) => {
            let socket = socket.ok_or(KernelReason::PeerPlain)?;
            socket.set_nonblocking(true);
            Ok(socket)
        }
        Err(error) => {
            note!("descriptor {fd} has no twin: {error}");
            Err(KernelReason::of_errno(error.errno()))
        }
    }
}

/// Result of [`take`].
pub(crate) enum Taken {
    /// The twin, from now on this process's.
    Twin(Arc<Socket>),
    /// The connection is this process's already.
    Own,
    /// The connection has gone on in the kernel.
    Departed,
    /// The connection has none, or none that can be had.
    None,
    /// The connection has one that cannot be had now, for this errno.
    NotNow(c_int),
}

/// Returns whether a process that tries again may have more luck: others end, and make room.
pub(crate) fn lacks_room(errno: c_int) -> bool {
    [libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::ENFILE, libc::EUSERS].contains(&errno)
}

/// The twin of a connection that another process had, and that is known to have one: it is worth to wait for room.
pub(crate) fn take(fd: c_int) -> Taken {
    let mut patience = Patience::new(ROOM_WITHIN);
    loop {
        let taken = take_now(fd, true);
        let may_get = matches!(taken, Err(errno) if lacks_room(errno));
        if !(may_get && patience.lasts()) {
            return taken.unwrap_or(Taken::None);
        }
        sleep_for(LOOK_FOR_ROOM_EVERY);
    }
}

/// The twin of a connection of which this process knows nothing. One whose file is marked has a twin, and is never taken for the kernel's.
pub(crate) fn take_unknown(fd: c_int) -> Taken {
    match take_now(fd, false) {
        Ok(taken) => return taken,
        Err(_) if !file_lock::is_marked(fd) => return Taken::None,
        Err(_) => {}
    }
    take_now(fd, true).unwrap_or_else(|errno| match errno {
        // Without the driver there is no twin any more.
        libc::ENETDOWN => Taken::None,
        errno => Taken::NotNow(errno),
    })
}

/// The twin of a connection that another process had, or the errno for which it cannot be had now. `at_once`: also soon after the driver was not there, or had no room.
fn take_now(fd: c_int, at_once: bool) -> Result<Taken, c_int> {
    let attached = if at_once { attaches() } else { reaches_driver() };
    if !attached {
        return Err(REFUSED_WITH.load(Ordering::Relaxed));
    }
    match twin::take(borrow(fd)) {
        Ok(Some(socket)) => {
            socket.set_nonblocking(true);
            Ok(Taken::Twin(socket))
        }
        Ok(None) => Ok(Taken::None),
        Err(error) if error.errno() == libc::EALREADY => Ok(Taken::Own),
        Err(error) if error.errno() == libc::EREMCHG => Ok(Taken::Departed),
        Err(error) => {
            note!("descriptor {fd}: the connection cannot be taken over: {error}");
            Err(error.errno())
        }
    }
}

/// A twin for the AF_UNIX connection that `fd` is about to make to the file at `path`.
pub(crate) fn connect_unix(fd: c_int, path: &Path, file: File) -> Result<Arc<Socket>, NoTwin> {
    if let Some(reason) = fallback_cache::holds(Place::File(file)).or_else(unavailable) {
        return Err(NoTwin::Kernel(reason));
    }
    match twin::connect_unix(borrow(fd), path) {
        Ok(socket) => {
            socket.set_nonblocking(true);
            Ok(socket)
        }
        Err(error) => {
            note!("to {} not on the fabric: {error}", path.display());
            if let Some(errno) = denial(error.errno()) {
                return Err(NoTwin::Denied(errno));
            }
            let reason = KernelReason::of_errno(error.errno());
            fallback_cache::refused(Place::File(file), reason);
            Err(NoTwin::Kernel(reason))
        }
    }
}

/// A twin for a connection that had one before, and was made to `to` by this process.
pub(crate) fn offer(fd: c_int, to: Place) -> Option<Arc<Socket>> {
    if unavailable().is_some() {
        return None;
    }
    let socket = match to {
        Place::Address(to) => twin::connect(borrow(fd), to),
        Place::File(file) => twin::connect_again(borrow(fd), file),
    };
    unblocked(fd, socket.map(Some))
}

/// The twin that the peer of such a connection offers, if it does.
pub(crate) fn claim_again(fd: c_int) -> Option<Arc<Socket>> {
    if unavailable().is_some() {
        return None;
    }
    unblocked(fd, twin::claim_again(borrow(fd)))
}

fn unblocked(fd: c_int, socket: pd_client::Result<Option<Arc<Socket>>>) -> Option<Arc<Socket>> {
    match socket {
        Ok(socket) => socket.inspect(|socket| socket.set_nonblocking(true)),
        Err(error) => {
            note!("descriptor {fd} does not come back: {error}");
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
