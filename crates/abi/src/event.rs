use crate::declare::{entry, kinds};
use crate::{Address, SocketId};

entry! {
    /// Entry of an event ring: a message of the driver to a client. 32 bytes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Event in 32 {
        /// An [`EventKind`].
        kind: u8,
        /// Of the address: 0, 4 or 6.
        family: u8,
        /// Of the address, host order.
        port: u16,
        /// A [`SocketId`].
        socket: u32,
        /// `Answer` and `More`: the request's tag. `Ready`: the event's number on this socket, for `event_ack`.
        tag: u32,
        /// `Answer`: 0, or an errno.
        errno: u32,
        /// Of the address, or two numbers, little endian.
        payload: [u8; 16],
    }
}

impl Event {
    /// The answer to a request.
    pub fn answer(socket: SocketId, tag: u32, errno: u32) -> Self {
        Self { kind: EventKind::Answer as u8, socket: socket.0, tag, errno, ..Self::default() }
    }

    /// The answer, if others to the same request follow.
    #[must_use]
    pub fn and_more(mut self) -> Self {
        self.kind = EventKind::More as u8;
        self
    }

    /// "Look at this socket's status line."
    pub fn ready(socket: SocketId, number: u32) -> Self {
        Self { kind: EventKind::Ready as u8, socket: socket.0, tag: number, ..Self::default() }
    }

    /// The event with an address.
    #[must_use]
    pub fn with_address(mut self, address: Address) -> Self {
        (self.family, self.port, self.payload) = (address.family, address.port, address.bytes);
        self
    }

    /// The event with a number.
    #[must_use]
    pub fn with_number(mut self, number: u64) -> Self {
        self.payload[..8].copy_from_slice(&number.to_le_bytes());
        self
    }

    /// The event with a second number.
    #[must_use]
    pub fn with_second(mut self, number: u64) -> Self {
        self.payload[8..].copy_from_slice(&number.to_le_bytes());
        self
    }

    /// The address.
    pub fn address(&self) -> Address {
        Address { family: self.family, port: self.port, bytes: self.payload }
    }

    /// The number.
    pub fn number(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.payload;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// The second number.
    pub fn second(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.payload;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

kinds! {
    /// Meaning of an [`Event`].
    enum EventKind: u8 {
        /// A request was carried out, or refused.
        Answer = 1,
        /// A subscribed socket may have become readable, writable or closed. Reactive: no second one
        /// before the client has acknowledged the first (`event_ack`).
        Ready = 2,
        /// As [`Self::Answer`], and another answer to the same request follows.
        More = 3,
    }
}
