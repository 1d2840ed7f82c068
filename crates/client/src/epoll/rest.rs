//! Sources on the direct path that are looked at instead of asked for events, while nobody sleeps.
use super::ready::{Item, Queue};
use crate::turn::lock;
use pd_shm::{Region, Theirs};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A source at rest: there is news when the word of a direct ring has reached a value.
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) map: Arc<Region<Theirs>>,
    pub(crate) word: usize,
    pub(crate) value: u64,
}

impl Rest {
    fn is_over(&self) -> bool {
        self.map.load_u64(self.word, Ordering::Acquire) >= self.value
    }
}

/// Items at rest, which are looked at in each look, and not one by one. There are none while a thread sleeps, or
/// might: it would not notice.
#[derive(Debug, Default)]
pub(crate) struct Resting {
    items: Vec<(Rest, Arc<Item>)>,
    /// Items that rested before a sleep that goes on.
    disturbed: Vec<Arc<Item>>,
    sleepers: u32,
}

/// So many are looked at; of the others an event has to come.
const RESTING_MAX: usize = 256;

impl Resting {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn has_news(&self) -> bool {
        self.items.iter().any(|(rest, _)| rest.is_over())
    }

    /// Queues those of which there is news.
    pub(super) fn wake(&mut self, queue: &Mutex<Queue>) {
        self.items.retain(|(rest, item)| {
            if item.removed.load(Ordering::Relaxed) {
                return false;
            }
            let over = rest.is_over();
            if over {
                item.resting.store(false, Ordering::Relaxed);
                lock(queue).push(item);
            }
            !over
        });
    }

    pub(super) fn has_room(&self) -> bool {
        self.sleepers == 0 && self.items.len() < RESTING_MAX
    }

    /// Takes one in; it may be there already, with a value that comes no later. False: it cannot rest.
    pub(super) fn take(&mut self, rest: Rest, item: &Arc<Item>) -> bool {
        if !self.has_room() {
            return false;
        }
        if !item.resting.swap(true, Ordering::Relaxed) {
            self.items.push((rest, item.clone()));
        }
        true
    }

    /// A thread is about to sleep. Returns what rested here: an event has to come of each.
    pub(crate) fn begin_sleep(&mut self) -> Vec<Arc<Item>> {
        self.sleepers += 1;
        let items = self.items.drain(..).map(|(_, item)| item);
        let items: Vec<_> = items.inspect(|item| item.resting.store(false, Ordering::Relaxed)).collect();
        self.disturbed.extend(items.iter().cloned());
        items
    }

    /// It sleeps no more. After the last one queues what rested before: most has had no event, and rests again instead
    /// of having the peer send one.
    pub(super) fn end_sleep(&mut self, queue: &Mutex<Queue>) {
        self.sleepers -= 1;
        if self.sleepers == 0 && !self.disturbed.is_empty() {
            let mut queue = lock(queue);
            self.disturbed.drain(..).for_each(|item| queue.push(&item));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll::ready::{collect, Interest, Source, IN};
    use std::sync::atomic::AtomicU32;
    use std::sync::Weak;

    /// Ready when its word is reached; counts how often it was armed.
    struct Ringing {
        map: Arc<Region<Theirs>>,
        value: u64,
        armed: AtomicU32,
    }

    impl Source for Ringing {
        fn readiness(&self, _wanted: u32) -> u32 {
            self.armed.fetch_add(1, Ordering::Relaxed);
            self.glance(IN).0
        }

        fn glance(&self, _wanted: u32) -> (u32, Option<Rest>) {
            if self.map.load_u64(0, Ordering::Relaxed) >= self.value {
                return (IN, None);
            }
            (0, Some(Rest { map: self.map.clone(), word: 0, value: self.value }))
        }

        fn leave(&self, _item: &Arc<Item>) {}
    }

    #[test]
    fn what_rests_is_found_by_looking_and_armed_before_a_sleep() {
        let fd = pd_shm::memfd::create("test", 4096, pd_shm::memfd::Pages::Ordinary).unwrap();
        let map = Region::<pd_shm::Own>::new(&fd, 4096).unwrap();
        let seen = Arc::new(Region::<Theirs>::new(&fd, 4096).unwrap());
        let source = Arc::new(Ringing { map: seen, value: 3, armed: AtomicU32::new(0) });
        let weak: Weak<dyn Source> = Arc::downgrade(&(source.clone() as Arc<dyn Source>));
        let item = Item::new(weak, Weak::new(), 0, Interest::new(IN, 9));
        let (queue, resting) = (Mutex::new(Queue::default()), Mutex::<Resting>::default());
        let looks = || collect(&queue, &resting, 10, &mut |_, _| {});
        let armed = || source.armed.load(Ordering::Relaxed);
        lock(&queue).push(&item);
        assert_eq!((looks(), lock(&resting).items.len(), armed()), (0, 1, 0));
        lock(&queue).push(&item);
        assert_eq!((looks(), lock(&resting).items.len()), (0, 1), "it rests once");
        assert!(!lock(&resting).has_news());
        map.store_u64(0, 3, Ordering::Relaxed);
        assert!(lock(&resting).has_news());
        assert_eq!((looks(), armed()), (1, 0), "no event was asked for");

        map.store_u64(0, 0, Ordering::Relaxed);
        assert_eq!((looks(), lock(&resting).items.len()), (0, 1));
        let rested = lock(&resting).begin_sleep();
        assert_eq!((rested.len(), rested[0].arm(), armed()), (1, false, 1));
        lock(&queue).push(&item);
        assert_eq!((looks(), lock(&resting).items.len(), armed()), (0, 0, 2), "somebody sleeps");
        lock(&resting).end_sleep(&queue);
        assert_eq!((looks(), lock(&resting).items.len(), armed()), (0, 1, 2), "it rests again");
        item.removed.store(true, Ordering::Relaxed);
        assert_eq!((looks(), lock(&resting).items.len()), (0, 0), "its mapping is not kept");
    }
}
