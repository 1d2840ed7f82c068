//! Pipes: rings of opaque bytes between an agent of the driver and a client's program (Ensō, section 3.2).
//!
//! A pipe has three memory files. The agent writes the *status file*: a page of words, then the frame table of frames that the
//! client receives. The client writes the *control file*: a page of words, then the frame table of frames that it sends. The
//! *ring file* holds the data: written by the agent in a receiving pipe, by the client in a sending pipe. In a forwarding pipe
//! bytes that were announced are the client's until it has passed them on; all others are the agent's.
//!
//! Positions are free-running counts of bytes. Byte n lies at offset n modulo the ring's size. In a pipe of frames a frame starts at a
//! multiple of [`LINE_BYTES`], and every position in a shared word is such a multiple.
//!
//! A *frame table* has one u32 for each line of the ring, valid for lines where a frame starts: [`entry`]. The rest of the
//! table is undefined.
use crate::declare::{constants, kinds, words};
use crate::limits::{LINE_BYTES, PAGE_BYTES};

words! {
    /// Words of the status file of a pipe, which the agent writes.
    mod pipe_status in PAGE_BYTES {
        /// The notification: bytes that the client may read. It changes at most once until the client answers by
        /// `recv_consumer`, `recv_wanted` or, in a forwarding pipe, `send_producer`.
        RECV_PRODUCER: u64 = 0;
        /// Bytes that the agent has taken; in a sending pipe their place in the ring is free.
        SEND_CONSUMER: u64 = 128;
        /// Futex: incremented with each wake-up of a receiver.
        RECV_DOORBELL: u32 = 256;
        /// Futex: incremented with each wake-up of a sender.
        SEND_DOORBELL: u32 = 260;
        /// 0: the agent is looking; otherwise the number of its present sleep: write the doorbell eventfd once for
        /// each.
        NEED_WAKEUP: u32 = 384;
        /// Not 0: the pipe has ended, with this errno.
        END: u32 = 388;
        /// Path of the pipe's frames on a link, and the number of the offer: [`link`].
        LINK: u32 = 392;
        /// On the direct path: position in the sender's ring of the first frame or byte that the receiver reads there.
        LINK_FROM: u64 = 400;
    }
}

words! {
    /// Words of the control file of a pipe, which the client writes.
    mod pipe_control in PAGE_BYTES {
        /// Bytes that the client has given back. Not of forwarding pipes, where `send_producer` says so.
        RECV_CONSUMER: u64 = 0;
        /// A count of requests for a notification of what is there (Ensō's notification prefetch).
        RECV_WANTED: u32 = 8;
        /// Bytes that the agent may take.
        SEND_PRODUCER: u64 = 128;
        /// Ring `recv_doorbell` when `recv_producer` reaches this.
        RECV_WAKE_AT: u64 = 256;
        /// Ring `send_doorbell` when `send_consumer` reaches this; on the direct path the receiver's `peer_doorbell`, when its
        /// `link_consumer` does.
        SEND_WAKE_AT: u64 = 264;
        /// Receiver on the direct path: ring the sender's `peer_doorbell` when its `send_producer` reaches this.
        LINK_WAKE_AT: u64 = 272;
        /// Receiver on the direct path: bytes of the sender's ring that it has given back; `u64::MAX` before it reads there. Counts on
        /// after `link_left`, up to `link_left_at`, while frames are lent.
        LINK_CONSUMER: u64 = 384;
        /// Futex: incremented with each wake-up of the peer on the direct path.
        PEER_DOORBELL: u32 = 512;
        /// Number of the offer whose memory is mapped.
        LINK_MAPPED: u32 = 640;
        /// Receiver: number of the direct path that it has left, at `link_left_at`.
        LINK_LEFT: u32 = 644;
        /// Receiver: position in the sender's ring of the first frame or byte that it has not read.
        LINK_LEFT_AT: u64 = 648;
        /// Receiver: frames, or pieces of bytes, that it has received on the direct path.
        LINK_FRAMES: u64 = 656;
        /// Receiver: bytes of these.
        LINK_BYTES: u64 = 664;
        /// Receiver: frames on the direct path that their sender dropped by its verdict.
        LINK_DROPPED: u64 = 672;
        /// Receiver: frames on the direct path whose verdict names no port of the sender.
        LINK_FOREIGN: u64 = 680;
    }
}

constants! {
    VERDICTS:
    /// To the port that the pipe belongs to; of a forwarded frame the one that it came from. Other numbers name the ports that
    /// the pipe was opened with.
    BACK: u16 = 0;
    /// To no port: the frame ends here.
    DROP: u16 = u16::MAX;
}

kinds! {
    /// Direction of a pipe's bytes.
    enum PipeDirection: u32 {
        /// To the client.
        Receive = 1,
        /// From the client.
        Send = 2,
        /// To the client and on from there, in one ring.
        Forward = 3,
    }
}

kinds! {
    /// Unit of a pipe's bytes.
    enum PipeUnit: u32 {
        /// Frames, with a frame table.
        Frames = 1,
        /// Bytes without marks between them.
        Bytes = 2,
    }
}

kinds! {
    /// Path of a pipe's frames on a link, by the agent.
    enum LinkPath: u32 else Agent {
        /// The agent passes frames on.
        Agent = 0,
        /// The agent passes frames on until both ends have mapped the other's memory.
        Offered = 1,
        /// The receiver reads the sender's ring.
        Direct = 2,
        /// The receiver reads on to a frame of its choice, and says which is the next (`link_left`).
        Recalled = 3,
        /// The sender has gone: as `Recalled`, at the end of what it has sent.
        Last = 4,
    }
}

/// Descriptors of an answer `PipePeer`, by its word `page_bytes`, after the control file and in this order.
pub mod peer_has {
    use crate::declare::constants;

    constants! {
        PEER_HAS:
        /// The ring of the other end, which sends.
        RING: u64 = 1;
        /// The wake-up eventfd of the pipe itself, which the other end signals, for a program that waits in `poll` or `epoll`. Never read or
        /// written: each signal is an edge.
        OWN_EVENTFD: u64 = 2;
        /// The wake-up eventfd of the other end, to be signalled in a way that cannot block (`IOCB_FLAG_RESFD`).
        PEER_EVENTFD: u64 = 4;
    }
}

constants! {
    SIZES:
    /// Bytes of a [`PipeRequest`] in the text of a [`crate::Frame`].
    PIPE_REQUEST_BYTES: usize = 88;
    /// Bytes of the names of a request's ports.
    PIPE_NAMES_BYTES: usize = 64;
}

words! {
    /// Words of a [`PipeRequest`] in the text of a [`crate::Frame`], numbers little endian, addresses in the order of the network. Those
    /// from `protocol` to `destination_port` are a flow: the frames that the pipe receives. Zeros are wildcards.
    mod pipe_request in PIPE_REQUEST_BYTES {
        /// A [`PipeDirection`].
        DIRECTION: u8 = 0;
        /// A [`PipeUnit`].
        UNIT: u8 = 1;
        /// Protocol of IPv4.
        PROTOCOL: u8 = 2;
        /// Bits of the source address that count.
        SOURCE_PREFIX: u8 = 3;
        /// Bits of the destination address that count.
        DESTINATION_PREFIX: u8 = 4;
        /// 1: pipes of other clients of the tenant with the same flow have a share of its frames, if their requests say so, too.
        SHARES: u8 = 5;
        /// Source address of IPv4.
        SOURCE: [u8; 4] = 8;
        /// Destination address of IPv4.
        DESTINATION: [u8; 4] = 12;
        /// Source port of UDP or TCP.
        SOURCE_PORT: u16 = 16;
        /// Destination port of UDP or TCP.
        DESTINATION_PORT: u16 = 18;
        /// Names of ports with commas between them, padded with zeros: the pipe's own, then those that its verdicts may name, the first as 1.
        NAMES: [u8; PIPE_NAMES_BYTES] = 24;
    }
}

/// Request of a client in a [`crate::FrameKind::Pipe`]; nothing of it is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeRequest {
    /// Direction.
    pub direction: PipeDirection,
    /// Of what.
    pub unit: PipeUnit,
    /// Protocol of IPv4; 0 for any.
    pub protocol: u8,
    /// Address and prefix of the source and of the destination.
    pub addresses: [([u8; 4], u8); 2],
    /// Ports of the source and of the destination; 0 for any.
    pub ports: [u16; 2],
    /// Allows pipes of other clients a share of the frames.
    pub shares: bool,
    names: [u8; PIPE_NAMES_BYTES],
}

impl PipeRequest {
    /// A request for all frames of the ports of these names, with commas between them. None if the names are too long.
    pub fn new(direction: PipeDirection, unit: PipeUnit, names: &str) -> Option<Self> {
        let mut bytes = [0; PIPE_NAMES_BYTES];
        bytes.get_mut(..names.len())?.copy_from_slice(names.as_bytes());
        let addresses = [([0; 4], 0); 2];
        let (ports, shares) = ([0; 2], false);
        Some(Self { direction, unit, protocol: 0, addresses, ports, shares, names: bytes })
    }

    /// Names of the ports. None where they are not UTF-8.
    pub fn names(&self) -> Option<impl Iterator<Item = &str>> {
        let len = self.names.iter().position(|&byte| byte == 0).unwrap_or(self.names.len());
        Some(core::str::from_utf8(&self.names[..len]).ok()?.split(','))
    }

    /// The bytes of the request.
    pub fn to_bytes(&self) -> [u8; PIPE_REQUEST_BYTES] {
        use pipe_request::*;
        let mut bytes = [0; PIPE_REQUEST_BYTES];
        let [(source, source_prefix), (destination, destination_prefix)] = self.addresses;
        (bytes[DIRECTION], bytes[UNIT]) = (self.direction as u8, self.unit as u8);
        (bytes[PROTOCOL], bytes[SOURCE_PREFIX], bytes[DESTINATION_PREFIX]) =
            (self.protocol, source_prefix, destination_prefix);
        bytes[SHARES] = self.shares.into();
        bytes[SOURCE..SOURCE + 4].copy_from_slice(&source);
        bytes[DESTINATION..DESTINATION + 4].copy_from_slice(&destination);
        bytes[SOURCE_PORT..SOURCE_PORT + 2].copy_from_slice(&self.ports[0].to_le_bytes());
        bytes[DESTINATION_PORT..DESTINATION_PORT + 2].copy_from_slice(&self.ports[1].to_le_bytes());
        bytes[NAMES..NAMES + PIPE_NAMES_BYTES].copy_from_slice(&self.names);
        bytes
    }

    /// The request in these bytes. None where direction, unit or `shares` is none.
    pub fn from_bytes(bytes: &[u8; PIPE_REQUEST_BYTES]) -> Option<Self> {
        use pipe_request::*;
        let address = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let mut names = [0; PIPE_NAMES_BYTES];
        names.copy_from_slice(&bytes[NAMES..NAMES + PIPE_NAMES_BYTES]);
        Some(Self {
            direction: PipeDirection::from_raw(bytes[DIRECTION].into())?,
            unit: PipeUnit::from_raw(bytes[UNIT].into())?,
            protocol: bytes[PROTOCOL],
            addresses: [
                (address(SOURCE), bytes[SOURCE_PREFIX]),
                (address(DESTINATION), bytes[DESTINATION_PREFIX]),
            ],
            ports: [number(SOURCE_PORT), number(DESTINATION_PORT)],
            shares: match bytes[SHARES] {
                0 => false,
                1 => true,
                _ => return None,
            },
            names,
        })
    }
}

constants! {
    LIMITS:
    /// Smallest ring of a pipe: one frame of the largest size fits beside another.
    PIPE_RING_BYTES_MIN: u64 = 32 << 10;
    /// Default size of a pipe's ring, which the second-level cache holds on most processors.
    PIPE_RING_BYTES_DEFAULT: u64 = 512 << 10;
    /// Largest ring of a pipe.
    PIPE_RING_BYTES_MAX: u64 = 64 << 20;
    /// Shortest frame: an Ethernet header. The client that announces a shorter one is cut off.
    FRAME_BYTES_MIN: u16 = 14;
    /// Longest frame. The client that announces a longer one is cut off.
    FRAME_BYTES_MAX: u16 = 9216;
    /// Bytes after which a client gives space back at the latest; in a small ring a quarter of the ring.
    PIPE_PIECE_BYTES: u64 = 32 << 10;
    /// Ports that a verdict can name.
    PIPE_PORTS_MAX: usize = 64;
    /// Frames in a row whose verdict names no port; a client that sends more is cut off.
    FOREIGN_VERDICTS_MAX: u32 = 16;
    /// Offset of the frame table in the status file and in the control file.
    FRAME_TABLE_OFFSET: usize = PAGE_BYTES;
    /// Bytes of an entry of a frame table.
    FRAME_ENTRY_BYTES: usize = 4;
    /// Bits of `link` that hold a [`LinkPath`]; the number is above them.
    LINK_PATH_BITS: u32 = 3;
    /// Largest number of an offer, after which 1 follows.
    LINK_NUMBER_MAX: u32 = u32::MAX >> 3;
}

/// The word `link` of an offer.
pub const fn link(number: u32, path: LinkPath) -> u32 {
    number << LINK_PATH_BITS | path as u32
}

/// Number and path of a word `link`.
pub const fn link_parts(word: u32) -> (u32, LinkPath) {
    (word >> LINK_PATH_BITS, LinkPath::from_raw(word & ((1 << LINK_PATH_BITS) - 1)))
}

/// The entry of a frame of `length` bytes. `verdict` is [`BACK`] in the receiving direction.
pub const fn entry(length: u16, verdict: u16) -> u32 {
    length as u32 | (verdict as u32) << 16
}

/// Length and verdict of an entry; of a client's, neither is to be believed.
pub const fn entry_parts(entry: u32) -> (u16, u16) {
    (entry as u16, (entry >> 16) as u16)
}

/// Bytes of the ring that a frame of `length` bytes takes.
pub const fn frame_stride(length: u16) -> u64 {
    (length as u64).next_multiple_of(LINE_BYTES as u64)
}

/// Bytes of the frame table of a ring of `ring_bytes`, in whole pages.
pub const fn table_bytes(ring_bytes: u64) -> usize {
    (ring_bytes as usize / LINE_BYTES * FRAME_ENTRY_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Offset of the entry of a frame at `position` in the file that holds the table.
pub const fn entry_offset(position: u64, ring_bytes: u64) -> usize {
    FRAME_TABLE_OFFSET + (position & (ring_bytes - 1)) as usize / LINE_BYTES * FRAME_ENTRY_BYTES
}

const _: () = {
    assert!(PIPE_RING_BYTES_MIN.is_power_of_two() && PIPE_RING_BYTES_MIN as usize % PAGE_BYTES == 0);
    assert!(PIPE_RING_BYTES_DEFAULT.is_power_of_two() && PIPE_RING_BYTES_MAX.is_power_of_two());
    assert!(2 * frame_stride(FRAME_BYTES_MAX) <= PIPE_RING_BYTES_MIN);
    assert!((PIPE_PORTS_MAX as u64) < DROP as u64);
    assert!(LINK_NUMBER_MAX == u32::MAX >> LINK_PATH_BITS && LinkPath::COUNT <= 1 << LINK_PATH_BITS);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_read_as_it_was_written() {
        let request = PipeRequest {
            protocol: 17,
            addresses: [([10, 0, 0, 0], 8), ([10, 1, 2, 3], 32)],
            ports: [0x1234, 53],
            shares: true,
            ..PipeRequest::new(PipeDirection::Forward, PipeUnit::Frames, "wan,lan").unwrap()
        };
        let bytes = request.to_bytes();
        assert_eq!(PipeRequest::from_bytes(&bytes), Some(request));
        assert!(request.names().unwrap().eq(["wan", "lan"]));
        for at in [pipe_request::DIRECTION, pipe_request::UNIT, pipe_request::SHARES] {
            let mut other = bytes;
            other[at] = 9;
            assert_eq!(PipeRequest::from_bytes(&other), None);
        }
        let mut other = bytes;
        other[pipe_request::NAMES] = 0xff;
        assert!(PipeRequest::from_bytes(&other).unwrap().names().is_none());
        let long = core::str::from_utf8(&[b'a'; 65]).unwrap();
        assert!(PipeRequest::new(PipeDirection::Send, PipeUnit::Bytes, &long[..64]).is_some());
        assert!(PipeRequest::new(PipeDirection::Send, PipeUnit::Bytes, long).is_none());
    }

    #[test]
    fn a_link_keeps_its_parts() {
        for &path in LinkPath::ALL {
            for number in [0, 1, LINK_NUMBER_MAX] {
                assert_eq!(link_parts(link(number, path)), (number, path));
            }
        }
        assert_eq!(link_parts(u32::MAX), (LINK_NUMBER_MAX, LinkPath::Agent));
    }

    #[test]
    fn entries_lie_inside_the_table_and_keep_their_parts() {
        for ring in [PIPE_RING_BYTES_MIN, PIPE_RING_BYTES_DEFAULT, PIPE_RING_BYTES_MAX] {
            let last = entry_offset(u64::MAX - LINE_BYTES as u64 + 1, ring);
            assert_eq!(last + FRAME_ENTRY_BYTES - FRAME_TABLE_OFFSET, ring as usize / 16);
            assert!(ring as usize / 16 <= table_bytes(ring));
            assert_eq!(entry_offset(ring, ring), FRAME_TABLE_OFFSET);
        }
        for parts in [(0, 0), (14, DROP), (FRAME_BYTES_MAX, 3), (u16::MAX, u16::MAX)] {
            assert_eq!(entry_parts(entry(parts.0, parts.1)), parts);
        }
        assert_eq!((frame_stride(14), frame_stride(64), frame_stride(65)), (64, 64, 128));
    }
}
