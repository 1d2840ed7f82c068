//! Open files: what the numbers of one entry stand for, and calls in progress. As in the kernel, a close takes a number away at once,
//! and a call that another thread has begun goes on with the file. The last of its numbers and calls ends the connection.
use crate::call::{aside, lock};
use crate::closing::before_close;
use crate::ending::{drop_fd, release};
use crate::entry::Entry;
use crate::epoll_set::standing;
use libc::c_int;
use pd_client::core::OwnFd;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// An open file. The table holds it for each number, and each call on its connection until the call is over.
#[derive(Debug)]
pub(crate) struct OpenFile {
    entry: Arc<Entry>,
    /// Number of the library's for a connection whose last number was closed while calls went on.
    outlives_as: Mutex<Option<OwnFd>>,
}

impl OpenFile {
    /// Returns the open file of an entry, which is made for its first number.
    pub(crate) fn of(entry: &Arc<Entry>) -> Arc<Self> {
        let mut known = lock(&entry.file);
        known.upgrade().unwrap_or_else(|| {
            let file = Arc::new(Self { entry: entry.clone(), outlives_as: Mutex::default() });
            *known = Arc::downgrade(&file);
            file
        })
    }

    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }
}

impl Deref for OpenFile {
    type Target = Arc<Entry>;

    fn deref(&self) -> &Arc<Entry> {
        &self.entry
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let number = self.outlives_as.get_mut().unwrap_or_else(|lost| lost.into_inner()).take();
        if let Some(number) = number {
            end(&self.entry, number);
        }
    }
}

/// Closes a number, which the table does not have any more. Returns the entry if the caller closes it at once: the connection has other
/// numbers, or no call of another thread is in progress.
pub(crate) fn close(file: Arc<OpenFile>, fd: c_int) -> Option<Arc<Entry>> {
    let entry = file.entry().clone();
    // No call begins any more: without one the only reference is this one.
    if Arc::strong_count(&file) == 1 || entry.twin().is_none() || !entry.has_one_fd() {
        return Some(entry);
    }
    // SAFETY: the program's descriptor, for the time of its call.
    let number = OwnFd::copy(unsafe { BorrowedFd::borrow_raw(fd) });
    // Without descriptors these calls fail with `EBADF`.
    let Some(number) = number else { return Some(entry) };
    standing::leave_all(&entry);
    entry.move_to(number.as_raw_fd());
    *lock(&file.outlives_as) = Some(number);
    // The last call ends it, or this one if all are over.
    None
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
