//! One driver takes another's place, and clients notice nothing: `docs/design/takeover.md`.
//!
//! The thread of the conductor has all agents in its hands while it gives: the movers, as for a transfer, and the door, which its thread lends. So nothing
//! is on its way, and a state is what the tables say. Agents give and take their own tables (`takeover.rs` beside each); this has what goes
//! between them.
//!
//! - [`offer`] is how two drivers talk.
//! - [`pack`] is descriptors, which a state names by their places.
//! - [`arrivals`] is what agents tell each other of clients that have come.
//! - [`giving`] and [`taking`] put the parts together.
pub mod arrivals;
pub mod giving;
pub mod offer;
pub mod pack;
pub mod state;
pub mod taking;
