//! Marks that are not wanted: the kernel answers one that comes after the close with a reset, and drops what is on its way to the peer.
use super::mark::{take_claimed, take_mark, Mark, LOOK_EVERY};
use super::{MARKED, UNMARKED};
use crate::call;
use crate::entry::Entry;
use crate::sleep::kernel_poll;
use crate::table;
use crate::twin::Twin;
use libc::c_int;
use pd_client::core::Patience;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a mark that the peer is about to send.
const MARK_WITHIN: Duration = Duration::from_secs(1);

/// Has no mark come over TCP after the close of a connection one side of which has left. A peer that follows later sends none, and a mark that is
/// being sent is taken off.
pub(super) fn decline_mark(entry: &Arc<Entry>, twin: &Twin, fd: c_int) {
    let peer_left = || twin.window().is_none() && twin.current().is_some_and(|end| end.sends_elsewhere());
    let is_due = !twin.progress().has(MARKED | UNMARKED) && (twin.progress().sends() || peer_left());
    if twin.unix || !is_due || !twin.is_sole() || twin.is_passed() {
        return;
    }
    if take_mark(entry, twin) != Ok(Mark::NotYet) {
        return;
    }
    // Declining claims a mark that comes all the same.
    if !matches!(twin.with_present(entry, |end| end.decline_mark()), Ok(true)) {
        return;
    }
    let mut patience = Patience::new(MARK_WITHIN);
    while take_claimed(entry, twin) == Ok(Mark::NotYet) && patience.lasts() {
        let mut poll = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        let _ = kernel_poll(&mut poll, Some(LOOK_EVERY), std::ptr::null());
    }
}

/// Declines the marks of connections that are open when this process ends. A connection has left.
pub(super) fn decline_at_exit() {
    static IS_SET: AtomicBool = AtomicBool::new(false);
    extern "C" fn decline() {
        call::aside(decline_all);
    }
    if !IS_SET.swap(true, Ordering::Relaxed) {
        // SAFETY: a function that lives as long as the program.
        unsafe { libc::atexit(decline) };
    }
}

fn decline_all() {
    for fd in (0..table::end()).filter(|&fd| table::look(fd) == table::SOCKET) {
        if let Some(entry) = table::entry(fd) {
            entry.twin().into_iter().for_each(|twin| decline_mark(&entry, twin, fd));
        }
    }
}
