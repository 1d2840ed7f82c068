//! Names of the kernel's TCP sockets, by which the driver looks for them.
use std::net::SocketAddr;

/// A TCP socket to look for, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Wanted {
    /// The socket's own address.
    pub local: SocketAddr,
    /// The address of the socket's peer.
    pub peer: SocketAddr,
    /// The socket's `SO_COOKIE`.
    pub cookie: u64,
}

/// Value in place of a cookie: matches any socket that has the addresses.
pub const COOKIE_ANY: u64 = u64::MAX;
