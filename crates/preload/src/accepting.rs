//! Accepting from the kernel: the process registers its listeners, and claims the twins of what it accepts.
use crate::ending::is_new;
use crate::entry::{Entry, State};
use crate::log::note;
use crate::lookup::{self, adopt_twin};
use crate::twin::Twin;
use crate::unseen::looking;
use crate::{fabric, short, table};
use libc::c_int;
use std::sync::Arc;

/// Before a listener is used: a forked child tells the driver for itself. Says whether what is accepted may have a twin.
pub(crate) fn look_at_listener(fd: c_int) -> bool {
    let Some(entry) = lookup::find(fd) else { return false };
    let Some(socket) = entry.socket() else { return false };
    matches!(socket.state(), Some(State::Listener(_))) && socket.join_listener(fd)
}

/// The kernel has accepted `fd` from a listener: claims its twin, if it may have one (`joined`).
pub(crate) fn claim(from: c_int, fd: c_int, joined: bool) {
    is_new(fd);
    if !joined {
        return;
    }
    let is_refused = table::entry(from).is_some_and(|it| it.socket().is_some_and(|it| it.is_refused()));
    match fabric::claim(fd, !is_refused) {
        Ok(socket) => {
            note!("descriptor {fd}: accepted on the fabric");
            adopt_twin(fd, Twin::new(fd, socket, false));
            if let Some(entry) = &table::entry(fd) {
                looking::accepted(from, entry);
                has_accepted(from, entry);
            }
        }
        Err(reason) => fabric::stays_on_kernel(fd, reason),
    }
}

/// The kernel has accepted a connection, for which there is a twin.
fn has_accepted(from: c_int, accepted: &Arc<Entry>) {
    if !short::may_listen() {
        return;
    }
    let Some(listener) = table::entry(from) else { return };
    if let Some(State::Listener(listener)) = listener.socket().and_then(|socket| socket.state()) {
        listener.short.has_accepted(accepted);
    }
}
