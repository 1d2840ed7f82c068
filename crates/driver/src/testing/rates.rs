//! Rates in a mover, compared with arithmetic, with a clock of the tests: B and C send each other as much as
//! their rates allow.
use super::*;
use crate::policy::budget::Budget;
use crate::policy::{Limits, Rate, Rates};

const MS: Duration = Duration::from_millis(1);

fn rate(per_second: u64, burst: u64, least: u64) -> Option<Rate> {
    Some(Rate { per_second, burst, least })
}

fn limit(world: &mut World, limits: Limits) -> Arc<Budget> {
    let budget = Budget::new(limits);
    world.inbox.send(ToMover::SetBudget { tenant: TenantId::new(1), budget: Arc::clone(&budget) });
    for flow in [B_TO_C, C_TO_B] {
        world.inbox.send(ToMover::SetTenant { flow, tenant: TenantId::new(1) });
    }
    world.rest();
    budget
}

/// Sends and receives as much as possible for `ms` milliseconds. Returns the bytes and sends that arrived in
/// each direction, by millisecond.
fn run_for(world: &mut World, ms: usize, message: u64) -> Vec<[(u64, u64); 2]> {
    let moved = |world: &World| {
        [0, 1].map(|peer| {
            let line = &world.peers[peer].lines[0];
            let done = world.parties[world.peers[peer].client.index()]
                .status_u64(line.slot, socket_status::SEND_CONSUMER);
            (world.peers[1 - peer].lines[0].received, done)
        })
    };
    let before = moved(world);
    let mut all = Vec::new();
    for _ in 0..ms {
        for _ in 0..4 {
            while world.send(0, 0, message) | world.send(1, 0, message) {}
            world.rest();
            world.receive(0, 0, RING_BYTES);
            world.receive(1, 0, RING_BYTES);
            world.rest();
        }
        let after = moved(world);
        all.push([0, 1].map(|at| (after[at].0 - before[at].0, after[at].1 - before[at].1)));
        world.pass(MS);
    }
    all
}

fn sum(moved: &[(u64, u64); 2]) -> (u64, u64) {
    (moved[0].0 + moved[1].0, moved[0].1 + moved[1].1)
}

/// Checks each millisecond against the rate, the burst and two leases, and the end against the rate.
fn keeps_to(rate: Rate, counts: &[u64]) {
    for (ms, &count) in counts.iter().enumerate() {
        let most = rate.burst + 2 * rate.lease() + rate.per_second * (ms as u64 + 1) / 1000;
        assert!(count <= most, "{count} of {most} after {ms} ms");
    }
    let (ms, last) = (counts.len() as u64, counts[counts.len() - 1]);
    let least = rate.per_second * ms / 1000 - 2 * rate.lease();
    assert!(last >= least, "{last} of {least} after {ms} ms");
}

#[test]
fn a_tenants_flows_share_its_bytes() {
    let mut world = World::new("cpu");
    let bytes = rate(1_000_000, 20_000, 4096);
    let tenant = Rates { bytes, messages: None };
    let budget = limit(&mut world, Limits { tenant, ..Limits::default() });
    let moved = run_for(&mut world, 1000, 3000);
    keeps_to(bytes.unwrap(), &moved.iter().map(|m| sum(m).0).collect::<Vec<_>>());
    for direction in moved.last().unwrap() {
        assert!(direction.0 > 300_000, "{moved:?}: one direction waits for the other", moved = moved.last());
    }
    assert!(budget.waits.load(Ordering::Relaxed) > 100);
    // Without limits, waiting flows go on at once, without a change of the clock.
    limit(&mut world, Limits::default());
    assert!(sum(&run_for(&mut world, 1, 3000)[0]).0 > 20_000);
    world.finish();
}

#[test]
fn a_tenants_flows_share_its_messages() {
    let mut world = World::new("cpu");
    let messages = rate(500, 5, 1);
    let tenant = Rates { bytes: None, messages };
    limit(&mut world, Limits { tenant, ..Limits::default() });
    let moved = run_for(&mut world, 1000, 64);
    keeps_to(messages.unwrap(), &moved.iter().map(|m| sum(m).1).collect::<Vec<_>>());
    assert!(moved.last().unwrap().iter().all(|direction| direction.1 > 150));
    limit(&mut world, Limits::default());
    world.finish();
}

#[test]
fn each_end_of_a_connection_has_its_own_rate() {
    let mut world = World::new("cpu");
    let (bytes, messages) = (rate(500_000, 10_000, 4096), rate(400, 4, 1));
    let connection = Rates { bytes, messages: None };
    limit(&mut world, Limits { connection, ..Limits::default() });
    let moved = run_for(&mut world, 500, 1000);
    for side in [0, 1] {
        keeps_to(bytes.unwrap(), &moved.iter().map(|m| m[side].0).collect::<Vec<_>>());
    }
    // New limits apply to existing connections, once the waiting sends have gone.
    limit(&mut world, Limits::default());
    while world.receive(0, 0, RING_BYTES) + world.receive(1, 0, RING_BYTES) > 0 {
        world.rest();
    }
    let connection = Rates { bytes: None, messages };
    limit(&mut world, Limits { connection, ..Limits::default() });
    let moved = run_for(&mut world, 500, 1000);
    for side in [0, 1] {
        keeps_to(messages.unwrap(), &moved.iter().map(|m| m[side].1).collect::<Vec<_>>());
    }
    limit(&mut world, Limits::default());
    world.finish();
}

/// A tenant has a low rate, and its connections lower ones: a flow that waits for its own tokens holds no other up.
#[test]
fn both_rates_hold_at_once() {
    let mut world = World::new("cpu");
    let (tenant_bytes, own_bytes) = (rate(300_000, 8192, 4096), rate(200_000, 8192, 4096));
    let limits = Limits {
        tenant: Rates { bytes: tenant_bytes, messages: None },
        connection: Rates { bytes: own_bytes, messages: rate(10_000, 100, 1) },
    };
    limit(&mut world, limits);
    let moved = run_for(&mut world, 1000, 500);
    keeps_to(tenant_bytes.unwrap(), &moved.iter().map(|m| sum(m).0).collect::<Vec<_>>());
    for side in [0, 1] {
        assert!(moved.last().unwrap()[side].0 <= 200_000 + 3 * 8192);
    }
    limit(&mut world, Limits::default());
    world.finish();
}

/// A client that dies while it waits for tokens, with others behind it, leaves nothing and holds nobody up.
#[test]
fn who_dies_waiting_stops_nobody() {
    let mut world = World::new("cpu");
    let tenant = Rates { bytes: rate(100_000, 8192, 4096), messages: None };
    limit(&mut world, Limits { tenant, ..Limits::default() });
    world.inbox.send(ToMover::SetTenant { flow: A_TO_B, tenant: TenantId::new(1) });
    for _ in 0..3 {
        let span = Span { region: 0, offset: 0, len: 5000 };
        world.request_on(0, Request::send(SocketId::new(0, GENERATION), span));
    }
    world.parties[0].ring_doorbell(0);
    world.rest();
    run_for(&mut world, 20, 3000);
    world.disconnect();
    let moved = run_for(&mut world, 1000, 3000);
    assert!(sum(moved.last().unwrap()).0 > 80_000, "{:?}", moved.last());
    limit(&mut world, Limits::default());
    world.finish();
}
