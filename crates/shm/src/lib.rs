//! Regions and rings over memory that another party can write.
//!
//! Two laws hold in this crate, so that they hold everywhere else:
//!
//! 1. No Rust reference to shared bytes. Shared words are read and written by atomic accesses at
//!    checked offsets of a [`Region`]; entries are copied in and out as a whole.
//! 2. What was read is a private copy: it is bounded and then used, and never read again.
//!
//! [`memfd`] makes and seals memory, [`shelf`] makes memory that a successor can map, [`Region`] maps it, as this party's own or as theirs, [`ring`] is the single-producer
//! single-consumer ring of entries, [`byte_ring`] the one of bytes, [`wait`] the sleep-and-wake protocol, [`Spin`] the bounded spin before a
//! sleep, [`barrier`] a fence on all other cores, [`bias`] a lock without exchanges for the thread that takes it most,
//! [`copy`] the copy of the data path,
//! [`attach`] passes fixed-size messages and descriptors over the attach socket, [`passed`] files over the file socket, [`procfs`] looks into `/proc`, [`wake`] wakes who waits for descriptors, [`ringer`] makes wake-ups whose cost
//! another party chooses, [`counters`] writes and reads the
//! driver's counter region.
//! The rings and the wait protocol are written over traits for the words they touch, so that the
//! same code runs over shared memory, over a model, and under loom.

pub mod attach;
pub mod barrier;
pub mod bias;
pub mod byte_ring;
pub mod copy;
pub mod counters;
mod mapping;
pub mod memfd;
pub mod passed;
mod pod;
pub mod procfs;
pub mod ring;
pub mod ringer;
pub mod shelf;
mod sleep;
mod spin;
pub mod wait;
pub mod wake;

pub use mapping::{Access, Mapping, Own, Protection, Region, Theirs, Writable};
pub use pod::Pod;
pub use sleep::{sleep_for, sleep_on, wake_all, Sleep};
pub use spin::{cores_scarce, limit_spins, never_yield, set_cores_scarce, spinning_allowed, yield_now, Spin};
