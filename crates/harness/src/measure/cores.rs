//! Distance of two cores: the transfer time of a cache line, and the throughput of bulk data through memory.
//!
//! A virtual machine's cores move between those of its host. Two that share a last-level cache copy several times as fast from one to the
//! other as two that do not, and nothing in the guest tells which they are. Benchmarks therefore measure it beside their rounds, with no
//! code of the data path.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// Time that each of the two figures takes.
const INTERVAL: Duration = Duration::from_millis(8);
/// Exchanges of a line, of which the fastest lot counts: others met an interrupt.
const EXCHANGES: u64 = 200;
/// The ring's pieces: 32 of 128 KB are the direct path's usual ring.
const SLOTS: u64 = 32;
const SLOT_BYTES: usize = 128 << 10;

/// Two cores and the distance between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cores {
    /// Nanoseconds for a cache line from one to the other.
    pub apart_ns: f64,
    /// Throughput of a ring with the writer on one core and the reader on the other.
    pub copy_gbit_per_s: f64,
}

/// A word on lines of its own, with its neighbours that are fetched along.
#[repr(align(256))]
struct Word(AtomicU64);

impl Word {
    const fn new() -> Word {
        Word(AtomicU64::new(0))
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

impl Cores {
    /// Measures the first two cores that this thread may use, in about 20 ms; nothing where there is one.
    pub fn measure() -> Option<Cores> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        let cores = (cores.next()?, cores.next()?);
        let copied = copy(cores)?;
        Some(Cores { apart_ns: exchange(cores)?, copy_gbit_per_s: copied * 8.0 / 1e9 })
    }
}

fn pin(core: usize) -> Option<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).ok()
}

/// Runs `far` on the second core until `near` on the first is done.
fn both<T: Send>(
    cores: (usize, usize),
    near: impl FnOnce() -> T + Send,
    far: impl FnOnce(&AtomicBool) + Send,
) -> Option<T> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| pin(cores.1).map(|()| far(&over)));
        let near = scope.spawn(|| {
            let result = pin(cores.0).map(|()| near());
            over.store(true, Ordering::Relaxed);
            result
        });
        near.join().ok()?
    })
}

/// Nanoseconds of half an exchange.
fn exchange(cores: (usize, usize)) -> Option<f64> {
    let word = Word::new();
    let near = || {
        let (begun, mut next, mut best) = (Instant::now(), 1, f64::MAX);
        while begun.elapsed() < INTERVAL {
            let lot = Instant::now();
            for _ in 0..EXCHANGES {
                word.store(next);
                while word.load() == next {
                    if begun.elapsed() > INTERVAL * 4 {
                        return None;
                    }
                }
                next += 2;
            }
            best = best.min(lot.elapsed().as_nanos() as f64 / EXCHANGES as f64 / 2.0);
        }
        Some(best)
    };
    let far = |over: &AtomicBool| {
        while !over.load(Ordering::Relaxed) {
            let seen = word.load();
            if seen % 2 == 1 {
                word.store(seen + 1);
            }
        }
    };
    both(cores, near, far)?
}

/// Bytes per second.
fn copy(cores: (usize, usize)) -> Option<f64> {
    let slots: Vec<Mutex<Vec<u8>>> = (0..SLOTS).map(|_| Mutex::new(vec![1; SLOT_BYTES])).collect();
    let slot = |n: u64| slots[(n % SLOTS) as usize].lock().unwrap_or_else(|e| e.into_inner());
    let (written, read) = (Word::new(), Word::new());
    let near = || {
        let (bytes, mut at) = (vec![2; SLOT_BYTES], 0);
        // The first turn only brings the memory to where it will be.
        let (mut begun, mut first) = (Instant::now(), 0);
        loop {
            if first == 0 && at >= 2 * SLOTS {
                (begun, first) = (Instant::now(), at);
            }
            if begun.elapsed() > INTERVAL {
                break;
            }
            if at < read.load() + SLOTS {
                slot(at).copy_from_slice(&bytes);
                at += 1;
                written.store(at);
            }
        }
        (first > 0).then(|| (at - first) as f64 * SLOT_BYTES as f64 / begun.elapsed().as_secs_f64())
    };
    let far = |over: &AtomicBool| {
        let (mut bytes, mut at) = (vec![0; SLOT_BYTES], 0);
        while !over.load(Ordering::Relaxed) {
            if at < written.load() {
                bytes.copy_from_slice(&slot(at));
                at += 1;
                read.store(at);
            }
        }
    };
    both(cores, near, far)?
}

/// Detects rounds in which the machine differed from the others.
#[derive(Debug, Default)]
pub struct Watch {
    nearest_ns: Option<f64>,
}

impl Watch {
    /// Cores this many times as far from each other as they have been are others.
    const FARTHER: f64 = 2.0;
    /// Stolen time, of all, that disturbs a round.
    pub const STOLEN: f64 = 0.03;

    /// Returns whether a round is disturbed that lay between two measurements, and in which that part of the time was stolen.
    pub fn is_disturbed(&mut self, around: &[Cores], stolen: f64) -> bool {
        let nearest = around.iter().map(|cores| cores.apart_ns).chain(self.nearest_ns).reduce(f64::min);
        self.nearest_ns = nearest;
        let far = |cores: &Cores| nearest.is_some_and(|nearest| cores.apart_ns > nearest * Self::FARTHER);
        stolen > Self::STOLEN || around.iter().any(far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_have_a_distance() {
        match Cores::measure() {
            Some(cores) => assert!(cores.apart_ns > 1.0 && cores.copy_gbit_per_s > 0.01, "{cores:?}"),
            None => println!("SKIPPED: one core, or one that is busy with something else"),
        }
    }

    #[test]
    fn rounds_of_cores_far_apart_or_with_stolen_time_are_disturbed() {
        let at = |apart_ns| Cores { apart_ns, copy_gbit_per_s: 100.0 };
        let mut watch = Watch::default();
        assert!(!watch.is_disturbed(&[], 0.0));
        assert!(watch.is_disturbed(&[], 0.05));
        assert!(!watch.is_disturbed(&[at(170.0), at(165.0)], 0.0), "nothing nearer is known");
        assert!(!watch.is_disturbed(&[at(32.0), at(37.0)], 0.01));
        assert!(watch.is_disturbed(&[at(32.0), at(165.0)], 0.01));
        assert!(!watch.is_disturbed(&[at(60.0), at(34.0)], 0.0));
    }
}
