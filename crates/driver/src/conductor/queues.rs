//! Queues of items that wait for the conductor, by payer. Payers take turns, with one item a turn. An item waits at most once.
use crate::messages::Payer;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// See the module.
#[derive(Debug)]
pub struct Queues<T> {
    queues: HashMap<Payer, VecDeque<T>>,
    /// Payers with waiting items, in the order of their turns.
    order: VecDeque<Payer>,
    items: HashSet<T>,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), order: VecDeque::new(), items: HashSet::new() }
    }
}

impl<T: Copy + Eq + Hash> Queues<T> {
    /// Puts an item at the end of the payer's queue, unless it waits already.
    pub fn push(&mut self, payer: Payer, item: T) {
        if !self.items.insert(item) {
            return;
        }
        let queue = self.queues.entry(payer).or_default();
        if queue.is_empty() {
            self.order.push_back(payer);
        }
        queue.push_back(item);
    }

    /// Takes the oldest item of the payer that has its turn.
    pub fn pop(&mut self) -> Option<(Payer, T)> {
        let payer = self.order.pop_front()?;
        let queue = self.queues.get_mut(&payer)?;
        let item = queue.pop_front()?;
        self.items.remove(&item);
        if queue.is_empty() {
            self.queues.remove(&payer);
        } else {
            self.order.push_back(payer);
        }
        Some((payer, item))
    }

    /// Tells whether the item waits.
    pub fn holds(&self, item: T) -> bool {
        self.items.contains(&item)
    }

    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Tells whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
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
        assert!(queues.is_empty() && queues.queues.is_empty() && queues.order.is_empty());
    }
}
