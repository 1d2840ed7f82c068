//! Doorbells: eventfds on which an instance's threads sleep beside the wake pipes, and which peers ring that have news for a connection
//! on the direct path. So a peer wakes a thread in epoll without the driver.
//!
//! A doorbell stands for all connections of the instance with one peer process. The peer may ring in vain: then they are looked at.
use super::item::Item;
use super::Epoll;
use crate::own::OwnFd;
use crate::turn::lock;
use foldhash::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Sleeps after which an instance asks for doorbells: which costs a frame for each connection.
const SLEEPS_MIN: u32 = 8;
/// Waits of an instance with a descriptor of its own, which sleeps elsewhere, in which it asks.
const EXPORTED_MAX: u32 = 64;
/// Connections for which it asks before one sleep.
const ASKS_MAX: usize = 4;
/// Connections of one doorbell, all of which are looked at when it rings. For others the driver posts events.
const ITEMS_MAX: usize = 256;

static INSTANCES: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(super) struct Doorbells {
    /// Tells the instance from others of the process.
    instance: u64,
    sleeps: u32,
    by_number: HashMap<u64, Doorbell>,
}

impl Default for Doorbells {
    fn default() -> Self {
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed);
        Self { instance, sleeps: 0, by_number: HashMap::default() }
    }
}

#[derive(Debug)]
struct Doorbell {
    fd: Arc<OwnFd>,
    items: Vec<Arc<Item>>,
}

impl Doorbells {
    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }
}

impl Epoll {
    /// Before a sleep in which the peers of these have to send news.
    pub(super) fn ask_for_doorbells<'a>(&self, items: impl ExactSizeIterator<Item = &'a Arc<Item>>) {
        if items.len() == 0 {
            return;
        }
        let instance = {
            let mut doorbells = lock(&self.doorbells);
            doorbells.sleeps = doorbells.sleeps.saturating_add(1);
            if doorbells.sleeps < SLEEPS_MIN {
                return;
            }
            doorbells.instance
        };
        // Threads that sleep on a futex notice no doorbell. Without descriptors the driver goes on waking them.
        if self.ready.kernel.get().is_none() && self.kernel().is_err() {
            return;
        }
        let unasked = items.filter(|item| !item.doorbell_asked.load(Ordering::Relaxed));
        for item in unasked.take(ASKS_MAX) {
            let Some(source) = item.source.upgrade() else { continue };
            if source.ask_for_doorbell(item, instance, &|number, fd| self.add_doorbell(number, fd, item)) {
                item.doorbell_asked.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Asks for doorbells in one of the first waits of an instance on whose descriptor a thread sleeps.
    pub(super) fn ask_when_exported(&self) {
        if lock(&self.doorbells).sleeps < EXPORTED_MAX {
            let items: Vec<_> = lock(&self.items).values().cloned().collect();
            self.ask_for_doorbells(items.iter());
        }
    }

    /// Makes the instance's threads sleep on it, too. False: the item's peer is not to ring it.
    pub(super) fn add_doorbell(&self, number: u64, fd: Arc<OwnFd>, item: &Arc<Item>) -> bool {
        let Some(kernel) = self.ready.kernel.get() else { return false };
        let mut doorbells = lock(&self.doorbells);
        if let Some(doorbell) = doorbells.by_number.get_mut(&number) {
            let fits = doorbell.items.len() < ITEMS_MAX;
            if fits {
                doorbell.items.push(item.clone());
            }
            return fits;
        }
        if kernel.add_doorbell(number, &fd).is_err() {
            return false;
        }
        doorbells.by_number.insert(number, Doorbell { fd, items: vec![item.clone()] });
        drop(doorbells);
        // Threads that sleep on a futex are to sleep in the kernel's instance from now on.
        self.ready.changes.fetch_add(1, Ordering::Release);
        self.wake_all();
        true
    }

    /// The item is taken out of the instance.
    pub(super) fn leave_doorbell(&self, item: &Arc<Item>) {
        if !item.doorbell_asked.load(Ordering::Relaxed) {
            return;
        }
        lock(&self.doorbells).by_number.retain(|_, doorbell| {
            doorbell.items.retain(|known| !Arc::ptr_eq(known, item));
            let used = !doorbell.items.is_empty();
            if !used {
                // The peer has the same eventfd: that it is closed here does not take it out.
                self.ready.kernel.get().iter().for_each(|kernel| kernel.remove_doorbell(&doorbell.fd));
            }
            used
        });
    }

    /// Queues what may have news.
    pub(super) fn rung(&self, numbers: &[u64]) {
        if numbers.is_empty() {
            return;
        }
        let items: Vec<_> = {
            let doorbells = lock(&self.doorbells);
            let rung = numbers.iter().filter_map(|number| doorbells.by_number.get(number));
            rung.flat_map(|doorbell| doorbell.items.iter().cloned()).collect()
        };
        items.iter().for_each(|item| self.ready.push(item));
    }
}
