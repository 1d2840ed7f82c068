//! Any engine against a model: a vector of bytes and a list of commands in flight.
//!
//! The steps come from a generator with fixed seeds ([`random_against_model`]) or from a property test,
//! which can then shrink them ([`check`]).

use super::memory::Memory;
use super::unless_miri;
use crate::random::Random;
use crate::{Engine, QueuePair};
use pd_abi::{Command, CommandStatus, CommandType};
use std::time::{Duration, Instant};

/// A call of a queue pair.
#[derive(Clone, Debug)]
pub enum Step {
    /// Submit these as one batch.
    Submit(Vec<Copy>),
    /// Reap with room for this number.
    Reap(usize),
}

/// A command, in terms that any numbers satisfy: each is taken modulo its range.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// Cell and offset to read from.
    pub src: (usize, usize),
    /// Cell and offset to write to.
    pub dst: (usize, usize),
    /// Bytes.
    pub len: usize,
    /// 0: a wrong type; 1: a length of 0; 2: a length above the chunk size; 3: a null address;
    /// otherwise a good command.
    pub kind: u8,
}

const CELLS: usize = 64;
const CELL_BYTES: usize = unless_miri(12 << 10, 512);

struct InFlight {
    command: Command,
    status: CommandStatus,
    src: usize,
    dst: usize,
}

/// Takes the steps, then reaps the rest. Each completion must answer one command in flight (the oldest,
/// if the engine is ordered), and memory must end as the model says. A copy that would break the
/// contract of [`QueuePair::submit`], because another in flight uses its destination, is left out.
pub fn check(engine: &dyn Engine, steps: &[Step]) {
    let memory = Memory::new(CELLS * CELL_BYTES);
    let mut run = Run {
        chunk: engine.capability().chunk_bytes_max as usize,
        ordered: engine.capability().ordered,
        model: memory.bytes(0, CELLS * CELL_BYTES),
        in_flight: Vec::new(),
        submitted: 0,
        pair: engine.queue_pair().expect("a queue pair"),
        memory,
    };
    for step in steps {
        match step {
            Step::Submit(copies) => run.submit(copies),
            Step::Reap(room) => {
                run.reap(*room);
            }
        }
    }
    let start = Instant::now();
    while run.pair.in_flight() > 0 {
        if run.reap(16) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "commands in flight and no completion");
            std::thread::yield_now();
        }
    }
    assert!(run.in_flight.is_empty());
    assert!(run.memory.bytes(0, CELLS * CELL_BYTES) == run.model, "memory is not what the model says");
}

struct Run {
    chunk: usize,
    ordered: bool,
    model: Vec<u8>,
    in_flight: Vec<InFlight>,
    submitted: u16,
    // Before the memory, so that it is dropped first.
    pair: Box<dyn QueuePair>,
    memory: Memory,
}

impl Run {
    fn submit(&mut self, copies: &[Copy]) {
        let first = self.in_flight.len();
        for copy in copies {
            self.plan(copy);
        }
        let batch: Vec<Command> = self.in_flight[first..].iter().map(|planned| planned.command).collect();
        // SAFETY: `plan` keeps the cells apart, and the memory is dropped after the pair.
        let accepted = unsafe { self.pair.submit(&batch) };
        assert!(accepted == batch.len() || self.pair.in_flight() == pd_abi::limits::QUEUE_DEPTH);
        self.in_flight.truncate(first + accepted);
    }

    fn plan(&mut self, copy: &Copy) {
        let (src_cell, dst_cell) = (copy.src.0 % CELLS, copy.dst.0 % CELLS);
        let clash = |other: &InFlight| {
            let of_other = (other.src / CELL_BYTES, other.dst / CELL_BYTES);
            other.status == CommandStatus::Ok
                && (of_other.1 == src_cell || of_other.1 == dst_cell || of_other.0 == dst_cell)
        };
        if src_cell == dst_cell || self.in_flight.iter().any(clash) {
            return;
        }
        let (src_at, dst_at) = (copy.src.1 % CELL_BYTES, copy.dst.1 % CELL_BYTES);
        let len = 1 + copy.len % (CELL_BYTES - src_at.max(dst_at)).min(self.chunk);
        let (src, dst) = (src_cell * CELL_BYTES + src_at, dst_cell * CELL_BYTES + dst_at);
        let mut command = Command { entry_seq: self.submitted, ..self.memory.copy(src, dst, len) };
        self.submitted = self.submitted.wrapping_add(1);
        let status = match copy.kind {
            0 => {
                command.request_type = 9;
                CommandStatus::BadType
            }
            1 => {
                command.data_len = 0;
                CommandStatus::BadLength
            }
            2 => {
                command.data_len = self.chunk as u32 + 1;
                CommandStatus::BadLength
            }
            3 => {
                command.dst_addr = 0;
                CommandStatus::BadAddress
            }
            _ => CommandStatus::Ok,
        };
        self.in_flight.push(InFlight { command, status, src, dst });
    }

    fn reap(&mut self, room: usize) -> usize {
        let mut completions = vec![Command::default(); room];
        let reaped = self.pair.reap(&mut completions);
        for completion in &completions[..reaped] {
            let at = self
                .in_flight
                .iter()
                .position(|other| other.command.entry_seq == completion.entry_seq)
                .expect("a completion answers a command in flight");
            assert!(at == 0 || !self.ordered, "completions of an ordered engine come in order");
            let done = self.in_flight.remove(at);
            let expected = Command {
                request_type: CommandType::GeneralCompleted as u8,
                status: done.status as u8,
                ..done.command
            };
            assert_eq!(*completion, expected);
            if done.status == CommandStatus::Ok {
                self.model.copy_within(done.src..done.src + done.command.data_len as usize, done.dst);
            }
        }
        assert_eq!(self.pair.in_flight(), self.in_flight.len());
        reaped
    }
}

/// Runs random steps from fixed seeds against the model.
pub fn random_against_model(engine: &dyn Engine) {
    for seed in 0..unless_miri(20, 1) as u64 {
        let mut random = Random::new(seed);
        let steps: Vec<Step> = (0..unless_miri(200, 30)).map(|_| random_step(&mut random)).collect();
        check(engine, &steps);
    }
}

fn random_step(random: &mut Random) -> Step {
    if random.below(2) == 0 {
        return Step::Reap(random.below(40) as usize);
    }
    let count = random.below(20);
    let mut number = || random.next() as usize;
    let copy = |_| Copy {
        src: (number(), number()),
        dst: (number(), number()),
        len: number(),
        kind: (number() % 24) as u8,
    };
    Step::Submit((0..count).map(copy).collect())
}
