//! Kernel socket addresses.
use crate::sleep::kernel_poll;
use crate::{reach, real};
use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The address in `len` bytes at `address`, an IPv4 one as such even if it is mapped into IPv6; none
/// if it is of another family.
///
/// # Safety
/// `address` points to `len` bytes.
pub(crate) unsafe fn parse(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    let len = len as usize;
    if address.is_null() || len < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: there are so many bytes, and any are a value of these types; they may be unaligned.
    unsafe {
        let family = c_int::from(address.cast::<libc::sa_family_t>().read_unaligned());
        if family == libc::AF_INET && len >= size_of::<sockaddr_in>() {
            let v4 = address.cast::<sockaddr_in>().read_unaligned();
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            return Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))));
        }
        if family == libc::AF_INET6 && len >= size_of::<sockaddr_in6>() {
            let v6 = address.cast::<sockaddr_in6>().read_unaligned();
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr).to_canonical();
            return Some(SocketAddr::new(ip, u16::from_be(v6.sin6_port)));
        }
    }
    None
}

/// The family of an address; -1: there is none.
///
/// # Safety
/// `address` points to `len` bytes.
pub(crate) unsafe fn family(address: *const sockaddr, len: socklen_t) -> c_int {
    if address.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return -1;
    }
    // SAFETY: there are so many bytes.
    unsafe { c_int::from(address.cast::<libc::sa_family_t>().read_unaligned()) }
}

/// Writes an address as the kernel does: as an IPv6 one if `v6`, cut off if there is less room.
///
/// # Errors
/// `EFAULT`, `EINVAL`.
///
/// # Safety
/// `len` is null or a number: so much room is at `at`.
pub(crate) unsafe fn write(
    address: SocketAddr,
    v6: bool,
    at: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), c_int> {
    if !reach::is_readable(at, 1) || !reach::is_readable(len, size_of::<socklen_t>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: zeroes are a value of the type.
    let mut bytes: sockaddr_storage = unsafe { zeroed() };
    let port = address.port().to_be();
    let size = if v6 {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        // SAFETY: zeroes are a value of the type.
        let mut v6: sockaddr_in6 = unsafe { zeroed() };
        (v6.sin6_family, v6.sin6_port) = (libc::AF_INET6 as libc::sa_family_t, port);
        v6.sin6_addr.s6_addr = ip.octets();
        // SAFETY: the storage holds any address.
        unsafe { (&raw mut bytes).cast::<sockaddr_in6>().write(v6) };
        size_of::<sockaddr_in6>()
    } else {
        let IpAddr::V4(ip) = address.ip().to_canonical() else { return Err(libc::EINVAL) };
        // SAFETY: zeroes are a value of the type.
        let mut v4: sockaddr_in = unsafe { zeroed() };
        (v4.sin_family, v4.sin_port) = (libc::AF_INET as libc::sa_family_t, port);
        v4.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
        // SAFETY: the storage holds any address.
        unsafe { (&raw mut bytes).cast::<sockaddr_in>().write(v4) };
        size_of::<sockaddr_in>()
    };
    // SAFETY: the caller's promise; at most as much as there is room.
    unsafe {
        let room = len.read_unaligned() as usize;
        if room > i32::MAX as usize {
            return Err(libc::EINVAL);
        }
        std::ptr::copy_nonoverlapping((&raw const bytes).cast::<u8>(), at.cast::<u8>(), room.min(size));
        len.write_unaligned(size as socklen_t);
    }
    Ok(())
}

/// Returns whether a connection to it can run on the fabric at all.
pub(crate) fn is_eligible(to: SocketAddr) -> bool {
    let link_local = match to.ip() {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    };
    to.port() != 0 && !link_local && !to.ip().is_multicast()
}

type Ask = unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

fn ask(fd: c_int, ask: Ask) -> Option<(c_int, SocketAddr)> {
    // SAFETY: room for any address, and its size.
    unsafe {
        let mut storage: sockaddr_storage = zeroed();
        let mut len = size_of::<sockaddr_storage>() as socklen_t;
        if ask(fd, (&raw mut storage).cast(), &mut len) != 0 {
            return None;
        }
        Some((c_int::from(storage.ss_family), parse((&raw const storage).cast(), len)?))
    }
}

/// Family of the socket and its local address.
pub(crate) fn local(fd: c_int) -> Option<(c_int, SocketAddr)> {
    ask(fd, real::getsockname)
}

/// The peer's address, if the socket is connected.
pub(crate) fn peer(fd: c_int) -> Option<SocketAddr> {
    ask(fd, real::getpeername).map(|(_, address)| address)
}

/// An integer option of a socket.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: room for an integer, and its size.
    let result = unsafe { real::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    (result == 0).then_some(value)
}

/// State of TCP in which both streams have ended, or the connection was reset.
pub(crate) const CLOSED: c_int = 7;

/// State of a connection of TCP.
pub(crate) fn tcp_state(fd: c_int) -> Option<c_int> {
    // The first byte of `TCP_INFO` is the state.
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO).map(|info| info & 0xff)
}

/// Number of the bytes that the kernel has for a receive or a read.
pub(crate) fn unread(fd: c_int) -> Option<c_int> {
    let mut there = 0;
    // SAFETY: room for a number.
    let known = unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut there) as usize as _) } == 0;
    known.then_some(there)
}

/// Returns whether a socket listens.
pub(crate) fn listens(fd: c_int) -> bool {
    option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1)
}

/// Returns whether the kernel has an error for the next call.
pub(crate) fn has_error(fd: c_int) -> bool {
    let mut poll = [libc::pollfd { fd, events: 0, revents: 0 }];
    kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null()) == Ok(1)
        && poll[0].revents & libc::POLLERR != 0
}

/// Returns whether the kernel takes a byte at once that is sent. What it tells of AF_UNIX by `poll` is more: that most of the buffer is free.
pub(crate) fn has_room(fd: c_int, unix: bool) -> bool {
    let mut poll = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    if kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null()) == Ok(1) {
        return true;
    }
    let mut used: c_int = 0;
    // SAFETY: room for a number.
    let known = unsafe { real::ioctl(fd, libc::TIOCOUTQ, (&raw mut used) as usize as _) } == 0;
    unix && known && option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).is_some_and(|room| used < room)
}

/// The sizes of the send and the receive buffer that the program, or that of the listener, has asked for.
pub(crate) fn asked_buffers(fd: c_int) -> [Option<c_int>; 2] {
    // Of the kernel's interface (5.15), not in `libc` everywhere.
    const SO_BUF_LOCK: c_int = 72;
    let asked = option(fd, libc::SOL_SOCKET, SO_BUF_LOCK).unwrap_or(0);
    let size = |bit: c_int, name| (asked & bit != 0).then(|| option(fd, libc::SOL_SOCKET, name)).flatten();
    [size(1, libc::SO_SNDBUF), size(2, libc::SO_RCVBUF)]
}

/// The kernel's name of a socket, whatever its number in whatever process.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    let mut value: u64 = 0;
    let mut len = size_of::<u64>() as socklen_t;
    // SAFETY: room for the number, and its size.
    let result =
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut value).cast(), &mut len) };
    (result == 0).then_some(value)
}

/// Returns whether it is a TCP socket.
pub(crate) fn is_tcp(fd: c_int) -> bool {
    let domain = option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    (domain == Some(libc::AF_INET) || domain == Some(libc::AF_INET6))
        && option(fd, libc::SOL_SOCKET, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// Returns whether `SO_LINGER` is on, with no time.
pub(crate) fn lingers_never(fd: c_int) -> bool {
    // SAFETY: room for the option, and its size.
    unsafe {
        let mut linger: libc::linger = zeroed();
        let mut len = size_of::<libc::linger>() as socklen_t;
        let asked =
            real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut linger).cast(), &mut len);
        asked == 0 && linger.l_onoff != 0 && linger.l_linger == 0
    }
}

/// Closing the socket resets its connection from now on.
pub(crate) fn linger_never(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the option, and its size.
    unsafe {
        let len = size_of::<libc::linger>() as socklen_t;
        real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len);
    }
}

/// A time-out option, in nanoseconds; 0: none.
pub(crate) fn timeout_ns(fd: c_int, name: c_int) -> u64 {
    // SAFETY: room for a time, and its size.
    unsafe {
        let mut time: libc::timeval = zeroed();
        let mut len = size_of::<libc::timeval>() as socklen_t;
        if real::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut time).cast(), &mut len) != 0 {
            return 0;
        }
        time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000
    }
}

/// Returns whether calls on the descriptor do not wait.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: only asks.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags & libc::O_NONBLOCK != 0
}
