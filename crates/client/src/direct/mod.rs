//! The direct path: a connection whose bytes lie in rings that the two clients share, one for each direction.
//!
//! The sender copies into the ring that it writes, or writes its bytes there ([`send`]); the receiver is lent the bytes
//! where they are ([`recv`]). The driver makes the rings ([`setup`]), passes on events where there is no doorbell, and ends the
//! connection; it takes no part otherwise. [`wait`] is how the two wake each other, and [`bell`] how one wakes a thread of
//! the other that sleeps in epoll.
//!
//! The peer is not trusted. Its words are loaded once and bounded, and what cannot be ends the connection. It can change
//! bytes that it has sent until they are given back, so a program is never shown them where they lie, unless the policy says
//! that the two trust each other or the program has asked for it ([`crate::core::Socket::set_receives_shared`]): for other
//! programs what was received is copied first, once, also what was only peeked at. A connection that the driver has ended, or
//! whose driver has gone, ends here, too, whatever the peer goes on writing.
mod bell;
mod recv;
mod send;
mod setup;
mod wait;

pub(crate) use recv::Incoming;
pub(crate) use send::Outgoing;
pub(crate) use setup::Direct;
pub(crate) use wait::Noticing;

use pd_shm::{Access, Own, Region};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// How often, in bytes of a stream, one looks whether the driver is there: who always finds bytes or room never sleeps.
const ALIVE_BYTES: u64 = 4 << 20;

/// How a connection's bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The driver moves them.
    Offloaded,
    /// They lie in rings that the two clients share.
    Direct,
    /// The kernel's TCP carries them: the fabric does not lead to the peer.
    Kernel,
}

impl Path {
    /// As it is written: `offloaded`, `direct` or `kernel`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offloaded => "offloaded",
            Self::Direct => "direct",
            Self::Kernel => "kernel",
        }
    }
}

/// The memory file of one side: its index page and, behind that, the ring. The peer's ring is mapped twice in a row.
#[derive(Clone, Debug)]
pub(crate) struct Half<A> {
    map: Arc<Region<A>>,
    /// Where the ring begins.
    ring_offset: usize,
    /// Bytes of the ring; a power of two.
    bytes: u64,
}

impl Half<Own> {
    #[inline]
    fn publish(&self, word: usize, value: u64) {
        self.map.store_u64(word, value, Ordering::Release);
    }
}

impl<A: Access> Half<A> {
    #[inline]
    fn load(&self, word: usize) -> u64 {
        self.map.load_u64(word, Ordering::Acquire)
    }

    /// Where byte number `position` of the stream lies.
    #[inline]
    fn place(&self, position: u64) -> usize {
        self.ring_offset + (position & (self.bytes - 1)) as usize
    }
}
