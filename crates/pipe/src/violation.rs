//! Violations of the protocol of pipes by a program.
use pd_shm::byte_ring::Broken;
use thiserror::Error;

/// A word or an entry that the protocol rules out. The agent ends the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// `recv_consumer` or `send_producer` ran backwards, beyond the announced bytes or the ring, or off a line.
    #[error("a pipe's index is out of its range")]
    Index,
    /// The frame table has a length that no frame has, or that exceeds the sent bytes.
    #[error("a pipe's frame has an impossible length")]
    Length,
    /// Too many frames in a row for ports that the pipe was not opened with.
    #[error("a pipe's frames name ports that it does not have")]
    Verdict,
    /// Memory that the program was to map has pages missing.
    #[error("a pipe's memory has holes")]
    Holes,
}

impl From<Broken> for Violation {
    fn from(_: Broken) -> Self {
        Self::Index
    }
}
