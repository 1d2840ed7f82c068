//! A ring that received bytes lie in, on any path.
use crate::attachment::RingWords;
use pd_shm::{byte_ring, Theirs};

/// Where received bytes are: mapped twice in a row.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) words: RingWords,
    pub(crate) memory: byte_ring::Ring<Theirs>,
    /// Position in the stream of the byte that the ring's own count begins with.
    pub(crate) origin: u64,
}
