//! Non-blocking connections that were begun, and whose answers from the driver nobody has waited for. A loop that begins
//! many goes on meanwhile; its next wait, or the next call on one of them, waits for the answers first.
//!
//! The driver may refuse, though somebody took such connections at the address before: then the kernel connects, which
//! the program does not notice.
use super::names::Names;
use super::reuse::renew;
use crate::call::lock;
use crate::entry::Entry;
use crate::epoll_set::standing;
use crate::log::note;
use crate::twin::Twin;
use crate::{fabric, real, table};
use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};
use pd_client::core::this_thread;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// Answers that may be outstanding: the driver keeps them for us.
const BEGUN_MAX: usize = 64;
/// Addresses remembered.
const FOUND_MAX: usize = 1024;

pub(crate) static BEGUN: Mutex<Vec<Weak<Entry>>> = Mutex::new(Vec::new());
/// Number of connections that may be begun.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Held by the thread that waits for answers. A thread that comes meanwhile finds all of them settled.
pub(crate) static SETTLING: Mutex<()> = Mutex::new(());
/// The thread that holds [`SETTLING`]: a signal handler of its own does not wait for it.
static SETTLER: AtomicUsize = AtomicUsize::new(0);
pub(crate) static FOUND: RwLock<Option<HashSet<SocketAddr>>> = RwLock::new(None);

/// Tells whether a connection of this kind was taken at `to`, and none was refused since.
pub(super) fn has_found(to: SocketAddr) -> bool {
    let found = FOUND.read().unwrap_or_else(PoisonError::into_inner);
    found.as_ref().is_some_and(|found| found.contains(&to))
}

/// Records that a connection of this kind was taken at `to`.
pub(super) fn found(to: SocketAddr) {
    if has_found(to) {
        return;
    }
    let mut found = FOUND.write().unwrap_or_else(PoisonError::into_inner);
    let found = found.get_or_insert_default();
    if found.len() >= FOUND_MAX {
        found.clear();
    }
    found.insert(to);
}

fn lost(to: SocketAddr) {
    let mut found = FOUND.write().unwrap_or_else(PoisonError::into_inner);
    found.as_mut().map(|found| found.remove(&to));
}

/// Adds a connection that was begun.
pub(super) fn add(entry: &Arc<Entry>) {
    let full = {
        let mut begun = lock(&BEGUN);
        begun.push(Arc::downgrade(entry));
        COUNT.store(begun.len(), Ordering::Relaxed);
        begun.len() >= BEGUN_MAX
    };
    if full {
        settle_all();
    }
}

/// Tells whether answers have to be waited for.
#[inline]
pub(crate) fn are_any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Waits for the answers of all. Before anything is waited for.
#[inline]
pub(crate) fn settle_all() {
    if are_any() {
        settle_each();
    }
}

#[cold]
fn settle_each() {
    in_turn(|| {
        let begun = std::mem::take(&mut *lock(&BEGUN));
        begun.iter().filter_map(Weak::upgrade).for_each(|entry| take_answer(&entry));
        let begun = lock(&BEGUN);
        COUNT.store(begun.len(), Ordering::Relaxed);
    });
}

/// Waits for the answer of one. The connection is the kernel's afterwards if the driver has refused it.
pub(crate) fn settle(entry: &Arc<Entry>) {
    if entry.twin().and_then(|twin| twin.names.as_ref()).is_some_and(Names::is_begun) {
        in_turn(|| take_answer(entry));
    }
}

/// A forked child has begun none.
pub(super) fn forget() {
    COUNT.store(0, Ordering::Relaxed);
    // A thread of the parent's may have had the lock.
    if let Ok(mut begun) = BEGUN.try_lock() {
        begun.clear();
    }
}

fn in_turn(work: impl FnOnce()) {
    if SETTLER.load(Ordering::Relaxed) == this_thread() {
        return;
    }
    let _settling = lock(&SETTLING);
    SETTLER.store(this_thread(), Ordering::Relaxed);
    work();
    SETTLER.store(0, Ordering::Relaxed);
}

fn take_answer(entry: &Arc<Entry>) {
    let Some(twin) = entry.twin() else { return };
    let Some(names) = twin.names.as_ref().filter(|names| names.is_begun()) else { return };
    let Some(end) = twin.current() else { return };
    match end.finish_connect() {
        Ok(()) => note!("connected to {}, on the fabric alone", names.peer()),
        Err(error) if error.errno() == libc::EBADF => note!("closed before it was connected: {error}"),
        Err(error) => {
            lost(names.peer());
            fabric::refuse_short(names.peer(), &error);
            leave_to_kernel(entry, twin, names);
        }
    }
    names.begun.store(false, Ordering::Release);
}

fn leave_to_kernel(entry: &Arc<Entry>, twin: &Twin, names: &Names) {
    let Some(fd) = entry.any_fd() else { return };
    renew(entry);
    // SAFETY: room for any address, and its size.
    unsafe {
        let mut to: sockaddr_storage = std::mem::zeroed();
        let mut len = size_of::<sockaddr_storage>() as socklen_t;
        let at = (&raw mut to).cast::<sockaddr>();
        if names.write_peer(at, &mut len).is_ok() {
            // The program's socket does not wait. What comes of it the program is told by the kernel.
            let _: c_int = real::connect(fd, at, len);
        }
    }
    standing::move_back_around(entry, || {
        table::give_up(entry);
        twin.abandon();
    });
}
