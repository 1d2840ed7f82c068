//! Ports of one network namespace, and the bindings of each.
//!
//! A free port is found by looking at bitmaps, one for each class of bindings. The cost does not depend on the number of bindings. A class
//! is a set of bindings that all conflict with the same others. A binding conflicts with two classes at most, and with the bindings of its
//! own address.
use super::bindings::Binding;
use foldhash::HashMap;
use pd_abi::limits::{EPHEMERAL_PORT_FIRST, EPHEMERAL_PORT_LAST};
use rustix::io::Errno;
use std::net::IpAddr;

/// Most bindings that share one port. All of them are looked at when one comes or goes.
pub const SHARED_MAX: usize = 1024;
/// Most ports of one address that are kept as a list. More are kept as a bitmap.
const FEW: usize = 64;

const PORTS: usize = (EPHEMERAL_PORT_LAST - EPHEMERAL_PORT_FIRST) as usize + 1;
const WORDS: usize = PORTS.div_ceil(64);

/// See the module.
#[derive(Debug, Default)]
pub struct Ports {
    bound: HashMap<u16, Vec<Binding>>,
    /// Ports bound to any address of IPv4, or to one of them.
    v4: Set,
    /// Ports bound to any address of IPv6, or to one of them.
    v6: Set,
    /// Ports bound to any address of IPv4.
    any4: Set,
    /// Ports bound to any address of IPv6.
    any6: Set,
    /// Ports bound to any address of either family.
    dual: Set,
    /// Ports bound to one address.
    own: HashMap<IpAddr, Own>,
    /// Ports of connections whose sockets are not bound, and their number.
    lent: (Set, usize),
}

/// A set of ephemeral ports.
#[derive(Clone, Debug)]
struct Set(Box<[u64; WORDS]>);

impl Default for Set {
    fn default() -> Self {
        Self(Box::new([0; WORDS]))
    }
}

/// Ports of one address.
#[derive(Debug)]
enum Own {
    Few(Vec<u16>),
    Many(Set, usize),
}

impl Default for Own {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// Returns word and bit of an ephemeral port.
fn place(port: u16) -> Option<(usize, u64)> {
    let at = usize::from(port.checked_sub(EPHEMERAL_PORT_FIRST)?);
    (at < PORTS).then_some((at / 64, 1 << (at % 64)))
}

impl Set {
    fn set(&mut self, port: u16, is_in: bool) {
        let Some((word, bit)) = place(port) else { return };
        match is_in {
            true => self.0[word] |= bit,
            false => self.0[word] &= !bit,
        }
    }

    fn has(&self, port: u16) -> bool {
        place(port).is_some_and(|(word, bit)| self.0[word] & bit != 0)
    }
}

impl Own {
    fn insert(&mut self, port: u16) {
        match self {
            Self::Few(list) if list.contains(&port) => {}
            Self::Few(list) if list.len() < FEW => list.push(port),
            Self::Few(list) => {
                let mut set = Set::default();
                let count = list.len() + 1;
                list.iter().chain([&port]).for_each(|&port| set.set(port, true));
                *self = Self::Many(set, count);
            }
            Self::Many(set, count) => {
                *count += usize::from(!set.has(port));
                set.set(port, true);
            }
        }
    }

    fn remove(&mut self, port: u16) {
        match self {
            Self::Few(list) => list.retain(|&other| other != port),
            Self::Many(set, count) => {
                *count -= usize::from(set.has(port));
                set.set(port, false);
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Few(list) => list.is_empty(),
            Self::Many(_, count) => *count == 0,
        }
    }
}

impl Ports {
    /// Tells whether there are no bindings and no ports of connections.
    pub fn is_empty(&self) -> bool {
        self.bound.is_empty() && self.lent.1 == 0
    }

    /// Gives an ephemeral port to a connection. Returns whether no other has it.
    pub fn lend(&mut self, port: u16) -> bool {
        let is_new = place(port).is_some() && !self.lent.0.has(port);
        if is_new {
            self.lent.0.set(port, true);
            self.lent.1 += 1;
        }
        is_new
    }

    /// Takes back the port of a connection.
    pub fn give_back(&mut self, port: u16) {
        if self.lent.0.has(port) {
            self.lent.0.set(port, false);
            self.lent.1 -= 1;
        }
    }

    /// Iterates over all bindings, with their ports.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Binding)> {
        self.bound.iter().flat_map(|(port, list)| list.iter().map(|binding| (*port, binding)))
    }

    /// Returns the bindings of a port.
    pub fn at(&mut self, port: u16) -> Option<&mut Vec<Binding>> {
        self.bound.get_mut(&port)
    }

    /// Adds a binding of a port.
    ///
    /// # Errors
    /// `EADDRINUSE`.
    pub fn bind(&mut self, port: u16, binding: Binding) -> Result<(), Errno> {
        let taken = self.bound.entry(port).or_default();
        let shared = |other: &Binding| binding.share.is_some() && binding.share == other.share;
        if taken.len() >= SHARED_MAX || taken.iter().any(|other| other.overlaps(&binding) && !shared(other)) {
            return Err(Errno::ADDRINUSE);
        }
        taken.push(binding);
        if place(port).is_some() {
            self.classes(&binding).into_iter().flatten().for_each(|set| set.set(port, true));
            if !binding.ip.is_unspecified() {
                self.own.entry(binding.ip).or_default().insert(port);
            }
        }
        Ok(())
    }

    /// Removes and returns the bindings of a port that `whose` selects.
    pub fn unbind(&mut self, port: u16, whose: impl Fn(&Binding) -> bool) -> Vec<Binding> {
        let Some(list) = self.bound.get_mut(&port) else { return Vec::new() };
        let (gone, left): (Vec<_>, Vec<_>) = std::mem::take(list).into_iter().partition(whose);
        if place(port).is_some() {
            for binding in &gone {
                self.classes(binding).into_iter().flatten().for_each(|set| set.set(port, false));
                if let Some(own) = self.own.get_mut(&binding.ip) {
                    own.remove(port);
                }
            }
            for binding in &left {
                self.classes(binding).into_iter().flatten().for_each(|set| set.set(port, true));
                if !binding.ip.is_unspecified() {
                    self.own.entry(binding.ip).or_default().insert(port);
                }
            }
            for binding in &gone {
                if self.own.get(&binding.ip).is_some_and(Own::is_empty) {
                    self.own.remove(&binding.ip);
                }
            }
        }
        match left.is_empty() {
            true => drop(self.bound.remove(&port)),
            false => drop(self.bound.insert(port, left)),
        }
        gone
    }

    /// Returns the classes that a binding is in.
    fn classes(&mut self, binding: &Binding) -> [Option<&mut Set>; 3] {
        match (binding.ip, binding.ip.is_unspecified()) {
            (IpAddr::V4(_), true) => [Some(&mut self.v4), Some(&mut self.any4), None],
            (IpAddr::V4(_), false) => [Some(&mut self.v4), None, None],
            (IpAddr::V6(_), true) if binding.v6_only => [Some(&mut self.v6), Some(&mut self.any6), None],
            (IpAddr::V6(_), true) => [Some(&mut self.v6), Some(&mut self.any6), Some(&mut self.dual)],
            (IpAddr::V6(_), false) => [Some(&mut self.v6), None, None],
        }
    }

    /// Returns the first ephemeral port from `from` on, and around, at which `binding` conflicts with no other, and that no connection has. If
    /// there is none, one that a connection has serves.
    pub fn free(&self, binding: &Binding, from: u16) -> Option<u16> {
        let is_lent = |word: usize| self.lent.0 .0[word];
        self.free_but(binding, from, is_lent).or_else(|| self.free_but(binding, from, |_| 0))
    }

    /// Returns the first port at which `binding` conflicts with no other, without those in the words that `but` returns.
    fn free_but(&self, binding: &Binding, from: u16, but: impl Fn(usize) -> u64) -> Option<u16> {
        let (one, two) = match (binding.ip, binding.ip.is_unspecified()) {
            (IpAddr::V4(_), true) => (&self.v4, &self.dual),
            (IpAddr::V4(_), false) => (&self.any4, &self.dual),
            (IpAddr::V6(_), true) if binding.v6_only => (&self.v6, &self.v6),
            (IpAddr::V6(_), true) => (&self.v4, &self.v6),
            (IpAddr::V6(_), false) => (&self.any6, &self.any6),
        };
        let none = Own::default();
        let own = self.own.get(&binding.ip).unwrap_or(&none);
        let first = usize::from(from.clamp(EPHEMERAL_PORT_FIRST, EPHEMERAL_PORT_LAST) - EPHEMERAL_PORT_FIRST);
        for step in 0..=WORDS {
            let word = (first / 64 + step) % WORDS;
            let mut free = !(one.0[word] | two.0[word] | but(word));
            if let Own::Many(set, _) = own {
                free &= !set.0[word];
            }
            if word == WORDS - 1 {
                free &= u64::MAX >> (WORDS * 64 - PORTS);
            }
            // The first word is looked at twice: from the first port on, and up to it.
            let ahead = u64::MAX << (first % 64);
            free &= match step {
                0 => ahead,
                WORDS => !ahead,
                _ => u64::MAX,
            };
            while free != 0 {
                let port = EPHEMERAL_PORT_FIRST + (word * 64 + free.trailing_zeros() as usize) as u16;
                if !matches!(own, Own::Few(list) if list.contains(&port)) {
                    return Some(port);
                }
                free &= free - 1;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ClientId, Slot, TenantId};
    use proptest::prelude::*;

    fn binding(ip: &str, v6_only: bool, slot: u16) -> Binding {
        Binding {
            ip: ip.parse().unwrap(),
            v6_only,
            client: ClientId::default(),
            slot: Slot::new(slot),
            takes: super::super::bindings::Takes::None,
            share: None,
            payer: (TenantId::default(), None),
        }
    }

    const IPS: [&str; 6] = ["0.0.0.0", "::", "10.0.0.1", "10.0.0.2", "fd00::1", "127.0.0.1"];

    /// Finds a free port without bitmaps.
    fn slowly(ports: &Ports, lent: &[u16], binding: &Binding, from: u16) -> Option<u16> {
        let all = || (from..=EPHEMERAL_PORT_LAST).chain(EPHEMERAL_PORT_FIRST..from);
        let free = |port: &u16| {
            let bound = ports.bound.get(port);
            !bound.is_some_and(|list| list.iter().any(|other| other.overlaps(binding)))
        };
        all().find(|port| free(port) && !lent.contains(port)).or_else(|| all().find(free))
    }

    proptest! {
        #[test]
        fn a_free_port_is_found_as_by_looking_at_all(
            steps in prop::collection::vec((0usize..6, any::<bool>(), 0u16..200, any::<bool>()), 1..300),
            loans in prop::collection::vec((0u16..200, any::<bool>()), 0..200),
            from in EPHEMERAL_PORT_FIRST..=EPHEMERAL_PORT_LAST,
        ) {
            let mut ports = Ports::default();
            // Ports at both ends of the range, so that searches wrap around.
            let port = |n: u16| if n < 100 { EPHEMERAL_PORT_FIRST + n } else { EPHEMERAL_PORT_LAST - (n - 100) };
            for (slot, (ip, v6_only, at, binds)) in steps.into_iter().enumerate() {
                let one = binding(IPS[ip], v6_only, slot as u16);
                if binds {
                    let conflict = ports.bound.get(&port(at)).is_some_and(|l| l.iter().any(|o| o.overlaps(&one)));
                    prop_assert_eq!(ports.bind(port(at), one).is_err(), conflict);
                } else {
                    ports.unbind(port(at), |other| other.ip == one.ip);
                }
            }
            let mut lent = Vec::new();
            for (at, lends) in loans {
                let is_new = !lent.contains(&port(at));
                if lends {
                    prop_assert_eq!(ports.lend(port(at)), is_new);
                    lent.extend(is_new.then_some(port(at)));
                } else {
                    ports.give_back(port(at));
                    lent.retain(|&other| other != port(at));
                }
            }
            for ip in IPS {
                for v6_only in [false, true] {
                    let one = binding(ip, v6_only, 0);
                    for from in [from, EPHEMERAL_PORT_FIRST, EPHEMERAL_PORT_LAST, port(50), port(150)] {
                        let found = slowly(&ports, &lent, &one, from);
                        prop_assert_eq!(ports.free(&one, from), found, "{} {}", ip, from);
                    }
                }
            }
            let all: Vec<_> = ports.bound.keys().copied().collect();
            all.into_iter().for_each(|port| drop(ports.unbind(port, |_| true)));
            prop_assert_eq!(ports.is_empty(), lent.is_empty());
            lent.into_iter().for_each(|port| ports.give_back(port));
            prop_assert!(ports.is_empty() && ports.own.is_empty());
            for set in [&ports.v4, &ports.v6, &ports.any4, &ports.any6, &ports.dual, &ports.lent.0] {
                prop_assert!(set.0.iter().all(|word| *word == 0));
            }
        }
    }

    #[test]
    fn every_port_can_be_had_and_then_none() {
        let mut ports = Ports::default();
        let mut next = EPHEMERAL_PORT_FIRST + 77;
        for n in 0..PORTS {
            let one = binding("127.0.0.1", false, n as u16);
            next = ports.free(&one, next).unwrap();
            ports.bind(next, one).unwrap();
        }
        for ip in ["127.0.0.1", "0.0.0.0", "::"] {
            assert_eq!(ports.free(&binding(ip, false, 0), next), None, "{ip}");
        }
        assert!(ports.free(&binding("10.0.0.1", false, 0), next).is_some());
        ports.unbind(40_000, |_| true);
        assert_eq!(ports.free(&binding("127.0.0.1", false, 0), next), Some(40_000));
        assert!(ports.lend(40_000) && !ports.lend(40_000) && !ports.lend(80));
        assert_eq!(ports.free(&binding("127.0.0.1", false, 0), next), Some(40_000), "rather than none");
    }
}
