//! `sendfile` and `splice`.
use super::hooks;
use crate::away::Moves;
use crate::call::{checked, errno, moving, Failure, Outcome};
use crate::twin::Twin;
use crate::{entry, reach, real, table};
use libc::{c_int, c_uint, loff_t, off_t, size_t, ssize_t};
use pd_client::core::{outside, Socket};
use pd_client::Error;
use std::cell::Cell;
use std::os::fd::BorrowedFd;

/// Bytes that a writable pipe takes without waiting.
const PIPE_BYTES: usize = 4096;
/// Most that one `splice` out of a connection moves.
const SPLICE_BYTES_MAX: usize = 64 << 10;

hooks! {
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        if table::look(out) == table::PLAIN {
            return real::sendfile(out, from, offset, count);
        }
        moving(out, Moves::Sends, || send_file(out, from, offset, count), || real::sendfile(out, from, offset, count))
    }

    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        if table::look(out) == table::PLAIN {
            return real::sendfile64(out, from, offset, count);
        }
        moving(out, Moves::Sends, || send_file(out, from, offset, count), || real::sendfile64(out, from, offset, count))
    }

    fn splice(
        from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, len: size_t, flags: c_uint,
    ) -> ssize_t {
        let plain = || real::splice(from, from_offset, to, to_offset, len, flags);
        if table::look(from) == table::PLAIN && table::look(to) == table::PLAIN {
            return plain();
        }
        let (fd, what) =
            if table::look(to) == table::PLAIN { (from, Moves::Receives) } else { (to, Moves::Sends) };
        moving(
            fd,
            what,
            || match entry::twinned(to) {
                Ok(_) => from_pipe(from, to, len, flags),
                Err(Failure::Kernel) => Err(Failure::Kernel),
                Err(_) => to_pipe(from, to, len, flags),
            },
            plain,
        )
    }
}

unsafe fn send_file(out: c_int, from: c_int, offset: *mut off_t, count: usize) -> Outcome<ssize_t> {
    let entry = entry::twinned(out)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    if !offset.is_null() && !reach::is_readable(offset, size_of::<off_t>()) {
        return Err(Failure::Errno(libc::EFAULT));
    }
    // SAFETY: the caller's offset, if any.
    let at = Cell::new(if offset.is_null() { None } else { Some(unsafe { offset.read() }) });
    let mut fill = |place: *mut u8, room| {
        // SAFETY: the place has so much room.
        let filled = unsafe {
            match at.get() {
                Some(at) => libc::pread(from, place.cast(), room, at),
                None => real::read(from, place.cast(), room),
            }
        };
        let filled =
            usize::try_from(filled).map_err(|_| Error::with_errno(errno(), "the file cannot be read"))?;
        at.set(at.get().map(|at| at + filled as off_t));
        Ok(filled)
    };
    let mut by_driver = |socket: &Socket, most| {
        // SAFETY: only asks for, and sets, the file's position.
        let seek = |by, whence| unsafe { libc::lseek(from, by, whence) };
        let begin = at.get().unwrap_or_else(|| seek(0, libc::SEEK_CUR));
        let (Ok(begin), true) = (u64::try_from(begin), from >= 0) else { return Ok(None) };
        // SAFETY: the program's descriptor, for the time of its call.
        let sent = socket.send_by_driver(unsafe { BorrowedFd::borrow_raw(from) }, begin, most)?;
        if let Some(sent) = sent {
            match at.get() {
                Some(before) => at.set(Some(before + sent as off_t)),
                None => drop(seek(sent as off_t, libc::SEEK_CUR)),
            }
        }
        Ok(sent)
    };
    let sent = twin.transmit_from(&entry, count, true, &mut fill, &mut by_driver)?;
    if !offset.is_null() {
        // SAFETY: as above.
        unsafe { *offset += sent as off_t };
    }
    Ok(sent as ssize_t)
}

fn wait_for(fd: c_int, events: i16, wait: bool) -> Outcome<()> {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one descriptor.
    match checked(outside(|| unsafe { real::poll(&mut poll, 1, if wait { -1 } else { 0 }) }))? {
        0 => Err(Failure::Errno(libc::EAGAIN)),
        _ => Ok(()),
    }
}

fn bytes_in(pipe: c_int) -> usize {
    let mut bytes: c_int = 0;
    // SAFETY: room for a number.
    let result = unsafe { real::ioctl(pipe, libc::FIONREAD, &raw mut bytes as libc::c_ulong) };
    if result == 0 {
        usize::try_from(bytes).unwrap_or(0)
    } else {
        0
    }
}

fn from_pipe(from: c_int, to: c_int, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    let entry = entry::twinned(to)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    let wait = flags & libc::SPLICE_F_NONBLOCK == 0;
    wait_for(from, libc::POLLIN, wait)?;
    // What is there: a read of it does not wait.
    let there = bytes_in(from).min(len);
    let mut fill = |place: *mut u8, room| {
        // SAFETY: the place has so much room.
        let filled = unsafe { real::read(from, place.cast(), room) };
        usize::try_from(filled).map_err(|_| Error::with_errno(errno(), "the pipe cannot be read"))
    };
    let sent = twin.transmit_from(&entry, there, wait, &mut fill, &mut |_, _| Ok(None))?;
    Ok(sent as ssize_t)
}

fn to_pipe(from: c_int, to: c_int, len: usize, flags: c_uint) -> Outcome<ssize_t> {
    let entry = entry::twinned(from)?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    let wait = flags & libc::SPLICE_F_NONBLOCK == 0;
    wait_for(to, libc::POLLOUT, wait)?;
    let empty = bytes_in(to) == 0;
    // SAFETY: only asks.
    let size = unsafe { real::fcntl(to, libc::F_GETPIPE_SZ, 0) };
    let room = if empty { usize::try_from(size).unwrap_or(PIPE_BYTES) } else { PIPE_BYTES };
    let mut bytes = vec![0u8; len.min(room).min(SPLICE_BYTES_MAX)];
    let dont_wait = if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the buffer's memory.
    let received = unsafe { receive(twin, &entry, &mut bytes, libc::MSG_PEEK | dont_wait) }?;
    if received == 0 {
        return Ok(0);
    }
    // SAFETY: the buffer's memory.
    let written = checked(unsafe { real::write(to, bytes.as_ptr().cast(), received) })?;
    // SAFETY: the buffer's memory.
    unsafe { receive(twin, &entry, &mut bytes[..written as usize], libc::MSG_DONTWAIT) }?;
    Ok(written)
}

unsafe fn receive(
    twin: &Twin,
    entry: &std::sync::Arc<entry::Entry>,
    bytes: &mut [u8],
    flags: c_int,
) -> Outcome<usize> {
    let piece = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    // SAFETY: the buffer's memory.
    unsafe { twin.receive(entry, &piece, flags) }
}
