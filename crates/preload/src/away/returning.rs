//! Brings a connection back that carries bulk: offers a twin or claims one, and goes over to it.
use super::{Away, OFFER_NS};
use crate::back::Back;
use crate::call::lock;
use crate::entry::Entry;
use crate::fallback_cache::now_ns;
use crate::log::note;
use crate::lookup::attach_twin;
use crate::twin::Twin;
use crate::{fabric, file_lock, table};
use libc::c_int;
use pd_client::core::Socket;
use std::sync::Arc;

/// Registrations that tell once, or one process alone, cannot stand in two instances at a time.
const SINGLE: u32 = (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

/// Looks at a connection that is away: is it to come back, and can it?
#[cold]
pub(super) fn look(away: &Away, fd: c_int, entry: &Arc<Entry>) {
    let Ok(mut look) = away.look.try_lock() else { return };
    let Some(socket) = entry.socket().filter(|socket| socket.is_away()) else { return };
    if let Some(offer) = look.offer.clone() {
        if offer.has_answer() {
            if away.counts.close() {
                look.offer = None;
                come_back(away, fd, entry, offer);
                away.counts.open();
            }
        } else if now_ns() - look.since_ns > OFFER_NS && fabric::withdraw(&offer) {
            let _ = offer.close();
            look.offer = None;
            look.has_failed();
            away.offers(&look);
        }
        return;
    }
    let single = lock(&socket.watchers).iter().any(|watcher| watcher.event.0 & SINGLE != 0);
    if !away.finds_bulk(&mut look) || single || file_lock::is_passed(fd) {
        return;
    }
    if let Some(place) = away.towards {
        look.offer = fabric::offer(fd, place);
        away.offers(&look);
        if look.offer.is_none() {
            look.has_failed();
        }
    } else if away.counts.close() {
        match fabric::claim_again(fd) {
            Some(end) => come_back(away, fd, entry, end),
            None => look.has_failed(),
        }
        away.counts.open();
    }
}

/// Both sides have the twin; no call is under way in the kernel.
fn come_back(away: &Away, fd: c_int, entry: &Arc<Entry>, end: Arc<Socket>) {
    note!("descriptor {fd}: comes back to the fabric");
    let back = Back::new(away.counts.clone(), fd, &end);
    attach_twin(entry, Twin::new(fd, end, false).back(back, away.towards, away.times));
    entry.fds().into_iter().for_each(table::come_back);
    if let (Some(twin), true) = (entry.twin(), away.towards.is_some()) {
        // The other side looks at both by now.
        twin.go_back_closed(entry);
    }
}
