//! State of a direct connection in the sending half of a socket.
use pd_shm::byte_ring::{AsymmetricFence, Producer, Ring, Waker};
use pd_shm::{Own, Theirs};

/// See [`Outgoing::weigh`].
const WEIGHT_BYTES: u64 = 4 << 10;

/// The sending half's view of the rings.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Bytes and sends before there was a ring, or since one could not be had.
    pub(super) weight: u64,
    /// The connection has left the direct path.
    pub(super) left: bool,
    /// Most sockets have none.
    pub(super) own: Option<Box<Ring<Own>>>,
    pub(super) peer: Option<Box<Ring<Theirs>>>,
    /// Bytes written, and given back by the peer. Bytes are published when they are written.
    pub(super) cursor: Producer,
    /// Sends that the bytes were.
    pub(super) messages: u64,
    pub(super) waker: Waker,
    pub(super) fence: AsymmetricFence,
}

impl Outgoing {
    /// Returns whether what is sent goes into the own ring.
    #[inline]
    pub(crate) fn has_ring(&self) -> bool {
        self.own.is_some()
    }

    /// Bytes sent by the driver.
    #[inline]
    pub(crate) fn weigh(&mut self, bytes: u64) {
        self.weight += 1 + bytes / WEIGHT_BYTES;
    }

    /// Sets the ring that is written, and the peer's, if it is there.
    pub(super) fn set_rings(&mut self, own: Ring<Own>, peer: Option<Ring<Theirs>>) {
        if self.own.is_none() {
            self.cursor = Producer::new(own.bytes());
        }
        (self.own, self.peer) = (Some(Box::new(own)), peer.map(Box::new));
    }

    /// Free bytes of the own ring, as last seen.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        self.cursor.room()
    }

    /// Sends that went into the ring, and their bytes.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.messages, self.cursor.written())
    }

    /// Returns whether anything was written.
    pub(crate) fn has_sent(&self) -> bool {
        self.cursor.written() > 0
    }

    /// Most that there ever is room for when a wait for room is over.
    #[inline]
    pub(crate) fn most_placed(&self) -> u64 {
        self.cursor.ring_bytes() / 2
    }

    /// Half of the ring is free.
    pub(crate) fn is_writable(&self) -> bool {
        self.room() >= self.most_placed()
    }

    /// The peer's index at which half of the ring is free.
    pub(super) fn half_free_at(&self) -> u64 {
        self.cursor.written().saturating_sub(self.most_placed())
    }
}
