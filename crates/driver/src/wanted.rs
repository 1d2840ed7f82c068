//! Names of the kernel's TCP sockets, by which the driver looks for them, and facts of listeners and of AF_UNIX sockets that it finds.
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

/// A listening socket of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The address that it is bound to.
    pub local: SocketAddr,
    /// The user who made it.
    pub uid: u32,
    /// Its inode.
    pub inode: u32,
    /// Its `SO_COOKIE`.
    pub cookie: u64,
}

/// A stream socket of AF_UNIX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnixSocket {
    /// Set if the socket listens.
    pub listens: bool,
    /// Device and inode of the bound file, in the kernel's form: 32 bits of each.
    pub file: Option<(u32, u32)>,
    /// Inode of the socket's peer; 0: there is none, or it is not accepted, or gone.
    pub peer: u32,
}
