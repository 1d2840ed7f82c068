//! The lock-free protocols under the loom model checker.
//!
//! `pd_shm::ring`, `pd_shm::byte_ring` and `pd_shm::wait` run as they are, over loom's atomics. The protocols that live in
//! the driver and in the client library (`need_wakeup`, `space_wake_at`, `events_waiting`, the reactive
//! events) are modelled with the same operations in the same order; each model names its two sides.
//!
//! A lost wake-up is a deadlock, which loom reports; entries are loom's `UnsafeCell`s, so that a read
//! that races with a write is reported too. Every property is checked once as it is, and then once with
//! each of its orderings and fences taken away ([`Weak`]): loom has to find what goes wrong.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use pd_shm::ring::{
    Cells, Consumer, ConsumerCells, GrowingConsumerCells, GrowingProducerCells, Producer, ProducerCells,
};
use pd_shm::wait::{self, SleeperCells, Waker, WakerCells};
use pd_shm::Spin;
use std::time::Duration;
use Ordering::{Acquire, Relaxed, Release, SeqCst};

#[path = "loom/byte_ring.rs"]
mod byte_ring;
#[path = "loom/clients.rs"]
mod clients;
#[path = "loom/parts.rs"]
mod parts;

use parts::{check, Doorbell, Edge, Weak};

/// A ring whose entries loom watches.
#[derive(Clone)]
struct Ring(Arc<RingWords>);

struct RingWords {
    producer: AtomicU64,
    consumer: AtomicU64,
    entries: Vec<UnsafeCell<u64>>,
    /// Of each entry, the word that may grow.
    words: Vec<AtomicU64>,
    weak: Weak,
}

impl Ring {
    fn new(capacity: usize, weak: Weak) -> Self {
        Self(Arc::new(RingWords {
            producer: AtomicU64::new(0),
            consumer: AtomicU64::new(0),
            entries: (0..capacity).map(|_| UnsafeCell::new(0)).collect(),
            words: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            weak,
        }))
    }

    /// As `SharedCells::producer_beyond`.
    fn producer_beyond(&self, position: u64) -> bool {
        self.0.producer.load(Relaxed) != position
    }
}

impl Cells for Ring {
    type Entry = u64;
    fn capacity(&self) -> u64 {
        self.0.entries.len() as u64
    }
}

impl ProducerCells for Ring {
    fn store_producer(&self, value: u64) {
        self.0.producer.store(value, self.0.weak.order("ring: release of the producer", Release));
    }
    fn load_consumer(&self) -> u64 {
        self.0.consumer.load(self.0.weak.order("ring: acquire of the consumer", Acquire))
    }
    fn write(&self, index: u64, entry: u64) {
        // SAFETY: loom checks that no access is concurrent with this write.
        self.0.entries[index as usize].with_mut(|place| unsafe { *place = entry });
    }
}

impl ConsumerCells for Ring {
    fn load_producer(&self) -> u64 {
        self.0.producer.load(self.0.weak.order("ring: acquire of the producer", Acquire))
    }
    fn store_consumer(&self, value: u64) {
        self.0.consumer.store(value, self.0.weak.order("ring: release of the consumer", Release));
    }
    fn read(&self, index: u64) -> u64 {
        // SAFETY: loom checks that no write is concurrent with this read.
        self.0.entries[index as usize].with(|entry| unsafe { *entry })
    }
}

impl GrowingConsumerCells for Ring {
    fn load_word(&self, index: u64) -> u64 {
        self.0.words[index as usize].load(self.0.weak.order("ring: acquire of the word", Acquire))
    }
}

impl GrowingProducerCells for Ring {
    fn store_word(&self, index: u64, word: u64) {
        let order = self.0.weak.order("ring: release of the word", Release);
        self.0.words[index as usize].store(word, order);
    }
}

/// Sleeps until the counter has reached `value`.
fn sleep_until(doorbell: &Doorbell, counter: &AtomicU64, value: u64) {
    let reached = || counter.load(Acquire) >= value;
    while !reached() {
        wait::sleep(doorbell, value, &mut Spin::new(Duration::ZERO), Duration::MAX, reached);
    }
}

const RING: [&str; 4] = [
    "ring: release of the producer",
    "ring: acquire of the producer",
    "ring: release of the consumer",
    "ring: acquire of the consumer",
];

/// Entries arrive whole, once and in order, one by one and through a full ring.
#[test]
fn ring_one_by_one() {
    check("ring_one_by_one", 5, &RING, |weak| {
        let ring = Ring::new(1, weak);
        let mut consumer = Consumer::new(ring.clone());
        let producing = thread::spawn(move || {
            let mut producer = Producer::new(ring);
            for number in 1..=3 {
                while !producer.write(number).unwrap() {
                    thread::yield_now();
                }
                assert_eq!(producer.publish(), number);
            }
        });
        for number in 1..=3 {
            let entry = loop {
                match consumer.read().unwrap() {
                    Some(entry) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(entry, number);
            consumer.release();
        }
        assert_eq!(consumer.available(), Ok(0));
        producing.join().unwrap();
    });
}

/// A batch shows when it is published and not before, and places given back late are not written early.
#[test]
fn ring_in_batches() {
    check("ring_in_batches", 5, &RING, |weak| {
        let ring = Ring::new(2, weak);
        let mut consumer = Consumer::new(ring.clone());
        let producing = thread::spawn(move || {
            let mut producer = Producer::new(ring);
            assert!(producer.write(1).unwrap() && producer.write(2).unwrap());
            assert_eq!(producer.write(9), Ok(false), "full");
            producer.publish();
            while producer.room() == Ok(0) {
                thread::yield_now();
            }
            assert!(producer.write(3).unwrap() && producer.write(4).unwrap());
            producer.publish();
        });
        let mut got = Vec::new();
        while got.len() < 4 {
            let available = consumer.available().unwrap();
            assert!(available == 0 || available == 2, "half of a batch");
            if available == 0 {
                thread::yield_now();
                continue;
            }
            got.extend(consumer.read().unwrap());
            got.extend(consumer.read().unwrap());
            consumer.release();
        }
        assert_eq!(got, [1, 2, 3, 4]);
        producing.join().unwrap();
    });
}

/// Request rings: `Channel::submit_send` of the client library against `Channel::next_request` of a mover. Bytes that an entry
/// grows by are written before its word tells of them, an entry has its last word before the next one is there, and its place is
/// not written again while it may grow.
#[test]
fn the_newest_entry_grows() {
    const PARTS: [&str; 6] = [
        "a place that may grow is kept",
        "ring: acquire of the word",
        "ring: release of the word",
        "ring: release of the producer",
        "ring: acquire of the producer",
        "the last word before the next entry",
    ];
    /// Where the entries end.
    const ENTRIES: [u64; 3] = [2, 3, 4];
    check("the_newest_entry_grows", 3, &PARTS, |weak| {
        let ring = Ring::new(2, weak);
        let bytes: Arc<Vec<_>> = Arc::new((0..ENTRIES[2]).map(|_| UnsafeCell::new(0)).collect());
        let producing = {
            let (ring, bytes) = (ring.clone(), Arc::clone(&bytes));
            thread::spawn(move || {
                // SAFETY: loom checks that no access is concurrent with this write.
                let fill = |at: u64| bytes[at as usize].with_mut(|place| unsafe { *place = at + 1 });
                let mut producer = Producer::new(ring);
                for (entry, end) in ENTRIES.into_iter().enumerate() {
                    let start = if entry == 0 { 0 } else { ENTRIES[entry - 1] };
                    fill(start);
                    while producer.room() == Ok(0) {
                        thread::yield_now();
                    }
                    assert!(producer.write(start).unwrap());
                    producer.cells().0.words[entry % 2].store(start + 1, Relaxed);
                    producer.publish();
                    for at in start + 1..end {
                        fill(at);
                        producer.grow(at + 1);
                    }
                }
            })
        };
        let mut consumer = Consumer::new(ring);
        // Up to where bytes were taken, and of how many entries.
        let (mut taken, mut entries) = (0, 0);
        let take = |from: u64, to: u64| {
            for at in from..to {
                // SAFETY: loom checks that no write is concurrent with this read.
                assert_eq!(bytes[at as usize].with(|place| unsafe { *place }), at + 1);
            }
            to
        };
        while taken < ENTRIES[2] {
            let more = consumer.available().unwrap() > 0;
            if entries > 0 && !(more && weak.leaves_out("the last word before the next entry")) {
                let word = consumer.last_word();
                if word != taken {
                    taken = take(taken, word);
                    continue;
                }
            }
            if !more {
                thread::yield_now();
                continue;
            }
            let start = consumer.read().unwrap().unwrap();
            assert_eq!(start, taken, "bytes between two entries");
            entries += 1;
            taken = take(taken, consumer.last_word());
            if weak.leaves_out("a place that may grow is kept") {
                consumer.release();
            } else {
                consumer.release_but_last();
            }
        }
        assert_eq!(consumer.position(), 3);
        producing.join().unwrap();
    });
}

const SLEEP: [&str; 3] =
    ["sleep: fence of the sleeper", "sleep: fence of the waker", "sleep: increment of the doorbell"];

/// No wake-up is lost, and no value asked for is answered twice.
#[test]
fn wake_at_a_counter() {
    check("wake_at_a_counter", 4, &SLEEP, |weak| {
        let words = Arc::new((Doorbell::new(weak), AtomicU64::new(0)));
        let waking = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let mut waker = Waker::default();
                for value in 1..=3 {
                    words.1.store(value, Release);
                    waker.wake(&words.0, value);
                }
            })
        };
        sleep_until(&words.0, &words.1, 1);
        sleep_until(&words.0, &words.1, 3);
        waking.join().unwrap();
        assert!(words.0.rings() <= 2, "{} rings for two values", words.0.rings());
    });
}

/// A sleeper that does not run costs one ring, however often its counter moves on.
#[test]
fn one_ring_for_each_value() {
    check("one_ring_for_each_value", 5, &[], |weak| {
        let doorbell = Arc::new(Doorbell::new(weak));
        doorbell.store_wake_at(1);
        let waking = {
            let doorbell = Arc::clone(&doorbell);
            thread::spawn(move || {
                let mut waker = Waker::default();
                let rung = (1..=3).filter(|&value| waker.wake(&*doorbell, value)).count();
                assert_eq!(rung, doorbell.rings());
            })
        };
        doorbell.store_wake_at(2);
        waking.join().unwrap();
        assert!((1..=2).contains(&doorbell.rings()), "{} rings for two values", doorbell.rings());
    });
}

/// The end of a stream wakes, whatever counter is waited for.
#[test]
fn wake_at_the_end() {
    check("wake_at_the_end", 5, &SLEEP, |weak| {
        let words = Arc::new((Doorbell::new(weak), AtomicU64::new(0), AtomicU32::new(0)));
        let waking = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let mut waker = Waker::default();
                words.1.store(1, Release);
                waker.wake(&words.0, 1);
                words.2.store(1, Release);
                waker.wake_always(&words.0);
            })
        };
        let (doorbell, counter, end) = &*words;
        let ready = || counter.load(Acquire) >= 2 || end.load(Acquire) != 0;
        while !ready() {
            wait::sleep(doorbell, 2, &mut Spin::new(Duration::ZERO), Duration::MAX, ready);
        }
        waking.join().unwrap();
    });
}

/// Sends of the two models of a mover's sleep.
const SENDS: u64 = 3;
const IDLE: [&str; 3] = ["fence of the client", "fence of the mover", "look of the mover"];

/// The client library's `Channel::wake_driver`, after each of [`SENDS`], against `Mover::idle` (`arm`, `disarm`): no send waits for a mover
/// that sleeps; the eventfd is written once for each sleep at most.
///
/// `post` posts a send, by its number. `take` takes all that is there and returns how many were ever taken.
/// `has_news` is the mover's last look before a sleep, given that number.
fn sends_find_a_mover_asleep(
    weak: Weak,
    post: fn(&mut Producer<Ring>, u64),
    take: fn(&mut Consumer<Ring>) -> u64,
    has_news: fn(&Consumer<Ring>, u64) -> bool,
) {
    let ring = Ring::new(4, weak);
    let words = Arc::new((AtomicU32::new(0), Edge::default()));
    let client = {
        let (ring, words) = (ring.clone(), Arc::clone(&words));
        thread::spawn(move || {
            let (need_wakeup, doorbell) = &*words;
            let mut producer = Producer::new(ring);
            let mut rung = 0;
            for number in 1..=SENDS {
                post(&mut producer, number);
                weak.fence("fence of the client");
                let sleep = need_wakeup.load(Relaxed);
                if sleep != 0 && sleep != rung {
                    rung = sleep;
                    doorbell.write();
                }
            }
        })
    };
    let (need_wakeup, doorbell) = &*words;
    let mut consumer = Consumer::new(ring);
    let mut sleeps = 0;
    loop {
        let taken = take(&mut consumer);
        if taken == SENDS {
            break;
        }
        sleeps += 1;
        need_wakeup.store(sleeps, Relaxed);
        weak.fence("fence of the mover");
        if !has_news(&consumer, taken) || weak.leaves_out("look of the mover") {
            doorbell.wait();
        }
        need_wakeup.store(0, Relaxed);
    }
    client.join().unwrap();
    assert!(doorbell.writes() <= sleeps as usize);
}

/// Each send is a request: `Channel::publish`.
#[test]
fn need_wakeup() {
    check("need_wakeup", 4, &IDLE, |weak| {
        let post = |producer: &mut Producer<Ring>, number| {
            assert!(producer.write(number).unwrap());
            producer.publish();
        };
        let take = |consumer: &mut Consumer<Ring>| {
            while let Some(number) = consumer.read().unwrap() {
                assert_eq!(number, consumer.position());
            }
            consumer.release();
            consumer.position()
        };
        sends_find_a_mover_asleep(weak, post, take, |consumer, taken| {
            consumer.cells().producer_beyond(taken)
        });
    });
}

/// Each send but the first is added to the first: `Channel::submit_send`. A mover that is about to sleep looks at the word, too.
#[test]
fn need_wakeup_for_growth() {
    check("need_wakeup_for_growth", 4, &IDLE, |weak| {
        let post = |producer: &mut Producer<Ring>, number| {
            if number > 1 {
                return producer.grow(number);
            }
            producer.cells().0.words[0].store(1, Relaxed);
            assert!(producer.write(0).unwrap());
            producer.publish();
        };
        let take = |consumer: &mut Consumer<Ring>| {
            consumer.read().unwrap();
            if consumer.position() == 0 {
                return 0;
            }
            consumer.last_word()
        };
        sends_find_a_mover_asleep(weak, post, take, |consumer, taken| {
            let position = consumer.position();
            consumer.cells().producer_beyond(position) || position > 0 && consumer.last_word() != taken
        });
    });
}

/// Full receive rings: `RecvSide::give_back` of the client library against `Mover::park`. A parked flow
/// always learns of room.
#[test]
fn space_wake_at() {
    const RING_BYTES: u64 = 2;
    check("space_wake_at", 5, &["fence of the client", "fence of the mover", "look of the mover"], |weak| {
        // recv_consumer, space_wake_at, and the `Space` request (its way is `need_wakeup`, above).
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0), Edge::default()));
        let client = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let (recv_consumer, space_wake_at, space) = &*words;
                let mut answered = 0;
                for consumer in 1..=RING_BYTES {
                    recv_consumer.store(consumer, Release);
                    weak.fence("fence of the client");
                    let wanted = space_wake_at.load(Relaxed);
                    if wanted != 0 && consumer >= wanted && wanted != answered {
                        answered = wanted;
                        space.write();
                    }
                }
            })
        };
        let (recv_consumer, space_wake_at, space) = &*words;
        // The ring is full, and as many bytes again shall go through it one by one.
        let (mut reserved, mut consumed) = (RING_BYTES, 0);
        while reserved < 2 * RING_BYTES {
            consumed = recv_consumer.load(Acquire).max(consumed);
            if reserved - consumed < RING_BYTES {
                reserved += 1;
                continue;
            }
            let target = (reserved + 1 - RING_BYTES).max(consumed + 1);
            space_wake_at.store(target, Release);
            weak.fence("fence of the mover");
            consumed = recv_consumer.load(Acquire);
            if reserved - consumed < RING_BYTES && !weak.leaves_out("look of the mover") {
                space_wake_at.store(0, Release);
            } else {
                space.wait();
            }
        }
        client.join().unwrap();
    });
}

/// Files that clients send: `Attachment::count_file` of the client library against `Mover::close_idle_files`
/// (`SYNC POINT: file-dekker`). No send names a file that the driver has closed.
#[test]
fn idle_files_are_closed() {
    const SENDS: u32 = 2;
    let parts = ["fence of the client", "look of the client", "fence of the driver", "look of the driver"];
    check("idle_files_are_closed", 5, &parts, |weak| {
        // The slot, sends counted, and sends in the request ring.
        let words = Arc::new([1, 0, 0].map(AtomicU32::new));
        let client = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let [slot, uses, requests] = &*words;
                for send in 1..=SENDS {
                    uses.store(send, Release);
                    weak.fence("fence of the client");
                    if slot.load(Acquire) == 0 && !weak.leaves_out("look of the client") {
                        uses.store(send - 1, Release);
                        return;
                    }
                    requests.store(send, Release);
                }
            })
        };
        let [slot, uses, requests] = &*words;
        for _ in 0..2 {
            let taken = requests.load(Acquire);
            slot.store(0, Release);
            weak.fence("fence of the driver");
            if uses.load(Acquire) == taken || weak.leaves_out("look of the driver") {
                client.join().unwrap();
                assert_eq!(requests.load(Acquire), taken, "a send of a closed file");
                return;
            }
            slot.store(1, Release);
        }
        client.join().unwrap();
    });
}

/// Full event rings: `Channel::drain` of the client library against `Mover::retry_overflow`. Events that
/// wait for room are posted once there is some.
#[test]
fn events_waiting() {
    const EVENTS: u64 = 3;
    let parts = ["fence of the client", "fence of the mover", "second look of the mover"];
    check("events_waiting", 3, &parts, |weak| {
        let ring = Ring::new(1, weak);
        // events_waiting, doorbell of the driver, doorbell of the client's sleep.
        let words = Arc::new((AtomicU32::new(0), Edge::default(), Doorbell::new(weak)));
        let mover = {
            let (ring, words) = (ring.clone(), Arc::clone(&words));
            thread::spawn(move || {
                let (waiting, eventfd, doorbell) = &*words;
                let mut waker = Waker::default();
                let mut producer = Producer::new(ring);
                let mut written = 0;
                for posted in 1..=EVENTS {
                    let mut retry = |producer: &mut Producer<Ring>| {
                        while written < posted && producer.write(written + 1).unwrap() {
                            written += 1;
                        }
                        written < posted
                    };
                    loop {
                        let mut overflowing = retry(&mut producer);
                        if overflowing {
                            waiting.store(1, Relaxed);
                            weak.fence("fence of the mover");
                            if !weak.leaves_out("second look of the mover") {
                                overflowing = retry(&mut producer);
                            }
                        }
                        if !overflowing {
                            waiting.store(0, Relaxed);
                        }
                        let produced = producer.publish();
                        waker.wake(doorbell, produced);
                        if !overflowing {
                            break;
                        }
                        eventfd.wait();
                    }
                }
            })
        };
        let (waiting, eventfd, doorbell) = &*words;
        let mut consumer = Consumer::new(ring.clone());
        while consumer.position() < EVENTS {
            if consumer.read().unwrap().is_some() {
                consumer.release();
                weak.fence("fence of the client");
                if waiting.load(Relaxed) != 0 {
                    eventfd.write();
                }
            } else {
                let position = consumer.position();
                let ready = || ring.0.producer.load(Acquire) != position;
                wait::sleep(doorbell, position + 1, &mut Spin::new(Duration::ZERO), Duration::MAX, ready);
            }
        }
        mover.join().unwrap();
    });
}

/// Reactive events: `Link::store_subscribed` and `Channel::drain` of the client library against
/// `Flow::publish` and `Mover::post_ready`. A client that sleeps has seen everything delivered.
#[test]
fn reactive_events() {
    const DELIVERIES: u64 = 3;
    let parts = ["fence of the client", "fence of the subscription", "fence of the mover"];
    check("reactive_events", 3, &parts, |weak| {
        let ring = Ring::new(4, weak);
        let words = Arc::new(Socket {
            recv_producer: AtomicU64::new(0),
            subscribed: AtomicU32::new(0),
            event_ack: AtomicU32::new(0),
            event_number: AtomicU32::new(0),
            doorbell: Doorbell::new(Weak("")),
        });
        let mover = {
            let (ring, socket) = (ring.clone(), Arc::clone(&words));
            thread::spawn(move || {
                let mut producer = Producer::new(ring);
                let mut waker = Waker::default();
                for delivered in 1..=DELIVERIES {
                    socket.recv_producer.store(delivered, Release);
                    weak.fence("fence of the mover");
                    let number = socket.event_number.load(Relaxed);
                    if socket.subscribed.load(Relaxed) == 0 || socket.event_ack.load(Relaxed) != number {
                        continue;
                    }
                    socket.event_number.store(number + 1, Release);
                    assert_eq!(producer.write(u64::from(number) + 1), Ok(true));
                    let produced = producer.publish();
                    waker.wake(&socket.doorbell, produced);
                }
            })
        };
        let socket = &*words;
        let mut consumer = Consumer::new(ring.clone());
        let number = socket.event_number.load(Acquire);
        socket.event_ack.store(number, Relaxed);
        socket.subscribed.store(1, Release);
        weak.fence("fence of the subscription");
        while socket.recv_producer.load(Acquire) < DELIVERIES {
            let position = consumer.position();
            let ready = || ring.0.producer.load(Acquire) != position;
            wait::sleep(&socket.doorbell, position + 1, &mut Spin::new(Duration::ZERO), Duration::MAX, ready);
            let mut any = false;
            while let Some(number) = consumer.read().unwrap() {
                socket.event_ack.store(number as u32, Release);
                any = true;
            }
            if any {
                consumer.release();
                weak.fence("fence of the client");
            }
        }
        mover.join().unwrap();
    });
}

struct Socket {
    recv_producer: AtomicU64,
    subscribed: AtomicU32,
    event_ack: AtomicU32,
    event_number: AtomicU32,
    doorbell: Doorbell,
}
