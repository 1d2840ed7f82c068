//! Receiving.
use super::hooks;
use crate::away::calls::{moving, moving_as};
use crate::call::{Failure, Outcome};
use crate::claim::watch;
use crate::counts::Moves;
use crate::held::Held;
use crate::{hearsay, inherited, reach, real, table, unix};
use libc::{c_int, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use std::cell::Cell;
use std::time::{Duration, Instant};

hooks! {
    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        // Reading nothing is no call on a socket.
        if table::look(fd) == table::PLAIN || len == 0 {
            watch::before_read(fd);
            return hearsay::told(real::read(fd, buffer, len));
        }
        moving(fd, Moves::Receives, |held| receive(held, buffer, len, 0), |fd| real::read(fd, buffer, len))
    }

    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if table::look(fd) == table::PLAIN || len > room {
            return real::__read_chk(fd, buffer, len, room);
        }
        read(fd, buffer, len)
    }

    fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            watch::before_read(fd);
            return hearsay::told(real::readv(fd, pieces, count));
        }
        moving(fd, Moves::Receives, |held| read_pieces(held, pieces, count as usize, 0), |fd| real::readv(fd, pieces, count))
    }

    fn preadv2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN || offset != -1 {
            return real::preadv2(fd, pieces, count, offset, flags);
        }
        moving(
            fd,
            Moves::Receives,
            |held| read_pieces(held, pieces, count as usize, dont_wait(flags)),
            |fd| real::preadv2(fd, pieces, count, offset, flags),
        )
    }

    fn preadv64v2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN || offset != -1 {
            return real::preadv64v2(fd, pieces, count, offset, flags);
        }
        moving(
            fd,
            Moves::Receives,
            |held| read_pieces(held, pieces, count as usize, dont_wait(flags)),
            |fd| real::preadv64v2(fd, pieces, count, offset, flags),
        )
    }

    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            watch::before_read(fd);
            return hearsay::told(real::recv(fd, buffer, len, flags));
        }
        moving(fd, Moves::receives(flags), |held| receive(held, buffer, len, flags), |fd| real::recv(fd, buffer, len, flags))
    }

    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN || len > room {
            return real::__recv_chk(fd, buffer, len, room, flags);
        }
        recv(fd, buffer, len, flags)
    }

    fn recvfrom(
        fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            watch::before_read(fd);
            return hearsay::told(real::recvfrom(fd, buffer, len, flags, address, address_len));
        }
        moving(
            fd,
            Moves::receives(flags),
            |held| {
                let received = receive(held, buffer, len, flags)?;
                if !address.is_null() {
                    reach::checked(address_len, size_of::<socklen_t>())?;
                    *address_len = sender(held, received, address.cast(), *address_len);
                }
                Ok(received)
            },
            |fd| real::recvfrom(fd, buffer, len, flags, address, address_len),
        )
    }

    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t,
    ) -> ssize_t {
        if table::look(fd) == table::PLAIN || len > room {
            return real::__recvfrom_chk(fd, buffer, len, room, flags, address, address_len);
        }
        recvfrom(fd, buffer, len, flags, address, address_len)
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            watch::before_read(fd);
            return hearsay::told(plain_message(fd, message, flags));
        }
        moving(
            fd,
            Moves::receives(flags),
            |held| receive_message(held, message, flags),
            |fd| plain_message(fd, message, flags),
        )
    }

    fn recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: libc::c_uint, flags: c_int, timeout: *mut timespec,
    ) -> c_int {
        let plain = |fd| {
            let received = real::recvmmsg(fd, messages, count, flags, timeout);
            (0..received.max(0) as usize).for_each(|place| note_passed(&(*messages.add(place)).msg_hdr));
            received
        };
        if table::look(fd) == table::PLAIN {
            return hearsay::told(plain(fd));
        }
        let goes_on = Cell::new(false);
        let received = moving_as(
            fd,
            Moves::receives(flags),
            |held| receive_messages(held, messages, count as usize, flags, timeout, &goes_on),
            plain,
            |received| super::send::bytes_of(messages, received),
        );
        if !goes_on.get() {
            return received;
        }
        // The connection has left between two messages.
        let later = if flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        let (rest, left) = (messages.add(received as usize), count - received as libc::c_uint);
        received + recvmmsg(fd, rest, left, flags | later, timeout).max(0)
    }

    // glibc has some functions by a second name, too.
    fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        read(fd, buffer, len)
    }
}

fn dont_wait(flags: c_int) -> c_int {
    if flags & libc::RWF_NOWAIT != 0 {
        libc::MSG_DONTWAIT
    } else {
        0
    }
}

unsafe fn receive(held: &Held, buffer: *mut c_void, len: usize, flags: c_int) -> Outcome<ssize_t> {
    let entry = held.twinned_for(flags)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    let piece = match flags & libc::MSG_TRUNC {
        0 => super::send::piece(buffer, len)?,
        _ => [iovec { iov_base: buffer, iov_len: len.min(reach::MOVED_MAX) }],
    };
    // SAFETY: the caller's promise.
    unsafe { twin.receive(entry, &piece, flags, false) }.map(|received| received as ssize_t)
}

unsafe fn receive_pieces(
    held: &Held,
    pieces: *const iovec,
    count: usize,
    flags: c_int,
    takes_descriptors: bool,
) -> Outcome<ssize_t> {
    let entry = held.twinned_for(flags)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    // SAFETY: the caller's promise.
    let pieces = unsafe { super::send::pieces(pieces, count, flags & libc::MSG_TRUNC == 0) }?;
    // SAFETY: the caller's promise.
    unsafe { twin.receive(entry, pieces, flags, takes_descriptors) }.map(|received| received as ssize_t)
}

unsafe fn read_pieces(held: &Held, pieces: *const iovec, count: usize, flags: c_int) -> Outcome<ssize_t> {
    held.twinned_for(flags)?;
    // SAFETY: the caller's promise.
    let list = unsafe { super::send::pieces(pieces, count, true) }?;
    if list.iter().all(|piece| piece.iov_len == 0) {
        return Err(Failure::Plain);
    }
    // SAFETY: the caller's promise.
    unsafe { receive_pieces(held, pieces, count, flags, false) }
}

/// Writes who has sent: the kernel's TCP names nobody, AF_UNIX a peer that has a name.
unsafe fn sender(held: &Held, received: ssize_t, at: *mut c_void, room: socklen_t) -> socklen_t {
    match held.twinned() {
        // SAFETY: the caller's room.
        Ok(entry) if received > 0 && entry.twin().is_some_and(|twin| twin.unix) => unsafe {
            unix::write_sender(held.number(), at, room)
        },
        _ => 0,
    }
}

unsafe fn receive_message(held: &Held, message: *mut msghdr, flags: c_int) -> Outcome<ssize_t> {
    held.twinned_for(flags)?;
    reach::checked(message, size_of::<msghdr>())?;
    // SAFETY: the caller's promise.
    unsafe {
        if (*message).msg_iovlen > libc::UIO_MAXIOV as usize {
            return Err(Failure::Errno(libc::EMSGSIZE));
        }
        let room = (*message).msg_controllen;
        let received = receive_pieces(held, (*message).msg_iov, (*message).msg_iovlen, flags, room > 0)?;
        let name = (*message).msg_name;
        (*message).msg_namelen =
            if name.is_null() { 0 } else { sender(held, received, name, (*message).msg_namelen) };
        (*message).msg_controllen = 0;
        (*message).msg_flags = 0;
        if held.twinned().is_ok_and(|entry| entry.twin().is_some_and(|twin| twin.unix)) {
            unix::add_credentials(held.number(), message, room);
        }
        Ok(received)
    }
}

unsafe fn receive_messages(
    held: &Held,
    messages: *mut mmsghdr,
    count: usize,
    flags: c_int,
    timeout: *mut timespec,
    goes_on: &Cell<bool>,
) -> Outcome<c_int> {
    let mut done = 0;
    held.twinned_for(flags)?;
    let limit = limit_at(timeout)?;
    let begin = limit.map(|_| Instant::now());
    while done < count {
        let message = messages.wrapping_add(done);
        if !reach::may_be(message, size_of::<mmsghdr>()) {
            return if done > 0 { Ok(done as c_int) } else { Err(Failure::Errno(libc::EFAULT)) };
        }
        let later = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the caller's array.
        let message = unsafe { &mut *message };
        // SAFETY: the caller's message.
        match unsafe { receive_message(held, &mut message.msg_hdr, flags & !libc::MSG_WAITFORONE | later) } {
            Ok(received) => message.msg_len = received as u32,
            Err(failure) if done == 0 => return Err(failure),
            Err(failure) => {
                goes_on.set(failure.is_kernels());
                break;
            }
        }
        done += 1;
        // As in the kernel, the time is looked at after each message alone.
        if let (Some(limit), Some(begin)) = (limit, begin) {
            let left = limit.saturating_sub(begin.elapsed());
            // SAFETY: the caller's, which was read.
            unsafe {
                *timeout = timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            }
            if left.is_zero() {
                break;
            }
        }
    }
    Ok(done as c_int)
}

/// Returns the time that a call's time-out gives it, if there is one.
fn limit_at(timeout: *const timespec) -> Outcome<Option<Duration>> {
    if timeout.is_null() {
        return Ok(None);
    }
    if !reach::is_readable(timeout, size_of::<timespec>()) {
        return Err(Failure::Errno(libc::EFAULT));
    }
    // SAFETY: it can be read.
    let limit = unsafe { timeout.read_unaligned() };
    if limit.tv_sec < 0 || !(0..1_000_000_000).contains(&limit.tv_nsec) {
        return Err(Failure::Errno(libc::EINVAL));
    }
    Ok(Some(Duration::new(limit.tv_sec as u64, limit.tv_nsec as u32)))
}

/// `recvmsg` of the kernel's.
unsafe fn plain_message(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        let received = real::recvmsg(fd, message, flags);
        if received >= 0 {
            note_passed(message);
        }
        received
    }
}

/// The kernel has received a message: descriptors that came with it may be connections with twins, or epoll instances.
unsafe fn note_passed(message: *const msghdr) {
    // SAFETY: the caller's message, which the kernel has written.
    unsafe {
        if (*message).msg_controllen > 0 && table::enabled() {
            super::send::each_passed(message, inherited::received);
        }
    }
}
