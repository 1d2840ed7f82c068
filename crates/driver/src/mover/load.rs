//! Load of a mover, for the balance of movers.
use super::scheduler::{Place, WHOLE};
use super::Mover;
use crate::messages::Payer;
use crate::metrics::Metrics;
use std::sync::Arc;
use std::time::Duration;

/// Whole weight of a payer, of which each mover has a part.
pub const WHOLE_WEIGHT: u32 = WHOLE;

/// Cost of a channel of late.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub place: Place,
    pub payer: Payer,
    pub weight: u64,
    /// Cost in bytes, as the scheduler charges.
    pub cost: u64,
}

impl Mover {
    /// Returns the time of the last step.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns the mover's counters.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Counts the idle time since `since`, when there is work again.
    pub(super) fn count_idle(&mut self, since: Duration) {
        let idle = self.now.saturating_sub(since);
        Metrics::add(&self.metrics.mover_idle_ns, idle.as_nanos() as u64);
    }

    /// Takes the costs of all its channels since the last time.
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

    /// Sets the part of a payer's weight that is for this mover, in [`WHOLE_WEIGHT`].
    pub fn set_part(&mut self, payer: Payer, part: u32) {
        self.scheduler.set_part(payer, part);
    }
}
