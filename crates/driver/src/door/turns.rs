//! Turns of frames to be read: tenants take turns, then the clients of one. Each tenant has tokens, and waits when they are used up.
use super::bucket::{Bucket, Flow};
use crate::ids::ClientId;
use crate::messages::Payer;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Tokens of a tenant. The cost of each frame is in [`super::frames`].
const FRAMES: Flow = Flow { rate: 200_000.0, burst: 400_000.0 };

/// See the module.
#[derive(Debug, Default)]
pub struct Turns {
    payers: HashMap<Payer, Waiting>,
    /// Payers with clients that wait.
    order: VecDeque<Payer>,
}

#[derive(Debug)]
struct Waiting {
    clients: VecDeque<ClientId>,
    bucket: Bucket,
}

impl Turns {
    /// Adds a client that waits nowhere and has something to be read.
    pub fn enter(&mut self, payer: Payer, client: ClientId, now: Duration) {
        let fresh = || Waiting { clients: VecDeque::new(), bucket: Bucket::new(FRAMES, now) };
        let waiting = self.payers.entry(payer).or_insert_with(fresh);
        if waiting.clients.is_empty() {
            self.order.push_back(payer);
        }
        waiting.clients.push_back(client);
    }

    /// Takes the client that has its turn. Tokens are paid with [`Self::pay`].
    pub fn next(&mut self, now: Duration) -> Option<ClientId> {
        for _ in 0..self.order.len() {
            let payer = self.order.pop_front()?;
            let waiting = self.payers.get_mut(&payer)?;
            let client = match waiting.bucket.has(FRAMES, now) {
                true => waiting.clients.pop_front(),
                false => None,
            };
            if !waiting.clients.is_empty() {
                self.order.push_back(payer);
            }
            if client.is_some() {
                return client;
            }
        }
        None
    }

    /// Takes tokens from a payer.
    pub fn pay(&mut self, payer: Payer, tokens: f64) {
        if let Some(waiting) = self.payers.get_mut(&payer) {
            waiting.bucket.take(tokens);
        }
    }

    /// Returns the time at which the turn of a waiting client comes.
    pub fn wake_by(&self) -> Option<Duration> {
        self.order.iter().filter_map(|payer| Some(self.payers.get(payer)?.bucket.ready_at(FRAMES))).min()
    }

    /// Forgets payers that owe nothing and wait for nothing.
    pub fn sweep(&mut self, now: Duration) {
        self.payers.retain(|_, waiting| !waiting.clients.is_empty() || !waiting.bucket.is_full(FRAMES, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::messages::payer;

    #[test]
    fn tenants_take_turns_and_then_clients() {
        let mut turns = Turns::default();
        let now = Duration::ZERO;
        let (one, two) = (payer(TenantId::new(1), 0), payer(TenantId::new(2), 0));
        (0..5).map(ClientId::new).for_each(|client| turns.enter(one, client, now));
        turns.enter(two, ClientId::new(9), now);
        let order: Vec<_> = std::iter::from_fn(|| turns.next(now)).collect();
        assert_eq!(order, [0, 9, 1, 2, 3, 4].map(ClientId::new));
        // The default tenant's users are kept apart, those of others are not.
        assert_ne!(payer(TenantId::new(0), 1), payer(TenantId::new(0), 2));
        assert_eq!(payer(TenantId::new(1), 1), payer(TenantId::new(1), 2));
    }

    #[test]
    fn who_has_used_up_its_tokens_waits_alone() {
        let mut turns = Turns::default();
        let (one, two) = (payer(TenantId::new(1), 0), payer(TenantId::new(2), 0));
        turns.enter(one, ClientId::new(0), Duration::ZERO);
        turns.pay(one, FRAMES.burst + FRAMES.rate);
        turns.enter(two, ClientId::new(9), Duration::ZERO);
        assert_eq!((turns.next(Duration::ZERO), turns.next(Duration::ZERO)), (Some(ClientId::new(9)), None));
        let at = turns.wake_by().unwrap();
        assert!(at >= Duration::from_secs(1), "{at:?}");
        turns.sweep(at);
        assert_eq!(turns.next(at + Duration::from_millis(1)), Some(ClientId::new(0)));
        turns.sweep(at * 3);
        assert!(turns.payers.is_empty());
    }
}
