//! Costs to others of pipes that come and go: counted, in steps and in frames.
use super::steps::steps;
use super::*;
use crate::port::{Device, Taken};
use crate::{Direction, Pipe};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// Owners and payers of pipes.
const INNOCENT: u64 = 1;
const HOSTILE: u64 = 2;

/// A device with a queue of frames for UDP ports, which loses what finds no place.
#[derive(Debug, Default)]
struct Wire {
    queue: VecDeque<Vec<u8>>,
    head: Option<Vec<u8>>,
    next: u16,
    missed: u64,
}

impl Wire {
    /// Flows of the frames, which take turns.
    const FLOWS: u16 = 1000;
    /// Frames that come in a turn, nearly as many as the agent takes, and places for those that it has not taken.
    const COMING: usize = 250;
    const PLACES: usize = 256;
}

impl Device for Wire {
    fn peek(&mut self) -> Option<&[u8]> {
        self.head = self.head.take().or_else(|| self.queue.pop_front());
        self.head.as_deref()
    }

    fn advance(&mut self) {
        self.head = None;
    }

    fn send(&mut self, _: &[u8]) -> Taken {
        Taken::Lost
    }

    /// Ends a turn: further frames have come.
    fn flush(&mut self) -> bool {
        for _ in 0..Self::COMING {
            self.next = self.next % Self::FLOWS + 1;
            if self.queue.len() < Self::PLACES {
                self.queue.push_back(frame(self.next));
            } else {
                self.missed += 1;
            }
        }
        true
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn missed(&self) -> u64 {
        self.missed
    }
}

fn frame(port: u16) -> Vec<u8> {
    let mut frame = vec![0; 64];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 17;
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

fn udp(port: u16) -> Flow {
    Flow { protocol: 17, ports: [0, port], ..Flow::default() }
}

fn open(agent: &mut Agent, port: PortId, direction: Direction, flow: Flow, payer: u64) -> (PipeId, Pipe) {
    let shape = Shape::new(direction, Unit::Frames, 32 << 10).unwrap();
    let (made, files, offer) = Made::new(shape).unwrap();
    let id = agent.adopt(made, &Route { flow, ..Route::to(port) }).unwrap();
    agent.set_payer(id, payer);
    agent.set_owner(id, Some(payer));
    let pipe = Pipe::map(offer).unwrap();
    files.seal().unwrap();
    agent.start(id).unwrap();
    (id, pipe)
}

fn allow_many_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

/// Makes an agent, and a device with `flows` innocent pipes, each of a flow.
fn stand(flows: u16) -> (Agent, PortId, Vec<(PipeId, Pipe)>) {
    allow_many_descriptors();
    let mut agent = Agent::new().unwrap();
    let wire = agent.add_device(Box::new(Wire::default())).unwrap();
    let pipes =
        (1..=flows).map(|port| open(&mut agent, wire, Direction::Receive, udp(port), INNOCENT)).collect();
    (agent, wire, pipes)
}

/// Opens a pipe of each kind for a hostile tenant, and closes it.
fn come_and_go(agent: &mut Agent, port: PortId, number: u16) {
    let flows =
        [Flow::default(), udp(Wire::FLOWS + 1 + number % 100), Flow { protocol: 6, ..Flow::default() }];
    let pipes = flows.map(|flow| open(agent, port, Direction::Receive, flow, HOSTILE));
    agent.turn();
    pipes.iter().for_each(|(id, _)| agent.close(*id));
}

#[test]
fn pipes_that_come_and_go_take_no_frame_of_others() {
    let run = |is_attacked: bool| {
        let (mut agent, wire, mut pipes) = stand(Wire::FLOWS);
        // Both run the same turns.
        for number in 0..100 {
            match is_attacked {
                true => come_and_go(&mut agent, wire, number),
                false => drop(agent.turn()),
            }
            for (_, pipe) in &mut pipes {
                let Ok(mut frames) = pipe.frames() else { continue };
                while frames.next().is_some() {}
            }
        }
        let counts: Vec<_> = pipes.iter().map(|(id, _)| agent.counts(*id).unwrap()).collect();
        let received: Vec<_> = counts.iter().map(|counts| counts.frames_received).collect();
        let lost = counts.iter().map(|counts| counts.frames_lost).sum::<u64>();
        (received, lost, agent.port_counts(wire).frames_lost)
    };
    let alone = run(false);
    assert_eq!((alone.1, alone.2), (0, 0));
    assert!(alone.0.iter().all(|&frames| frames >= 24), "{alone:?}");
    assert_eq!(run(true), alone);
}

#[test]
fn a_pipe_that_comes_and_goes_costs_no_more_beside_many_flows() {
    let run = |flows| {
        let (mut agent, wire, _pipes) = stand(flows);
        agent.turn();
        let before = steps();
        come_and_go(&mut agent, wire, 0);
        agent.turn();
        steps() - before
    };
    let few = run(2);
    assert!(few > 0);
    assert_eq!(run(1000), few);
}

#[test]
fn a_pipe_that_comes_and_goes_has_its_own_link_judged_alone() {
    allow_many_descriptors();
    let run = |links: usize| {
        let mut agent = Agent::new().unwrap();
        let mut pipes = Vec::new();
        for _ in 0..links {
            let (near, far) = agent.add_link();
            pipes.push(open(&mut agent, near, Direction::Send, Flow::default(), INNOCENT));
            pipes.push(open(&mut agent, far, Direction::Receive, Flow::default(), INNOCENT));
        }
        let (near, far) = agent.add_link();
        let receiver = open(&mut agent, far, Direction::Receive, Flow::default(), HOSTILE);
        agent.turn();
        let before = steps();
        let sender = open(&mut agent, near, Direction::Send, Flow::default(), HOSTILE);
        agent.turn();
        assert_eq!(agent.partner(sender.0), Some(receiver.0));
        agent.close(sender.0);
        agent.turn();
        assert!((0..links).all(|link| agent.partner(pipes[2 * link].0) == Some(pipes[2 * link + 1].0)));
        steps() - before
    };
    let few = run(1);
    assert!(few > 0);
    assert_eq!(run(400), few);
}

/// Changes are paid by their payer, beside others.
#[test]
fn who_has_pipes_come_and_go_pays_for_it() {
    let (mut agent, wire, _pipes) = stand(1);
    let kept = open(&mut agent, wire, Direction::Receive, udp(2), HOSTILE);
    agent.turn();
    let account = agent.pipes[kept.0.slot].as_ref().unwrap().account;
    let before = agent.shares.credit(account);
    let changed = open(&mut agent, wire, Direction::Receive, udp(3), HOSTILE);
    agent.close(changed.0);
    assert_eq!(before - agent.shares.credit(account), 2 * CHANGE_COST);
}
