//! A kernel socket behind a native one. It is closed with the native socket and not by dropping: threads may still remember that.
use super::held::HeldFd;
use crate::error::{bad_socket, Error, Result};
use libc::{c_int, iovec};
use pd_shm::{Own, Region};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{fcntl_getfl, fcntl_setfl, fstat, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io::{IoSlice, IoSliceMut};
use std::mem::size_of_val;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The kernel's `IOV_MAX`.
const PIECES_MAX: usize = 1024;
/// Most bytes that one receive puts in the receive ring: what a core's cache holds.
const FILL_BYTES_MAX: usize = 256 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Carrier {
    fd: Mutex<Option<Arc<HeldFd>>>,
    inode: u32,
}

/// Bytes that the kernel has received and the program has not, kept by the receiving half of a socket.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) carrier: Arc<Carrier>,
    /// The receive ring, for writing.
    pub(crate) memory: Option<Region<Own>>,
    /// Bytes of the receive ring.
    pub(crate) ring_bytes: u64,
    /// End of the stream as a word; 0: it goes on.
    pub(crate) end: u32,
}

impl Inbox {
    pub(crate) fn new(carrier: Arc<Carrier>, ring_bytes: u64) -> Box<Self> {
        Box::new(Self { carrier, memory: None, ring_bytes, end: 0 })
    }
}

/// The error of a call of the kernel's.
pub(crate) fn failed(errno: Errno, what: impl FnOnce() -> String) -> Error {
    match errno {
        // Others than the driver's policy may deny it.
        Errno::ACCESS | Errno::PERM => {
            Error::new(errno, format!("{}: the kernel or the host's policy denies it", what()))
        }
        _ => Error::from_driver(errno.raw_os_error() as u32, what),
    }
}

impl Carrier {
    /// A kernel socket that waits for nothing.
    pub(crate) fn open(v6: bool, v6_only: bool) -> rustix::io::Result<Self> {
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = net::socket_with(family, SocketType::STREAM, flags, None)?;
        if v6 {
            net::sockopt::set_ipv6_v6only(&fd, v6_only)?;
        }
        // As native sockets are: bytes are never held back, and a dead peer is noticed.
        net::sockopt::set_tcp_nodelay(&fd, true)?;
        net::sockopt::set_socket_keepalive(&fd, true)?;
        Ok(Self::new(fd))
    }

    pub(crate) fn new(fd: OwnedFd) -> Self {
        let inode = fstat(&fd).map_or(0, |file| file.st_ino as u32);
        Self { fd: Mutex::new(Some(Arc::new(HeldFd::new(fd)))), inode }
    }

    /// Of the kernel's socket.
    pub(crate) fn inode(&self) -> u32 {
        self.inode
    }

    /// The descriptor, which stays open as long as this is held.
    ///
    /// # Errors
    /// `EBADF` once it was closed.
    pub(crate) fn fd(&self) -> Result<Arc<HeldFd>> {
        self.fd.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(bad_socket)
    }

    fn call<T>(&self, call: impl Fn(&HeldFd) -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        let fd = self.fd().map_err(|_| Errno::BADF)?;
        loop {
            match call(&fd) {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// Closes the descriptor; threads that sleep on it wake.
    pub(crate) fn close(&self, resets: bool) {
        let Some(fd) = self.fd.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if resets {
            let _ = net::sockopt::set_socket_linger(&*fd, Some(Duration::ZERO));
        }
        if Arc::strong_count(&fd) > 1 {
            let _ = match resets {
                true => net::connect_unspec(&*fd),
                false => net::shutdown(&*fd, net::Shutdown::Both),
            };
        }
    }

    /// Binds to an address, which the driver is to judge: the kernel takes any. A port that was asked for may be one whose last
    /// connections end only now.
    pub(crate) fn bind(&self, addr: SocketAddr) -> rustix::io::Result<()> {
        self.call(|fd| {
            match addr.is_ipv6() {
                true => net::sockopt::set_ipv6_freebind(fd, true)?,
                false => net::sockopt::set_ip_freebind(fd, true)?,
            }
            net::sockopt::set_socket_reuseaddr(fd, addr.port() != 0)?;
            net::bind(fd, &addr)?;
            net::sockopt::set_socket_reuseaddr(fd, true)
        })
    }

    pub(crate) fn listen(&self, backlog: u32) -> rustix::io::Result<()> {
        self.call(|fd| net::listen(fd, backlog as i32))
    }

    /// Takes a connection that has come. Its peer may have none any more.
    pub(crate) fn accept(&self) -> rustix::io::Result<(OwnedFd, Option<SocketAddr>)> {
        let (fd, peer) = self.call(|fd| net::acceptfrom_with(fd, SocketFlags::CLOEXEC))?;
        Ok((fd, peer.and_then(|peer| SocketAddr::try_from(peer).ok())))
    }

    /// Begins to connect.
    pub(crate) fn connect(&self, addr: SocketAddr) -> rustix::io::Result<()> {
        self.call(|fd| net::connect(fd, &addr))
    }

    /// Makes calls wait that do not say otherwise.
    pub(crate) fn set_waiting(&self) -> rustix::io::Result<()> {
        self.call(|fd| fcntl_setfl(fd, fcntl_getfl(fd)? & !OFlags::NONBLOCK))
    }

    pub(crate) fn local_addr(&self) -> rustix::io::Result<SocketAddr> {
        self.call(|fd| SocketAddr::try_from(net::getsockname(fd)?))
    }

    /// Tells whether the socket has met itself, as TCP allows for a port that nobody listens on.
    pub(crate) fn is_own_peer(&self) -> bool {
        let ends = self.call(|fd| Ok((net::getsockname(fd)?, net::getpeername(fd)?)));
        ends.is_ok_and(|(local, peer)| peer == Some(local))
    }

    pub(crate) fn shutdown(&self, read: bool, write: bool) -> rustix::io::Result<()> {
        let how = match (read, write) {
            (true, true) => net::Shutdown::Both,
            (true, false) => net::Shutdown::Read,
            _ => net::Shutdown::Write,
        };
        self.call(|fd| net::shutdown(fd, how))
    }

    /// The pending error, which is then none.
    pub(crate) fn take_error(&self) -> rustix::io::Result<()> {
        self.call(|fd| net::sockopt::socket_error(fd))?
    }

    /// Waits for `timeout` at most. Returns the flags of `wanted` that hold, and errors.
    pub(crate) fn wait(&self, wanted: PollFlags, timeout: Duration) -> PollFlags {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let Ok(fd) = self.fd() else { return PollFlags::NVAL };
        let mut fds = [PollFd::new(&*fd, wanted)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(1..) => fds[0].revents(),
            _ => PollFlags::empty(),
        }
    }

    /// Bytes that the kernel has received.
    pub(crate) fn queued(&self) -> u64 {
        self.call(|fd| rustix::io::ioctl_fionread(fd)).unwrap_or(0)
    }

    /// Receives into the ring's own memory.
    pub(crate) fn fill(&self, ring: &Region<Own>, offset: usize, len: usize) -> rustix::io::Result<usize> {
        let len = len.min(FILL_BYTES_MAX);
        // SAFETY: bytes of a mapping of this process alone, whose other mapping lends none of them: they were given back.
        let place = unsafe { std::slice::from_raw_parts_mut(ring.address(offset, len).as_ptr(), len) };
        let fd = self.fd().map_err(|_| Errno::BADF)?;
        net::recv(&*fd, place, RecvFlags::DONTWAIT).map(|(_, len)| len)
    }

    /// Receives into the program's memory.
    ///
    /// # Safety
    /// Each piece is memory that may be written.
    pub(crate) unsafe fn recv(&self, pieces: &[iovec], peek: bool, waits: bool) -> rustix::io::Result<usize> {
        let mut flags = if waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        flags.set(RecvFlags::PEEK, peek);
        let count = pieces.len().min(PIECES_MAX);
        let fd = self.fd().map_err(|_| Errno::BADF)?;
        // SAFETY: the standard library promises that the two are laid out alike; the caller's to write.
        let slices = unsafe {
            std::slice::from_raw_parts_mut(pieces.as_ptr().cast_mut().cast::<IoSliceMut<'_>>(), count)
        };
        match slices {
            [one] => net::recv(&*fd, &mut **one, flags).map(|(_, len)| len),
            _ => net::recvmsg(&*fd, slices, &mut net::RecvAncillaryBuffer::default(), flags)
                .map(|message| message.bytes),
        }
    }

    /// Sends from the program's memory.
    ///
    /// # Safety
    /// Each piece is memory that may be read.
    pub(crate) unsafe fn send(&self, pieces: &[iovec], waits: bool) -> rustix::io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::DONTWAIT, !waits);
        let count = pieces.len().min(PIECES_MAX);
        let fd = self.fd().map_err(|_| Errno::BADF)?;
        // SAFETY: as in `recv`, for reading.
        let slices = unsafe { std::slice::from_raw_parts(pieces.as_ptr().cast::<IoSlice<'_>>(), count) };
        match slices {
            [one] => net::send(&*fd, one, flags),
            _ => net::sendmsg(&*fd, slices, &mut net::SendAncillaryBuffer::default(), flags),
        }
    }

    /// Sends bytes of a file; waits until all are sent.
    pub(crate) fn send_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> rustix::io::Result<usize> {
        let fd = self.fd().map_err(|_| Errno::BADF)?;
        let mut at = offset;
        rustix::fs::sendfile(&*fd, file, Some(&mut at), len)
    }

    /// Sets one of the options whose value is an `int`.
    pub(crate) fn set_option(&self, (level, option, value): (c_int, c_int, c_int)) -> rustix::io::Result<()> {
        self.call(|fd| {
            // SAFETY: an `int` that lives through the call.
            let done = unsafe {
                let place = (&raw const value).cast();
                libc::setsockopt(fd.as_raw_fd(), level, option, place, size_of_val(&value) as libc::socklen_t)
            };
            if done == 0 {
                Ok(())
            } else {
                Err(last_error())
            }
        })
    }

    /// The address that the peer asked for, where it was led here.
    pub(crate) fn original_addr(&self) -> rustix::io::Result<SocketAddr> {
        // Of IPv4 under this number, too, whatever the socket's family.
        const IP6T_SO_ORIGINAL_DST: c_int = 80;
        self.call(|fd| {
            // SAFETY: zeroes are a value of the type.
            let mut value: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
            let mut len = size_of_val(&value) as libc::socklen_t;
            // SAFETY: places of locals, which live through the call.
            let done = unsafe {
                let place = (&raw mut value).cast();
                libc::getsockopt(fd.as_raw_fd(), libc::SOL_IPV6, IP6T_SO_ORIGINAL_DST, place, &raw mut len)
            };
            if done == 0 {
                let ip = Ipv6Addr::from(value.sin6_addr.s6_addr).to_canonical();
                Ok(SocketAddr::new(ip, u16::from_be(value.sin6_port)))
            } else {
                Err(Errno::NOENT)
            }
        })
    }

    /// Reads one of them.
    pub(crate) fn option(&self, level: c_int, option: c_int) -> rustix::io::Result<c_int> {
        self.call(|fd| {
            let mut value: c_int = 0;
            let mut len = size_of_val(&value) as libc::socklen_t;
            // SAFETY: places of locals, which live through the call.
            let done = unsafe {
                let place = (&raw mut value).cast();
                libc::getsockopt(fd.as_raw_fd(), level, option, place, &raw mut len)
            };
            if done == 0 {
                Ok(value)
            } else {
                Err(last_error())
            }
        })
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The address of the family that stands for any.
pub(crate) fn anywhere(v6: bool) -> SocketAddr {
    match v6 {
        true => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        false => SocketAddr::from(([0u8; 4], 0)),
    }
}
