//! Steps before a number is closed: sent bytes reach the peer, and the peer is told how the connection ends.
use crate::claim::settling;
use crate::entry::{Entry, State};
use crate::epoll_set::standing;
use crate::fabric;
use crate::short::reuse;
use libc::c_int;
use std::sync::Arc;

/// A number is about to be closed.
pub(crate) fn before_close(entry: &Arc<Entry>, fd: c_int) {
    if let Some(pipe) = entry.pipe() {
        return pipe.expose();
    }
    if !entry.has_one_fd() {
        return;
    }
    standing::leave_all(entry);
    match entry.socket().and_then(|socket| socket.state()) {
        Some(State::Listener(_)) => fabric::unlisten(fd),
        Some(State::Twin(twin)) => {
            twin.note_reset(entry, fd);
            if !twin.is_shared() {
                settling::settle_before_close(entry);
                reuse::keep(fd, entry, twin);
            }
        }
        _ => {}
    }
}
