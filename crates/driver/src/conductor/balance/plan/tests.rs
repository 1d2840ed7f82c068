//! Model of movers that divide their time by weights, and of the shares of payers in the long run.
use super::*;
use proptest::prelude::*;

/// Time that each unit of a payer that is never satisfied would take in a round: more than there is.
const HUNGRY_UNIT: f64 = 100.0;

struct Model {
    weights: Vec<f64>,
    /// Payer, mover and demand of each unit.
    units: Vec<(usize, usize, f64)>,
    movers: usize,
    parts: Vec<Vec<f64>>,
    lags: Lags<usize>,
}

impl Model {
    /// Divides a round of each mover among its payers. Returns the time of each unit, and the load of each mover.
    fn round(&self) -> (Vec<f64>, Vec<f64>) {
        let (mut got, mut busy) = (vec![0.0; self.units.len()], vec![0.0; self.movers]);
        for (mover, busy) in busy.iter_mut().enumerate() {
            let here = |payer| move |unit: &&(usize, usize, f64)| unit.0 == payer && unit.1 == mover;
            let demand = |payer: usize| self.units.iter().filter(here(payer)).map(|unit| unit.2).sum::<f64>();
            let mut open: Vec<_> = (0..self.weights.len()).filter(|&payer| demand(payer) > 0.0).collect();
            let (mut left, mut of_payer) = (1.0, vec![0.0; self.weights.len()]);
            let weight = |payer: usize| self.weights[payer] * self.parts[payer][mover].max(1.0 / 32.0);
            loop {
                let level = left / open.iter().map(|&payer| weight(payer)).sum::<f64>();
                let full: Vec<_> =
                    open.iter().copied().filter(|&payer| demand(payer) <= weight(payer) * level).collect();
                if full.is_empty() {
                    open.iter().for_each(|&payer| of_payer[payer] = weight(payer) * level);
                    break;
                }
                for payer in full {
                    of_payer[payer] = demand(payer);
                    left -= demand(payer);
                    open.retain(|&other| other != payer);
                }
            }
            for (at, &(payer, at_mover, wanted)) in self.units.iter().enumerate() {
                if at_mover == mover && demand(payer) > 0.0 {
                    // A unit is one flow at a time: no more than a mover gives.
                    got[at] = of_payer[payer] * wanted / demand(payer);
                }
            }
            *busy = of_payer.iter().sum();
        }
        (got, busy)
    }

    /// Runs one round, and balances. Returns the time of each payer, and the number of units that moved.
    fn run(&mut self) -> (Vec<f64>, usize) {
        let (got, busy) = self.round();
        let units = self.units.iter().zip(&got);
        let units = units.map(|(&(payer, mover, _), &cost)| Unit {
            mover,
            payer,
            cost: cost * 1e9,
            is_movable: true,
        });
        let payers = self.weights.iter().map(|&weight| Payer { weight, lag: 0.0 }).collect();
        let mut view = View { busy, payers, units: units.collect() };
        let names: Vec<_> = (0..self.weights.len()).collect();
        self.lags.update(&names, &mut view);
        let mut went = 0;
        for _ in 0..4 {
            let Some(step) = view.step() else { break };
            went += step.len();
            step.into_iter().for_each(|(unit, to)| self.units[unit].1 = to);
        }
        self.parts = view.parts();
        let mut of_payer = vec![0.0; self.weights.len()];
        self.units.iter().zip(got).for_each(|(unit, got)| of_payer[unit.0] += got);
        (of_payer, went)
    }

    fn new(weights: Vec<f64>, units: Vec<(usize, usize, f64)>, movers: usize) -> Self {
        let parts = vec![vec![1.0; movers]; weights.len()];
        Self { weights, units, movers, parts, lags: Lags::default() }
    }

    /// Returns the mean time of each payer in a round, in the long run, and the number of units that moved.
    fn long_run(&mut self) -> (Vec<f64>, usize) {
        let (mut sums, mut went) = (vec![0.0; self.weights.len()], 0);
        (0..100).for_each(|_| drop(self.run()));
        for _ in 0..400 {
            let (got, moved) = self.run();
            sums.iter_mut().zip(got).for_each(|(sum, got)| *sum += got / 400.0);
            went += moved;
        }
        (sums, went)
    }
}

/// Checks the shares of payers that are never satisfied, each given by weight and number of units, which begin anywhere.
fn check_shares(movers: usize, payers: &[(u32, usize)], seed: u64) -> Result<(), TestCaseError> {
    let weights: Vec<_> = payers.iter().map(|&(weight, _)| f64::from(weight)).collect();
    let all: f64 = weights.iter().sum();
    let mut random = seed;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize
    };
    let of_payer = payers.iter().enumerate().flat_map(|(payer, &(_, count))| (0..count).map(move |_| payer));
    let units = of_payer.map(|payer| (payer, next() % movers, HUNGRY_UNIT)).collect();
    let (got, _) = Model::new(weights.clone(), units, movers).long_run();
    for (weight, got) in weights.iter().zip(&got) {
        let share = weight / all * movers as f64;
        prop_assert!((got / share - 1.0).abs() < 0.2, "{got} in place of {share}: {weights:?}, {got:?}");
    }
    Ok(())
}

/// From here no step gained a quarter of a mover, and one payer had half more than its share for good.
#[test]
fn small_gains_are_worth_a_step() {
    let payers = [(1, 7), (2, 4), (1, 3), (2, 4), (3, 6)];
    check_shares(2, &payers, 438_925_745_572_447_864).unwrap();
}

/// From here no step of the mover with most gained anything, and that of another one did.
#[test]
fn any_mover_may_have_a_step() {
    check_shares(3, &[(1, 4), (1, 3), (3, 3)], 3_139_716_720_009_378_839).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A payer gets its share of all movers, whatever mover its clients are on at first, and however many units it has.
    #[test]
    fn shares_do_not_depend_on_where_clients_are(
        movers in 2..4usize,
        payers in prop::collection::vec((1..4u32, 3..9usize), 3..6),
        seed: u64,
    ) {
        check_shares(movers, &payers, seed)?;
    }
}

/// Three payers of equal weight on two movers, with one unit each: no place is fair, so they take turns.
#[test]
fn three_on_two_movers_take_turns() {
    let units = vec![(0, 0, HUNGRY_UNIT), (1, 0, HUNGRY_UNIT), (2, 1, HUNGRY_UNIT)];
    let (got, went) = Model::new(vec![1.0; 3], units, 2).long_run();
    for got in &got {
        assert!((got - 2.0 / 3.0).abs() < 0.1, "{got:?}");
    }
    assert!(went > 0 && went < 500, "{went} moves in 400 rounds");
}

#[test]
fn many_channels_gain_nothing() {
    let many = (0..16).map(|at| (0, at % 2, HUNGRY_UNIT));
    let units = many.chain([(1, 0, HUNGRY_UNIT), (1, 1, HUNGRY_UNIT)]).collect();
    let (got, _) = Model::new(vec![1.0; 2], units, 2).long_run();
    assert!((got[0] - 1.0).abs() < 0.1 && (got[1] - 1.0).abs() < 0.1, "{got:?}");
}

#[test]
fn what_a_mover_has_no_time_for_goes_to_one_that_has() {
    let units = (0..4).map(|payer| (payer, 0, 0.4)).collect();
    let mut model = Model::new(vec![1.0; 4], units, 2);
    let (got, went) = model.long_run();
    assert!(got.iter().all(|got| *got > 0.39), "{got:?}");
    assert_eq!(went, 0, "all have what they want, and stay where they are");
}

#[test]
fn nothing_goes_where_nothing_is_gained() {
    // A single thing that fills a mover gains nothing by filling another.
    let mut lone = Model::new(vec![1.0], vec![(0, 0, HUNGRY_UNIT)], 3);
    assert_eq!(lone.long_run().1, 0);
    // Movers with time left are left alone.
    let mut idle = Model::new(vec![1.0; 3], vec![(0, 0, 0.2), (1, 0, 0.2), (2, 0, 0.2)], 2);
    assert_eq!(idle.long_run().1, 0);
}
