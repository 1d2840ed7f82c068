//! Networks of the policy on the machine: each has a bridge of its own, on which the host has no address. Two of them may therefore
//! use the same addresses.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use pd_driver::admin::{ask, Answer, Ask, MapReport, NetworkReport};
use serde::{Deserialize, Serialize};

use super::address::{InterfaceAddress, Subnet};
use super::state::{networks_dir, Lock, Record};

/// A network that a container is to be in.
#[derive(Clone, Debug)]
pub struct Overlay {
    /// Name of the network.
    pub name: String,
    /// Ranges of its addresses.
    pub ranges: Vec<Subnet>,
    pub(super) maps: Vec<MapReport>,
}

/// A network with a bridge, as written to `networks/BRIDGE.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Placed {
    /// Name of the network.
    pub name: String,
    /// The admin socket of its driver.
    pub admin_socket: PathBuf,
    /// Addresses that mean those of other networks.
    pub maps: Vec<MapReport>,
}

impl Overlay {
    /// Asks the driver for a network.
    ///
    /// # Errors
    /// If there is no driver, or its policy has no such network with a range.
    pub fn ask(admin_socket: &Path, name: &str) -> Result<Overlay> {
        let answer = ask(admin_socket, &Ask::Network { name: name.to_owned() });
        let answer =
            answer.with_context(|| format!("no network from the driver at {}", admin_socket.display()))?;
        let Answer::Network(report) = answer else { bail!("the driver is of another version") };
        let NetworkReport { ranges, maps } = *report;
        let ranges =
            ranges.iter().map(|range| range.parse().map_err(anyhow::Error::msg)).collect::<Result<_>>()?;
        Ok(Overlay { name: name.to_owned(), ranges, maps })
    }

    /// Returns the name of its bridge. Two drivers may have networks of one name.
    pub fn bridge(&self, admin_socket: &Path) -> String {
        let text = format!("{} {}", self.name, admin_socket.display());
        format!("pdn{:08x}", twox_hash::XxHash3_64::oneshot(text.as_bytes()) as u32)
    }

    /// Returns the address of a new container: `wanted` if it is usable, otherwise the lowest free one.
    ///
    /// # Errors
    /// If there is none, or another container has it.
    pub fn choose(&self, wanted: Option<Ipv4Addr>, taken: &[(Ipv4Addr, String)]) -> Result<InterfaceAddress> {
        let ranges = || self.ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let Some(wanted) = wanted else {
            let free = |address: &InterfaceAddress| !taken.iter().any(|(other, _)| *other == address.address);
            let found = self.ranges.iter().flat_map(|range| range.usable()).find(free);
            return found.with_context(|| {
                format!(
                    "no free address is left in network {} ({}); end a container or add a range",
                    self.name,
                    ranges()
                )
            });
        };
        let Some(range) = self.ranges.iter().find(|range| range.contains(wanted)) else {
            bail!(
                "address {wanted} is in no range of network {} ({}); choose one of them or leave --ip out",
                self.name,
                ranges()
            );
        };
        let found = range.usable().find(|address| address.address == wanted);
        let found = found.with_context(|| {
            format!(
                "address {wanted} is the network or broadcast address of {range}; choose one between them"
            )
        })?;
        if let Some((_, holder)) = taken.iter().find(|(other, _)| *other == wanted) {
            bail!("address {wanted} is taken by container '{holder}'; choose another or leave --ip out");
        }
        Ok(found)
    }

    /// Destinations on the bridge beside those of a container's own range.
    pub fn routes(&self, own: Subnet) -> Vec<String> {
        let others = self.ranges.iter().filter(|range| **range != own);
        others.flat_map(|range| [range.to_string(), format!("{}/64", range.network6())]).collect()
    }

    /// Writes down that it is on a bridge.
    pub(super) fn note(&self, bridge: &str, admin_socket: &Path, _lock: &Lock) -> Result<()> {
        let (name, admin_socket) = (self.name.clone(), admin_socket.to_owned());
        write(bridge, &Placed { name, admin_socket, maps: self.maps.clone() })
    }
}

fn file(bridge: &str) -> PathBuf {
    networks_dir().join(format!("{bridge}.json"))
}

pub(super) fn write(bridge: &str, placed: &Placed) -> Result<()> {
    let path = file(bridge);
    let fresh = path.with_extension("tmp");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(networks_dir())
        .and_then(|()| fs::write(&fresh, serde_json::to_vec(placed)?))
        .and_then(|()| fs::rename(&fresh, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the network on a bridge, if the bridge is a network's.
pub(super) fn placed(bridge: &str) -> Option<Placed> {
    serde_json::from_slice(&fs::read(file(bridge)).ok()?).ok()
}

/// Bridges of networks.
pub(super) fn bridges() -> Vec<String> {
    let entries = fs::read_dir(networks_dir()).into_iter().flatten().flatten();
    let name = |path: PathBuf| Some(path.file_name()?.to_str()?.strip_suffix(".json")?.to_owned());
    entries.filter_map(|entry| name(entry.path())).collect()
}

impl Placed {
    /// Names of containers of other networks, with the addresses under which it sees them.
    pub(super) fn others<'a>(&'a self, records: &'a [Record]) -> impl Iterator<Item = (String, &'a str)> {
        let named = records.iter().filter(|record| record.is_of(&self.admin_socket));
        named.flat_map(move |record| {
            let maps = self.maps.iter().filter(|map| record.network.as_ref() == Some(&map.to));
            let addresses =
                [&record.address, &record.address6].map(|text| text.split('/').next()?.parse().ok());
            maps.flat_map(move |map| addresses.into_iter().flatten().filter_map(|ip| map.seen(ip)))
                .map(|ip| (ip.to_string(), &*record.name))
        })
    }
}

/// Fails if a container cannot be in a network on that bridge.
pub(super) fn check(bridge: &str) -> Result<()> {
    let is_other = super::links::exists(bridge) && placed(bridge).is_none();
    ensure!(!is_other, "interface {bridge} exists and is no network's; delete it");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(ranges: &[&str]) -> Overlay {
        let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        Overlay { name: "blue".to_owned(), ranges, maps: Vec::new() }
    }

    #[test]
    fn the_first_address_of_a_range_is_a_containers() {
        let blue = overlay(&["10.0.0.0/30", "10.1.0.0/24"]);
        let mut taken = Vec::new();
        for expected in ["10.0.0.1/30", "10.0.0.2/30", "10.1.0.1/24"] {
            let chosen = blue.choose(None, &taken).unwrap();
            assert_eq!(chosen.to_string(), expected);
            taken.push((chosen.address, "other".to_owned()));
        }
        assert_eq!(blue.routes("10.0.0.0/30".parse().unwrap()), ["10.1.0.0/24", "fd88:0:a01::/64"]);
        let full = overlay(&["10.0.0.0/30"]).choose(None, &taken).unwrap_err().to_string();
        assert!(full.contains("no free address") && full.contains("10.0.0.0/30"), "{full}");
    }

    #[test]
    fn a_wanted_address_is_checked() {
        let (blue, taken) = (overlay(&["10.0.0.0/24"]), [("10.0.0.7".parse().unwrap(), "other".to_owned())]);
        for (wanted, why) in [
            ("10.0.1.1", "is in no range of network blue (10.0.0.0/24)"),
            ("10.0.0.0", "network or broadcast"),
            ("10.0.0.255", "network or broadcast"),
            ("10.0.0.7", "taken by container 'other'"),
        ] {
            let error = blue.choose(Some(wanted.parse().unwrap()), &taken).unwrap_err().to_string();
            assert!(error.contains(why), "{wanted}: {error}");
        }
        assert!(blue.choose(Some("10.0.0.1".parse().unwrap()), &taken).is_ok());
    }
}
