//! Frames of Ethernet with IPv4: where their parts lie, checksums, and frames made from parts.

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4: usize = 20;
/// Bytes before the payload of UDP, of a frame without options.
pub const UDP_PAYLOAD: usize = ETHERNET + IPV4 + 8;
/// Protocols of IPv4.
pub const TCP: u8 = 6;
/// See [`TCP`].
pub const UDP: u8 = 17;

/// A datagram of IPv4 in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Protocol.
    pub protocol: u8,
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
    /// Ports of TCP or UDP, the source's in the high half; none of other protocols and of fragments.
    pub ports: Option<u32>,
    /// Offset of the header of TCP or UDP.
    pub transport: usize,
    /// End of the datagram; padding may follow.
    pub end: usize,
}

#[inline]
fn word<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..)?.first_chunk().copied()
}

impl Parts {
    /// Finds the parts of a frame; none if it is not of IPv4, or a length in it is wrong.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<Self> {
        let header: &[u8; IPV4] = frame.get(ETHERNET..)?.first_chunk()?;
        let length = usize::from(header[0] & 15) * 4;
        if frame[12..14] != [8, 0] || header[0] >> 4 != 4 || length < IPV4 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let (transport, end) = (ETHERNET + length, ETHERNET + total);
        if total < length || end > frame.len() {
            return None;
        }
        let protocol = header[9];
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let least = if protocol == TCP { 20 } else { 8 };
        let has_ports = (protocol == TCP || protocol == UDP) && !fragment && end - transport >= least;
        let source = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
        let destination = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
        let ports = if has_ports { word(frame, transport).map(u32::from_be_bytes) } else { None };
        Some(Self { protocol, source, destination, ports, transport, end })
    }

    /// Returns offset of the checksum of TCP or UDP.
    #[inline]
    pub fn checksum_offset(&self) -> usize {
        self.transport + if self.protocol == TCP { 16 } else { 6 }
    }
}

/// Returns the sum of `bytes` as 16-bit words, not folded. An odd byte counts as the high half of a word.
fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .fold(0, |sum, word| fold_once(sum + word))
}

fn fold_once(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

/// Folds a sum of 16-bit words.
#[inline]
pub fn fold(sum: u32) -> u16 {
    fold_once(fold_once(sum)) as u16
}

/// Returns the difference to add to the complement of a checksum when `old` becomes `new` (RFC 1624, equation 3).
#[inline]
pub fn difference(old: u32, new: u32) -> u16 {
    let halves = |word: u32| (word >> 16) + (word & 0xffff);
    fold(halves(!old) + halves(new))
}

/// Returns a checksum after a [`difference`].
#[inline]
pub fn updated(checksum: u16, difference: u16) -> u16 {
    !fold(u32::from(!checksum) + u32::from(difference))
}

/// Applies a [`difference`] to the checksum at `offset`.
#[inline]
pub fn update(frame: &mut [u8], offset: usize, difference: u16) {
    if let Some(bytes) = frame.get_mut(offset..).and_then(<[u8]>::first_chunk_mut::<2>) {
        *bytes = updated(u16::from_be_bytes(*bytes), difference).to_be_bytes();
    }
}

/// Returns whether the checksums of a frame are right. UDP may have none.
pub fn is_sound(frame: &[u8]) -> bool {
    let Some(parts) = Parts::of(frame) else { return false };
    if fold(sum(&frame[ETHERNET..parts.transport])) != 0xffff {
        return false;
    }
    if parts.ports.is_none() || parts.protocol == UDP && word(frame, parts.transport + 6) == Some([0, 0]) {
        return true;
    }
    fold(transport_sum(frame, &parts)) == 0xffff
}

/// Returns the sum of the pseudo header and all bytes behind it.
fn transport_sum(frame: &[u8], parts: &Parts) -> u32 {
    let length = (parts.end - parts.transport) as u32;
    let addresses = sum(&frame[ETHERNET + 12..ETHERNET + 20]);
    fold(addresses) as u32 + u32::from(parts.protocol) + length + sum(&frame[parts.transport..parts.end])
}

/// Ends of a frame that is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Source and destination of Ethernet.
    pub macs: [[u8; 6]; 2],
    /// Source and destination of IPv4.
    pub addresses: [[u8; 4]; 2],
    /// Source and destination port.
    pub ports: [u16; 2],
}

impl Ends {
    /// Returns the ends of the way back.
    pub fn reversed(self) -> Self {
        let Self { macs: [a, b], addresses: [c, d], ports: [e, f] } = self;
        Self { macs: [b, a], addresses: [d, c], ports: [f, e] }
    }
}

/// Writes headers before `payload` bytes of UDP, without a checksum of UDP, into a buffer with room for both. Returns the frame's length.
#[inline]
pub fn write_udp(frame: &mut [u8], ends: &Ends, payload: usize) -> usize {
    write_headers(frame, ends, UDP, payload + 8);
    let length = (payload + 8) as u16;
    frame[38..40].copy_from_slice(&length.to_be_bytes());
    frame[40..42].fill(0);
    UDP_PAYLOAD + payload
}

fn write_headers(frame: &mut [u8], ends: &Ends, protocol: u8, behind: usize) {
    let [from, to] = ends.macs;
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol]);
    frame[16..18].copy_from_slice(&((IPV4 + behind) as u16).to_be_bytes());
    frame[24..26].fill(0);
    frame[26..30].copy_from_slice(&ends.addresses[0]);
    frame[30..34].copy_from_slice(&ends.addresses[1]);
    let checksum = !fold(sum(&frame[ETHERNET..ETHERNET + IPV4]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..36].copy_from_slice(&ends.ports[0].to_be_bytes());
    frame[36..38].copy_from_slice(&ends.ports[1].to_be_bytes());
}

/// Makes a frame of UDP with both checksums, padded to `least` bytes.
pub fn udp(ends: &Ends, payload: &[u8], least: usize) -> Vec<u8> {
    let mut frame = vec![0; (UDP_PAYLOAD + payload.len()).max(least)];
    frame[UDP_PAYLOAD..][..payload.len()].copy_from_slice(payload);
    write_udp(&mut frame, ends, payload.len());
    seal(&mut frame);
    frame
}

/// Makes a frame of TCP without payload, with these flags, padded to `least` bytes.
pub fn tcp(ends: &Ends, sequence: u32, flags: u8, least: usize) -> Vec<u8> {
    let mut frame = vec![0; (ETHERNET + IPV4 + 20).max(least)];
    write_headers(&mut frame, ends, TCP, 20);
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[46..50].copy_from_slice(&[5 << 4, flags, 0xff, 0xff]);
    seal(&mut frame);
    frame
}

/// Writes the checksum of TCP or UDP.
fn seal(frame: &mut [u8]) {
    let Some(parts) = Parts::of(frame) else { return };
    let at = parts.checksum_offset();
    frame[at..at + 2].fill(0);
    let checksum = match !fold(transport_sum(frame, &parts)) {
        0 => 0xffff,
        checksum => checksum,
    };
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_difference_gives_the_checksum_that_a_sum_gives(old in any::<u32>(), new in any::<u32>(), rest in any::<u16>()) {
            let whole = |word: u32| !fold((word >> 16) + (word & 0xffff) + u32::from(rest));
            let (got, wanted) = (updated(whole(old), difference(old, new)), whole(new));
            // Ones' complement has two zeros.
            prop_assert!(got == wanted || [got, wanted] == [0, 0xffff] || [got, wanted] == [0xffff, 0]);
        }

        #[test]
        fn any_bytes_have_parts_within_them_or_none(mut frame in prop::collection::vec(any::<u8>(), 0..120), ipv4 in any::<bool>()) {
            if ipv4 && frame.len() > 16 {
                frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                frame[16] = 0;
            }
            if let Some(parts) = Parts::of(&frame) {
                prop_assert!(parts.transport <= parts.end && parts.end <= frame.len());
                prop_assert!(parts.ports.is_none() || parts.checksum_offset() + 2 <= frame.len());
            }
            is_sound(&frame);
        }
    }

    #[test]
    fn frames_made_here_are_sound_and_changed_ones_are_not() {
        let ends = Ends { macs: [[2; 6], [4; 6]], addresses: [[10, 0, 0, 1], [10, 0, 0, 2]], ports: [7, 9] };
        for frame in [udp(&ends, b"odd", 60), udp(&ends, b"", 0), tcp(&ends, 77, 2, 64)] {
            assert!(is_sound(&frame));
            let parts = Parts::of(&frame).unwrap();
            assert_eq!((parts.ports, parts.source), (Some(7 << 16 | 9), 0x0a00_0001));
            for at in ETHERNET..parts.end {
                let mut other = frame.clone();
                other[at] ^= 1;
                assert!(!is_sound(&other) || Parts::of(&other).unwrap().ports.is_none(), "byte {at}");
            }
        }
    }
}
