//! What a mover has to do, as whoever balances movers sees it.
use super::scheduler::{Place, WHOLE};
use super::Mover;
use crate::messages::Payer;
use crate::metrics::Metrics;
use std::sync::Arc;
use std::time::Duration;

/// All of a payer's weight, of which each mover has a part.
pub const WHOLE_WEIGHT: u32 = WHOLE;

/// What a channel has cost of late.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub place: Place,
    pub payer: Payer,
    pub weight: u64,
    /// In bytes, as the scheduler charges.
    pub cost: u64,
}

impl Mover {
    /// The time of its last step.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// What it counts.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// It has work again after it had none since then.
    pub(super) fn count_idle(&mut self, since: Duration) {
        let idle = self.now.saturating_sub(since);
        Metrics::add(&self.metrics.mover_idle_ns, idle.as_nanos() as u64);
    }

    /// What each of its channels has cost since the last time.
    pub fn take_loads(&mut self, loads: &mut Vec<Load>) {
        let Self { clients, scheduler, .. } = self;
        for (id, client) in clients.with_ids() {
            let (payer, weight) = (scheduler.payer(client.payer()), scheduler.weight(client.payer()));
            for channel in 0..client.channels_end() {
                let Some(cost) = client.channel(channel).map(|channel| channel.take_cost()) else { continue };
                loads.push(Load { place: (id, channel), payer, weight, cost });
            }
        }
    }

    /// How much of a payer's weight is for this mover, in [`WHOLE_WEIGHT`].
    pub fn set_part(&mut self, payer: Payer, part: u32) {
        self.scheduler.set_part(payer, part);
    }
}
