//! Tests of the scheduler against arithmetic: the charge of each payer, whatever its work.
use super::*;
use crate::messages::payer;
use proptest::prelude::*;

/// Work of a payer: flows by the bytes of their sends, and channels by the requests that each look finds.
#[derive(Clone, Debug)]
struct Load {
    weight: u32,
    flows: Vec<u64>,
    channels: Vec<u64>,
    /// Picoseconds of a charged byte; 0 if nothing is measured.
    byte_ps: u64,
    /// Number of further requests of each look, for the conductor, and the nanoseconds of each.
    controls: (u64, u64),
}

impl Load {
    fn new(flows: Vec<u64>, channels: Vec<u64>) -> Self {
        Self { weight: 1, flows, channels, byte_ps: 0, controls: (0, 0) }
    }
}

struct World {
    scheduler: Scheduler,
    loads: Vec<(PayerId, Load)>,
    /// Bytes charged, by payer.
    charged: Vec<u64>,
    /// Turns of each flow, by payer.
    turns: Vec<Vec<u64>>,
    /// Time taken, by payer.
    took: Vec<Duration>,
}

impl World {
    fn new(loads: Vec<Load>) -> Self {
        let mut scheduler = Scheduler::default();
        let mut world = Vec::new();
        for (at, load) in loads.into_iter().enumerate() {
            scheduler.set_weight(TenantId::new(at as u16 + 1), load.weight);
            let id = scheduler.enter(payer(TenantId::new(at as u16 + 1), 0));
            // A flow's number holds its payer and its index. The client of a channel is its payer.
            (0..load.flows.len()).for_each(|flow| scheduler.add_flow(id, FlowId::at(at << 16 | flow)));
            (0..load.channels.len())
                .for_each(|channel| scheduler.add_channel(id, (ClientId::at(at), channel)));
            world.push((id, load));
        }
        let (charged, turns) =
            (vec![0; world.len()], world.iter().map(|(_, load)| vec![0; load.flows.len()]).collect());
        let took = vec![Duration::ZERO; world.len()];
        Self { scheduler, loads: world, charged, turns, took }
    }

    /// Takes a step of a mover that copies by itself. Returns the bytes charged.
    fn step(&mut self) -> u64 {
        let before = self.charged.iter().sum::<u64>();
        let mut asked = vec![0; self.loads.len()];
        for _ in 0..self.scheduler.begin_step() {
            if self.scheduler.is_step_over() {
                break;
            }
            let Some(turn) = self.scheduler.begin() else { break };
            let at = self.loads.iter().position(|(id, _)| *id == turn.payer).unwrap();
            let charged_before = self.charged[at];
            for _ in 0..self.scheduler.channel_count(turn.payer) {
                let Some(place) = self.scheduler.next_channel(&turn) else { break };
                self.charge(at, self.loads[at].1.channels[place.1].max(1) * REQUEST_BYTES);
                let controls = self.loads[at].1.controls.0;
                (0..controls).for_each(|_| self.scheduler.owe_control());
                self.scheduler.charge_requests(turn.payer, 0);
                asked[at] += controls;
                self.scheduler.add_channel(turn.payer, place);
            }
            let ready = self.scheduler.flow_count(turn.payer);
            for _ in 0..if turn.alone { ready } else { usize::MAX } {
                let Some((flow, bytes)) = self.scheduler.next_flow(&turn) else { break };
                let (owner, flow_at) = (flow.index() >> 16, flow.index() & 0xFFFF);
                assert_eq!(owner, at, "a flow of another payer's");
                let (message, mut moved, mut messages) = (self.loads[at].1.flows[flow_at], 0, 0);
                while moved < bytes && messages < 128 {
                    moved = (moved + message).min(bytes);
                    messages += 1;
                }
                self.turns[at][flow_at] += 1;
                self.charge(at, moved + (messages + 1) * REQUEST_BYTES);
                self.scheduler.add_flow(turn.payer, flow);
            }
            let took = (self.charged[at] - charged_before) * self.loads[at].1.byte_ps / 1000;
            let took = Duration::from_nanos(took);
            self.took[at] += took;
            if turn.is_timed {
                self.scheduler.settle(&turn, took);
            }
            self.scheduler.end(&turn, false);
        }
        self.take_turn(&asked);
        self.charged.iter().sum::<u64>() - before
    }

    /// Takes the conductor's part of a step.
    fn take_turn(&mut self, asked: &[u64]) {
        let mut all = Duration::ZERO;
        for (at, (count, (_, load))) in asked.iter().zip(&self.loads).enumerate() {
            let took = Duration::from_nanos(count * load.controls.1);
            self.took[at] += took;
            all += took;
        }
        if self.scheduler.has_controls() {
            self.scheduler.settle_controls(all);
        }
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| assert!(self.step() > 0));
    }

    fn charge(&mut self, at: usize, bytes: u64) {
        self.charged[at] += bytes;
        self.scheduler.charge(self.loads[at].0, bytes);
    }

    /// Returns Jain's index of the bytes that payers were charged for their weights: 1 if all got the same.
    fn jain(&self) -> f64 {
        self.jain_of(self.charged.iter().map(|&charged| charged as f64))
    }

    /// Returns Jain's index of their time.
    fn jain_of_time(&self) -> f64 {
        self.jain_of(self.took.iter().map(Duration::as_secs_f64))
    }

    fn jain_of(&self, amounts: impl Iterator<Item = f64>) -> f64 {
        let shares = amounts.zip(&self.loads);
        let shares: Vec<f64> = shares.map(|(amount, (_, load))| amount / f64::from(load.weight)).collect();
        let (sum, squares) = (shares.iter().sum::<f64>(), shares.iter().map(|x| x * x).sum::<f64>());
        sum * sum / (shares.len() as f64 * squares)
    }
}

fn load() -> impl Strategy<Value = Load> {
    let message = prop_oneof![1u64..4096, 4096u64..262_144, 262_144u64..4_000_000];
    let requests = prop_oneof![Just(0u64), 1u64..=64];
    let (flows, channels) = (prop::collection::vec(message, 1..40), prop::collection::vec(requests, 0..80));
    (1u32..=10, flows, channels)
        .prop_map(|(weight, flows, channels)| Load { weight, ..Load::new(flows, channels) })
}

/// Generates loads of which a byte takes from a tenth of the usual time to five times.
fn timed_load() -> impl Strategy<Value = Load> {
    (load(), 20u64..1000).prop_map(|(load, byte_ps)| Load { byte_ps, ..load })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Payers get bytes by weight, whatever their work. Each flow of a payer has turns, and each step does something.
    #[test]
    fn payers_get_what_they_weigh(loads in prop::collection::vec(load(), 2..12)) {
        let weights: u64 = loads.iter().map(|load| u64::from(load.weight)).sum();
        let mut world = World::new(loads);
        let mut left = 400 * weights * TURN_BYTES;
        while left > 0 {
            let did = world.step();
            prop_assert!(did > 0, "there is something to do, and nothing is done");
            prop_assert!(did <= STEP_BYTES + 2 * TURN_BYTES, "a step of {did} bytes");
            left = left.saturating_sub(did);
        }
        prop_assert!(world.jain() >= 0.99, "{} {:?}", world.jain(), world.charged);
        for turns in &world.turns {
            let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
            prop_assert!(*least > 0 && most - least <= 1, "{turns:?}");
        }
    }

    /// Payers get time by weight, whatever their bytes take: up to six times as long as another's.
    #[test]
    fn payers_get_the_time_that_they_weigh(loads in prop::collection::vec(timed_load(), 2..8)) {
        let least = loads.iter().map(|load| load.byte_ps).min().unwrap();
        let loads: Vec<_> =
            loads.into_iter().map(|load| Load { byte_ps: load.byte_ps.min(least * 6), ..load }).collect();
        let weights: u64 = loads.iter().map(|load| u64::from(load.weight)).sum();
        let mut world = World::new(loads);
        let mut left = 2000 * weights * TURN_BYTES;
        // All payers may be in debt by some turns at once before a price is known.
        let (mut steps, mut without) = (0, 0);
        while left > 0 {
            let did = world.step();
            (steps, without) = (steps + 1, without + u64::from(did == 0));
            prop_assert!(without <= 64 + steps / 20, "{without} of {steps} steps do nothing");
            left = left.saturating_sub(did);
        }
        prop_assert!(world.jain_of_time() >= 0.99, "{} {:?}", world.jain_of_time(), world.took);
        for turns in &world.turns {
            let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
            prop_assert!(*least > 0 && most - least <= 1, "{turns:?}");
        }
    }
}

/// Work of a conductor in the mover's thread is charged by its time.
#[test]
fn requests_that_take_the_conductor_long_are_few() {
    let busy = Load { byte_ps: 200, ..Load::new(vec![1 << 20], vec![]) };
    for ns in [500, 5_000, 50_000] {
        let asking = Load { byte_ps: 200, controls: (64, ns), ..Load::new(vec![], vec![0; 8]) };
        let mut world = World::new(vec![busy.clone(), asking]);
        world.steps(6000);
        let shares = world.took.iter().map(Duration::as_secs_f64).collect::<Vec<_>>();
        assert!(shares[0] >= 0.47 * (shares[0] + shares[1]), "{ns} ns each: {shares:?}");
    }
}

#[test]
fn a_payer_with_channels_only_pays_for_requests_and_looks() {
    let busy = Load::new(vec![1 << 20], vec![]);
    for requests in [0, 64] {
        let idle = Load::new(vec![], vec![requests; 4096]);
        let mut world = World::new(vec![busy.clone(), idle]);
        world.steps(4000);
        assert!(world.charged[0] * 100 >= world.charged[1] * 99, "{:?}", world.charged);
    }
}

#[test]
fn debts_are_paid_before_the_next_turn_and_forgiven_to_who_is_alone() {
    let load = Load::new(vec![1 << 20], vec![]);
    let mut world = World::new(vec![load.clone(), load.clone()]);
    world.charge(0, 100 * TURN_BYTES);
    world.steps(90);
    assert_eq!(world.turns[0][0], 0);
    world.steps(100);
    assert!(world.jain() > 0.99, "{:?}", world.charged);
    let mut world = World::new(vec![load]);
    world.charge(0, 100 * TURN_BYTES);
    assert!(world.step() >= TURN_BYTES);
}

#[test]
fn who_is_interrupted_goes_on_with_what_is_left() {
    let mut scheduler = Scheduler::default();
    let (one, two) =
        (scheduler.enter(payer(TenantId::new(1), 0)), scheduler.enter(payer(TenantId::new(2), 0)));
    (0..2).map(FlowId::new).for_each(|flow| scheduler.add_flow(one, flow));
    scheduler.add_flow(two, FlowId::new(9));
    let turn = scheduler.begin().unwrap();
    let (flow, bytes) = scheduler.next_flow(&turn).unwrap();
    assert_eq!((turn.payer, flow, bytes), (one, FlowId::new(0), TURN_BYTES));
    scheduler.charge(one, 1000);
    scheduler.end(&turn, true);
    let turn = scheduler.begin().unwrap();
    assert_eq!((turn.payer, scheduler.next_flow(&turn)), (one, Some((FlowId::new(1), TURN_BYTES - 1000))));
}

#[test]
fn payers_are_forgotten_with_all_that_holds_them() {
    let mut scheduler = Scheduler::default();
    let one = scheduler.enter(payer(TenantId::new(0), 1));
    assert_eq!(
        (scheduler.enter(payer(TenantId::new(0), 1)), scheduler.enter(payer(TenantId::new(5), 1))),
        (one, one + 1)
    );
    scheduler.add_flow(one, FlowId::new(3));
    (0..2).for_each(|_| scheduler.let_go(one));
    assert!(scheduler.known.contains_key(&payer(TenantId::new(0), 1)), "a flow of its is ready");
    let turn = scheduler.begin().unwrap();
    assert_eq!(scheduler.next_flow(&turn).map(|(flow, _)| flow), Some(FlowId::new(3)));
    scheduler.end(&turn, false);
    assert!(!scheduler.known.contains_key(&payer(TenantId::new(0), 1)));
    assert_eq!(scheduler.enter(payer(TenantId::new(0), 7)), one, "its place is another's");
}

/// A mover without a thread has no turn in which the payer could be forgotten.
#[test]
fn a_payer_of_nobody_is_forgotten_at_once() {
    let mut scheduler = Scheduler::default();
    let before = scheduler.payers();
    let place = (ClientId::new(3), 0);
    let id = scheduler.enter(payer(TenantId::new(1), 0));
    scheduler.add_channel(id, place);
    scheduler.drop_channels(id, place.0);
    scheduler.let_go(id);
    assert_eq!((scheduler.payers(), scheduler.begin_step()), (before, 0));
    // A payer in its own turn is forgotten when the turn ends.
    let id = scheduler.enter(payer(TenantId::new(1), 0));
    scheduler.add_channel(id, place);
    let turn = scheduler.begin().unwrap();
    assert_eq!(scheduler.next_channel(&turn), Some(place));
    scheduler.let_go(id);
    assert_eq!(scheduler.payers(), before + 1);
    scheduler.end(&turn, false);
    assert_eq!((scheduler.payers(), scheduler.begin_step()), (before, 0));
}

#[test]
fn what_is_done_beside_a_turn_is_its_payers_and_ends_in_a_bounded_debt() {
    let mut scheduler = Scheduler::default();
    let [sender, observer] = [1, 2].map(|tenant| payer(TenantId::new(tenant), 0));
    let ids = [sender, observer].map(|payer| scheduler.enter(payer));
    for (at, id) in ids.into_iter().enumerate() {
        scheduler.add_flow(id, FlowId::at(at));
    }
    scheduler.begin_step();
    let turn = scheduler.begin().unwrap();
    scheduler.charge(turn.payer, 1000);
    let credit = scheduler.entries[turn.payer as usize].credit;
    (0..10).for_each(|_| scheduler.charge_beside(observer, STEP_BYTES));
    assert_eq!(scheduler.entries[turn.payer as usize].credit, credit, "the sender pays for what it moves");
    assert_eq!(scheduler.entries[ids[1] as usize].credit, -(STEP_BYTES as i64));
    assert!(scheduler.is_step_over());
    // A payer that the mover does not know is not charged.
    scheduler.charge_beside(payer(TenantId::new(3), 0), 1000);
    scheduler.charge_beside(DRIVER, 1000);
}
