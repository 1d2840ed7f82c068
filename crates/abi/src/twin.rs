use crate::Address;
use core::mem::size_of;

/// What a client asks about a socket of the kernel that it holds, in the text of a [`crate::Frame`] of kind
/// `Twin`. Its *twin* is the socket here that carries the bytes of that one's connection.
///
/// Nothing of it is believed: the driver looks the descriptor up in `/proc` and asks the kernel whose address and
/// cookie the socket has. No descriptor travels, for closing a stranger's descriptor can block who received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwinRequest {
    /// A [`TwinOperation`].
    pub operation: u32,
    /// Chosen by the client; the answer on the channel carries it.
    pub tag: u32,
    /// The client's descriptor.
    pub descriptor: u32,
    /// What `SO_COOKIE` says of it.
    pub cookie: u64,
    /// Its own address; for `Connect` the port is enough. Of an AF_UNIX socket a file ([`Address::FILE`]), which
    /// only `Listen` has to name.
    pub local: Address,
    /// The peer's; for `Listen` none. Of an AF_UNIX socket a file, which only `Connect` has to name.
    pub peer: Address,
}

/// What a [`TwinRequest`] asks for. Each is answered like a [`crate::Request`]; with a new socket's id comes, as a
/// number, the bytes of its rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum TwinOperation {
    /// Connections to this listening socket may have twins. Everybody who holds the socket may say so.
    Listen = 1,
    /// This socket, bound but not yet connected, is going to be connected: a twin, which can send at once.
    /// `ECONNREFUSED` if nobody said `Listen` there.
    Connect = 2,
    /// This socket was accepted: its twin. `ENOENT` if the peer has made none.
    Claim = 3,
    /// This connected socket has a twin that another process used, or nobody since that one ended: it becomes
    /// the asker's, with what was not read. `ENOENT` if there is none.
    Take = 4,
    /// The asker will claim none of the listening socket's connections any more.
    Unlisten = 5,
}

/// Bytes of a [`TwinRequest`] on the wire.
pub const TWIN_REQUEST_BYTES: usize = 64;

impl TwinOperation {
    /// The operation of a raw number.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Listen,
            2 => Self::Connect,
            3 => Self::Claim,
            4 => Self::Take,
            5 => Self::Unlisten,
            _ => return None,
        })
    }
}

impl TwinRequest {
    /// The bytes of the request, numbers little endian.
    pub fn to_bytes(&self) -> [u8; TWIN_REQUEST_BYTES] {
        let mut bytes = [0; TWIN_REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&self.operation.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.descriptor.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.cookie.to_le_bytes());
        for (at, address) in [(20, &self.local), (42, &self.peer)] {
            bytes[at] = address.family;
            bytes[at + 2..at + 4].copy_from_slice(&address.port.to_le_bytes());
            bytes[at + 4..at + 20].copy_from_slice(&address.bytes);
        }
        bytes
    }

    /// The request of these bytes.
    pub fn from_bytes(bytes: &[u8; TWIN_REQUEST_BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let address = |at: usize| {
            let mut ip = [0; 16];
            ip.copy_from_slice(&bytes[at + 4..at + 20]);
            Address { family: bytes[at], port: u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]), bytes: ip }
        };
        Self {
            operation: word(0),
            tag: word(4),
            descriptor: word(8),
            cookie: u64::from(word(12)) | u64::from(word(16)) << 32,
            local: address(20),
            peer: address(42),
        }
    }
}

const _: () = assert!(TWIN_REQUEST_BYTES <= size_of::<crate::Frame>() - 40);

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
