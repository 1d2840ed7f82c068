//! The hardware form of the engine, simulated.
//!
//! ```text
//!   mover: QueuePair          SQ, CQ, payload: this process's memory
//!      │ doorbell                   ▲ reads and writes
//!      ▼                            │
//!   Port (root port: TLPs, link timing, who may touch what)
//!      │▲ pins, cycle by cycle
//!      ▼│
//!   Model (rtl/ compiled by Verilator, a shared object loaded at run time)
//! ```
//!
//! - [`Rtl`] is the engine, `rtl` by name: bytes and completions are the hardware's, time is not.
//! - [`Port`] with [`Timing::of`] a [`Link`](limit::Link) gives figures in cycles; `examples/perf` takes them.
//! - [`limit`] is what PCI Express allows, to compare them with.
//!
//! `make rtl` builds the shared object (Verilator 5.006 or later). Without it this crate builds, and
//! [`Rtl::new`] says what is missing.

mod card;
mod engine;
mod grants;
pub mod limit;
mod memory;
pub mod model;
mod port;
mod ring;
mod timing;
mod tlp;

pub use card::{enable, open_queue};
pub use engine::Rtl;
pub use port::{Counts, Event, Host, Port};
pub use timing::{Timing, CLOCK_MHZ, CYCLE_NS};
