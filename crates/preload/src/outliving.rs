//! Connections whose last number a thread closes while calls of other threads sleep on them. The kernel's file lives as long as such a
//! call, which goes on and gets what comes; the peer hears of the end afterwards. So does a connection on the fabric: it goes on with
//! a number of the library's, and is closed with the last of these calls.
use crate::call::lock;
use crate::closing::before_close;
use crate::ending::drop_fd;
use crate::entry::Entry;
use libc::c_int;
use pd_client::core::OwnFd;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// A call that sleeps on a connection, from its first sleep to its end.
#[derive(Debug)]
pub(crate) struct Sleeper<'a>(&'a Arc<Entry>);

impl<'a> Sleeper<'a> {
    pub(crate) fn new(entry: &'a Arc<Entry>) -> Self {
        // One order with `keep`: that sees the sleeper, or the sleeper sees what was kept.
        entry.outliving.sleepers.fetch_add(1, Ordering::SeqCst);
        Self(entry)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        let outliving = &self.0.outliving;
        if outliving.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 && outliving.does.load(Ordering::SeqCst) {
            end(self.0);
        }
    }
}

/// The last number of a connection, which is not in the table any more, is about to be closed. True: the connection outlives it.
pub(crate) fn keep(entry: &Arc<Entry>, fd: c_int) -> bool {
    let outliving = &entry.outliving;
    if outliving.sleepers.load(Ordering::SeqCst) == 0 || entry.twin().is_none() || !entry.has_one_fd() {
        return false;
    }
    // SAFETY: the program's descriptor, for the time of its call.
    let Some(number) = OwnFd::copy(unsafe { BorrowedFd::borrow_raw(fd) }) else { return false };
    entry.move_to(number.as_raw_fd());
    *lock(&outliving.number) = Some(number);
    outliving.does.store(true, Ordering::SeqCst);
    if outliving.sleepers.load(Ordering::SeqCst) == 0 {
        end(entry);
    }
    true
}

#[cold]
fn end(entry: &Arc<Entry>) {
    let Some(number) = lock(&entry.outliving.number).take() else { return };
    let fd = number.as_raw_fd();
    before_close(entry, fd);
    // The kernel's is closed first, as in any close.
    drop(number);
    drop_fd(entry, fd);
}
