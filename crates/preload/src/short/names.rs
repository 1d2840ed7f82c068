//! Addresses of connections that the kernel does not know of.
use crate::address;
use libc::{c_int, sockaddr, socklen_t};
use pd_client::core::Socket;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Names and options of the connection that the kernel would know.
#[derive(Debug)]
pub(crate) struct Names {
    /// The descriptor is an IPv6 socket.
    v6: bool,
    peer: SocketAddr,
    local: OnceLock<SocketAddr>,
    /// The next `connect` is the one that finds a non-blocking connection made.
    pub(crate) connecting: AtomicBool,
    /// The driver was asked for the connection, and nobody has waited for the answer.
    pub(super) begun: AtomicBool,
}

impl Names {
    pub(crate) fn new(v6: bool, peer: SocketAddr, connecting: bool) -> Self {
        Self {
            v6,
            peer,
            local: OnceLock::new(),
            connecting: AtomicBool::new(connecting),
            begun: AtomicBool::new(false),
        }
    }

    /// Returns whether nobody has waited for the driver's answer.
    #[inline]
    pub(crate) fn is_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// For a forked child.
    pub(crate) fn again(&self) -> Self {
        let again = Self::new(self.v6, self.peer, false);
        if let Some(&local) = self.local.get() {
            let _ = again.local.set(local);
        }
        again
    }

    fn local(&self, end: Option<&Arc<Socket>>) -> Option<SocketAddr> {
        if self.local.get().is_none() {
            let _ = self.local.set(end?.local_addr().ok()?);
        }
        self.local.get().copied()
    }

    /// Writes the peer's address where the program wants it.
    ///
    /// # Safety
    /// As for `getpeername`.
    pub(crate) unsafe fn write_peer(&self, at: *mut sockaddr, len: *mut socklen_t) -> Result<(), c_int> {
        // SAFETY: the caller's promise.
        unsafe { address::write(self.peer, self.v6, at, len) }
    }

    /// Writes the own address where the program wants it.
    ///
    /// # Safety
    /// As for `getsockname`.
    pub(crate) unsafe fn write_local(
        &self,
        end: Option<&Arc<Socket>>,
        at: *mut sockaddr,
        len: *mut socklen_t,
    ) -> Result<(), c_int> {
        let local = self.local(end).ok_or(libc::ENOTCONN)?;
        // SAFETY: the caller's promise.
        unsafe { address::write(local, self.v6, at, len) }
    }
}
