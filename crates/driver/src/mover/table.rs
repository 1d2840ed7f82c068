//! Buffer tables: the blocks of a ring that are in use (paper, section III-C, Figure 5).
use std::collections::VecDeque;

/// Block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First byte: an address for the engine (send buffer table) or an offset in the ring (receive
    /// buffer table).
    pub pointer: u64,
    /// Bytes of the block.
    pub size: u64,
    /// Number of sends in the block, in a send buffer table.
    pub sends: u64,
    /// Bytes inserted up to and with this block since the table was made. The ring holds the difference between the youngest and the oldest
    /// entry.
    pub total: u64,
    done: bool,
}

/// A send or receive buffer table: blocks are inserted in order, finished in any order, and removed in
/// order. Entries are numbered freely, modulo 65,536 in engine commands.
#[derive(Debug)]
pub struct BufferTable {
    entries: VecDeque<Entry>,
    first: u64,
    inserted: u64,
    removed: u64,
    bytes_max: u64,
}

/// Most entries of one table: a command's `entry_seq` (16 bits) must be unambiguous.
pub const ENTRIES_MAX: usize = 1 << 15;

impl BufferTable {
    /// Makes an empty table of a ring of `bytes_max` bytes. Allocates nothing until the first block.
    pub const fn new(bytes_max: u64) -> Self {
        Self { entries: VecDeque::new(), first: 0, inserted: 0, removed: 0, bytes_max }
    }

    /// Makes a table of blocks that another one has left: their addresses, bytes and sends. `first` is the number of the oldest block, or
    /// of the next one. `None`: no table can have these blocks.
    pub fn resume(bytes_max: u64, first: u64, blocks: &[(u64, u64, u64)]) -> Option<Self> {
        let mut this = Self { first, ..Self::new(u64::MAX) };
        for &(pointer, size, sends) in blocks {
            this.inserted.checked_add(size).filter(|_| sends > 0)?;
            this.insert_sends(pointer, size, sends)?;
        }
        this.bytes_max = bytes_max.max(this.used());
        Some(this)
    }

    /// Iterates over the blocks in use, oldest first.
    pub fn blocks(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Returns the size of the ring.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.inserted - self.removed
    }

    /// Returns the bytes not in use.
    pub fn room(&self) -> u64 {
        self.bytes_max.saturating_sub(self.used())
    }

    /// Returns the number of blocks in use.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tells whether no block is in use.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sets the size of the ring. Blocks in use stay.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Inserts a block behind the others. Returns its number; `None` if it does not fit.
    pub fn insert(&mut self, pointer: u64, size: u64) -> Option<u64> {
        self.insert_sends(pointer, size, 1)
    }

    /// Inserts a block of one or several sends behind the others. Returns its number; `None` if it does not fit.
    pub fn insert_sends(&mut self, pointer: u64, size: u64, sends: u64) -> Option<u64> {
        if size == 0 || size > self.room() || self.entries.len() == ENTRIES_MAX {
            return None;
        }
        self.inserted += size;
        self.entries.push_back(Entry { pointer, size, sends, total: self.inserted, done: false });
        Some(self.first + self.entries.len() as u64 - 1)
    }

    /// Counts a block that came and went while the table was empty. Returns its number.
    pub fn pass(&mut self) -> u64 {
        debug_assert!(self.entries.is_empty(), "blocks are removed in order");
        self.first += 1;
        self.first - 1
    }

    /// Makes the youngest block longer by the bytes that follow it in memory, if they fit and `is_idle` is true for the block's number.
    /// Returns whether it did.
    pub fn extend(&mut self, pointer: u64, size: u64, sends: u64, is_idle: impl FnOnce(u64) -> bool) -> bool {
        let (room, number) = (self.room(), self.first + self.entries.len() as u64);
        let Some(last) = self.entries.back_mut() else { return false };
        if last.done || last.pointer + last.size != pointer || size > room || !is_idle(number - 1) {
            return false;
        }
        last.size += size;
        last.sends += sends;
        last.total += size;
        self.inserted += size;
        true
    }

    /// Returns the number of the oldest block, or of the next one.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the block with this number.
    pub fn get(&self, number: u64) -> Option<&Entry> {
        self.entries.get(number.checked_sub(self.first)? as usize)
    }

    /// Returns the full number of the entry in use that a command's 16 bits mean.
    pub fn number(&self, entry_seq: u16) -> Option<u64> {
        let ahead = entry_seq.wrapping_sub(self.first as u16);
        ((ahead as usize) < self.entries.len()).then(|| self.first + u64::from(ahead))
    }

    /// Marks a block as finished. Returns whether it was in use and not yet finished.
    pub fn finish(&mut self, number: u64) -> bool {
        let Some(index) = number.checked_sub(self.first) else { return false };
        match self.entries.get_mut(index as usize) {
            Some(entry) if !entry.done => {
                entry.done = true;
                true
            }
            _ => false,
        }
    }

    /// Takes the oldest block out if it is finished.
    pub fn remove_finished(&mut self) -> Option<Entry> {
        if !self.entries.front()?.done {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.first += 1;
        self.removed += entry.size;
        Some(entry)
    }

    /// Takes all blocks out. Returns their number.
    pub fn clear(&mut self) -> u64 {
        let count = self.entries.len() as u64;
        self.first += count;
        self.removed = self.inserted;
        self.entries = VecDeque::new();
        count
    }

    /// Gives back the memory of an empty table.
    pub fn shrink(&mut self) {
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_table_goes_on_with_another_ones_blocks(
            blocks in prop::collection::vec((any::<u64>(), prop_oneof![0u64..100, any::<u64>()], 0u64..4), 0..20),
            first in 0u64..1000,
        ) {
            let fits = blocks.iter().all(|(_, size, sends)| *size > 0 && *sends > 0)
                && blocks.iter().try_fold(0u64, |sum, (_, size, _)| sum.checked_add(*size)).is_some();
            let table = BufferTable::resume(50, first, &blocks);
            prop_assert_eq!(table.is_some(), fits);
            if let Some(table) = table {
                let again: Vec<_> = table.blocks().map(|block| (block.pointer, block.size, block.sends)).collect();
                prop_assert_eq!(again, &blocks[..]);
                prop_assert_eq!((table.first(), table.len()), (first, blocks.len()));
                prop_assert_eq!(table.used(), blocks.iter().map(|(_, size, _)| size).sum::<u64>());
            }
        }
    }

    #[test]
    fn figure_5() {
        let mut sbt = BufferTable::new(9);
        let numbers: Vec<_> = [3, 2, 3, 1].iter().map(|&size| sbt.insert(0, size).unwrap()).collect();
        let totals: Vec<_> = numbers.iter().map(|&n| sbt.get(n).unwrap().total).collect();
        assert_eq!(totals, [3, 5, 8, 9]);
        assert_eq!(sbt.insert(0, 1), None, "full");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Extend(u64, bool),
        Finish(usize),
        Remove,
        Clear,
        Pass,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0u64..40).prop_map(Step::Insert),
            4 => (1u64..40, any::<bool>()).prop_map(|(size, idle)| Step::Extend(size, idle)),
            4 => (0usize..64).prop_map(Step::Finish),
            4 => Just(Step::Remove),
            1 => Just(Step::Clear),
            4 => Just(Step::Pass),
        ];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        /// Tests full tables, finishes out of order, and numbers beyond 16 bits, against a list.
        #[test]
        fn behaves_like_a_list(steps in steps(), capacity in 1u64..200, start in prop_oneof![Just(0u64), Just(65_530)]) {
            let mut table = BufferTable::new(capacity);
            table.first = start;
            let mut model: Vec<(u64, u64, bool)> = Vec::new();
            let mut sends = 0;
            let mut next = start;
            for step in steps {
                match step {
                    Step::Insert(size) => {
                        let used: u64 = model.iter().map(|e| e.1).sum();
                        let fits = size > 0 && used + size <= capacity;
                        let got = table.insert(next * 7, size);
                        prop_assert_eq!(got, fits.then_some(next));
                        if fits {
                            model.push((next, size, false));
                            next += 1;
                            sends += 1;
                        }
                    }
                    Step::Extend(size, idle) => {
                        let used: u64 = model.iter().map(|e| e.1).sum();
                        let last = model.last_mut().filter(|e| !e.2);
                        let end = last.as_ref().map_or(0, |e| e.0 * 7 + e.1);
                        prop_assert!(!table.extend(end + 1, size, 1, |_| true), "memory between");
                        let fits = last.is_some() && idle && used + size <= capacity;
                        let number = next.wrapping_sub(1);
                        prop_assert_eq!(table.extend(end, size, 2, |asked| asked == number && idle), fits);
                        if let (Some(last), true) = (last, fits) {
                            last.1 += size;
                            sends += 2;
                        }
                    }
                    Step::Finish(index) => {
                        let number = start + index as u64;
                        let entry = model.iter_mut().find(|e| e.0 == number && !e.2);
                        let expected = entry.map(|e| e.2 = true).is_some();
                        prop_assert_eq!(table.finish(number), expected);
                    }
                    Step::Remove => {
                        let expected = model.first().filter(|e| e.2).map(|e| (e.0 * 7, e.1));
                        let removed = table.remove_finished();
                        prop_assert_eq!(removed.map(|e| (e.pointer, e.size)), expected);
                        if let Some(entry) = removed {
                            sends -= entry.sends;
                            model.remove(0);
                        }
                    }
                    Step::Pass if model.is_empty() => {
                        prop_assert_eq!(table.pass(), next);
                        next += 1;
                    }
                    Step::Pass => {}
                    Step::Clear => {
                        prop_assert_eq!(table.clear(), model.len() as u64);
                        model.clear();
                        sends = 0;
                    }
                }
                prop_assert_eq!(table.used(), model.iter().map(|e| e.1).sum::<u64>());
                prop_assert_eq!(table.room(), capacity - table.used());
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.entries.iter().map(|e| e.sends).sum::<u64>(), sends);
                for &(number, size, _) in &model {
                    prop_assert_eq!(table.number(number as u16), Some(number));
                    prop_assert_eq!(table.get(number).unwrap().size, size);
                }
            }
        }
    }
}
