//! The store: a lossy index over a circular log, as in MICA (Lim et al., NSDI 2014). A store belongs to one thread.
//!
//! An item is a header, key and value in the log. The log's head goes round and overwrites old items. The index is a table of
//! buckets, each a line with eight entries of a tag and a position. A full bucket loses its oldest entry. A key is thus missed only
//! if eight others share its bucket, or if as many bytes as the log has were appended since.
use twox_hash::XxHash3_64;

/// Longest key.
pub const KEY_BYTES_MAX: usize = 250;
/// Longest value.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Entries of a bucket.
pub const BUCKET_ENTRIES: usize = 8;
/// Bytes before the key: its length, the value's, and the room that the value has; two are spare.
const HEADER: usize = 8;
const ITEM_BYTES_MAX: usize = item_bytes(KEY_BYTES_MAX, VALUE_BYTES_MAX);
/// An entry's tag, above the position.
const TAG_SHIFT: u32 = 48;
const POSITION: u64 = (1 << TAG_SHIFT) - 1;

/// Bytes of the log that an item takes.
pub const fn item_bytes(key: usize, value: usize) -> usize {
    (HEADER + key + value).next_multiple_of(8)
}

/// Eight entries: a tag and a position plus one; 0 is free.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket([u64; BUCKET_ENTRIES]);

/// Outcome of [`Store::set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// The value has taken the place of the last one.
    InPlace,
    /// The item was appended to the log.
    Appended,
    /// Key or value is too long, or the key is empty. Nothing has changed.
    TooLong,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes appended to the log.
    pub appended: u64,
    /// Entries that full buckets lost while their items were in the log.
    pub displaced: u64,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    index: Vec<Bucket>,
    /// As long as the ring and an item, so that every item is in one piece.
    log: Vec<u8>,
    ring: u64,
    seed: u64,
    counts: Counts,
}

/// A key's bucket and tag.
#[derive(Clone, Copy, Debug)]
struct Hash {
    bucket: usize,
    tag: u64,
}

impl Store {
    /// Makes a store with a log of `log_bytes` and `buckets` of eight entries; each becomes a power of two. `seed` has to be secret: a
    /// client that knows it could fill one bucket.
    pub fn new(log_bytes: usize, buckets: usize, seed: u64) -> Self {
        let ring = log_bytes.max(2 * ITEM_BYTES_MAX).next_power_of_two();
        Self {
            index: vec![Bucket::default(); buckets.max(1).next_power_of_two()],
            log: vec![0; ring + ITEM_BYTES_MAX],
            ring: ring as u64,
            seed,
            counts: Counts::default(),
        }
    }

    /// Counters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the bytes of the log, at least those asked for.
    pub fn log_bytes(&self) -> u64 {
        self.ring
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> Hash {
        let hash = XxHash3_64::oneshot_with_seed(self.seed, key);
        Hash { bucket: hash as usize & (self.index.len() - 1), tag: hash & !POSITION }
    }

    /// Returns the offset of the item at `position`, if the head has not passed it.
    #[inline]
    fn place(&self, position: u64) -> Option<usize> {
        let age = self.counts.appended.wrapping_sub(position);
        (age <= self.ring).then_some((position & (self.ring - 1)) as usize)
    }

    fn lengths(&self, at: usize) -> (usize, usize, usize) {
        let word = |at: usize| usize::from(u16::from_le_bytes([self.log[at], self.log[at + 1]]));
        (word(at), word(at + 2), word(at + 4))
    }

    /// Finds the entry of `key` and the offset of its item.
    #[inline]
    fn find(&self, hash: Hash, key: &[u8]) -> Option<(usize, usize)> {
        for (entry, &word) in self.index[hash.bucket].0.iter().enumerate() {
            if word & !POSITION != hash.tag || word & POSITION == 0 {
                continue;
            }
            let Some(at) = self.place((word & POSITION) - 1) else { continue };
            let (key_len, _, _) = self.lengths(at);
            if self.log.get(at + HEADER..at + HEADER + key_len) == Some(key) {
                return Some((entry, at));
            }
        }
        None
    }

    /// Returns the value of `key`.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let (_, at) = self.find(self.hash(key), key)?;
        let (key_len, value_len, _) = self.lengths(at);
        self.log.get(at + HEADER + key_len..at + HEADER + key_len + value_len)
    }

    /// Gives `key` a value.
    #[inline]
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Set {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            return Set::TooLong;
        }
        let hash = self.hash(key);
        let found = self.find(hash, key);
        if let Some((_, at)) = found {
            let (key_len, _, room) = self.lengths(at);
            if value.len() <= room {
                self.log[at + 2..at + 4].copy_from_slice(&(value.len() as u16).to_le_bytes());
                self.log[at + HEADER + key_len..][..value.len()].copy_from_slice(value);
                return Set::InPlace;
            }
        }
        let position = self.append(key, value);
        let entry = match found {
            Some((entry, _)) => entry,
            None => self.free_entry(hash),
        };
        self.index[hash.bucket].0[entry] = hash.tag | (position + 1);
        Set::Appended
    }

    /// Writes an item at the head. Returns its position.
    fn append(&mut self, key: &[u8], value: &[u8]) -> u64 {
        let position = self.counts.appended;
        let at = (position & (self.ring - 1)) as usize;
        let bytes = item_bytes(key.len(), value.len());
        // The value may grow into the rest of the last line.
        let room = bytes - HEADER - key.len();
        let item = &mut self.log[at..at + bytes];
        item[..2].copy_from_slice(&(key.len() as u16).to_le_bytes());
        item[2..4].copy_from_slice(&(value.len() as u16).to_le_bytes());
        item[4..6].copy_from_slice(&(room as u16).to_le_bytes());
        item[HEADER..HEADER + key.len()].copy_from_slice(key);
        item[HEADER + key.len()..][..value.len()].copy_from_slice(value);
        self.counts.appended += bytes as u64;
        position
    }

    /// Returns a free entry of a bucket, or its oldest.
    fn free_entry(&mut self, hash: Hash) -> usize {
        let age = |word: u64| match word & POSITION {
            0 => u64::MAX,
            position => self.counts.appended.wrapping_sub(position - 1),
        };
        let bucket = &self.index[hash.bucket].0;
        let oldest = (0..BUCKET_ENTRIES).max_by_key(|&entry| age(bucket[entry])).unwrap_or(0);
        if age(bucket[oldest]) <= self.ring {
            self.counts.displaced += 1;
        }
        oldest
    }

    /// Removes `key`. Returns whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let hash = self.hash(key);
        let found = self.find(hash, key);
        if let Some((entry, _)) = found {
            self.index[hash.bucket].0[entry] = 0;
        }
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u16, usize),
        Get(u16),
        Delete(u16),
    }

    fn steps(keys: u16) -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..keys, 0..VALUE_BYTES_MAX + 2).prop_map(|(key, len)| Step::Set(key, len)),
            3 => (0..keys).prop_map(Step::Get),
            1 => (0..keys).prop_map(Step::Delete),
        ];
        prop::collection::vec(step, 1..600)
    }

    /// Runs steps beside a map. Found values have to be right; missing ones were passed by the head, or displaced.
    fn run(mut store: Store, steps: &[Step]) {
        // Value, and the log's bytes before the item.
        let mut model: HashMap<Vec<u8>, (Vec<u8>, u64)> = HashMap::new();
        let mut missing = 0;
        for (turn, step) in steps.iter().enumerate() {
            let key = |number: &u16| {
                format!("{:0width$}", number, width = 1 + usize::from(*number % 90)).into_bytes()
            };
            match step {
                Step::Set(number, len) => {
                    let (key, value) = (key(number), vec![turn as u8; *len]);
                    let before = store.counts().appended;
                    match store.set(&key, &value) {
                        Set::TooLong => assert!(*len > VALUE_BYTES_MAX),
                        Set::InPlace => model.get_mut(&key).unwrap().0 = value,
                        Set::Appended => drop(model.insert(key, (value, before))),
                    }
                }
                Step::Get(number) => {
                    let key = key(number);
                    match (store.get(&key), model.get(&key)) {
                        (None, None) => {}
                        (Some(value), Some((expected, _))) => assert_eq!(value, expected),
                        (Some(_), None) => panic!("a key that was deleted or never set is found"),
                        (None, Some(&(_, from))) => {
                            model.remove(&key);
                            missing += u64::from(store.counts().appended - from <= store.log_bytes());
                        }
                    }
                }
                Step::Delete(number) => {
                    let key = key(number);
                    let (found, expected) = (store.delete(&key), model.remove(&key));
                    if let (false, Some((_, from))) = (found, expected) {
                        missing += u64::from(store.counts().appended - from <= store.log_bytes());
                    }
                    assert!(!found || store.get(&key).is_none());
                }
            }
        }
        assert!(missing <= store.counts().displaced, "{missing} missing, {:?}", store.counts());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn what_is_found_is_right_and_what_is_missing_has_a_reason(steps in steps(300), seed in any::<u64>()) {
            run(Store::new(1 << 16, 16, seed), &steps);
        }

        #[test]
        fn the_log_goes_round_many_times(steps in steps(12), seed in any::<u64>()) {
            run(Store::new(4096, 1, seed), &steps);
        }
    }

    #[test]
    fn a_store_with_room_loses_nothing() {
        let mut store = Store::new(1 << 20, 4096, 3);
        for number in 0..10_000u32 {
            assert_eq!(store.set(&number.to_be_bytes(), &[number as u8; 40]), Set::Appended);
        }
        let found = |number: &u32| store.get(&number.to_be_bytes()) == Some(&[*number as u8; 40][..]);
        let missing = (0..10_000u32).filter(|number| !found(number)).count() as u64;
        assert_eq!(missing, store.counts().displaced);
        // 2.4 keys for each bucket of eight on average.
        assert!(missing < 30, "{missing}");
    }

    #[test]
    fn keys_and_values_of_impossible_lengths_are_refused() {
        let mut store = Store::new(0, 0, 0);
        assert_eq!(store.set(b"", b"x"), Set::TooLong);
        assert_eq!(store.set(&[1; KEY_BYTES_MAX + 1], b"x"), Set::TooLong);
        assert_eq!(store.set(&[1; KEY_BYTES_MAX], &[2; VALUE_BYTES_MAX]), Set::Appended);
        assert_eq!(store.get(&[1; KEY_BYTES_MAX]), Some(&[2; VALUE_BYTES_MAX][..]));
        assert!(store.get(b"").is_none() && !store.delete(&[7; 4000]));
        assert_eq!(store.counts().appended as usize, ITEM_BYTES_MAX);
    }
}
