//! Single-producer single-consumer ring between two parties that do not trust each other.
//!
//! Counters run freely and are masked on use. Each side keeps its own counter privately, never reads
//! it back from shared memory, and caches the other's. A counter of the other side that cannot be is
//! reported as [`Broken`] and the ring must not be used any more.
use crate::pod::Growing;
use crate::{Access, Pod, Protection, Region, Writable};
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The words and entries of a ring as one side reaches them: [`ProducerCells`] or [`ConsumerCells`].
pub trait Cells {
    /// The entry that the ring carries.
    type Entry: Copy;
    /// Entries; a power of two.
    fn capacity(&self) -> u64;
}

/// Words that the producer reaches.
///
/// Orderings: `SYNC POINT: ring-publish` pairs [`Self::store_producer`] (release) with
/// [`ConsumerCells::load_producer`] (acquire); `SYNC POINT: ring-free` pairs [`ConsumerCells::store_consumer`]
/// with [`Self::load_consumer`] likewise.
pub trait ProducerCells: Cells {
    /// Publishes entries (release).
    fn store_producer(&self, value: u64);
    /// Entries consumed so far (acquire).
    fn load_consumer(&self) -> u64;
    /// Copies an entry in.
    fn write(&self, index: u64, entry: Self::Entry);
}

/// Words that the consumer reaches. Orderings: see [`ProducerCells`].
pub trait ConsumerCells: Cells {
    /// Entries produced so far (acquire).
    fn load_producer(&self) -> u64;
    /// Gives entries back (release).
    fn store_consumer(&self, value: u64);
    /// Copies an entry out.
    fn read(&self, index: u64) -> Self::Entry;
}

/// Cells whose newest entry the producer may still change in one word: see [`Producer::grow`].
///
/// Orderings: `SYNC POINT: ring-grow` pairs [`Self::store_word`] (release) with
/// [`GrowingConsumerCells::load_word`] (acquire).
pub trait GrowingProducerCells: ProducerCells {
    /// Writes that word of an entry (release).
    fn store_word(&self, index: u64, word: u64);
}

/// The consumer's side of [`GrowingProducerCells`].
pub trait GrowingConsumerCells: ConsumerCells {
    /// Reads that word of an entry (acquire).
    fn load_word(&self, index: u64) -> u64;
}

/// The other side's counter is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The writing side.
#[derive(Debug)]
pub struct Producer<C> {
    cells: C,
    written: u64,
    published: u64,
    consumer: u64,
}

impl<C: ProducerCells> Producer<C> {
    /// The producer of a fresh ring (both counters 0).
    pub fn new(cells: C) -> Self {
        Self { cells, written: 0, published: 0, consumer: 0 }
    }

    /// The producer of a ring that another one has left after `written` entries, all of them published.
    pub fn resume(cells: C, written: u64) -> Self {
        // Nobody knows what was consumed of them: room is found when the ring seems full, and the counter is looked at then.
        let consumer = written.saturating_sub(cells.capacity());
        Self { cells, written, published: written, consumer }
    }

    /// Entries that can be written now.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn room(&mut self) -> Result<u64, Broken> {
        let capacity = self.cells.capacity();
        if self.written - self.consumer == capacity {
            // SYNC POINT: ring-free
            let consumer = self.cells.load_consumer();
            if consumer.wrapping_sub(self.consumer) > self.published - self.consumer {
                return Err(Broken);
            }
            self.consumer = consumer;
        }
        Ok(capacity - (self.written - self.consumer))
    }

    /// Writes an entry if there is room, without publishing it. Says whether there was.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn write(&mut self, entry: C::Entry) -> Result<bool, Broken> {
        if self.room()? == 0 {
            return Ok(false);
        }
        self.cells.write(self.written & (self.cells.capacity() - 1), entry);
        self.written += 1;
        Ok(true)
    }

    /// Publishes what was written. Returns the new counter.
    pub fn publish(&mut self) -> u64 {
        if self.published != self.written {
            self.published = self.written;
            // SYNC POINT: ring-publish
            self.cells.store_producer(self.published);
        }
        self.published
    }

    /// Entries written so far, published or not.
    pub fn position(&self) -> u64 {
        self.written
    }

    /// The words.
    pub fn cells(&self) -> &C {
        &self.cells
    }
}

impl<C: GrowingProducerCells> Producer<C> {
    /// Replaces the word of the newest entry, which must have been published, and may have been read: the consumer looks at the
    /// word again until the next entry is there.
    pub fn grow(&mut self, word: u64) {
        debug_assert!(self.published == self.written && self.written > 0, "no newest entry");
        // SYNC POINT: ring-grow
        self.cells.store_word(self.written.wrapping_sub(1) & (self.cells.capacity() - 1), word);
    }
}

/// The reading side.
#[derive(Debug)]
pub struct Consumer<C> {
    cells: C,
    read: u64,
    producer: u64,
}

impl<C: ConsumerCells> Consumer<C> {
    /// The consumer of a fresh ring (both counters 0).
    pub fn new(cells: C) -> Self {
        Self { cells, read: 0, producer: 0 }
    }

    /// The consumer of a ring that another one has left after `read` entries. Places that it has not given back are given back with
    /// those that are read next.
    pub fn resume(cells: C, read: u64) -> Self {
        Self { cells, read, producer: read }
    }

    /// Entries that can be read now.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn available(&mut self) -> Result<u64, Broken> {
        if self.producer == self.read {
            // SYNC POINT: ring-publish
            let producer = self.cells.load_producer();
            if producer.wrapping_sub(self.read) > self.cells.capacity() {
                return Err(Broken);
            }
            self.producer = producer;
        }
        Ok(self.producer - self.read)
    }

    /// Copies the next entry out, if there is one. Its place stays taken until [`Self::release`].
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(&mut self) -> Result<Option<C::Entry>, Broken> {
        if self.available()? == 0 {
            return Ok(None);
        }
        let entry = self.cells.read(self.read & (self.cells.capacity() - 1));
        self.read += 1;
        Ok(Some(entry))
    }

    /// Gives the places of all entries read back to the producer.
    pub fn release(&mut self) {
        // SYNC POINT: ring-free
        self.cells.store_consumer(self.read);
    }

    /// As [`Self::release`], except for the entry that was read last: it may still grow.
    pub fn release_but_last(&mut self) {
        // SYNC POINT: ring-free
        self.cells.store_consumer(self.read.saturating_sub(1));
    }

    /// Entries read so far.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// The words.
    pub fn cells(&self) -> &C {
        &self.cells
    }
}

impl<C: GrowingConsumerCells> Consumer<C> {
    /// The word, as it is now, of the entry that was read last, whose place must not have been given back. It is the last one if
    /// [`Self::available`] told of further entries before.
    pub fn last_word(&self) -> u64 {
        // SYNC POINT: ring-grow
        self.cells.load_word(self.read.wrapping_sub(1) & (self.cells.capacity() - 1))
    }
}

/// A ring whose producer side lies in one region and whose consumer side in another: entries and
/// the producer's counter in the producer's memory, the consumer's counter in the consumer's. The side that
/// owns the one or the other is producer or consumer.
#[derive(Clone, Debug)]
pub struct SharedCells<T, P = Protection, C = Protection> {
    producer: Arc<Region<P>>,
    producer_index: usize,
    entries: usize,
    consumer: Arc<Region<C>>,
    consumer_index: usize,
    capacity: u64,
    entry: PhantomData<T>,
}

impl<T: Pod, P: Access, C: Access> SharedCells<T, P, C> {
    /// The ring at the offsets given: of the producer's counter and entries in `producer`, of the
    /// consumer's counter in `consumer`.
    ///
    /// # Panics
    /// If `capacity` is not a power of two or something lies outside its region.
    pub fn new(
        (producer, producer_index, entries): (Arc<Region<P>>, usize, usize),
        (consumer, consumer_index): (Arc<Region<C>>, usize),
        capacity: u64,
    ) -> Self {
        assert!(capacity.is_power_of_two());
        producer.address(producer_index, 8);
        producer.address(entries, capacity as usize * size_of::<T>());
        consumer.address(consumer_index, 8);
        Self { producer, producer_index, entries, consumer, consumer_index, capacity, entry: PhantomData }
    }

    /// Returns whether the producer has published beyond `position`; for spinning.
    pub fn producer_beyond(&self, position: u64) -> bool {
        self.producer.load_u64(self.producer_index, Ordering::Relaxed) != position
    }
}

impl<T: Pod, P: Access, C: Access> Cells for SharedCells<T, P, C> {
    type Entry = T;
    fn capacity(&self) -> u64 {
        self.capacity
    }
}

impl<T: Pod, P: Writable, C: Access> ProducerCells for SharedCells<T, P, C> {
    fn store_producer(&self, value: u64) {
        self.producer.store_u64(self.producer_index, value, Ordering::Release);
    }
    fn load_consumer(&self) -> u64 {
        self.consumer.load_u64(self.consumer_index, Ordering::Acquire)
    }
    fn write(&self, index: u64, entry: T) {
        self.producer.write(self.entries + index as usize * size_of::<T>(), &entry);
    }
}

impl<T: Pod, P: Access, C: Writable> ConsumerCells for SharedCells<T, P, C> {
    fn load_producer(&self) -> u64 {
        self.producer.load_u64(self.producer_index, Ordering::Acquire)
    }
    fn store_consumer(&self, value: u64) {
        self.consumer.store_u64(self.consumer_index, value, Ordering::Release);
    }
    fn read(&self, index: u64) -> T {
        self.producer.read(self.entries + index as usize * size_of::<T>())
    }
}

impl<T: Growing, P: Access, C: Writable> GrowingConsumerCells for SharedCells<T, P, C> {
    fn load_word(&self, index: u64) -> u64 {
        self.producer.load_u64(self.entries + index as usize * size_of::<T>() + T::WORD, Ordering::Acquire)
    }
}

impl<T: Growing, P: Writable, C: Access> GrowingProducerCells for SharedCells<T, P, C> {
    fn store_word(&self, index: u64, word: u64) {
        let at = self.entries + index as usize * size_of::<T>() + T::WORD;
        self.producer.store_u64(at, word, Ordering::Release);
    }
}
