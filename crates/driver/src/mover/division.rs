//! Division of the caches among receive rings. Each payer has a share by its weight, which its rings divide among themselves. Many flows of
//! one payer make the rings of others no smaller.
use super::ring_sizing::Shares;
use super::scheduler::{PayerId, Scheduler};

/// Bytes of all receive rings together that stay in the caches through which copies go. The more flows there are, the smaller are their
/// rings.
pub const RINGS_BYTES: u64 = 4 << 20;
/// Smallest share of a ring.
const RING_BYTES_BUSY: u64 = 16 << 10;
/// Part of a previous number of rings that still counts after a tick. Short connections have rings for moments. Sizes by the number at each
/// moment would take all values, each in new memory.
const RINGS_FORGOTTEN: (u64, u64) = (3, 4);

/// See the module.
#[derive(Debug, Default)]
pub struct Division {
    parts: Vec<Part>,
    /// Sum of the weights of payers with rings.
    with_rings: u64,
    /// Sum of the weights of payers with busy flows.
    with_busy: u64,
}

#[derive(Debug, Default)]
struct Part {
    /// Receive rings that the payer's flows have or have asked for.
    rings: u64,
    /// Highest number of them of late.
    peak: u64,
    /// Flows that were busy from the last tick but one to the last.
    busy: u64,
    /// Flows found busy since the last tick.
    busy_now: u64,
    /// The payer's parts of the two sums.
    weights: (u64, u64),
}

impl Division {
    /// Counts one more ring of the payer, which the scheduler holds until [`Self::give`]. Returns the bytes that the ring may have.
    pub fn take(&mut self, scheduler: &mut Scheduler, payer: PayerId) -> u64 {
        scheduler.hold(payer);
        if self.parts.len() <= payer as usize {
            self.parts.resize_with(payer as usize + 1, Part::default);
        }
        let part = &mut self.parts[payer as usize];
        part.rings += 1;
        part.peak = part.peak.max(part.rings);
        if part.weights.0 == 0 {
            part.weights.0 = scheduler.weight(payer);
            self.with_rings += part.weights.0;
        }
        (RINGS_BYTES * part.weights.0 / self.with_rings / part.peak).max(RING_BYTES_BUSY)
    }

    /// Counts one ring less.
    pub fn give(&mut self, scheduler: &mut Scheduler, payer: PayerId) {
        self.parts[payer as usize].rings -= 1;
        scheduler.let_go(payer);
    }

    /// Updates the sums at each tick, before flows are looked at.
    pub fn tick(&mut self, scheduler: &Scheduler) {
        (self.with_rings, self.with_busy) = (0, 0);
        for (payer, part) in self.parts.iter_mut().enumerate() {
            part.peak = part.rings.max(part.peak * RINGS_FORGOTTEN.0 / RINGS_FORGOTTEN.1);
            part.busy = std::mem::take(&mut part.busy_now);
            let weight = |is: bool| if is { scheduler.weight(payer as PayerId) } else { 0 };
            part.weights = (weight(part.peak > 0), weight(part.busy > 0));
            self.with_rings += part.weights.0;
            self.with_busy += part.weights.1;
        }
    }

    /// Returns the bytes that each of the payer's rings may have.
    pub fn shares(&self, payer: PayerId) -> Shares {
        let part = &self.parts[payer as usize];
        let of = |weight: u64, all: u64| RINGS_BYTES * weight / all.max(1);
        let busy = if part.busy > 0 { of(part.weights.1, self.with_busy) } else { RINGS_BYTES };
        Shares::new((of(part.weights.0, self.with_rings), part.peak), (busy, part.busy))
    }

    /// Records that a flow of the payer was busy since the last tick.
    pub fn note_busy(&mut self, payer: PayerId) {
        self.parts[payer as usize].busy_now += 1;
    }

    /// Tells whether previous rings still count.
    pub fn remembers(&self) -> bool {
        self.parts.iter().any(|part| part.peak > part.rings)
    }

    /// Pretends that `flows` flows of each payer with rings were busy.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn pretend_busy(&mut self, flows: u64) {
        self.parts.iter_mut().filter(|part| part.rings > 0).for_each(|part| part.busy_now = flows);
    }

    /// Returns the number of rings, and the highest number of late.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn rings(&self) -> (u64, u64) {
        self.parts.iter().fold((0, 0), |sum, part| (sum.0 + part.rings, sum.1 + part.peak))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::messages::payer;

    #[test]
    fn many_rings_of_one_payer_make_those_of_others_no_smaller() {
        let (mut scheduler, mut division) = (Scheduler::default(), Division::default());
        let (one, two) =
            (scheduler.enter(payer(TenantId::new(0), 1)), scheduler.enter(payer(TenantId::new(0), 2)));
        assert_eq!(division.take(&mut scheduler, one), RINGS_BYTES);
        for _ in 0..99 {
            division.take(&mut scheduler, one);
        }
        assert_eq!(division.take(&mut scheduler, one), RINGS_BYTES / 101);
        assert_eq!(division.take(&mut scheduler, two), RINGS_BYTES / 2);
        assert_eq!(division.take(&mut scheduler, one), RINGS_BYTES / 2 / 102);
        for _ in 0..200 {
            division.take(&mut scheduler, one);
        }
        assert_eq!(division.take(&mut scheduler, one), RING_BYTES_BUSY);
        scheduler.set_weight(TenantId::new(0), 3);
        division.note_busy(two);
        division.tick(&scheduler);
        // Weights are equal, whatever they are. One of the payers is busy.
        let same = Shares::new((RINGS_BYTES / 2, 1), (RINGS_BYTES, 1));
        assert_eq!(format!("{:?}", division.shares(two)), format!("{same:?}"));
        (0..303).for_each(|_| division.give(&mut scheduler, one));
        division.give(&mut scheduler, two);
        (0..40).for_each(|_| division.tick(&scheduler));
        assert_eq!((division.rings(), division.remembers()), ((0, 0), false));
        assert_eq!(division.take(&mut scheduler, two), RINGS_BYTES);
    }

    #[test]
    fn shares_go_by_weight() {
        let (mut scheduler, mut division) = (Scheduler::default(), Division::default());
        scheduler.set_weight(TenantId::new(7), 3);
        let (one, heavy) =
            (scheduler.enter(payer(TenantId::new(1), 0)), scheduler.enter(payer(TenantId::new(7), 0)));
        division.take(&mut scheduler, one);
        assert_eq!(division.take(&mut scheduler, heavy), RINGS_BYTES * 3 / 4);
        division.tick(&scheduler);
        let shares = Shares::new((RINGS_BYTES / 4, 1), (RINGS_BYTES, 1));
        assert_eq!(format!("{:?}", division.shares(one)), format!("{shares:?}"));
    }
}
