//! The state machine of readiness: what is wanted, what is reported, what is looked at again.
//!
//! It is the kernel's: something that may have become ready is queued; a wait takes it from the queue
//! and looks at it; if there is something to report, level-triggered items go back into the queue,
//! edge-triggered ones wait for the next event, one-shot ones for the next `modify`.
use super::rest::{Rest, Resting};
use super::Epoll;
use crate::own::OwnFd;
use crate::turn::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Readable, or a connection can be accepted.
pub const IN: u32 = libc::EPOLLIN as u32;
/// Writable.
pub const OUT: u32 = libc::EPOLLOUT as u32;
/// The connection has failed. Always reported.
pub const ERR: u32 = libc::EPOLLERR as u32;
/// Both directions have ended. Always reported.
pub const HUP: u32 = libc::EPOLLHUP as u32;
/// The peer has ended its stream.
pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// The stream goes on elsewhere, which its owner has still to follow ([`Socket::step_aside`]). Always reported, and no event of
/// the kernel's.
///
/// [`Socket::step_aside`]: crate::core::Socket::step_aside
pub const ASIDE: u32 = 1 << 27;
/// Flags that are reported whether wanted or not.
const ALWAYS: u32 = ERR | HUP | ASIDE;
/// Report once, then not until modified.
pub const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// Report when something happens, not while something is there.
pub const EDGE: u32 = libc::EPOLLET as u32;

/// Something that can be ready.
pub(crate) trait Source: Send + Sync {
    /// The events that hold now. Of `OUT` it must be correct only if `wanted`, and then it makes sure
    /// that an event comes when it changes.
    fn readiness(&self, wanted: u32) -> u32;

    /// The same, but where a word in shared memory tells when `IN` is news, no event need come for that: whoever waits
    /// looks at the word, until it has to sleep.
    fn glance(&self, wanted: u32) -> (u32, Option<Rest>) {
        (self.readiness(wanted), None)
    }

    /// Has the peer ring a doorbell with news, instead of having the driver post an event, if the source is on the direct path and in
    /// one instance only, the item's: `register` is given the doorbell, and says whether its threads sleep on it from now
    /// on. Says whether to ask no more.
    fn ask_for_bell(
        &self,
        _item: &Arc<Item>,
        _instance: u64,
        _register: &dyn Fn(u64, Arc<OwnFd>) -> bool,
    ) -> bool {
        true
    }

    /// The item's epoll instance has ended.
    fn leave(&self, item: &Arc<Item>);
}

/// A program's interest in one source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    pub(crate) events: u32,
    pub(crate) data: u64,
    pub(crate) enabled: bool,
}

impl Interest {
    pub(crate) fn new(events: u32, data: u64) -> Self {
        Self { events, data, enabled: true }
    }

    /// The events to report of those that hold, and whether to look again in the next wait.
    fn report(&mut self, ready: u32) -> Option<(u32, bool)> {
        let report = ready & (self.events | ALWAYS);
        if !self.enabled || report == 0 {
            return None;
        }
        if self.events & ONESHOT != 0 {
            self.enabled = false;
        }
        Some((report, self.events & (ONESHOT | EDGE) == 0))
    }
}

/// One source in one epoll instance.
pub(crate) struct Item {
    pub(crate) source: Weak<dyn Source>,
    pub(crate) epoll: Weak<Epoll>,
    /// The source may be in the instance by several.
    pub(crate) name: u64,
    pub(crate) interest: Mutex<Interest>,
    pub(crate) removed: AtomicBool,
    /// In the queue. Changes under the queue's lock only.
    queued: AtomicBool,
    /// In [`Resting`]. Changes under its lock only.
    pub(crate) resting: AtomicBool,
    /// See [`Source::ask_for_bell`].
    pub(crate) bell_asked: AtomicBool,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("interest", &self.interest).finish_non_exhaustive()
    }
}

impl Item {
    pub(crate) fn new(
        source: Weak<dyn Source>,
        epoll: Weak<Epoll>,
        name: u64,
        interest: Interest,
    ) -> Arc<Self> {
        Arc::new(Self {
            source,
            epoll,
            name,
            interest: Mutex::new(interest),
            removed: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            bell_asked: AtomicBool::new(false),
        })
    }

    /// The source and what is wanted of it, if anything.
    fn wanted(&self) -> Option<(Arc<dyn Source>, u32)> {
        if self.removed.load(Ordering::Acquire) {
            return None;
        }
        let source = self.source.upgrade()?;
        let wanted = *lock(&self.interest);
        wanted.enabled.then_some((source, wanted.events))
    }

    /// Returns the report due now and whether to look again, or else the time until which the item may rest.
    fn look(&self, may_rest: bool) -> (Option<(u32, u64, bool)>, Option<Rest>) {
        let Some((source, events)) = self.wanted() else { return (None, None) };
        let (ready, rest) = if may_rest { source.glance(events) } else { (source.readiness(events), None) };
        let mut interest = lock(&self.interest);
        let report = interest.report(ready).map(|(report, again)| (report, interest.data, again));
        (report, rest)
    }

    /// Makes sure that an event comes. Says whether there is something to report already.
    pub(crate) fn arm(&self) -> bool {
        let Some((source, events)) = self.wanted() else { return false };
        source.readiness(events) & (events | ALWAYS) != 0
    }

    /// As [`Self::arm`], of an item that has rested. An edge-triggered one has told what held before: news is what ends its rest, and
    /// events that the driver sends.
    pub(crate) fn arm_rested(&self, rest: &Rest) -> bool {
        self.arm() && (!self.is_edge() || rest.is_over())
    }

    /// Takes back what was asked for, and returns the time until which the item may rest.
    pub(super) fn glance(&self) -> Option<Rest> {
        let (source, events) = self.wanted()?;
        source.glance(events).1
    }

    /// Tells whether it reports news alone.
    pub(super) fn is_edge(&self) -> bool {
        lock(&self.interest).events & EDGE != 0
    }
}

/// The queue of what may be ready.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    items: VecDeque<Arc<Item>>,
    /// The instance's own descriptor says that the queue is not empty.
    pub(crate) signalled: bool,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Queues an item, if it is not yet.
    pub(crate) fn push(&mut self, item: &Arc<Item>) {
        if !item.queued.swap(true, Ordering::Relaxed) {
            self.items.push_back(item.clone());
        }
    }

    fn pop(&mut self) -> Option<Arc<Item>> {
        let item = self.items.pop_front()?;
        item.queued.store(false, Ordering::Relaxed);
        Some(item)
    }
}

/// Looks once at everything queued, and leaves there what is to be reported. Of the rest an event comes.
pub(crate) fn sift(queue: &Mutex<Queue>) {
    let waiting = lock(queue).items.len();
    for _ in 0..waiting {
        let Some(item) = lock(queue).pop() else { break };
        if item.arm() {
            lock(queue).push(&item);
        }
    }
}

/// Looks once at everything queued; reports at most `max` events. Returns how many. The queue is not
/// locked while an item is looked at.
pub(crate) fn collect(
    queue: &Mutex<Queue>,
    resting: &Mutex<Resting>,
    max: usize,
    report: &mut dyn FnMut(u32, u64),
) -> usize {
    let mut count = 0;
    let mut again: Vec<Arc<Item>> = Vec::new();
    let may_rest = {
        let mut resting = lock(resting);
        resting.wake(queue);
        resting.has_room()
    };
    let waiting = lock(queue).items.len();
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
            report(events, data);
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
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU32;

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
                        let count = collect(&queue, &resting, max, &mut |events, data| got.push((events, data as usize)));
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
                                item.happened &= items[i].queued.load(Ordering::Relaxed);
                            }
                        }
                    }
                }
            }
        }
    }
}
