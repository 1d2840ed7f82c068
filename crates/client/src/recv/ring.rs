//! A ring that received bytes lie in, on any path.
use crate::attachment::RingWords;
use pd_shm::{Region, Theirs};
use std::sync::Arc;

/// Where received bytes are: mapped twice in a row, from `ring_offset` on.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) words: RingWords,
    pub(crate) map: Arc<Region<Theirs>>,
    pub(crate) ring_offset: usize,
    pub(crate) bytes: u64,
    /// Position in the stream of the byte that the ring's own count begins with.
    pub(crate) origin: u64,
}
