//! A ring in memory that both sides map read-write, as in SocksDirect between two processes. Messages are
//! written and read in place, nobody copies, and nobody is protected from the other.
//!
//! [`Ring`] is one direction: free-running counters on cache lines of their own, a short spin, then a
//! sleep on a futex. Records have one size, which divides the ring, so that each is contiguous.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use memmap2::MmapRaw;
use rustix::thread::futex;

use super::{single, End};
use crate::protocol::Open;
use crate::waiting;

/// Bytes of one direction; more for messages of which it would hold fewer than two.
const RING_BYTES: usize = 4 << 20;
/// Pauses before a sleep. Spinning longer keeps the other side off a shared core.
const SPIN_PAUSES: u32 = 200;
/// A sleeper looks at the counters this often, should the other side have died.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// Longest wait of the listening side for the connecting one.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// The first bytes hold the [`Header`].
const DATA_AT: usize = 4096;

/// Words that both sides share beside the data.
#[repr(C)]
struct Header {
    produced: Line,
    consumed: Line,
    attached: AtomicU32,
}

/// A counter, and how its sleeping reader is woken.
#[repr(C, align(128))]
struct Line {
    count: AtomicU64,
    sleeping: AtomicU32,
    doorbell: AtomicU32,
}

impl Line {
    fn publish(&self, count: u64) {
        self.count.store(count, Ordering::Release);
        // Against the reader's store of `sleeping` and load of `count`: one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) != 0 {
            self.sleeping.store(0, Ordering::Relaxed);
            self.doorbell.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&self.doorbell, futex::Flags::empty(), 1);
        }
    }

    fn wait(&self, reached: impl Fn(u64) -> bool) -> u64 {
        if waiting::look(SPIN_PAUSES, || reached(self.count.load(Ordering::Acquire))) {
            return self.count.load(Ordering::Acquire);
        }
        loop {
            let doorbell = self.doorbell.load(Ordering::Acquire);
            self.sleeping.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let count = self.count.load(Ordering::Acquire);
            if reached(count) {
                self.sleeping.store(0, Ordering::Relaxed);
                return count;
            }
            let timeout = futex::Timespec { tv_sec: 0, tv_nsec: SLEEP_MAX.as_nanos() as _ };
            let _ = futex::wait(&self.doorbell, futex::Flags::empty(), doorbell, Some(&timeout));
            waiting::slept();
        }
    }
}

/// A direction.
pub struct Ring {
    map: MmapRaw,
    data_bytes: usize,
    produced: u64,
    consumed: u64,
}

// SAFETY: the mapping is plain memory that is reached through atomics and, by the protocol, by one side
// at a time; moving the handle to another thread changes nothing about that.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes (or opens) the file at `path` and maps it. `data_bytes` is a multiple of every record.
    pub fn open(path: &Path, data_bytes: usize, create: bool) -> Result<Ring> {
        let open = || -> std::io::Result<MmapRaw> {
            let file =
                OpenOptions::new().read(true).write(true).create(create).truncate(create).open(path)?;
            if create {
                file.set_len((DATA_AT + data_bytes) as u64)?;
            }
            let map = MmapRaw::map_raw(&file)?;
            // Only spares page faults later; older kernels lack it.
            let _ = map.advise(memmap2::Advice::PopulateWrite);
            Ok(map)
        };
        let map = open().with_context(|| format!("cannot map {}", path.display()))?;
        if map.len() < DATA_AT + data_bytes {
            bail!("{} is too short", path.display());
        }
        Ok(Ring { map, data_bytes, produced: 0, consumed: 0 })
    }

    fn header(&self) -> &Header {
        const { assert!(size_of::<Header>() <= DATA_AT) };
        // SAFETY: the mapping is longer than the header, aligned to a page, lives as long as `self`, and
        // the header consists of atomics, which any bytes are.
        unsafe { &*self.map.as_ptr().cast::<Header>() }
    }

    /// Says that this side has mapped it.
    fn attach(&self) {
        self.header().attached.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until the other side has mapped it.
    fn await_other(&self) -> Result<()> {
        let end = Instant::now() + CONNECT_MAX;
        while self.header().attached.load(Ordering::Acquire) == 0 {
            if Instant::now() > end {
                bail!("nobody connected within {CONNECT_MAX:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns a pointer to `len` bytes at a position.
    fn at(&self, position: u64, len: usize) -> *mut u8 {
        let offset = (position % self.data_bytes as u64) as usize;
        assert!(offset + len <= self.data_bytes, "records divide the ring");
        // SAFETY: `DATA_AT + data_bytes` was checked to be within the mapping, and `offset + len` just now
        // to be within the data.
        unsafe { self.map.as_mut_ptr().add(DATA_AT + offset) }
    }

    /// Writes one record of `len` bytes in place; waits for room.
    pub fn produce(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        self.reserve(len, fill);
        self.publish();
    }

    /// Produces as [`Ring::produce`], but the other side sees the bytes only after [`Ring::publish`].
    pub fn reserve(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let full = self.data_bytes as u64 - len as u64;
        if self.produced - self.consumed > full {
            let produced = self.produced;
            self.consumed = self.header().consumed.wait(|consumed| produced - consumed <= full);
        }
        // SAFETY: the consumer has given these bytes back, which it says with a release store, and does
        // not read them before the store in `publish`.
        fill(unsafe { std::slice::from_raw_parts_mut(self.at(self.produced, len), len) });
        self.produced += len as u64;
    }

    /// Publishes reserved bytes.
    pub fn publish(&self) {
        self.header().produced.publish(self.produced);
    }

    /// Waits until everything is consumed.
    pub fn drain(&self) {
        self.header().consumed.wait(|consumed| consumed == self.produced);
    }

    /// Waits for bytes, lends contiguous ones (at most `max`), and gives them back.
    pub fn consume(&mut self, max: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        if self.produced == self.consumed {
            let consumed = self.consumed;
            self.produced = self.header().produced.wait(|produced| produced > consumed);
        }
        let to_end = self.data_bytes - (self.consumed % self.data_bytes as u64) as usize;
        let len = ((self.produced - self.consumed) as usize).min(to_end).min(max);
        // SAFETY: the producer has published these bytes with a release store and does not write them
        // before the store below.
        take(unsafe { std::slice::from_raw_parts(self.at(self.consumed, len), len) });
        self.consumed += len as u64;
        self.header().consumed.publish(self.consumed);
        len
    }
}

/// Two rings, one for each direction.
pub struct Pair {
    /// To the other side.
    pub out: Ring,
    /// From the other side.
    pub back: Ring,
}

fn paths(base: &Path) -> [PathBuf; 2] {
    ["forth", "back"].map(|direction| base.with_extension(direction))
}

impl Pair {
    /// Makes them; the connecting side sends on the first.
    pub fn create(base: &Path, data_bytes: usize) -> Result<Pair> {
        let [forth, back] = paths(base);
        Ok(Pair { out: Ring::open(&back, data_bytes, true)?, back: Ring::open(&forth, data_bytes, true)? })
    }

    /// Waits for the other side and removes the files, which both have mapped then.
    pub fn await_other(&self, base: &Path) -> Result<()> {
        let attached = self.back.await_other();
        paths(base).iter().for_each(|path| drop(std::fs::remove_file(path)));
        attached
    }

    /// Opens them.
    pub fn open(base: &Path, data_bytes: usize) -> Result<Pair> {
        let [forth, back] = paths(base);
        let pair =
            Pair { out: Ring::open(&forth, data_bytes, false)?, back: Ring::open(&back, data_bytes, false)? };
        pair.out.attach();
        Ok(pair)
    }
}

/// Named memory lives here.
const SHM_DIR: &str = "/dev/shm";

/// Returns the prefix of the names of a run's rings.
fn prefix(dir: &Path) -> String {
    format!("pd-bench-{}-", dir.file_name().unwrap_or_default().to_string_lossy())
}

/// Returns the path of the rings of a scheme.
pub fn base(dir: &Path, name: &str) -> PathBuf {
    Path::new(SHM_DIR).join(prefix(dir) + name)
}

/// Removes the names of a run's rings.
pub fn remove_all(dir: &Path) {
    let prefix = prefix(dir);
    for entry in std::fs::read_dir(SHM_DIR).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn ring_bytes(message_bytes: usize) -> usize {
    RING_BYTES.max(2 * message_bytes) / message_bytes * message_bytes
}

/// Rings that nobody has opened yet.
pub struct Listening {
    pair: Pair,
    base: PathBuf,
    open: Open,
    end: fn(Pair, &Open) -> Box<dyn End>,
}

impl Listening {
    /// Rings of `bytes` in `/dev/shm`, under a name that only this run uses; `end` makes an end of them.
    pub fn new(
        open: &Open,
        dir: &Path,
        name: &str,
        bytes: usize,
        end: fn(Pair, &Open) -> Box<dyn End>,
    ) -> Result<Listening> {
        single(open)?;
        let base = base(dir, name);
        Ok(Listening { pair: Pair::create(&base, bytes)?, base, open: *open, end })
    }
}

impl super::Listening for Listening {
    fn address(&self) -> Result<String> {
        Ok(self.base.display().to_string())
    }

    fn accept(self: Box<Self>, _from: &str) -> Result<Box<dyn End>> {
        self.pair.await_other(&self.base)?;
        Ok((self.end)(self.pair, &self.open))
    }
}

fn recv_bytes(open: &Open) -> usize {
    (super::memory::RECV_BYTES / open.message_bytes).max(1) * open.message_bytes
}

/// Makes the listening end of this scheme.
pub fn listen(open: &Open, dir: &Path) -> Result<Listening> {
    Listening::new(open, dir, "ring", ring_bytes(open.message_bytes), end)
}

/// Makes the connecting end.
pub fn connect(open: &Open, to: &str) -> Result<Box<dyn End>> {
    single(open)?;
    Ok(end(Pair::open(Path::new(to), ring_bytes(open.message_bytes))?, open))
}

fn end(pair: Pair, open: &Open) -> Box<dyn End> {
    Box::new(ShmEnd { pair, recv_bytes: recv_bytes(open) })
}

struct ShmEnd {
    pair: Pair,
    recv_bytes: usize,
}

impl End for ShmEnd {
    fn send(&mut self, _connection: usize, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        self.pair.out.produce(len, fill);
        Ok(())
    }

    fn recv(&mut self, _connection: usize, take: &mut dyn FnMut(&[u8])) -> Result<usize> {
        Ok(self.pair.back.consume(self.recv_bytes, take))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_arrive_in_order_through_a_small_ring() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("x");
        let mut consumer = Pair::create(&base, 4096).unwrap();
        let mut producer = Pair::open(&base, 4096).unwrap();
        consumer.await_other(&base).unwrap();
        let sender = std::thread::spawn(move || {
            for n in 0..10_000u32 {
                producer.out.produce(64, &mut |record| record[..4].copy_from_slice(&n.to_ne_bytes()));
            }
            producer.out.drain();
        });
        let mut next = 0;
        while next < 10_000 {
            consumer.back.consume(1024, &mut |bytes| {
                for record in bytes.chunks(64) {
                    assert_eq!(u32::from_ne_bytes(record[..4].try_into().unwrap()), next);
                    next += 1;
                }
            });
        }
        sender.join().unwrap();
        assert!(!base.with_extension("forth").exists());
    }
}
