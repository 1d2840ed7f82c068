//! Queues of items that wait for the conductor, by payer. Payers take turns, with one item a turn. An item waits at most once.
use crate::messages::Payer;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// See the module.
#[derive(Debug)]
pub struct Queues<T> {
    queues: HashMap<Payer, Queue<T>>,
    /// Payers with waiting items, in the order of their turns.
    turns: BTreeMap<u64, Payer>,
    /// Waiting items, each with its payer and its place in the payer's queue.
    places: HashMap<T, (Payer, u64)>,
    /// Number of the next place or turn.
    next: u64,
}

#[derive(Debug)]
struct Queue<T> {
    turn: u64,
    items: BTreeMap<u64, T>,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), turns: BTreeMap::new(), places: HashMap::new(), next: 0 }
    }
}

impl<T: Copy + Eq + Hash> Queues<T> {
    /// Puts an item at the end of the payer's queue, unless it waits already.
    pub fn push(&mut self, payer: Payer, item: T) {
        if self.holds(item) {
            return;
        }
        let place = self.number();
        self.places.insert(item, (payer, place));
        let Self { queues, turns, .. } = self;
        let queue = queues.entry(payer).or_insert_with(|| {
            turns.insert(place, payer);
            Queue { turn: place, items: BTreeMap::new() }
        });
        queue.items.insert(place, item);
    }

    /// Returns the item that [`Self::pop`] takes next.
    pub fn first(&self) -> Option<T> {
        let payer = self.turns.values().next()?;
        self.queues.get(payer)?.items.values().next().copied()
    }

    /// Takes the oldest item of the payer that has its turn.
    pub fn pop(&mut self) -> Option<(Payer, T)> {
        let item = self.first()?;
        let payer = self.remove(item)?;
        let turn = self.number();
        if let Some(queue) = self.queues.get_mut(&payer) {
            self.turns.remove(&queue.turn);
            self.turns.insert(turn, payer);
            queue.turn = turn;
        }
        Some((payer, item))
    }

    /// Takes an item out of its queue. The payers keep their turns. Returns the item's payer, if it waited.
    pub fn remove(&mut self, item: T) -> Option<Payer> {
        let (payer, place) = self.places.remove(&item)?;
        let queue = self.queues.get_mut(&payer)?;
        queue.items.remove(&place);
        if queue.items.is_empty() {
            self.turns.remove(&queue.turn);
            self.queues.remove(&payer);
        }
        Some(payer)
    }

    /// Tells whether the item waits.
    pub fn holds(&self, item: T) -> bool {
        self.places.contains_key(&item)
    }

    /// Returns the number of items.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Tells whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::messages::payer;

    #[test]
    fn payers_take_turns_whatever_they_have_there() {
        let mut queues = Queues::default();
        let (one, two) = (payer(TenantId::new(0), 1), payer(TenantId::new(0), 2));
        (0..1000).for_each(|item| queues.push(one, item));
        (0..2).for_each(|item| queues.push(two, 5000 + item));
        let first: Vec<_> = (0..6).filter_map(|_| queues.pop().map(|(_, item)| item)).collect();
        assert_eq!(first, [0, 5000, 1, 5001, 2, 3]);
        queues.push(two, 9000);
        // The item waits already.
        queues.push(one, 9000);
        assert_eq!((queues.len(), queues.pop(), queues.pop()), (997, Some((one, 4)), Some((two, 9000))));
        while queues.pop().is_some() {}
        assert!(queues.is_empty() && queues.queues.is_empty() && queues.turns.is_empty());
    }

    #[test]
    fn an_item_that_is_removed_leaves_the_order_of_the_others() {
        let mut queues = Queues::default();
        let (one, two) = (payer(TenantId::new(0), 1), payer(TenantId::new(0), 2));
        (0..4).for_each(|item| queues.push(one, item));
        queues.push(two, 10);
        assert_eq!((queues.remove(0), queues.remove(2), queues.remove(7)), (Some(one), Some(one), None));
        assert_eq!(queues.first(), Some(1));
        assert_eq!(
            [queues.pop(), queues.pop(), queues.pop()],
            [Some((one, 1)), Some((two, 10)), Some((one, 3))]
        );
        queues.push(one, 0);
        assert_eq!((queues.remove(0), queues.len()), (Some(one), 0));
        assert!(queues.first().is_none() && queues.queues.is_empty() && queues.turns.is_empty());
    }
}
