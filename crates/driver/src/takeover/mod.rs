//! Take-over: one driver takes another's place, unnoticed by clients. See `docs/design/takeover.md`.
//!
//! The thread of the conductor holds all agents while it gives: the movers, as for a transfer, and the door, which its thread lends.
//! Nothing is under way then, and the tables are the whole state. Agents give and take their own tables (`takeover.rs` beside each). This
//! module has the protocol between the drivers.
//!
//! - [`offer`] is the conversation of two drivers.
//! - [`pack`] holds descriptors, which a state names by their places.
//! - [`early`] has the direct rings, which go over before the stop.
//! - [`arrivals`] has the clients that have come, as agents pass them on.
//! - [`readable`] shows a state as JSON, and changes it for tests.
//! - [`giving`] and [`taking`] put the parts together.
//! - [`warming`] enters the clients' memory into the new process's tables.
pub mod arrivals;
pub mod early;
pub mod giving;
pub mod offer;
pub mod pack;
pub mod readable;
pub mod state;
pub mod taking;
pub mod warming;

use crate::conductor::Conductor;
use crate::door::Door;
use crate::pipes::nic::Nic;

/// The agents of a driver, while one thread has them all. The movers are the conductor's.
pub struct Agents<'held> {
    pub conductor: &'held mut Conductor,
    pub door: &'held mut Door,
    /// The agent of pipes, if it has started.
    pub nic: Option<&'held mut Nic>,
}
