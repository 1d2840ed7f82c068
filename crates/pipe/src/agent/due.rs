//! Receiving pipes that have something to be told, so that the others cost a turn nothing.
//!
//! A pipe whose program only receives is due from an append until all of it is announced and its ring has room. An answer of the program
//! matters to no other pipe. Their words are looked at all the same, a few in each turn, so that a violation is found.

use super::Slot;

/// Looks in a turn at pipes that are not due.
const LOOKS: usize = 32;

/// The numbers of due pipes.
#[derive(Debug, Default)]
pub(super) struct Due {
    numbers: Vec<usize>,
    /// By number: set if the pipe is among these. A pipe that is closed stays until the next turn.
    are_due: Vec<bool>,
    /// Number of the pipe that is looked at next, due or not.
    next: usize,
}

impl Due {
    /// Adds the pipe of a slot, if its program only receives and it is not there already.
    #[inline]
    pub fn add(&mut self, number: usize, slot: &Slot) {
        if slot.end.shape().sends() {
            return;
        }
        if number >= self.are_due.len() {
            self.are_due.resize(number + 1, false);
        }
        if !std::mem::replace(&mut self.are_due[number], true) {
            self.numbers.push(number);
        }
    }

    /// Removes a pipe that [`Self::take`] has taken.
    pub fn forget(&mut self, number: usize) {
        self.are_due[number] = false;
    }

    /// Takes all. The caller forgets those that do not stay, and puts back the others.
    pub fn take(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.numbers)
    }

    /// Puts back those that stay, in the place of [`Self::take`].
    pub fn put_back(&mut self, mut numbers: Vec<usize>) {
        numbers.append(&mut self.numbers);
        self.numbers = numbers;
    }

    /// Returns the numbers of the pipes to look at in this turn, of `count` places in all.
    pub fn patrol(&mut self, count: usize) -> impl Iterator<Item = usize> {
        let first = if self.next < count { self.next } else { 0 };
        let looks = LOOKS.min(count);
        self.next = if count > 0 { (first + looks) % count } else { 0 };
        (first..first + looks).map(move |number| if number < count { number } else { number - count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pipes_are_looked_at_in_turn() {
        let mut due = Due::default();
        assert_eq!(due.patrol(0).count(), 0);
        assert_eq!(due.patrol(3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(due.patrol(3).collect::<Vec<_>>(), [0, 1, 2]);
        let mut looks = [0; 100];
        (0..100).for_each(|_| due.patrol(100).for_each(|number| looks[number] += 1));
        assert_eq!(looks, [LOOKS; 100]);
        // Fewer than before.
        assert!(due.patrol(7).all(|number| number < 7));
    }
}
