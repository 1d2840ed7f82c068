//! The bytes: right at the destination, and untouched everywhere else.

use super::memory::{pattern, Memory};
use super::{execute, unless_miri};
use crate::{Engine, QueuePair};
use pd_abi::{limits::QUEUE_DEPTH, CommandStatus};

/// Bytes around a destination that are looked at: more than any vector or line.
const MARGIN: usize = 256;

struct Bench {
    memory: Memory,
    pair: Box<dyn QueuePair>,
    /// Offset of the destination half.
    half: usize,
}

impl Bench {
    fn new(engine: &dyn Engine, len_max: usize) -> Self {
        let half = (len_max + 2 * MARGIN + 4096).next_multiple_of(4096);
        Self { memory: Memory::new(2 * half), pair: engine.queue_pair().expect("a queue pair"), half }
    }

    /// Copies `len` bytes with both addresses so far off alignment, and looks at all that may have changed.
    fn copy(&mut self, engine: &dyn Engine, src_odd: usize, dst_odd: usize, len: usize) {
        let (src, dst) = (MARGIN + src_odd, self.half + MARGIN + dst_odd);
        let around = len + 2 * MARGIN;
        self.memory.fill(dst - MARGIN, &vec![0xee; around]);
        let command = self.memory.copy(src, dst, len);
        // SAFETY: `memory` outlives the command, which `execute` waits for; the halves are disjoint.
        let completions = unsafe { execute(engine, &mut *self.pair, &[command]) };
        assert_eq!(completions.len(), 1);
        assert_eq!(CommandStatus::from_raw(completions[0].status), CommandStatus::Ok);
        let bytes = self.memory.bytes(dst - MARGIN, around);
        let at = format!("{len} bytes from an address {src_odd} to one {dst_odd} off a page");
        assert!(bytes[..MARGIN].iter().all(|b| *b == 0xee), "bytes before the destination written: {at}");
        assert!(bytes[MARGIN + len..].iter().all(|b| *b == 0xee), "bytes beyond the end written: {at}");
        assert!(bytes[MARGIN..MARGIN + len].iter().copied().eq((src..src + len).map(pattern)), "wrong: {at}");
    }
}

/// Copies every length up to 2,100 bytes, and lengths around powers of two up to the chunk size.
pub fn every_size(engine: &dyn Engine) {
    let chunk = engine.capability().chunk_bytes_max as usize;
    let mut bench = Bench::new(engine, chunk);
    for len in (1..=chunk.min(2100)).step_by(unless_miri(1, 61)) {
        bench.copy(engine, len % 67, len % 61, len);
    }
    let powers =
        (11..).map(|power| 1usize << power).take_while(|len| *len <= chunk.min(unless_miri(chunk, 4096)));
    for len in powers.chain([chunk]) {
        for len in [len - 1, len, len + 1].into_iter().filter(|len| (1..=chunk).contains(len)) {
            bench.copy(engine, len % 67, len % 61, len);
            bench.copy(engine, 0, 0, len);
        }
    }
}

/// Copies with every pair of alignments within a line, for lengths on both sides of a loop's step.
pub fn odd_alignments(engine: &dyn Engine) {
    let chunk = engine.capability().chunk_bytes_max as usize;
    let mut bench = Bench::new(engine, 4200);
    for len in [1, 63, 64, 255, 256, 257, 300, 511, 512, 1025, 4099].into_iter().filter(|len| *len <= chunk) {
        for src_odd in (0..64).step_by(unless_miri(3, 37)) {
            for dst_odd in (0..64).step_by(unless_miri(1, 29)) {
                bench.copy(engine, src_odd, dst_odd, len);
            }
        }
    }
}

/// Commands in flight may share a source, and their destinations may touch.
pub fn one_source_many_destinations(engine: &dyn Engine) {
    let len = 509.min(engine.capability().chunk_bytes_max as usize);
    let memory = Memory::new((QUEUE_DEPTH + 1) * len);
    let mut pair = engine.queue_pair().expect("a queue pair");
    let commands: Vec<_> = (1..=QUEUE_DEPTH).map(|i| memory.copy(0, i * len, len)).collect();
    // SAFETY: `memory` outlives the commands, and their destinations are disjoint.
    let completions = unsafe { execute(engine, &mut *pair, &commands) };
    assert!(completions.iter().all(|c| CommandStatus::from_raw(c.status) == CommandStatus::Ok));
    let bytes = memory.bytes(0, (QUEUE_DEPTH + 1) * len);
    assert!(bytes.chunks(len).all(|copy| *copy == bytes[..len]));
}
