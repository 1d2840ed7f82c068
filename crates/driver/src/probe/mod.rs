//! Probes of backends: real connections, which the driver may not make itself ([`crate::filter`]).
//!
//! A process beside the driver makes them. The driver starts it before it is confined, as [`supervise`]. That starts [`work`] with the first
//! question, and again if the worker dies. Each question ([`wire`]) has the backend's address and the descriptor of its network namespace;
//! each reply is a [`Verdict`]. The worker keeps nothing between questions and has one right, to enter namespaces.
//!
//! Answers of backends are read by the worker alone: at most [`PREFIX_BYTES`] of each. The driver checks replies as it would a client's.
mod driver_end;
mod wire;
mod worker;

pub(crate) use driver_end::Prober;
pub(crate) use wire::{Question, Verdict};
pub use worker::{supervise, work};

/// Most probes under way. Further questions wait in the driver.
pub(crate) const PROBES_MAX: usize = 256;
/// Most bytes of a backend's answer that are read.
pub const PREFIX_BYTES: usize = 1024;
