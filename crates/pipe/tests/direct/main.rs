//! Links whose frames go directly from a program to another, and back by the agent, at any time.
mod hostile;
mod lending;
mod polling;
mod queue;
mod recall;
mod stream;
mod takeover;
mod threads;

use pd_abi::pipe::{entry, entry_offset, link, pipe_control, pipe_status, table_bytes, LinkPath};
use pd_abi::pipe::{BACK, DROP, FRAME_BYTES_MAX, FRAME_TABLE_OFFSET};
use pd_pipe::{Agent, Broker, Direction, Made, Offer, PeerOffer, Pipe, PipeId, PortId, Route, Shape, TapId};
use pd_pipe::{Lease, PipeCounts, Tapped, Tokens, Unit, Violation};
use pd_shm::{Own, Region};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
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

/// Frames that nobody reads fill the ring, on either path.
#[test]
fn a_wait_for_more_frames_than_the_ring_has_is_refused() {
    for goes_direct in [false, true] {
        let mut stand = if goes_direct { Stand::direct() } else { Stand::new() };
        let mut number = 0;
        while stand.receiver.waiting() < RING {
            assert!(number < 10_000);
            while stand.sender.send(&frame(number, 64), BACK).is_ok() {
                number += 1;
            }
            stand.sender.flush();
            stand.agent.turn();
            let is_refused = stand.receiver.wait_more(Duration::ZERO) == Err(Errno::NOBUFS);
            assert!(!is_refused || stand.receiver.waiting() + stand.receiver.shape().headroom() > RING);
        }
        assert_eq!(stand.receiver.wait_more(Duration::from_secs(1)), Err(Errno::NOBUFS));
        assert_eq!(stand.receiver.wait(Duration::from_secs(1)), Ok(()));
        let mut frames = stand.receiver.frames().unwrap();
        (0..160).for_each(|_| assert!(frames.next().is_some()));
        drop(frames);
        assert_ne!(stand.receiver.wait_more(Duration::ZERO), Err(Errno::NOBUFS));
        // An end is told rather than that.
        stand.agent.remove_port(stand.ports.0);
        let ended = loop {
            if let Err(errno) = stand.receiver.wait_more(PATIENCE) {
                break errno;
            }
        };
        assert_eq!(ended, Errno::NODEV);
    }
}

/// A program that reads nothing and waits for more is told of more, of the agent's word, and of the end of its sender.
#[test]
fn a_wait_for_more_frames_than_are_there_sees_every_change() {
    let mut stand = Stand::direct();
    let wait = |stand: &mut Stand| stand.receiver.wait_more(Duration::ZERO);
    stand.send(0);
    assert_eq!(stand.receiver.wait(PATIENCE), Ok(()));
    assert_eq!(wait(&mut stand), Err(Errno::AGAIN));
    stand.send(1);
    assert_eq!(stand.receiver.wait_more(PATIENCE), Ok(()));
    assert_eq!(wait(&mut stand), Err(Errno::AGAIN));
    // Recalled: what it has not read comes by the agent, with what follows.
    stand.agent.set_owner(stand.ids.1, Some(8));
    stand.agent.turn();
    assert_eq!(wait(&mut stand), Err(Errno::AGAIN));
    stand.send(2);
    stand.agent.turn();
    assert_eq!(stand.receive(), [0, 1, 2]);
    stand.agent.set_owner(stand.ids.1, Some(7));
    stand.go_direct();
    stand.send(3);
    assert_eq!(stand.receiver.wait(PATIENCE), Ok(()));
    stand.agent.close(stand.ids.0);
    assert_eq!(stand.receiver.wait_more(PATIENCE), Err(Errno::NOBUFS), "the next sender's come behind it");
    assert_eq!(stand.receive(), [3]);
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
