//! Open files: what the numbers of one entry stand for, and calls in progress. As in the kernel, a close takes a number away at once,
//! and a call that another thread has begun goes on with the file. The last of its numbers and calls ends the connection.
use crate::call::lock;
use libc::c_int;
use pd_client::core::OwnFd;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, Weak};

/// The open file of an object, an [`Entry`](crate::entry::Entry). The table holds it for each number, and each call on its connection until
/// the call is over.
#[derive(Debug)]
pub(crate) struct OpenFile<T> {
    entry: Arc<T>,
    kept: Mutex<Option<Kept<T>>>,
}

/// A number of the library's for calls that go on, where the program's is closed, or may be without the library's noticing.
#[derive(Debug)]
struct Kept<T> {
    number: OwnFd,
    /// Ends a connection whose last number was closed.
    end: Option<fn(&Arc<T>, OwnFd)>,
    /// The open file of the connection in the kernel, from where it may come back.
    successor: Option<Arc<OpenFile<T>>>,
}

impl<T> OpenFile<T> {
    /// Returns the open file of an entry that keeps it as `known`. Made for the first number.
    pub(crate) fn of(entry: &Arc<T>, known: &Mutex<Weak<Self>>) -> Arc<Self> {
        let mut known = lock(known);
        known.upgrade().unwrap_or_else(|| {
            let file = Arc::new(Self { entry: entry.clone(), kept: Mutex::default() });
            *known = Arc::downgrade(&file);
            file
        })
    }

    pub(crate) fn entry(&self) -> &Arc<T> {
        &self.entry
    }

    /// Keeps the connection under another number until the last call is over, which has `end` called.
    pub(crate) fn outlive(&self, number: OwnFd, end: fn(&Arc<T>, OwnFd)) {
        *lock(&self.kept) = Some(Kept { number, end: Some(end), successor: None });
    }

    /// Leaves the connection to the kernel, where calls of other threads go on under a number of the library's.
    pub(crate) fn leave(&self, copy: impl FnOnce() -> Option<OwnFd>, successor: Option<Arc<Self>>) {
        let mut kept = lock(&self.kept);
        match &mut *kept {
            Some(kept) => kept.successor = successor,
            // Without descriptors they go on under the program's number.
            None => *kept = copy().map(|number| Kept { number, end: None, successor }),
        }
    }

    /// Returns the number under which calls go on that began with `programs`: the library's, if there is one by now.
    pub(crate) fn number_or(&self, programs: c_int) -> c_int {
        self.number().unwrap_or(programs)
    }

    /// Returns the number of the library's, if calls go on under one. It stays open as long as the open file is held.
    pub(crate) fn number(&self) -> Option<c_int> {
        lock(&self.kept).as_ref().map(|kept| kept.number.as_raw_fd())
    }

    /// Returns the open file of the connection in the kernel, if calls go on there under a number of the library's.
    pub(crate) fn successor(&self) -> Option<Arc<Self>> {
        lock(&self.kept).as_ref()?.successor.clone()
    }
}

impl<T> Deref for OpenFile<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.entry
    }
}

impl<T> Drop for OpenFile<T> {
    fn drop(&mut self) {
        let kept = lock(&self.kept).take();
        if let Some(Kept { number, end: Some(end), .. }) = kept {
            end(&self.entry, number);
        }
    }
}
