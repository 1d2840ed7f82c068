//! `sendfile`.
use super::hooks;
use crate::away::calls::moving;
use crate::call::{errno, Failure, Outcome};
use crate::counts::Moves;
use crate::held::Held;
use crate::{reach, real, table};
use libc::{c_int, off_t, size_t, ssize_t};
use pd_client::core::Socket;
use pd_client::Error;
use std::cell::Cell;
use std::os::fd::BorrowedFd;

hooks! {
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        if table::look(out) == table::PLAIN {
            return real::sendfile(out, from, offset, count);
        }
        moving(out, Moves::Sends, |held| send_file(held, from, offset, count), |out| real::sendfile(out, from, offset, count))
    }

    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        if table::look(out) == table::PLAIN {
            return real::sendfile64(out, from, offset, count);
        }
        moving(out, Moves::Sends, |held| send_file(held, from, offset, count), |out| real::sendfile64(out, from, offset, count))
    }
}

unsafe fn send_file(held: &Held, from: c_int, offset: *mut off_t, count: usize) -> Outcome<ssize_t> {
    let entry = held.twinned()?;
    let twin = entry.twin().ok_or(Failure::Plain)?;
    if table::look(from) != table::PLAIN {
        // No file: the kernel says what is wrong, and moves nothing.
        return Err(Failure::Plain);
    }
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
    let mut sent = twin.transmit_from(entry, count, true, &mut fill, &mut by_driver)?;
    if sent < count {
        let look = |place: &mut [u8], done: usize| {
            // SAFETY: the place's memory; only asks for the file's position.
            unsafe {
                let begin = at.get().unwrap_or_else(|| libc::lseek(from, 0, libc::SEEK_CUR));
                libc::pread(from, place.as_mut_ptr().cast(), place.len(), begin + done as off_t)
            }
        };
        let more = twin.finish_by_kernel(entry, count - sent, &look);
        sent += more;
        if at.get().is_none() && more > 0 {
            // SAFETY: sets the file's position.
            unsafe { libc::lseek(from, more as off_t, libc::SEEK_CUR) };
        }
    }
    if !offset.is_null() {
        // SAFETY: as above.
        unsafe { *offset += sent as off_t };
    }
    Ok(sent as ssize_t)
}
