use super::stream::Stream;
use crate::error::Result;
use crate::socket::Socket;
use pd_abi::limits::BACKLOG_MAX;
use std::net::SocketAddr;
use std::sync::Arc;

/// A socket that takes connections. It goes on listening when the driver is restarted.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: Arc<Socket>,
}

/// Options of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerOptions {
    /// Connections that may wait to be accepted.
    pub backlog: u32,
    /// Send ring of accepted connections, bytes; none: the default.
    pub send_ring_bytes: Option<u64>,
    /// Receive ring of accepted connections, bytes; none: the default.
    pub recv_ring_bytes: Option<u64>,
    /// An IPv6 listener takes no IPv4 connections.
    pub v6_only: bool,
    /// Accepted connections receive bytes that their sender can still change: see [`Stream::set_recv_shared`].
    pub recv_shared: bool,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            backlog: BACKLOG_MAX,
            send_ring_bytes: None,
            recv_ring_bytes: None,
            v6_only: false,
            recv_shared: false,
        }
    }
}

impl Listener {
    /// Listens on `addr`.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `ENETDOWN` without a driver.
    pub fn bind(addr: SocketAddr) -> Result<Self> {
        Self::bind_with(addr, ListenerOptions::default())
    }

    /// Listens on `addr`, with options.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_with(addr: SocketAddr, options: ListenerOptions) -> Result<Self> {
        let listener = Self { socket: Socket::new(addr.is_ipv6())? };
        let socket = &listener.socket;
        if options.v6_only {
            socket.set_v6_only(true)?;
        }
        if let Some(bytes) = options.send_ring_bytes {
            socket.set_send_ring_bytes(bytes)?;
        }
        if let Some(bytes) = options.recv_ring_bytes {
            socket.set_receive_ring_bytes(bytes)?;
        }
        if options.recv_shared {
            socket.set_receives_shared()?;
        }
        socket.bind(addr)?;
        socket.listen(options.backlog)?;
        Ok(listener)
    }

    /// Takes one connection; waits for it.
    ///
    /// # Errors
    /// `EAGAIN` if non-blocking, `EMFILE`.
    pub fn accept(&self) -> Result<Stream> {
        Ok(Stream { socket: self.socket.accept()? })
    }

    /// Connections, one after the other, for ever.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// The address listened on.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Makes [`Self::accept`] return `EAGAIN` instead of waiting, or wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.socket.set_nonblocking(nonblocking);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Closing fails only in a forked child, which has nothing to close.
        let _ = self.socket.close();
    }
}

/// See [`Listener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a Listener,
}

impl Iterator for Incoming<'_> {
    type Item = Result<Stream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept())
    }
}
