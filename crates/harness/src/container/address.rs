//! Addresses of containers: one IPv4 subnet per bridge, the gateway its first host, and an IPv6
//! address with the same host number beside each IPv4 address.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use anyhow::{bail, ensure, Result};

/// The default subnet of a bridge.
pub const DEFAULT_SUBNET: Subnet = Subnet { network: Ipv4Addr::new(10, 88, 0, 0), prefix: 24 };

/// An IPv4 subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    network: Ipv4Addr,
    prefix: u8,
}

/// An IPv4 address and the subnet it is in, written `10.88.0.2/24`; without a prefix it is `/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// The bridge's subnet.
    pub subnet: Subnet,
}

impl FromStr for InterfaceAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<InterfaceAddress, String> {
        let refused = || format!("'{text}' is no IPv4 address; write one like 10.88.0.2/24");
        let (address, prefix) = text.split_once('/').unwrap_or((text, "24"));
        let address: Ipv4Addr = address.parse().map_err(|_| refused())?;
        let prefix: u8 = prefix.parse().map_err(|_| refused())?;
        if !(8..=30).contains(&prefix) {
            return Err(format!("the prefix of '{text}' is out of range; use /8 to /30"));
        }
        Ok(InterfaceAddress { address, subnet: Subnet::around(address, prefix) })
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Subnet, String> {
        Ok(text.parse::<InterfaceAddress>()?.subnet)
    }
}

impl std::fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.subnet.prefix)
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl Subnet {
    /// Returns the subnet of `prefix` bits that contains `address`.
    pub fn around(address: Ipv4Addr, prefix: u8) -> Subnet {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        Subnet { network: Ipv4Addr::from(u32::from(address) & mask), prefix }
    }

    fn hosts(self) -> u32 {
        (1u64 << (32 - u32::from(self.prefix))) as u32
    }

    fn host(self, number: u32) -> InterfaceAddress {
        InterfaceAddress { address: Ipv4Addr::from(u32::from(self.network) + number), subnet: self }
    }

    /// Returns the subnet's addresses without those of the network and of broadcast.
    pub fn usable(self) -> impl Iterator<Item = InterfaceAddress> {
        (1..self.hosts() - 1).map(move |number| self.host(number))
    }

    /// Returns the first address of the IPv6 network beside it.
    pub fn network6(self) -> Ipv6Addr {
        self.address6(self.network)
    }

    fn number_of(self, address: Ipv4Addr) -> u32 {
        u32::from(address) - u32::from(self.network)
    }

    /// Returns whether `address` is in it.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        Subnet::around(address, self.prefix) == self
    }

    /// Returns whether the two share an address.
    pub fn overlaps(self, other: Subnet) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    /// Returns the bridge's own address: the first host.
    pub fn gateway(self) -> InterfaceAddress {
        self.host(1)
    }

    /// Returns the IPv6 address with the host number of `address`, in a /64 of its own per subnet. The
    /// default subnet has fd88::/64; others carry their network number in the second 32 bits.
    pub fn address6(self, address: Ipv4Addr) -> Ipv6Addr {
        let [a, b, c, d] = match self == DEFAULT_SUBNET {
            true => [0; 4],
            false => self.network.octets(),
        };
        let number = self.number_of(address);
        Ipv6Addr::new(
            0xfd88,
            0,
            u16::from_be_bytes([a, b]),
            u16::from_be_bytes([c, d]),
            0,
            0,
            (number >> 16) as u16,
            number as u16,
        )
    }
}

/// Chooses the address for a new container: `wanted` if it is free, the lowest free one otherwise. `taken`:
/// addresses with their holders.
pub fn choose(
    subnet: Subnet,
    bridge: &str,
    wanted: Option<InterfaceAddress>,
    taken: &[(Ipv4Addr, String)],
) -> Result<InterfaceAddress> {
    let Some(wanted) = wanted else {
        let taken: BTreeSet<Ipv4Addr> = taken.iter().map(|(address, _)| *address).collect();
        let free = (2..subnet.hosts() - 1).map(|n| subnet.host(n)).find(|a| !taken.contains(&a.address));
        return match free {
            Some(address) => Ok(address),
            None => bail!(
                "no free address is left in {subnet} on bridge {bridge}; end a container or use another --bridge"
            ),
        };
    };
    let address = wanted.address;
    ensure!(
        wanted.subnet == subnet,
        "address {wanted} is not in subnet {subnet} of bridge {bridge}; choose an address in it or another --bridge"
    );
    let number = subnet.number_of(address);
    ensure!(
        number != 0 && number != subnet.hosts() - 1,
        "address {address} is the network or broadcast address of {subnet}; choose one between them"
    );
    ensure!(
        address != subnet.gateway().address,
        "address {address} is the gateway of bridge {bridge}; choose another"
    );
    if let Some((_, holder)) = taken.iter().find(|(a, _)| *a == address) {
        bail!("address {address} is taken by container '{holder}'; choose another or leave --ip out");
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> InterfaceAddress {
        text.parse().unwrap()
    }

    fn taken(list: &[&str]) -> Vec<(Ipv4Addr, String)> {
        list.iter().map(|a| (a.parse().unwrap(), "other".to_owned())).collect()
    }

    #[test]
    fn the_lowest_free_address_is_chosen() {
        let chosen = choose(DEFAULT_SUBNET, "pd0", None, &taken(&["10.88.0.2", "10.88.0.4"])).unwrap();
        assert_eq!(chosen.to_string(), "10.88.0.3/24");
    }

    #[test]
    fn a_full_subnet_is_an_error() {
        let subnet = parse("10.1.0.1/30").subnet;
        assert_eq!(choose(subnet, "b", None, &[]).unwrap().to_string(), "10.1.0.2/30");
        let error = choose(subnet, "b", None, &taken(&["10.1.0.2"])).unwrap_err().to_string();
        assert!(error.contains("no free address"), "{error}");
    }

    #[test]
    fn a_wanted_address_is_checked() {
        for (wanted, why) in [
            ("10.89.0.2/24", "not in subnet"),
            ("10.88.0.2/16", "not in subnet"),
            ("10.88.0.1/24", "gateway"),
            ("10.88.0.0/24", "network or broadcast"),
            ("10.88.0.255/24", "network or broadcast"),
            ("10.88.0.7/24", "taken by container 'other'"),
        ] {
            let error =
                choose(DEFAULT_SUBNET, "pd0", Some(parse(wanted)), &taken(&["10.88.0.7"])).unwrap_err();
            assert!(error.to_string().contains(why), "{wanted}: {error}");
        }
        assert!(choose(DEFAULT_SUBNET, "pd0", Some(parse("10.88.0.9")), &[]).is_ok());
    }

    #[test]
    fn bad_text_is_refused_by_name() {
        for text in ["", "10.88.0", "10.88.0.2/", "10.88.0.2/31", "10.88.0.2/x", "fd88::2"] {
            assert!(text.parse::<InterfaceAddress>().unwrap_err().contains(text));
        }
    }

    #[test]
    fn ipv6_follows_the_host_number() {
        assert_eq!(DEFAULT_SUBNET.address6("10.88.0.10".parse().unwrap()).to_string(), "fd88::a");
        let other = parse("10.99.1.3/24");
        assert_eq!(other.subnet.address6(other.address).to_string(), "fd88:0:a63:100::3");
    }

    #[test]
    fn overlap_is_seen_from_both_sides() {
        let small = parse("10.88.0.9/28").subnet;
        assert!(DEFAULT_SUBNET.overlaps(small) && small.overlaps(DEFAULT_SUBNET));
        assert!(!DEFAULT_SUBNET.overlaps(parse("10.89.0.1/24").subnet));
    }
}
