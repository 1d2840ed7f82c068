//! Choice of pipes for a port's frames, removed ports, tokens, and doorbells.

use pd_pipe::{
    Agent, Direction, Flow, Gen, Made, Net, Offer, Pipe, PipeId, Port, PortId, Recipe, Route, Shape, Sink,
    Tokens, Unit,
};
use rustix::io::Errno;
use std::time::Duration;

fn shape(direction: Direction) -> Shape {
    Shape::new(direction, Unit::Frames, 64 << 10).unwrap()
}

fn map(agent: &mut Agent, (id, offer): (PipeId, Offer)) -> Pipe {
    let pipe = Pipe::map(offer).unwrap();
    agent.seal(id).unwrap();
    pipe
}

fn bound(agent: &mut Agent, port: PortId, flow: Flow) -> Result<(PipeId, Pipe), Errno> {
    let (made, files, offer) = Made::new(shape(Direction::Receive)).unwrap();
    let id = agent.adopt(made, &Route { flow, ..Route::to(port) })?;
    let pipe = Pipe::map(offer).unwrap();
    files.seal().unwrap();
    agent.start(id).unwrap();
    Ok((id, pipe))
}

fn read(pipe: &mut Pipe) -> Vec<Vec<u8>> {
    let mut read = Vec::new();
    if let Ok(mut frames) = pipe.frames() {
        while let Some(frame) = frames.next() {
            read.push(frame.bytes().to_vec());
        }
    }
    read
}

/// Makes a frame of UDP from 10.0.0.1 port 9 to 10.0.0.`host` port `port`.
fn frame(host: u8, port: u16) -> [u8; 64] {
    let mut frame = [0; 64];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 17;
    frame[26..36].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, host, 0, 9]);
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

#[test]
fn a_frame_goes_to_the_most_specific_flow_and_without_one_nowhere() {
    let mut agent = Agent::new().unwrap();
    let (near, far) = agent.add_link();
    let opened = agent.open(shape(Direction::Send), near, &[], None).unwrap();
    let from = opened.0;
    let mut sender = map(&mut agent, opened);
    let to = |address, prefix| [Net::default(), Net { address, prefix }];
    let dns = Flow { protocol: 17, ports: [0, 53], ..Flow::default() };
    let host = Flow { addresses: to([10, 0, 0, 7], 32), ..Flow::default() };
    let (_, mut of_dns) = bound(&mut agent, far, dns).unwrap();
    let (of_host, mut host_pipe) = bound(&mut agent, far, host).unwrap();
    let send = |agent: &mut Agent, sender: &mut Pipe| {
        for (host, port) in [(2, 53), (7, 53), (2, 80)] {
            sender.send(&frame(host, port), 0).unwrap();
        }
        sender.flush();
        agent.turn();
    };
    send(&mut agent, &mut sender);
    // An address is more specific than a port.
    assert_eq!(read(&mut of_dns), [frame(2, 53)]);
    assert_eq!(read(&mut host_pipe), [frame(7, 53)]);
    assert_eq!((agent.counts(from).unwrap().frames_unbound, agent.port_counts(far).frames_unbound), (1, 1));
    // The rest goes to a pipe for any frame; a pipe that leaves passes its frames to others.
    let (_, mut rest) = bound(&mut agent, far, Flow::default()).unwrap();
    agent.close(of_host);
    send(&mut agent, &mut sender);
    assert_eq!(read(&mut of_dns), [frame(2, 53), frame(7, 53)]);
    assert_eq!(read(&mut rest), [frame(2, 80)]);
    let counts = agent.port_counts(far);
    assert_eq!((counts.frames_received, counts.bytes_received, counts.frames_unbound), (5, 320, 1));
    assert_eq!(agent.port_counts(near).frames_sent, 5);
    // No pipe can be bound to an unsound flow.
    let odd = Flow { ports: [0, 53], ..Flow::default() };
    assert_eq!(bound(&mut agent, far, odd).err(), Some(Errno::INVAL));
}

#[test]
fn a_verdict_counts_where_it_leads() {
    let mut agent = Agent::new().unwrap();
    let recipe = Recipe { sizes: vec![64], flows: 1, frames: 10 };
    let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
    let (near, far) = agent.add_link();
    let opened = agent.open(shape(Direction::Receive), far, &[], None).unwrap();
    let mut receiver = map(&mut agent, opened);
    let opened = agent.open(shape(Direction::Forward), gen, &[near], None).unwrap();
    let mut forwarder = map(&mut agent, opened);
    agent.turn();
    let mut frames = forwarder.frames().unwrap();
    while let Some(mut frame) = frames.next() {
        frame.verdict(1);
    }
    drop(frames);
    agent.turn();
    assert_eq!(read(&mut receiver).len(), 10);
    let counts = [gen, near, far].map(|port| agent.port_counts(port));
    assert_eq!(counts.map(|counts| counts.frames_sent), [0, 10, 0]);
    assert_eq!(counts.map(|counts| counts.frames_received), [10, 0, 10]);
}

#[test]
fn pipes_end_with_their_port_and_its_place_is_another_ports() {
    let mut agent = Agent::new().unwrap();
    let (near, far) = agent.add_link();
    let recipe = Recipe { sizes: vec![64], flows: 1, frames: 0 };
    let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
    let opened = agent.open(shape(Direction::Receive), far, &[], None).unwrap();
    let mut receiver = map(&mut agent, opened);
    let opened = agent.open(shape(Direction::Forward), gen, &[near], None).unwrap();
    let mut forwarder = map(&mut agent, opened);
    let opened = agent.open(shape(Direction::Receive), gen, &[], None).unwrap();
    let mut bystander = map(&mut agent, opened);
    agent.remove_port(near).unwrap();
    assert_eq!(receiver.frames().err(), Some(Errno::NODEV));
    assert_eq!(forwarder.frames().err(), Some(Errno::NODEV));
    assert!(agent.remove_port(near).is_none() && agent.remove_port(far).is_none());
    let open = agent.open(shape(Direction::Send), far, &[], None).map(drop);
    assert_eq!(open, Err(Errno::INVAL));
    agent.turn();
    assert_eq!(read(&mut bystander).len(), 256);
    let sink = agent.add_port(Port::Sink(Sink::default()));
    assert!(sink == near || sink == far);
    assert_eq!(agent.open(shape(Direction::Forward), gen, &[near, far], None).map(drop), Err(Errno::INVAL));
}

#[test]
fn pipes_send_what_their_purse_has_tokens_for() {
    let mut agent = Agent::new().unwrap();
    let sink = agent.add_port(Port::Sink(Sink::default()));
    let mut pipes = Vec::new();
    for purse in [Some(0), Some(0), Some(1), None] {
        let opened = agent.open(shape(Direction::Send), sink, &[], None).unwrap();
        let id = opened.0;
        agent.set_purse(id, purse);
        let mut pipe = map(&mut agent, opened);
        for _ in 0..10 {
            pipe.send(&[1; 100], 0).unwrap();
        }
        pipe.flush();
        pipes.push((id, pipe));
    }
    let sent = |agent: &mut Agent| [0, 1, 2, 3].map(|n: usize| agent.counts(pipes[n].0).unwrap().frames_sent);
    agent.fill_purse(0, Tokens { frames: 3, bytes: 1000 });
    agent.turn();
    let counts = sent(&mut agent);
    assert_eq!((counts[0] + counts[1], counts[2], counts[3]), (3, 10, 10));
    assert!(agent.lacks_tokens());
    // The last frame exceeds the tokens.
    assert_eq!(agent.fill_purse(0, Tokens { frames: 9, bytes: 150 }), Tokens { frames: 0, bytes: 700 });
    agent.turn();
    let counts = sent(&mut agent);
    assert_eq!(counts[0] + counts[1], 5);
    assert!(counts[0] > 0 && counts[1] > 0, "each is the first in its turn: {counts:?}");
    assert_eq!(agent.fill_purse(0, Tokens::ALL), Tokens { frames: 7, bytes: -50 });
    agent.turn();
    assert_eq!((sent(&mut agent), agent.lacks_tokens()), ([10; 4], false));
}

/// A program that waits for many events at once reads a byte for each wake-up.
#[test]
fn a_doorbell_is_rung_when_its_program_is_to_be_woken() {
    let mut agent = Agent::new().unwrap();
    let recipe = Recipe { sizes: vec![64], flows: 1, frames: 1 };
    let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
    let opened = agent.open(shape(Direction::Receive), gen, &[], None).unwrap();
    let id = opened.0;
    let mut pipe = map(&mut agent, opened);
    let (theirs, wake_fd) = pd_shm::wake::pair().unwrap();
    pipe.set_wake_fd(theirs).unwrap();
    assert!(!pipe.arm().unwrap());
    let readable = |pipe: &Pipe| {
        let fd = pipe.wake_fd().unwrap();
        let mut ready = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ready, Some(&Default::default())).unwrap() == 1
    };
    assert!(!readable(&pipe));
    // Frames come before the agent has its end.
    agent.turn();
    agent.set_wake_fd(id, pd_shm::ringer::WakeEnd::new(wake_fd, None));
    assert!(readable(&pipe));
    assert!(pipe.arm().unwrap() && !readable(&pipe));
    assert_eq!(read(&mut pipe).len(), 1);
    assert!(!pipe.arm().unwrap());
    agent.end(id, Errno::ACCESS);
    assert!(readable(&pipe));
    assert_eq!((pipe.arm(), pipe.wait(Duration::ZERO)), (Err(Errno::ACCESS), Err(Errno::ACCESS)));
}
