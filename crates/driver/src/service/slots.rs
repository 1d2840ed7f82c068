//! Words of services and backends, shared with the kernel's programs. The structures are those of `gate.bpf.h`.
//!
//! Only the kernel's programs and the driver can write them.
use crate::array::Array;
use crate::policy::via::Hop;
use crate::policy::{Policy, Rule, Service};
use pd_maglev::mix;
use rustix::io::Result;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Slots: enough for the services of three policies.
pub const SLOTS: usize = 16_384;
/// Sets of clients that keep their backend, and clients of one set. A full set forgets the client that connected first.
const SETS: usize = 16_384;
const WAYS: usize = 4;
/// Words of all sets.
pub const STICKY_WORDS: usize = SETS * WAYS * 2;

/// Flag of a backend's state: a policy drains it.
pub const DRAINED: u64 = 1;
/// Flag: the network namespace that has the backend's address has no listener on its port.
pub const NO_LISTENER: u64 = 2;
/// Flag: the backlog of the backend's listener is full.
pub const BACKLOG_FULL: u64 = 4;

/// Flag: a probe was refused.
pub const PROBE_REFUSED: u64 = 8;
/// Flag: a probe was not answered in time.
pub const PROBE_TIMED_OUT: u64 = 16;
/// Flag: a probe was answered with another status than 2xx or 3xx, or not with HTTP.
pub const PROBE_BAD_ANSWER: u64 = 32;
/// Flags of all faults that a probe can find. The fabric does not lead to a backend with one, either.
pub const PROBED: u64 = PROBE_REFUSED | PROBE_TIMED_OUT | PROBE_BAD_ANSWER;

/// Words of a backend of a service, or a service; of a proxy of a rule, or a rule that leads through proxies.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// Of a backend: the flags for which it gets no new connections; 0: it gets some.
    pub state: AtomicU64,
    /// Connections made.
    pub made: AtomicU64,
    /// Open connections on the fabric.
    active_on_fabric: AtomicU64,
    /// Of a backend or a proxy: connects on the kernel that failed. Of a service: connects that no backend could take. Of a rule:
    /// connects refused for lack of a proxy.
    pub failed: AtomicU64,
    /// Bytes to the backend, of connections that are over.
    pub sent: AtomicU64,
    /// Bytes from the backend, of connections that are over.
    pub received: AtomicU64,
    /// Open connections on the kernel.
    active_on_kernel: AtomicU64,
    /// Of a rule that leads through proxies: connects that went on without one of them.
    pub bypassed: AtomicU64,
}

const SLOT_WORDS: usize = size_of::<Slot>() / 8;

/// The backend or proxy chosen for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chosen {
    /// Index of the service in the policy.
    pub service: usize,
    /// Index of the backend in the service.
    pub backend: usize,
    /// Slots of the service and the backend.
    pub slots: [u16; 2],
    /// The service's address.
    pub asked: SocketAddr,
    /// The backend's address.
    pub reached: SocketAddr,
    /// If the backend is a proxy: the destination that the policy decided on.
    pub led: Option<SocketAddr>,
}

/// Owner of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(super) enum Name {
    Service(SocketAddr),
    Backend(SocketAddr, SocketAddr),
    /// A rule that leads through proxies, as text.
    Rule(String),
    Proxy(String, Hop),
}

/// See the module.
#[derive(Debug)]
pub struct Slots {
    words: Array,
    /// Clients' keys, each with the slot of its backend, and the time until which it is kept.
    sticky: Array,
    numbers: Mutex<HashMap<Name, u16>>,
}

fn of_service(service: &Service) -> impl Iterator<Item = Name> + '_ {
    let backends = service.backends.iter().map(|backend| Name::Backend(service.address, backend.address));
    [Name::Service(service.address)].into_iter().chain(backends)
}

fn names(policy: &Policy) -> impl Iterator<Item = Name> + '_ {
    let rules = policy.chains().flat_map(|(_, rule, via)| {
        let text = rule.to_string();
        let proxies: Vec<_> = via.hops.iter().map(|hop| Name::Proxy(text.clone(), hop.clone())).collect();
        proxies.into_iter().chain([Name::Rule(text)])
    });
    policy.services.iter().flat_map(of_service).chain(rules)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(at) | Self::Backend(at, _) => write!(f, "service {at}"),
            Self::Rule(text) | Self::Proxy(text, _) => write!(f, "rule \"{text}\""),
        }
    }
}

impl Slots {
    /// Uses these arrays, which the kernel's programs share.
    pub fn of_arrays(words: Array, sticky: Array) -> Self {
        Self { words, sticky, numbers: Mutex::default() }
    }

    /// Makes slots in memory that no program has.
    ///
    /// # Errors
    /// Errors of `mmap`.
    pub fn own() -> Result<Self> {
        Ok(Self::of_arrays(Array::own(SLOTS * SLOT_WORDS)?, Array::own(STICKY_WORDS)?))
    }

    /// Goes on with the words of the driver whose place this one takes.
    pub fn join(&self) {
        self.words.join();
        self.sticky.join();
    }

    /// Words of the first array.
    pub const WORDS: usize = SLOTS * SLOT_WORDS;

    /// Returns a slot.
    pub fn slot(&self, number: u16) -> &Slot {
        let first = self.words.word(usize::from(number) % SLOTS * SLOT_WORDS);
        // SAFETY: `SLOTS` structures of atomic words lie in the array, this one inside.
        unsafe { &*std::ptr::from_ref(first).cast::<Slot>() }
    }

    pub(super) fn numbers(&self) -> MutexGuard<'_, HashMap<Name, u16>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the services and the proxies of a policy their slots. A backend that had one before keeps it, with its counts. Where slots
    /// are short, those without connections that none of `kept` needs are freed.
    ///
    /// # Errors
    /// If there are too many, a sentence.
    pub fn assign(&self, policy: &Policy, kept: &[&Policy]) -> std::result::Result<(), String> {
        let mut numbers = self.numbers();
        let wanted: Vec<Name> = names(policy).collect();
        let fresh = wanted.iter().filter(|name| !numbers.contains_key(name)).count();
        if numbers.len() + fresh > SLOTS {
            let kept: HashSet<Name> =
                kept.iter().copied().flat_map(names).chain(wanted.iter().cloned()).collect();
            numbers.retain(|name, number| kept.contains(name) || self.slot(*number).active() != 0);
        }
        let mut taken: HashSet<u16> = numbers.values().copied().collect();
        let mut next = 0..SLOTS as u16;
        for name in wanted {
            if numbers.contains_key(&name) {
                continue;
            }
            let number = next.find(|number| !taken.contains(number)).ok_or_else(|| {
                format!("{name}: there are connections to {SLOTS} previous backends; end some of them")
            })?;
            self.slot(number).clear();
            taken.insert(number);
            numbers.insert(name, number);
        }
        Ok(())
    }

    /// Clears the counts of the kernel before its programs are attached: they miss the end of connections that closed meanwhile.
    pub fn begin_epoch(&self) {
        (0..SLOTS as u16).for_each(|number| self.slot(number).active_on_kernel.store(0, Relaxed));
    }

    /// Returns the slot of a service, or of its backend.
    pub fn number(&self, service: SocketAddr, backend: Option<SocketAddr>) -> Option<u16> {
        let name = match backend {
            Some(backend) => Name::Backend(service, backend),
            None => Name::Service(service),
        };
        self.numbers().get(&name).copied()
    }

    /// Returns the slot of a rule that leads through proxies, or of one of its proxies.
    pub fn number_of_proxy(&self, rule: &Rule, proxy: Option<&Hop>) -> Option<u16> {
        let text = rule.to_string();
        let name = match proxy {
            Some(proxy) => Name::Proxy(text, proxy.clone()),
            None => Name::Rule(text),
        };
        self.numbers().get(&name).copied()
    }

    /// Returns the key of a client of a service.
    fn key(service: u16, client: u64) -> u64 {
        mix(client ^ u64::from(service) << 32).max(1)
    }

    fn ways(&self, key: u64) -> impl Iterator<Item = (&AtomicU64, &AtomicU64)> {
        let first = (key % SETS as u64) as usize * WAYS * 2;
        (0..WAYS).map(move |way| (self.sticky.word(first + 2 * way), self.sticky.word(first + 2 * way + 1)))
    }

    /// Most clients that keep a backend.
    pub(super) const KEPT_MAX: usize = SETS * WAYS;

    /// Iterates over the keys of clients that keep a backend, each with the word for it.
    pub(super) fn all_kept(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let word = |at| self.sticky.word(at).load(Relaxed);
        (0..Self::KEPT_MAX).map(move |at| (word(2 * at), word(2 * at + 1))).filter(|(key, _)| *key != 0)
    }

    /// Records what another driver has recorded of a client.
    pub(super) fn keep_again(&self, key: u64, kept: u64) {
        let own = self.ways(key).find(|(own, _)| [0, key].contains(&own.load(Relaxed)));
        if let Some((own, word)) = own {
            own.store(key, Relaxed);
            word.store(kept, Relaxed);
        }
    }

    /// Returns the slot of the backend that a client still keeps from a service.
    pub fn kept(&self, service: u16, client: u64, now_ms: u64) -> Option<u16> {
        let key = Self::key(service, client);
        let (_, word) = self.ways(key).find(|(own, _)| own.load(Relaxed) == key)?;
        let word = word.load(Relaxed);
        (word >> 16 > now_ms).then_some(word as u16)
    }

    /// Records that a client keeps a backend until `until_ms`.
    pub fn keep(&self, service: u16, client: u64, backend: u16, until_ms: u64) {
        let key = Self::key(service, client);
        let own = self.ways(key).find(|(own, _)| own.load(Relaxed) == key);
        let oldest = || self.ways(key).min_by_key(|(_, word)| word.load(Relaxed));
        if let Some((own, word)) = own.or_else(oldest) {
            own.store(key, Relaxed);
            word.store(until_ms << 16 | u64::from(backend), Relaxed);
        }
    }
}

impl Slot {
    pub(super) fn clear(&self) {
        let counts = [&self.made, &self.failed, &self.sent, &self.received, &self.bypassed];
        for word in [&self.state, &self.active_on_fabric, &self.active_on_kernel].into_iter().chain(counts) {
            word.store(0, Relaxed);
        }
    }

    /// Returns the open connections.
    pub fn active(&self) -> u64 {
        self.active_on_fabric.load(Relaxed) + self.active_on_kernel.load(Relaxed)
    }

    /// Counts a new connection of the fabric.
    pub fn open(&self) {
        self.made.fetch_add(1, Relaxed);
        self.reopen();
    }

    /// Counts an open connection of the fabric that another driver has counted as made.
    pub fn reopen(&self) {
        self.active_on_fabric.fetch_add(1, Relaxed);
    }

    /// Counts the end of a connection of the fabric.
    pub fn close(&self) {
        self.active_on_fabric.fetch_sub(1, Relaxed);
    }

    /// Tells whether a backend's state has one of these flags.
    pub fn is(&self, parts: u64) -> bool {
        self.state.load(Relaxed) & parts != 0
    }

    /// Sets or clears a flag of a backend's state. Returns whether that changed it.
    pub fn set(&self, part: u64, is_on: bool) -> bool {
        let before = match is_on {
            true => self.state.fetch_or(part, Relaxed),
            false => self.state.fetch_and(!part, Relaxed),
        };
        (before & part != 0) != is_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(service: u8, backends: std::ops::Range<u16>) -> Policy {
        let list: Vec<_> = backends.map(|n| format!("\"10.0.{}.{}:1\"", n / 256, n % 256)).collect();
        let text =
            format!("[[service]]\naddress = \"10.96.0.{service}:80\"\nbackends = [{}]", list.join(", "));
        Policy::parse(&text).unwrap()
    }

    #[test]
    fn a_backend_that_stays_keeps_its_slot_and_its_counts() {
        let slots = Slots::own().unwrap();
        let (first, second) = (policy(1, 0..3), policy(1, 1..4));
        slots.assign(&first, &[]).unwrap();
        let service = first.services[0].address;
        let number = |n: u16| slots.number(service, Some(format!("10.0.0.{n}:1").parse().unwrap()));
        let before = number(1).unwrap();
        slots.slot(before).made.store(7, Relaxed);
        slots.assign(&second, &[&first]).unwrap();
        assert_eq!(number(1), Some(before));
        assert_eq!(slots.slot(before).made.load(Relaxed), 7);
        let all: HashSet<_> = (0..4).filter_map(number).chain(slots.number(service, None)).collect();
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn slots_of_former_policies_serve_again_unless_they_have_connections() {
        let slots = Slots::own().unwrap();
        let mut last = policy(1, 0..1);
        for round in 0..=200u16 {
            let next = policy((round % 250) as u8, 0..256);
            slots.assign(&next, &[&last]).unwrap();
            last = next;
        }
        let service = last.services[0].address;
        let one = slots.number(service, Some(last.services[0].backends[9].address)).unwrap();
        slots.slot(one).open();
        for round in 0..200u16 {
            slots.assign(&policy((round % 199) as u8, 0..256), &[]).unwrap();
        }
        assert_eq!(slots.slot(one).active(), 1);
    }

    #[test]
    fn a_client_keeps_its_backend_for_a_while() {
        let slots = Slots::own().unwrap();
        assert_eq!(slots.kept(3, 77, 0), None);
        slots.keep(3, 77, 5, 1000);
        assert_eq!((slots.kept(3, 77, 999), slots.kept(3, 77, 1000)), (Some(5), None));
        assert_eq!((slots.kept(4, 77, 0), slots.kept(3, 78, 0)), (None, None));
        slots.keep(3, 77, 6, 2000);
        assert_eq!(slots.kept(3, 77, 1500), Some(6));
        // Other clients may take its place: nobody gets another client's backend.
        for client in 0..1_000_000 {
            slots.keep(3, client, (client % 9) as u16, 5000 + client);
        }
        for client in 0..1_000_000 {
            assert!(slots.kept(3, client, 0).is_none_or(|slot| u64::from(slot) == client % 9));
        }
    }
}
