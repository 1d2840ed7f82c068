//! A producer, a copier and a consumer, each pinned to a core, that pass windows of two rings on.

use crate::memory::Memory;
use pd_harness::measure::stats::Summary;
use rustix::thread::{sched_setaffinity, CpuSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// GB/s of payload of each of the three, and of the three one after the other.
#[derive(Clone, Copy)]
pub struct Rates {
    pub write: f64,
    pub copy: f64,
    pub read: f64,
    pub all: f64,
}

/// The rates with their names, in the order of a table's lines.
type Column = (&'static str, fn(&Rates) -> f64);
pub const COLUMNS: [Column; 4] =
    [("copy", |r| r.copy), ("write", |r| r.write), ("read", |r| r.read), ("all", |r| r.all)];

impl Rates {
    /// Returns the rates at which `bytes` were written, copied and read in these times.
    fn of(bytes: usize, times: [Duration; 3]) -> Self {
        let rate = |time: Duration| bytes as f64 / time.as_nanos() as f64;
        let [write, copy, read] = times.map(rate);
        Self { write, copy, read, all: rate(times.iter().sum()) }
    }

    /// Returns the median of each rate.
    pub fn medians(rounds: &[Rates]) -> Rates {
        let median = |rate: fn(&Rates) -> f64| Summary::of(rounds.iter().map(rate)).map_or(0.0, |s| s.median);
        let [copy, write, read, all] = COLUMNS.map(|(_, rate)| median(rate));
        Rates { write, copy, read, all }
    }
}

/// Copies a window: destination, source, bytes.
pub type Copy<'a> = Box<dyn FnMut(*mut u8, *const u8, usize) + Send + 'a>;

/// Moves windows of `window` bytes around two rings of `ring` bytes, with each of `copies` in turn, `repeats`
/// times. Returns the rates of each round, in the order of `copies`.
pub fn run(ring: usize, window: usize, repeats: usize, copies: &mut [Copy]) -> Vec<Vec<Rates>> {
    let memory = Memory::new(2 * ring);
    let bytes = rounds(ring, window) * window;
    let mut runs = vec![Vec::new(); copies.len()];
    for _ in 0..repeats {
        for (copy, runs) in copies.iter_mut().zip(&mut runs) {
            runs.push(Rates::of(bytes, once(&memory, ring, window, copy)));
        }
    }
    runs
}

/// Returns the number of windows in eight times around the ring.
fn rounds(ring: usize, window: usize) -> usize {
    8 * ring / window
}

fn once(memory: &Memory, ring: usize, window: usize, copy: &mut Copy) -> [Duration; 3] {
    let turn = AtomicUsize::new(0);
    let (src, dst) = (memory.start() as usize, memory.at(ring) as usize);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let stage = |place: usize, core: usize, work: &mut dyn FnMut(usize)| {
        let mut set = CpuSet::new();
        set.set(core % cores);
        let _ = sched_setaffinity(None, &set);
        let mut busy = Duration::ZERO;
        for round in 0..rounds(ring, window) {
            wait(&turn, 3 * round + place);
            let start = Instant::now();
            work(round * window % ring);
            busy += start.elapsed();
            turn.store(3 * round + place + 1, Ordering::Release);
        }
        busy
    };
    let consumer_core = if cores > 2 { 2 } else { 1 };
    thread::scope(|scope| {
        let producer = scope.spawn(|| stage(0, 1, &mut |at| write((src + at) as *mut u64, window / 8)));
        let copier = scope
            .spawn(|| stage(1, 0, &mut |at| copy((dst + at) as *mut u8, (src + at) as *const u8, window)));
        let consumer =
            scope.spawn(|| stage(2, consumer_core, &mut |at| read((dst + at) as *const u64, window / 8)));
        [producer, copier, consumer].map(|thread| thread.join().expect("a measuring thread"))
    })
}

fn wait(turn: &AtomicUsize, mine: usize) {
    let mut spins = 0u32;
    while turn.load(Ordering::Acquire) != mine {
        spins += 1;
        if spins % 64 == 0 {
            thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

fn write(start: *mut u64, words: usize) {
    // SAFETY: the window lies in the source ring, and it is this thread's turn.
    let words = unsafe { std::slice::from_raw_parts_mut(start, words) };
    for (value, word) in (1u64..).zip(words) {
        *word = value;
    }
    std::hint::black_box(start);
}

fn read(start: *const u64, words: usize) {
    // SAFETY: the window lies in the destination ring, and it is this thread's turn.
    let words = unsafe { std::slice::from_raw_parts(start, words) };
    std::hint::black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
}
