//! Source addresses of the frames that a pipe sends.

/// Type fields of Ethernet.
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];

/// Source addresses of a sender. Frames with another source, and those of other types than IPv4 and ARP, are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The sender's MAC address.
    pub mac: [u8; 6],
    /// The sender's IPv4 address.
    pub ipv4: [u8; 4],
}

impl Lease {
    /// Returns whether a frame with these first bytes, a private copy, has the sender's addresses.
    pub fn allows(&self, header: &[u8]) -> bool {
        let is = |at: usize, bytes: &[u8]| header.get(at..at + bytes.len()) == Some(bytes);
        let from = is(6, &self.mac);
        // An ARP message also has the sender's addresses inside.
        from && (is(12, &IPV4) && is(26, &self.ipv4)
            || is(12, &ARP) && is(22, &self.mac) && is(28, &self.ipv4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_senders_addresses_or_is_refused() {
        let lease = Lease { mac: [2, 0, 0, 0, 0, 7], ipv4: [10, 0, 0, 7] };
        let mut frame = [0u8; 64];
        frame[6..12].copy_from_slice(&lease.mac);
        frame[12..14].copy_from_slice(&IPV4);
        frame[26..30].copy_from_slice(&lease.ipv4);
        assert!(lease.allows(&frame));
        for (at, byte) in [(11, 8), (12, 0x86), (29, 8)] {
            let mut other = frame;
            other[at] = byte;
            assert!(!lease.allows(&other), "byte {at}");
        }
        assert!(!lease.allows(&frame[..20]) && !lease.allows(&[]));
        frame[12..14].copy_from_slice(&ARP);
        assert!(!lease.allows(&frame));
        frame[22..28].copy_from_slice(&lease.mac);
        frame[28..32].copy_from_slice(&lease.ipv4);
        assert!(lease.allows(&frame));
    }
}
