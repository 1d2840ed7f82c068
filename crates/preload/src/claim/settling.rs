//! Finds out what has become of connections whose peer has still to take its end: it has come, or the kernel has the connection.
use super::{any_pending, watch, COUNT};
use crate::call::{self, lock};
use crate::entry::Entry;
use crate::epoll_set::standing;
use crate::log::note;
use crate::twin::Twin;
use crate::{fabric, fallback_cache, real, table};
use libc::c_int;
use pd_client::core::{KernelReason, Socket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Longest time for a peer to accept. A peer that takes longer gets a plain connection.
const CLAIM_WITHIN: Duration = Duration::from_millis(500);

/// Longest time for a peer to accept once the program waits, since as many bytes were sent as are kept.
const CLAIM_WITHIN_FULL: Duration = Duration::from_millis(50);

pub(crate) static WAITING: Mutex<Vec<Weak<Entry>>> = Mutex::new(Vec::new());

pub(crate) fn add(entry: &Arc<Entry>) {
    settle_at_exit();
    let mut waiting = lock(&WAITING);
    waiting.push(Arc::downgrade(entry));
    COUNT.store(waiting.len(), Ordering::Relaxed);
}

/// A forked child waits for nobody.
pub(crate) fn forget() {
    // A thread of the parent's may have had the lock.
    if let Ok(mut waiting) = WAITING.try_lock() {
        waiting.clear();
    }
    COUNT.store(0, Ordering::Relaxed);
    watch::forget();
}

/// Looks at all such connections.
pub(crate) fn look() {
    let waiting = lock(&WAITING).clone();
    for entry in waiting.iter().filter_map(Weak::upgrade) {
        settle(&entry);
    }
    // Additions of another thread stay.
    keep(|entry| entry.strong_count() > 0);
}

/// Decides about one connection, if that can be done by now. Returns whether it is decided.
pub(crate) fn settle(entry: &Arc<Entry>) -> bool {
    let decided = decide(entry, true);
    if decided {
        leave(entry);
    }
    decided
}

/// Decides about one connection without giving the peer more time.
pub(crate) fn settle_now(entry: &Arc<Entry>) {
    // Decided at once: another thread may be about to add it to those that wait.
    decide(entry, false);
    if any_pending() {
        leave(entry);
    }
}

/// Decides about one connection before its last close. Bytes that were sent have to reach a peer that never accepts, too. A peer of AF_UNIX
/// could not tell which end to take when the kernel's socket is gone.
pub(crate) fn settle_before_close(entry: &Arc<Entry>) {
    if !any_pending() {
        return;
    }
    let matters =
        |twin: &Twin| twin.unix || lock(&twin.pending_claim).as_ref().is_some_and(|it| !it.sent.is_empty());
    if entry.twin().is_some_and(matters) {
        decide(entry, false);
    }
    leave(entry);
}

/// Removes a connection from the ones that are looked at.
fn leave(entry: &Arc<Entry>) {
    keep(|one| !std::ptr::eq(one.as_ptr(), Arc::as_ptr(entry)));
}

fn keep(wanted: impl Fn(&Weak<Entry>) -> bool) {
    let mut waiting = lock(&WAITING);
    waiting.retain(wanted);
    COUNT.store(waiting.len(), Ordering::Relaxed);
}

/// Has bytes that were sent before the peer took its end reach it when this process ends.
fn settle_at_exit() {
    static IS_SET: AtomicBool = AtomicBool::new(false);
    extern "C" fn settle() {
        call::aside(settle_all_now);
    }
    if !IS_SET.swap(true, Ordering::Relaxed) {
        // SAFETY: a function that lives as long as the program.
        unsafe { libc::atexit(settle) };
    }
}

fn settle_all_now() {
    if !any_pending() {
        return;
    }
    for entry in lock(&WAITING).iter().filter_map(Weak::upgrade) {
        decide(&entry, false);
    }
}

fn decide(entry: &Arc<Entry>, patient: bool) -> bool {
    let Some(twin) = entry.twin() else { return true };
    let mut state = lock(&twin.pending_claim);
    let (Some(pending), Some(socket)) = (state.as_ref(), twin.current()) else { return true };
    let since = pending.since.elapsed();
    if socket.has_answer() {
        *state = None;
        claimed(entry, &socket);
        return true;
    }
    if patient && since < CLAIM_WITHIN && (pending.room() > 0 || since < CLAIM_WITHIN_FULL) {
        return false;
    }
    if !fabric::withdraw(&socket) {
        *state = None;
        claimed(entry, &socket);
        return true;
    }
    let sent = state.take().map(|pending| pending.sent).unwrap_or_default();
    let Some(fd) = entry.any_fd() else { return true };
    if let Some(place) = twin.towards.filter(|_| patient) {
        fallback_cache::claimed_none(place);
    }
    note!("descriptor {fd}: nobody took the connection; {} bytes go over the kernel", sent.len());
    fabric::stays_on_kernel(fd, if patient { KernelReason::PeerSlow } else { KernelReason::Settled });
    replay(fd, &sent);
    shut_as_the_twin(entry);
    standing::move_back_around(entry, || {
        twin.unmark(Some(fd));
        table::give_up(entry);
        twin.abandon();
    });
    true
}

/// The peer is there.
fn claimed(entry: &Entry, socket: &Socket) {
    socket.hold_out(false);
    shut_as_the_twin(entry);
}

/// The kernel's connection was not shut down as long as its bytes might have to go there.
fn shut_as_the_twin(entry: &Entry) {
    let (Some(twin), Some(fd)) = (entry.twin(), entry.any_fd()) else { return };
    let how = match (twin.recv_shut.load(Ordering::Relaxed), twin.send_shut.load(Ordering::Relaxed)) {
        (true, true) => libc::SHUT_RDWR,
        (true, false) => libc::SHUT_RD,
        (false, true) => libc::SHUT_WR,
        (false, false) => return,
    };
    // SAFETY: a number.
    unsafe { real::shutdown(fd, how) };
}

fn replay(fd: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: sends from a slice; polls one descriptor.
        unsafe {
            let sent = real::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL);
            if let Ok(sent) = usize::try_from(sent) {
                bytes = &bytes[sent..];
                continue;
            }
            if ![libc::EAGAIN, libc::EINTR].contains(&call::errno()) {
                return;
            }
            let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
            real::poll(&mut poll, 1, 100);
        }
    }
}
