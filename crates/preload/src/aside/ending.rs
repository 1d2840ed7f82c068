//! The end of a departure: all of the fabric's stream has been received, and the descriptor becomes the kernel's. Also what a
//! process does that takes an end which another one has had leave.
use super::{OVER, SENDS, UNMARKED};
use crate::away::Away;
use crate::call::lock;
use crate::entry::{make, Entry};
use crate::epoll_set::standing;
use crate::file_lock::FileLock;
use crate::twin::Twin;
use crate::{closed, table};
use pd_client::core::{Departure, Socket};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// Nothing of the connection is the fabric's any more.
pub(crate) fn settle(entry: &Arc<Entry>, twin: &Twin) {
    // Before the lock, which a thread may want that splices.
    twin.lender.forbid();
    let one = lock(&twin.aside.leaving);
    settle_locked(entry, twin, &one);
}

/// Calls [`settle`], unless a thread is making the connection leave, which may be this one: then a later call settles it.
pub(crate) fn settle_if_free(entry: &Arc<Entry>, twin: &Twin) {
    twin.lender.forbid();
    if let Ok(one) = twin.aside.leaving.try_lock() {
        settle_locked(entry, twin, &one);
    }
}

fn settle_locked(entry: &Arc<Entry>, twin: &Twin, _leaving: &MutexGuard<'_, ()>) {
    if !twin.progress().sends() || twin.aside.is_closed() {
        return;
    }
    if !twin.is_abandoned() {
        twin.progress().set(OVER);
        let may = twin.aside.may_return.iter().all(|may| may.load(Ordering::Relaxed));
        let shut = [&twin.send_shut, &twin.recv_shut].iter().any(|shut| shut.load(Ordering::Relaxed));
        let away = if may && !shut && twin.is_sole() { away_entry(entry, twin) } else { None };
        standing::move_back_around(entry, || {
            twin.unmark(entry.any_fd());
            match away {
                Some(away) => table::hand_to(entry, &away),
                None => table::give_up(entry),
            }
            twin.leave();
        });
    }
}

/// Goes on with an end that this process has taken, and that had left by another one's doing.
#[cold]
pub(crate) fn taken_aside(entry: &Arc<Entry>, twin: &Twin, end: &Socket) -> pd_client::Result<()> {
    if let Some(fd) = entry.any_fd().filter(|_| !closed::is_closed()) {
        // Sends of this process come behind the mark.
        drop(FileLock::new(fd));
    }
    let left = end.step_aside(Departure::Marked)?;
    if left.unmarked {
        twin.progress().set(UNMARKED);
    }
    twin.progress().owed.store(left.owed, Ordering::Relaxed);
    twin.progress().set(SENDS);
    end.notify_waits();
    Ok(())
}

/// The entry of a connection that has left by choice. None: it stays where it is for good.
fn away_entry(entry: &Entry, twin: &Twin) -> Option<Arc<Entry>> {
    let old = entry.socket()?;
    let away = Away::new(twin.aside.counts.clone(), twin.towards, twin.times.saturating_add(1));
    let new = make(None);
    let socket = new.socket()?;
    socket.unix.store(twin.unix, Ordering::Relaxed);
    socket.away.set(away).ok()?;
    lock(&socket.watchers).extend(lock(&old.watchers).iter().cloned());
    Some(new)
}
