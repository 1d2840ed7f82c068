//! Items of a socket in epoll instances, which are told when something may have happened to it.
use super::item::Item;
use crate::turn::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The epoll items of one socket.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(super) items: Mutex<Vec<Arc<Item>>>,
    pub(super) subscribed: AtomicBool,
    /// See [`Socket::hold_out`].
    pub(super) out_held: AtomicBool,
}

impl Watch {
    /// Something may have happened to the socket.
    pub(crate) fn notify(&self) {
        for item in lock(&self.items).iter() {
            if let Some(queue) = item.queue.upgrade() {
                queue.push(item);
            }
        }
    }

    /// Returns whether the driver posts `Ready` events for the socket.
    #[inline]
    pub(crate) fn subscribed(&self) -> bool {
        self.subscribed.load(Ordering::Relaxed)
    }
}
