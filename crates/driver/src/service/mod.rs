//! Service addresses in force: the choice of a backend for a connection, and counts.
//!
//! The policy defines services ([`crate::policy::Service`]). A choice follows from the policy's table and from words that the conductor, the
//! kernel's programs (`gate.bpf.c`) and `pd-health` share: a backend's state, its connections, and each client's last backend. Conductor and
//! programs choose by the same steps, so that the fabric and the kernel agree.
//!
//! - [`slots`] is the shared memory: one slot for each backend of each service, and one for the service itself.
//! - [`choice`] chooses.
//! - [`takeover`] passes slots on to another driver.
//!
//! Nothing here knows clients or sockets.
mod choice;
mod slots;
mod takeover;

pub use choice::{Asker, Services};
pub use slots::{
    Chosen, Slot, Slots, BACKLOG_FULL, NO_LISTENER, PROBED, PROBE_BAD_ANSWER, PROBE_REFUSED, PROBE_TIMED_OUT,
    STICKY_WORDS,
};
pub use takeover::{Known as KnownSlots, SlotsState};
