//! State of a direct connection in the sending half of a socket.
use pd_shm::byte_ring::{AsymmetricFence, Producer, Ring, Waker};
use pd_shm::{Own, Theirs};

/// See [`Outgoing::weigh`].
const WEIGHT_BYTES: u64 = 4 << 10;

/// Connections of a process with which a ring saves half as much for each message: the driver carries messages of several connections in a
/// turn, and wakes a thread once for all of them. For bytes a ring saves as much as ever.
const CROWD: u32 = 16;

/// Sends that are as good a reason for a ring as one is in a process with few connections.
#[inline]
fn crowd(connections: u32) -> u64 {
    u64::from(1 + connections / CROWD)
}

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

    /// Bytes sent by the driver, in a process with so many `connections`.
    #[inline]
    pub(crate) fn weigh(&mut self, bytes: u64, connections: u32) {
        self.weight += 1 + bytes / WEIGHT_BYTES * crowd(connections);
    }

    /// Tells whether what was sent is as good a reason for a ring as `messages` are in a process with few connections.
    #[inline]
    pub(super) fn weighs(&self, messages: u64, connections: u32) -> bool {
        self.weight >= messages * crowd(connections)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sends of `bytes` each after which a ring is due that takes `due` of them in a process with few connections.
    fn sends(bytes: u64, due: u64, connections: u32) -> u64 {
        let mut out = Outgoing::default();
        (1..)
            .find(|_| {
                out.weigh(bytes, connections);
                out.weighs(due, connections)
            })
            .unwrap()
    }

    #[test]
    fn messages_weigh_less_in_a_crowd_and_bytes_do_not() {
        for connections in [1, 15, 64, 500, 65_536] {
            assert_eq!(sends(64, 64, connections), 64 * (1 + u64::from(connections) / 16), "{connections}");
            let bulk = sends(64 << 10, 64, connections);
            assert!((4..=5).contains(&bulk), "{connections} connections: {bulk} sends of 64 KiB");
        }
    }
}
