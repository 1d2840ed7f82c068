//! Links whose frames go directly from a program to another, and back by the agent, at any time.
#![cfg(not(loom))]
mod lending;
mod polling;
mod stream;

use lending::Loans;
use pd_abi::pipe::{entry, entry_offset, link, pipe_control, pipe_status, table_bytes, LinkPath};
use pd_abi::pipe::{BACK, DROP, FRAME_TABLE_OFFSET};
use pd_pipe::{Agent, Broker, Direction, Made, Offer, PeerOffer, Pipe, PipeId, PortId, Route, Shape, TapId};
use pd_pipe::{Lease, PipeCounts, Tapped, Tokens, Unit, Violation};
use pd_shm::{Own, Region};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::time::Duration;

const RING: u64 = 32 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

fn shape(direction: Direction) -> Shape {
    Shape::new(direction, Unit::Frames, RING).unwrap()
}

/// A link with a pipe at each end, of one owner. Both control files are mapped once more.
struct Stand {
    agent: Agent,
    ports: (PortId, PortId),
    ids: (PipeId, PipeId),
    sender: Pipe,
    receiver: Pipe,
    words: (Region<Own>, Region<Own>),
}

fn words(offer: &Offer) -> Region<Own> {
    Region::<Own>::new(&offer.control, FRAME_TABLE_OFFSET + table_bytes(RING)).unwrap()
}

fn open(agent: &mut Agent, port: PortId, direction: Direction) -> (PipeId, Pipe, Region<Own>) {
    open_as(agent, port, shape(direction))
}

fn open_as(agent: &mut Agent, port: PortId, shape: Shape) -> (PipeId, Pipe, Region<Own>) {
    let (id, offer) = agent.open(shape, port, &[], None).unwrap();
    let words = words(&offer);
    let pipe = Pipe::map(offer).unwrap();
    agent.seal(id).unwrap();
    agent.set_owner(id, Some(7));
    (id, pipe, words)
}

impl Stand {
    fn new() -> Self {
        let mut agent = Agent::new().unwrap();
        let ports = agent.add_link();
        let (to, receiver, to_words) = open(&mut agent, ports.1, Direction::Receive);
        let (from, sender, from_words) = open(&mut agent, ports.0, Direction::Send);
        let words = (from_words, to_words);
        Self { agent, ports, ids: (from, to), sender, receiver, words }
    }

    fn direct() -> Self {
        let mut this = Self::new();
        this.go_direct();
        this
    }

    /// Has both ends accept what is offered.
    fn accept(&mut self) {
        for (id, pipe) in [(self.ids.0, &mut self.sender), (self.ids.1, &mut self.receiver)] {
            if let Ok(offer) = self.agent.peer(id) {
                pipe.accept(&offer).unwrap();
            }
        }
    }

    fn go_direct(&mut self) {
        self.agent.turn();
        self.accept();
        self.agent.turn();
        assert!(self.is_direct());
        assert!(self.agent.is_port_direct(self.ports.0) && self.agent.is_port_direct(self.ports.1));
        self.sender.untaken();
        assert_eq!(self.receiver.frames().map(drop), Err(Errno::AGAIN));
        assert!(self.receiver.is_direct());
    }

    fn is_direct(&self) -> bool {
        self.agent.is_direct(self.ids.0) && self.agent.is_direct(self.ids.1)
    }

    fn send(&mut self, number: u64) {
        self.sender.send(&frame(number, 64), BACK).unwrap();
        self.sender.flush();
    }

    /// Returns the numbers of all frames that are there.
    fn receive(&mut self) -> Vec<u64> {
        let mut got = Vec::new();
        while let Ok(mut frames) = self.receiver.frames() {
            while let Some(frame) = frames.next() {
                got.push(number(frame.bytes()));
            }
        }
        got
    }

    /// Returns the counts of the sender and the receiver, at one moment.
    fn counts(&mut self) -> [PipeCounts; 2] {
        self.agent.count_links();
        [self.ids.0, self.ids.1].map(|id| self.agent.counts(id).unwrap())
    }
}

fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut frame = vec![number as u8; len.max(14)];
    frame[..8].copy_from_slice(&number.to_ne_bytes());
    frame
}

fn number(frame: &[u8]) -> u64 {
    u64::from_ne_bytes(*frame.first_chunk().unwrap())
}

#[test]
fn frames_go_past_the_agent_and_are_counted() {
    let mut stand = Stand::direct();
    for number in 0..100 {
        stand.send(number);
    }
    assert_eq!(stand.receive(), (0..100).collect::<Vec<_>>());
    assert!(!stand.agent.turn(), "the agent has nothing to do");
    stand.sender.send(&[1; 64], DROP).unwrap();
    stand.sender.send(&[1; 64], 3).unwrap();
    stand.send(100);
    assert_eq!(stand.receive(), [100]);
    let [sent, received] = stand.counts();
    assert_eq!((sent.frames_sent, sent.bytes_sent), (101, 6464));
    assert_eq!((sent.frames_dropped, sent.frames_foreign), (1, 1));
    assert_eq!((received.frames_received, received.bytes_received, received.notifications), (101, 6464, 0));
    let [near, far] = [stand.ports.0, stand.ports.1].map(|port| stand.agent.port_counts(port));
    assert_eq!((near.frames_sent, far.frames_received), (101, 101));
    // All space is the sender's again.
    assert_eq!(stand.sender.untaken(), 0);
}

/// A receiver goes on between two questions about the pipes of one path.
#[test]
fn the_counts_of_both_ends_are_of_one_moment() {
    let mut stand = Stand::direct();
    let goes_on = |stand: &mut Stand| {
        (0..10).for_each(|number| stand.send(number));
        assert_eq!(stand.receive().len(), 10);
    };
    goes_on(&mut stand);
    stand.agent.count_links();
    let sent = stand.agent.counts(stand.ids.0).unwrap().frames_sent;
    goes_on(&mut stand);
    assert_eq!((sent, stand.agent.counts(stand.ids.1).unwrap().frames_received), (10, 10));
    let [sent, received] = stand.counts();
    assert_eq!((sent.frames_sent, received.frames_received), (20, 20));
}

/// A faulty sender writes into a frame that is lent.
#[test]
fn bytes_of_a_frame_stay_as_they_were_whatever_its_sender_does() {
    let mut agent = Agent::new().unwrap();
    let ports = agent.add_link();
    let (to, receiver, to_words) = open(&mut agent, ports.1, Direction::Receive);
    let (from, offer) = agent.open(shape(Direction::Send), ports.0, &[], None).unwrap();
    let (from_words, ring) = (words(&offer), Region::<Own>::new(&offer.ring, RING as usize).unwrap());
    let sender = Pipe::map(offer).unwrap();
    agent.seal(from).unwrap();
    agent.set_owner(from, Some(7));
    let mut stand = Stand { agent, ports, ids: (from, to), sender, receiver, words: (from_words, to_words) };
    stand.go_direct();
    stand.send(1);
    stand.send(2);
    let mut frames = stand.receiver.frames().unwrap();
    let first = frames.next().unwrap();
    assert_eq!((first.length(), first.bytes()), (64, &frame(1, 64)[..]));
    ring.store_u64(0, 99, Ordering::Relaxed);
    let mut copy = [0; 8];
    assert_eq!((number(first.bytes()), first.copy_to(&mut copy)), (1, 8));
    // SAFETY: an aligned word of a frame that is lent, which nobody writes now.
    assert_eq!((number(&copy), unsafe { first.as_ptr().cast::<u64>().read_volatile() }), (99, 99));
    // The copy is of one frame.
    ring.store_u64(64, 98, Ordering::Relaxed);
    assert_eq!(number(frames.next().unwrap().bytes()), 98);
    assert!(frames.next().is_none());
}

/// Each reason for the agent to see the frames, and its end.
#[test]
fn what_needs_the_agent_recalls_the_path_and_its_end_offers_another() {
    type Change = fn(&mut Stand, on: bool);
    let lease: Change = |stand, on| {
        stand.agent.set_lease(stand.ids.0, on.then_some(Lease { mac: [0; 6], ipv4: [0; 4] }));
    };
    let rate: Change = |stand, on| {
        stand.agent.fill_purse(0, Tokens::ALL);
        stand.agent.set_purse(stand.ids.0, on.then_some(0));
    };
    let owner: Change = |stand, on| stand.agent.set_owner(stand.ids.1, Some(if on { 8 } else { 7 }));
    for (name, change) in [("lease", lease), ("rate", rate), ("owner", owner)] {
        let mut stand = Stand::direct();
        stand.send(0);
        change(&mut stand, true);
        stand.agent.turn();
        stand.send(1);
        assert_eq!(stand.receive(), [], "{name}: what it has not read is the agent's");
        stand.agent.turn();
        assert!(!stand.is_direct(), "{name}");
        if name == "lease" {
            assert_eq!(stand.agent.counts(stand.ids.0).unwrap().frames_refused, 2);
        } else {
            assert_eq!(stand.receive(), [0, 1], "{name}");
        }
        change(&mut stand, false);
        stand.go_direct();
        stand.send(2);
        assert_eq!(stand.receive(), [2], "{name}");
    }
}

fn tap(agent: &mut Agent, of: Tapped) -> (TapId, Pipe) {
    let (made, files, offer) = Made::new(shape(Direction::Receive)).unwrap();
    let observer = Pipe::map(offer).unwrap();
    files.seal().unwrap();
    (agent.add_tap(made, of, 64).unwrap(), observer)
}

#[test]
fn taps_mirrors_and_other_pipes_see_all_frames_from_then_on() {
    for case in 0..4 {
        let mut stand = Stand::direct();
        let mut observer = None;
        let (far, ids) = (stand.ports.1, stand.ids);
        let tapped = [Tapped::Port(stand.ports.0), Tapped::Pipe(ids.0), Tapped::Pipe(ids.1)];
        let mirror = match tapped.get(case) {
            Some(&of) => {
                observer = Some(tap(&mut stand.agent, of));
                None
            }
            None => Some(stand.agent.add_mirror(far).unwrap()),
        };
        stand.agent.turn();
        assert_eq!(stand.receive(), []);
        for number in 0..10 {
            stand.send(number);
        }
        stand.agent.turn();
        stand.agent.turn();
        assert_eq!(stand.receive(), (0..10).collect::<Vec<_>>(), "{case}");
        if let Some((tap, mut observer)) = observer {
            assert_eq!(
                observer.frames().map(|mut frames| (0..).take_while(|_| frames.next().is_some()).count()),
                Ok(10)
            );
            stand.agent.remove_tap(tap);
        }
        mirror.into_iter().for_each(|mirror| drop(stand.agent.remove_port(mirror)));
        stand.go_direct();
    }
    // A second sender, and a second receiver.
    for (direction, last) in [(Direction::Send, true), (Direction::Receive, false)] {
        let mut stand = Stand::direct();
        let port = if last { stand.ports.0 } else { stand.ports.1 };
        let (id, mut other, _words) = open(&mut stand.agent, port, direction);
        stand.agent.turn();
        stand.send(0);
        assert_eq!(stand.receive(), []);
        if last {
            other.send(&frame(1, 64), BACK).unwrap();
            other.flush();
        }
        stand.agent.turn();
        stand.agent.turn();
        let got = stand.receive().len() + other.waiting_frames();
        assert_eq!(got, 1 + usize::from(last));
        stand.agent.close(id);
        stand.go_direct();
    }
}

/// Counts the frames that are there; 0 of a sender.
trait Waiting {
    fn waiting_frames(&mut self) -> usize;
}

impl Waiting for Pipe {
    fn waiting_frames(&mut self) -> usize {
        let Ok(mut frames) = self.frames() else { return 0 };
        (0..).take_while(|_| frames.next().is_some()).count()
    }
}

#[test]
fn a_side_that_ends_leaves_the_other_with_a_clear_end() {
    // The receiver goes. Frames that lay before it are lost with it, and the next one reads on.
    let mut stand = Stand::direct();
    stand.send(0);
    stand.agent.close(stand.ids.1);
    stand.send(1);
    let (id, receiver, _words) = open(&mut stand.agent, stand.ports.1, Direction::Receive);
    (stand.receiver, stand.ids.1) = (receiver, id);
    stand.agent.turn();
    assert_eq!(stand.receive(), [1]);
    stand.go_direct();
    // The sender goes. Its frames are received, and then those of the next one.
    stand.send(2);
    stand.send(3);
    stand.agent.close(stand.ids.0);
    let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
    let old = (std::mem::replace(&mut stand.sender, sender), std::mem::replace(&mut stand.ids.0, id));
    stand.send(4);
    stand.agent.turn();
    assert_eq!(old.0.ended(), Some(Errno::CONNRESET));
    assert_eq!(stand.receive(), [2, 3, 4]);
    stand.go_direct();
    // Both ends are told that the port has gone.
    stand.agent.remove_port(stand.ports.0);
    assert_eq!(stand.receiver.wait(PATIENCE), Err(Errno::NODEV));
    assert_eq!(stand.sender.wait_room(RING, PATIENCE), Err(Errno::NODEV));
}

/// A receiver has given back more of one sender's ring than it has received from the next.
#[test]
fn space_given_back_to_one_sender_is_not_another_ones() {
    let mut stand = Stand::direct();
    for number in 0..100 {
        stand.send(number);
    }
    assert_eq!(stand.receive().len(), 100);
    stand.agent.close(stand.ids.0);
    let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
    (stand.sender, stand.ids.0) = (sender, id);
    stand.agent.turn();
    assert_eq!(stand.receive(), []);
    stand.agent.turn();
    stand.accept();
    stand.agent.turn();
    assert!(stand.is_direct());
    // The receiver does not look until the ring is full.
    let mut sent = 0;
    while stand.sender.send(&frame(sent, 64), BACK).is_ok() {
        sent += 1;
        stand.sender.flush();
    }
    assert_eq!(sent, RING / 64);
    assert_eq!(stand.receive(), (0..sent).collect::<Vec<_>>());
}

#[test]
fn a_sender_with_impossible_words_is_cut_off_and_its_receiver_goes_on() {
    for value in [1, 63, RING + 63, u64::MAX - 63, u64::MAX, 1 << 63] {
        let mut stand = Stand::direct();
        stand.words.0.store_u64(pipe_control::SEND_PRODUCER, value, Ordering::Release);
        assert_eq!(stand.receive(), [], "{value}");
        assert!(!stand.receiver.is_direct());
        stand.agent.turn();
        stand.agent.turn();
        let violation = stand.agent.violation(stand.ids.0);
        assert_eq!(violation, Some(Violation::Index), "{value}");
        assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
        // The next sender has a direct path.
        stand.agent.close(stand.ids.0);
        let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
        (stand.sender, stand.ids.0) = (sender, id);
        stand.go_direct();
    }
    // More than the ring has: no one can tell who is at fault. The two have no direct path again.
    let mut stand = Stand::direct();
    stand.words.0.store_u64(pipe_control::SEND_PRODUCER, RING + 64, Ordering::Release);
    assert_eq!(stand.receive(), []);
    stand.agent.turn();
    stand.agent.turn();
    assert_eq!([stand.ids.0, stand.ids.1].map(|id| stand.agent.violation(id)), [None, None]);
    assert!(stand.agent.peer(stand.ids.1).is_err());
    for length in [0, 13, 9217, u16::MAX, 65] {
        let mut stand = Stand::direct();
        stand.words.0.store_u32(entry_offset(0, RING), entry(length, 0), Ordering::Relaxed);
        stand.words.0.store_u64(pipe_control::SEND_PRODUCER, 64, Ordering::Release);
        assert_eq!(stand.receive(), []);
        stand.agent.turn();
        stand.agent.turn();
        assert_eq!(stand.agent.violation(stand.ids.0), Some(Violation::Length), "{length}");
        assert_eq!(stand.agent.violation(stand.ids.1), None);
    }
}

/// Its receiver has read what the sender then says was never sent.
#[test]
fn a_sender_that_takes_back_what_was_read_does_not_end_its_receiver() {
    for leaves_first in [false, true] {
        let mut stand = Stand::direct();
        stand.send(0);
        stand.send(1);
        assert_eq!(stand.receive(), [0, 1]);
        if leaves_first {
            stand.agent.set_owner(stand.ids.1, Some(8));
            stand.agent.turn();
            assert_eq!(stand.receive(), []);
            assert!(!stand.receiver.is_direct());
        }
        stand.words.0.store_u64(pipe_control::SEND_PRODUCER, 64, Ordering::Release);
        assert_eq!(stand.receive(), []);
        assert!(!stand.receiver.is_direct());
        stand.agent.turn();
        stand.agent.turn();
        assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
        // The receiver can have the direct path with the next sender.
        stand.agent.close(stand.ids.0);
        let (id, sender, _words) = open(&mut stand.agent, stand.ports.0, Direction::Send);
        (stand.sender, stand.ids.0) = (sender, id);
        stand.send(2);
        stand.agent.turn();
        assert_eq!(stand.receive(), [2]);
    }
}

/// A sender that drops all its frames, and sends on without waiting for space.
#[test]
fn a_sender_that_drops_frames_without_end_holds_up_no_look() {
    let mut stand = Stand::direct();
    for line in 0..RING / 64 {
        stand.words.0.store_u32(entry_offset(line * 64, RING), entry(64, DROP), Ordering::Relaxed);
    }
    let stop = AtomicBool::new(false);
    let words = &stand.words.0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = 0u64;
            while !stop.load(Ordering::Acquire) {
                producer = producer.wrapping_add(64);
                words.store_u64(pipe_control::SEND_PRODUCER, producer, Ordering::Release);
            }
        });
        let receiver = &mut stand.receiver;
        while receiver.is_direct() {
            assert_eq!(receiver.frames().map(drop), Err(Errno::AGAIN));
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Release);
    });
    stand.agent.turn();
    stand.agent.turn();
    assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
}

#[test]
fn a_receiver_with_impossible_words_gains_nothing() {
    // Space that it never had.
    let mut stand = Stand::direct();
    for value in [1, 64, RING, u64::MAX, 1 << 63] {
        stand.words.1.store_u64(pipe_control::LINK_CONSUMER, value, Ordering::Release);
        assert_eq!(stand.sender.untaken(), 0, "{value}");
    }
    for number in 0..RING / 64 {
        stand.sender.send(&frame(number, 64), BACK).unwrap();
    }
    assert_eq!(stand.sender.send(&[1; 64], BACK), Err(Errno::AGAIN));
    stand.words.1.store_u64(pipe_control::LINK_CONSUMER, RING + 64, Ordering::Release);
    assert_eq!(stand.sender.send(&[1; 64], BACK), Err(Errno::AGAIN));
    // An end that cannot be, whatever was sent.
    for at in [1, 64 * 3 + 1, u64::MAX - 63, 1 << 63] {
        let mut stand = Stand::direct();
        stand.send(0);
        let number = stand.words.1.load_u32(pipe_control::LINK_MAPPED, Ordering::Relaxed);
        stand.words.1.store_u64(pipe_control::LINK_LEFT_AT, at, Ordering::Relaxed);
        stand.words.1.store_u32(pipe_control::LINK_LEFT, number, Ordering::Release);
        stand.agent.turn();
        assert_eq!(stand.agent.violation(stand.ids.1), Some(Violation::Index), "{at}");
        stand.agent.turn();
        assert_eq!((stand.agent.violation(stand.ids.0), stand.sender.ended()), (None, None));
        let (id, receiver, _words) = open(&mut stand.agent, stand.ports.1, Direction::Receive);
        (stand.receiver, stand.ids.1) = (receiver, id);
        stand.send(1);
        stand.agent.turn();
        assert_eq!(stand.receive(), [1]);
    }
    // More than was sent, by the sender's word: either may be at fault.
    for at in [128, RING + 64, 1 << 40] {
        let mut stand = Stand::direct();
        stand.send(0);
        let number = stand.words.1.load_u32(pipe_control::LINK_MAPPED, Ordering::Relaxed);
        stand.words.1.store_u64(pipe_control::LINK_CONSUMER, at, Ordering::Release);
        stand.words.1.store_u64(pipe_control::LINK_LEFT_AT, at, Ordering::Relaxed);
        stand.words.1.store_u32(pipe_control::LINK_LEFT, number, Ordering::Release);
        stand.agent.turn();
        stand.send(1);
        stand.agent.turn();
        assert_eq!([stand.ids.0, stand.ids.1].map(|id| stand.agent.violation(id)), [None, None], "{at}");
        assert_eq!((stand.receive(), stand.sender.ended()), (vec![1], None));
    }
    // Counts that only it writes.
    let mut stand = Stand::direct();
    for value in [u64::MAX, 5, 1 << 63, 0] {
        for word in [pipe_control::LINK_FRAMES, pipe_control::LINK_BYTES, pipe_control::LINK_FOREIGN] {
            stand.words.1.store_u64(word, value, Ordering::Relaxed);
        }
        assert!(stand.counts()[1].frames_received <= 1 << 49);
    }
}

#[test]
fn a_pipe_maps_nothing_that_is_not_offered() {
    let mut stand = Stand::new();
    stand.agent.turn();
    let [for_sender, for_receiver] = [stand.ids.0, stand.ids.1].map(|id| stand.agent.peer(id).unwrap());
    assert_eq!(stand.receiver.accept(&for_sender), Err(Errno::INVAL));
    assert_eq!(stand.sender.accept(&for_receiver), Err(Errno::INVAL));
    // Withdrawn before it was accepted, and after.
    stand.agent.set_owner(stand.ids.0, None);
    stand.agent.turn();
    assert_eq!(stand.receiver.accept(&for_receiver), Err(Errno::INVAL));
    stand.agent.set_owner(stand.ids.0, Some(7));
    stand.agent.turn();
    stand.accept();
    stand.agent.set_owner(stand.ids.0, None);
    stand.agent.turn();
    stand.send(0);
    stand.agent.turn();
    assert!(!stand.is_direct());
    assert_eq!(stand.receive(), [0]);
    // Pipes of no owner, of two, and those that forward are offered nothing.
    stand.agent.set_owner(stand.ids.1, None);
    stand.agent.turn();
    assert!(stand.agent.peer(stand.ids.0).is_err());
    for unit in [Unit::Frames, Unit::Bytes] {
        for directions in [(Direction::Send, Direction::Forward), (Direction::Forward, Direction::Receive)] {
            let mut agent = Agent::new().unwrap();
            let (near, far) = agent.add_link();
            for (direction, port) in [(directions.0, near), (directions.1, far)] {
                let (made, files, offer) = Made::new(Shape::new(direction, unit, RING).unwrap()).unwrap();
                let id = agent.adopt(made, &Route::to(port)).unwrap();
                let pipe = Pipe::map(offer).unwrap();
                files.seal().unwrap();
                agent.start(id).unwrap();
                agent.set_owner(id, Some(7));
                agent.turn();
                assert!(!pipe.is_offered());
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, bool),
    Flush,
    Turn,
    Receive(usize),
    Accept,
    Recall,
    Allow,
    Lend(usize),
    TakeBack(usize),
    FlushBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..9000usize, prop::bool::weighted(0.1)).prop_map(|(len, drop)| Step::Send(len, drop)),
        6 => (1..200usize, prop::bool::weighted(0.1)).prop_map(|(len, drop)| Step::Send(len, drop)),
        4 => Just(Step::Flush),
        5 => Just(Step::Turn),
        5 => (1usize..40).prop_map(Step::Receive),
        3 => Just(Step::Accept),
        1 => Just(Step::Recall),
        2 => Just(Step::Allow),
        4 => (1usize..40).prop_map(Step::Lend),
        4 => (1usize..40).prop_map(Step::TakeBack),
        1 => Just(Step::FlushBack),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Frames arrive whole, once and in order, whoever passes them on. Those that are lent stay as they are.
    #[test]
    fn a_link_that_changes_paths_is_a_queue(steps in steps()) {
        let mut stand = Stand::new();
        let (mut model, mut count, mut bytes, mut dropped) = (VecDeque::new(), 0u64, 0u64, 0);
        let mut expected = (0, 0);
        let mut loans = Loans::default();
        let end = (0..200).map(|n| if n % 2 == 0 { Step::Turn } else { Step::Receive(100) });
        let end = [Step::Flush, Step::TakeBack(usize::MAX), Step::FlushBack].into_iter().chain(end);
        for step in steps.into_iter().chain(end) {
            match step {
                Step::Send(len, is_dropped) => {
                    count += 1;
                    let frame = frame(count, len);
                    match stand.sender.send(&frame, if is_dropped { DROP } else { BACK }) {
                        Ok(()) if is_dropped => dropped += 1,
                        Ok(()) => {
                            expected = (expected.0 + 1, expected.1 + frame.len() as u64);
                            model.push_back(frame);
                        }
                        Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                    }
                }
                Step::Flush => stand.sender.flush(),
                Step::Turn => drop(stand.agent.turn()),
                Step::Accept => stand.accept(),
                Step::Recall => stand.agent.set_owner(stand.ids.1, Some(8)),
                Step::Allow => stand.agent.set_owner(stand.ids.1, Some(7)),
                Step::Lend(most) => for _ in 0..most {
                    match stand.receiver.lend() {
                        Ok((at, length)) => {
                            loans.0.push_back((at, model.pop_front().unwrap()));
                            bytes += u64::from(length);
                            prop_assert_eq!(usize::from(length), loans.0.back().unwrap().1.len());
                        }
                        Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                    }
                    loans.check();
                },
                Step::TakeBack(most) => for _ in 0..most.min(loans.0.len()) {
                    loans.take_back(&mut stand.receiver);
                },
                Step::FlushBack => {
                    loans.check();
                    stand.receiver.flush_back();
                    prop_assert_eq!(stand.receiver.lent() > 0, !loans.0.is_empty());
                }
                Step::Receive(most) => {
                    let frames = stand.receiver.frames();
                    prop_assert_eq!(frames.as_ref().err() == Some(&Errno::BUSY), !loans.0.is_empty());
                    let Ok(mut frames) = frames else { continue };
                    for _ in 0..most {
                        let Some(frame) = frames.next() else { break };
                        let expected: Option<Vec<u8>> = model.pop_front();
                        prop_assert_eq!(Some(frame.bytes()), expected.as_deref());
                        bytes += frame.bytes().len() as u64;
                    }
                }
            }
        }
        prop_assert!(model.is_empty(), "{} frames are missing", model.len());
        prop_assert_eq!((stand.agent.violation(stand.ids.0), stand.agent.violation(stand.ids.1)), (None, None));
        prop_assert_eq!(bytes, expected.1);
        let [sent, received] = stand.counts();
        prop_assert_eq!((received.frames_received, received.bytes_received), expected);
        prop_assert_eq!((sent.frames_sent, sent.bytes_sent, sent.frames_dropped), (expected.0, expected.1, dropped));
    }

    /// Whatever the sender writes into its words and its table, the receiver's library reads nothing outside and goes on.
    #[test]
    fn a_receiver_survives_any_sender(writes in prop::collection::vec((any::<u16>(), any::<u32>(), any::<bool>()), 0..60)) {
        let mut stand = Stand::direct();
        let mut producer = 0u64;
        for (at, value, is_index) in writes {
            if is_index {
                producer = producer.wrapping_add(u64::from(value % 9) * 64 + u64::from(value % 50 == 0));
                stand.words.0.store_u64(pipe_control::SEND_PRODUCER, producer, Ordering::Release);
            } else {
                let entry = if value % 4 == 0 { value } else { entry((value % 300) as u16, (value >> 30) as u16) };
                stand.words.0.store_u32(entry_offset(u64::from(at) * 64, RING), entry, Ordering::Relaxed);
            }
            if let Ok(mut frames) = stand.receiver.frames() {
                while let Some(frame) = frames.next() {
                    prop_assert!((14..=9216).contains(&frame.bytes().len()));
                    std::hint::black_box(frame.bytes().iter().fold(0u8, |sum, &byte| sum ^ byte));
                }
            }
            stand.agent.turn();
        }
        prop_assert_eq!((stand.agent.violation(stand.ids.1), stand.receiver.ended()), (None, None));
    }
}

/// Question of a pipe for the memory of the other end, with the way of the answer.
type Question = (PipeId, Sender<Option<PeerOffer>>);

/// A way to the thread of the agent.
#[derive(Debug)]
struct Far(PipeId, Sender<Question>);

impl Broker for Far {
    fn peer(&mut self) -> Option<PeerOffer> {
        let (reply, answer) = channel();
        self.1.send((self.0, reply)).ok()?;
        answer.recv().ok()?
    }
    fn is_alive(&self) -> bool {
        true
    }
}

/// Runs an agent that answers questions and changes the path all the time until `stop`. Sets `enough` after 40 changes.
fn change_paths(
    agent: &mut Agent,
    ids: (PipeId, PipeId),
    asked: &Receiver<Question>,
    [enough, stop]: [&AtomicBool; 2],
) {
    let (mut changes, mut was, mut turns) = (0, false, 0);
    while !stop.load(Ordering::Acquire) {
        while let Ok((id, reply)) = asked.try_recv() {
            let _ = reply.send(agent.peer(id).ok());
        }
        let is_direct = agent.is_direct(ids.0);
        if is_direct != was {
            (changes, was, turns) = (changes + 1, is_direct, 0);
            enough.fetch_or(changes >= 40, Ordering::Release);
            // Allowed at once, and recalled after some turns.
            agent.set_owner(ids.1, Some(7));
        }
        turns += 1;
        if is_direct && turns == 5 {
            agent.set_owner(ids.1, Some(8));
        }
        if !agent.turn() {
            agent.wait(Duration::from_micros(300));
        }
    }
}

/// Two programs and an agent, each in a thread that sleeps, while the path changes all the time.
#[test]
fn programs_that_sleep_lose_no_frame_while_the_path_changes() {
    let stand = Stand::new();
    let Stand { mut agent, ids, mut sender, mut receiver, .. } = stand;
    let (ask, asked) = channel();
    sender.set_broker(Box::new(Far(ids.0, ask.clone())));
    receiver.set_broker(Box::new(Far(ids.1, ask)));
    let (enough, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (enough, stop) = (&enough, &stop);
    std::thread::scope(|scope| {
        let agent = scope.spawn(move || {
            change_paths(&mut agent, ids, &asked, [enough, stop]);
            agent.count_links();
            [ids.0, ids.1].map(|id| agent.counts(id).unwrap())
        });
        let sender = scope.spawn(move || {
            let mut count = 0;
            while !enough.load(Ordering::Acquire) {
                while let Err(errno) = sender.send(&frame(count, 64 + (count % 3) as usize * 100), BACK) {
                    assert_eq!(errno, Errno::AGAIN);
                    sender.wait_room(RING / 2, PATIENCE).unwrap();
                }
                count += 1;
                if count % 50 == 0 {
                    sender.flush();
                }
                if count % 4096 == 0 {
                    sender.wait_room(RING, PATIENCE).unwrap();
                }
            }
            while sender.send(&frame(u64::MAX, 64), BACK).is_err() {
                sender.wait_room(RING / 2, PATIENCE).unwrap();
            }
            sender.wait_room(RING, PATIENCE).unwrap();
            count
        });
        let (mut expected, mut is_over) = (0, false);
        while !is_over {
            receiver.wait(PATIENCE).unwrap();
            let mut frames = receiver.frames().unwrap();
            while let Some(frame) = frames.next() {
                is_over = number(frame.bytes()) == u64::MAX;
                if !is_over {
                    assert_eq!(number(frame.bytes()), expected);
                    expected += 1;
                }
            }
        }
        assert_eq!(sender.join().unwrap(), expected);
        stop.store(true, Ordering::Release);
        let [sent, received] = agent.join().unwrap();
        assert_eq!((sent.frames_sent, received.frames_received), (expected + 1, expected + 1));
    });
}

#[test]
fn words_of_a_path_are_the_agents() {
    let mut agent = Agent::new().unwrap();
    let (near, _far) = agent.add_link();
    let (_, offer) = agent.open(shape(Direction::Send), near, &[], None).unwrap();
    let words = Region::<Own>::new(&offer.status, 4096);
    assert_eq!(words.map(drop), Err(Errno::PERM));
    let status = Region::<pd_shm::Theirs>::new(&offer.status, 4096).unwrap();
    assert_eq!(status.load_u32(pipe_status::LINK, Ordering::Relaxed), link(0, LinkPath::Agent));
}
