//! Steps before a number is closed: sent bytes reach the peer, and the peer is told how the connection ends.
use crate::call::aside;
use crate::claim::settling;
use crate::ending::{drop_fd, release};
use crate::entry::{Entry, State};
use crate::epoll_set::standing;
use crate::fabric;
use crate::open_file::OpenFile;
use crate::short::reuse;
use libc::c_int;
use pd_client::core::OwnFd;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// Closes a number, which the table does not have any more. Returns the entry if the caller closes it at once: it has other numbers, or no call of
/// another thread is in progress. Returns the open file otherwise, which the caller drops after the kernel's close: the calls may be over by then,
/// and the driver asks the kernel whether another process holds a socket that ends.
pub(crate) fn close(file: Arc<OpenFile<Entry>>, fd: c_int) -> Result<Arc<Entry>, Arc<OpenFile<Entry>>> {
    let entry = file.entry().clone();
    // No call begins any more: without one the only reference is this one.
    let may_outlive =
        entry.epoll().is_some() || entry.socket().is_some_and(|socket| socket.state().is_some());
    if Arc::strong_count(&file) == 1 || !may_outlive || !entry.has_one_fd() {
        return Ok(entry);
    }
    // SAFETY: the program's descriptor, for the time of its call.
    let number = OwnFd::copy(unsafe { BorrowedFd::borrow_raw(fd) });
    // Without descriptors these calls fail with `EBADF`.
    let Some(number) = number else { return Ok(entry) };
    if !entry.move_to(fd, number.as_raw_fd()) {
        return Ok(entry);
    }
    standing::leave_all(&entry);
    file.outlive(number, end);
    Err(file)
}

#[cold]
fn end(entry: &Arc<Entry>, number: OwnFd) {
    let fd = number.as_raw_fd();
    aside(|| {
        before_close(entry, fd);
        // The kernel's is closed first, as in any close.
        drop(number);
        drop_fd(entry, fd);
        // A connection that went back to the kernel meanwhile has an entry for this number.
        release(fd);
    });
}

/// A number is about to be closed.
pub(crate) fn before_close(entry: &Arc<Entry>, fd: c_int) {
    if let Some(pipe) = entry.pipe() {
        return pipe.expose();
    }
    if !entry.has_one_fd() {
        return;
    }
    standing::leave_all(entry);
    match entry.socket().and_then(|socket| socket.state()) {
        Some(State::Listener(_)) => fabric::unlisten(fd),
        Some(State::Twin(twin)) => {
            twin.note_reset(entry, fd);
            if !twin.is_shared() {
                settling::settle_before_close(entry);
                reuse::keep(fd, entry, twin);
            }
            twin.aside.closes();
        }
        _ => {}
    }
}
