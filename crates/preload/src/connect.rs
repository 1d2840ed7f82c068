//! Steps of `connect` on a socket of the table: a connection without the kernel, the driver's answer, the kernel's handshake, and what
//! the connection becomes. Steps return verdicts, on which [`connect`] acts. The handshake stands alone: it may take long, and be left
//! by a jump or a cancellation.
use crate::call::{self, aside, errno, Failure, Outcome};
use crate::entry::Entry;
use crate::fabric::NoTwin;
use crate::fallback_cache::{File, Place};
use crate::log::note;
use crate::lookup::attach_twin;
use crate::short::{connecting, reuse};
use crate::twin::Twin;
use crate::unix::connecting::{begin_to_file, settle_file};
use crate::{address, ending, fabric, lookup, port, real, table};
use libc::{c_int, sockaddr, socklen_t};
use pd_client::core::{KernelReason, Socket};
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

/// A connection whose handshake with the kernel comes next.
pub(crate) enum Begun {
    /// The call is the kernel's alone.
    Plain,
    /// The socket is connected, and may not be afterwards.
    Connected(Arc<Entry>),
    /// A connection over TCP, with its twin or the reason for which it has none.
    Tcp { entry: Arc<Entry>, to: SocketAddr, end: Result<Offered, KernelReason>, may_be_mapped: bool },
    /// A connection over AF_UNIX.
    File { entry: Arc<Entry>, end: Result<(Offered, File), KernelReason> },
}

/// An end of a twin whose connection is not there yet. Nobody takes it when this is dropped before.
pub(crate) struct Offered {
    end: Arc<Socket>,
    is_kept: bool,
}

impl Offered {
    pub(crate) fn new(end: Arc<Socket>) -> Self {
        Self { end, is_kept: false }
    }

    /// The connection is there.
    pub(crate) fn keep(mut self) -> Arc<Socket> {
        self.is_kept = true;
        self.end.clone()
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if !self.is_kept {
            fabric::withdraw(&self.end);
            let _ = self.end.close();
        }
    }
}

/// `connect` of a socket of the table.
///
/// # Safety
/// The requirements of `connect`.
pub(crate) unsafe fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let mut begun = Begun::Plain;
    // SAFETY: the caller's promise.
    if let Ok(result) = call::begin(|| unsafe { begin(fd, address, len, &mut begun) }) {
        return result;
    }
    // SAFETY: the caller's promise.
    let result = unsafe { real::connect(fd, address, len) };
    let handshake = Handshake { result, errno: errno() };
    call::call(|| begun.settle(fd, &handshake), || result)
}

/// Connects without the kernel ([`Ok`]), or begins to.
///
/// # Safety
/// The requirements of `connect`.
unsafe fn begin(fd: c_int, address: *const sockaddr, len: socklen_t, begun: &mut Begun) -> Outcome<c_int> {
    let entry = lookup::found(fd)?;
    if let Some(twin) = entry.twin() {
        if twin.names.is_some() {
            // SAFETY: the caller's promise.
            let family = unsafe { address::family(address, len) };
            return connecting::connect_again(&entry, twin, family);
        }
        *begun = Begun::Connected(entry);
        return Err(Failure::Plain);
    }
    let socket = entry.socket().ok_or(Failure::Plain)?;
    if socket.unix.load(Ordering::Relaxed) && socket.is_fresh() {
        // SAFETY: the caller's promise.
        let end = unsafe { begin_to_file(fd, socket, address, len) }?;
        *begun = Begun::File { entry, end };
        return Err(Failure::Plain);
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
        Verdict::Twin(end) => (Ok(Offered::new(end)), false),
        Verdict::Kernel { reason, may_be_mapped } => (Err(reason), may_be_mapped),
    };
    *begun = Begun::Tcp { entry, to, end, may_be_mapped };
    Err(Failure::Plain)
}

impl Begun {
    /// Makes of the connection what the handshake allows.
    fn settle(self, fd: c_int, handshake: &Handshake) -> Outcome<c_int> {
        let (result, errno) = (handshake.result, handshake.errno);
        match self {
            Self::Plain => {}
            Self::Connected(entry) => {
                if result == 0 && address::peer(fd).is_none() {
                    ending::undo(&entry);
                }
            }
            Self::File { entry, end } => settle_file(fd, &entry, end, result == 0),
            Self::Tcp { entry, to, end, may_be_mapped } => {
                settle(fd, &entry, to, end, handshake);
                if result != 0 && errno == libc::EHOSTUNREACH && may_be_mapped && fabric::is_mapped(fd, to) {
                    return connecting::connect_across(fd, &entry, to);
                }
            }
        }
        if result == 0 {
            Ok(0)
        } else {
            Err(Failure::Errno(errno))
        }
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
    end: Result<Offered, KernelReason>,
    handshake: &Handshake,
) {
    let reason = match end {
        Ok(offered) if !handshake.ends_well(fd, &offered.end) => {
            note!("descriptor {fd}: kernel TCP to {to}");
            KernelReason::PeerSlow
        }
        Ok(offered) => {
            note!("descriptor {fd}: connected to {to} on the fabric");
            attach_twin(entry, Twin::new(fd, offered.keep(), true).towards(Place::Address(to)));
            return;
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

/// Waits a moment for the kernel's handshake.
fn is_established(fd: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { real::poll(&mut poll, 1, HANDSHAKE_MS) };
    address::peer(fd).is_some()
}
