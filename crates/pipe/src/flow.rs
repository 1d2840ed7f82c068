//! Flows: frames of a port that a pipe receives.
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// An IPv4 network: an address, and the number of its bits that count. No bits: any address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Net {
    /// The network's address; bits that do not count are 0.
    pub address: [u8; 4],
    /// Bits of the address that count, 0 to 32.
    pub prefix: u8,
}

/// A 5-tuple of IPv4 with wildcards. Among several pipes of a port the one with the most specific flow receives a frame, and pipes with
/// the same flow share its frames. The default matches any frame, also of other protocols than IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Protocol of IPv4; 0 for any.
    pub protocol: u8,
    /// Networks of the source and of the destination.
    pub addresses: [Net; 2],
    /// Ports of UDP or TCP, of the source and of the destination; 0 for any. Ports need a protocol.
    pub ports: [u16; 2],
}

/// Fields that a flow names: protocol, bits of the addresses, and ports. The most specific come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fields {
    specificity: Reverse<u32>,
    prefixes: [u8; 2],
    has_protocol: bool,
    has_ports: [bool; 2],
}

impl Fields {
    /// Returns whether flows with these fields have frames rather than flows with `other` ones.
    pub(crate) fn are_more_specific(&self, other: &Self) -> bool {
        self.specificity < other.specificity
    }
}

/// Protocols that have ports.
const WITH_PORTS: [u8; 2] = [6, 17];

impl Net {
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    /// Returns whether `address` lies in the network.
    pub fn contains(self, address: [u8; 4]) -> bool {
        (u32::from_be_bytes(address) ^ u32::from_be_bytes(self.address)) & self.mask() == 0
    }

    /// Returns the mask of the bits that count, in network order.
    pub fn mask_bytes(self) -> [u8; 4] {
        self.mask().to_be_bytes()
    }

    /// Returns whether `other` lies inside the network.
    pub fn covers(self, other: Self) -> bool {
        other.prefix >= self.prefix && self.contains(other.address)
    }

    /// Returns the network of `prefix` bits that this one lies in.
    fn reduced(self, prefix: u8) -> Self {
        let wide = Self { prefix, ..self };
        Self { address: (u32::from_be_bytes(self.address) & wide.mask()).to_be_bytes(), prefix }
    }

    fn is_sound(self) -> bool {
        self.prefix <= 32 && u32::from_be_bytes(self.address) & !self.mask() == 0
    }
}

impl Flow {
    /// Returns whether the flow matches any frame.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether addresses have no bits that do not count, and ports have a protocol that knows them.
    pub fn is_sound(&self) -> bool {
        self.addresses.iter().all(|net| net.is_sound())
            && (self.ports == [0; 2] || WITH_PORTS.contains(&self.protocol))
    }

    /// Returns the specificity: among the flows that match a frame, the one with the highest receives it.
    pub fn specificity(&self) -> u32 {
        let bits = |is: bool, bits| if is { bits } else { 0 };
        self.addresses.iter().map(|net| u32::from(net.prefix)).sum::<u32>()
            + bits(self.protocol != 0, 8)
            + self.ports.iter().map(|&port| bits(port != 0, 16)).sum::<u32>()
    }

    /// Returns whether the flow matches a frame with these first bytes. Fragments but the first have no ports. Headers with options
    /// match only flows without ports.
    pub fn matches(&self, header: &[u8]) -> bool {
        self.has(Self::of(header).as_ref())
    }

    /// Returns whether the flow matches a frame, from [`Self::of`].
    #[inline]
    pub(crate) fn has(&self, frame: Option<&(Self, bool)>) -> bool {
        self.is_any()
            || frame.is_some_and(|(frame, has_ports)| frame.reduced(self, *has_ports).as_ref() == Some(self))
    }

    /// Returns the flow of a frame of IPv4 with all fields, and whether its ports are known.
    #[inline]
    pub(crate) fn of(header: &[u8]) -> Option<(Self, bool)> {
        let ip: &[u8; 20] = header.get(14..)?.first_chunk()?;
        if header[12..14] != [8, 0] || ip[0] >> 4 != 4 {
            return None;
        }
        let net = |at: usize| Net { address: [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]], prefix: 32 };
        let first = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff == 0 && ip[0] == 0x45;
        let ports: Option<&[u8; 4]> = header[34..].first_chunk().filter(|_| first);
        let both = ports.map(|&[a, b, c, d]| [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
        let flow = Self { protocol: ip[9], addresses: [net(12), net(16)], ports: both.unwrap_or_default() };
        Some((flow, both.is_some()))
    }

    /// Returns the fields that the flow names.
    pub fn fields(&self) -> Fields {
        Fields {
            specificity: Reverse(self.specificity()),
            prefixes: self.addresses.map(|net| net.prefix),
            has_protocol: self.protocol != 0,
            has_ports: self.ports.map(|port| port != 0),
        }
    }

    /// Returns what tells flows that name the same fields apart.
    #[inline]
    pub(crate) fn key(&self) -> (u64, u64) {
        let [from, to] = self.addresses.map(|net| u64::from(u32::from_be_bytes(net.address)));
        let [ports_from, ports_to] = self.ports.map(u64::from);
        (from << 32 | to, u64::from(self.protocol) << 32 | ports_from << 16 | ports_to)
    }

    /// Returns the flow of a frame, from [`Self::of`], with the fields that `like` names; none if the frame lacks one.
    #[inline]
    pub(crate) fn reduced(&self, like: &Self, has_ports: bool) -> Option<Self> {
        if like.ports != [0; 2] && !has_ports {
            return None;
        }
        Some(Self {
            protocol: if like.protocol == 0 { 0 } else { self.protocol },
            addresses: [0, 1].map(|end| self.addresses[end].reduced(like.addresses[end].prefix)),
            ports: [0, 1].map(|end| if like.ports[end] == 0 { 0 } else { self.ports[end] }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> [u8; 64] {
        let mut frame = [0; 64];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[23] = 17;
        frame[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 1, 0, 2, 0x30, 0x39, 0, 53]);
        frame
    }

    fn net(address: [u8; 4], prefix: u8) -> Net {
        Net { address, prefix }
    }

    #[test]
    fn a_frame_belongs_to_flows_whose_words_it_has() {
        let any = Flow::default();
        let dns = Flow { protocol: 17, ports: [0, 53], ..any };
        let to = Flow { addresses: [Net::default(), net([10, 1, 0, 0], 16)], ..any };
        for flow in
            [any, dns, to, Flow { addresses: to.addresses, ..dns }, Flow { ports: [12345, 53], ..dns }]
        {
            assert!(flow.is_sound() && flow.matches(&frame()), "{flow:?}");
        }
        for flow in [
            Flow { protocol: 6, ..dns },
            Flow { ports: [0, 54], ..dns },
            Flow { ports: [53, 0], ..dns },
            Flow { addresses: [net([10, 1, 0, 0], 16), Net::default()], ..any },
        ] {
            assert!(!flow.matches(&frame()), "{flow:?}");
        }
        // A later fragment, options, another protocol, and a frame that is too short.
        for (at, byte) in [(21, 1), (14, 0x46), (13, 6)] {
            let mut other = frame();
            other[at] = byte;
            assert!(any.matches(&other) && !dns.matches(&other), "byte {at}");
        }
        assert!(!dns.matches(&frame()[..37]) && !to.matches(&frame()[..33]) && any.matches(&[]));
    }

    #[test]
    fn the_more_is_said_the_more_specific() {
        let any = Flow::default();
        let dns = Flow { protocol: 17, ports: [0, 53], ..any };
        let host = Flow { addresses: [Net::default(), net([10, 1, 0, 2], 32)], ..any };
        assert!(any.specificity() == 0 && dns.specificity() == 24 && host.specificity() == 32);
        assert!(!Flow { ports: [0, 53], ..any }.is_sound() && !Flow { protocol: 1, ..dns }.is_sound());
        assert!(!Flow { addresses: [net([10, 0, 0, 1], 24), Net::default()], ..any }.is_sound());
        assert!(!Flow { addresses: [net([0; 4], 33), Net::default()], ..any }.is_sound());
        assert!(
            net([10, 0, 0, 0], 8).covers(net([10, 1, 0, 0], 16))
                && !net([10, 1, 0, 0], 16).covers(net([10, 0, 0, 0], 8))
        );
        assert!(Net::default().covers(Net::default()) && net([0; 4], 0).contains([255; 4]));
    }
}
