//! Open files: what the numbers of one entry stand for, and calls in progress. As in the kernel, a close takes a number away at once,
//! and a call that another thread has begun goes on with the file. The last of its numbers and calls ends the connection.
use crate::call::lock;
use pd_client::core::OwnFd;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};

/// The open file of an object, an [`Entry`](crate::entry::Entry). The table holds it for each number, and each call on its connection until
/// the call is over.
#[derive(Debug)]
pub(crate) struct OpenFile<T> {
    entry: Arc<T>,
    outlives: Mutex<Option<Outlives<T>>>,
}

/// A connection whose last number was closed while calls went on.
#[derive(Debug)]
struct Outlives<T> {
    /// Number of the library's for it.
    number: OwnFd,
    /// Ends it.
    end: fn(&Arc<T>, OwnFd),
}

impl<T> OpenFile<T> {
    /// Returns the open file of an entry that keeps it as `known`. Made for the first number.
    pub(crate) fn of(entry: &Arc<T>, known: &Mutex<Weak<Self>>) -> Arc<Self> {
        let mut known = lock(known);
        known.upgrade().unwrap_or_else(|| {
            let file = Arc::new(Self { entry: entry.clone(), outlives: Mutex::default() });
            *known = Arc::downgrade(&file);
            file
        })
    }

    pub(crate) fn entry(&self) -> &Arc<T> {
        &self.entry
    }

    /// Keeps the connection under another number until the last call is over, which has `end` called.
    pub(crate) fn outlive(&self, number: OwnFd, end: fn(&Arc<T>, OwnFd)) {
        *lock(&self.outlives) = Some(Outlives { number, end });
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
        let outlives = lock(&self.outlives).take();
        if let Some(Outlives { number, end }) = outlives {
            end(&self.entry, number);
        }
    }
}
