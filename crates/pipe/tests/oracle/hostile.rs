//! A program that writes anything into the words, the frame table and the ring of its pipe, while the agent takes turns.
//!
//! The agent must neither panic nor trust it, and two honest programs of the same agent go on without loss. The property test
//! `crates/pipe/tests/hostile.rs` and the fuzz target `pipes` run this.
#[path = "../../../shm/tests/oracle/program.rs"]
mod program;

use self::program::Program;
use pd_abi::pipe::{entry, entry_offset, pipe_control, table_bytes, BACK, FRAME_TABLE_OFFSET};
use pd_pipe::{Agent, Direction, Gen, Offer, Pipe, Port, Recipe, Shape, Sink, Unit};
use pd_shm::{Own, Region};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

const RING_BYTES: u64 = 32 << 10;

/// The memory of the hostile program, without any checks.
struct Raw {
    control: Region<Own>,
    ring: Option<Region<Own>>,
    /// Last values of the words.
    words: [u64; WORDS.len()],
}

const WORDS: [usize; 5] = [
    pipe_control::RECV_CONSUMER,
    pipe_control::RECV_WANTED,
    pipe_control::SEND_PRODUCER,
    pipe_control::RECV_WAKE_AT,
    pipe_control::SEND_WAKE_AT,
];

impl Raw {
    fn map(offer: &Offer) -> Self {
        let bytes = FRAME_TABLE_OFFSET + table_bytes(offer.shape.ring_bytes());
        let control = Region::<Own>::new(&offer.control, bytes).unwrap();
        let ring = offer.shape.sends();
        let ring = ring.then(|| Region::<Own>::new(&offer.ring, offer.shape.ring_bytes() as usize).unwrap());
        Self { control, ring, words: [0; WORDS.len()] }
    }

    fn store(&mut self, word: usize, value: u64) {
        self.words[word] = value;
        self.control.store_u64(WORDS[word], value, Ordering::Release);
    }
}

/// An honest sender and an honest receiver at two ends of a link.
struct Neighbours {
    from: Pipe,
    to: Pipe,
    sent: VecDeque<u64>,
    number: u64,
}

impl Neighbours {
    fn send(&mut self) {
        let mut frame = [0u8; 200];
        frame[64..72].copy_from_slice(&self.number.to_ne_bytes());
        match self.from.send(&frame[..72 + self.number as usize % 100], BACK) {
            Ok(()) => self.sent.push_back(self.number),
            Err(errno) => assert_eq!(errno, Errno::AGAIN),
        }
        self.number += 1;
        self.from.flush();
    }

    fn receive(&mut self) {
        let mut frames = match self.to.frames() {
            Ok(frames) => frames,
            Err(errno) => return assert_eq!(errno, Errno::AGAIN),
        };
        while let Some(frame) = frames.next() {
            let number = self.sent.pop_front().expect("a frame that nobody sent");
            assert_eq!(frame.bytes()[64..72], number.to_ne_bytes());
            assert_eq!(frame.bytes().len(), 72 + number as usize % 100);
        }
    }
}

fn shape(direction: Direction, unit: Unit) -> Shape {
    Shape::new(direction, unit, RING_BYTES).unwrap()
}

/// Runs one program.
///
/// # Panics
/// If the agent panics, or a neighbour loses a frame.
pub fn run(program: &[u8]) {
    let mut program = Program(program);
    let mut agent = Agent::new().unwrap();
    let recipe = Recipe { sizes: vec![64, 300, 1500], flows: 3, frames: 0 };
    let gen = agent.add_port(Port::Gen(Gen::new(recipe).unwrap()));
    let sink = agent.add_port(Port::Sink(Sink::default()));
    let (near, far) = agent.add_link();
    let (here, there) = agent.add_link();

    let kind = program.byte();
    let direction = [Direction::Receive, Direction::Send, Direction::Forward][kind as usize % 3];
    let unit = if kind & 4 == 0 { Unit::Frames } else { Unit::Bytes };
    let (port, others) = match (unit, direction) {
        (Unit::Frames, Direction::Send) => (sink, vec![near, gen]),
        (Unit::Frames, _) => (gen, vec![near, sink]),
        (Unit::Bytes, _) => (near, vec![]),
    };
    let (hostile, offer) = agent.open(shape(direction, unit), port, &others, None).unwrap();
    let mut raw = Raw::map(&offer);
    agent.seal(hostile).unwrap();
    // The far end of the hostile program's link: an honest receiver, and an honest sender for streams.
    let (far_to, offer) = agent.open(shape(Direction::Receive, unit), far, &[], None).unwrap();
    let mut far_pipe = Pipe::map(offer).unwrap();
    agent.seal(far_to).unwrap();

    let (one, offer) = agent.open(shape(Direction::Send, Unit::Frames), here, &[], None).unwrap();
    let from = Pipe::map(offer).unwrap();
    let (other, offer) = agent.open(shape(Direction::Receive, Unit::Frames), there, &[], None).unwrap();
    let to = Pipe::map(offer).unwrap();
    agent.seal(one).unwrap();
    agent.seal(other).unwrap();
    let mut neighbours = Neighbours { from, to, sent: VecDeque::new(), number: 0 };

    while !program.0.is_empty() {
        match program.byte() % 10 {
            0 => {
                let word = program.byte() as usize % WORDS.len();
                raw.store(word, program.number(8));
            }
            1 | 2 => {
                let (word, step) = (program.byte() as usize % WORDS.len(), program.number(2));
                let step = if unit == Unit::Frames { step * 64 % RING_BYTES } else { step };
                raw.store(word, raw.words[word].wrapping_add(step));
            }
            3 => {
                let at = FRAME_TABLE_OFFSET + program.number(2) as usize % (RING_BYTES as usize / 64) * 4;
                raw.control.store_u32(at, program.number(4) as u32, Ordering::Relaxed);
            }
            4 | 5 => {
                // An honest program's entry, at the place where it sends next; also with another port.
                let at = entry_offset(raw.words[2] & !63, RING_BYTES);
                let (length, to) = (program.number(2) as u16 % 2048, program.byte() as u16 % 5);
                raw.control.store_u32(at, entry(length, to), Ordering::Relaxed);
            }
            6 => {
                let (at, value) = (program.number(2) as usize % (RING_BYTES as usize / 8), program.number(8));
                if let Some(ring) = &raw.ring {
                    ring.store_u64(at * 8, value, Ordering::Relaxed);
                }
            }
            7 => {
                agent.turn();
            }
            8 => neighbours.send(),
            _ => {
                neighbours.receive();
                drain(&mut far_pipe);
            }
        }
    }
    // The neighbours finish.
    for _ in 0..1000 {
        agent.turn();
        neighbours.receive();
        drain(&mut far_pipe);
    }
    assert!(neighbours.sent.is_empty(), "{} frames of a neighbour are lost", neighbours.sent.len());
    assert!(agent.violation(one).is_none() && agent.violation(other).is_none());
    assert!(agent.violation(far_to).is_none());
    agent.close(hostile);
    assert!(agent.counts(hostile).is_none());
}

fn drain(pipe: &mut Pipe) {
    match pipe.shape().unit() {
        Unit::Frames => {
            if let Ok(mut frames) = pipe.frames() {
                while let Some(frame) = frames.next() {
                    assert!((14..=9216).contains(&frame.bytes().len()));
                }
            }
        }
        Unit::Bytes => {
            if let Ok(len) = pipe.peek().map(<[u8]>::len) {
                pipe.done(len).unwrap();
            }
        }
    }
}
