//! Things that wait for the conductor, by who pays for it: payers take turns, and one thing is taken in a turn. What waits already
//! waits once.
use crate::messages::Payer;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

/// See the module.
#[derive(Debug)]
pub struct Queues<T> {
    queues: HashMap<Payer, VecDeque<T>>,
    /// Payers with something that waits.
    order: VecDeque<Payer>,
    items: HashSet<T>,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), order: VecDeque::new(), items: HashSet::new() }
    }
}

impl<T: Copy + Eq + Hash> Queues<T> {
    /// Behind what the payer has there already.
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

    /// The oldest of the payer whose turn it is.
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

    /// Whether it is there.
    pub fn holds(&self, item: T) -> bool {
        self.items.contains(&item)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
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
        // It waits already.
        queues.push(one, 9000);
        assert_eq!((queues.len(), queues.pop(), queues.pop()), (997, Some((one, 4)), Some((two, 9000))));
        while queues.pop().is_some() {}
        assert!(queues.is_empty() && queues.queues.is_empty() && queues.order.is_empty());
    }
}
