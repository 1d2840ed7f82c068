//! The sockets of a process, by their serials, and those that are closed and have sends in flight.
use crate::forks::forks;
use crate::kept::Kept;
use crate::per_process::PerProcess;
use crate::socket::Socket;
use crate::turn::lock;
use foldhash::HashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

static SOCKETS: PerProcess<Sockets> = PerProcess::new();

/// See the module.
#[derive(Debug, Default)]
struct Sockets {
    open: RwLock<HashMap<u64, Weak<Socket>>>,
    lingering: Mutex<VecDeque<Arc<Socket>>>,
    serial: AtomicU64,
}

/// A socket found by its serial.
struct Found {
    forks: u32,
    serial: u64,
    socket: Weak<Socket>,
}

thread_local! {
    /// The socket found last: threads that use different sockets do not meet in looking for them.
    static LAST: Kept<Option<Found>> = const { Kept::new(None, || LAST.with(Kept::release)) };
}

/// A serial that no socket has had.
pub(crate) fn next_serial() -> u64 {
    SOCKETS.get().serial.fetch_add(1, Ordering::Relaxed)
}

/// Takes an open socket in.
pub(crate) fn register(socket: &Arc<Socket>) {
    SOCKETS.get().open_mut(|open| open.insert(socket.serial(), Arc::downgrade(socket)));
}

/// Takes a closed socket out; one with sends in flight is looked after until they are done.
pub(crate) fn retire(socket: &Arc<Socket>) {
    let sockets = SOCKETS.get();
    sockets.open_mut(|open| open.remove(&socket.serial()));
    let mut lingering = lock(&sockets.lingering);
    if socket.sends_in_flight() {
        lingering.push_back(socket.clone());
    }
    for _ in 0..lingering.len().min(8) {
        let Some(socket) = lingering.pop_front() else { break };
        if socket.sends_in_flight() {
            lingering.push_back(socket);
        }
    }
}

/// Looks which sends of any socket are done, so that their memory can be used again.
pub(crate) fn reap_all() {
    let Some(sockets) = SOCKETS.made() else { return };
    for socket in sockets.all_open() {
        socket.sends_in_flight();
    }
    lock(&sockets.lingering).retain(|socket| socket.sends_in_flight());
}

/// Returns whether sends may still be delivered.
pub(crate) fn undelivered() -> bool {
    let Some(sockets) = SOCKETS.made() else { return false };
    lock(&sockets.lingering).retain(|socket| socket.sends_undelivered());
    !lock(&sockets.lingering).is_empty() || sockets.all_open().iter().any(|socket| socket.sends_undelivered())
}

/// The open socket with this serial.
pub(crate) fn find(serial: u64) -> Option<Arc<Socket>> {
    let forks = forks();
    let look = |last: &Kept<Option<Found>>| {
        let mut last = last.borrow_mut();
        if last.as_ref().is_none_or(|found| (found.forks, found.serial) != (forks, serial)) {
            let socket = SOCKETS.get().open(|open| open.get(&serial).cloned())?;
            *last = Some(Found { forks, serial, socket });
        }
        last.as_ref()?.socket.upgrade().filter(|socket| !socket.is_closed())
    };
    // A thread that ends has none of its own any more.
    LAST.try_with(look).unwrap_or_else(|_| SOCKETS.get().open(|open| open.get(&serial)?.upgrade()))
}

impl Sockets {
    fn all_open(&self) -> Vec<Arc<Socket>> {
        self.open(|open| open.values().filter_map(Weak::upgrade).collect())
    }

    fn open<R>(&self, look: impl FnOnce(&HashMap<u64, Weak<Socket>>) -> R) -> R {
        look(&self.open.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn open_mut<R>(&self, change: impl FnOnce(&mut HashMap<u64, Weak<Socket>>) -> R) -> R {
        change(&mut self.open.write().unwrap_or_else(PoisonError::into_inner))
    }
}
