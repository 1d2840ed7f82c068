//! What goes to another mover, so that movers have the same to do and tenants get the same wherever their clients are. Arithmetic alone.
//!
//! A mover divides its time among payers by their weights. Two things are left to whoever places clients:
//!
//! - *Load.* While a mover has time left and another has none, what is to be evened out is how busy they are.
//! - *Weight.* While none has time left, it is the weights that ask for it: a payer's weight is divided among the movers that serve it, in
//!   proportion to what it costs there ([`parts`]), and each mover shall have the same sum of weights. A payer that has got less than its
//!   share of late ([`Lags`]) counts for more, so that payers which do not divide evenly take turns at having room.
use crate::hash::HashMap;
use std::hash::Hash;

/// Busier than this, a mover has no time left.
pub const SATURATED: f64 = 0.9;
/// Less busy than this, it has time for others.
pub const SPARE: f64 = 0.6;
/// Something goes only if it evens out this part of what a mover has on average.
const GAIN_MIN: f64 = 0.25;
/// A payer that gets this part of what another gets by its weight could do with more.
const HUNGRY: f64 = 0.8;
/// What is left of a lag after a round, and the most of it, in movers' time of a round.
const LAG_KEPT: f64 = 0.9;
const LAG_MAX: f64 = 2.0;

/// What goes or stays as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Place in [`View::busy`].
    pub mover: usize,
    /// Place in [`View::payers`].
    pub payer: usize,
    /// In bytes.
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

/// How things stand.
#[derive(Clone, Debug)]
pub struct View {
    /// How busy each mover was, from 0 to 1.
    pub busy: Vec<f64>,
    pub payers: Vec<Payer>,
    pub units: Vec<Unit>,
}

/// Units that go: each, and where to.
pub type Step = Vec<(usize, usize)>;

impl View {
    /// The next thing to do, which is done in the view as well.
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
            // What no unit asks for is as busy as it is.
            sums.clone_from(&self.busy);
        }
        let order = |a: &usize, b: &usize| sums[*a].total_cmp(&sums[*b]);
        let (most, least) = ((0..sums.len()).max_by(order)?, (0..sums.len()).min_by(order)?);
        let gap = sums[most] - sums[least];
        let movable = |mover| {
            let units = self.units.iter().enumerate();
            units.filter(move |(_, unit)| unit.mover == mover && unit.is_movable).map(|(at, _)| at)
        };
        // With what goes back in exchange: nothing, or one.
        let backs = movable(least).map(Some).filter(|_| !by_load).chain([None]);
        let backs: Vec<_> = backs.collect();
        let pairs = movable(most).flat_map(|there| backs.iter().map(move |&back| (there, back)));
        let left = |&(there, back): &(usize, Option<usize>)| {
            let moved = asks[there] - back.map_or(0.0, |back| asks[back]);
            // One without cost evens out nothing; all that there is only changes its place.
            (gap - 2.0 * moved).abs()
        };
        let best = pairs.min_by(|a, b| left(a).total_cmp(&left(b)))?;
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        if gap - left(&best) < GAIN_MIN * mean {
            return None;
        }
        let (there, back) = best;
        let step: Step = [(there, least)].into_iter().chain(back.map(|back| (back, most))).collect();
        if by_load {
            self.busy[most] -= asks[there];
            self.busy[least] += asks[there];
        }
        step.iter().for_each(|&(unit, to)| self.units[unit].mover = to);
        Some(step)
    }

    /// Costs of each payer, and of each mover.
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

    /// The part of each payer's weight that is for each mover, by payer and mover.
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

    /// What each payer has got more than its share of what movers without time left have given, in what one of them gives; for those that
    /// could do with more.
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
        // Nobody gets more than one mover for each thing that it has.
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

/// What payers have got less than their shares of late, in what a mover gives in a round.
#[derive(Debug)]
pub struct Lags<P>(HashMap<P, f64>);

impl<P> Default for Lags<P> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<P: Copy + Eq + Hash> Lags<P> {
    /// A round is over. Puts the lags into the view, whose payers are these.
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
