//! Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4): a table that gives each backend its share of the hashes, and changes little when a
//! backend comes or goes. Pure.
//!
//! Each backend prefers the entries of the table in an order of its own. The backends take turns, by weight, and each takes the
//! first entry of its order that is free.
#![forbid(unsafe_code)]

use std::sync::Arc;

/// Entries of a table: a prime.
pub const ENTRIES: usize = 65_537;

/// A table: for each entry the number of a backend. Shared, for it is large.
#[derive(Clone, PartialEq, Eq)]
pub struct Table(Arc<[u16]>);

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Table").field(&self.0.len()).finish()
    }
}

/// Mixes the bits of a word. `choice.bpf.h` has the same function.
pub fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

/// Hashes a name, the same in every process and on every machine.
fn hash(name: &[u8], seed: u64) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    mix(name.iter().fold(0xcbf2_9ce4_8422_2325 ^ mix(seed), fold))
}

/// The order in which a backend prefers entries: offset + skip n³ for n from 0 on, each entry once.
///
/// The paper has offset + skip n. Among 100 backends two often have the same skip, so that one follows the other through the table, and
/// takes many entries when the other goes. Cubes of different offsets meet no oftener than chance has them. They are a permutation
/// because 3 and `ENTRIES - 1` have no common divisor.
struct Order {
    next: usize,
    /// First, second and third difference of what follows.
    first: usize,
    second: usize,
    third: usize,
}

impl Order {
    fn new(name: &[u8]) -> Self {
        let next = (hash(name, 1) % ENTRIES as u64) as usize;
        let skip = (hash(name, 2) % (ENTRIES as u64 - 1)) as usize + 1;
        let third = 6 * skip % ENTRIES;
        Self { next, first: skip, second: third, third }
    }

    fn take(&mut self) -> usize {
        let at = self.next;
        self.next = (at + self.first) % ENTRIES;
        self.first = (self.first + self.second) % ENTRIES;
        self.second = (self.second + self.third) % ENTRIES;
        at
    }
}

impl Table {
    /// Makes the table of backends with these names and weights. A weight of 0 gets no entry; without any weight the table is
    /// empty.
    pub fn new(backends: &[(&[u8], u32)]) -> Self {
        let heaviest = u64::from(backends.iter().map(|(_, weight)| *weight).max().unwrap_or(0));
        if heaviest == 0 {
            return Self(Arc::from([]));
        }
        const FREE: u16 = u16::MAX;
        let mut entries = vec![FREE; ENTRIES];
        let mut orders: Vec<_> = backends.iter().map(|(name, _)| Order::new(name)).collect();
        let (mut credits, mut left) = (vec![0u64; backends.len()], ENTRIES);
        loop {
            for (index, (_, weight)) in backends.iter().enumerate() {
                // The heaviest has a turn in each round; others have turns in proportion to their weight.
                credits[index] += u64::from(*weight);
                if credits[index] < heaviest {
                    continue;
                }
                credits[index] -= heaviest;
                let at = loop {
                    let at = orders[index].take();
                    if entries[at] == FREE {
                        break at;
                    }
                };
                entries[at] = index as u16;
                left -= 1;
                if left == 0 {
                    return Self(entries.into());
                }
            }
        }
    }

    /// Returns all entries.
    pub fn entries(&self) -> &[u16] {
        &self.0
    }

    /// Returns the backend of a hash; none if no backend has a weight.
    pub fn find(&self, hash: u64) -> Option<usize> {
        // By a constant, which costs no division.
        self.0.get((hash % ENTRIES as u64) as usize).map(|&backend| backend.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(backends: &[(String, u32)]) -> Table {
        Table::new(&backends.iter().map(|(name, weight)| (name.as_bytes(), *weight)).collect::<Vec<_>>())
    }

    fn named(count: usize, salt: u32) -> Vec<(String, u32)> {
        (0..count).map(|n| (format!("10.{}.{}.{n}:{}", salt % 256, n / 256, 1 + salt % 60_000), 1)).collect()
    }

    fn shares(table: &Table, count: usize) -> Vec<usize> {
        let mut shares = vec![0; count];
        table.entries().iter().for_each(|&backend| shares[usize::from(backend)] += 1);
        shares
    }

    /// Counts the entries that lead to another backend although their previous one remains.
    fn moved(before: &[(String, u32)], after: &[(String, u32)]) -> usize {
        let (old, new) = (table(before), table(after));
        let pairs = old.entries().iter().zip(new.entries());
        let names = pairs.map(|(a, b)| (&before[usize::from(*a)].0, &after[usize::from(*b)].0));
        names.filter(|(a, b)| a != b && after.iter().any(|(name, _)| name == *a)).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn shares_are_even_within_two_in_a_hundred(count in 1usize..=100, salt in any::<u32>()) {
            let even = ENTRIES as f64 / count as f64;
            for share in shares(&table(&named(count, salt)), count) {
                prop_assert!((share as f64 - even).abs() <= 0.02 * even, "{} of {}", share, even);
            }
        }

        #[test]
        fn shares_follow_weights(weights in prop::collection::vec(0u32..=20, 1..30), salt in any::<u32>()) {
            let mut backends = named(weights.len(), salt);
            backends.iter_mut().zip(&weights).for_each(|(backend, weight)| backend.1 = *weight);
            let total: u32 = weights.iter().sum();
            if total == 0 {
                prop_assert!(table(&backends).find(1).is_none());
                return Ok(());
            }
            for (share, weight) in shares(&table(&backends), weights.len()).into_iter().zip(weights) {
                let due = ENTRIES as f64 * f64::from(weight) / f64::from(total);
                prop_assert!((share as f64 - due).abs() <= 2.0 + 0.01 * due, "{} of {}", share, due);
            }
        }

        #[test]
        fn few_hashes_move_when_a_backend_goes(salt in any::<u32>(), gone in 0usize..100) {
            let before = named(100, salt);
            let mut after = before.clone();
            after.remove(gone);
            let moved = moved(&before, &after);
            prop_assert!(moved * 100 <= ENTRIES, "{} of {} moved", moved, ENTRIES);
        }
    }

    /// Tables are equal on every machine, processor and process.
    #[test]
    fn a_table_is_the_same_everywhere() {
        let table = table(&named(3, 7));
        let sum = table.entries().iter().fold(0u64, |sum, &backend| mix(sum ^ u64::from(backend)));
        assert_eq!((table.entries().len(), sum), (ENTRIES, SUM));
    }

    const SUM: u64 = 3_523_465_252_353_936_447;
}
