//! Choice of the units that go to another mover. Movers get the same work, and tenants the same service, wherever their clients are.
//! Arithmetic alone.
//!
//! A mover divides its time among payers by their weights. The placement of clients evens out the rest:
//!
//! - *Load*, while a mover has time left and another has none.
//! - *Weight*, while none has time left. A payer's weight is divided among the movers that serve it, in proportion to its cost there
//!   ([`View::parts`]). Each mover is to have the same sum of weights. A payer that has got less than its share of late ([`Lags`]) counts
//!   for more. Payers that do not divide evenly thus take turns at having room.
use crate::hash::HashMap;
use std::hash::Hash;

/// Load from which on a mover has no time left.
pub const SATURATED: f64 = 0.9;
/// Load below which a mover has time for others.
pub const SPARE: f64 = 0.6;
/// Least gain of a step, as a part of the mean load of a mover. With 0.25, one of some thousand
/// random sets of payers had no step left although one got half more than its share.
const GAIN_MIN: f64 = 0.15;
/// Part of the highest amount by weight, at a mover, from which on a payer wants more.
const HUNGRY: f64 = 0.8;
/// Part of a lag that is left after a round.
const LAG_KEPT: f64 = 0.9;
/// Most of a lag, in movers' time of a round.
const LAG_MAX: f64 = 2.0;

/// Channels that move as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Index in [`View::busy`].
    pub mover: usize,
    /// Index in [`View::payers`].
    pub payer: usize,
    /// Cost in bytes.
    pub cost: f64,
    pub is_movable: bool,
}

/// A payer.
#[derive(Clone, Copy, Debug)]
pub struct Payer {
    pub weight: f64,
    /// See [`Lags`].
    pub lag: f64,
}

/// State of movers, payers and units.
#[derive(Clone, Debug)]
pub struct View {
    /// Load of each mover, from 0 to 1.
    pub busy: Vec<f64>,
    pub payers: Vec<Payer>,
    pub units: Vec<Unit>,
}

/// Units that move, each with its new mover.
pub type Step = Vec<(usize, usize)>;

impl View {
    /// Returns the next step, which is taken in the view as well.
    pub fn step(&mut self) -> Option<Step> {
        let by_load = self.busy.iter().any(|&busy| busy < SPARE);
        if by_load && self.busy.iter().all(|&busy| busy < SATURATED) {
            return None;
        }
        let costs = self.costs();
        let asks: Vec<f64> = self.units.iter().map(|unit| self.asks(unit, &costs, by_load)).collect();
        let mut sums = vec![0.0; self.busy.len()];
        self.units.iter().zip(&asks).for_each(|(unit, asks)| sums[unit.mover] += asks);
        if by_load {
            // Load that no unit accounts for counts as well.
            sums.clone_from(&self.busy);
        }
        let mut movers: Vec<usize> = (0..sums.len()).collect();
        movers.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
        let least = movers.pop()?;
        // A step of the mover with most may gain nothing where one of another mover does.
        let tried = if by_load { 1 } else { movers.len() };
        let gain_min = GAIN_MIN * sums.iter().sum::<f64>() / sums.len() as f64;
        let mut steps = movers.into_iter().take(tried).filter_map(|most| {
            let (there, back, gain) = self.best(most, least, sums[most] - sums[least], &asks, by_load)?;
            (gain >= gain_min).then_some((most, there, back))
        });
        let (most, there, back) = steps.next()?;
        let step: Step = [(there, least)].into_iter().chain(back.map(|back| (back, most))).collect();
        if by_load {
            self.busy[most] -= asks[there];
            self.busy[least] += asks[there];
        }
        step.iter().for_each(|&(unit, to)| self.units[unit].mover = to);
        Some(step)
    }

    /// Returns the best step from one mover to another, which has `gap` less: the unit that goes, one that comes back in exchange, if any,
    /// and the gain.
    fn best(
        &self,
        most: usize,
        least: usize,
        gap: f64,
        asks: &[f64],
        by_load: bool,
    ) -> Option<(usize, Option<usize>, f64)> {
        let movable = |mover| {
            let units = self.units.iter().enumerate();
            units.filter(move |(_, unit)| unit.mover == mover && unit.is_movable).map(|(at, _)| at)
        };
        let backs: Vec<_> = movable(least).map(Some).filter(|_| !by_load).chain([None]).collect();
        let pairs = movable(most).flat_map(|there| backs.iter().map(move |&back| (there, back)));
        let left = |&(there, back): &(usize, Option<usize>)| {
            let moved = asks[there] - back.map_or(0.0, |back| asks[back]);
            // A unit without cost evens out nothing. A unit as large as the gap only changes its place.
            (gap - 2.0 * moved).abs()
        };
        let best = pairs.min_by(|a, b| left(a).total_cmp(&left(b)))?;
        Some((best.0, best.1, gap - left(&best)))
    }

    /// Returns the costs of each payer, and of each mover.
    fn costs(&self) -> (Vec<f64>, Vec<f64>) {
        let (mut of_payers, mut of_movers) = (vec![0.0; self.payers.len()], vec![0.0; self.busy.len()]);
        for unit in &self.units {
            of_payers[unit.payer] += unit.cost;
            of_movers[unit.mover] += unit.cost;
        }
        (of_payers, of_movers)
    }

    fn asks(&self, unit: &Unit, costs: &(Vec<f64>, Vec<f64>), by_load: bool) -> f64 {
        let part = |of: f64| if of > 0.0 { unit.cost / of } else { 0.0 };
        if by_load {
            return part(costs.1[unit.mover]) * self.busy[unit.mover];
        }
        let Payer { weight, lag } = self.payers[unit.payer];
        weight * (1.0 + lag.clamp(-0.5, LAG_MAX)) * part(costs.0[unit.payer])
    }

    /// Returns the part of each payer's weight that is for each mover, by payer and mover.
    pub fn parts(&self) -> Vec<Vec<f64>> {
        let (of_payers, _) = self.costs();
        let mut parts = vec![vec![0.0; self.busy.len()]; self.payers.len()];
        for unit in &self.units {
            let units = self.units.iter().filter(|other| other.payer == unit.payer).count();
            let cost = of_payers[unit.payer];
            parts[unit.payer][unit.mover] += if cost > 0.0 { unit.cost / cost } else { 1.0 / units as f64 };
        }
        parts
    }

    /// Returns the surplus of each payer that wants more. A surplus is the amount beyond the payer's share of the work of movers without
    /// time left, in units of one such mover's work.
    fn surplus(&self) -> Vec<Option<f64>> {
        let saturated = |mover: usize| self.busy[mover] >= SATURATED;
        let (mut got, mut most_by_weight) = (vec![vec![0.0; self.busy.len()]; self.payers.len()], 0.0_f64);
        let parts = self.parts();
        self.units.iter().for_each(|unit| got[unit.payer][unit.mover] += unit.cost);
        let by_weight = |payer: usize, mover: usize| {
            let weight = self.payers[payer].weight * parts[payer][mover];
            if weight > 0.0 {
                got[payer][mover] / weight
            } else {
                0.0
            }
        };
        let mut levels = vec![0.0_f64; self.busy.len()];
        for (mover, level) in levels.iter_mut().enumerate() {
            *level = (0..self.payers.len()).map(|payer| by_weight(payer, mover)).fold(0.0, f64::max);
            most_by_weight = most_by_weight.max(*level);
        }
        let is_hungry = |payer: usize| {
            let is = |mover: usize| {
                saturated(mover) && levels[mover] > 0.0 && by_weight(payer, mover) >= HUNGRY * levels[mover]
            };
            (0..self.busy.len()).any(is)
        };
        let total = |payer: usize| got[payer].iter().sum::<f64>();
        let hungry: Vec<usize> = (0..self.payers.len()).filter(|&payer| is_hungry(payer)).collect();
        let movers = (0..self.busy.len()).filter(|&mover| saturated(mover)).count().max(1);
        let one = hungry.iter().map(|&payer| total(payer)).sum::<f64>() / movers as f64;
        // A payer gets at most one mover for each unit that it has.
        let units =
            |payer: usize| self.units.iter().filter(|unit| unit.payer == payer && unit.cost > 0.0).count();
        let mut shares = vec![None; self.payers.len()];
        let (mut open, mut left) = (hungry.clone(), one * movers as f64);
        loop {
            let weights: f64 = open.iter().map(|&payer| self.payers[payer].weight).sum();
            let level = left / weights.max(f64::MIN_POSITIVE);
            let most = |payer: usize| one * units(payer) as f64;
            let full: Vec<_> =
                open.iter().copied().filter(|&p| self.payers[p].weight * level > most(p) * 1.0001).collect();
            if full.is_empty() {
                open.iter().for_each(|&payer| shares[payer] = Some(self.payers[payer].weight * level));
                break;
            }
            for payer in full {
                shares[payer] = Some(most(payer));
                left -= most(payer);
                open.retain(|&other| other != payer);
            }
        }
        let surplus = |payer: usize| shares[payer].map(|share: f64| (total(payer) - share) / one.max(1.0));
        (0..self.payers.len()).map(surplus).collect()
    }
}

/// Amounts by which payers have got less than their shares of late. The unit is a mover's work in a round.
#[derive(Debug)]
pub struct Lags<P>(HashMap<P, f64>);

impl<P> Default for Lags<P> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<P: Copy + Eq + Hash> Lags<P> {
    /// Updates the lags after a round, and puts them into the view. `payers` are the view's.
    pub fn update(&mut self, payers: &[P], view: &mut View) {
        let surplus = view.surplus();
        self.0.retain(|payer, _| payers.contains(payer));
        for ((payer, state), surplus) in payers.iter().zip(&mut view.payers).zip(surplus) {
            let lag = self.0.entry(*payer).or_default();
            *lag = (*lag * LAG_KEPT - surplus.unwrap_or(0.0)).clamp(-LAG_MAX, LAG_MAX);
            state.lag = *lag;
        }
    }
}

#[cfg(test)]
mod tests;
