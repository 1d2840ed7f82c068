use crate::declare::kinds;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

kinds! {
    /// Address family as the boundary knows it.
    enum Family: u8 {
        /// A file, of a socket that has one for an address; device and inode are the bytes.
        File = 1,
        /// IPv4.
        V4 = 4,
        /// IPv6.
        V6 = 6,
    }
}

/// An IP address and port in the form that requests and events carry: family, port, 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// 0 (none) or a [`Family`].
    pub family: u8,
    /// Port in host order.
    pub port: u16,
    /// Address in network order; IPv4 uses the first four bytes, the rest are zero.
    pub bytes: [u8; 16],
}

impl Address {
    /// No address.
    pub const NONE: Self = Self { family: 0, port: 0, bytes: [0; 16] };

    /// A file that is not named: of sockets that have one, or could have.
    pub const FILE: Self = Self { family: Family::File as u8, port: 0, bytes: [0; 16] };

    /// The file with this device and inode.
    pub fn file(device: u64, inode: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&device.to_le_bytes());
        bytes[8..].copy_from_slice(&inode.to_le_bytes());
        Self { bytes, ..Self::FILE }
    }

    /// Device and inode, if it is a file.
    pub fn to_file(self) -> Option<(u64, u64)> {
        let [a, b, c, d, e, f, g, h, rest @ ..] = self.bytes;
        let both = (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(rest));
        (self.family == Self::FILE.family).then_some(both)
    }

    /// The standard library's form, or none if the family is not one we know.
    pub fn to_socket_addr(self) -> Option<SocketAddr> {
        let ip = match self.family {
            4 => {
                let [a, b, c, d, ..] = self.bytes;
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            6 => IpAddr::V6(Ipv6Addr::from(self.bytes)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.port))
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        let mut bytes = [0; 16];
        let family = match addr.ip() {
            IpAddr::V4(ip) => {
                bytes[..4].copy_from_slice(&ip.octets());
                Family::V4
            }
            IpAddr::V6(ip) => {
                bytes = ip.octets();
                Family::V6
            }
        };
        Self { family: family as u8, port: addr.port(), bytes }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_socket_addr() {
            Some(addr) => write!(f, "{addr}"),
            None => write!(f, "(family {})", self.family),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for text in ["10.1.2.3:80", "[fd00::1]:65535", "0.0.0.0:0", "[::ffff:1.2.3.4]:9"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::from(addr).to_socket_addr(), Some(addr));
        }
        assert_eq!(Address { family: 5, ..Address::NONE }.to_socket_addr(), None);
    }
}
