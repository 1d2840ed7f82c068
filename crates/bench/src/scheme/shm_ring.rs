//! A ring in memory that both sides map read-write, as in SocksDirect between two processes. Messages are
//! written and read in place, nobody copies, and nobody is protected from the other.
//!
//! [`Ring`] is one direction: a ring of [`pd_shm::byte_ring`] whose index page both sides write, each index on cache lines of its own.
//! A wait is a short spin, then a sleep on a futex. The ring is mapped twice in a row, so that each record is contiguous.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use pd_abi::limits::PAGE_BYTES;
use pd_shm::byte_ring::{self, Consumer, Producer};
use pd_shm::wait::{self, SharedCells, Waker};
use pd_shm::{Own, Region, Spin};

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

/// Places of an index and of the words by which its sleeping reader is woken. They share two lines with no other.
struct Words {
    index: usize,
    wake_at: usize,
    doorbell: usize,
}

const PRODUCED: Words = Words { index: 0, wake_at: 8, doorbell: 16 };
const CONSUMED: Words = Words { index: 128, wake_at: 136, doorbell: 144 };
/// Half word: the other side has mapped it.
const ATTACHED: usize = 256;

fn cells<'a>(ring: &'a byte_ring::Ring<Own>, words: &Words) -> SharedCells<'a, Own, Own> {
    SharedCells { wake_at: (ring.map(), words.wake_at), doorbell: (ring.map(), words.doorbell) }
}

/// A direction.
pub struct Ring {
    ring: byte_ring::Ring<Own>,
    producer: Producer,
    consumer: Consumer,
    waker: Waker,
}

impl Ring {
    /// Makes (or opens) the file at `path` and maps it. At most `data_bytes` lie in it at a time.
    pub fn open(path: &Path, data_bytes: usize, create: bool) -> Result<Ring> {
        let ring_bytes = data_bytes.next_power_of_two().max(PAGE_BYTES);
        let open = || -> std::io::Result<Option<Region<Own>>> {
            let file =
                OpenOptions::new().read(true).write(true).create(create).truncate(create).open(path)?;
            if create {
                file.set_len((PAGE_BYTES + ring_bytes) as u64)?;
            }
            if file.metadata()?.len() < (PAGE_BYTES + ring_bytes) as u64 {
                return Ok(None);
            }
            let map = Region::<Own>::twice_behind(&file, PAGE_BYTES, ring_bytes, PAGE_BYTES)?;
            // Only spares page faults later; older kernels lack it.
            let _ = map.populate(0, map.len());
            Ok(Some(map))
        };
        let map = open().with_context(|| format!("cannot map {}", path.display()))?;
        let Some(map) = map else { bail!("{} is too short", path.display()) };
        let ring = byte_ring::Ring::new(Arc::new(map), PAGE_BYTES, ring_bytes as u64);
        let (producer, consumer) = (Producer::new(data_bytes as u64), Consumer::new(data_bytes as u64));
        Ok(Ring { ring, producer, consumer, waker: Waker::default() })
    }

    /// Records that this side has mapped the file.
    fn attach(&self) {
        self.ring.map().store_u32(ATTACHED, 1, Ordering::Release);
    }

    /// Waits until the other side has mapped the file.
    fn await_other(&self) -> Result<()> {
        let end = Instant::now() + CONNECT_MAX;
        while self.ring.map().load_u32(ATTACHED, Ordering::Acquire) == 0 {
            if Instant::now() > end {
                bail!("nobody connected within {CONNECT_MAX:?}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Publishes an index, and wakes the other side if that waits for it.
    fn show(&mut self, words: &Words, index: u64) {
        self.ring.publish(words.index, index);
        self.waker.wake(&cells(&self.ring, words), index);
    }

    /// Waits until the other side's index has reached `value`. Returns the index.
    fn wait(&self, words: &Words, value: u64) -> u64 {
        let reached = || self.ring.load(words.index) >= value;
        if !waiting::look(SPIN_PAUSES, reached) {
            while !reached() {
                let mut no_spin = Spin::new(Duration::ZERO);
                wait::sleep(&cells(&self.ring, words), value, &mut no_spin, SLEEP_MAX, reached);
                waiting::slept();
            }
        }
        self.ring.load(words.index)
    }

    /// Returns a pointer to `len` bytes at a position.
    fn at(&self, position: u64, len: usize) -> *mut u8 {
        self.ring.map().address(self.ring.place(position), len).as_ptr()
    }

    /// Writes one record of `len` bytes in place; waits for room.
    pub fn produce(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        self.reserve(len, fill);
        self.publish();
    }

    /// Produces as [`Ring::produce`], but the other side sees the bytes only after [`Ring::publish`].
    pub fn reserve(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        if self.producer.room() < len as u64 {
            let until = self.producer.written() + len as u64 - self.producer.ring_bytes();
            let consumed = self.wait(&CONSUMED, until);
            self.producer.see(consumed).expect("the other side reads what was written");
        }
        // SAFETY: the consumer has given these bytes back, which it says with a release store, and does
        // not read them before the store in `publish`.
        fill(unsafe { std::slice::from_raw_parts_mut(self.at(self.producer.written(), len), len) });
        self.producer.write(len as u64);
    }

    /// Publishes reserved bytes.
    pub fn publish(&mut self) {
        let produced = self.producer.publish();
        self.show(&PRODUCED, produced);
    }

    /// Waits until everything is consumed.
    pub fn drain(&self) {
        self.wait(&CONSUMED, self.producer.published());
    }

    /// Waits for bytes, lends contiguous ones (at most `max`), and gives them back.
    pub fn consume(&mut self, max: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        if self.consumer.unread() == 0 {
            let produced = self.wait(&PRODUCED, self.consumer.read() + 1);
            self.consumer.see(produced).expect("the other side writes into free places");
        }
        let len = (self.consumer.unread() as usize).min(max);
        // SAFETY: the producer has published these bytes with a release store and does not write them
        // before the store below.
        take(unsafe { std::slice::from_raw_parts(self.at(self.consumer.read(), len), len) });
        self.consumer.take(len as u64);
        if let Some(consumed) = self.consumer.give_back(self.consumer.read()) {
            self.show(&CONSUMED, consumed);
        }
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

    fn check(data_bytes: usize, record_bytes: usize) {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("x");
        let mut consumer = Pair::create(&base, data_bytes).unwrap();
        let mut producer = Pair::open(&base, data_bytes).unwrap();
        consumer.await_other(&base).unwrap();
        let sender = std::thread::spawn(move || {
            for n in 0..10_000u32 {
                producer
                    .out
                    .produce(record_bytes, &mut |record| record[..4].copy_from_slice(&n.to_ne_bytes()));
            }
            producer.out.drain();
        });
        let mut next = 0;
        while next < 10_000 {
            consumer.back.consume(16 * record_bytes, &mut |bytes| {
                assert!(bytes.len() <= data_bytes);
                for record in bytes.chunks(record_bytes) {
                    assert_eq!(u32::from_ne_bytes(record[..4].try_into().unwrap()), next);
                    next += 1;
                }
            });
        }
        sender.join().unwrap();
        assert!(!base.with_extension("forth").exists());
    }

    #[test]
    fn records_arrive_in_order_through_a_small_ring() {
        check(4096, 64);
        // Fewer than the memory holds, which records cross the end of.
        check(3000, 1000);
        check(32, 16);
    }
}
