//! Sources on the direct path that are looked at instead of asked for events, while nobody sleeps.
use super::item::{Item, Queue, Rest};
use crate::turn::lock;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Items at rest, which are looked at in each look, and not one by one. There are none while a thread sleeps, or
/// might: it would not notice.
#[derive(Debug, Default)]
pub(crate) struct Resting {
    items: Vec<(Rest, Arc<Item>)>,
    /// Items that rested before a sleep that goes on.
    disturbed: Vec<(Rest, Arc<Item>)>,
    sleepers: u32,
}

/// Items that are looked at. The others need an event.
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
    pub(crate) fn begin_sleep(&mut self) -> Vec<(Rest, Arc<Item>)> {
        self.sleepers += 1;
        let items: Vec<_> = self.items.drain(..).collect();
        items.iter().for_each(|(_, item)| item.resting.store(false, Ordering::Relaxed));
        self.disturbed.extend(items.iter().cloned());
        items
    }
}

/// A thread sleeps no more. After the last one queues what rested before: most has had no event, and rests again instead of having the
/// peer send one. An edge-triggered item without news rests again at once: a look would report what holds, which the program knows.
pub(super) fn end_sleep(resting: &Mutex<Resting>, queue: &Mutex<Queue>) {
    let disturbed = {
        let mut resting = lock(resting);
        resting.sleepers -= 1;
        if resting.sleepers > 0 {
            return;
        }
        std::mem::take(&mut resting.disturbed)
    };
    for (rest, item) in disturbed {
        let next = if item.is_edge() { item.glance() } else { None };
        // News that came before the glance took back what was asked for has reached the word.
        let is_news = match next.filter(|_| !rest.is_over()) {
            Some(next) => !lock(resting).take(next, &item) && item.arm_rested(&rest),
            None => true,
        };
        if is_news {
            lock(queue).push(&item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll::item::{Interest, Source};
    use crate::epoll::look::collect;
    use crate::epoll::ready::{EDGE, IN, OUT};
    use pd_shm::{Region, Theirs};
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
        let looks = || collect(&queue, &resting, 10, &mut |_, _, _| {});
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
        let (rest, rested_item) = &rested[0];
        assert_eq!((rested.len(), rested_item.arm_rested(rest), armed()), (1, false, 1));
        lock(&queue).push(&item);
        assert_eq!((looks(), lock(&resting).items.len(), armed()), (0, 0, 2), "somebody sleeps");
        end_sleep(&resting, &queue);
        assert_eq!((looks(), lock(&resting).items.len(), armed()), (0, 1, 2), "it rests again");
        item.removed.store(true, Ordering::Relaxed);
        assert_eq!((looks(), lock(&resting).items.len()), (0, 0), "its mapping is not kept");
    }

    /// Writable at all times, and readable when its word is reached.
    struct Writable(Ringing);

    impl Source for Writable {
        fn readiness(&self, wanted: u32) -> u32 {
            self.0.readiness(wanted) | OUT
        }

        fn glance(&self, wanted: u32) -> (u32, Option<Rest>) {
            let (ready, _) = self.0.glance(wanted);
            let rest = Rest { map: self.0.map.clone(), word: 0, value: self.0.value };
            (ready | OUT, Some(rest))
        }

        fn leave(&self, _item: &Arc<Item>) {}
    }

    #[test]
    fn an_edge_that_was_told_keeps_no_thread_from_sleeping() {
        let fd = pd_shm::memfd::create("test", 4096, pd_shm::memfd::Pages::Ordinary).unwrap();
        let map = Region::<pd_shm::Own>::new(&fd, 4096).unwrap();
        let seen = Arc::new(Region::<Theirs>::new(&fd, 4096).unwrap());
        let source = Arc::new(Writable(Ringing { map: seen, value: 3, armed: AtomicU32::new(0) }));
        let weak: Weak<dyn Source> = Arc::downgrade(&(source.clone() as Arc<dyn Source>));
        let item = Item::new(weak, Weak::new(), 0, Interest::new(IN | OUT | EDGE, 9));
        let (queue, resting) = (Mutex::new(Queue::default()), Mutex::<Resting>::default());
        let looks = || collect(&queue, &resting, 10, &mut |_, _, _| {});
        let sleeps = || {
            let rested = lock(&resting).begin_sleep();
            let is_ready = rested.iter().any(|(rest, item)| item.arm_rested(rest));
            end_sleep(&resting, &queue);
            !is_ready
        };
        lock(&queue).push(&item);
        assert_eq!((looks(), looks()), (1, 0), "that it is writable is told once");
        for _ in 0..3 {
            assert_eq!((sleeps(), looks(), lock(&resting).items.len()), (true, 0, 1));
        }
        map.store_u64(0, 3, Ordering::Relaxed);
        assert!(!sleeps(), "there is news");
        assert_eq!(looks(), 1);
    }
}
