//! Allocator of a receive region's pages.
use std::collections::BTreeMap;

/// Free pages of one region as maximal runs. First fit, aligned to the size asked for. Rings then have few
/// different places, and a client soon has all of them mapped.
#[derive(Debug)]
pub struct Space {
    free: BTreeMap<u32, u32>,
    pages: u32,
    taken: u32,
}

impl Space {
    /// Begins with `pages` pages, all free.
    pub fn new(pages: u32) -> Self {
        Self { free: BTreeMap::from([(0, pages)]), pages, taken: 0 }
    }

    /// Takes `count` consecutive pages; returns the first, a multiple of `count`.
    pub fn take(&mut self, count: u32) -> Option<u32> {
        let fits = |(&from, &run): (&u32, &u32)| {
            let (at, end) = (from.next_multiple_of(count), from + run);
            (at + count <= end).then_some((from, at, end))
        };
        let (from, at, end) = self.free.iter().find_map(fits)?;
        self.free.remove(&from);
        for (free_from, free_to) in [(from, at), (at + count, end)] {
            if free_from < free_to {
                self.free.insert(free_from, free_to - free_from);
            }
        }
        self.taken += count;
        Some(at)
    }

    /// Takes these pages. Returns whether they were free.
    pub fn claim(&mut self, at: u32, count: u32) -> bool {
        let Some(end) = at.checked_add(count).filter(|_| count > 0) else { return false };
        let run = self.free.range(..=at).next_back().map(|(&from, &run)| (from, from + run));
        let Some((from, until)) = run.filter(|(_, until)| end <= *until) else { return false };
        self.free.remove(&from);
        for (free_from, free_to) in [(from, at), (end, until)] {
            if free_from < free_to {
                self.free.insert(free_from, free_to - free_from);
            }
        }
        self.taken += count;
        true
    }

    /// Gives pages back that [`Self::take`] returned.
    ///
    /// # Panics
    /// If any of them is free already or does not exist.
    pub fn give(&mut self, mut at: u32, mut count: u32) {
        assert!(count > 0 && at + count <= self.pages, "pages {at}+{count} of {}", self.pages);
        self.taken -= count;
        if let Some((&before, &run)) = self.free.range(..at).next_back() {
            assert!(before + run <= at, "pages {at}+{count} are free already");
            if before + run == at {
                self.free.remove(&before);
                (at, count) = (before, count + run);
            }
        }
        if let Some((&after, &run)) = self.free.range(at..).next() {
            assert!(at + count <= after, "pages {at}+{count} are free already");
            if at + count == after {
                self.free.remove(&after);
                count += run;
            }
        }
        self.free.insert(at, count);
    }

    /// Returns the number of pages taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rings_never_overlap(steps in prop::collection::vec((any::<bool>(), 1u32..9, any::<usize>()), 1..300)) {
            let mut space = Space::new(64);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (take, count, pick) in steps {
                if take {
                    if let Some(at) = space.take(count) {
                        prop_assert!(at % count == 0 && at + count <= 64);
                        for &(other, run) in &taken {
                            prop_assert!(at + count <= other || other + run <= at);
                        }
                        taken.push((at, count));
                    } else {
                        // No such run is free.
                        let mut free = [true; 64];
                        for &(at, run) in &taken {
                            free[at as usize..(at + run) as usize].fill(false);
                        }
                        prop_assert!(!free.chunks_exact(count as usize).any(|run| run.iter().all(|&f| f)));
                    }
                } else if !taken.is_empty() {
                    let (at, run) = taken.swap_remove(pick % taken.len());
                    space.give(at, run);
                }
                prop_assert_eq!(space.taken(), taken.iter().map(|t| t.1).sum::<u32>());
            }
            // Another call claims the same pages, once.
            let mut next = Space::new(64);
            for &(at, run) in &taken {
                prop_assert!(next.claim(at, run) && !next.claim(at, run));
            }
            prop_assert_eq!(&next.free, &space.free);
            prop_assert!(!next.claim(60, 5) && !next.claim(u32::MAX, 2) && !next.claim(0, 0));
        }
    }
}
