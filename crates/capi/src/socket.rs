//! Making, naming, connecting and closing sockets.
use crate::address;
use crate::guard::guard;
use crate::pipe;
use libc::{c_int, sockaddr, socklen_t};
use pd_client::core::{insert, remove, with_socket, Named, Socket};
use pd_client::{Error, Result, Shutdown};
use std::sync::Arc;

fn name(socket: Arc<Socket>) -> Result<c_int> {
    insert(Named::Socket(socket.clone())).inspect_err(|_| {
        // The error to tell is the first one.
        let _ = socket.close();
    })
}

/// See `pd_socket(3)`.
#[no_mangle]
pub extern "C" fn pd_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    guard(-1, || {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => {
                return Err(Error::with_errno(
                    libc::EAFNOSUPPORT,
                    format!("address family {domain} is not supported; use AF_INET or AF_INET6"),
                ))
            }
        };
        if kind & !flags != libc::SOCK_STREAM {
            return Err(Error::with_errno(
                libc::EPROTONOSUPPORT,
                format!("socket type {} is not supported; use SOCK_STREAM", kind & !flags),
            ));
        }
        if protocol != 0 && protocol != libc::IPPROTO_TCP {
            return Err(Error::with_errno(
                libc::EPROTONOSUPPORT,
                format!("protocol {protocol} is not supported; use 0"),
            ));
        }
        let socket = Socket::new(v6)?;
        socket.set_nonblocking(kind & libc::SOCK_NONBLOCK != 0);
        name(socket)
    })
}

/// See `pd_bind(3)`.
///
/// # Safety
/// `addr` points to `len` readable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_bind(sid: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    guard(-1, || {
        with_socket(sid, |socket| {
            // SAFETY: passed on from the caller.
            socket.bind(unsafe { address::read(addr, len) }?)?;
            Ok(0)
        })
    })
}

/// See `pd_listen(3)`.
#[no_mangle]
pub extern "C" fn pd_listen(sid: c_int, backlog: c_int) -> c_int {
    guard(-1, || {
        with_socket(sid, |socket| {
            socket.listen(u32::try_from(backlog).unwrap_or(0))?;
            Ok(0)
        })
    })
}

/// See `pd_connect(3)`.
///
/// # Safety
/// `addr` points to `len` readable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_connect(sid: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    guard(-1, || {
        with_socket(sid, |socket| {
            // SAFETY: passed on from the caller.
            socket.connect(unsafe { address::read(addr, len) }?)?;
            Ok(0)
        })
    })
}

/// See `pd_connect(3)`.
///
/// # Safety
/// `addr` points to `len` readable bytes, and `sids` to room for `count` numbers.
#[no_mangle]
pub unsafe extern "C" fn pd_connect_several(
    addr: *const sockaddr,
    len: socklen_t,
    flags: c_int,
    sids: *mut c_int,
    count: c_int,
) -> c_int {
    guard(-1, || {
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(Error::invalid("flags other than SOCK_NONBLOCK and SOCK_CLOEXEC"));
        }
        let count = usize::try_from(count).map_err(|_| Error::invalid("a negative number of sockets"))?;
        if sids.is_null() && count > 0 {
            return Err(Error::with_errno(libc::EFAULT, "the place for the numbers is NULL"));
        }
        // SAFETY: passed on from the caller.
        let addr = unsafe { address::read(addr, len) }?;
        let sockets = Socket::connect_several(addr, count)?;
        let mut named = Vec::with_capacity(count);
        let all = sockets.iter().try_for_each(|socket| {
            socket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
            named.push(insert(Named::Socket(socket.clone()))?);
            Ok(())
        });
        if let Err(error) = all {
            // All or none. The error to tell is the first one.
            named.into_iter().for_each(|sid| drop(remove(sid)));
            sockets.iter().for_each(|socket| drop(socket.close()));
            return Err(error);
        }
        // SAFETY: room for as many, the caller says.
        named.iter().enumerate().for_each(|(index, &sid)| unsafe { sids.add(index).write(sid) });
        Ok(0)
    })
}

/// See `pd_accept(3)`.
///
/// # Safety
/// `addr` is null, or points to `*len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_accept(sid: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: passed on from the caller.
    unsafe { pd_accept4(sid, addr, len, 0) }
}

/// See `pd_accept(3)`.
///
/// # Safety
/// As for [`pd_accept`].
#[no_mangle]
pub unsafe extern "C" fn pd_accept4(
    sid: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    guard(-1, || {
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(Error::invalid("flags other than SOCK_NONBLOCK and SOCK_CLOEXEC"));
        }
        if !addr.is_null() && len.is_null() {
            return Err(Error::with_errno(libc::EFAULT, "the place for the address length is NULL"));
        }
        let socket = with_socket(sid, |listener| listener.accept())?;
        socket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
        if !addr.is_null() {
            // SAFETY: passed on from the caller; neither is null.
            unsafe { address::write(socket.peer_addr()?, addr, len) }?;
        }
        name(socket)
    })
}

/// See `pd_getsockname(3)`.
///
/// # Safety
/// `addr` points to `*len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_getsockname(sid: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    guard(-1, || {
        with_socket(sid, |socket| {
            // SAFETY: passed on from the caller.
            unsafe { address::write(socket.local_addr()?, addr, len) }?;
            Ok(0)
        })
    })
}

/// See `pd_getsockname(3)`.
///
/// # Safety
/// `addr` points to `*len` writable bytes.
#[no_mangle]
pub unsafe extern "C" fn pd_getpeername(sid: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    guard(-1, || {
        with_socket(sid, |socket| {
            // SAFETY: passed on from the caller.
            unsafe { address::write(socket.peer_addr()?, addr, len) }?;
            Ok(0)
        })
    })
}

/// See `pd_shutdown(3)`.
#[no_mangle]
pub extern "C" fn pd_shutdown(sid: c_int, how: c_int) -> c_int {
    guard(-1, || {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Error::invalid("how is SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        with_socket(sid, |socket| socket.shutdown(how))?;
        Ok(0)
    })
}

/// See `pd_close(3)`.
#[no_mangle]
pub extern "C" fn pd_close(sid: c_int) -> c_int {
    guard(-1, || {
        match remove(sid)? {
            Named::Socket(socket) => socket.close()?,
            Named::Epoll(epoll) => epoll.close(),
            Named::Other(other) => pipe::close(&other),
        }
        Ok(0)
    })
}
