//! State of a direct connection in the receiving half of a socket.
use super::backoff::{LockedSpin, PollBackoff};
use crate::recv::ring::Ring;
use pd_shm::byte_ring::{self, AsymmetricFence, Waker};
use pd_shm::{Own, Theirs};

/// The receiving half's view of the rings.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// Own and peer's. Most sockets have none.
    pub(super) pair: Option<Box<(byte_ring::Ring<Own>, byte_ring::Ring<Theirs>)>>,
    /// Position in the stream of the first byte in the peer's ring, once there is one: those before it came by the
    /// driver.
    pub(super) origin: Option<u64>,
    /// The receive ring of those, while some are lent.
    pub(crate) before: Option<Ring>,
    pub(super) leaving: Leaving,
    pub(super) waker: Waker,
    pub(super) fence: AsymmetricFence,
    /// The peer was asked to have an event sent.
    pub(super) armed: bool,
    pub(super) backoff: PollBackoff,
    pub(super) locked_spin: LockedSpin,
}

impl Incoming {
    /// Tells whether all that comes lies in the peer's ring, where it is seen at once.
    pub(crate) fn is_in_ring(&self) -> bool {
        self.origin.is_some() && self.leaving == Leaving::Not
    }
}

/// Progress of a connection that leaves the direct path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leaving {
    #[default]
    Not,
    /// Bytes written into the peer's ring when leaving began. No more are read until the driver says that the peer has
    /// stopped writing. Bytes that the peer writes all the same reach no program.
    Until(u64),
    /// Bytes ever written into the peer's ring; the number is final.
    At(u64),
    /// All that comes is from the driver.
    Done,
}
