//! Ends of the mode, or of a connection's part in it: a fork, a message with a descriptor, and what the program does with a socket that
//! the library cannot undo.
use super::begun::{settle, settle_all};
use super::reuse::renew;
use super::{begun, may_have_any, socket_pool, suspend, wanted};
use crate::entry::{Entry, State};
use crate::table;
use libc::c_int;
use std::collections::HashSet;
use std::sync::Arc;

/// Before a fork.
pub(crate) fn before_fork() {
    if !may_have_any() {
        return;
    }
    settle_all();
    let mut seen = HashSet::new();
    for fd in (0..table::end()).filter(|&fd| table::look(fd) == table::SOCKET) {
        let Some(entry) = table::entry(fd).filter(|entry| seen.insert(Arc::as_ptr(entry))) else { continue };
        match entry.socket().and_then(|socket| socket.state()) {
            // A later one could not be handed on, as this one can.
            Some(State::Twin(_)) if wanted() => suspend(),
            Some(State::Twin(_)) => {}
            Some(State::Listener(listener)) => listener.short.pause(),
            // The child has it, too.
            _ => renew(&entry),
        }
    }
}

/// Returns whether a message would hand on such a connection, which nobody else could use.
pub(crate) fn refuses_to_pass(fd: c_int) -> bool {
    let alone = |entry: &Arc<Entry>| entry.twin().is_some_and(|twin| twin.names.is_some());
    let Some(entry) = table::entry(fd).filter(|_| table::look(fd) == table::SOCKET) else { return false };
    alter(&entry);
    if entry.twin().is_some() && wanted() {
        suspend();
    }
    alone(&entry)
}

/// A forked child has begun no connections, and has no pooled sockets.
pub(crate) fn forget() {
    begun::forget();
    socket_pool::forget();
}

/// The program makes something else of a socket than the library knows to undo. One that is not connected may become the
/// kernel's.
pub(crate) fn alter(entry: &Arc<Entry>) {
    let Some(socket) = entry.socket() else { return };
    if socket.facts.behind.is_used() {
        settle(entry);
        if entry.twin().is_none() {
            renew(entry);
        }
    }
    socket.facts.behind.alter();
}
