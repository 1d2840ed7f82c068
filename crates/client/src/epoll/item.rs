//! Items stand for sources in epoll instances. The queue of an instance holds those that may be ready, and wakes its sleepers.
use super::kernel::Kernel;
use super::ready::{ASIDE, EDGE, ERR, HUP, LEFT, ONESHOT};
use crate::own::OwnFd;
use crate::turn::lock;
use pd_shm::{Region, Theirs};
use std::collections::VecDeque;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Flags that are reported whether wanted or not.
const ALWAYS: u32 = ERR | HUP | ASIDE;

/// Something that can be ready.
pub(crate) trait Source: Send + Sync {
    /// The events that hold now. Of `OUT` it must be correct only if `wanted`, and then it makes sure
    /// that an event comes when it changes.
    fn readiness(&self, wanted: u32) -> u32;

    /// Returns readiness, where `IN` needs no event if a word in shared memory tells when it is news. The waiting thread looks at the
    /// word until it has to sleep.
    fn glance(&self, wanted: u32) -> (u32, Option<Rest>) {
        (self.readiness(wanted), None)
    }

    /// Has the peer ring a doorbell with news, instead of having the driver post an event, if the source is on the direct path and in
    /// one instance only, the item's: `register` is given the doorbell, and says whether its threads sleep on it from now
    /// on. Says whether to ask no more.
    fn ask_for_doorbell(
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

/// A source at rest: there is news when the word of a direct ring has reached a value.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) map: Arc<Region<Theirs>>,
    pub(crate) word: usize,
    pub(crate) value: u64,
}

impl Rest {
    pub(super) fn is_over(&self) -> bool {
        self.map.load_u64(self.word, Ordering::Acquire) >= self.value
    }
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
        // A report with `ASIDE` is the library's own. The program has what else it says from the kernel.
        if self.events & ONESHOT != 0 && report & ASIDE == 0 {
            self.enabled = false;
        }
        Some((report | ready & LEFT, self.events & (ONESHOT | EDGE) == 0))
    }
}

/// Source in an epoll instance.
pub(crate) struct Item {
    pub(crate) source: Weak<dyn Source>,
    /// Ready queue of the instance.
    pub(crate) queue: Weak<ReadyQueue>,
    /// Name of the registration. A source may be in the instance under several.
    pub(crate) name: u64,
    pub(crate) interest: Mutex<Interest>,
    pub(crate) removed: AtomicBool,
    /// In the queue. Changes under the queue's lock only.
    queued: AtomicBool,
    /// In [`Resting`]. Changes under its lock only.
    pub(crate) resting: AtomicBool,
    /// See [`Source::ask_for_doorbell`].
    pub(crate) doorbell_asked: AtomicBool,
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("interest", &self.interest).finish_non_exhaustive()
    }
}

impl Item {
    pub(crate) fn new(
        source: Weak<dyn Source>,
        queue: Weak<ReadyQueue>,
        name: u64,
        interest: Interest,
    ) -> Arc<Self> {
        Arc::new(Self {
            source,
            queue,
            name,
            interest: Mutex::new(interest),
            removed: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            doorbell_asked: AtomicBool::new(false),
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
    pub(super) fn look(&self, may_rest: bool) -> (Option<(u32, u64, bool)>, Option<Rest>) {
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

    #[cfg(test)]
    pub(super) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed)
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

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Queues an item, if it is not yet.
    pub(crate) fn push(&mut self, item: &Arc<Item>) {
        if !item.queued.swap(true, Ordering::Relaxed) {
            self.items.push_back(item.clone());
        }
    }

    pub(super) fn pop(&mut self) -> Option<Arc<Item>> {
        let item = self.items.pop_front()?;
        item.queued.store(false, Ordering::Relaxed);
        Some(item)
    }
}

/// The queue of an instance, with what tells those that sleep in it. Items know it; the instance has it.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    pub(super) queue: Mutex<Queue>,
    pub(super) kernel: OnceLock<Kernel>,
    /// Counts what was queued, so that a thread about to sleep notices.
    pub(super) changes: AtomicU32,
    /// Threads that sleep on the descriptor (see [`super::hosted`]).
    pub(super) armed: AtomicU32,
}

impl ReadyQueue {
    /// Queues an item to be looked at in the next wait.
    pub(super) fn push(&self, item: &Arc<Item>) {
        let mut queue = lock(&self.queue);
        queue.push(item);
        self.changes.fetch_add(1, Ordering::Release);
        self.signal(&mut queue);
    }

    pub(super) fn signal(&self, queue: &mut Queue) {
        if let Some(kernel) = self.kernel.get() {
            if kernel.hosted() {
                return self.signal_armed(kernel, queue);
            }
            match (queue.is_empty(), queue.signalled) {
                (false, false) => kernel.set_signal(),
                (true, true) => kernel.clear_signal(),
                _ => return,
            }
            queue.signalled = !queue.signalled;
        }
    }

    /// Something was queued: wakes those that sleep.
    pub(super) fn signal_armed(&self, kernel: &Kernel, queue: &mut Queue) {
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::SeqCst) > 0 && !queue.is_empty() && !queue.signalled {
            queue.signalled = true;
            kernel.set_signal();
        }
    }
}
