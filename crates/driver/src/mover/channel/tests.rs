//! Tests of sends that grow, as a channel gives them out.
use super::*;
use pd_abi::limits::PAGE_BYTES;
use pd_shm::memfd::{self, Pages};
use pd_shm::ring::{Consumer, Producer, SharedCells};
use pd_shm::{Own, Region, Theirs};
use proptest::prelude::*;
use std::sync::Arc;

const ENTRIES: u64 = 8;

/// Makes both ends of a channel of few entries.
fn channel() -> (Producer<SharedCells<Request, Own, Theirs>>, Channel) {
    let memory = || {
        let fd = memfd::create("channel", PAGE_BYTES, Pages::Ordinary).expect("a memfd");
        let own = Region::<Own>::new(&fd, PAGE_BYTES).expect("a mapping");
        (Arc::new(own), Arc::new(Region::<Theirs>::new(&fd, PAGE_BYTES).expect("a mapping")))
    };
    let ((clients, client), (drivers, driver)) = (memory(), memory());
    let asked = SharedCells::new((clients, 0, 256), (driver, 0), ENTRIES);
    let requests = SharedCells::new((client.clone(), 0, 256), (drivers.clone(), 0), ENTRIES);
    let events = SharedCells::new((drivers, 64, 256), (client, 64), ENTRIES);
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd");
    let channel = Channel::new(Consumer::new(requests), Producer::new(events), eventfd, true);
    (Producer::new(asked), channel)
}

fn send(offset: u64, len: u64) -> Request {
    Request::send(SocketId(7), Span { region: 3, offset, len })
}

/// Takes a turn of at most `max` requests. Returns them.
fn turn(channel: &mut Channel, max: usize) -> Vec<Request> {
    let mut taken = Vec::new();
    while taken.len() < max {
        match channel.next_request().expect("the protocol is kept") {
            Some(request) => taken.push(request),
            None => break,
        }
    }
    channel.end_turn(taken.len(), Duration::ZERO);
    taken
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A send of this number of bytes, right behind the last one.
    Send(u64),
    /// Another request.
    Other,
    /// A turn of at most this number of requests.
    Turn(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1u64..100).prop_map(Step::Send),
        1 => Just(Step::Other),
        2 => (1usize..4).prop_map(Step::Turn),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// All bytes are taken once and in order, with the number of their sends, however sends grow. Other requests keep their places.
    #[test]
    fn everything_is_taken_once_and_in_order(steps in steps()) {
        let (mut client, mut channel) = channel();
        // Bytes and sends before each other request, as sent and as taken; then bytes and sends of the open send.
        let (mut sent, mut got) = (vec![(0, 0)], vec![(0, 0)]);
        let (mut offset, mut open) = (0, None);
        let mut take = |channel: &mut Channel, max| -> Result<usize, TestCaseError> {
            let taken = turn(channel, max);
            for request in &taken {
                if request.operation == Operation::Close as u8 {
                    got.push((0, 0));
                    continue;
                }
                let bytes: u64 = got.iter().map(|(bytes, _)| bytes).sum();
                prop_assert_eq!((request.socket, request.span().region, request.span().offset), (7, 3, bytes));
                let last = got.last_mut().expect("one at least");
                *last = (last.0 + request.span().len, last.1 + request.sends());
            }
            Ok(taken.len())
        };
        for step in steps {
            match (step, &mut open) {
                (Step::Turn(max), _) => drop(take(&mut channel, max)?),
                (Step::Send(len), Some((bytes, sends))) => {
                    (*bytes, *sends) = (*bytes + len, *sends + 1);
                    client.grow(Request::send_word(*bytes, *sends));
                }
                (Step::Send(len), _) => {
                    if client.write(send(offset, len)) != Ok(true) {
                        continue;
                    }
                    open = Some((len, 1));
                    client.publish();
                }
                (Step::Other, _) => {
                    if client.write(Request::new(Operation::Close, SocketId(7), 0)) != Ok(true) {
                        continue;
                    }
                    open = None;
                    client.publish();
                    sent.push((0, 0));
                }
            }
            if let Step::Send(len) = step {
                let last = sent.last_mut().expect("one at least");
                *last = (last.0 + len, last.1 + 1);
                offset += len;
            }
        }
        while take(&mut channel, 3)? > 0 {}
        prop_assert!(!channel.has_requests());
        prop_assert_eq!(sent, got);
    }
}

#[test]
fn words_that_do_not_grow() {
    let word = Request::send_word;
    for (first, then) in [
        (word(100, 2), word(100, 3)),
        (word(100, 2), word(99, 3)),
        (word(100, 2), word(200, 2)),
        (word(100, 2), word(200, 1)),
        (word(100, 2), 0),
        (word(100, 2), u64::MAX),
        (word(100, 2), word(MESSAGE_BYTES_MAX + 1, 3)),
    ] {
        let (mut client, mut channel) = channel();
        assert_eq!(client.write(send(0, 50)), Ok(true));
        client.publish();
        client.grow(first);
        assert_eq!(turn(&mut channel, 9).len(), 1);
        client.grow(then);
        assert!(channel.has_requests());
        assert_eq!(channel.next_request(), Err(Violation::Span), "{first:x} then {then:x}");
    }
}

#[test]
fn a_stream_is_left_alone_between_looks() {
    let (mut client, mut channel) = channel();
    assert_eq!(client.write(send(0, 1)), Ok(true));
    client.publish();
    let rests = |channel: &Channel, now| channel.rests(|| now);
    for sends in 2..20 {
        assert_eq!(rests(&channel, Duration::ZERO), sends > 2 + u64::from(STREAM_TURNS));
        assert!(!rests(&channel, REST), "no longer than that");
        assert_eq!(turn(&mut channel, 9).len(), 1);
        client.grow(Request::send_word(sends, sends));
    }
    assert_eq!(turn(&mut channel, 9).len(), 1);
    assert!(rests(&channel, Duration::ZERO));
    assert!(turn(&mut channel, 9).is_empty());
    assert!(!rests(&channel, Duration::ZERO), "the stream is over");
    client.grow(Request::send_word(19 + PIECE_BYTES, 20));
    assert_eq!(turn(&mut channel, 9).len(), 1);
    assert!(!rests(&channel, Duration::ZERO), "long pieces are worth a look");
}
