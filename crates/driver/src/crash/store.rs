//! The service manager's store of descriptors, by the protocol of `sd_notify(3)`.
//!
//! Stored descriptors stay there when the driver is killed, and come to the next one with names (`LISTEN_FDS`). The manager lets go of it when
//! it gives the service up.
use rustix::io::{fcntl_getfd, fcntl_setfd, Errno, FdFlags};
use rustix::net::{
    connect, sendmsg, socket_with, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// First descriptor that a service manager passes.
const FIRST: RawFd = 3;

/// The service manager.
#[derive(Debug)]
pub struct Manager {
    socket: OwnedFd,
}

impl Manager {
    /// Finds the service manager that has started this process, if it has a store for it.
    pub fn of_environment() -> Option<Self> {
        let has_store =
            std::env::var("FDSTORE").is_ok_and(|count| count.parse::<u32>().is_ok_and(|it| it > 0));
        let path = std::env::var_os("NOTIFY_SOCKET").filter(|_| has_store)?;
        match Self::at(&path) {
            Ok(manager) => Some(manager),
            Err(error) => {
                tracing::warn!(%error, "the service manager's NOTIFY_SOCKET is out of reach: a crash resets all connections");
                None
            }
        }
    }

    /// Connects to a service manager's socket: a path, or `@` and a name.
    ///
    /// # Errors
    /// Errors of `socket` and `connect`.
    pub fn at(path: &OsStr) -> rustix::io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            _ => SocketAddrUnix::new(path)?,
        };
        connect(&socket, &address)?;
        Ok(Self { socket })
    }

    /// Stores descriptors under a name. May wait for the manager.
    ///
    /// # Errors
    /// Errors of `sendmsg`.
    pub fn store(&self, name: &str, fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        // Not polled: a socket whose other end is gone is to be kept.
        self.say(&format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0"), fds)
    }

    /// Has the manager let go of what it has under a name.
    ///
    /// # Errors
    /// Errors of `sendmsg`.
    pub fn remove(&self, name: &str) -> rustix::io::Result<()> {
        self.say(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[])
    }

    fn say(&self, words: &str, fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::INVAL);
        }
        sendmsg(&self.socket, &[IoSlice::new(words.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)
            .map(drop)
    }
}

/// Takes the descriptors that the service manager has passed to this process, with their names. The first call alone gets them.
pub fn inherited() -> Vec<(String, OwnedFd)> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    let is_ours = number("LISTEN_PID") == Some(std::process::id());
    if !is_ours || TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
    let count = number("LISTEN_FDS").unwrap_or(0).min(1 << 16) as RawFd;
    (FIRST..FIRST + count).zip(names).filter_map(|(fd, name)| Some((name, take(fd)?))).collect()
}

/// Takes a descriptor by its number, if there is one.
fn take(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: looked at for this call alone, which fails if there is none of the number.
    let there = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl_getfd(there).ok()?;
    fcntl_setfd(there, flags | FdFlags::CLOEXEC).ok()?;
    // SAFETY: the manager has passed it to this process, which takes each once, and before anything else can.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has each `recvmsg` that peeks at a socket begin where the last one ended, from the first byte on.
///
/// # Errors
/// Errors of `setsockopt`.
pub fn peek_from_start(socket: &OwnedFd) -> rustix::io::Result<()> {
    let zero: libc::c_int = 0;
    // SAFETY: the kernel reads an integer, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            std::ptr::from_ref(&zero).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}
