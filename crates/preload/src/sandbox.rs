//! Programs that forbid themselves system calls (seccomp): a filter may end the process for one that the library makes
//! and the program does not.
//!
//! Connections leave the fabric before the filter is there, while all calls are allowed. Afterwards the library attaches to
//! no driver, serves no new socket, does not spin or yield, and makes no call on a connection but `read`, `poll` and `ppoll`, until what
//! lies in its ring has been received ([`crate::closed`]). Then the descriptor is the kernel's.
use crate::aside::{leaving, receiving};
use crate::claim::watch;
use crate::entry::Entry;
use crate::twin::Twin;
use crate::{address, call, closed, confined, fabric, lookup, table};
use pd_client::core::{is_attached, KernelReason};
use std::sync::Arc;

/// The program is about to install a filter, or to give up its right to descriptors.
#[cold]
pub(crate) fn before() {
    if !table::enabled() || closed::is_closed() {
        return;
    }
    call::aside(|| {
        all_leave(KernelReason::Sandbox);
        table::disable();
        closed::close();
        watch::end();
    });
}

/// The program is about to lock all memory that is mapped later, and may lock hardly any. Nothing that comes needs memory of the library's
/// afterwards.
#[cold]
pub(crate) fn before_loss_of_memory() {
    if !table::enabled() || closed::is_closed() {
        return;
    }
    call::aside(|| all_leave(KernelReason::NoMemory));
}

/// The calling thread is about to have descriptors of its own. Beside other threads each number means two things from then on, and the library has one
/// table: all connections go on in the kernel, and no more are served.
pub(crate) fn before_second_table() {
    if !table::enabled() || closed::is_closed() || table::is_borrowed() || !watch::has_threads() {
        return;
    }
    call::aside(|| {
        all_leave(KernelReason::UnseenWait);
        for_each_twin(receiving::await_end);
        table::disable();
    });
}

/// The program is about to change its root or its user, after which the driver's socket may be out of its reach: takes over
/// what it has from its parent. A process that is attached needs the socket no more: some change their user for each request.
pub(crate) fn before_loss_of_reach() {
    if table::enabled() && !closed::is_closed() && !is_attached() {
        call::aside(|| {
            for_each_twin(|entry, twin| {
                // Of one that fails the next call tells why.
                let _ = twin.with_present(entry, |_| Ok(()));
            });
        });
    }
}

/// The program is about to change its root alone. A child of an attached process attaches: it may get connections of its parent by a message
/// later, and could not take them after the change. An image that was given a listener attaches, too: it could not claim connections that it
/// accepts.
pub(crate) fn before_loss_of_root() {
    let is_heir = || confined::take_of_attached() || has_listener();
    if table::enabled() && !closed::is_closed() && is_heir() {
        call::aside(|| {
            fabric::reaches_driver();
        });
    }
    before_loss_of_reach();
    confined::confine();
}

/// The program has changed its root. A child could not take over what comes on the fabric: where the driver's socket is hidden,
/// connections leave before there is one. Those that are made later stay until a fork.
pub(crate) fn after_loss_of_root() {
    if !table::enabled() || closed::is_closed() || !is_attached() {
        return;
    }
    call::aside(|| {
        if confined::is_hidden() {
            for_each_twin(|entry, twin| {
                leaving::leave(entry, twin, KernelReason::NoDriver);
            });
            (0..table::end()).for_each(crate::away::calls::stays);
        }
    });
}

/// Tells whether the process was started with a listener.
fn has_listener() -> bool {
    (0..table::end()).any(|fd| table::look(fd) == table::INHERITED && address::listens(fd))
}

/// Has all connections leave the fabric, and those that are away stay there: they count their calls, and would look for a way back.
fn all_leave(reason: KernelReason) {
    for_each_twin(|entry, twin| {
        if leaving::leave(entry, twin, reason) {
            receiving::await_owed(entry, twin);
        }
    });
    (0..table::end()).for_each(crate::away::calls::stays);
}

fn for_each_twin(mut work: impl FnMut(&Arc<Entry>, &Twin)) {
    for fd in 0..table::end() {
        if let Some(entry) = lookup::find_any(fd) {
            if let Some(twin) = entry.twin() {
                work(&entry, twin);
            }
        }
    }
}
