//! Segments of TCP, made of a mirror's copies of connections.
//!
//! Frames look as a network would have carried the stream: Ethernet, IPv4 or IPv6, and TCP, with fitting sequence numbers, acknowledgements
//! and checksums. A stream that is shown from its beginning has a handshake, and each that ends has a `FIN`. Lost bytes are a gap of the
//! sequence numbers. MAC addresses derive from IP addresses. There are no options.
use super::lane::{Copies, Kind, Lane, Record, LANES};
use super::SEGMENT_BYTES_MAX;
use crate::ids::Side;
use pd_abi::pipe::FRAME_BYTES_MAX;
use pd_pipe::{Device, Taken};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

const ETHERNET_BYTES: usize = 14;
const TCP_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;

const FIN: u8 = 1;
const SYN: u8 = 2;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// A segment without its payload.
#[derive(Clone, Copy)]
struct Segment {
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    ack: u32,
    flags: u8,
}

/// A device whose frames are a mirror's copies of connections.
#[derive(Debug)]
pub struct Frames {
    copies: Arc<Copies>,
    /// Records taken, which become frames in the order of their numbers.
    taken: [Lane; LANES],
    /// All records with smaller numbers are taken.
    end: u64,
    /// Bytes of the present record that have become frames; of a begin, frames of its handshake.
    done: usize,
    frame: Box<[u8]>,
    len: Option<usize>,
}

impl Frames {
    /// Makes the device of a mirror.
    pub fn new(copies: Arc<Copies>) -> Self {
        Self {
            copies,
            taken: Copies::empty_lanes(),
            end: 0,
            done: 0,
            frame: vec![0; FRAME_BYTES_MAX.into()].into(),
            len: None,
        }
    }

    /// Makes the next frame. Returns its length.
    fn make(&mut self) -> Option<usize> {
        let at = loop {
            let numbers =
                self.taken.iter().enumerate().filter_map(|(at, lane)| Some((lane.next()?.number, at)));
            match numbers.min().filter(|(number, _)| *number < self.end) {
                Some((_, at)) => break at,
                None => self.end = self.copies.take(&mut self.taken)?,
            }
        };
        let Self { taken, done, frame, .. } = self;
        let lane = &mut taken[at];
        let now = lane.next()?;
        let (segment, payload, is_last) = match now.kind {
            Kind::Begin => {
                let segment = handshake(now, *done);
                *done += 1;
                (segment, &[][..], *done == 3)
            }
            Kind::End => (segment(now, 0, FIN | ACK), &[][..], true),
            Kind::Bytes => {
                let left = &lane.bytes[now.bytes.clone()][*done..];
                let payload = &left[..left.len().min(SEGMENT_BYTES_MAX)];
                let is_last = payload.len() == left.len();
                let segment = segment(now, *done as u64, if is_last { PSH | ACK } else { ACK });
                *done += payload.len();
                (segment, payload, is_last)
            }
        };
        let len = segment.write(payload, frame);
        if is_last {
            (lane.done, *done) = (lane.done + 1, 0);
        }
        Some(len)
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.copies.set_watched(false);
    }
}

/// Returns a segment of a side's stream, `at` bytes after the record's first byte.
fn segment(of: &Record, at: u64, flags: u8) -> Segment {
    let [from, to] = [of.subject.addresses[of.side], of.subject.addresses[of.side.other()]];
    // The handshake has taken a number on both sides.
    let [seq, ack] = [of.positions[0] + at, of.positions[1]].map(|position| position.wrapping_add(1) as u32);
    Segment { from, to, seq, ack, flags }
}

fn handshake(of: &Record, number: usize) -> Segment {
    let [from, to] = [Side::Connecting, Side::Accepting].map(|side| of.subject.addresses[side]);
    match number {
        0 => Segment { from, to, seq: 0, ack: 0, flags: SYN },
        1 => Segment { from: to, to: from, seq: 0, ack: 1, flags: SYN | ACK },
        _ => Segment { from, to, seq: 1, ack: 1, flags: ACK },
    }
}

impl Segment {
    /// Writes the frame. Returns its length.
    fn write(&self, payload: &[u8], frame: &mut [u8]) -> usize {
        let tcp_bytes = TCP_BYTES + payload.len();
        let ip_bytes = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut ip = [0; 20];
                (ip[0], ip[8], ip[9]) = (0x45, 64, PROTOCOL_TCP);
                ip[2..4].copy_from_slice(&((20 + tcp_bytes) as u16).to_be_bytes());
                // "Don't fragment".
                ip[6] = 0x40;
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..20].copy_from_slice(&to.octets());
                let sum = !fold(sum(&ip));
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                self.ethernet(0x0800, &ip, frame)
            }
            (from, to) => {
                let [from, to] = [from, to].map(|ip| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                });
                let mut ip = [0; 40];
                (ip[0], ip[6], ip[7]) = (0x60, PROTOCOL_TCP, 64);
                ip[4..6].copy_from_slice(&(tcp_bytes as u16).to_be_bytes());
                ip[8..24].copy_from_slice(&from.octets());
                ip[24..40].copy_from_slice(&to.octets());
                self.ethernet(0x86dd, &ip, frame)
            }
        };
        let at = ETHERNET_BYTES + ip_bytes;
        // The source and the destination end the header of either version.
        let addresses = if ip_bytes == 20 { at - 8..at } else { at - 32..at };
        let pseudo = sum(&frame[addresses]) + u64::from(PROTOCOL_TCP) + tcp_bytes as u64;
        let tcp = &mut frame[at..at + tcp_bytes];
        tcp[..TCP_BYTES].fill(0);
        tcp[..2].copy_from_slice(&self.from.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.to.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        (tcp[12], tcp[13]) = ((TCP_BYTES as u8 / 4) << 4, self.flags);
        tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        tcp[TCP_BYTES..].copy_from_slice(payload);
        let sum = !fold(pseudo + sum(tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        at + tcp_bytes
    }

    /// Writes the headers before TCP's. Returns the length of that of IP.
    fn ethernet(&self, protocol: u16, ip: &[u8], frame: &mut [u8]) -> usize {
        frame[..6].copy_from_slice(&mac(self.to));
        frame[6..12].copy_from_slice(&mac(self.from));
        frame[12..14].copy_from_slice(&protocol.to_be_bytes());
        frame[ETHERNET_BYTES..ETHERNET_BYTES + ip.len()].copy_from_slice(ip);
        ip.len()
    }
}

/// Returns a locally administered MAC address: the last bytes of the IP address behind 02:00.
fn mac(of: SocketAddr) -> [u8; 6] {
    let [a, b, c, d] = match of.ip() {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let bytes = ip.octets();
            [bytes[12], bytes[13], bytes[14], bytes[15]]
        }
    };
    [2, 0, a, b, c, d]
}

/// Returns the sum of 16-bit words for the internet checksum.
fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |&byte| u64::from(byte) << 8);
    words.map(|word| u64::from(word[0]) << 8 | u64::from(word[1])).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl Device for Frames {
    fn peek(&mut self) -> Option<&[u8]> {
        if self.len.is_none() {
            self.len = self.make();
        }
        self.len.map(|len| &self.frame[..len])
    }

    fn advance(&mut self) {
        self.len = None;
    }

    fn send(&mut self, _frame: &[u8]) -> Taken {
        Taken::Lost
    }

    fn flush(&mut self) -> bool {
        false
    }

    fn rest(&mut self) -> bool {
        self.copies.rest();
        false
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.copies.doorbell()]
    }

    fn is_mirror(&self) -> bool {
        true
    }

    fn set_watched(&mut self, is_watched: bool) {
        self.copies.set_watched(is_watched);
    }

    fn missed(&self) -> u64 {
        self.copies.frames_lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MoverId;
    use crate::mirror::Subject;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::ops::Range;

    fn put(copies: &Copies, mover: u32, of: (&Arc<Subject>, Side, Kind), bytes: &[u8], cut: usize) -> u64 {
        let positions = of.0.deliver(of.1, bytes.len() as u64);
        let pieces = [0..cut.min(bytes.len()), cut.min(bytes.len())..bytes.len()];
        copies.put(MoverId::new(mover), of, positions, pieces, |to: &mut Vec<u8>, piece: Range<usize>| {
            to.extend_from_slice(&bytes[piece]);
        })
    }

    /// Source of a frame, its flags, its numbers, its payload.
    type Shown = ((IpAddr, u16), u8, u32, u32, Vec<u8>);

    /// Parses a frame as an observer does. Checks lengths and sums.
    fn read(frame: &[u8]) -> Shown {
        let v4 = frame[12..14] == [8, 0];
        let (ip, rest) = frame[14..].split_at(if v4 { 20 } else { 40 });
        let (from, addresses, said) = match v4 {
            true => {
                assert_eq!(fold(sum(ip)), 0xffff, "the sum of the header");
                let from: [u8; 4] = ip[12..16].try_into().unwrap();
                (IpAddr::from(from), &ip[12..], usize::from(u16::from_be_bytes([ip[2], ip[3]])) - 20)
            }
            false => {
                let from: [u8; 16] = ip[8..24].try_into().unwrap();
                (IpAddr::from(from), &ip[8..], usize::from(u16::from_be_bytes([ip[4], ip[5]])))
            }
        };
        assert_eq!(said, rest.len());
        assert_eq!(
            fold(sum(addresses) + 6 + rest.len() as u64 + sum(rest)),
            0xffff,
            "the sum of the segment"
        );
        let word = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        let port = u16::from_be_bytes([rest[0], rest[1]]);
        assert_eq!(rest[12], 0x50);
        ((from, port), rest[13], word(4), word(8), rest[20..].to_vec())
    }

    fn drain(frames: &mut Frames) -> Vec<Shown> {
        let mut all = Vec::new();
        while let Some(frame) = frames.peek() {
            all.push(read(frame));
            frames.advance();
        }
        all
    }

    #[test]
    fn a_connection_is_shown_from_its_handshake_to_its_ends() {
        let copies = Copies::new().unwrap();
        let mut frames = Frames::new(Arc::clone(&copies));
        let addresses: [SocketAddr; 2] = ["10.0.0.1:1000".parse().unwrap(), "10.0.0.2:80".parse().unwrap()];
        let subject = Subject::new(addresses);
        let (there, back) = (Side::Connecting, Side::Accepting);
        assert_eq!(put(&copies, 0, (&subject, there, Kind::Bytes), b"unseen", 0), 0, "nobody watches");
        frames.set_watched(true);
        let subject = Subject::new(addresses);
        put(&copies, 0, (&subject, there, Kind::Begin), b"", 0);
        put(&copies, 0, (&subject, there, Kind::Bytes), b"question", 3);
        put(&copies, 0, (&subject, back, Kind::Bytes), b"answer", 6);
        put(&copies, 0, (&subject, there, Kind::End), b"", 0);
        put(&copies, 0, (&subject, back, Kind::End), b"", 0);
        let seen = drain(&mut frames);
        let numbers: Vec<_> =
            seen.iter().map(|(from, flags, seq, ack, _)| (from.1, *flags, *seq, *ack)).collect();
        let wanted = [
            (1000, SYN, 0, 0),
            (80, SYN | ACK, 0, 1),
            (1000, ACK, 1, 1),
            (1000, PSH | ACK, 1, 1),
            (80, PSH | ACK, 1, 9),
            (1000, FIN | ACK, 9, 7),
            (80, FIN | ACK, 7, 9),
        ];
        assert_eq!(numbers, wanted);
        assert_eq!((&*seen[3].4, &*seen[4].4), (&b"question"[..], &b"answer"[..]));
        assert_eq!(frames.missed(), 0);
        assert_eq!(frames.send(&[0; 64]), Taken::Lost);
    }

    #[test]
    fn a_mover_waits_for_nobody_and_what_is_lost_is_a_gap() {
        let copies = Copies::new().unwrap();
        let mut frames = Frames::new(Arc::clone(&copies));
        frames.set_watched(true);
        let subject = Subject::new(["[fd00::1]:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()]);
        let bytes = vec![7; super::super::lane::LANE_BYTES * 3 / 4];
        let of = (&subject, Side::Connecting, Kind::Bytes);
        let copied: Vec<_> = (0..3).map(|_| put(&copies, 0, of, &bytes, 100)).collect();
        assert_eq!(copied, [bytes.len() as u64, bytes.len() as u64 / 3, 0]);
        let before = drain(&mut frames);
        assert_eq!(before.iter().map(|seen| seen.4.len()).sum::<usize>(), super::super::lane::LANE_BYTES);
        let lost = 2 * bytes.len() + bytes.len() / 3;
        assert!(
            frames.missed() as usize >= (3 * bytes.len() - lost) / SEGMENT_BYTES_MAX,
            "{}",
            frames.missed()
        );
        put(&copies, 0, of, b"behind", 6);
        let behind = drain(&mut frames);
        assert_eq!((behind.len(), behind[0].2 as usize), (1, 1 + 3 * bytes.len()));
        // A copy whose lane is held.
        let (held, missed) = (super::super::lane::tests::hold(&copies, 1), frames.missed());
        assert_eq!(put(&copies, 1, of, b"lost", 0), 0);
        assert_eq!(frames.missed(), missed + 1);
        drop(held);
        assert_eq!(put(&copies, 1, of, b"there", 0), 5);
    }

    proptest! {
        /// Sends streams of several connections, in pieces of any size and by several movers, taken at any moment. All bytes that were
        /// not lost are present, in place. Acknowledgements never go beyond delivered bytes.
        #[test]
        fn an_observer_has_each_stream_but_for_what_was_counted(
            steps in prop::collection::vec((0..3usize, any::<bool>(), 0..40_000usize, 0..40_000usize, 0..10u8), 1..40),
        ) {
            let copies = Copies::new().unwrap();
            let mut frames = Frames::new(Arc::clone(&copies));
            frames.set_watched(true);
            let subjects: Vec<_> = (0..3u16)
                .map(|n| Subject::new([SocketAddr::from(([10, 0, 0, n as u8], 100)), SocketAddr::from(([10, 0, 1, n as u8], 200))]))
                .collect();
            let mut sent: HashMap<(IpAddr, u16), Vec<u8>> = HashMap::new();
            let mut seen: HashMap<(IpAddr, u16), usize> = HashMap::new();
            let mut copied = 0;
            let check = |frames: &mut Frames, sent: &HashMap<(IpAddr, u16), Vec<u8>>, seen: &mut HashMap<(IpAddr, u16), usize>| {
                for (from, flags, seq, _, payload) in drain(frames) {
                    let at = seq as usize - 1;
                    assert_eq!(&sent[&from][at..at + payload.len()], payload);
                    assert!(flags & ACK != 0 && !payload.is_empty());
                    *seen.entry(from).or_default() += payload.len();
                }
            };
            for (number, back, len, cut, look) in steps {
                let side = if back { Side::Accepting } else { Side::Connecting };
                let at = subjects[number].addresses[side];
                let stream = sent.entry((at.ip(), at.port())).or_default();
                let bytes: Vec<u8> = (0..len).map(|n| (stream.len() + n) as u8 ^ number as u8).collect();
                stream.extend_from_slice(&bytes);
                copied += put(&copies, number as u32, (&subjects[number], side, Kind::Bytes), &bytes, cut);
                if look == 0 {
                    check(&mut frames, &sent, &mut seen);
                }
            }
            check(&mut frames, &sent, &mut seen);
            prop_assert_eq!(seen.values().sum::<usize>() as u64, copied);
            let all: usize = sent.values().map(Vec::len).sum();
            prop_assert_eq!(frames.missed() == 0, all as u64 == copied);
        }
    }
}
