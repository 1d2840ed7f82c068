//! The short-connection mode (`PD_PRELOAD=short`): connections without one of the kernel's beside them. The
//! program's descriptor is a kernel socket that is never connected; a fabric socket connects, is accepted
//! and carries the bytes. Towards addresses where nobody listens in this way, connections have twins as ever.
//!
//! The kernel knows nothing of such a connection, so it cannot be proved to another process: it stays with
//! the process that made it. A process that forks while it has a connection, of this kind or with a twin, or sends one in a message, has no new
//! ones from then on, and neither has the child.
//!
//! In a network of the policy's ([`may_listen`]) listeners of every mode take connections of this kind that come from other networks by a
//! map, from the time when they listen: the kernel cannot bring those. So do connections to a mapped address, in every mode, and of a
//! process that has no new ones otherwise.
//!
//! Here is whether the mode is on.
pub(crate) mod accepting;
pub(crate) mod begun;
pub(crate) mod connecting;
pub(crate) mod facts;
pub(crate) mod names;
pub(crate) mod passing;
pub(crate) mod reuse;
pub(crate) mod socket_pool;

use crate::log::note;
use std::sync::atomic::{AtomicBool, Ordering};

static WANTED: AtomicBool = AtomicBool::new(false);
/// Listeners of this process are in a network of the policy's.
static IN_A_NETWORK: AtomicBool = AtomicBool::new(false);
/// The process has connected to another network.
static ACROSS: AtomicBool = AtomicBool::new(false);
static SUSPENDED: AtomicBool = AtomicBool::new(false);

/// Turns the mode on, at start.
pub(crate) fn want() {
    WANTED.store(true, Ordering::Relaxed);
}

/// Returns whether the mode is on.
#[inline]
pub(crate) fn wanted() -> bool {
    WANTED.load(Ordering::Relaxed)
}

/// Has this process take connections of other networks, which the kernel cannot bring.
pub(crate) fn take_of_other_networks() {
    IN_A_NETWORK.store(true, Ordering::Relaxed);
}

/// Tells whether listeners of this process may have an end on the fabric.
#[inline]
pub(crate) fn may_listen() -> bool {
    wanted() || IN_A_NETWORK.load(Ordering::Relaxed)
}

/// Tells whether this process may have connections of this kind.
#[inline]
pub(crate) fn may_have_any() -> bool {
    may_listen() || ACROSS.load(Ordering::Relaxed)
}

/// Returns whether new connections may be of this kind.
pub(crate) fn open_to_new() -> bool {
    wanted() && !SUSPENDED.load(Ordering::Relaxed)
}

/// From now on new connections have twins, which go from process to process.
fn suspend() {
    if !SUSPENDED.swap(true, Ordering::Relaxed) {
        note!("no more short connections: they could not be handed on");
    }
}
