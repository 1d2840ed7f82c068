//! The policy's proxies as the kernel's programs look them up: an entry for each rule that leads through some, and one for each network
//! namespace that has one. Proxies may move while a policy is in force.
//!
//! The structures are those of `gate.bpf.h`.
use super::spaces::Spaces;
use super::sweep::{listeners, Found};
use super::table::Table;
use crate::bpf::Plain;
use crate::policy::via::{At, OnFailure, HOPS_MAX};
use crate::policy::Policy;
use crate::service::{Slots, NO_LISTENER};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

/// Interval of looks at the listeners of proxies.
pub const LOOK: Duration = Duration::from_millis(100);

/// Descriptors of the maps, and the slots.
#[derive(Clone, Debug)]
pub struct SidecarMaps {
    pub vias: Arc<OwnedFd>,
    pub proxies: Arc<OwnedFd>,
    /// Slots of rules and proxies.
    pub slots: Arc<Slots>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
struct ViaKey {
    generation: u32,
    rule: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Hop {
    v4: [u8; 16],
    v6: [u8; 16],
    space: u32,
    port: [u8; 2],
    slot: u16,
    has_v4: u32,
    has_v6: u32,
    network: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Via {
    count: u32,
    bypass: u32,
    slot: u16,
    zero: [u16; 3],
    hops: [Hop; HOPS_MAX],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
struct ProxyKey {
    generation: u32,
    space: u32,
}

// SAFETY: structures of numbers without padding, as `gate.bpf.h` has them.
unsafe impl Plain for ViaKey {}
// SAFETY: see above.
unsafe impl Plain for Via {}
// SAFETY: see above.
unsafe impl Plain for ProxyKey {}

/// Place of a proxy: its namespace and network, by number, and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct There {
    pub space: u32,
    pub network: u32,
    pub addresses: Vec<IpAddr>,
}

/// Entries of one generation.
#[derive(Debug)]
pub struct Sidecars {
    generation: u32,
    /// Slots; none in tests of the entries.
    slots: Option<Arc<Slots>>,
    vias: Table<ViaKey, Via>,
    proxies: Table<ProxyKey, u32>,
    there: HashMap<At, There>,
}

impl Sidecars {
    /// Begins a generation without any rule.
    pub fn new(generation: u32, maps: Option<&SidecarMaps>) -> Self {
        Self {
            generation,
            slots: maps.map(|maps| Arc::clone(&maps.slots)),
            vias: Table::new(maps.map(|maps| &maps.vias)),
            proxies: Table::new(maps.map(|maps| &maps.proxies)),
            there: HashMap::new(),
        }
    }

    /// Tells whether the policy names a proxy there.
    pub fn names(policy: &Policy, at: &At) -> bool {
        policy.chains().any(|(_, _, via)| via.hops.iter().any(|hop| hop.at == *at))
    }

    /// Sets the place of a proxy, or removes it. Returns the namespaces whose proxies have changed.
    pub fn set(&mut self, at: At, is: Option<There>) -> Vec<u32> {
        let was = match is.clone() {
            Some(is) => self.there.insert(at, is),
            None => self.there.remove(&at),
        };
        let spaces: BTreeSet<u32> = was.into_iter().chain(is).map(|there| there.space).collect();
        spaces.into_iter().collect()
    }

    /// Returns the rules that lead through a proxy in this namespace, ascending.
    pub fn rules_at(&self, policy: &Policy, space: u32) -> Vec<u32> {
        let here = |at: &At| self.there.get(at).is_some_and(|there| there.space == space);
        let chains = policy.chains().filter(|(_, _, via)| via.hops.iter().any(|hop| here(&hop.at)));
        chains.map(|(number, ..)| number as u32).collect()
    }

    /// Sets the class of the rules that lead through a namespace; none: the namespace has no proxy.
    ///
    /// # Errors
    /// Errors of bpf(2).
    pub fn classify(&mut self, space: u32, class: Option<u32>) -> Result<(), Errno> {
        let key = ProxyKey { generation: self.generation, space };
        match class {
            Some(class) => self.proxies.put(key, class),
            None => {
                self.proxies.take(key);
                Ok(())
            }
        }
    }

    /// Updates the entries of all rules to the places of proxies.
    ///
    /// # Errors
    /// Errors of bpf(2); `ENOSPC` if a rule or a proxy has no slot.
    pub fn fill(&mut self, policy: &Policy) -> Result<(), Errno> {
        for (number, rule, via) in policy.chains() {
            let mut hops = [Hop::default(); HOPS_MAX];
            for (place, hop) in hops.iter_mut().zip(&via.hops) {
                let slot = self.slots.as_ref().map(|slots| slots.number_of_proxy(rule, Some(hop)));
                place.slot = slot.unwrap_or(Some(0)).ok_or(Errno::NOSPC)?;
                place.port = hop.port.unwrap_or(0).to_be_bytes();
                let Some(there) = self.there.get(&hop.at) else { continue };
                let first = |is_v4: bool| there.addresses.iter().find(|ip| ip.is_ipv4() == is_v4);
                let (v4, v6) = (first(true), first(false));
                (place.space, place.network) = (there.space, there.network);
                (place.has_v4, place.has_v6) = (u32::from(v4.is_some()), u32::from(v6.is_some()));
                (place.v4, place.v6) = (octets(v4), octets(v6));
            }
            let slot = self.slots.as_ref().map(|slots| slots.number_of_proxy(rule, None));
            let value = Via {
                count: via.hops.len() as u32,
                bypass: u32::from(via.on_failure == OnFailure::Bypass),
                slot: slot.unwrap_or(Some(0)).ok_or(Errno::NOSPC)?,
                zero: [0; 3],
                hops,
            };
            self.vias.put(ViaKey { generation: self.generation, rule: number as u32 }, value)?;
        }
        Ok(())
    }

    /// Tells whether connections from `from` to `to` may be on their way from a rule's clients or proxies to one of its proxies.
    pub fn is_leg(&self, policy: &Policy, tenant: &str, from: u32, to: IpAddr, port: u16) -> bool {
        policy.chains().any(|(_, rule, via)| {
            let here = |at: &At| self.there.get(at).is_some_and(|there| there.space == from);
            let is_from = rule.from.is_empty() || rule.from.iter().any(|name| name == tenant);
            let is_to = |hop: &crate::policy::via::Hop| {
                hop.port.is_none_or(|own| own == port)
                    && self.there.get(&hop.at).is_some_and(|there| there.addresses.contains(&to))
            };
            (is_from || via.hops.iter().any(|hop| here(&hop.at))) && via.hops.iter().any(is_to)
        })
    }

    /// Tells whether a rule leads connections from a namespace through a proxy that must be passed. False if the namespace has one of its
    /// proxies.
    pub fn has_to_be_led(&self, policy: &Policy, rule: usize, from: u32) -> bool {
        let Some(via) = policy.rules.get(rule).and_then(|rule| rule.via.as_ref()) else { return false };
        via.on_failure == OnFailure::Close && !self.rules_at(policy, from).contains(&(rule as u32))
    }

    /// Finds out which proxies have a listener. Proxies without a listener, or without a place, get no connections.
    pub fn look(&self, policy: &Policy, spaces: &Spaces) {
        let Some(slots) = &self.slots else { return };
        let mut seen: HashMap<u32, Vec<Found>> = HashMap::new();
        for (_, rule, via) in policy.chains() {
            for hop in &via.hops {
                let Some(slot) = slots.number_of_proxy(rule, Some(hop)) else { continue };
                let is_there = self.there.get(&hop.at).is_some_and(|there| {
                    let ask = || listeners(&spaces.by_number(there.space)?.diag).ok();
                    let found = seen.entry(there.space).or_insert_with(|| ask().unwrap_or_default());
                    let takes = |found: &Found| match hop.port {
                        Some(port) => there.addresses.iter().any(|ip| found.takes((*ip, port).into())),
                        None => !found.local.ip().is_loopback(),
                    };
                    found.iter().any(takes)
                });
                if slots.slot(slot).set(NO_LISTENER, !is_there) {
                    match is_there {
                        true => tracing::info!(rule = %rule, proxy = %hop, "a proxy has a listener"),
                        false => tracing::warn!(rule = %rule, proxy = %hop, "a proxy has no listener"),
                    }
                }
            }
        }
    }

    /// Removes all of them.
    pub fn clear(&mut self) {
        self.vias.clear();
        self.proxies.clear();
    }
}

fn octets(ip: Option<&IpAddr>) -> [u8; 16] {
    match ip {
        Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(v6)) => v6.octets(),
        None => Ipv6Addr::UNSPECIFIED.octets(),
    }
}
