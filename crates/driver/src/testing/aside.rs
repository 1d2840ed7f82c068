//! A side that leaves for the kernel while the flow to it exists, or is over.
use super::drain::endpoint;
use super::*;
use crate::messages::{Asking, SendEnd};
use pd_abi::layout::{ELSEWHERE, SHUT};

/// Has A ask to leave. Returns the end of B's sends as B sees it.
fn after_leaving(world: &mut World, source: Option<Endpoint>) -> u32 {
    let asker = Asking { client: A, mover: MoverId::default(), channel: 0 };
    let event = Event::answer(SocketId::new(0, GENERATION), 1, 0);
    let source = source.map(Box::new);
    world.inbox.send(ToMover::Elsewhere { flow: B_TO_A, source, is_over: false, asker, event });
    world.rest();
    world.parties[B.index()].status_u32(SECOND, socket_status::SEND_END)
}

/// Makes a world in which B has shut down its sending, and A has read everything.
fn shut() -> World {
    let mut world = World::new("cpu");
    let finish = Finish { end: ENDED, late_errno: 0, deadline: None, source_gone: false };
    world.inbox.send(ToMover::Finish { flow: B_TO_A, finish });
    world.pass(Duration::from_millis(200));
    assert!(!world.mover.holds(B_TO_A));
    world
}

#[test]
fn a_source_hears_that_its_peer_has_left() {
    assert_eq!(after_leaving(&mut World::new("cpu"), None), ELSEWHERE);
}

#[test]
fn a_source_whose_flow_is_over_hears_it_too() {
    let mut world = shut();
    let source = endpoint(&world, B, SECOND);
    assert_eq!(after_leaving(&mut world, Some(source)), ELSEWHERE);
}

/// The peer closes at once, or shuts down. The source is to follow into the kernel, which tells that; of a failure it hears here.
#[test]
fn an_orderly_end_does_not_hide_that_the_peer_has_left() {
    let reset = Errno::CONNRESET.raw_os_error() as u32;
    for (end, seen) in [(SHUT, ELSEWHERE), (ENDED, ELSEWHERE), (reset, reset)] {
        let mut world = World::new("cpu");
        assert_eq!(after_leaving(&mut world, None), ELSEWHERE);
        world.inbox.send(ToMover::Abort { flow: B_TO_A, send_end: SendEnd::by(end), recv_end: None });
        world.rest();
        assert_eq!(world.parties[B.index()].status_u32(SECOND, socket_status::SEND_END), seen, "{end}");
    }
}

/// The socket was closed meanwhile, and another socket may have its line.
#[test]
fn the_line_of_another_socket_is_left_alone() {
    let mut world = shut();
    let source = Endpoint { generation: GENERATION - 1, ..endpoint(&world, B, SECOND) };
    assert_ne!(after_leaving(&mut world, Some(source)), ELSEWHERE);
}

/// The end goes to another client after the connection was cut, and after its stream has ended in order.
#[test]
fn a_next_owner_of_an_end_learns_of_the_same_end() {
    let reset = Errno::CONNRESET.raw_os_error() as u32;
    let finish = Finish { end: ENDED, late_errno: 0, deadline: None, source_gone: false };
    let endings = [
        (ToMover::Abort { flow: A_TO_B, send_end: SendEnd::by(reset), recv_end: Some(reset) }, reset),
        (ToMover::Finish { flow: A_TO_B, finish: Finish { end: reset, ..finish } }, reset),
        (ToMover::Finish { flow: A_TO_B, finish }, ENDED),
    ];
    for (ending, end) in endings {
        let mut world = World::new("cpu");
        world.open(C, SECOND);
        world.mover.make_last(A_TO_B);
        world.inbox.send(ending);
        world.inbox.send(ToMover::Finish { flow: A_TO_B, finish });
        world.pass(Duration::from_millis(200));
        let destination = endpoint(&world, C, SECOND);
        world.inbox.send(ToMover::HandoffDestination {
            flow: A_TO_B,
            destination,
            handoff: Some(Box::default()),
        });
        world.rest();
        assert_eq!(world.parties[C.index()].status_u32(SECOND, socket_status::RECV_END), end);
    }
}
