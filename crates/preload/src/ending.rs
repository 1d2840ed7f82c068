//! The end of a number that is closed, and with the last one of what it stood for.
use crate::call::lock;
use crate::entry::{self, Entry, State, Thing};
use crate::epoll_set::standing;
use crate::table;
use libc::c_int;
use pd_client::core::{Inside, KernelReason};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// A number is closed; with the last one the thing ends for this process. The kernel's is closed
/// first: whether another process holds it, too, decides what becomes of a twin.
pub(crate) fn drop_fd(entry: &Arc<Entry>, fd: c_int) {
    if !entry.remove_fd(fd) {
        return;
    }
    match &entry.thing {
        Thing::Epoll(set) => set.close(entry),
        Thing::Pipe(_) => {}
        Thing::Socket(socket) => {
            standing::leave_all(entry);
            if let Some(away) = socket.away.get().filter(|_| socket.is_away()) {
                away.end();
            }
            match socket.state() {
                Some(State::Twin(twin)) => twin.close(),
                Some(State::Listener(listener)) => listener.short.close(),
                None => {}
            }
        }
    }
}

/// The program has undone a connection, which is reset. All numbers are those of a socket that is not connected; it stays in its epoll
/// instances, in the kernel.
pub(crate) fn undo(entry: &Arc<Entry>) {
    let (Some(socket), Some(twin)) = (entry.socket(), entry.twin()) else { return };
    let watchers = lock(&socket.watchers).clone();
    standing::move_back(entry);
    let fresh = entry::make(None);
    if let Some(fresh) = fresh.socket() {
        fresh.facts.set_nonblocking(twin.nonblocking.load(Ordering::Relaxed));
        *lock(&fresh.watchers) = watchers;
        if twin.towards.is_none() && twin.names.is_none() {
            // The driver knows the socket as one that was accepted.
            fresh.make_unfit(KernelReason::Refused);
        }
    }
    table::hand_to(entry, &fresh);
    twin.undo();
}

/// The number is closed already: another descriptor has it, or had it when it was closed.
pub(crate) fn release(fd: c_int) {
    if let Some(entry) = table::clear(fd) {
        drop_fd(&entry, fd);
    }
}

/// A call has returned a new descriptor: what was known of the number is of an earlier one, which was
/// closed in a way that the library does not see.
#[inline]
pub(crate) fn is_new(fd: c_int) {
    if table::look(fd) != table::PLAIN {
        let _inside = Inside::enter();
        release(fd);
    }
}
