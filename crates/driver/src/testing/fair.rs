//! Cost of a client that asks without end to others, in turns of the mover.
use super::*;
use crate::mover::testing::{CONTROL_BYTES, TURN_BYTES};
use std::cell::RefCell;

/// Returns the turns in which B and C send each other `bytes`, while A acts in each.
fn turns(world: &mut World, bytes: u64, mut hostile: impl FnMut(&mut World)) -> usize {
    let goals = [world.peers[0].lines[0].received + bytes, world.peers[1].lines[0].received + bytes];
    for turn in 0..TURNS_MAX {
        if world.peers[0].lines[0].received >= goals[0] && world.peers[1].lines[0].received >= goals[1] {
            return turn;
        }
        for peer in [0, 1] {
            while world.send(peer, 0, 3000) {}
            world.receive(peer, 0, u64::MAX);
        }
        hostile(world);
        world.step();
    }
    panic!("B and C come no further");
}

/// Fills A's request rings.
fn ask(world: &mut World) {
    for channel in 0..CHANNELS_OF_A {
        let at = channel_offset(channel) + channel_status::REQUEST_CONSUMER;
        let taken = world.parties[0].status.load_u64(at, Ordering::Acquire);
        while world.published[channel] - taken < REQUEST_RING_ENTRIES {
            let request = Request { operation: Operation::Close as u8, ..Request::default() };
            world.request_on(channel, request);
        }
        world.parties[0].ring_doorbell(channel);
    }
}

#[test]
fn requests_without_end_hold_up_nobody() {
    let mut world = World::new("cpu");
    let alone = turns(&mut world, 1 << 20, |_| {});
    let beside = turns(&mut world, 1 << 20, ask);
    assert!(beside <= alone + alone / 4 + 8, "{beside} turns, {alone} without");
    let taken = world.published.iter().sum::<u64>();
    assert!(taken >= beside as u64 * 64, "{taken} requests in {beside} turns");
    world.finish();
}

/// Forwards the messages that the mover keeps for a conductor of its own thread. Counts A's requests among them.
fn pass_on(world: &mut World, asked: &mut u64) {
    let mut kept = VecDeque::new();
    world.mover.take_messages(&mut kept);
    for item in kept {
        *asked += u64::from(matches!(item, ToConductor::Control { .. }));
        world.outbox.send(item);
    }
}

#[test]
fn requests_that_the_conductor_carries_out_cost_their_time() {
    let mut world = World::new("cpu");
    let mailbox = world.mover.tell_by(Outbox::Kept(RefCell::default()));
    let (mut asked, mut steps) = (0, 0);
    turns(&mut world, 1 << 20, |world| {
        ask(world);
        pass_on(world, &mut asked);
        steps += 1;
    });
    pass_on(&mut world, &mut asked);
    world.mover.tell_by(mailbox);
    assert!(asked * CONTROL_BYTES <= steps * TURN_BYTES, "{asked} requests in {steps} turns of each");
    assert!(asked >= steps, "{asked} requests in {steps} turns of each");
    world.finish();
}

/// Requests in A's channels are taken as fast as the others' turns allow, whoever pays.
#[test]
fn a_client_changes_its_payer_while_it_asks() {
    let mut world = World::new("fault:seed=1,fail=200,delay=3,reorder");
    let mut number = 0;
    turns(&mut world, 1 << 20, |world| {
        ask(world);
        number += 1;
        world.inbox.send(ToMover::SetPayer { client: A, payer: payer(TenantId::new(number % 3), 0) });
        world.inbox.send(ToMover::SetWeight {
            tenant: TenantId::new(number % 3),
            weight: u32::from(number) % WEIGHT_MAX + 1,
        });
    });
    world.rest();
    let taken = |channel| {
        let at = channel_offset(channel) + channel_status::REQUEST_CONSUMER;
        world.parties[0].status.load_u64(at, Ordering::Acquire)
    };
    assert_eq!((0..CHANNELS_OF_A).map(taken).collect::<Vec<_>>(), world.published);
    world.disconnect();
    world.finish();
}
