//! Measurement: CPU time of the whole machine, the distance of its cores, and summaries of interleaved rounds.

pub mod cores;
pub mod cpu;
pub mod stats;

use rustix::time::{clock_gettime, ClockId};

/// Nanoseconds of the monotonic clock, which all processes of a machine share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
