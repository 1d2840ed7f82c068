use crate::declare::{constants, kinds, words};
use crate::Address;

/// A client's request about a kernel socket that it holds, in the text of a [`crate::Frame`] of kind
/// `Twin`. Its *twin* is the socket here that carries the bytes of that one's connection.
///
/// The driver believes nothing of it. It looks the descriptor up in `/proc` and asks the kernel for the socket's address and
/// cookie. No descriptor travels, for closing a stranger's descriptor can block its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinRequest {
    /// A [`TwinOperation`].
    pub operation: u32,
    /// Chosen by the client; the answer on the channel carries it.
    pub tag: u32,
    /// The client's descriptor.
    pub descriptor: u32,
    /// The socket's `SO_COOKIE`.
    pub cookie: u64,
    /// Its own address; for `Connect` the port is enough. Of an AF_UNIX socket a file ([`Address::FILE`]), which
    /// only `Listen` has to name.
    pub local: Address,
    /// The peer's; for `Listen` none. Of an AF_UNIX socket a file, which only `Connect` has to name.
    pub peer: Address,
}

kinds! {
    /// Operation of a [`TwinRequest`]. Each is answered like a [`crate::Request`]. An answer with a new socket's id carries
    /// the bytes of its rings as its number.
    enum TwinOperation: u32 {
        /// Connections to this listening socket may have twins. Each process that holds the socket may ask for it.
        Listen = 1,
        /// A twin, which can send at once, for this socket, which is bound and about to be connected.
        /// `ECONNREFUSED` if no process said `Listen` there. `EREMOTE` if the peer's address is a map's: the kernel has no way to
        /// it, and [`Operation::Connect`](crate::Operation) of a socket without one of the kernel's reaches it.
        Connect = 2,
        /// The twin of this accepted socket. `ENOENT` if the peer has made none. With the bytes of its rings comes, as a second number, the
        /// connecting end if it is the client's own.
        Claim = 3,
        /// The twin of this connected socket, which another process uses or used: it becomes the client's, with the bytes that
        /// were not read. `ENOENT` if there is none, `EREMCHG` if the connection has gone on in the kernel. With the bytes of its
        /// rings comes [`TAKEN_ASIDE`](crate::TAKEN_ASIDE) if it is about to.
        Take = 4,
        /// The client claims none of the listening socket's connections any more.
        Unlisten = 5,
    }
}

constants! {
    SIZES:
    /// Bytes of a [`TwinRequest`] in the text of a [`crate::Frame`].
    TWIN_REQUEST_BYTES: usize = 64;
}

words! {
    /// Words of a [`TwinRequest`] in the text of a [`crate::Frame`], numbers little endian. An address is its family (1 byte),
    /// a zero, its port (2 bytes) and its 16 bytes.
    mod twin_request in TWIN_REQUEST_BYTES {
        /// A [`TwinOperation`].
        OPERATION: u32 = 0;
        /// Chosen by the client; the answer on the channel carries it.
        TAG: u32 = 4;
        /// The client's descriptor.
        DESCRIPTOR: u32 = 8;
        /// The value of its `SO_COOKIE`.
        COOKIE: u64 = 16;
        /// Its own address.
        LOCAL: [u8; 20] = 24;
        /// The peer's address.
        PEER: [u8; 20] = 44;
    }
}

impl TwinRequest {
    /// The bytes of the request, numbers little endian.
    pub fn to_bytes(&self) -> [u8; TWIN_REQUEST_BYTES] {
        use twin_request::{COOKIE, DESCRIPTOR, LOCAL, OPERATION, PEER, TAG};
        let mut bytes = [0; TWIN_REQUEST_BYTES];
        for (at, word) in [(OPERATION, self.operation), (TAG, self.tag), (DESCRIPTOR, self.descriptor)] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[COOKIE..COOKIE + 8].copy_from_slice(&self.cookie.to_le_bytes());
        for (at, address) in [(LOCAL, &self.local), (PEER, &self.peer)] {
            bytes[at] = address.family;
            bytes[at + 2..at + 4].copy_from_slice(&address.port.to_le_bytes());
            bytes[at + 4..at + 20].copy_from_slice(&address.bytes);
        }
        bytes
    }

    /// The request of these bytes.
    pub fn from_bytes(bytes: &[u8; TWIN_REQUEST_BYTES]) -> Self {
        use twin_request::{COOKIE, DESCRIPTOR, LOCAL, OPERATION, PEER, TAG};
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let address = |at: usize| {
            let mut ip = [0; 16];
            ip.copy_from_slice(&bytes[at + 4..at + 20]);
            Address { family: bytes[at], port: u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]), bytes: ip }
        };
        Self {
            operation: word(OPERATION),
            tag: word(TAG),
            descriptor: word(DESCRIPTOR),
            cookie: u64::from(word(COOKIE)) | u64::from(word(COOKIE + 4)) << 32,
            local: address(LOCAL),
            peer: address(PEER),
        }
    }
}

const _: () = assert!(TWIN_REQUEST_BYTES <= crate::Frame::TEXT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let request = TwinRequest {
            operation: TwinOperation::Take as u32,
            tag: 0x0102_0304,
            descriptor: 7,
            cookie: 0x1122_3344_5566_7788,
            local: Address { family: 6, port: 0xabcd, bytes: [9; 16] },
            peer: Address { family: 4, port: 1, bytes: [3; 16] },
        };
        assert_eq!(TwinRequest::from_bytes(&request.to_bytes()), request);
    }
}
