//! Addresses.
use super::hooks;
use crate::call::{call, Failure, Outcome};
use crate::short::passing;
use crate::{lookup, real, table};
use libc::{c_int, sockaddr, socklen_t};

hooks! {
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::bind(fd, address, len);
        }
        call(
            || {
                let entry = lookup::found(fd)?;
                entry.socket().inspect(|socket| socket.facts.touch());
                passing::alter(&entry);
                match entry.twin() {
                    Some(twin) if twin.names.is_some() => Err(Failure::Errno(libc::EINVAL)),
                    _ => Err(Failure::Plain),
                }
            },
            || real::bind(fd, address, len),
        )
    }

    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::getsockname(fd, address, len);
        }
        call(|| write_name(fd, address, len, false), || real::getsockname(fd, address, len))
    }

    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::getpeername(fd, address, len);
        }
        call(|| write_name(fd, address, len, true), || real::getpeername(fd, address, len))
    }
}

/// The name of a connection that the kernel does not know of.
unsafe fn write_name(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, peer: bool) -> Outcome<c_int> {
    let entry = lookup::twinned(fd)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    if peer && twin.is_gone() {
        return Err(Failure::Errno(libc::ENOTCONN));
    }
    let names = twin.names.as_ref().ok_or(Failure::Plain)?;
    if names.is_begun() {
        twin.with(&entry, |_| Ok(()))?;
    }
    // SAFETY: the caller's promise.
    let written = unsafe {
        match peer {
            true => names.write_peer(address, len),
            false => names.write_local(twin.current().as_ref(), address, len),
        }
    };
    written.map(|()| 0).map_err(Failure::Errno)
}
