//! One side's half of a direct connection, as it is mapped here: an index page and a ring.
use crate::error::{moved, Result};
use crate::link::Link;
use pd_abi::layout::direct;
use pd_shm::{barrier, Access, Own, Region};
use std::sync::atomic::{compiler_fence, fence, Ordering};
use std::sync::Arc;

/// The memory file of one side: its index page and, behind that, the ring. The peer's ring is mapped twice in a row.
#[derive(Clone, Debug)]
pub(crate) struct Half<A> {
    pub(super) map: Arc<Region<A>>,
    /// Where the ring begins.
    pub(super) ring_offset: usize,
    /// Bytes of the ring; a power of two.
    pub(super) bytes: u64,
}

impl Half<Own> {
    #[inline]
    pub(super) fn publish(&self, word: usize, value: u64) {
        self.map.store_u64(word, value, Ordering::Release);
    }

    /// Says that `value` is about to be published. A look for [`Link::is_taken`] comes after this for the driver, too.
    #[inline]
    pub(super) fn claim(&self, word: usize, value: u64) {
        self.map.store_u64(word, value, Ordering::Release);
        // SYNC POINT: ring-ends
        if barrier::register() {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

impl<A: Access> Half<A> {
    #[inline]
    pub(super) fn load(&self, word: usize) -> u64 {
        self.map.load_u64(word, Ordering::Acquire)
    }

    /// Where byte number `position` of the stream lies.
    #[inline]
    pub(super) fn place(&self, position: u64) -> usize {
        self.ring_offset + (position & (self.bytes - 1)) as usize
    }
}

/// Claims `written` bytes of the own ring before they are published, where another process may take the socket.
///
/// # Errors
/// `ESTALE`: another one has, and does not count them.
#[inline]
pub(super) fn claim_sent(own: &Half<Own>, link: &Link, written: u64) -> Result<()> {
    own.claim(direct::SENT, written);
    match link.is_taken() {
        true => check(written, link.ring_ends()?.0),
        false => Ok(()),
    }
}

/// Claims `consumer` bytes of the peer's ring before they are given back, likewise.
///
/// # Errors
/// `ESTALE`: another process receives them.
#[inline]
pub(super) fn claim_received(own: &Half<Own>, link: &Link, consumer: u64) -> Result<()> {
    own.claim(direct::RECEIVED, consumer);
    match link.is_taken() {
        true => check(consumer, link.ring_ends()?.1),
        false => Ok(()),
    }
}

#[cold]
fn check(index: u64, end: u64) -> Result<()> {
    match index <= end {
        true => Ok(()),
        false => Err(moved()),
    }
}
