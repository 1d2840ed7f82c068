//! The whole driver in one thread, under a clock, a kernel and clients that are made up (docs/design/testing.md).
#[allow(dead_code, reason = "the runs come with the next change")]
pub(crate) mod kernel;
#[allow(dead_code, reason = "the runs come with the next change")]
mod random;
