//! Ports that lead out: requests of an agent to a device, losses at a full pipe, and copies for a mirror.

use pd_pipe::{Agent, Device, Direction, Flow, Made, Pipe, PipeId, PortId, Route, Shape, Taken, Unit};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

/// State that a test and its device share.
#[derive(Debug, Default)]
struct World {
    /// Frames to be received, the next one last.
    coming: Vec<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    /// Outcome of sent frames.
    taken: Option<Taken>,
    flows: Vec<Flow>,
    flushed: u64,
}

#[derive(Debug)]
struct Scripted {
    world: Arc<Mutex<World>>,
    head: Option<Vec<u8>>,
}

impl Device for Scripted {
    fn peek(&mut self) -> Option<&[u8]> {
        if self.head.is_none() {
            self.head = self.world.lock().unwrap().coming.pop();
        }
        self.head.as_deref()
    }

    fn advance(&mut self) {
        self.head = None;
    }

    fn send(&mut self, frame: &[u8]) -> Taken {
        let mut world = self.world.lock().unwrap();
        let taken = world.taken.unwrap_or(Taken::Done);
        if taken == Taken::Done {
            world.sent.push(frame.to_vec());
        }
        taken
    }

    fn flush(&mut self) -> bool {
        self.world.lock().unwrap().flushed += 1;
        false
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn bind(&mut self, flows: &[Flow]) {
        self.world.lock().unwrap().flows = flows.to_vec();
    }

    fn flows_max(&self) -> usize {
        2
    }

    fn missed(&self) -> u64 {
        5
    }
}

/// The device, which tells any number of flows apart.
#[derive(Debug)]
struct Many(Scripted);

impl Device for Many {
    fn peek(&mut self) -> Option<&[u8]> {
        self.0.peek()
    }

    fn advance(&mut self) {
        self.0.advance();
    }

    fn send(&mut self, frame: &[u8]) -> Taken {
        self.0.send(frame)
    }

    fn flush(&mut self) -> bool {
        self.0.flush()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

fn open(agent: &mut Agent, port: PortId, direction: Direction, flow: Flow) -> Result<(PipeId, Pipe), Errno> {
    let (made, files, offer) = Made::new(Shape::new(direction, Unit::Frames, 32 << 10).unwrap()).unwrap();
    let id = agent.adopt(made, &Route { flow, ..Route::to(port) })?;
    let pipe = Pipe::map(offer).unwrap();
    files.seal().unwrap();
    agent.start(id).unwrap();
    Ok((id, pipe))
}

fn stand() -> (Agent, PortId, Arc<Mutex<World>>) {
    let mut agent = Agent::new().unwrap();
    let world = Arc::new(Mutex::new(World::default()));
    let port = agent.add_device(Box::new(Scripted { world: Arc::clone(&world), head: None })).unwrap();
    (agent, port, world)
}

fn to_port(port: u16) -> Flow {
    Flow { protocol: 17, ports: [0, port], ..Flow::default() }
}

fn frame(port: u16, number: u8) -> Vec<u8> {
    let mut frame = vec![number; 1000];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    (frame[20], frame[21], frame[23]) = (0, 0, 17);
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

fn count(pipe: &mut Pipe) -> u64 {
    let mut count = 0;
    if let Ok(mut frames) = pipe.frames() {
        while frames.next().is_some() {
            count += 1;
        }
    }
    count
}

#[test]
fn a_device_knows_the_flows_of_its_pipes_and_frames_of_others_are_dropped() {
    let (mut agent, port, world) = stand();
    let flows = || world.lock().unwrap().flows.clone();
    let come = |frames: &[Vec<u8>]| world.lock().unwrap().coming.extend(frames.iter().rev().cloned());
    // Without a pipe no frame waits.
    come(&[frame(7, 0)]);
    agent.turn();
    assert_eq!((flows(), agent.port_counts(port).frames_unbound), (vec![], 1));
    let (seven, mut pipe) = open(&mut agent, port, Direction::Receive, to_port(7)).unwrap();
    let _shares = open(&mut agent, port, Direction::Receive, to_port(7)).unwrap();
    let eight = open(&mut agent, port, Direction::Receive, to_port(8)).unwrap();
    assert_eq!(open(&mut agent, port, Direction::Receive, to_port(9)).map(drop), Err(Errno::NOSPC));
    assert_eq!(flows(), [to_port(7), to_port(8)]);
    agent.close(eight.0);
    assert_eq!(flows(), [to_port(7)]);
    come(&[frame(7, 1), frame(8, 2)]);
    agent.turn();
    assert_eq!(agent.port_counts(port).frames_unbound, 2);
    assert!(count(&mut pipe) <= 1 && agent.counts(seven).is_some());
    assert_eq!(agent.port_counts(port).frames_lost, 5, "what was lost before the agent saw it");
    assert!(agent.remove_port(port).is_some());
    assert_eq!(pipe.wait(std::time::Duration::ZERO), Err(Errno::NODEV));
}

#[test]
fn a_full_pipe_loses_and_a_device_says_whether_a_sender_waits() {
    let (mut agent, port, world) = stand();
    let (idle, _pipe) = open(&mut agent, port, Direction::Receive, to_port(5)).unwrap();
    let (_, mut other) = open(&mut agent, port, Direction::Receive, to_port(7)).unwrap();
    for number in 0..100 {
        world.lock().unwrap().coming.extend([frame(7, number), frame(5, number)]);
    }
    let mut came = 0;
    for _ in 0..50 {
        agent.turn();
        came += count(&mut other);
    }
    let counts = agent.counts(idle).unwrap();
    assert_eq!(counts.frames_received + counts.frames_lost, 100);
    // The ring has room for 32 frames of a kilobyte, and nobody reads it.
    assert_eq!(counts.frames_received, 32);
    let (_, lost) = (came, agent.port_counts(port).frames_lost);
    assert!(lost >= 68 + 5);
    let (id, mut sender) = open(&mut agent, port, Direction::Send, Flow::default()).unwrap();
    for (taken, sent, unsent) in [(Taken::Wait, 0, 0), (Taken::Lost, 0, 1), (Taken::Done, 1, 1)] {
        world.lock().unwrap().taken = Some(taken);
        if taken != Taken::Lost {
            sender.send(&[1; 64], 0).unwrap();
            sender.flush();
        }
        agent.turn();
        let counts = agent.counts(id).unwrap();
        assert_eq!((counts.frames_sent, counts.frames_unsent), (sent, unsent), "{taken:?}");
    }
    assert_eq!(world.lock().unwrap().sent, [vec![1; 64]]);
    assert!(world.lock().unwrap().flushed >= 50);
}

#[test]
fn a_mirror_has_what_was_delivered_both_ways_and_its_losses_are_its_own() {
    let (mut agent, port, world) = stand();
    let (near, far) = agent.add_link();
    let mirrors = [port, near].map(|of| agent.add_mirror(of).unwrap());
    assert_eq!(agent.add_mirror(mirrors[0]), Err(Errno::INVAL));
    let (id, mut echo) = open(&mut agent, port, Direction::Forward, Flow::default()).unwrap();
    let (_, mut eye) = open(&mut agent, mirrors[0], Direction::Receive, Flow::default()).unwrap();
    let (idle, _never) = open(&mut agent, mirrors[0], Direction::Receive, to_port(7)).unwrap();
    for direction in [Direction::Send, Direction::Forward] {
        assert_eq!(open(&mut agent, mirrors[0], direction, Flow::default()).map(drop), Err(Errno::INVAL));
    }
    let (_, mut sender) = open(&mut agent, near, Direction::Send, Flow::default()).unwrap();
    let (_, mut receiver) = open(&mut agent, far, Direction::Receive, Flow::default()).unwrap();
    let (_, mut of_link) = open(&mut agent, mirrors[1], Direction::Receive, Flow::default()).unwrap();
    let (mut came, mut seen, mut on_link, mut received) = (0, 0, 0, 0);
    for number in 0..100u8 {
        // A frame of the flow that the idle observer has, and one of the other's.
        world.lock().unwrap().coming.extend([frame(7, number), frame(8, number)]);
        sender.send(&frame(9, number), 0).unwrap();
        sender.flush();
        for _ in 0..3 {
            agent.turn();
            came += count(&mut echo);
            seen += count(&mut eye);
            on_link += count(&mut of_link);
            received += count(&mut receiver);
        }
    }
    for _ in 0..10 {
        agent.turn();
        came += count(&mut echo);
        seen += count(&mut eye);
        on_link += count(&mut of_link);
        received += count(&mut receiver);
    }
    assert_eq!((came, received, on_link), (200, 100, 100));
    assert_eq!(agent.counts(id).unwrap().frames_sent, 200);
    assert_eq!(seen, 200, "each of its flow there and back");
    let counts = agent.counts(idle).unwrap();
    assert_eq!((counts.frames_received, counts.frames_lost), (32, 168));
    assert_eq!(agent.port_counts(mirrors[0]).frames_lost, 168);
}

/// A turn looks at some pipes alone that are not due: what it does not know of the others makes no difference.
#[test]
fn a_pipe_that_no_turn_has_looked_at_has_all_its_room() {
    const PIPES: u16 = 100;
    /// Frames of 64 bytes that a ring holds.
    const FRAMES: usize = (32 << 10) / 64;
    let world = Arc::new(Mutex::new(World::default()));
    let mut agent = Agent::new().unwrap();
    agent.set_burst(2 * FRAMES);
    let many = Many(Scripted { world: Arc::clone(&world), head: None });
    let port = agent.add_device(Box::new(many)).unwrap();
    let of = |last| Flow { protocol: 17, ports: [0, 1000 + last], ..Flow::default() };
    let mut pipes: Vec<_> =
        (0..PIPES).map(|number| open(&mut agent, port, Direction::Receive, of(number)).unwrap()).collect();
    let frame = |number: u16| {
        let mut frame = vec![7; 64];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[20..22].fill(0);
        frame[23] = 17;
        frame[36..38].copy_from_slice(&(1000 + number).to_be_bytes());
        frame
    };
    // The first turn looks at the first pipes, and fills one behind them.
    let late = PIPES - 10;
    world.lock().unwrap().coming = vec![frame(late); FRAMES];
    agent.turn();
    let read = |pipe: &mut Pipe| {
        let (mut frames, mut count) = (pipe.frames().unwrap(), 0);
        while frames.next().is_some() {
            count += 1;
        }
        count
    };
    assert_eq!(read(&mut pipes[usize::from(late)].1), FRAMES);
    world.lock().unwrap().coming = vec![frame(late); FRAMES];
    agent.turn();
    let counts = agent.counts(pipes[usize::from(late)].0).unwrap();
    assert_eq!((counts.frames_received, counts.frames_lost), (2 * FRAMES as u64, 0));
    // No more than the ring has.
    world.lock().unwrap().coming = vec![frame(late); 2];
    agent.turn();
    assert_eq!(agent.counts(pipes[usize::from(late)].0).unwrap().frames_lost, 2);
    assert_eq!(read(&mut pipes[usize::from(late)].1), FRAMES);
    world.lock().unwrap().coming = vec![frame(late); 3];
    agent.turn();
    assert_eq!(read(&mut pipes[usize::from(late)].1), 3);
    // A pipe closed while it is due, and another in its place.
    world.lock().unwrap().coming = vec![frame(late); 3];
    agent.turn();
    let (closed, mut pipe) = pipes.remove(late.into());
    agent.close(closed);
    assert_eq!(read(&mut pipe), 3);
    let (_, mut again) = open(&mut agent, port, Direction::Receive, of(late)).unwrap();
    world.lock().unwrap().coming = vec![frame(late), frame(3)];
    agent.turn();
    assert_eq!((read(&mut again), read(&mut pipes[3].1)), (1, 1));
}
