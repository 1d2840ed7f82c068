//! Facts about a socket that may become a short connection, known without asking the kernel.
use super::socket_pool::{Behind, PooledSocket};
use libc::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Facts about a socket, known without asking the kernel.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Made here, not bound and without time-outs.
    pub(super) untouched: AtomicBool,
    /// The kernel was asked to connect it.
    pub(super) tried: AtomicBool,
    nonblocking: AtomicBool,
    pub(crate) behind: Behind,
}

impl Facts {
    /// Records a connection that is made now, with a pooled socket of the kernel or a new one.
    pub(crate) fn made(&self, domain: c_int, kind: c_int, pooled: Option<PooledSocket>) {
        self.nonblocking.store(kind & libc::SOCK_NONBLOCK != 0, Ordering::Relaxed);
        self.behind.made(domain == libc::AF_INET6, pooled);
        self.untouched.store(true, Ordering::Relaxed);
    }

    /// Records a connection that was accepted with `flags`.
    pub(super) fn accepted(&self, v6: bool, flags: c_int, pooled: Option<PooledSocket>) {
        self.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
        self.behind.made(v6, pooled);
    }

    /// The program makes calls wait, or not. What the kernel says of a listener's is not always that: see
    /// [`super::accepting`].
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// The program gives it an address or a time-out: ask the kernel from now on.
    pub(crate) fn touch(&self) {
        self.untouched.store(false, Ordering::Relaxed);
    }

    /// The kernel is asked to connect it, and may not be done when the call returns.
    pub(crate) fn leave_to_kernel(&self) {
        self.tried.store(true, Ordering::Relaxed);
    }
}
