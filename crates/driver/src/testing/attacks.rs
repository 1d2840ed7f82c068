//! Single attacks, and random programs of them.
use super::*;
use pd_abi::FileId;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_program(program in prop::collection::vec(any::<u8>(), 0..1500)) {
        run(&program);
    }
}

fn violation(act: impl FnOnce(&mut World)) -> Option<Violation> {
    let mut world = World::new("cpu");
    act(&mut world);
    (0..CHANNELS_OF_A).for_each(|channel| world.parties[0].ring_doorbell(channel));
    world.pass(Duration::from_millis(10));
    let violation = world.violation;
    world.finish();
    violation
}

fn send(world: &mut World, region: u16, offset: u64, len: u64) {
    let span = Span { region, offset, len };
    world.request_on(0, Request::send(SocketId::new(0, GENERATION), span));
}

#[test]
fn impossible_request_counters() {
    for forged in [REQUEST_RING_ENTRIES + 1, 1 << 63, u64::MAX] {
        assert_eq!(violation(|w| w.publish(1, forged)), Some(Violation::RequestRing));
    }
    let backwards = |w: &mut World| {
        (0..3).for_each(|_| send(w, 0, 0, 1));
        w.rest();
        w.publish(0, 2);
    };
    assert_eq!(violation(backwards), Some(Violation::RequestRing));
}

#[test]
fn requests_for_others_do_not_pile_up() {
    let mut world = World::new("cpu");
    let close =
        |serial: u32| Request { operation: Operation::Close as u8, tag: serial, ..Request::default() };
    // The conductor is busy elsewhere: its mailbox is not drained.
    let published = |world: &World| world.published.iter().sum::<u64>();
    let taken = |world: &World| -> u64 {
        let at = |channel| channel_offset(channel) + channel_status::REQUEST_CONSUMER;
        (0..CHANNELS_OF_A).map(|c| world.parties[0].status.load_u64(at(c), Ordering::Acquire)).sum()
    };
    for serial in 0..4000u32 {
        let channel = serial as usize % CHANNELS_OF_A;
        let at = channel_offset(channel) + channel_status::REQUEST_CONSUMER;
        let done = world.parties[0].status.load_u64(at, Ordering::Acquire);
        if world.published[channel] - done < REQUEST_RING_ENTRIES {
            world.request_on(channel, close(serial));
            world.parties[0].ring_doorbell(channel);
        }
        world.mover.step();
    }
    let most = crate::mover::testing::FORWARDED_MAX + 64;
    assert!(taken(&world) <= most as u64, "{} requests taken", taken(&world));
    assert!(published(&world) > taken(&world));
    // Once it drains, no request is lost.
    world.rest();
    assert_eq!(taken(&world), published(&world));
    assert_eq!(world.violation, None);
    world.finish();
}

#[test]
fn unknown_operations() {
    let next = (1..).find(|&raw| Operation::from_raw(raw).is_none()).unwrap();
    for operation in [0, next, 255] {
        let request = Request { operation, ..Request::default() };
        assert_eq!(violation(|w| w.request_on(0, request)), Some(Violation::Operation(operation)));
    }
}

/// Programs draw a new operation without further changes.
#[test]
fn every_operation_is_drawn() {
    let drawn = |byte: u8| World::operation(&mut Program(&[byte]));
    let all: std::collections::BTreeSet<u8> = (0..=255).map(drawn).collect();
    let known = Operation::ALL.iter().map(|&operation| operation as u8);
    assert_eq!(all, known.chain([0]).collect());
}

/// Tries each operation alone, on a socket and on none, with each value that has a meaning.
#[test]
fn every_operation_is_taken() {
    for (&operation, value) in
        Operation::ALL.iter().flat_map(|operation| (0..4).map(move |value| (operation, value)))
    {
        for socket in [FIRST.socket(GENERATION), SocketId(0)] {
            let request = Request { value, ..Request::new(operation, socket, 0) };
            let found = violation(|world| world.request_on(1, request));
            let refused = match operation {
                Operation::Send => Some(Violation::Span),
                Operation::SendFile => Some(Violation::File),
                _ => None,
            };
            assert_eq!(found, refused, "{operation:?} {value} on {socket:?}");
        }
    }
}

#[test]
fn files_that_are_not_open() {
    let socket = SocketId::new(0, GENERATION);
    for id in [FileId(0), FileId::new(0, 1), FileId(u32::MAX)] {
        let request = Request::send_file(socket, id, 0, 1);
        assert_eq!(violation(|w| w.request_on(0, request)), Some(Violation::File));
    }
}

#[test]
fn spans_outside_of_regions() {
    let bytes = SEND_REGION_BYTES as u64;
    let spans = [(1, 0, 1), (u16::MAX, 0, 1), (0, bytes, 1), (0, 0, 0), (0, 1, bytes), (0, 0, 1 << 31)];
    for (region, offset, len) in spans.into_iter().chain([(0, 1, u64::MAX), (0, (1 << 48) - 1, 2)]) {
        assert_eq!(violation(|w| send(w, region, offset, len)), Some(Violation::Span));
    }
    assert_eq!(violation(|w| send(w, 0, bytes - 1, 1)), None);
}

#[test]
fn sends_beyond_the_send_ring() {
    let twice = |w: &mut World| (0..4).for_each(|_| send(w, 0, 0, 10 << 10));
    assert_eq!(violation(twice), Some(Violation::SendRing));
}

#[test]
fn bytes_given_back_that_were_never_delivered() {
    const HALF: u64 = RING_BYTES - 1000;
    for (first, then) in [(0, RING_BYTES + 1), (0, u64::MAX), (4096, 0), (4096, 4095)] {
        let act = |w: &mut World| {
            w.write_line(socket_control::GENERATION, GENERATION.into());
            assert!(w.send(0, 1, HALF));
            w.rest();
            w.write_line(socket_control::RECV_CONSUMER, first);
            assert!(w.send(0, 1, HALF));
            w.rest();
            assert_eq!(w.violation, None);
            w.write_line(socket_control::RECV_CONSUMER, then);
            w.rest();
        };
        assert_eq!(violation(act), Some(Violation::ReceiveRing), "{first} then {then}");
    }
}

#[test]
fn a_ring_that_was_full_is_exchanged_when_it_is_empty() {
    let mut world = World::new("cpu");
    while world.send(0, 0, 3000) {}
    world.rest();
    world.pass(Duration::from_millis(200));
    assert_eq!(world.rings_given[2], 0, "it is not empty");
    while world.receive(1, 0, u64::MAX) > 0 {
        world.rest();
    }
    assert_eq!(world.rings_given[2], 1);
    world.exchange(20_000);
    world.finish();
}

/// Makes a world in which B and C have exchanged more than a ring holds, and B's ring is full, when many other flows become busy.
fn busy_beside_others() -> World {
    let mut world = World::new("cpu");
    world.exchange(3 * RING_BYTES);
    while world.send(0, 0, 3000) {}
    world.rest();
    world.mover.pretend_busy(4096);
    world.pass(Duration::from_millis(200));
    assert_eq!(world.rings_given[2], 0, "it is not empty");
    world
}

#[test]
fn a_ring_of_more_than_its_share_is_emptied_and_exchanged() {
    let mut world = busy_beside_others();
    let mut received = 0;
    while world.rings_given[2] == 0 {
        let more = world.receive(1, 0, 1000);
        assert!(more > 0, "nothing comes after {received} bytes");
        received += more;
        world.rest();
    }
    assert_eq!(received, RING_BYTES, "nothing came into it before it was empty");
    world.exchange(20_000);
    world.finish();
}

#[test]
fn a_ring_that_is_not_emptied_in_time_is_kept() {
    let mut world = busy_beside_others();
    assert_eq!(world.receive(1, 0, 1000), 1000);
    world.mover.pretend_busy(4096);
    world.pass(Duration::from_millis(200));
    let mut received = 1000;
    while received < RING_BYTES + 1000 {
        let more = world.receive(1, 0, 1000);
        assert!(more > 0, "a receiver that waits for all that its ring holds waits for ever");
        received += more;
    }
    assert_eq!(world.rings_given[2], 0);
    world.exchange(20_000);
    world.finish();
}

#[test]
fn rings_that_are_no_longer_are_forgotten() {
    let mut world = World::new("cpu");
    world.exchange(20_000);
    assert!(world.mover.ring_counts().1 > 1, "there were several at a time");
    for _ in 0..40 {
        world.pass(Duration::from_millis(100));
    }
    assert_eq!(world.mover.ring_counts(), (0, 0));
    world.finish();
}

fn ask(world: &mut World, requests: u64) {
    for tag in 0..requests {
        let request = Request { operation: Operation::Bind as u8, tag: tag as u32, ..Request::default() };
        world.request_on(0, request);
        if tag % 32 == 31 {
            world.step();
        }
    }
    world.rest();
}

#[test]
fn impossible_event_counters() {
    for forged in [EVENT_RING_ENTRIES + 1, 1 << 63, u64::MAX] {
        let act = |w: &mut World| {
            ask(w, EVENT_RING_ENTRIES + 1);
            let at = channel_offset(0) + channel_control::EVENT_CONSUMER;
            w.parties[0].control.store_u64(at, forged, Ordering::Release);
            ask(w, 1);
        };
        assert_eq!(violation(act), Some(Violation::EventRing));
    }
}

#[test]
fn events_that_nobody_reads() {
    let most = EVENT_RING_ENTRIES + REQUEST_RING_ENTRIES + pd_abi::limits::SOCKETS_MAX as u64;
    assert_eq!(violation(|w| ask(w, most)), None);
    assert_eq!(violation(|w| ask(w, most + 1)), Some(Violation::Events));
}

/// Events that waited come in order once there is room, and the client was asked to ring.
#[test]
fn events_that_wait_come_later() {
    let mut world = World::new("cpu");
    let at = channel_offset(0);
    let waiting =
        |w: &World| w.parties[0].status.load_u32(at + channel_status::EVENTS_WAITING, Ordering::Relaxed);
    ask(&mut world, EVENT_RING_ENTRIES);
    assert_eq!(waiting(&world), 0);
    ask(&mut world, 10);
    assert_eq!(waiting(&world), 1);
    world.parties[0].control.store_u64(at + channel_control::EVENT_CONSUMER, 4, Ordering::Release);
    world.rest();
    assert_eq!(waiting(&world), 1);
    world.parties[0].control.store_u64(at + channel_control::EVENT_CONSUMER, 10, Ordering::Release);
    world.parties[0].ring_doorbell(0);
    world.pass(Duration::from_millis(10));
    assert_eq!(waiting(&world), 0);
    for position in 0..EVENT_RING_ENTRIES + 10 {
        let place = (position % EVENT_RING_ENTRIES) as usize * size_of::<Event>();
        let event: Event = world.parties[0].status.read(at + channel_status::EVENTS + place);
        if position >= 10 {
            assert_eq!(u64::from(event.tag), if position < 1024 { position } else { position - 1024 });
        }
    }
}
