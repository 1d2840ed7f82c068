//! Calls of the kernel, by name: the seam at which the simulation (`crate::simulation`) makes them fail, or answers in the
//! kernel's place. In a running driver [`may`] is `Ok` and all of [`simulated`] is `None`; the compiler removes both.

/// A call that can fail for lack of a resource or a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Accept,
    /// Finding out the identity of a peer.
    Identify,
    Duplicate,
    /// `epoll_ctl`.
    Watch,
    Receive,
    /// Sending on a client's attach socket.
    Send,
    EventFd,
    SocketPair,
    /// `memfd_create`, and the calls that make the file a region.
    MakeMemory,
    Reopen,
    Map,
    Populate,
    /// Opening a client's file anew.
    OpenFile,
    /// Reading the part of a file that is in the page cache.
    ReadCached,
    /// Reading the part of a file that is on a disk.
    ReadDisk,
    /// Opening a socket that asks the kernel about sockets.
    Diag,
    Thread,
}

#[cfg(any(test, fuzzing, feature = "testing"))]
pub(crate) use crate::simulation::kernel as simulated;

#[cfg(not(any(test, fuzzing, feature = "testing")))]
pub mod simulated {
    //! Answers of the simulation in place of the kernel; none outside of it.
    use super::Call;
    use crate::addresses::Addresses;
    use crate::identity::{Identity, NamespaceId};
    use crate::wanted::{Listening, UnixSocket, Wanted};
    use pd_shm::Mapping;
    use std::net::SocketAddr;
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::time::Duration;

    #[inline(always)]
    pub fn fault(_: Call) -> rustix::io::Result<()> {
        Ok(())
    }
    #[inline(always)]
    pub fn is_on() -> bool {
        false
    }
    #[inline(always)]
    pub fn identity(_: &OwnedFd) -> Option<rustix::io::Result<Identity>> {
        None
    }
    #[inline(always)]
    pub fn credentials(_: &OwnedFd) -> Option<(u32, u32)> {
        None
    }
    #[inline(always)]
    pub fn addresses(_: NamespaceId) -> Option<(std::io::Result<Addresses>, Duration)> {
        None
    }
    #[inline(always)]
    pub fn idle_time() -> Option<Duration> {
        None
    }
    #[inline(always)]
    pub fn readable(_: Call, _: BorrowedFd<'_>, len: usize) -> rustix::io::Result<usize> {
        Ok(len)
    }
    #[inline(always)]
    pub fn is_let_go(_: BorrowedFd<'_>) -> Option<bool> {
        None
    }
    #[inline(always)]
    pub fn diag(_: &OwnedFd) -> Option<rustix::io::Result<OwnedFd>> {
        None
    }
    #[inline(always)]
    pub fn is_namespace(_: &OwnedFd, _: NamespaceId) -> Option<bool> {
        None
    }
    #[inline(always)]
    pub fn socket_inode(_: &OwnedFd, _: &Wanted) -> Option<rustix::io::Result<u32>> {
        None
    }
    #[inline(always)]
    pub fn listener(_: &OwnedFd, _: SocketAddr) -> Option<rustix::io::Result<Option<Listening>>> {
        None
    }
    #[inline(always)]
    pub fn unix_socket(_: &OwnedFd, _: u32) -> Option<rustix::io::Result<UnixSocket>> {
        None
    }
    #[inline(always)]
    pub fn descriptor(_: u32, _: u32) -> Option<rustix::io::Result<u32>> {
        None
    }
    #[inline(always)]
    pub fn parent(_: u32) -> Option<Option<u32>> {
        None
    }
    #[inline(always)]
    pub fn emptied(_: &Mapping) -> Option<()> {
        None
    }
}

/// Returns `Ok` if the call may be made, and otherwise the error that it fails with.
///
/// # Errors
/// Errors of the simulation.
#[inline(always)]
pub fn may(call: Call) -> rustix::io::Result<()> {
    simulated::fault(call)
}
