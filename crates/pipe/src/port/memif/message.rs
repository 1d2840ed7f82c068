//! Messages of memif, version 2: 128 bytes each, of a fixed layout, in the order of the machine.
use std::fmt;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 128;
/// Version of the protocol: 2.0.
pub const VERSION: u16 = 0x0200;
/// Logarithm of the entries of the largest ring that is offered.
pub const RING_LOG_MAX: u8 = 12;

const NAME: &[u8] = b"PipeDevice";

/// A client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Acknowledges the last message. A client acknowledges nothing that this side sends.
    Ack,
    /// Requests an interface by number, in Ethernet mode only.
    Init {
        /// Number of the interface.
        id: u32,
    },
    /// A region of its memory; a descriptor comes with it.
    AddRegion {
        /// Number.
        index: u16,
        /// Bytes.
        bytes: u64,
    },
    /// A ring in a region; a descriptor comes with it.
    AddRing {
        /// Set if this side reads the ring.
        is_ours_to_read: bool,
        /// Number.
        index: u16,
        /// Region of the ring.
        region: u16,
        /// Offset in the region.
        offset: u32,
        /// Logarithm of its entries.
        log: u8,
    },
    /// Ends the setup.
    Connect,
    /// Hangs up.
    Disconnect,
}

/// Reason why a message was refused, as a text for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

fn number<const N: usize>(bytes: &[u8; MESSAGE_BYTES], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

impl Message {
    /// Parses a message.
    ///
    /// # Errors
    /// A sentence, for a malformed message or one that asks for more than is offered.
    pub fn read(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, Refused> {
        let half = |at| u16::from_ne_bytes(number(bytes, at));
        let word = |at| u32::from_ne_bytes(number(bytes, at));
        match half(0) {
            1 => Ok(Self::Ack),
            3 => {
                if half(2) != VERSION {
                    return Err(Refused("another version of memif"));
                }
                if bytes[8] != 0 {
                    return Err(Refused("no mode but Ethernet"));
                }
                Ok(Self::Init { id: word(4) })
            }
            4 => Ok(Self::AddRegion { index: half(2), bytes: u64::from_ne_bytes(number(bytes, 4)) }),
            5 => Ok(Self::AddRing {
                is_ours_to_read: half(2) & 1 != 0,
                index: half(4),
                region: half(6),
                offset: word(8),
                log: bytes[12],
            }),
            6 => Ok(Self::Connect),
            8 => Ok(Self::Disconnect),
            _ => Err(Refused("no message for a server")),
        }
    }
}

fn of_type(number: u16) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..2].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// Returns the message with this side's offer: one region, a ring for each direction.
pub fn hello() -> [u8; MESSAGE_BYTES] {
    let mut bytes = of_type(2);
    bytes[2..2 + NAME.len()].copy_from_slice(NAME);
    for at in [34, 36] {
        bytes[at..at + 2].copy_from_slice(&VERSION.to_ne_bytes());
    }
    bytes[44] = RING_LOG_MAX;
    bytes
}

/// Returns the message that acknowledges another.
pub fn ack() -> [u8; MESSAGE_BYTES] {
    of_type(1)
}

/// Returns the message that frames may flow.
pub fn connected() -> [u8; MESSAGE_BYTES] {
    let mut bytes = of_type(7);
    bytes[2..2 + NAME.len()].copy_from_slice(NAME);
    bytes
}

/// Returns the message that this side hangs up, with its reason.
pub fn disconnect(why: Refused) -> [u8; MESSAGE_BYTES] {
    let mut bytes = of_type(8);
    let text = &why.0.as_bytes()[..why.0.len().min(90)];
    bytes[6..6 + text.len()].copy_from_slice(text);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_read_as_dpdk_writes_them() {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..9].copy_from_slice(&[3, 0, 0, 2, 7, 0, 0, 0, 0]);
        assert_eq!(Message::read(&bytes), Ok(Message::Init { id: 7 }));
        bytes[8] = 1;
        assert!(Message::read(&bytes).is_err());
        bytes[..13].copy_from_slice(&[5, 0, 1, 0, 2, 0, 3, 0, 0x80, 1, 0, 0, 10]);
        let ring = Message::AddRing { is_ours_to_read: true, index: 2, region: 3, offset: 0x180, log: 10 };
        assert_eq!(Message::read(&bytes), Ok(ring));
        bytes[..12].copy_from_slice(&[4, 0, 1, 0, 0, 0, 16, 0, 0, 0, 0, 0]);
        assert_eq!(Message::read(&bytes), Ok(Message::AddRegion { index: 1, bytes: 1 << 20 }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in prop::collection::vec(any::<u8>(), MESSAGE_BYTES), kind in 0..12u8) {
            let mut bytes: [u8; MESSAGE_BYTES] = bytes.try_into().unwrap();
            (bytes[0], bytes[1]) = (kind, 0);
            let _ = Message::read(&bytes);
        }
    }
}
