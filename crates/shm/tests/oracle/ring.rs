//! One oracle for `pd_shm::ring`, run as a property test and as a fuzz target.
//!
//! A byte string is a program: honest operations of both sides, and counters forged by either. What
//! the ring does is compared with a model that computes in 128 bits and keeps what was written in
//! plain containers.
mod program;

use self::program::Program;
use pd_abi::{Event, EventKind};
use pd_shm::memfd::{self, Pages};
use pd_shm::ring::{Broken, Cells, Consumer, ConsumerCells, Producer, ProducerCells, SharedCells};
use pd_shm::{Own, Region, Theirs};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Largest capacity tried.
const CAPACITY_MAX: u64 = 64;

/// A place for one ring, with a back door to its counters.
pub trait Place {
    /// Access of one side to the ring.
    type Producer: ProducerCells<Entry = Self::Entry>;
    /// See [`Self::Producer`].
    type Consumer: ConsumerCells<Entry = Self::Entry>;
    /// Content of one place of the ring.
    type Entry: Copy;
    /// The producer's way.
    fn producer_cells(&self) -> Self::Producer;
    /// The consumer's way.
    fn consumer_cells(&self) -> Self::Consumer;
    /// The entry that carries `number`.
    fn entry(number: u64) -> Self::Entry;
    /// The number that an entry carries.
    fn number(entry: Self::Entry) -> u64;
    /// Both counters as they are now.
    fn counters(&self) -> (u64, u64);
    /// Writes the producer's counter behind its back.
    fn forge_producer(&self, value: u64);
    /// Writes the consumer's counter behind its back.
    fn forge_consumer(&self, value: u64);
    /// Panics if anything but the counters and the entries was written.
    fn check_surroundings(&self);
}

/// A ring in plain memory that refuses indices out of range.
#[derive(Clone)]
pub struct Plain {
    words: Rc<PlainWords>,
}

struct PlainWords {
    producer: Cell<u64>,
    consumer: Cell<u64>,
    entries: Vec<Cell<u64>>,
}

impl Plain {
    /// A ring of `capacity` entries.
    pub fn new(capacity: u64) -> Self {
        let entries = (0..capacity).map(|_| Cell::new(0)).collect();
        Self { words: Rc::new(PlainWords { producer: Cell::new(0), consumer: Cell::new(0), entries }) }
    }
}

impl Cells for Plain {
    type Entry = u64;
    fn capacity(&self) -> u64 {
        self.words.entries.len() as u64
    }
}

impl ProducerCells for Plain {
    fn store_producer(&self, value: u64) {
        self.words.producer.set(value);
    }
    fn load_consumer(&self) -> u64 {
        self.words.consumer.get()
    }
    fn write(&self, index: u64, entry: u64) {
        self.words.entries[index as usize].set(entry);
    }
}

impl ConsumerCells for Plain {
    fn load_producer(&self) -> u64 {
        self.words.producer.get()
    }
    fn store_consumer(&self, value: u64) {
        self.words.consumer.set(value);
    }
    fn read(&self, index: u64) -> u64 {
        self.words.entries[index as usize].get()
    }
}

impl Place for Plain {
    type Producer = Self;
    type Consumer = Self;
    type Entry = u64;
    fn producer_cells(&self) -> Self::Producer {
        self.clone()
    }
    fn consumer_cells(&self) -> Self::Consumer {
        self.clone()
    }
    fn entry(number: u64) -> u64 {
        number
    }
    fn number(entry: u64) -> u64 {
        entry
    }
    fn counters(&self) -> (u64, u64) {
        (self.words.producer.get(), self.words.consumer.get())
    }
    fn forge_producer(&self, value: u64) {
        self.words.producer.set(value);
    }
    fn forge_consumer(&self, value: u64) {
        self.words.consumer.set(value);
    }
    fn check_surroundings(&self) {}
}

/// A ring in shared memory as in production: each side can write its own mapping only.
pub struct Shared {
    capacity: u64,
    /// Producer's memory and consumer's memory, writable.
    writable: [Arc<Region<Own>>; 2],
    /// Both memories as the other side maps them, readable.
    readable: [Arc<Region<Theirs>>; 2],
}

const PLACE_BYTES: usize = 4096;
const COUNTER: usize = 64;
const ENTRIES: usize = 256;
const GUARD: u64 = 0xA5A5_A5A5_A5A5_A5A5;

impl Shared {
    /// A ring of `capacity` entries amid guard words.
    pub fn new(capacity: u64) -> Self {
        let pair = |name| {
            let fd = memfd::create(name, PLACE_BYTES, Pages::Ordinary).expect("a memfd");
            let writable = Region::<Own>::new(&fd, PLACE_BYTES).expect("a mapping");
            let readable = Region::<Theirs>::new(&fd, PLACE_BYTES).expect("a mapping");
            for word in (0..PLACE_BYTES).step_by(8) {
                writable.store_u64(word, GUARD, Relaxed);
            }
            writable.store_u64(COUNTER, 0, Relaxed);
            (Arc::new(writable), Arc::new(readable))
        };
        let (producer, consumer) = (pair("ring-producer"), pair("ring-consumer"));
        for word in 0..capacity as usize * size_of::<Event>() / 8 {
            producer.0.store_u64(ENTRIES + word * 8, 0, Relaxed);
        }
        Self { capacity, writable: [producer.0, consumer.0], readable: [producer.1, consumer.1] }
    }
}

impl Place for Shared {
    type Producer = SharedCells<Event, Own, Theirs>;
    type Consumer = SharedCells<Event, Theirs, Own>;
    type Entry = Event;
    fn producer_cells(&self) -> Self::Producer {
        SharedCells::new(
            (Arc::clone(&self.writable[0]), COUNTER, ENTRIES),
            (Arc::clone(&self.readable[1]), COUNTER),
            self.capacity,
        )
    }
    fn consumer_cells(&self) -> Self::Consumer {
        SharedCells::new(
            (Arc::clone(&self.readable[0]), COUNTER, ENTRIES),
            (Arc::clone(&self.writable[1]), COUNTER),
            self.capacity,
        )
    }
    fn entry(number: u64) -> Event {
        if number == 0 {
            return Event::default();
        }
        // Every word depends on the number, so that a mixture of two entries shows.
        let mut event = Event { kind: EventKind::Answer as u8, ..Event::default() }.with_number(number);
        (event.socket, event.tag, event.errno) = (number as u32, (number >> 8) as u32, !number as u32);
        event.payload[8..].copy_from_slice(&(!number).to_le_bytes());
        event
    }
    fn number(entry: Event) -> u64 {
        let number = entry.number();
        assert_eq!(entry, Self::entry(number), "an entry is a mixture of two");
        number
    }
    fn counters(&self) -> (u64, u64) {
        (self.writable[0].load_u64(COUNTER, Relaxed), self.writable[1].load_u64(COUNTER, Relaxed))
    }
    fn forge_producer(&self, value: u64) {
        self.writable[0].store_u64(COUNTER, value, Relaxed);
    }
    fn forge_consumer(&self, value: u64) {
        self.writable[1].store_u64(COUNTER, value, Relaxed);
    }
    fn check_surroundings(&self) {
        let entries = ENTRIES..ENTRIES + self.capacity as usize * size_of::<Event>();
        for word in (0..PLACE_BYTES).step_by(8).filter(|&word| word != COUNTER) {
            for (map, is_ours) in [(&self.writable[0], entries.contains(&word)), (&self.writable[1], false)] {
                assert!(is_ours || map.load_u64(word, Relaxed) == GUARD, "word {word} was overwritten");
            }
        }
    }
}

struct Model {
    capacity: i128,
    /// Number that each slot holds.
    slots: Vec<u64>,
    /// Written and published, in order, for as long as nobody has cheated.
    published_entries: VecDeque<u64>,
    unpublished_entries: VecDeque<u64>,
    honest: bool,
    written: i128,
    published: i128,
    /// Last counter of the consumer that the producer believed.
    believed_consumer: i128,
    read: i128,
    /// Last counter of the producer that the consumer believed.
    believed_producer: i128,
}

impl Model {
    /// Entries that can be written, given the consumer's counter.
    fn room(&mut self, consumer: u64) -> Result<u64, Broken> {
        if self.written - self.believed_consumer == self.capacity {
            let consumer = i128::from(consumer);
            if consumer < self.believed_consumer || consumer > self.published {
                return Err(Broken);
            }
            self.believed_consumer = consumer;
        }
        Ok((self.capacity - (self.written - self.believed_consumer)) as u64)
    }

    /// Entries that can be read, given the producer's counter.
    fn available(&mut self, producer: u64) -> Result<u64, Broken> {
        if self.believed_producer == self.read {
            let producer = i128::from(producer);
            if producer < self.read || producer > self.read + self.capacity {
                return Err(Broken);
            }
            self.believed_producer = producer;
        }
        Ok((self.believed_producer - self.read) as u64)
    }

    fn slot(&self, position: i128) -> usize {
        (position % self.capacity) as usize
    }

    fn forged(&self, program: &mut Program<'_>) -> u64 {
        let near = |value: i128, program: &mut Program<'_>| {
            (value as u64).wrapping_add(program.byte() as i8 as i64 as u64)
        };
        match program.byte() % 8 {
            0 => near(self.read, program),
            1 => near(self.written, program),
            2 => near(self.published, program),
            3 => near(self.believed_consumer + self.capacity, program),
            4 => near(self.believed_producer + self.capacity, program),
            5 => near(0, program),
            6 => near(1 << 63, program),
            _ => program.number(8),
        }
    }
}

/// Runs the program on rings of both kinds.
///
/// # Panics
/// If a ring does anything that it must not.
pub fn run(program: &[u8]) {
    let Some((&first, rest)) = program.split_first() else { return };
    let capacity = 1 << (u32::from(first) % (CAPACITY_MAX.trailing_zeros() + 1));
    run_on(&Plain::new(capacity), capacity, rest);
    run_on(&Shared::new(capacity), capacity, rest);
}

fn run_on<P: Place>(place: &P, capacity: u64, program: &[u8]) {
    let mut producer = Producer::new(place.producer_cells());
    let mut consumer = Consumer::new(place.consumer_cells());
    let mut model = Model {
        capacity: i128::from(capacity),
        slots: vec![0; capacity as usize],
        published_entries: VecDeque::new(),
        unpublished_entries: VecDeque::new(),
        honest: true,
        written: 0,
        published: 0,
        believed_consumer: 0,
        read: 0,
        believed_producer: 0,
    };
    let mut next = 1u64;
    let mut program = Program(program);
    while !program.is_over() {
        match program.byte() % 8 {
            0 => {
                for _ in 0..=program.byte() % (2 * CAPACITY_MAX as u8) {
                    let expected = model.room(place.counters().1).map(|room| room > 0);
                    let got = producer.write(P::entry(next));
                    assert_eq!(got, expected, "write");
                    if got != Ok(true) {
                        break;
                    }
                    let slot = model.slot(model.written);
                    model.slots[slot] = next;
                    model.written += 1;
                    assert!(model.written - model.believed_consumer <= model.capacity);
                    model.unpublished_entries.push_back(next);
                    next += 1;
                }
            }
            1 => {
                model.published = model.written;
                let mut entries = std::mem::take(&mut model.unpublished_entries);
                model.published_entries.append(&mut entries);
                assert_eq!(i128::from(producer.publish()), model.published, "publish");
            }
            2 => {
                for _ in 0..=program.byte() % (2 * CAPACITY_MAX as u8) {
                    let available = model.available(place.counters().0);
                    assert!(available.unwrap_or(0) <= capacity, "more entries than there is room for");
                    let expected =
                        available.map(|count| (count > 0).then(|| model.slots[model.slot(model.read)]));
                    let got = consumer.read().map(|entry| entry.map(P::number));
                    assert_eq!(got, expected, "read");
                    let Ok(Some(number)) = got else { break };
                    model.read += 1;
                    if model.honest {
                        assert_eq!(Some(number), model.published_entries.pop_front(), "order");
                    }
                }
                assert_eq!(i128::from(consumer.position()), model.read, "position");
            }
            3 => {
                consumer.release();
                assert_eq!(i128::from(place.counters().1), model.read, "release");
            }
            4 => {
                let value = model.forged(&mut program);
                model.honest = false;
                place.forge_producer(value);
            }
            5 => {
                let value = model.forged(&mut program);
                model.honest = false;
                place.forge_consumer(value);
            }
            6 => assert_eq!(producer.room(), model.room(place.counters().1), "room"),
            _ => assert_eq!(consumer.available(), model.available(place.counters().0), "available"),
        }
        if model.honest {
            let taken = model.published_entries.len() + model.unpublished_entries.len();
            assert!(taken as u64 <= capacity, "more entries than there is room for");
        }
    }
    place.check_surroundings();
}
