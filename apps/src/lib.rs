//! Logic of applications of pipes, apart from where their frames come from.
//!
//! Each application is an [`App`], which gives a verdict on each frame. [`over_pipe`] runs one over a pipe of the driver or of an
//! agent, [`over_packets`] over the packetised twin, so that benchmarks compare interfaces and nothing else. The programs in `bin/`
//! run them over pipes.
//!
//! - [`maglev`]: a load balancer.
//! - [`nitro`]: heavy hitters by NitroSketch.
//! - [`kv`]: a key-value store as MICA, with a client.
//! - [`logmon`]: a monitor of log lines.
//! - [`tcp`]: TCP by smoltcp, which has a loop of its own and only ever runs over pipes.
//! - [`traffic`]: frames and lines that these get in tests and benchmarks, the same for the same seed.
//!
//! Everything in a frame is foreign: offsets are bounded by the frame, and tables by constants.
#![forbid(unsafe_code)]

mod arguments;
pub mod frame;
pub mod kv;
pub mod logmon;
pub mod maglev;
pub mod nitro;
pub mod random;
mod source;
pub mod tcp;
pub mod traffic;

pub use arguments::{arguments, number};
pub use source::{over_packets, over_pipe, App, Verdict};
