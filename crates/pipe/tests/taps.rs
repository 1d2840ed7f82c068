//! Taps: copies of frames for an observer, which can hold nothing up.

use pd_abi::pipe::{pipe_control, table_bytes, BACK, FRAME_TABLE_OFFSET, PIPE_RING_BYTES_MIN};
use pd_pipe::{
    Agent, Direction, Gen, Made, Pipe, PipeId, Port, PortId, Recipe, Record, Shape, TapId, Tapped, Unit, Way,
    TAPS_MAX,
};
use pd_shm::{Own, Region};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

fn shape(direction: Direction, unit: Unit) -> Shape {
    Shape::new(direction, unit, PIPE_RING_BYTES_MIN).unwrap()
}

fn open(agent: &mut Agent, direction: Direction, port: PortId) -> (PipeId, Pipe) {
    let (id, offer) = agent.open(shape(direction, Unit::Frames), port, &[], None).unwrap();
    let pipe = Pipe::map(offer).unwrap();
    agent.seal(id).unwrap();
    (id, pipe)
}

fn tap(agent: &mut Agent, of: Tapped, snap: usize) -> Result<(TapId, Pipe), Errno> {
    let (made, files, offer) = Made::new(shape(Direction::Receive, Unit::Frames)).unwrap();
    let records = Pipe::map(offer).unwrap();
    files.seal().unwrap();
    Ok((agent.add_tap(made, of, snap)?, records))
}

fn gen(agent: &mut Agent, frames: u64) -> PortId {
    agent.add_port(Port::Gen(Gen::new(Recipe { sizes: vec![64, 300], flows: 1, frames }).unwrap()))
}

/// Reads the records of a tap: lengths, ways, numbers, losses.
fn read(records: &mut Pipe) -> Vec<(u32, Way, u64, u64)> {
    let mut read = Vec::new();
    while let Ok(mut frames) = records.frames() {
        while let Some(frame) = frames.next() {
            let (record, bytes) = Record::read(frame.bytes()).unwrap();
            let number = bytes[42..].first_chunk().map(|number| u64::from_be_bytes(*number)).unwrap();
            read.push((record.frame_bytes, record.way, number, record.lost));
        }
    }
    read
}

#[test]
fn a_port_and_a_pipe_are_seen_both_ways() {
    let mut agent = Agent::new().unwrap();
    let port = gen(&mut agent, 10);
    let (id, mut pipe) = open(&mut agent, Direction::Forward, port);
    let (_, mut of_port) = tap(&mut agent, Tapped::Port(port), 60).unwrap();
    let (_, mut of_pipe) = tap(&mut agent, Tapped::Pipe(id), Record::SNAP_MAX).unwrap();
    agent.turn();
    let mut frames = pipe.frames().unwrap();
    while frames.next().is_some() {}
    drop(frames);
    agent.turn();
    let mut expected: Vec<_> =
        (0..10u64).map(|n| (if n % 2 == 0 { 64 } else { 300 }, Way::In, n, 0)).collect();
    expected.extend((0..10u64).map(|n| (if n % 2 == 0 { 64 } else { 300 }, Way::Out, n, 0)));
    // The first notification is unanswered at the second turn.
    let mut seen = read(&mut of_port);
    agent.turn();
    seen.extend(read(&mut of_port));
    assert_eq!(seen, expected);
    let mut seen = read(&mut of_pipe);
    agent.turn();
    seen.extend(read(&mut of_pipe));
    assert_eq!(seen, expected);
    agent.close(id);
    assert_eq!(of_pipe.frames().err(), Some(Errno::NODEV));
    agent.remove_port(port);
    assert_eq!(of_port.frames().err(), Some(Errno::NODEV));
}

#[test]
fn a_link_is_seen_at_either_end() {
    let mut agent = Agent::new().unwrap();
    let (near, far) = agent.add_link();
    let (_, mut sender) = open(&mut agent, Direction::Send, near);
    let (_, mut receiver) = open(&mut agent, Direction::Receive, far);
    let (_, mut at_near) = tap(&mut agent, Tapped::Port(near), 100).unwrap();
    let (_, mut at_far) = tap(&mut agent, Tapped::Port(far), 100).unwrap();
    let mut frame = [0; 200];
    frame[49] = 7;
    sender.send(&frame, BACK).unwrap();
    sender.flush();
    agent.turn();
    assert_eq!(read(&mut at_near), [(200, Way::Out, 7, 0)]);
    assert_eq!(read(&mut at_far), [(200, Way::In, 7, 0)]);
    assert_eq!(receiver.frames().unwrap().next().unwrap().bytes(), frame);
}

#[test]
fn a_tap_that_nobody_reads_loses_and_counts_and_holds_nothing_back() {
    let mut agent = Agent::new().unwrap();
    let port = gen(&mut agent, 1000);
    let (id, mut pipe) = open(&mut agent, Direction::Receive, port);
    let (tap, mut records) = tap(&mut agent, Tapped::Port(port), 300).unwrap();
    for _ in 0..100 {
        agent.turn();
        if let Ok(mut frames) = pipe.frames() {
            while frames.next().is_some() {}
        }
    }
    assert_eq!(agent.counts(id).unwrap().frames_received, 1000);
    let counts = agent.tap_counts(tap).unwrap();
    assert_eq!(counts.frames + counts.lost, 1000);
    assert!(counts.lost > 500, "{counts:?}");
    let mut seen = read(&mut records);
    agent.turn();
    seen.extend(read(&mut records));
    assert_eq!(seen.len() as u64, counts.frames);
    assert!(seen.iter().map(|record| record.2).eq(0..counts.frames), "what came first is there");
    agent.remove_tap(tap);
    assert_eq!((records.frames().err(), agent.tap_counts(tap)), (Some(Errno::CONNRESET), None));
}

#[test]
fn impossible_words_of_an_observer_end_its_tap_alone() {
    for value in [1, 63, PIPE_RING_BYTES_MIN + 64, u64::MAX, 1 << 63] {
        let mut agent = Agent::new().unwrap();
        let port = gen(&mut agent, 0);
        let (id, mut pipe) = open(&mut agent, Direction::Receive, port);
        let (made, files, offer) = Made::new(shape(Direction::Receive, Unit::Frames)).unwrap();
        let bytes = FRAME_TABLE_OFFSET + table_bytes(PIPE_RING_BYTES_MIN);
        let control = Region::<Own>::new(&offer.control, bytes).unwrap();
        let records = Pipe::map(offer).unwrap();
        files.seal().unwrap();
        agent.add_tap(made, Tapped::Port(port), 300).unwrap();
        agent.turn();
        control.store_u64(pipe_control::RECV_CONSUMER, value, Ordering::Release);
        for _ in 0..3 {
            if let Ok(mut frames) = pipe.frames() {
                while frames.next().is_some() {}
            }
            agent.turn();
        }
        assert_eq!(records.ended(), Some(Errno::PROTO), "{value}");
        assert!(agent.counts(id).unwrap().frames_received > 100 && pipe.ended().is_none());
    }
}

#[test]
fn taps_are_few_and_of_frames() {
    let mut agent = Agent::new().unwrap();
    let port = gen(&mut agent, 1);
    let (id, _pipe) = open(&mut agent, Direction::Receive, port);
    for shape in [shape(Direction::Send, Unit::Frames), shape(Direction::Receive, Unit::Bytes)] {
        let (made, _files, _offer) = Made::new(shape).unwrap();
        assert_eq!(agent.add_tap(made, Tapped::Port(port), 60).err(), Some(Errno::INVAL));
    }
    let kept: Vec<_> = (0..TAPS_MAX).map(|_| tap(&mut agent, Tapped::Port(port), 60).unwrap()).collect();
    assert_eq!(tap(&mut agent, Tapped::Port(port), 60).err(), Some(Errno::MFILE));
    kept.iter().for_each(|(tap, _)| agent.remove_tap(*tap));
    agent.close(id);
    assert_eq!(tap(&mut agent, Tapped::Pipe(id), 60).err(), Some(Errno::BADF));
    let (near, far) = agent.add_link();
    let stream = shape(Direction::Send, Unit::Bytes);
    agent.open(stream, near, &[], None).unwrap();
    assert_eq!(tap(&mut agent, Tapped::Port(far), 60).err(), Some(Errno::OPNOTSUPP));
    agent.remove_port(port);
    assert_eq!(tap(&mut agent, Tapped::Port(port), 60).err(), Some(Errno::INVAL));
}
