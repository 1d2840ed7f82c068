//! Calls of the kernel, by name: the seam at which the simulation ([`crate::simulation`]) has them fail, and answers in the
//! kernel's place. In a driver that runs there is nothing of it: [`may`] is `Ok`, and all of [`simulated`] is `None`, known to the
//! compiler.

/// A call that can fail for want of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Accept,
    /// To find out who a peer is.
    Identify,
    Duplicate,
    /// `epoll_ctl`.
    Watch,
    Receive,
    /// To tell a client something on its attach socket.
    Send,
    EventFd,
    Pipe,
    SocketPair,
    /// `memfd_create` and what makes it a region.
    MakeMemory,
    Reopen,
    Map,
    Populate,
    /// To open a client's file anew.
    OpenFile,
    /// To read of a file what is in the page cache.
    ReadCached,
    /// To read of a file what is on a disk.
    ReadDisk,
    Thread,
}

#[cfg(any(test, fuzzing, feature = "hostile"))]
pub(crate) use crate::simulation::kernel as simulated;

#[cfg(not(any(test, fuzzing, feature = "hostile")))]
pub mod simulated {
    //! What the simulation answers in place of the kernel: nothing, outside of it.
    use super::Call;
    use crate::addresses::Addresses;
    use crate::identity::{Identity, NamespaceId};
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
}

/// Whether the call may be made; otherwise what it fails with.
///
/// # Errors
/// The simulation's.
#[inline(always)]
pub fn may(call: Call) -> rustix::io::Result<()> {
    simulated::fault(call)
}
