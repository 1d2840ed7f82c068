//! Whose frame is read next: tenants take turns, then the clients of one. Each tenant has tokens; who has used them up waits.
use super::bucket::{Bucket, Flow};
use crate::messages::{ClientId, TenantId};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Tokens of a tenant: what a frame costs is said by [`super::frames::cost`].
const FRAMES: Flow = Flow { rate: 200_000.0, burst: 400_000.0 };

/// Who takes turns with whom: a tenant. Nobody has named the clients of the default one: they are told apart by user.
pub type Lane = (TenantId, Option<u32>);

/// See the module.
#[derive(Debug, Default)]
pub struct Turns {
    lanes: HashMap<Lane, Waiting>,
    /// Lanes with clients that wait.
    order: VecDeque<Lane>,
}

#[derive(Debug)]
struct Waiting {
    clients: VecDeque<ClientId>,
    bucket: Bucket,
}

/// The lane of a client.
pub fn lane(tenant: TenantId, uid: u32) -> Lane {
    (tenant, (tenant == TenantId::default()).then_some(uid))
}

impl Turns {
    /// A client, which waits nowhere, has something to be read.
    pub fn enter(&mut self, lane: Lane, client: ClientId, now: Duration) {
        let fresh = || Waiting { clients: VecDeque::new(), bucket: Bucket::new(FRAMES, now) };
        let waiting = self.lanes.entry(lane).or_insert_with(fresh);
        if waiting.clients.is_empty() {
            self.order.push_back(lane);
        }
        waiting.clients.push_back(client);
    }

    /// The client whose turn it is. The lane pays with [`Self::pay`].
    pub fn next(&mut self, now: Duration) -> Option<ClientId> {
        for _ in 0..self.order.len() {
            let lane = self.order.pop_front()?;
            let waiting = self.lanes.get_mut(&lane)?;
            let client = match waiting.bucket.has(FRAMES, now) {
                true => waiting.clients.pop_front(),
                false => None,
            };
            if !waiting.clients.is_empty() {
                self.order.push_back(lane);
            }
            if client.is_some() {
                return client;
            }
        }
        None
    }

    /// Has a lane pay.
    pub fn pay(&mut self, lane: Lane, tokens: f64) {
        if let Some(waiting) = self.lanes.get_mut(&lane) {
            waiting.bucket.take(tokens);
        }
    }

    /// When somebody's turn comes who waits.
    pub fn wake_by(&self) -> Option<Duration> {
        self.order.iter().filter_map(|lane| Some(self.lanes.get(lane)?.bucket.ready_at(FRAMES))).min()
    }

    /// Forgets lanes that owe nothing and wait for nothing.
    pub fn sweep(&mut self, now: Duration) {
        self.lanes.retain(|_, waiting| !waiting.clients.is_empty() || !waiting.bucket.is_full(FRAMES, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns_and_then_clients() {
        let mut turns = Turns::default();
        let now = Duration::ZERO;
        let (one, two) = (lane(1, 0), lane(2, 0));
        (0..5).for_each(|client| turns.enter(one, client, now));
        turns.enter(two, 9, now);
        let order: Vec<_> = std::iter::from_fn(|| turns.next(now)).collect();
        assert_eq!(order, [0, 9, 1, 2, 3, 4]);
        // The default tenant's users are kept apart, those of others are not.
        assert_ne!(lane(0, 1), lane(0, 2));
        assert_eq!(lane(1, 1), lane(1, 2));
    }

    #[test]
    fn who_has_used_up_its_tokens_waits_alone() {
        let mut turns = Turns::default();
        let (one, two) = (lane(1, 0), lane(2, 0));
        turns.enter(one, 0, Duration::ZERO);
        turns.pay(one, FRAMES.burst + FRAMES.rate);
        turns.enter(two, 9, Duration::ZERO);
        assert_eq!((turns.next(Duration::ZERO), turns.next(Duration::ZERO)), (Some(9), None));
        let at = turns.wake_by().unwrap();
        assert!(at >= Duration::from_secs(1), "{at:?}");
        turns.sweep(at);
        assert_eq!(turns.next(at + Duration::from_millis(1)), Some(0));
        turns.sweep(at * 3);
        assert!(turns.lanes.is_empty());
    }
}
