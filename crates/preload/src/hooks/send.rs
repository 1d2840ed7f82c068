//! Sending.
use super::hooks;
use crate::away::calls::{self, moving, moving_as};
use crate::call::{aside, set_errno, Failure, Outcome};
use crate::counts::Moves;
use crate::epoll_set::registering;
use crate::held::Held;
use crate::pipe::numbers;
use crate::short::passing;
use crate::twin::Twin;
use crate::unix::connecting;
use crate::{reach, real, short, table};
use libc::{c_int, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::cell::Cell;

hooks! {
    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            return real::write(fd, buffer, len);
        }
        moving(fd, Moves::Sends, |held| transmit(held, buffer, len, 0), |fd| real::write(fd, buffer, len))
    }

    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            return real::writev(fd, list, count);
        }
        moving(fd, Moves::Sends, |held| write_pieces(held, list, count as usize, 0), |fd| real::writev(fd, list, count))
    }

    fn pwritev2(fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN || offset != -1 {
            return real::pwritev2(fd, list, count, offset, flags);
        }
        let plain = |fd| real::pwritev2(fd, list, count, offset, flags);
        moving(fd, Moves::Sends, |held| write_pieces(held, list, count as usize, dont_wait(flags)), plain)
    }

    fn pwritev64v2(fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN || offset != -1 {
            return real::pwritev64v2(fd, list, count, offset, flags);
        }
        let plain = |fd| real::pwritev64v2(fd, list, count, offset, flags);
        moving(fd, Moves::Sends, |held| write_pieces(held, list, count as usize, dont_wait(flags)), plain)
    }

    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            return real::send(fd, buffer, len, flags);
        }
        moving(fd, Moves::sends(flags), |held| transmit(held, buffer, len, flags), |fd| real::send(fd, buffer, len, flags))
    }

    fn sendto(
        fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
        address_len: socklen_t,
    ) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            return real::sendto(fd, buffer, len, flags, address, address_len);
        }
        let plain = |fd| real::sendto(fd, buffer, len, flags, address, address_len);
        moving(fd, Moves::sends(flags), |held| transmit(held, buffer, len, flags), plain)
    }

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if table::look(fd) == table::PLAIN {
            return send_plain(fd, message, flags);
        }
        moving(
            fd,
            Moves::sends(flags),
            |held| transmit_message(held, message, flags),
            |fd| send_plain(fd, message, flags),
        )
    }

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: libc::c_uint, flags: c_int) -> c_int {
        let plain = |fd| {
            if table::end() > 0 && reach::is_readable(messages, count as usize * size_of::<mmsghdr>()) {
                aside(|| (0..count as usize).for_each(|place| mark_passed(&(*messages.add(place)).msg_hdr)));
            }
            let sent = real::sendmmsg(fd, messages, count, flags);
            (0..sent.max(0) as usize).for_each(|place| note_passed(&(*messages.add(place)).msg_hdr));
            sent
        };
        if table::look(fd) == table::PLAIN {
            return plain(fd);
        }
        let goes_on = Cell::new(false);
        let sent = moving_as(
            fd,
            Moves::sends(flags),
            |held| transmit_messages(held, messages, count as usize, flags, &goes_on),
            plain,
            |sent| bytes_of(messages, sent),
        );
        if !goes_on.get() {
            return sent;
        }
        // The connection has left between two messages.
        sent + sendmmsg(fd, messages.add(sent as usize), count - sent as libc::c_uint, flags).max(0)
    }

    // glibc has some functions by a second name, too.
    fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        write(fd, buffer, len)
    }

    fn __send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        send(fd, buffer, len, flags)
    }
}

/// `sendmsg` of the kernel's. It cannot hand on a connection that it does not have.
unsafe fn send_plain(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        let is_known = (short::wanted() || table::end() > 0)
            && reach::is_readable(message, size_of::<msghdr>())
            && (*message).msg_controllen > 0;
        if is_known {
            // The peer, or whoever gets a connection, may not count.
            calls::stays(fd);
            let mut refused = false;
            each_passed(message, |fd| {
                calls::stays(fd);
                numbers::passes(fd);
                refused |= short::may_have_any() && passing::refuses_to_pass(fd);
            });
            if refused {
                set_errno(libc::EOPNOTSUPP);
                return -1;
            }
            aside(|| mark_passed(message));
        }
        let sent = real::sendmsg(fd, message, flags);
        if sent >= 0 {
            note_passed(message);
        }
        sent
    }
}

/// A message is about to go: whoever gets a connection by it finds it marked.
unsafe fn mark_passed(message: *const msghdr) {
    // SAFETY: the caller's message, which is readable.
    unsafe {
        if (*message).msg_controllen > 0 {
            each_passed(message, |fd| {
                if let Some(entry) = table::entry(fd) {
                    entry.twin().into_iter().for_each(|twin| twin.mark(fd));
                }
            });
        }
    }
}

/// The kernel has sent a message.
unsafe fn note_passed(message: *const msghdr) {
    // SAFETY: the caller's message, which the kernel has read.
    unsafe {
        if (*message).msg_controllen > 0 {
            aside(|| {
                each_passed(message, |fd| {
                    registering::passed(fd);
                    if let Some(entry) = table::entry(fd) {
                        entry.twin().into_iter().for_each(Twin::has_passed);
                    }
                });
            });
        }
    }
}

/// Bytes that the kernel has moved in so many messages.
pub(super) fn bytes_of(messages: *const mmsghdr, done: c_int) -> i64 {
    // SAFETY: the caller's messages, of which the kernel has written so many.
    (0..done.max(0) as usize).map(|place| unsafe { i64::from((*messages.add(place)).msg_len) }).sum()
}

fn dont_wait(flags: c_int) -> c_int {
    if flags & libc::RWF_NOWAIT != 0 {
        libc::MSG_DONTWAIT
    } else {
        0
    }
}

/// Memory of the program's for a call's bytes; the kernel moves no more in one.
pub(super) fn piece(at: *mut c_void, len: usize) -> Outcome<[iovec; 1]> {
    let len = len.min(reach::MOVED_MAX);
    reach::checked(at, len)?;
    Ok([iovec { iov_base: at, iov_len: len }])
}

/// A list of pieces as the program gives it. `moved`: what they stand for is read or written.
///
/// # Safety
/// `list` has `count` pieces, for as long as the result is used.
pub(super) unsafe fn pieces<'a>(list: *const iovec, count: usize, moved: bool) -> Outcome<&'a [iovec]> {
    if count > libc::UIO_MAXIOV as usize {
        return Err(Failure::Errno(libc::EINVAL));
    }
    if count == 0 {
        return Ok(&[]);
    }
    reach::checked(list, count * size_of::<iovec>())?;
    // SAFETY: the caller's promise; it does not change during the call.
    let all = unsafe { std::slice::from_raw_parts(list, count) };
    for piece in all {
        if piece.iov_len > isize::MAX as usize {
            return Err(Failure::Errno(libc::EINVAL));
        }
        reach::checked(piece.iov_base, if moved { piece.iov_len } else { 0 })?;
    }
    Ok(all)
}

unsafe fn transmit(held: &Held, buffer: *const c_void, len: usize, flags: c_int) -> Outcome<ssize_t> {
    let entry = held.twinned_for(flags)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    let piece = piece(buffer.cast_mut(), len)?;
    // SAFETY: the caller's promise.
    unsafe { twin.transmit(entry, &piece, flags) }.map(|sent| sent as ssize_t)
}

unsafe fn transmit_pieces(held: &Held, list: *const iovec, count: usize, flags: c_int) -> Outcome<ssize_t> {
    let entry = held.twinned_for(flags)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    // SAFETY: the caller's promise.
    let pieces = unsafe { pieces(list, count, true) }?;
    // SAFETY: the caller's promise.
    unsafe { twin.transmit(entry, pieces, flags) }.map(|sent| sent as ssize_t)
}

/// Writing nothing in pieces is no call on a socket.
unsafe fn write_pieces(held: &Held, list: *const iovec, count: usize, flags: c_int) -> Outcome<ssize_t> {
    held.twinned_for(flags)?;
    // SAFETY: the caller's promise.
    let all = unsafe { pieces(list, count, true) }?;
    if all.iter().all(|piece| piece.iov_len == 0) {
        return Err(Failure::Plain);
    }
    // SAFETY: the caller's promise.
    unsafe { transmit_pieces(held, list, count, flags) }
}

unsafe fn transmit_message(held: &Held, message: *const msghdr, flags: c_int) -> Outcome<ssize_t> {
    held.twinned_for(flags)?;
    reach::checked(message, size_of::<msghdr>())?;
    // SAFETY: the caller's message.
    unsafe {
        if (*message).msg_iovlen > libc::UIO_MAXIOV as usize {
            return Err(Failure::Errno(libc::EMSGSIZE));
        }
        if (*message).msg_controllen > 0 {
            leave_for_control(held)?;
        }
        transmit_pieces(held, (*message).msg_iov, (*message).msg_iovlen, flags)
    }
}

/// Has a connection of AF_UNIX leave for the kernel, to carry what the fabric cannot.
fn leave_for_control(held: &Held) -> Outcome<()> {
    let entry = held.twinned()?;
    match entry.twin().filter(|twin| twin.unix) {
        Some(twin) => connecting::leave_for_control(entry, twin),
        None => Ok(()),
    }
}

unsafe fn transmit_messages(
    held: &Held,
    messages: *mut mmsghdr,
    count: usize,
    flags: c_int,
    goes_on: &Cell<bool>,
) -> Outcome<c_int> {
    let mut done = 0;
    held.twinned_for(flags)?;
    while done < count {
        let message = messages.wrapping_add(done);
        if !reach::may_be(message, size_of::<mmsghdr>()) {
            return if done > 0 { Ok(done as c_int) } else { Err(Failure::Errno(libc::EFAULT)) };
        }
        // SAFETY: the caller's array.
        let message = unsafe { &mut *message };
        // SAFETY: the caller's message.
        match unsafe { transmit_message(held, &message.msg_hdr, flags) } {
            Ok(sent) => message.msg_len = sent as u32,
            Err(failure) if done == 0 => return Err(failure),
            Err(failure) => {
                goes_on.set(failure.is_kernels());
                break;
            }
        }
        done += 1;
    }
    Ok(done as c_int)
}

/// Calls `each` with every descriptor in the message.
///
/// # Safety
/// `message` is one.
pub(super) unsafe fn each_passed(message: *const msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: the macros walk the message's control part, whose length bounds them.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for place in 0..bytes / size_of::<c_int>() {
                    each(libc::CMSG_DATA(header).cast::<c_int>().add(place).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
