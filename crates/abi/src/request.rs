use crate::declare::{constants, entry, kinds};
use crate::Address;
use core::mem::offset_of;

entry! {
    /// Entry of a request ring: a request of a client to the driver. 32 bytes.
    ///
    /// Any bytes may arrive here. The driver copies the entry out once, then checks the copy.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Request in 32 {
        /// An [`Operation`].
        operation: u8,
        /// Of an address: 0, 4 or 6 (see [`Address`]).
        family: u8,
        /// Of an address, host order.
        port: u16,
        /// A [`SocketId`], of the client that asks.
        socket: u32,
        /// Chosen by the client; the answer carries it.
        tag: u32,
        /// Small argument of the operation: a [`SocketOption`]; of `Socket` and `Accept`, how many sockets are wanted, at
        /// most [`ANSWERS_MAX`](crate::limits::ANSWERS_MAX) (0 means one).
        value: u32,
        /// An address's bytes, or two little-endian numbers.
        payload: [u8; 16],
    }
}

impl Request {
    /// A request without an argument.
    pub fn new(operation: Operation, socket: SocketId, tag: u32) -> Self {
        Self { operation: operation as u8, socket: socket.0, tag, ..Self::default() }
    }

    /// The request with `address` as its argument.
    #[must_use]
    pub fn with_address(mut self, address: Address) -> Self {
        (self.family, self.port, self.payload) = (address.family, address.port, address.bytes);
        self
    }

    /// The request with two numbers as its argument.
    #[must_use]
    pub fn with_numbers(mut self, first: u64, second: u64) -> Self {
        self.payload[..8].copy_from_slice(&first.to_le_bytes());
        self.payload[8..].copy_from_slice(&second.to_le_bytes());
        self
    }

    /// The address argument, unchecked.
    pub fn address(&self) -> Address {
        Address { family: self.family, port: self.port, bytes: self.payload }
    }

    /// The two numbers.
    pub fn numbers(&self) -> (u64, u64) {
        let [a, b, c, d, e, f, g, h, rest @ ..] = self.payload;
        (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(rest))
    }

    /// A send of `span` on `socket`, of at most [`MESSAGE_BYTES_MAX`](crate::limits::MESSAGE_BYTES_MAX). Not answered: the
    /// socket's `send_consumer` counts it when the span may be reused.
    pub fn send(socket: SocketId, span: Span) -> Self {
        Self::several_sends(socket, span, 1)
    }

    /// `sends` sends on `socket`, at least one, which are the bytes of `span` together.
    pub fn several_sends(socket: SocketId, span: Span, sends: u64) -> Self {
        Self::new(Operation::Send, socket, 0).with_numbers(span.to_word(), Self::send_word(span.len, sends))
    }

    /// Offset of the u64 of a [`Operation::Send`] that holds its length and how many sends it stands for. As long as the request
    /// is the newest of its ring, the client may raise both: further sends follow the first in memory, of at least one byte
    /// each.
    pub const SEND_WORD: usize = offset_of!(Self, payload) + 8;

    /// The word at [`Self::SEND_WORD`] for `sends` sends of `len` bytes in all: the length in the lower half, the
    /// sends beyond the first in the upper.
    pub const fn send_word(len: u64, sends: u64) -> u64 {
        len | (sends - 1) << SEND_LEN_BITS
    }

    /// Sends that a send request stands for.
    pub fn sends(&self) -> u64 {
        (self.numbers().1 >> SEND_LEN_BITS) + 1
    }

    /// A send of `len` bytes of `file` from `offset` on, on `socket`. Counted like [`Self::send`].
    pub fn send_file(socket: SocketId, file: FileId, offset: u64, len: u64) -> Self {
        Self::new(Operation::SendFile, socket, file.0).with_numbers(offset, len)
    }

    /// The span of a send request.
    pub fn span(&self) -> Span {
        let (word, len) = self.numbers();
        Span {
            region: (word >> SPAN_OFFSET_BITS) as u16,
            offset: word & ((1 << SPAN_OFFSET_BITS) - 1),
            len: len & ((1 << SEND_LEN_BITS) - 1),
        }
    }
}

kinds! {
    /// Operation of a [`Request`]. Operations marked *answered* are answered by one [`crate::Event`] of kind
    /// `Answer` with the same tag, in any order.
    enum Operation: u8 {
        /// Move a span of a send region to the peer (paper, section III-E). Numbers: the region above
        /// [`SPAN_OFFSET_BITS`] of offset; the sends beyond the first above [`SEND_LEN_BITS`] of length. The second may
        /// grow while the request is the newest of its ring. Unanswered.
        Send = 1,
        /// The client has given back the bytes of the receive ring that the driver waits for
        /// (`space_wake_at`). Unanswered.
        Space = 2,
        /// A new socket; `family` says IPv4 or IPv6. Answered with its id and, as a number, the bytes of its
        /// send and receive rings.
        Socket = 3,
        /// Bind to an address; `value` may be [`BESIDE_KERNEL`]. Answered with the address bound.
        Bind = 4,
        /// Listen; numbers: backlog; `value` may be [`RECEIVES_SHARED`], for the sockets that are accepted, and [`LISTENS_TO_OTHERS`]. Answered with the
        /// local address.
        Listen = 5,
        /// Connect to an address; `value` may be [`RECEIVES_SHARED`]. Answered with the local address.
        Connect = 6,
        /// Take one connection from the backlog. Answered with the new socket's id and the peer's
        /// address, or `EAGAIN`.
        Accept = 7,
        /// End of the socket; bytes that it has sent are still delivered. `value` may be [`CLOSE_RESETS`] or [`CLOSE_LEFT`]. Unanswered.
        Close = 8,
        /// Stop sending and/or receiving; numbers: a mask, 1 receive, 2 send. Answered.
        Shutdown = 9,
        /// Set a [`SocketOption`] to a number. Answered with the value taken, in the address bytes.
        SetOption = 10,
        /// Events of the socket go to the channel of this request. Answered.
        Adopt = 11,
        /// The twin may not be claimed any more. Answered: `EISCONN` if it has been.
        Withdraw = 12,
        /// Direct path: post the `Ready` event that the peer waits for. Unanswered.
        Nudge = 13,
        /// Direct path: end the connection, for the peer's words are impossible. Unanswered.
        Broken = 14,
        /// The socket has left the direct path, as its `path` word asked for, in one of its directions: `value` is
        /// [`LEFT_RECEIVING`] or [`LEFT_SENDING`]. Unanswered.
        Left = 15,
        /// Open a file for [`Self::SendFile`]: the one that the client has passed on its file
        /// socket, with its serial as the first number ([`PassedFile`](crate::PassedFile)). Answered with a [`FileId`] as a
        /// number; `ENOTCONN` without a file socket, `ESTALE` if nothing was passed with that serial, `EPROTO` if something
        /// else was passed.
        OpenFile = 16,
        /// Move a piece of a file to the peer: `tag` is a [`FileId`], the numbers are its first byte and its length
        /// (at most [`MESSAGE_BYTES_MAX`](crate::limits::MESSAGE_BYTES_MAX)). Counted as a send. Unanswered.
        SendFile = 17,
        /// Of a twin: the connection goes on in the kernel. The socket sends nothing more: its peer's receiving ends with
        /// [`ELSEWHERE`](crate::layout::ELSEWHERE) after what was sent, and its peer's sending at once. Answered, as a number, with the
        /// position in the stream up to which the driver delivers what the peer has sent before it could know, and
        /// [`PEER_LEFT`], [`PEER_UNMARKED`], [`LEFT_BEFORE`] and [`UNMARKED`]. `value` is a sum of [`STEP_ASIDE_BY_CHOICE`] and
        /// [`STEP_ASIDE_UNMARKED`], or [`STEP_ASIDE_CLAIM_MARK`].
        StepAside = 18,
        /// Numbers: one that the client chooses. The channel's `synced` tells it when the driver has taken what other clients' threads had
        /// put into their request rings before, and has brought as much of it as there is room for. Of a twin whose peer's process has ended, the driver looks whether another one holds the kernel's
        /// socket there. Needs no socket. Unanswered.
        Sync = 19,
    }
}

constants! {
    VALUES:
    /// `value` of [`Operation::Close`]: the peer's stream ends with `ECONNRESET`, after what was sent.
    CLOSE_RESETS: u32 = 1;
    /// `value` of [`Operation::Close`]: the connection goes on in the kernel in both directions, for all processes that hold it.
    CLOSE_LEFT: u32 = 2;
    /// `value` of [`Operation::StepAside`]: the kernel would only be faster. Refused with `EACCES` where a rate or a mirror needs the
    /// driver to move the connection's bytes.
    STEP_ASIDE_BY_CHOICE: u32 = 1;
    /// `value` of [`Operation::StepAside`]: the socket's process looks at both streams, so that a peer that follows sends no mark
    /// over the kernel's connection. Without effect if the peer has left before.
    STEP_ASIDE_UNMARKED: u32 = 2;
    /// `value` of [`Operation::StepAside`]: this process takes the peer's mark off the kernel's connection, so that whichever has the socket
    /// later looks for none. Answered with [`UNMARKED`] if there is no mark any more, and [`PEER_LEFT`]. A peer that has not left sends no mark
    /// when it follows: a process that is about to close the kernel's socket asks for that.
    STEP_ASIDE_CLAIM_MARK: u32 = 4;
    /// In the answer to [`Operation::StepAside`]: the peer has left before.
    PEER_LEFT: u64 = 1 << 63;
    /// In the answer to [`Operation::StepAside`]: the peer wants no mark.
    PEER_UNMARKED: u64 = 1 << 62;
    /// In the answer to [`Operation::StepAside`]: this side has left before, by another process perhaps, and sends no mark again.
    LEFT_BEFORE: u64 = 1 << 61;
    /// In the answer to [`Operation::StepAside`]: no mark of the peer's is to be taken off.
    UNMARKED: u64 = 1 << 60;
    /// In the answer to [`TwinOperation::Take`](crate::TwinOperation::Take), beside the bytes of the rings: the side has left.
    TAKEN_ASIDE: u64 = 1 << 63;
    /// `value` of [`Operation::Left`]: all of the peer's ring was read.
    LEFT_RECEIVING: u32 = 1;
    /// `value` of [`Operation::Left`]: nothing more is written into this side's ring.
    LEFT_SENDING: u32 = 2;
    /// `value` of [`Operation::Bind`]: the socket stands beside one of the kernel's, for a program that knows no other: listeners of one user in one
    /// network namespace share a port, taking connections in turns.
    BESIDE_KERNEL: u32 = 1;
    /// `value` of [`Operation::Listen`] and [`Operation::Connect`]: see [`SocketOption::ReceivesShared`].
    RECEIVES_SHARED: u32 = 2;
    /// `value` of [`Operation::Listen`]: the listener begins as with [`OTHER_NETWORKS`](crate::OTHER_NETWORKS).
    LISTENS_TO_OTHERS: u32 = 4;
    /// Number of [`SocketOption::Paused`]: the listener takes connections of other networks alone, which the kernel cannot bring.
    OTHER_NETWORKS: u64 = 2;

    /// Bits of the offset in the first number of [`Operation::Send`]; the region lies above.
    SPAN_OFFSET_BITS: u32 = 48;
    /// Bits of the length in the second number of [`Operation::Send`]; above lie the sends beyond the first.
    SEND_LEN_BITS: u32 = 32;
    /// Bits of the slot in a [`SocketId`] and a [`FileId`]; the generation lies above.
    ID_SLOT_BITS: u32 = 16;
}

kinds! {
    /// Socket options that the driver keeps.
    enum SocketOption: u32 {
        /// Bytes of the send ring: the most that may be sent and not yet delivered.
        SendRingBytes = 1,
        /// Bytes of the receive ring. Takes effect when the next ring is attached.
        ReceiveRingBytes = 2,
        /// A second listener may bind the port once the first is closed. Always so, and accepted for programs
        /// that set it.
        ReuseAddress = 3,
        /// An IPv6 socket takes no IPv4 connections.
        V6Only = 4,
        /// A question, not a setting: the answer carries the socket's local address.
        LocalAddress = 5,
        /// A listener takes no new connections until it is cleared, or with [`OTHER_NETWORKS`] no others; those in its backlog stay.
        Paused = 6,
        /// The socket receives bytes that their sender can still change, on the direct path: the library copies them before
        /// the program looks at them, or the program has asked for them as they are. Cannot be taken back.
        ReceivesShared = 7,
        /// A question, not a setting, about an accepted socket: the answer carries the address that the connecting side asked for, where that is not
        /// the one it reached. `ENOENT` where it is.
        OriginalAddress = 8,
    }
}

/// A client's name for one of its things: a slot and the slot's generation, so that a stale id never reaches a later
/// user of the slot.
macro_rules! slot_id {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// The id of `slot` in its `generation` (never 0 while it is in use).
            pub const fn new(slot: u16, generation: u16) -> Self {
                Self((generation as u32) << ID_SLOT_BITS | slot as u32)
            }
            /// Slot of the object.
            pub const fn slot(self) -> u16 {
                self.0 as u16
            }
            /// Generation of the slot; never 0 while it is in use.
            pub const fn generation(self) -> u16 {
                (self.0 >> ID_SLOT_BITS) as u16
            }
        }
    };
}

slot_id! {
    /// A socket. The slot is its line of the control and status regions.
    SocketId
}

slot_id! {
    /// A file that the driver has open for the client. The slot is that of its words in the headers of the control and
    /// status regions, one of [`FILES_MAX`](crate::limits::FILES_MAX).
    FileId
}

/// A piece of a region: what crosses the boundary instead of a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The region, numbered per client.
    pub region: u16,
    /// First byte; 48 bits.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Span {
    fn to_word(self) -> u64 {
        (self.region as u64) << SPAN_OFFSET_BITS | (self.offset & ((1 << SPAN_OFFSET_BITS) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_and_id_round_trip() {
        let span = Span { region: 65_535, offset: (1 << 48) - 1, len: u64::from(u32::MAX) };
        assert_eq!(Request::send(SocketId::new(7, 9), span).span(), span);
        let several = Request::several_sends(SocketId::new(7, 9), span, 1 << 32);
        assert_eq!((several.span(), several.sends()), (span, 1 << 32));
        let id = SocketId::new(65_535, 3);
        assert_eq!((id.slot(), id.generation()), (65_535, 3));
        let file = FileId::new(63, 9);
        assert_eq!((file.slot(), file.generation()), (63, 9));
    }

    #[test]
    fn the_list_of_operations_is_whole() {
        let known = (0..=u8::MAX).filter_map(Operation::from_raw);
        assert!(known.eq(Operation::ALL.iter().copied()));
        assert!(Operation::ALL
            .iter()
            .all(|&operation| Operation::from_raw(operation as u8) == Some(operation)));
    }
}
