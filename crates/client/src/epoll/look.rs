//! The state machine of readiness: what is wanted, what is reported, what is looked at again.
//!
//! The rules are the kernel's. An item that may have become ready is queued. A wait takes it from the queue and looks at
//! it. If there is something to report, a level-triggered item goes back into the queue, an edge-triggered one waits for
//! the next event, and a one-shot one for the next `modify`.
use super::item::{Item, Queue};
use super::rest::Resting;
use crate::turn::lock;
use std::sync::{Arc, Mutex};

/// Looks once at everything queued, and leaves there what is to be reported. Of the rest an event comes.
pub(crate) fn sift(queue: &Mutex<Queue>) {
    let waiting = lock(queue).len();
    for _ in 0..waiting {
        let Some(item) = lock(queue).pop() else { break };
        if item.arm() {
            lock(queue).push(&item);
        }
    }
}

/// Looks once at everything queued; reports at most `max` events, with the program's data and the registration's name. Returns how many.
/// The queue is not locked while an item is looked at.
pub(crate) fn collect(
    queue: &Mutex<Queue>,
    resting: &Mutex<Resting>,
    max: usize,
    report: &mut dyn FnMut(u32, u64, u64),
) -> usize {
    let mut count = 0;
    let mut again: Vec<Arc<Item>> = Vec::new();
    let may_rest = {
        let mut resting = lock(resting);
        resting.wake(queue);
        resting.has_room()
    };
    let waiting = lock(queue).len();
    for _ in 0..waiting {
        if count == max {
            break;
        }
        let Some(item) = lock(queue).pop() else { break };
        let (found, rest) = item.look(may_rest);
        if let Some(rest) = rest {
            let rests = lock(resting).take(rest.clone(), &item);
            if !rests && item.arm_rested(&rest) {
                lock(queue).push(&item);
            }
        }
        if let Some((events, data, look_again)) = found {
            report(events, data, item.name);
            count += 1;
            if look_again {
                again.push(item);
            }
        }
    }
    if !again.is_empty() {
        let mut queue = lock(queue);
        for item in &again {
            queue.push(item);
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoll::item::{Interest, Source};
    use crate::epoll::ready::{EDGE, ERR, HUP, IN, ONESHOT, OUT, RDHUP};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Weak;

    struct Fake(AtomicU32);

    impl Source for Fake {
        fn readiness(&self, _wanted: u32) -> u32 {
            self.0.load(Ordering::Relaxed)
        }

        fn leave(&self, _item: &Arc<Item>) {}
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Something happens to a source: this holds from now on.
        Happen(usize, u32),
        /// The program takes what was there; nothing is told.
        Take(usize),
        Modify(usize, u32),
        Wait(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let flags = (0u32..16).prop_map(|bits| {
            let bit = |n: u32, flag: u32| if bits >> n & 1 == 1 { flag } else { 0 };
            IN | bit(0, OUT) | bit(1, EDGE) | bit(2, ONESHOT) | bit(3, RDHUP)
        });
        let events =
            prop_oneof![Just(IN), Just(OUT), Just(IN | OUT), Just(IN | RDHUP), Just(HUP), Just(ERR | IN)];
        let step = prop_oneof![
            (0..3usize, events).prop_map(|(i, e)| Step::Happen(i, e)),
            (0..3usize).prop_map(Step::Take),
            (0..3usize, flags).prop_map(|(i, f)| Step::Modify(i, f)),
            (1..4usize).prop_map(Step::Wait),
        ];
        proptest::collection::vec(step, 1..120)
    }

    /// A model of epoll(7) for one item, without a queue.
    #[derive(Clone, Copy, Default)]
    struct Model {
        wanted: u32,
        holds: u32,
        happened: bool,
        disabled: bool,
    }

    impl Model {
        fn due(&self) -> u32 {
            let report = self.holds & (self.wanted | ERR | HUP);
            let level = self.wanted & (EDGE | ONESHOT) == 0;
            if self.disabled || !(level || self.happened) {
                0
            } else {
                report
            }
        }
    }

    proptest! {
        #[test]
        fn reports_what_is_promised(steps in steps()) {
            let sources: Vec<_> = (0..3).map(|_| Arc::new(Fake(AtomicU32::new(0)))).collect();
            let items: Vec<_> = sources.iter().enumerate().map(|(i, source)| {
                let source: Weak<dyn Source> = Arc::downgrade(&(source.clone() as Arc<dyn Source>));
                Item::new(source, Weak::new(), 0, Interest::new(IN, i as u64))
            }).collect();
            let mut model = [Model { wanted: IN, ..Model::default() }; 3];
            let (queue, resting) = (Mutex::new(Queue::default()), Mutex::default());
            for step in steps {
                match step {
                    Step::Happen(i, events) => {
                        sources[i].0.fetch_or(events, Ordering::Relaxed);
                        lock(&queue).push(&items[i]);
                        model[i].holds |= events;
                        model[i].happened |= !model[i].disabled;
                    }
                    Step::Take(i) => {
                        sources[i].0.store(0, Ordering::Relaxed);
                        model[i].holds = 0;
                    }
                    Step::Modify(i, wanted) => {
                        *lock(&items[i].interest) = Interest::new(wanted, i as u64);
                        lock(&queue).push(&items[i]);
                        model[i] = Model { wanted, happened: true, disabled: false, ..model[i] };
                    }
                    Step::Wait(max) => {
                        let mut got = Vec::new();
                        let count = collect(&queue, &resting, max, &mut |events, data, _| got.push((events, data as usize)));
                        prop_assert_eq!(count, got.len());
                        let due = model.iter().filter(|item| item.due() != 0).count();
                        prop_assert_eq!(count, due.min(max), "{} due", due);
                        for &(events, i) in &got {
                            prop_assert_eq!(events, model[i].due());
                            model[i].happened = false;
                            model[i].disabled |= model[i].wanted & ONESHOT != 0;
                        }
                        // An item that had nothing to report has used its event up.
                        if count < max {
                            for item in &mut model {
                                item.happened = false;
                            }
                        } else {
                            for (i, item) in model.iter_mut().enumerate() {
                                item.happened &= items[i].is_queued();
                            }
                        }
                    }
                }
            }
        }
    }
}
