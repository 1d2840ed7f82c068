//! Which backends of services the kernel can reach: those whose container has a listener with room in its backlog. Asked by `sock_diag`, at the
//! intervals that the policy says, whatever clients do.
//!
//! A backend whose address no known namespace has is taken to be there.
use super::spaces::Spaces;
use super::sweep::{listeners, Found};
use crate::policy::Health as How;
use crate::policy::Service;
use crate::service::Slots;
use crate::service::BACKLOG_FULL;
use crate::service::NO_LISTENER;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug, Default)]
pub struct Health {
    watched: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    service: SocketAddr,
    backend: SocketAddr,
    slot: u16,
    how: How,
    due: Instant,
    /// Looks in a row that speak against what is known.
    contrary: u32,
}

/// What a look finds of a backend: a part of its state, or nothing that speaks against it.
fn judge(backend: SocketAddr, listeners: &[Found]) -> Option<u64> {
    let mut there = listeners.iter().filter(|found| found.takes(backend)).peekable();
    match there.peek() {
        None => Some(NO_LISTENER),
        Some(_) => there.all(Found::is_full).then_some(BACKLOG_FULL),
    }
}

impl Watched {
    /// Takes over what a look has found. Says whether the backend is now up or down, if that is news.
    fn hear(&mut self, found: Option<u64>, slots: &Slots) -> Option<bool> {
        let slot = slots.slot(self.slot);
        let is_down = slot.is(NO_LISTENER | BACKLOG_FULL);
        if found.is_some() == is_down {
            self.contrary = 0;
        } else {
            self.contrary += 1;
            if self.contrary < if is_down { self.how.rise } else { self.how.fall } {
                return None;
            }
            self.contrary = 0;
        }
        for part in [NO_LISTENER, BACKLOG_FULL] {
            slot.set(part, found == Some(part));
        }
        (found.is_some() != is_down).then_some(is_down)
    }
}

impl Health {
    /// Looks after the backends of these services from now on, and no others.
    pub fn watch(&mut self, services: &[Service], slots: &Slots) {
        let mut before: HashMap<u16, Watched> =
            self.watched.drain(..).map(|watched| (watched.slot, watched)).collect();
        let now = Instant::now();
        for service in services {
            for backend in &service.backends {
                let Some(slot) = slots.number(service.address, Some(backend.address)) else { continue };
                let fresh = Watched {
                    service: service.address,
                    backend: backend.address,
                    slot,
                    how: service.health,
                    due: now,
                    contrary: 0,
                };
                let known = before.remove(&slot).filter(|known| known.how == service.health);
                self.watched.push(known.unwrap_or(fresh));
            }
        }
    }

    /// How long until it is to look again, at most `longest`.
    pub fn wait(&self, now: Instant, longest: Duration) -> Duration {
        let next = self.watched.iter().map(|watched| watched.due).min();
        next.map_or(longest, |next| next.saturating_duration_since(now).min(longest))
    }

    /// Looks at all that are due. `places`: the numbers of the namespaces that have an address, one of each network. A listener in one of them is
    /// enough.
    pub fn look(
        &mut self,
        now: Instant,
        places: impl Fn(IpAddr) -> Vec<u32>,
        spaces: &Spaces,
        slots: &Slots,
    ) {
        let mut seen: HashMap<u32, Option<Vec<Found>>> = HashMap::new();
        for watched in self.watched.iter_mut().filter(|watched| watched.due <= now) {
            watched.due = now + watched.how.interval;
            let mut found: Vec<Option<u64>> = Vec::new();
            for number in places(watched.backend.ip().to_canonical()) {
                let ask = || listeners(&spaces.by_number(number)?.diag).ok();
                let there = seen.entry(number).or_insert_with(ask).as_ref();
                found.push(there.and_then(|listeners| judge(watched.backend, listeners)));
            }
            let is_up = found.iter().any(Option::is_none);
            let found = found.first().copied().flatten().filter(|_| !is_up);
            match watched.hear(found, slots) {
                Some(true) => {
                    tracing::info!(service = %watched.service, backend = %watched.backend, "a backend is up")
                }
                Some(false) => {
                    tracing::warn!(service = %watched.service, backend = %watched.backend, "a backend is down")
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use proptest::prelude::*;

    proptest! {
        /// Against a model: a backend changes after as many looks in a row as the policy says.
        #[test]
        fn a_backend_rises_and_falls_as_the_policy_says(
            looks in prop::collection::vec(prop::sample::select(vec![None, Some(NO_LISTENER), Some(BACKLOG_FULL)]), 0..60),
            rise in 1u32..4,
            fall in 1u32..4,
        ) {
            let policy = Policy::parse(&format!(
                "[[service]]\naddress = \"10.96.0.1:80\"\nbackends = [\"10.0.0.1:80\"]\n\
                 health = {{ rise = {rise}, fall = {fall} }}"
            )).unwrap();
            let slots = Slots::own().unwrap();
            slots.assign(&policy, &[]).unwrap();
            let mut health = Health::default();
            health.watch(&policy.services, &slots);
            let (mut is_down, mut row) = (false, Vec::new());
            for (number, found) in looks.into_iter().enumerate() {
                if number == 20 {
                    // The same policy once more.
                    health.watch(&policy.services, &slots);
                }
                let news = health.watched[0].hear(found, &slots);
                row.push(found.is_some());
                let last = |count: u32, is: bool| {
                    row.len() >= count as usize && row[row.len() - count as usize..].iter().all(|one| *one == is)
                };
                let now = if is_down { !last(rise, false) } else { last(fall, true) };
                prop_assert_eq!(news, (now != is_down).then_some(is_down));
                let state = slots.slot(health.watched[0].slot);
                prop_assert_eq!(state.is(NO_LISTENER | BACKLOG_FULL), now);
                if let (true, Some(part)) = (now, found) {
                    prop_assert!(state.is(part));
                }
                is_down = now;
            }
        }
    }

    #[test]
    fn a_listener_is_found_by_its_address_and_its_port() {
        let (_, namespace) = crate::process::network_namespace(rustix::process::getpid()).unwrap();
        let diag = crate::SocketDiag::new(&namespace).unwrap();
        let one = std::net::TcpListener::bind("127.0.0.78:0").unwrap();
        let any = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let there = listeners(&diag.0).unwrap();
        let at = |ip: &str, port| judge(SocketAddr::new(ip.parse().unwrap(), port), &there);
        let (port, any_port) = (one.local_addr().unwrap().port(), any.local_addr().unwrap().port());
        assert_eq!(at("127.0.0.78", port), None);
        assert_eq!(at("127.0.0.79", port), Some(NO_LISTENER));
        assert_eq!(at("127.0.0.79", any_port), None);
        assert_eq!(at("fd00::1", any_port), Some(NO_LISTENER));
        drop(one);
        assert_eq!(
            judge(SocketAddr::from(([127, 0, 0, 78], port)), &listeners(&diag.0).unwrap()),
            Some(NO_LISTENER)
        );
    }
}
