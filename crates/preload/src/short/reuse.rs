//! Entries whose kernel sockets serve again ([`super::socket_pool`]): keeps the socket of one that ends, and takes a used one out of one that
//! the kernel is to do something with.
use super::open_to_new;
use crate::entry::Entry;
use crate::twin::Twin;
use libc::c_int;

/// The only descriptor of a connection is about to be closed: keeps what is behind it, if that is worth it.
pub(crate) fn keep(fd: c_int, entry: &Entry, twin: &Twin) {
    let (Some(socket), true) = (entry.socket(), twin.names.is_some() && open_to_new()) else { return };
    if !twin.is_abandoned() {
        socket.facts.behind.keep(fd, || socket.facts.nonblocking());
    }
}

/// The kernel is about to do something with the socket: one that was another connection's is replaced by a new one.
pub(crate) fn renew(entry: &Entry) {
    let Some(socket) = entry.socket() else { return };
    socket.facts.behind.renew(|| socket.facts.nonblocking(), || entry.fds());
}
