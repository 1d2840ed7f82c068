//! Wake-ups apart. A process can have a wake-up take as long as it likes: the kernel walks all waiters of a word or a socket in the call that
//! wakes them, and a process makes a million of them. A [`Ringer`] is a thread that makes such calls for one party.
//!
//! A thread that serves several parties wakes by [`RungCells`] and [`WakeEnd`]. Both wake at once where that takes little: up to
//! [`AT_ONCE`] waiters of a word, and a socket whose last wake-up was a quick one and is not long ago. Everything else is the ringer's. So are,
//! for a while, all words of a party of which one had more waiters, or two wake-ups within a tenth of a second took long. One alone says little: time
//! that a hypervisor takes from a processor counts as the thread's own.
//!
//! A wake-up that waits for the ringer stands for later ones of the same word or socket.
use crate::sleep::wake_some;
use crate::wait::WakerCells;
use crate::{Own, Region, Theirs};
use rustix::time::{clock_gettime, ClockId};
use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most waiters of a word that are woken by the calling thread.
pub const AT_ONCE: u32 = 64;
/// Most times that the ringer wakes so many for one wake-up. Whoever has more waiters finds out for itself, when its wait times out.
const TIMES: usize = 1 << 14;
/// Processor time above which a wake-up took long.
const LONG_NS: u64 = 150_000;
/// Age up to which a quick wake-up of a socket says that the next one is quick. A process cannot make waiters faster than they are walked: the
/// next wake-up takes no longer than about this.
const TRUST_NS: u64 = 10_000_000;
/// Time between two long wake-ups of words that tell of a party that means them.
const TWICE_NS: u64 = 100_000_000;
/// Time for which a party's wake-ups are made apart then, which doubles each time up to the second.
const APART_NS: [u64; 2] = [1_000_000_000, 1_000_000_000 << 4];
/// Time after which that begins anew.
const FORGET_NS: u64 = 60 * 1_000_000_000;
/// Time after which a thread without work ends.
const IDLE: Duration = Duration::from_secs(10);

/// Memory with words that others sleep on.
pub trait Rung: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the region of the words.
    fn region(&self) -> &Region<Own>;
}

impl Rung for Region<Own> {
    fn region(&self) -> &Region<Own> {
        self
    }
}

#[derive(Debug)]
enum Job {
    Word(Arc<dyn Rung>, usize),
    Socket(Arc<WakeEnd>),
    /// To close a socket wakes as well.
    Close(OwnedFd),
}

impl Job {
    /// Returns a key that is the job's own while it waits, if others like it may be left out.
    fn key(&self) -> Option<(usize, usize)> {
        match self {
            Self::Word(memory, offset) => Some((Arc::as_ptr(memory).cast::<()>().addr(), *offset)),
            Self::Socket(end) => Some((Arc::as_ptr(end).addr(), usize::MAX)),
            Self::Close(_) => None,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Keys of `jobs`.
    waiting: HashSet<(usize, usize)>,
    is_served: bool,
    /// Time for which wake-ups are made apart after the next long one.
    apart_ns: u64,
}

/// See the module. Shared by everything that wakes one party.
#[derive(Debug, Default)]
pub struct Ringer {
    state: Mutex<State>,
    filled: Condvar,
    /// Moment until which all wake-ups are made apart.
    apart_until: AtomicU64,
    /// Moment of the last wake-up of a word that took long.
    long_at: AtomicU64,
}

impl Ringer {
    /// Wakes all that sleep on a word. Takes as long as [`AT_ONCE`] of them.
    fn wake_word(self: &Arc<Self>, memory: &Arc<impl Rung>, offset: usize) {
        let later = || Job::Word(Arc::clone(memory) as Arc<dyn Rung>, offset);
        let begun = now();
        if begun < self.apart_until.load(Ordering::Relaxed) {
            return self.give(later());
        }
        mark(begun);
        let woken = wake_some(memory.region().atomic_u32(offset), AT_ONCE);
        if woken >= AT_ONCE {
            // The ringer holds the kernel's lock of the word at times.
            self.apart_until.fetch_max(now() + APART_NS[0], Ordering::Relaxed);
            self.give(later());
        } else if took_long(begun) {
            let before = self.long_at.swap(begun, Ordering::Relaxed);
            if before != 0 && begun.saturating_sub(before) < TWICE_NS {
                self.keep_apart();
            }
        }
    }

    /// Has all wake-ups made apart for a while.
    fn keep_apart(&self) {
        let now = now();
        let mut state = self.lock();
        if now > self.apart_until.load(Ordering::Relaxed).saturating_add(FORGET_NS) {
            state.apart_ns = 0;
        }
        state.apart_ns = (state.apart_ns * 2).clamp(APART_NS[0], APART_NS[1]);
        self.apart_until.fetch_max(now + state.apart_ns, Ordering::Relaxed);
    }

    fn give(self: &Arc<Self>, job: Job) {
        let mut state = self.lock();
        if job.key().is_none_or(|key| state.waiting.insert(key)) {
            state.jobs.push_back(job);
            self.filled.notify_one();
        }
        if !std::mem::replace(&mut state.is_served, true) {
            drop(state);
            let served = Arc::clone(self);
            let started = std::thread::Builder::new().name("pd-ringer".into()).spawn(move || served.run());
            if started.is_err() {
                // The next wake-up tries again. Sleepers look by themselves every so often.
                self.lock().is_served = false;
            }
        }
    }

    fn run(self: Arc<Self>) {
        loop {
            let is_idle = |state: &mut State| state.jobs.is_empty();
            let waited = self.filled.wait_timeout_while(self.lock(), IDLE, is_idle);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(job) = state.jobs.pop_front() else {
                state.is_served = false;
                return;
            };
            if let Some(key) = job.key() {
                state.waiting.remove(&key);
            }
            drop(state);
            job.run();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Job {
    fn run(self) {
        match self {
            Self::Word(memory, offset) => {
                // In pieces, since others may wait for the lock that the kernel holds meanwhile.
                let word = memory.region().atomic_u32(offset);
                let _ = (0..TIMES).find(|_| wake_some(word, AT_ONCE) < AT_ONCE);
            }
            Self::Socket(end) => {
                let begun = now();
                mark(begun);
                end.wake_here();
                let quick_at = if took_long(begun) { 0 } else { now() };
                end.woken.store(quick_at, Ordering::Relaxed);
            }
            Self::Close(own) => drop(own),
        }
    }
}

/// The words of one sleep, as the side that wakes has them.
#[derive(Clone, Copy, Debug)]
pub struct RungCells<'a, M> {
    /// Place of `wake_at`.
    pub wake_at: (&'a Region<Theirs>, usize),
    /// Place of the doorbell.
    pub doorbell: (&'a Arc<M>, usize),
    /// The ringer of the party that sleeps; none if that is trusted.
    pub ringer: Option<&'a Arc<Ringer>>,
}

impl<M: Rung> WakerCells for RungCells<'_, M> {
    fn load_wake_at(&self) -> u64 {
        self.wake_at.0.load_u64(self.wake_at.1, Ordering::Relaxed)
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn ring(&self) {
        let (memory, offset) = self.doorbell;
        let map = memory.region();
        map.advance_doorbell(offset);
        match self.ringer {
            Some(ringer) => ringer.wake_word(memory, offset),
            None => map.futex_wake(offset),
        }
    }
}

/// The waking end of a pair ([`crate::wake::pair`]).
#[derive(Debug)]
pub struct WakeEnd {
    /// Present until this is dropped.
    own: Option<OwnedFd>,
    ringer: Option<Arc<Ringer>>,
    /// Moment of the last wake-up, if that was a quick one.
    woken: AtomicU64,
}

impl WakeEnd {
    /// Makes an end of which a party has the other. Without a ringer that party is trusted.
    pub fn new(own: OwnedFd, ringer: Option<Arc<Ringer>>) -> Arc<Self> {
        Arc::new(Self { own: Some(own), ringer, woken: AtomicU64::new(0) })
    }

    /// Returns the descriptor.
    pub fn fd(&self) -> Option<&OwnedFd> {
        self.own.as_ref()
    }

    /// Wakes the other end. Never waits.
    pub fn wake(self: &Arc<Self>) {
        let Some(ringer) = &self.ringer else { return self.wake_here() };
        let begun = now();
        let is_quick = begun.saturating_sub(self.woken.load(Ordering::Relaxed)) < TRUST_NS;
        if !is_quick || begun < ringer.apart_until.load(Ordering::Relaxed) {
            return ringer.give(Job::Socket(Arc::clone(self)));
        }
        mark(begun);
        self.wake_here();
        // After a long one the ringer makes them, until one is quick again.
        let quick_at = if took_long(begun) { 0 } else { begun };
        self.woken.store(quick_at, Ordering::Relaxed);
    }

    fn wake_here(&self) {
        if let Some(own) = &self.own {
            crate::wake::wake(own);
        }
    }
}

impl Drop for WakeEnd {
    fn drop(&mut self) {
        if let (Some(own), Some(ringer)) = (self.own.take(), &self.ringer) {
            ringer.give(Job::Close(own));
        }
    }
}

fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Age at which a thread's mark is renewed.
const MARK_NS: u64 = LONG_NS / 2;

thread_local! {
    /// A moment, and the thread's processor time then.
    static MARK: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Prepares a measurement that begins now.
fn mark(now: u64) {
    if now - MARK.get().0.min(now) > MARK_NS {
        MARK.set((now, nanoseconds(ClockId::ThreadCPUTime)));
    }
}

/// Tells whether the thread has been at work for long since `begun`. Time in which others had its core does not count.
fn took_long(begun: u64) -> bool {
    if now() - begun < LONG_NS {
        return false;
    }
    let (marked, used) = MARK.get();
    let used = nanoseconds(ClockId::ThreadCPUTime).saturating_sub(used);
    used.saturating_sub(begun.saturating_sub(marked)) > LONG_NS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd::{create, Pages};
    use rustix::io::read;
    use std::time::Instant;

    fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < until, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn all_sleepers_of_a_word_are_woken_however_many() {
        let fd = create("test", 4096, Pages::Ordinary).unwrap();
        let map = Arc::new(Region::<Own>::new(&fd, 4096).unwrap());
        let ringer = Arc::new(Ringer::default());
        let sleepers: Vec<_> = (0..3 * AT_ONCE)
            .map(|_| {
                let map = Arc::clone(&map);
                std::thread::spawn(move || {
                    map.futex_wait(0, 0, Duration::from_secs(20), |sleep| sleep.make());
                })
            })
            .collect();
        // Threads that have not come so far find another value.
        std::thread::sleep(Duration::from_millis(50));
        map.store_u32(0, 1, Ordering::SeqCst);
        let begun = Instant::now();
        ringer.wake_word(&map, 0);
        sleepers.into_iter().for_each(|sleeper| sleeper.join().unwrap());
        assert!(begun.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_wake_up_arrives_at_once_or_apart_and_once() {
        let (theirs, own) = crate::wake::pair().unwrap();
        let ringer = Arc::new(Ringer::default());
        let end = WakeEnd::new(own, Some(Arc::clone(&ringer)));
        let arrived = || read(&theirs, &mut [0; 64]) == Ok(1);
        // The first one proves that it is quick.
        assert!(!arrived());
        end.wake();
        wait_for("apart", arrived);
        wait_for("done", || end.woken.load(Ordering::Relaxed) > 0);
        end.woken.store(now(), Ordering::Relaxed);
        end.wake();
        assert!(arrived());
        // A party is apart for a while, longer each time.
        ringer.keep_apart();
        let first = ringer.apart_until.load(Ordering::Relaxed);
        end.woken.store(now(), Ordering::Relaxed);
        end.wake();
        wait_for("apart", arrived);
        ringer.keep_apart();
        assert!(ringer.apart_until.load(Ordering::Relaxed) > first + APART_NS[0] / 2);
        drop(end);
        wait_for("closed", || read(&theirs, &mut [0; 64]) == Ok(0));
    }
}
