//! Flags of readiness: what is wanted of a member of an epoll instance, and what is reported.

/// Readable, or a connection can be accepted.
pub const IN: u32 = libc::EPOLLIN as u32;
/// Writable.
pub const OUT: u32 = libc::EPOLLOUT as u32;
/// The connection has failed. Always reported.
pub const ERR: u32 = libc::EPOLLERR as u32;
/// Both directions have ended. Always reported.
pub const HUP: u32 = libc::EPOLLHUP as u32;
/// The peer has ended its stream.
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// The stream goes on elsewhere, which its owner has still to follow ([`Socket::step_aside`]). Always reported, and no event of
/// the kernel's.
///
/// [`Socket::step_aside`]: crate::core::Socket::step_aside
pub const ASIDE: u32 = 1 << 27;
/// The stream goes on elsewhere, its owner has followed, and bytes are left from before. Comes with another event only: what holds elsewhere
/// is to be added.
pub const LEFT: u32 = 1 << 26;
/// Report once, then not until modified.
pub const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// Report when something happens, not while something is there.
pub const EDGE: u32 = libc::EPOLLET as u32;
