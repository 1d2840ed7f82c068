//! Pipes against simple models: queues of frames, of bytes and of messages, and a tally of verdicts.

use pd_abi::pipe::{BACK, DROP, PIPE_RING_BYTES_MIN};
use pd_pipe::{Agent, Direction, Gen, Pipe, PipeId, Port, PortId, Prefix, Recipe, Shape, Sink, Unit};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::VecDeque;

fn open(agent: &mut Agent, shape: Shape, port: PortId, others: &[PortId]) -> (PipeId, Pipe) {
    let (id, offer) = agent.open(shape, port, others, None).unwrap();
    let pipe = Pipe::map(offer).unwrap();
    agent.seal(id).unwrap();
    (id, pipe)
}

fn shape(direction: Direction, unit: Unit, ring_bytes: u64) -> Shape {
    Shape::new(direction, unit, ring_bytes).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Flush,
    Turn,
    Receive(usize),
    Prefetch,
}

fn steps(longest: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..longest).prop_map(Step::Send),
        2 => Just(Step::Flush),
        3 => Just(Step::Turn),
        3 => (1usize..40).prop_map(Step::Receive),
        1 => Just(Step::Prefetch),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Frames of any length arrive whole, once and in order, also across the ring's end and through full rings.
    #[test]
    fn a_link_of_frames_is_a_queue(steps in steps(9000), small in any::<bool>()) {
        let mut agent = Agent::new().unwrap();
        let (near, far) = agent.add_link();
        let (from, mut to_agent) = open(&mut agent, shape(Direction::Send, Unit::Frames, 32 << 10), near, &[]);
        let ring = if small { 32 << 10 } else { 128 << 10 };
        let (to, mut from_agent) = open(&mut agent, shape(Direction::Receive, Unit::Frames, ring), far, &[]);
        let (mut model, mut number, mut told) = (VecDeque::new(), 0u8, 1);
        for step in steps.into_iter().chain([Step::Flush]).chain((0..200).map(|n| if n % 2 == 0 { Step::Turn } else { Step::Receive(100) })) {
            match step {
                Step::Send(len) => {
                    number = number.wrapping_add(1);
                    let frame = vec![number; len.max(14)];
                    match to_agent.send(&frame, BACK) {
                        Ok(()) => model.push_back(frame),
                        Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                    }
                }
                Step::Flush => to_agent.flush(),
                Step::Turn => drop(agent.turn()),
                Step::Prefetch => {
                    from_agent.prefetch().unwrap();
                    told += 1;
                }
                Step::Receive(count) => {
                    let Ok(mut frames) = from_agent.frames() else { continue };
                    for _ in 0..count {
                        let Some(frame) = frames.next() else { break };
                        let expected: Option<Vec<u8>> = model.pop_front();
                        prop_assert_eq!(Some(frame.bytes()), expected.as_deref());
                        told += 1;
                    }
                }
            }
        }
        prop_assert!(model.is_empty(), "{} frames are missing", model.len());
        prop_assert_eq!((agent.violation(from), agent.violation(to)), (None, None));
        // At most one notification for each answer, and one answer for each frame.
        prop_assert!(agent.counts(to).unwrap().notifications <= told);
    }

    /// A stream keeps its bytes, whatever its cuts.
    #[test]
    fn a_link_of_bytes_is_a_stream(steps in steps(30_000)) {
        let mut agent = Agent::new().unwrap();
        let (near, far) = agent.add_link();
        let (_, mut to_agent) = open(&mut agent, shape(Direction::Send, Unit::Bytes, 32 << 10), near, &[]);
        let (_, mut from_agent) = open(&mut agent, shape(Direction::Receive, Unit::Bytes, 32 << 10), far, &[]);
        let (mut sent, mut got) = (0u64, 0u64);
        for step in steps.into_iter().chain([Step::Flush]).chain((0..100).map(|n| if n % 2 == 0 { Step::Turn } else { Step::Receive(39) })) {
            match step {
                Step::Send(len) => match to_agent.place(len) {
                    Ok(place) => {
                        place.iter_mut().enumerate().for_each(|(at, byte)| *byte = (sent + at as u64) as u8);
                        to_agent.placed(BACK);
                        sent += len as u64;
                    }
                    Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                },
                Step::Flush => to_agent.flush(),
                Step::Turn => drop(agent.turn()),
                Step::Prefetch => from_agent.prefetch().unwrap(),
                Step::Receive(part) => {
                    let Ok(bytes) = from_agent.peek() else { continue };
                    let len = bytes.len() * (part + 1) / 40;
                    prop_assert!(bytes[..len].iter().enumerate().all(|(at, &byte)| byte == (got + at as u64) as u8));
                    prop_assert_eq!(from_agent.done(len), Ok(()));
                    got += len as u64;
                }
            }
        }
        prop_assert_eq!(got, sent);
    }

    /// Messages come whole and in order, also empty ones and those that arrive in parts.
    #[test]
    fn messages_come_whole(lengths in prop::collection::vec(0usize..12_000, 1..60), four in any::<bool>(), cut in 50usize..9000) {
        let prefix = if four { Prefix::Four } else { Prefix::Two };
        let mut agent = Agent::new().unwrap();
        let (near, far) = agent.add_link();
        let (_, mut to_agent) = open(&mut agent, shape(Direction::Send, Unit::Bytes, 32 << 10), near, &[]);
        let (_, mut from_agent) = open(&mut agent, shape(Direction::Receive, Unit::Bytes, 32 << 10), far, &[]);
        let mut stream = Vec::new();
        for (number, &length) in lengths.iter().enumerate() {
            let mut message = vec![0; prefix.bytes() + length];
            prefix.write(&vec![number as u8; length], &mut message).unwrap();
            stream.extend(message);
        }
        let (mut expected, mut left) = (lengths.iter().enumerate(), &stream[..]);
        let mut turns = 0;
        while expected.len() > 0 {
            let len = cut.min(left.len());
            if len > 0 && to_agent.send(&left[..len], BACK).is_ok() {
                left = &left[len..];
                to_agent.flush();
            }
            agent.turn();
            // As `Pipe::wait` asks for more after a part of a message.
            from_agent.prefetch().unwrap();
            if let Ok(mut messages) = from_agent.messages(prefix) {
                while let Some(message) = messages.next().unwrap() {
                    let (number, &length) = expected.next().unwrap();
                    prop_assert_eq!(message.len(), length);
                    prop_assert!(message.iter().all(|&byte| byte == number as u8));
                }
            }
            turns += 1;
            prop_assert!(turns < 100_000, "no progress");
        }
    }

    /// Each frame of a forwarding pipe goes to its verdict's destination, with its cut length.
    #[test]
    fn verdicts_are_obeyed(verdicts in prop::collection::vec((0u8..4, 14usize..2000), 1..400), turns in 1usize..50) {
        let mut agent = Agent::new().unwrap();
        let recipe = Recipe { sizes: vec![64, 1500, 60, 576], flows: 3, frames: 0 };
        let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
        let sink = agent.add_port(Port::Sink(Sink::default()));
        let (id, mut pipe) = open(&mut agent, shape(Direction::Forward, Unit::Frames, 32 << 10), gen, &[sink]);
        let (mut back, mut dropped, mut sunk, mut sunk_bytes) = (0, 0, 0, 0);
        let mut verdicts = verdicts.into_iter();
        while verdicts.len() > 0 {
            agent.turn();
            let Ok(mut frames) = pipe.frames() else { continue };
            for (verdict, length) in verdicts.by_ref().take(turns) {
                let Some(mut frame) = frames.next() else { break };
                match verdict {
                    0 => back += 1,
                    1 => {
                        frame.verdict(DROP);
                        dropped += 1;
                    }
                    _ => {
                        frame.verdict(1);
                        frame.truncate(length);
                        frame.bytes_mut().unwrap()[..14].fill(7);
                        sunk += 1;
                        sunk_bytes += length.min(frame.bytes().len()) as u64;
                    }
                }
            }
        }
        for _ in 0..10 {
            agent.turn();
        }
        let counts = agent.counts(id).unwrap();
        prop_assert_eq!((counts.frames_sent, counts.frames_foreign), (back + sunk, 0));
        let Port::Gen(gen) = agent.port(gen) else { unreachable!() };
        prop_assert_eq!((gen.counts().returned.0, gen.counts().wrong), (back, 0));
        let Port::Sink(sink) = agent.port(sink) else { unreachable!() };
        prop_assert_eq!((sink.frames, sink.bytes), (sunk, sunk_bytes));
        // The rest of a cut frame is a dropped frame of its own.
        prop_assert!(counts.frames_dropped >= dropped);
    }
}

/// Frames lent several at a time, as by the C API, form a queue: in order, in place until taken back, and cut as requested.
#[test]
fn loans_end_in_order_and_hold_their_bytes() {
    proptest!(ProptestConfig::with_cases(64), |(steps in prop::collection::vec((0u8..4, 1usize..9), 1..300))| {
        let mut agent = Agent::new().unwrap();
        let recipe = Recipe { sizes: vec![64, 1500, 300], flows: 1, frames: 0 };
        let port = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
        let shape = shape(Direction::Forward, Unit::Frames, PIPE_RING_BYTES_MIN);
        let (id, mut pipe) = open(&mut agent, shape, port, &[]);
        let number = |frame: &[u8]| frame[42..].first_chunk().map(|number| u64::from_be_bytes(*number)).unwrap();
        let (mut lent, mut next, mut back) = (std::collections::VecDeque::new(), 0u64, 0u64);
        for (step, count) in steps {
            match step {
                0 => drop(agent.turn()),
                1 => for _ in 0..count {
                    match pipe.lend() {
                        Ok((at, length)) => {
                            prop_assert_eq!(usize::from(length), [64, 1500, 300][(next % 3) as usize]);
                            lent.push_back((at, usize::from(length), next));
                            next += 1;
                        }
                        Err(errno) => prop_assert_eq!(errno, Errno::AGAIN),
                    }
                },
                2 => for _ in 0..count {
                    let Some((at, length, expected)) = lent.pop_front() else {
                        prop_assert_eq!(pipe.take_back(64, BACK), Err(Errno::INVAL));
                        continue;
                    };
                    // SAFETY: a loan that has not ended, of a pipe that lives, which nobody writes.
                    let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), length) };
                    prop_assert_eq!(number(bytes), expected);
                    prop_assert_eq!(pipe.take_back(usize::MAX, BACK), Ok(length as u16));
                    back += 1;
                },
                _ => {
                    pipe.flush_back();
                    let busy = pipe.lent() > 0;
                    prop_assert_eq!(pipe.frames().err() == Some(Errno::BUSY), busy);
                }
            }
        }
        pipe.flush_back();
        while agent.turn() && agent.counts(id).unwrap().frames_sent < back {}
        prop_assert_eq!(agent.counts(id).unwrap().frames_sent, back);
        let Port::Gen(gen) = agent.port(port) else { panic!("no generator") };
        prop_assert_eq!((gen.counts().wrong, gen.counts().missing), (0, 0));
    });
}

#[test]
fn notifications_are_reactive() {
    let mut agent = Agent::new().unwrap();
    let recipe = Recipe { sizes: vec![64], flows: 1, frames: 0 };
    let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
    let (id, mut pipe) = open(&mut agent, shape(Direction::Receive, Unit::Frames, 512 << 10), gen, &[]);
    let told = |agent: &mut Agent| agent.counts(id).unwrap().notifications;
    for _ in 0..10 {
        agent.turn();
    }
    assert_eq!(told(&mut agent), 1);
    let count = |pipe: &mut Pipe| {
        let (mut frames, mut count) = (pipe.frames().unwrap(), 0);
        while frames.next().is_some() {
            count += 1;
        }
        count
    };
    assert_eq!(count(&mut pipe), 256, "those of the first turn");
    agent.turn();
    assert_eq!(told(&mut agent), 2);
    agent.turn();
    assert_eq!(told(&mut agent), 2);
    pipe.prefetch().unwrap();
    agent.turn();
    agent.turn();
    assert_eq!(told(&mut agent), 3);
    assert_eq!(count(&mut pipe), 256 * 12, "of all turns but the last");
}

/// Frames of a flow stay in order where a port has several pipes, and a pipe more or less moves only some flows.
#[test]
fn flows_keep_their_order_over_several_pipes() {
    let mut agent = Agent::new().unwrap();
    let recipe = Recipe { sizes: vec![64, 128], flows: 1000, frames: 50_000 };
    let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
    let mut pipes: Vec<_> = (0..7)
        .map(|_| open(&mut agent, shape(Direction::Forward, Unit::Frames, 32 << 10), gen, &[]).1)
        .collect();
    let mut idle = 0;
    while idle < 100 {
        idle = if agent.turn() { 0 } else { idle + 1 };
        for pipe in &mut pipes {
            if let Ok(mut frames) = pipe.frames() {
                while frames.next().is_some() {}
            }
        }
    }
    let Port::Gen(gen) = agent.port(gen) else { unreachable!() };
    let counts = gen.counts();
    assert_eq!((counts.returned, counts.missing, counts.wrong), (counts.made, 0, 0));
    assert_eq!(counts.made.0, 50_000);
}

/// Calls that a kind of pipe does not support are refused with a clear errno.
#[test]
fn calls_of_another_kind_of_pipe_are_refused() {
    let mut agent = Agent::new().unwrap();
    let (near, far) = agent.add_link();
    let (_, mut sender) = open(&mut agent, shape(Direction::Send, Unit::Frames, 32 << 10), near, &[]);
    let (_, mut receiver) = open(&mut agent, shape(Direction::Receive, Unit::Frames, 32 << 10), far, &[]);
    assert_eq!(sender.frames().err(), Some(Errno::OPNOTSUPP));
    assert_eq!(sender.prefetch(), Err(Errno::OPNOTSUPP));
    assert_eq!(receiver.peek().err(), Some(Errno::OPNOTSUPP));
    assert_eq!(receiver.place(64).err(), Some(Errno::OPNOTSUPP));
    assert_eq!(receiver.frames().err(), Some(Errno::AGAIN));
    for len in [0, 13, 9217, 100_000] {
        assert_eq!(sender.place(len).err(), Some(Errno::MSGSIZE));
    }
    assert_eq!(sender.wait_room(33 << 10, std::time::Duration::ZERO), Err(Errno::INVAL));
    let mut count = 0;
    while sender.send(&[0; 1024], BACK).is_ok() {
        count += 1;
    }
    assert_eq!((count, sender.untaken()), (32, 32 << 10));
}
