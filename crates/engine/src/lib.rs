//! Copy engines, which move bytes between containers that never see each other's memory.
//!
//! An engine stands where the paper's PD Stack stands (PipeDevice, section IV-B): it takes fixed-size
//! commands from a submission queue, moves bytes, and puts the same commands, marked as done, into a
//! completion queue (section III-E). An engine knows addresses and lengths only; connections, tables and
//! policy are the driver's.
//!
//! ```text
//!               mover 0                          mover 1
//!          submit │   ▲ reap                submit │   ▲ reap
//!        ┌────────▼───┴────────┐          ┌────────▼───┴────────┐
//!        │ SQ  QueuePair 0  CQ │          │ SQ  QueuePair 1  CQ │      1,024 commands in flight each
//!        └────────┬───▲────────┘          └────────┬───▲────────┘
//!                 └───┴─────────── Engine ─────────┴───┘
//! ```
//!
//! Lifecycle: make an [`Engine`] (by [`by_name`], or a constructor of its crate), ask it once for its
//! [`Capability`], take one [`QueuePair`] per mover, submit and reap, drop the pairs, drop the engine.
//!
//! | engine | what it is |
//! |---|---|
//! | [`Cpu`] (`cpu`) | copies on the caller's CPU; always there, and what a mover falls back to |
//! | [`Fault`] (`fault`) | another engine with failures, delays and reordering, the same for the same seed |
//!
//! To use an engine, read [`Engine`] and [`QueuePair`]. To write one, implement both and instantiate
//! [`conformance_suite!`] for it: the driver relies on the behaviour that the suite checks.
//!
//! Never: an engine looks at payload, interprets `cid`, `conn_id`, `table_id` or `entry_seq`, keeps
//! state of a connection, or decides whether a copy is allowed. Addresses are checked by the driver
//! before they come here.

mod by_name;
pub mod conformance;
mod cpu;
mod engine;
mod fault;
mod random;

pub use by_name::{by_name, NAMES};
pub use cpu::Cpu;
pub use engine::{Capability, Engine, EngineError, QueuePair};
pub use fault::{Fault, FaultPlan};
