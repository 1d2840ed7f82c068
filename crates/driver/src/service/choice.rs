//! The choice of a backend. `choice.bpf.h` takes the same steps in the kernel.
use super::slots::{Chosen, Slots, DRAINED};
use crate::policy::{Backend, Balance, Policy, Service};
use pd_maglev::mix;
use rustix::time::{clock_gettime, ClockId};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Places in the table to try before a linear search of all backends.
const TRIES: u64 = 16;

/// See the module.
#[derive(Debug)]
pub struct Services {
    /// Slots, shared with the kernel's programs.
    pub slots: Arc<Slots>,
    by_address: HashMap<SocketAddr, usize>,
    /// Slots of each service and of its backends.
    numbers: Vec<(u16, Vec<u16>)>,
}

/// The party that asks for a backend.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// Number of the asker's network namespace.
    pub client: u64,
    /// A number that other connections do not have.
    pub connection: u64,
}

/// Returns the milliseconds of the clock that the kernel's programs use.
fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

impl Services {
    /// Begins without services.
    pub fn new(slots: Arc<Slots>) -> Self {
        Self { slots, by_address: HashMap::new(), numbers: Vec::new() }
    }

    /// Puts the services of a policy in force, which have slots. Later choices follow it.
    pub fn apply(&mut self, policy: &Policy) {
        let slots = &self.slots;
        let number = |service, backend| slots.number(service, backend).unwrap_or_default();
        let of = |service: &Service| {
            let backends = service.backends.iter().map(|backend| {
                let slot = number(service.address, Some(backend.address));
                slots.slot(slot).set(DRAINED, backend.drain);
                slot
            });
            (number(service.address, None), backends.collect())
        };
        self.numbers = policy.services.iter().map(of).collect();
        let addresses = policy.services.iter().enumerate();
        self.by_address = addresses.map(|(index, service)| (service.address, index)).collect();
    }

    /// Returns the number of the service that has an address.
    pub fn find(&self, to: SocketAddr) -> Option<usize> {
        if self.by_address.is_empty() {
            return None;
        }
        self.by_address.get(&SocketAddr::new(to.ip().to_canonical(), to.port())).copied()
    }

    /// Returns the slots of a service and of its backends.
    pub fn numbers(&self, service: usize) -> Option<(u16, &[u16])> {
        let (own, backends) = self.numbers.get(service)?;
        Some((*own, backends))
    }

    /// Returns a backend that is `usable`, by its state and by its address.
    pub fn choose(
        &self,
        policy: &Policy,
        service: usize,
        asker: Asker,
        mut usable: impl FnMut(u64, &Backend) -> bool,
    ) -> Option<Chosen> {
        let (entry, (own, numbers)) = (policy.services.get(service)?, self.numbers.get(service)?);
        let mut may = |index: usize| {
            let (backend, slot) = (&entry.backends[index], self.slots.slot(numbers[index]));
            !backend.drain && usable(slot.state.load(Relaxed), backend)
        };
        let now_ms = now_ms();
        let kept = entry.affinity.and_then(|_| {
            let slot = self.slots.kept(*own, asker.client, now_ms)?;
            numbers.iter().position(|number| *number == slot).filter(|&index| may(index))
        });
        let found = || match entry.balance {
            Balance::Maglev => {
                let hash = mix(if entry.affinity.is_some() { asker.client } else { asker.connection });
                by_table(entry, hash, &mut may)
            }
            Balance::LeastConnections => self.least(entry, numbers, mix(asker.connection), &mut may),
        };
        let backend = kept.or_else(found)?;
        if let Some(affinity) = entry.affinity {
            let until_ms = now_ms + affinity.as_millis() as u64;
            self.slots.keep(*own, asker.client, numbers[backend], until_ms);
        }
        let (asked, reached) = (entry.address, entry.backends[backend].address);
        Some(Chosen { service, backend, slots: [*own, numbers[backend]], asked, reached, led: None })
    }

    /// Returns the backend with the fewest connections for its weight. Ties go to the first from a varying place on.
    fn least(
        &self,
        service: &Service,
        numbers: &[u16],
        hash: u64,
        may: &mut impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let (count, mut best) = (numbers.len(), None);
        let first = (hash % count as u64) as usize;
        for index in (first..count).chain(0..first).filter(|&index| may(index)) {
            let active = self.slots.slot(numbers[index]).active();
            let weight = u64::from(service.backends[index].weight);
            let is_better = |&(_, most, of): &(usize, u64, u64)| (active + 1) * of < (most + 1) * weight;
            if best.as_ref().is_none_or(is_better) {
                best = Some((index, active, weight));
            }
        }
        best.map(|(index, ..)| index)
    }

    /// Counts a connection that no backend could take.
    pub fn refuse(&self, service: usize) {
        if let Some((own, _)) = self.numbers.get(service) {
            self.slots.slot(*own).failed.fetch_add(1, Relaxed);
        }
    }

    /// Counts a new connection of the fabric.
    pub fn open(&self, chosen: &Chosen) {
        for slot in chosen.slots.map(|number| self.slots.slot(number)) {
            slot.open();
        }
    }

    /// Counts an open connection of the fabric that another driver has counted as made.
    pub fn reopen(&self, chosen: &Chosen) {
        chosen.slots.iter().for_each(|number| self.slots.slot(*number).reopen());
    }

    /// Counts the end of a connection and its bytes, there and back. `counted`: the connection is on the fabric alone.
    pub fn close(&self, chosen: &Chosen, [sent, received]: [u64; 2], counted: bool) {
        for slot in chosen.slots.map(|number| self.slots.slot(number)) {
            if counted {
                slot.close();
            }
            slot.sent.fetch_add(sent, Relaxed);
            slot.received.fetch_add(received, Relaxed);
        }
    }
}

/// Chooses by the service's table. A backend that may not be chosen leaves its hashes to all others alike, and gets them back.
fn by_table(service: &Service, hash: u64, may: &mut impl FnMut(usize) -> bool) -> Option<usize> {
    let mut at = hash;
    for _ in 0..TRIES {
        let index = service.table.find(at)?;
        if may(index) {
            return Some(index);
        }
        at = mix(at.wrapping_add(1));
    }
    let count = service.backends.len();
    let first = (at % count as u64) as usize;
    (first..count).chain(0..first).find(|&index| may(index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn services(text: &str) -> (Policy, Services) {
        let policy = Policy::parse(text).unwrap();
        let slots = Arc::new(Slots::own().unwrap());
        slots.assign(&policy, &[]).unwrap();
        let mut services = Services::new(slots);
        services.apply(&policy);
        (policy, services)
    }

    fn text(count: usize, more: &str) -> String {
        let list: Vec<_> = (0..count).map(|n| format!("\"10.0.0.{}:80\"", n + 1)).collect();
        format!("[[service]]\naddress = \"10.96.0.1:80\"\nbackends = [{}]\n{more}", list.join(", "))
    }

    fn asker(client: u64, connection: u64) -> Asker {
        Asker { client, connection }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// Backends that are down get nothing, their share goes to all others alike, and no other connection moves.
        #[test]
        fn those_that_are_down_are_never_chosen(count in 2usize..100, down in prop::collection::hash_set(0usize..100, 0..40)) {
            let (policy, services) = services(&text(count, ""));
            let down: HashSet<usize> = down.into_iter().filter(|index| *index < count).collect();
            let (_, numbers) = services.numbers(0).unwrap();
            let choose = |connection| {
                services.choose(&policy, 0, asker(1, connection), |state, _| state == 0).map(|chosen| chosen.backend)
            };
            let before: Vec<_> = (0..20_000).map(choose).collect();
            down.iter().for_each(|&index| { services.slots.slot(numbers[index]).set(super::super::NO_LISTENER, true); });
            let mut extra = vec![0usize; count];
            for (connection, was) in before.iter().enumerate() {
                let now = choose(connection as u64);
                if down.len() == count {
                    prop_assert_eq!(now, None);
                    continue;
                }
                let now = now.unwrap();
                prop_assert!(!down.contains(&now));
                match was.filter(|was| down.contains(was)) {
                    Some(_) => extra[now] += 1,
                    None => prop_assert_eq!(Some(now), *was),
                }
            }
            let (up, moved) = (count - down.len(), extra.iter().sum::<usize>());
            if up > 0 && moved / up > 50 {
                let most = *extra.iter().max().unwrap();
                prop_assert!(most < 2 * moved / up, "{} of {} to one of {}", most, moved, up);
            }
            down.iter().for_each(|&index| { services.slots.slot(numbers[index]).set(super::super::NO_LISTENER, false); });
            prop_assert_eq!((0..20_000).map(choose).collect::<Vec<_>>(), before);
        }

        /// Compares with a model: a client gets the last backend within the time, if it may still be chosen.
        #[test]
        fn a_client_keeps_its_backend_as_long_as_that_is_there(
            steps in prop::collection::vec((0u64..6, any::<u64>(), 0usize..5, any::<bool>()), 1..200),
            least in any::<bool>(),
        ) {
            let balance = if least { "balance = \"least_connections\"\n" } else { "" };
            let (policy, services) = services(&text(5, &format!("{balance}affinity_seconds = 3600")));
            let (_, numbers) = services.numbers(0).unwrap();
            let (mut last, mut down) = (HashMap::new(), [false; 5]);
            for (client, connection, index, is_down) in steps {
                down[index] = is_down;
                services.slots.slot(numbers[index]).set(super::super::BACKLOG_FULL, is_down);
                let chosen = services.choose(&policy, 0, asker(client, connection), |state, _| state == 0);
                let Some(chosen) = chosen else {
                    prop_assert!(down.iter().all(|down| *down));
                    continue;
                };
                prop_assert!(!down[chosen.backend]);
                services.open(&chosen);
                if let Some(&before) = last.get(&client) {
                    prop_assert!(down[before] || chosen.backend == before);
                }
                last.insert(client, chosen.backend);
            }
        }

        #[test]
        fn connections_are_as_weights_say(weights in prop::collection::vec(1u32..20, 1..12), seed in any::<u64>()) {
            let list: Vec<_> = weights.iter().enumerate()
                .map(|(n, weight)| format!("{{ address = \"10.0.0.{}:80\", weight = {weight} }}", n + 1)).collect();
            let text = format!(
                "[[service]]\naddress = \"10.96.0.1:80\"\nbalance = \"least_connections\"\nbackends = [{}]", list.join(", "));
            let (policy, services) = services(&text);
            let total: u32 = weights.iter().sum();
            let mut counts = vec![0u32; weights.len()];
            for connection in 0..u64::from(10 * total) {
                let chosen = services.choose(&policy, 0, asker(1, seed ^ connection), |state, _| state == 0).unwrap();
                services.open(&chosen);
                counts[chosen.backend] += 1;
            }
            for (count, weight) in counts.into_iter().zip(weights) {
                prop_assert!(count.abs_diff(10 * weight) <= 1, "{} for {}", count, weight);
            }
        }
    }

    #[test]
    fn a_policy_that_changes_backends_changes_new_connections_only_and_few() {
        let (policy, mut services) = services(&text(100, ""));
        let choose = |services: &Services, policy: &Policy, connection| {
            services.choose(policy, 0, asker(1, connection), |state, _| state == 0).unwrap().reached
        };
        let before: Vec<_> = (0..50_000).map(|n| choose(&services, &policy, n)).collect();
        let gone = before[0];
        let next = Policy::parse(&text(100, "").replace(&format!("\"{gone}\", "), "")).unwrap();
        assert_eq!(next.services[0].backends.len(), 99);
        services.slots.assign(&next, &[&policy]).unwrap();
        services.apply(&next);
        let after: Vec<_> = (0..50_000).map(|n| choose(&services, &next, n)).collect();
        let stayed = before.iter().zip(&after).filter(|(was, _)| **was != gone);
        let moved = stayed.filter(|(was, now)| was != now).count();
        assert!(moved * 100 <= before.len(), "{moved} of {} moved", before.len());
        assert!(!after.contains(&gone));
    }

    #[test]
    fn what_is_drained_is_not_chosen_and_addresses_are_found() {
        let drained = "[[service]]\naddress = \"10.96.0.1:80\"\n\
                       backends = [\"10.0.0.1:80\", { address = \"10.0.0.2:80\", drain = true }]";
        let (policy, services) = services(drained);
        for connection in 0..1000 {
            let chosen = services.choose(&policy, 0, asker(1, connection), |state, _| state & !DRAINED == 0);
            assert_eq!(chosen.unwrap().backend, 0);
        }
        assert_eq!(services.find("[::ffff:10.96.0.1]:80".parse().unwrap()), Some(0));
        assert_eq!(services.find("10.96.0.1:81".parse().unwrap()), None);
        // There is no other backend.
        assert!(services.choose(&policy, 0, asker(1, 1), |_, backend| backend.drain).is_none());
        services.refuse(0);
        let (own, _) = services.numbers(0).unwrap();
        assert_eq!(services.slots.slot(own).failed.load(Relaxed), 1);
    }
}
