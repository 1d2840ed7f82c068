//! Kernel sockets behind short connections that have ended, kept for the next ones. The kernel takes longer to make one and to
//! throw it away than the fabric takes for a connection.
//!
//! The kernel itself connects, binds or listens only with sockets that no connection used before. Another process may still
//! hold a used socket, and would hold that connection open: a child of `vfork` or `posix_spawn` inherits sockets unseen.
use super::open_to_new;
use crate::real;
use libc::{c_int, c_ulong, socklen_t};
use pd_client::core::OwnFd;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Mutex;

/// Sockets that have a second descriptor, at most.
const SPARES_MAX: usize = 128;

/// A kernel socket by a descriptor of the library's, which outlives the program's.
#[derive(Debug)]
pub(crate) struct PooledSocket {
    socket: OwnFd,
    nonblocking: bool,
}

/// IPv4 and IPv6. Nobody waits for a lock on them: a signal handler may close sockets, too, and a forked child has threads' locks.
static POOLS: [Mutex<Vec<PooledSocket>>; 2] = [const { Mutex::new(Vec::new()) }; 2];
static COUNT: AtomicUsize = AtomicUsize::new(0);

impl PooledSocket {
    fn of(fd: c_int) -> Option<Self> {
        if COUNT.fetch_add(1, Ordering::Relaxed) < SPARES_MAX {
            // SAFETY: the program's, which is in `close`.
            if let Some(socket) = OwnFd::copy(unsafe { BorrowedFd::borrow_raw(fd) }) {
                return Some(Self { socket, nonblocking: false });
            }
        }
        COUNT.fetch_sub(1, Ordering::Relaxed);
        None
    }
}

impl Drop for PooledSocket {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Known state of the kernel's socket behind a descriptor.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    v6: AtomicBool,
    /// Tells whether another connection used the socket before.
    used: AtomicBool,
    /// Its second descriptor, if it has one.
    pooled: Mutex<Option<PooledSocket>>,
    nodelay: AtomicBool,
    /// Tells whether the socket was made here and has changed only in ways that are known.
    unaltered: AtomicBool,
}

impl Behind {
    /// A new descriptor of this family, with a pooled socket or a new one.
    pub(super) fn made(&self, v6: bool, pooled: Option<PooledSocket>) {
        self.v6.store(v6, Ordering::Relaxed);
        self.used.store(pooled.is_some(), Ordering::Relaxed);
        self.unaltered.store(true, Ordering::Relaxed);
        if let Ok(mut place) = self.pooled.try_lock() {
            *place = pooled;
        }
    }

    /// Takes over `of` in a forked child, without the pooled socket, which its parent keeps.
    pub(crate) fn again(&self, of: &Self) {
        self.v6.store(of.is_v6(), Ordering::Relaxed);
        self.used.store(of.used.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(super) fn is_v6(&self) -> bool {
        self.v6.load(Ordering::Relaxed)
    }

    /// The program has set TCP_NODELAY.
    pub(crate) fn set_nodelay(&self, nodelay: bool) {
        self.nodelay.store(nodelay, Ordering::Relaxed);
    }

    pub(super) fn alter(&self) {
        self.unaltered.store(false, Ordering::Relaxed);
    }

    /// Returns whether it was another connection's before.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// The descriptor is about to be closed: keeps what is behind it, if that is worth it.
    pub(super) fn keep(&self, fd: c_int, nonblocking: impl FnOnce() -> bool) {
        if !self.unaltered.load(Ordering::Relaxed) {
            return;
        }
        let (Ok(mut known), Ok(mut pool)) =
            (self.pooled.try_lock(), POOLS[usize::from(self.is_v6())].try_lock())
        else {
            return;
        };
        let Some(mut pooled) = known.take().or_else(|| PooledSocket::of(fd)) else { return };
        if self.nodelay.load(Ordering::Relaxed) {
            set_nodelay(fd, false);
        }
        pooled.nonblocking = nonblocking();
        pool.push(pooled);
    }

    /// Puts a new socket in its place, by all numbers of the program's, if it was another connection's.
    pub(super) fn renew(&self, nonblocking: impl FnOnce() -> bool, fds: impl FnOnce() -> Vec<c_int>) {
        if !self.used.swap(false, Ordering::Relaxed) {
            return;
        }
        drop(self.pooled.try_lock().map(|mut pooled| pooled.take()));
        let domain = if self.is_v6() { libc::AF_INET6 } else { libc::AF_INET };
        let flags = if nonblocking() { libc::SOCK_NONBLOCK } else { 0 };
        // SAFETY: makes a descriptor and duplicates it; the numbers are the program's names of this very socket.
        unsafe {
            let new = real::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0);
            if new < 0 {
                // Then the used one will do.
                return;
            }
            if self.nodelay.load(Ordering::Relaxed) {
                set_nodelay(new, true);
            }
            for fd in fds() {
                let closes = real::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0;
                real::dup3(new, fd, if closes { libc::O_CLOEXEC } else { 0 });
            }
            real::close(new);
        }
    }
}

/// Returns whether sockets of this kind are kept, and whether they are IPv6.
pub(crate) fn family(domain: c_int, kind: c_int) -> Option<bool> {
    let stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let v6 = domain == libc::AF_INET6;
    (stream && (v6 || domain == libc::AF_INET)).then_some(v6)
}

/// A pooled socket and a descriptor of it, of `kind` as for `socket`.
pub(crate) fn take(v6: bool, kind: c_int) -> Option<(c_int, PooledSocket)> {
    if !open_to_new() {
        return None;
    }
    let pooled = POOLS[usize::from(v6)].try_lock().ok()?.pop()?;
    let duplicate = if kind & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: a descriptor of the library's, and numbers.
    let fd = unsafe { real::fcntl(pooled.socket.as_raw_fd(), duplicate, 0) };
    let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
    if fd >= 0 && nonblocking != pooled.nonblocking {
        set_nonblocking(fd, nonblocking);
    }
    (fd >= 0).then_some((fd, pooled))
}

fn set_nonblocking(fd: c_int, nonblocking: bool) {
    let nonblocking = c_int::from(nonblocking);
    // SAFETY: an integer, which the call reads.
    unsafe { real::ioctl(fd, libc::FIONBIO, (&raw const nonblocking).expose_provenance() as c_ulong) };
}

fn set_nodelay(fd: c_int, nodelay: bool) {
    let (nodelay, len) = (c_int::from(nodelay), size_of::<c_int>() as socklen_t);
    // SAFETY: an integer and its size.
    unsafe { real::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const nodelay).cast(), len) };
}

/// A forked child has none: its parent's are closed.
pub(super) fn forget() {
    for pool in &POOLS {
        // A thread of the parent's may have had the lock.
        if let Ok(mut pool) = pool.try_lock() {
            pool.clear();
        }
    }
    COUNT.store(0, Ordering::Relaxed);
}
