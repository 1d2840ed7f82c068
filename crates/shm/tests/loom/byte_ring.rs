//! The ring of bytes: `pd_shm::byte_ring` runs as it is. A side sleeps on its own words, or awaits an event, and the other wakes it.
use super::clients::Everywhere;
use super::*;
use pd_shm::byte_ring::{self, AsymmetricFence, FenceCells};
use std::cell::Cell;

/// The words of one kind of waiting, in the index pages of both sides.
struct Words {
    doorbell: Doorbell,
    event_at: AtomicU64,
    asymmetric: AtomicU32,
    everywhere: Everywhere,
}

impl Words {
    fn new(weak: Weak) -> Self {
        Self {
            doorbell: Doorbell::new(weak),
            event_at: AtomicU64::new(0),
            asymmetric: AtomicU32::new(0),
            everywhere: Everywhere::default(),
        }
    }

    /// Returns the fence of a side that has not slept for long: the other side makes none.
    fn asymmetric(&self) -> AsymmetricFence {
        let mut fence = AsymmetricFence::default();
        (0..256).for_each(|_| fence.went_on(self, || true));
        fence
    }
}

impl WakerCells for Words {
    fn load_wake_at(&self) -> u64 {
        self.everywhere.point(false);
        self.doorbell.load_wake_at()
    }
    fn fence(&self) {
        self.doorbell.weak.fence("byte ring: fence of the waker");
    }
    fn ring(&self) {
        self.doorbell.ring();
    }
}

impl byte_ring::WakerCells for Words {
    fn is_asymmetric(&self) -> bool {
        self.everywhere.point(false);
        self.asymmetric.load(Acquire) != 0
    }
    fn load_event_at(&self) -> u64 {
        self.event_at.load(Relaxed)
    }
    fn compiler_fence(&self) {}
}

impl FenceCells for Words {
    fn store_event_at(&self, index: u64) {
        self.event_at.store(index, Relaxed);
    }
    fn store_asymmetric(&self, is_asymmetric: bool) {
        if is_asymmetric || !self.doorbell.weak.leaves_out("byte ring: end of the asymmetric fence") {
            self.asymmetric.store(is_asymmetric.into(), Relaxed);
        }
    }
    fn is_registered(&self) -> bool {
        true
    }
    fn fence(&self) {
        self.doorbell.weak.fence("byte ring: fence of the sleeper");
    }
    fn barrier(&self) {
        if !self.doorbell.weak.leaves_out("byte ring: barrier of the sleeper") {
            self.everywhere.fence();
        }
    }
}

/// A sleeper with its fence.
struct Sleeper<'a>(&'a Words, Cell<AsymmetricFence>);

impl SleeperCells for Sleeper<'_> {
    fn load_doorbell(&self) -> u32 {
        self.0.doorbell.load_doorbell()
    }
    fn store_wake_at(&self, value: u64) {
        self.0.doorbell.store_wake_at(value);
    }
    fn fence(&self) {
        let mut fence = self.1.take();
        fence.make(self.0);
        self.1.set(fence);
    }
    fn sleep(&self, seen: u32, timeout: Duration) {
        self.0.doorbell.sleep(seen, timeout);
    }
}

impl Sleeper<'_> {
    /// Sleeps until `index` has reached `value`. Returns the index.
    fn until(&self, value: u64, index: impl Fn() -> u64) -> u64 {
        loop {
            let now = index();
            if now >= value {
                return now;
            }
            wait::sleep(self, value, &mut Spin::new(Duration::ZERO), Duration::MAX, || index() >= value);
        }
    }
}

/// A ring of [`RING_BYTES`], with the indices of both sides.
struct Shared {
    producer: AtomicU64,
    consumer: AtomicU64,
    places: [UnsafeCell<u64>; RING_BYTES as usize],
    recv: Words,
    send: Words,
    weak: Weak,
}

const RING_BYTES: u64 = 1;

/// Returns the place of a byte.
#[allow(clippy::modulo_one, reason = "as in a ring of any size")]
fn place(byte: u64) -> usize {
    (byte % RING_BYTES) as usize
}

impl Shared {
    fn load_producer(&self) -> u64 {
        self.producer.load(self.weak.order("byte ring: acquire of the producer", Acquire))
    }
    fn load_consumer(&self) -> u64 {
        self.consumer.load(self.weak.order("byte ring: acquire of the consumer", Acquire))
    }

    fn write(&self, bytes: u64) {
        let sleeper = Sleeper(&self.send, Cell::default());
        let (mut cursor, mut waker) = (byte_ring::Producer::new(RING_BYTES), byte_ring::Waker::default());
        for byte in 0..bytes {
            if cursor.room() == 0 {
                cursor.see(sleeper.until(byte + 1 - RING_BYTES, || self.load_consumer())).unwrap();
            }
            // SAFETY: loom checks that no access is concurrent with this write.
            self.places[place(byte)].with_mut(|place| unsafe { *place = byte });
            cursor.write(1);
            let order = self.weak.order("byte ring: release of the producer", Release);
            self.producer.store(cursor.publish(), order);
            assert!(!waker.tell(&self.recv, cursor.published()), "an event that nobody wants");
        }
    }

    fn read(&self, bytes: u64) {
        let sleeper = Sleeper(&self.recv, Cell::default());
        let (mut cursor, mut waker) = (byte_ring::Consumer::new(RING_BYTES), byte_ring::Waker::default());
        for byte in 0..bytes {
            if cursor.unread() == 0 {
                cursor.see(sleeper.until(byte + 1, || self.load_producer())).unwrap();
            }
            // SAFETY: loom checks that no write is concurrent with this read.
            assert_eq!(self.places[place(byte)].with(|place| unsafe { *place }), byte);
            cursor.take(1);
            let freed = cursor.give_back(cursor.read()).unwrap();
            let order = self.weak.order("byte ring: release of the consumer", Release);
            self.consumer.store(freed, order);
            assert!(!waker.tell(&self.send, freed), "an event that nobody wants");
        }
    }
}

/// Bytes arrive whole and in order through a full ring, and neither side misses a wake-up (`SYNC POINT: byte-ring-publish`).
#[test]
fn bytes_arrive_and_both_sides_sleep() {
    const BYTES: u64 = 2;
    let parts = [
        "byte ring: release of the producer",
        "byte ring: acquire of the producer",
        "byte ring: release of the consumer",
        "byte ring: acquire of the consumer",
        "byte ring: fence of the waker",
        "byte ring: fence of the sleeper",
        "sleep: increment of the doorbell",
    ];
    check("byte_ring::bytes_arrive_and_both_sides_sleep", 3, &parts, |weak| {
        let shared = Arc::new(Shared {
            producer: AtomicU64::new(0),
            consumer: AtomicU64::new(0),
            places: [(); RING_BYTES as usize].map(|()| UnsafeCell::new(u64::MAX)),
            recv: Words::new(weak),
            send: Words::new(weak),
            weak,
        });
        let writer = shared.clone();
        let writing = thread::spawn(move || writer.write(BYTES));
        shared.read(BYTES);
        writing.join().unwrap();
        assert!(shared.recv.doorbell.rings() <= BYTES as usize, "one ring for each value");
    });
}

/// A stream without fences loses no wake-up when its reader begins to sleep, nor when that sleeps again
/// (`SYNC POINT: byte-ring-dekker`).
#[test]
fn a_stream_without_fences_wakes() {
    let parts = [
        "byte ring: barrier of the sleeper",
        "byte ring: end of the asymmetric fence",
        "byte ring: fence of the waker",
        "byte ring: fence of the sleeper",
    ];
    check("byte_ring::a_stream_without_fences_wakes", 3, &parts, |weak| {
        let cells = Arc::new((Words::new(weak), AtomicU64::new(0)));
        let fence = cells.0.asymmetric();
        let writer = cells.clone();
        let writing = thread::spawn(move || {
            let (words, producer) = &*writer;
            let mut waker = byte_ring::Waker::default();
            for index in 1..=2 {
                words.everywhere.point(false);
                producer.store(index, Release);
                assert!(!waker.tell(words, index));
            }
            words.everywhere.point(true);
        });
        let (words, producer) = &*cells;
        let sleeper = Sleeper(words, Cell::new(fence));
        sleeper.until(1, || producer.load(Acquire));
        sleeper.until(2, || producer.load(Acquire));
        writing.join().unwrap();
    });
}

/// A side that awaits an event has seen the index, or gets the event, once for each value. The fence that says the other side makes none is
/// lent to a thread that sleeps (`SYNC POINT: byte-ring-dekker`).
#[test]
fn an_event_comes_or_is_no_news() {
    let parts = [
        "byte ring: the worst is assumed of a fence that is lent",
        "byte ring: barrier of the sleeper",
        "byte ring: end of the asymmetric fence",
        "byte ring: fence of the waker",
        "byte ring: fence of the sleeper",
    ];
    check("byte_ring::an_event_comes_or_is_no_news", 3, &parts, |weak| {
        let cells = Arc::new((Words::new(weak), AtomicU64::new(0), Edge::default()));
        cells.0.asymmetric();
        let writer = cells.clone();
        let writing = thread::spawn(move || {
            let (words, producer, event) = &*writer;
            let mut waker = byte_ring::Waker::default();
            for index in 1..=2 {
                words.everywhere.point(false);
                producer.store(index, Release);
                if waker.tell(words, index) {
                    event.write();
                }
            }
            words.everywhere.point(true);
        });
        let (words, producer, event) = &*cells;
        let mut fence = AsymmetricFence::default();
        for index in 1..=2 {
            let is_lent =
                index == 1 && !weak.leaves_out("byte ring: the worst is assumed of a fence that is lent");
            fence.arm(words, index, is_lent);
            while producer.load(Acquire) < index {
                event.wait();
            }
        }
        writing.join().unwrap();
        assert!(event.writes() <= 2, "one event for each value");
    });
}
