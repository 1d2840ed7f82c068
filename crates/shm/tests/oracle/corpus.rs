//! Programs for an oracle on a stable compiler: the kept ones of `fuzz/seeds`, and mutations of them.
//!
//! `PD_FUZZ_SECONDS` says for how long, else 2,000 mutations run. `PD_FUZZ_SEED` repeats a run. A program that fails is printed.
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

const MUTATIONS: u64 = 2_000;
const BYTES_MAX: usize = 1_000;

/// Runs `oracle` with the programs of `seeds`, one a line in hexadecimal, and with mutations of them.
pub fn run(seeds: &str, oracle: fn(&[u8])) {
    let seeds: Vec<Vec<u8>> = seeds.lines().map(program).collect();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seconds, seed) = (number("PD_FUZZ_SECONDS"), number("PD_FUZZ_SEED").unwrap_or(1).max(1));
    println!("PD_FUZZ_SEED={seed}");
    let (begun, mut random, mut done) = (Instant::now(), Random(seed), 0);
    seeds.iter().for_each(|program| checked(program, oracle));
    while seconds.map_or(done < MUTATIONS, |seconds| begun.elapsed() < Duration::from_secs(seconds)) {
        let mut program = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(8) {
            mutate(&mut program, &seeds, &mut random);
        }
        program.truncate(BYTES_MAX);
        checked(&program, oracle);
        done += 1;
    }
    println!("{} kept programs, {done} mutations", seeds.len());
}

fn program(line: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).expect("hexadecimal");
    (0..line.len() / 2).map(|n| byte(2 * n)).collect()
}

fn checked(program: &[u8], oracle: fn(&[u8])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| oracle(program))) {
        let text: String = program.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("a program for fuzz/seeds: {text}");
        resume_unwind(panic);
    }
}

/// Changes a place of the program, its length, or takes a piece of another one.
fn mutate(program: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(program.len() + 1);
    match (random.below(6), at < program.len()) {
        (0, true) => program[at] ^= 1 << random.below(8),
        (1, true) => program[at] = random.next() as u8,
        (2, true) => drop(program.drain(at..(at + 1 + random.below(16)).min(program.len()))),
        (3, true) => {
            let edge = [0, 1, u64::MAX, 1 << 63, 1 << 32, 4096][random.below(6)].to_le_bytes();
            let len = (program.len() - at).min(edge.len());
            program[at..at + len].copy_from_slice(&edge[..len]);
        }
        (4, _) => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len());
            let piece = other[from..(from + 1 + random.below(32)).min(other.len())].to_vec();
            program.splice(at..at, piece);
        }
        _ => program.insert(at, random.next() as u8),
    }
}

/// Xorshift: the same numbers from the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}
