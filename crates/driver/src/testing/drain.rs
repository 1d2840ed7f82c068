//! A hostile sender whose direct ring the driver reads, because the end of its reader has gone to another client.
//! By any writes there the new reader sees an end at worst, and nobody else is affected.
use super::*;
use crate::memory::DirectRing;
use crate::messages::{Handoff, Permit};
use pd_abi::layout::{direct, ELSEWHERE};
use pd_abi::{LEFT_RECEIVING, LEFT_SENDING};
use proptest::prelude::*;

/// C's socket that receives flow 0.
const SLOT: Slot = SECOND;

struct Moved {
    world: World,
    /// A's ring, as A maps it.
    map: Mapping,
    ring: DirectRing,
}

impl Moved {
    /// Makes the state after A has written `written` bytes into its ring, and B has read `read` of them.
    fn new(written: u64, read: u64) -> Self {
        Self::after(written, read, None)
    }

    /// Makes the same state, after A has ended its stream with `end`.
    fn after(written: u64, read: u64, end: Option<u32>) -> Self {
        let mut world = World::new("cpu");
        world.open(C, SLOT);
        let pool = Pool::new(1 << 20, HugepageUse::Off);
        let mut ring = pool.direct_ring(pool.root(), RING_BYTES).expect("a ring");
        let len = PAGE_BYTES + RING_BYTES as usize;
        let owner = ring.for_owner().expect("a file");
        let map = Mapping::new(&owner, len, Protection::ReadWrite).expect("a mapping");
        memfd::seal_against_all(&owner).expect("a seal");
        ring.check_sealed().expect("a sealed ring");
        for at in (0..RING_BYTES).step_by(8) {
            map.store_u64(PAGE_BYTES + at as usize, at, Ordering::Relaxed);
        }
        map.store_u64(direct::PRODUCER, written, Ordering::Release);
        let undrained_ring = Some(ring.undrained(read, false, None).expect("a mapping"));
        let handoff = Some(Box::new(Handoff { left: true, undrained_ring, ..Handoff::default() }));
        let destination = endpoint(&world, C, SLOT);
        world.mover.make_last(A_TO_B);
        if let Some(end) = end {
            let finish = Finish { end, late_errno: 0, deadline: None, source_gone: false };
            world.inbox.send(ToMover::Finish { flow: A_TO_B, finish });
            world.pass(Duration::from_millis(200));
        }
        world.inbox.send(ToMover::HandoffDestination { flow: A_TO_B, destination, handoff });
        world.rest();
        Self { world, map, ring }
    }

    fn write(&self, producer: u64) {
        self.map.store_u64(direct::PRODUCER, producer, Ordering::Release);
    }

    fn say_left(&mut self, value: u32) {
        let request = Request::new(Operation::Left, SocketId::new(0, GENERATION), 0);
        self.world.request_on(0, Request { value, ..request });
    }

    fn send(&mut self, len: u64) {
        let span = Span { region: 0, offset: 0, len };
        self.world.request_on(0, Request::send(SocketId::new(0, GENERATION), span));
    }

    fn ring_doorbells(&self) {
        (0..CHANNELS_OF_A).for_each(|channel| self.world.parties[0].ring_doorbell(channel));
    }

    /// Returns the bytes delivered to C, and the end of its stream.
    fn delivered(&self) -> (u64, u32) {
        let c = &self.world.parties[C.index()];
        (c.status_u64(SLOT, socket_status::RECV_PRODUCER), c.status_u32(SLOT, socket_status::RECV_END))
    }

    /// Has C give back all delivered bytes.
    fn give_back(&mut self) {
        let at = socket_offset(SLOT.get()) + socket_control::RECV_CONSUMER;
        self.world.parties[C.index()].control.store_u64(at, self.delivered().0, Ordering::Release);
    }

    /// Returns the eight bytes at `position` of C's stream.
    fn word(&self, position: u64) -> u64 {
        let (client, page) = World::place(A_TO_B);
        let at = page as usize * PAGE_BYTES + (position % RING_BYTES) as usize;
        self.world.parties[client.index()].receive.load_u64(at, Ordering::Relaxed)
    }

    fn finish(mut self) {
        self.ring_doorbells();
        self.world.pass(Duration::from_millis(10));
        self.world.exchange(20_000);
        self.world.check_guards();
        assert!(!self.ring.is_let_go(), "A holds it");
    }
}

pub(super) fn endpoint(world: &World, client: ClientId, slot: Slot) -> Endpoint {
    let memory = Arc::clone(&world.parties[client.index()].memory);
    Endpoint {
        client,
        serial: u64::from(client.get()) + 1,
        slot,
        generation: GENERATION,
        memory,
        mover: MoverId::default(),
    }
}

/// Sends the message that the receiver of a flow has read the ring.
fn release(world: &mut World, flow: FlowId) {
    let (client, _) = World::place(flow);
    let permit = Permit::new(&world.parties[client.index()].memory);
    world.inbox.send(ToMover::Release { flow, permit });
}

#[test]
fn the_rest_comes_in_order_and_then_what_is_sent() {
    let mut moved = Moved::new(160, 64);
    assert_eq!((moved.delivered(), moved.word(0), moved.word(88)), ((96, 0), 64, 152));
    // Written before A noticed: found by a look.
    moved.write(200);
    moved.world.pass(Duration::from_millis(5));
    assert_eq!((moved.delivered().0, moved.word(128)), (136, 192));
    moved.write(240);
    moved.say_left(LEFT_SENDING);
    moved.send(80);
    moved.ring_doorbells();
    moved.world.pass(Duration::from_millis(1));
    assert_eq!((moved.delivered().0, moved.word(168)), (136 + 40 + 80, 232));
    assert!(MARKS.contains(&moved.word(176).to_le_bytes()[0]));
    // A has left the ring.
    moved.write(400);
    moved.world.pass(Duration::from_secs(2));
    assert_eq!(moved.delivered(), (256, 0));
    moved.finish();
}

#[test]
fn a_shutdown_comes_after_the_rest() {
    let mut moved = Moved::new(48, 0);
    moved.write(96);
    let finish = Finish { end: ENDED, late_errno: 0, deadline: None, source_gone: false };
    moved.world.inbox.send(ToMover::Finish { flow: A_TO_B, finish });
    moved.world.pass(Duration::from_millis(1));
    assert_eq!(moved.delivered(), (96, ENDED));
    moved.finish();
}

/// The sender shut down, or left for the kernel, before the end of its reader went to C.
#[test]
fn the_rest_comes_after_a_shutdown() {
    for end in [ENDED, ELSEWHERE] {
        let moved = Moved::after(160, 64, Some(end));
        assert_eq!((moved.delivered(), moved.word(0)), ((96, end), 64));
        moved.finish();
    }
}

#[test]
fn impossible_counters_end_the_connection() {
    for (written, read) in [(0, 1), (RING_BYTES + 1, 0), (u64::MAX, 0), (5, u64::MAX - RING_BYTES)] {
        let moved = Moved::new(written, read);
        assert_eq!(moved.delivered(), (0, RESET), "{written} written, {read} read");
        assert_eq!(moved.world.parties[0].status_u32(FIRST, socket_status::SEND_END), RESET);
        assert_eq!(moved.world.violation, None);
        moved.finish();
    }
}

#[test]
fn sends_of_a_next_owner_wait_until_the_former_ring_is_read() {
    // The receiver's message comes after the mover's word of the next_owner, or before.
    for early in [false, true] {
        let mut world = World::new("cpu");
        if early {
            release(&mut world, B_TO_C);
        }
        let (source, handoff) = (endpoint(&world, B, FIRST), Handoff { held: true, ..Handoff::default() });
        world.inbox.send(ToMover::HandoffSource { flow: B_TO_C, source, handoff: Box::new(handoff) });
        world.send(0, 0, 100);
        world.rest();
        let delivered =
            |world: &World| world.parties[C.index()].status_u64(FIRST, socket_status::RECV_PRODUCER);
        assert_eq!(delivered(&world), if early { 100 } else { 0 });
        release(&mut world, B_TO_C);
        world.rest();
        assert_eq!(delivered(&world), 100);
        world.check_guards();
    }
}

#[test]
fn a_receiver_that_came_before_the_rings_reads_them_itself() {
    let mut world = World::new("cpu");
    world.open(C, SLOT);
    let destination = endpoint(&world, C, SLOT);
    world.inbox.send(ToMover::HandoffDestination {
        flow: A_TO_B,
        destination,
        handoff: Some(Box::default()),
    });
    world.mover.make_last(A_TO_B);
    world.rest();
    let mut moved = Moved { world, ..Moved::new(0, 0) };
    moved.say_left(LEFT_SENDING);
    moved.send(80);
    moved.ring_doorbells();
    moved.world.pass(Duration::from_millis(1));
    assert_eq!(moved.delivered(), (0, 0));
    release(&mut moved.world, A_TO_B);
    moved.world.rest();
    assert_eq!(moved.delivered(), (80, 0));
    moved.world.check_guards();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_it_does_concerns_its_own_connection(
        start in (0..2 * RING_BYTES, 0..2 * RING_BYTES),
        steps in prop::collection::vec((0u8..8, 0..3 * RING_BYTES), 0..60),
    ) {
        let mut moved = Moved::new(start.0, start.1);
        for (step, value) in steps {
            match step {
                0 | 1 => moved.write(start.0 + value),
                2 => moved.send(1 + value % SEND_RING_BYTES),
                3 => moved.say_left([0, LEFT_RECEIVING, LEFT_SENDING, u32::MAX][value as usize % 4]),
                4 => moved.world.pass(Duration::from_micros(value)),
                5 => moved.give_back(),
                6 => moved.ring_doorbells(),
                _ => {
                    moved.world.step();
                }
            }
        }
        moved.finish();
    }
}
