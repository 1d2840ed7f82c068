//! Health of the backends of services. A look asks the kernel by `sock_diag` for a listener with room in its backlog. If the policy asks for
//! a probe, it also makes a connection ([`crate::probe`]). Looks come at the intervals of the policy, whatever clients do.
//!
//! A backend whose address no known namespace has is taken to be up. A backend without a listener is not probed: it may be on the fabric
//! alone. Without the process that probes, a listener is enough.
use super::spaces::Spaces;
use super::sweep::{listeners, Found};
use crate::policy::Health as How;
use crate::policy::Service;
use crate::probe::{Prober, Question, Verdict, PROBES_MAX};
use crate::service::{
    Slots, BACKLOG_FULL, NO_LISTENER, PROBED, PROBE_BAD_ANSWER, PROBE_REFUSED, PROBE_TIMED_OUT,
};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Parts of a state that looks find.
const PARTS: [u64; 5] = [NO_LISTENER, BACKLOG_FULL, PROBE_REFUSED, PROBE_TIMED_OUT, PROBE_BAD_ANSWER];
const ALL: u64 = NO_LISTENER | BACKLOG_FULL | PROBED;
/// Time after the backend's timeout when a reply is given up.
const GRACE: Duration = Duration::from_secs(1);
/// Lost replies in a row after which a backend is judged by its listener.
const MISSED_MAX: u32 = 3;
/// Networks with the backend's address in which it is probed.
const PLACES_MAX: usize = 4;
/// Delay before another try to send a probe for which there was no room.
const AGAIN: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Debug, Default)]
pub struct Health {
    watched: Vec<Watched>,
    prober: Option<Prober>,
    asked: u64,
}

#[derive(Debug)]
struct Watched {
    service: SocketAddr,
    backend: SocketAddr,
    slot: u16,
    how: How,
    due: Instant,
    /// Looks in a row that contradict the known state.
    contrary: u32,
    /// Questions of the last look that are open, and the time at which they are given up.
    waits: Option<(Vec<u64>, Instant)>,
    missed: u32,
}

/// Returns the part of a backend's state that a look finds, or none if nothing is wrong.
fn judge(backend: SocketAddr, listeners: &[Found]) -> Option<u64> {
    let mut there = listeners.iter().filter(|found| found.takes(backend)).peekable();
    match there.peek() {
        None => Some(NO_LISTENER),
        Some(_) => there.all(Found::is_full).then_some(BACKLOG_FULL),
    }
}

/// Returns the part of a state that a verdict means, if any, and its text for the log. None: the verdict means nothing.
fn found(verdict: Verdict) -> Option<(Option<u64>, String)> {
    Some(match verdict {
        Verdict::Well => (None, String::new()),
        Verdict::Refused => (Some(PROBE_REFUSED), "the probe was refused".to_owned()),
        Verdict::TimedOut => (Some(PROBE_TIMED_OUT), "the probe was not answered in time".to_owned()),
        Verdict::BadAnswer(0) => (Some(PROBE_BAD_ANSWER), "the answer to the probe is not HTTP".to_owned()),
        Verdict::BadAnswer(status) => {
            (Some(PROBE_BAD_ANSWER), format!("the probe was answered with status {status}"))
        }
        Verdict::Unknown(_) => return None,
    })
}

fn said(part: Option<u64>) -> &'static str {
    match part {
        Some(BACKLOG_FULL) => "its backlog is full",
        _ => "it has no listener",
    }
}

impl Watched {
    /// Looks for the backend's listener in the namespaces of these `numbers`, whose listeners `seen` keeps. Returns the part of a state
    /// that this means, if any, and the namespaces with a listener.
    fn find(
        &self,
        numbers: Vec<u32>,
        spaces: &Spaces,
        seen: &mut HashMap<u32, Option<Vec<Found>>>,
    ) -> (Option<u64>, Vec<u32>) {
        let (mut found, mut listening) = (Vec::new(), Vec::new());
        for number in numbers {
            let ask = || listeners(&spaces.by_number(number)?.diag).ok();
            let there = seen.entry(number).or_insert_with(ask).as_ref();
            let part = there.and_then(|listeners| judge(self.backend, listeners));
            if there.is_some() && part.is_none() {
                listening.push(number);
            }
            found.push(part);
        }
        let is_up = found.iter().any(Option::is_none);
        (found.first().copied().flatten().filter(|_| !is_up), listening)
    }

    /// Applies the result of a look. Returns whether the backend is up or down, if that has changed.
    fn note(&mut self, found: Option<u64>, slots: &Slots) -> Option<bool> {
        let slot = slots.slot(self.slot);
        let is_down = slot.is(ALL);
        if found.is_some() == is_down {
            self.contrary = 0;
        } else {
            self.contrary += 1;
            if self.contrary < if is_down { self.how.rise } else { self.how.fall } {
                return None;
            }
            self.contrary = 0;
        }
        for part in PARTS {
            slot.set(part, found == Some(part));
        }
        (found.is_some() != is_down).then_some(is_down)
    }

    /// Applies the result of a look, and logs a change with its reason.
    fn conclude(&mut self, found: Option<u64>, why: &str, slots: &Slots) {
        let (service, backend) = (self.service, self.backend);
        match self.note(found, slots) {
            Some(true) => tracing::info!(%service, %backend, "a backend is up"),
            Some(false) => tracing::warn!(%service, %backend, "a backend is down: {why}"),
            None => {}
        }
    }

    /// Returns the questions without a reply.
    fn open(&self) -> &[u64] {
        self.waits.as_ref().map_or(&[], |(ids, _)| ids)
    }

    /// Counts a look without a result. After some of these the backend counts as well: it has a listener.
    fn miss(&mut self, slots: &Slots) {
        self.missed += 1;
        if self.missed >= MISSED_MAX {
            self.conclude(None, "", slots);
        }
    }
}

impl Health {
    /// Begins without backends. `prober`: the process that probes, if there is one.
    pub fn new(prober: Option<Prober>) -> Self {
        Self { prober, ..Self::default() }
    }

    /// Watches the backends of these services from now on, and no others.
    pub fn watch(&mut self, services: &[Service], slots: &Slots) {
        let mut before: HashMap<u16, Watched> =
            self.watched.drain(..).map(|watched| (watched.slot, watched)).collect();
        let now = Instant::now();
        if self.prober.is_none() && services.iter().any(|service| service.health.probe.is_some()) {
            tracing::warn!(
                "backends are not probed, for the process that probes is not there: a listener is enough"
            );
        }
        for service in services {
            for backend in &service.backends {
                let Some(slot) = slots.number(service.address, Some(backend.address)) else { continue };
                let fresh = Watched {
                    service: service.address,
                    backend: backend.address,
                    slot,
                    how: service.health.clone(),
                    due: now,
                    contrary: 0,
                    waits: None,
                    missed: 0,
                };
                let known = before.remove(&slot).filter(|known| known.how == service.health);
                self.watched.push(known.unwrap_or(fresh));
            }
        }
    }

    /// Returns the time until the next look, at most `longest`.
    pub fn wait(&self, now: Instant, longest: Duration) -> Duration {
        let next = self.watched.iter().map(|watched| watched.due).min();
        next.map_or(longest, |next| next.saturating_duration_since(now).min(longest))
    }

    /// Returns the descriptor that is readable when there are replies.
    pub fn replies(&self) -> Option<BorrowedFd<'_>> {
        self.prober.as_ref().map(Prober::fd)
    }

    /// Reads the results of probes.
    pub fn take_replies(&mut self, slots: &Slots) {
        let Some(prober) = &self.prober else { return };
        let Ok(replies) = prober.replies() else { return self.lose() };
        for (id, verdict) in replies {
            // Other replies are late, or forged.
            let Some(watched) = self.watched.iter_mut().find(|watched| watched.open().contains(&id)) else {
                continue;
            };
            let Some((ids, until)) = watched.waits.take() else { continue };
            let left: Vec<u64> = ids.into_iter().filter(|other| *other != id).collect();
            let finding = found(verdict);
            match finding {
                // A good answer in any network is enough.
                Some((None, why)) => {
                    watched.missed = 0;
                    watched.conclude(None, &why, slots);
                }
                _ if !left.is_empty() => watched.waits = Some((left, until)),
                Some((part, why)) => {
                    watched.missed = 0;
                    watched.conclude(part, &why, slots);
                }
                None => watched.miss(slots),
            }
        }
    }

    /// Gives up the process that probes, which has ended.
    fn lose(&mut self) {
        tracing::error!("the process that probes backends has ended: a listener is enough until the driver is started again");
        self.prober = None;
        let now = Instant::now();
        for watched in &mut self.watched {
            if watched.waits.take().is_some() {
                watched.due = now;
            }
        }
    }

    /// Looks at all that are due. `places`: returns the numbers of the namespaces that have an address, one of each network. A listener
    /// in one of them is enough.
    pub fn look(
        &mut self,
        now: Instant,
        places: impl Fn(IpAddr) -> Vec<u32>,
        spaces: &Spaces,
        slots: &Slots,
    ) {
        let mut seen: HashMap<u32, Option<Vec<Found>>> = HashMap::new();
        let mut open: usize = self.watched.iter().map(|watched| watched.open().len()).sum();
        let mut has_ended = false;
        for watched in self.watched.iter_mut().filter(|watched| watched.due <= now) {
            match watched.waits.take() {
                Some((ids, until)) if until <= now => {
                    open -= ids.len();
                    watched.miss(slots);
                }
                Some((ids, until)) => {
                    watched.due = until;
                    watched.waits = Some((ids, until));
                    continue;
                }
                None => {}
            }
            watched.due = now + watched.how.interval;
            let (found, mut listening) =
                watched.find(places(watched.backend.ip().to_canonical()), spaces, &mut seen);
            let probe = watched.how.probe.as_ref().filter(|_| found.is_none() && !listening.is_empty());
            let (Some(probe), Some(prober)) = (probe, self.prober.as_ref()) else {
                watched.conclude(found, said(found), slots);
                continue;
            };
            listening.truncate(PLACES_MAX);
            if open + listening.len() > PROBES_MAX {
                watched.due = now + AGAIN;
                continue;
            }
            let mut ids = Vec::new();
            for space in listening.into_iter().filter_map(|number| spaces.by_number(number)) {
                self.asked += 1;
                let (id, timeout, path) = (self.asked, probe.timeout, probe.path.clone());
                let question = Question { id, to: watched.backend, timeout, path };
                match prober.ask(&question, space.file.as_fd()) {
                    Ok(true) => ids.push(id),
                    Ok(false) => {}
                    Err(_) => has_ended = true,
                }
            }
            if ids.is_empty() {
                watched.due = now + AGAIN;
                continue;
            }
            open += ids.len();
            watched.waits = Some((ids, now + probe.timeout + GRACE));
        }
        if has_ended {
            self.lose();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use proptest::prelude::*;
    use rustix::fd::OwnedFd;
    use rustix::net::{send, SendFlags};

    proptest! {
        /// Checks against a model that a backend changes after as many looks in a row as the policy says.
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
                    // The policy again, unchanged.
                    health.watch(&policy.services, &slots);
                }
                let news = health.watched[0].note(found, &slots);
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

    /// Makes a service with one probed backend and an open question, and the other end of the channel.
    fn asked(how: &str) -> (Health, Slots, OwnedFd) {
        let policy = Policy::parse(&format!(
            "[[service]]\naddress = \"10.96.0.1:80\"\nbackends = [\"10.0.0.1:80\"]\nhealth = {{ probe = \"tcp\", {how} }}"
        ))
        .unwrap();
        let slots = Slots::own().unwrap();
        slots.assign(&policy, &[]).unwrap();
        let (prober, theirs) = Prober::with_other_end();
        let mut health = Health::new(Some(prober));
        health.watch(&policy.services, &slots);
        (health, slots, theirs)
    }

    fn open(health: &mut Health, id: u64) {
        let (mut ids, until) = health.watched[0].waits.take().unwrap_or((Vec::new(), Instant::now() + GRACE));
        ids.push(id);
        health.watched[0].waits = Some((ids, until));
    }

    fn reply(health: &mut Health, slots: &Slots, theirs: &OwnedFd, id: u64, verdict: Verdict) -> u64 {
        send(theirs, &verdict.encode(id), SendFlags::empty()).unwrap();
        health.take_replies(slots);
        PARTS.into_iter().filter(|part| slots.slot(health.watched[0].slot).is(*part)).sum()
    }

    #[test]
    fn a_reply_counts_once_and_only_if_it_was_asked_for() {
        let (mut health, slots, theirs) = asked("rise = 1, fall = 2");
        let reply = |health: &mut Health, id, verdict| reply(health, &slots, &theirs, id, verdict);
        assert_eq!(reply(&mut health, 7, Verdict::Refused), 0, "nobody asked");
        open(&mut health, 1);
        assert_eq!(reply(&mut health, 1, Verdict::Refused), 0, "the first of two");
        assert_eq!(reply(&mut health, 1, Verdict::Refused), 0, "the same once more");
        open(&mut health, 2);
        assert_eq!(reply(&mut health, 2, Verdict::TimedOut), PROBE_TIMED_OUT);
        // Another reason.
        open(&mut health, 3);
        assert_eq!(reply(&mut health, 3, Verdict::BadAnswer(500)), PROBE_BAD_ANSWER);
        // Two networks: one good answer is enough.
        open(&mut health, 4);
        open(&mut health, 5);
        assert_eq!(reply(&mut health, 4, Verdict::Refused), PROBE_BAD_ANSWER);
        assert_eq!(reply(&mut health, 5, Verdict::Well), 0);
        assert!(health.watched[0].waits.is_none());
    }

    #[test]
    fn without_verdicts_the_listener_counts_after_a_while() {
        let (mut health, slots, theirs) = asked("rise = 1, fall = 1");
        open(&mut health, 1);
        assert_eq!(reply(&mut health, &slots, &theirs, 1, Verdict::Refused), PROBE_REFUSED);
        for id in 2..u64::from(MISSED_MAX) + 1 {
            open(&mut health, id);
            assert_eq!(reply(&mut health, &slots, &theirs, id, Verdict::Unknown(24)), PROBE_REFUSED);
        }
        open(&mut health, 9);
        assert_eq!(reply(&mut health, &slots, &theirs, 9, Verdict::Unknown(24)), 0);
        // The process ends: looks go on without it.
        open(&mut health, 10);
        drop(theirs);
        health.take_replies(&slots);
        assert!(health.replies().is_none() && health.watched[0].waits.is_none());
    }

    #[test]
    fn a_listener_is_found_by_its_address_and_its_port() {
        let (_, namespace) = crate::process::network_namespace(rustix::process::getpid()).unwrap();
        let diag = crate::SocketDiag::new(&namespace).unwrap();
        let one = std::net::TcpListener::bind("127.0.0.78:0").unwrap();
        let any = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let there = listeners(&diag.diag).unwrap();
        let at = |ip: &str, port| judge(SocketAddr::new(ip.parse().unwrap(), port), &there);
        let (port, any_port) = (one.local_addr().unwrap().port(), any.local_addr().unwrap().port());
        assert_eq!(at("127.0.0.78", port), None);
        assert_eq!(at("127.0.0.79", port), Some(NO_LISTENER));
        assert_eq!(at("127.0.0.79", any_port), None);
        assert_eq!(at("fd00::1", any_port), Some(NO_LISTENER));
        drop(one);
        assert_eq!(
            judge(SocketAddr::from(([127, 0, 0, 78], port)), &listeners(&diag.diag).unwrap()),
            Some(NO_LISTENER)
        );
    }
}
