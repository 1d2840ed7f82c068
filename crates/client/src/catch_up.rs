//! Order between what a program learns elsewhere and what it finds on its connections. The kernel shows bytes, ends and room as soon as the
//! peer's call has returned. Here the driver brings them a moment later. A call that does not wait, and that finds less than it has asked for,
//! therefore has the driver catch up (`Operation::Sync`) and looks again.
//!
//! A process spends [`BURST`] on that, and [`SHARE`] of its time in the long run. Where it has both ends of a connection it knows whether
//! the driver has something to bring, and waits for that alone.
use crate::per_process::PerProcess;
use crate::socket::Socket;
use crate::sockets;
use crate::turn::lock;
use foldhash::HashMap;
use pd_abi::{Operation, SocketId};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Longest wait for the driver. One that is stopped or busy does not hold a call up that is not to wait.
const WITHIN: Duration = Duration::from_millis(1);

/// Longest wait where something is known to come. A driver that takes longer is waited for as far as the budget goes.
const OF_PAIR_WITHIN: Duration = Duration::from_secs(1);

/// Time that a process may spend at once.
const BURST: Duration = Duration::from_millis(100);

/// One part in so many of its time that a process spends in the long run.
const SHARE: u32 = 100;

/// Kind of a call that has found less than it has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// The call has found nothing, as the one before.
    Rare,
    /// The call, or the one before, has found something. A program that takes all there is makes such a call each time.
    Frequent,
}

/// The time that is spent: the moment at which nothing of it counts any more, in nanoseconds since the first look at the clock.
#[derive(Debug, Default)]
struct Spent(AtomicU64);

impl Spent {
    /// Tells whether more may be spent at `now`. A frequent reason may take half of the burst.
    fn allows(&self, now: u64, occasion: Occasion) -> bool {
        let most = BURST * SHARE / if occasion == Occasion::Frequent { 2 } else { 1 };
        self.0.load(Ordering::Relaxed).saturating_sub(now) <= most.as_nanos() as u64
    }

    fn add(&self, now: u64, took: Duration) {
        let cost = (took * SHARE).as_nanos() as u64;
        let _ =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| Some(until.max(now) + cost));
    }
}

/// The driver has not done in time what was known to come.
static IS_LATE: AtomicBool = AtomicBool::new(false);

static SLEEPS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of times that threads of this process have slept until the driver had caught up.
pub fn sleeps_for_driver() -> u32 {
    SLEEPS.load(Ordering::Relaxed)
}

fn count_sleep() {
    SLEEPS.fetch_add(1, Ordering::Relaxed);
}

static SPENT: Spent = Spent(AtomicU64::new(0));

fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Name of a connection's connecting end, as its accepting end learns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Made {
    /// Of a twin.
    Twin(SocketId),
    /// Address of a native socket.
    At(SocketAddr),
}

/// Serials of sockets that this process has connected: the other end may be its own, too.
static MADE: PerProcess<Mutex<HashMap<Made, u64>>> = PerProcess::new();

static HAS_PAIRS: AtomicBool = AtomicBool::new(false);

/// Tells whether this process has had both ends of any connection.
#[inline]
pub fn has_pairs() -> bool {
    HAS_PAIRS.load(Ordering::Relaxed)
}

/// Notes the connecting end of a connection whose other end may come to this process.
pub(crate) fn note_made(name: Made, socket: &Socket) {
    lock(MADE.get()).insert(name, socket.serial());
}

/// Joins an accepting end with the connecting one, if that is this process's.
pub(crate) fn join(socket: &Arc<Socket>, name: Made) {
    let Some(made) = MADE.made() else { return };
    let Some(other) = lock(made).remove(&name).and_then(sockets::find) else { return };
    HAS_PAIRS.store(true, Ordering::Relaxed);
    let _ = other.pair.set(Arc::downgrade(socket));
    let _ = socket.pair.set(Arc::downgrade(&other));
}

/// Does `work` for such a call, if the process may spend time on it.
pub fn spend<T>(occasion: Occasion, work: impl FnOnce() -> T) -> Option<T> {
    let begun = now();
    SPENT.allows(begun, occasion).then(|| {
        let done = work();
        SPENT.add(begun, Duration::from_nanos(now() - begun));
        done
    })
}

impl Socket {
    /// Returns how the two directions have ended, as the driver says it. 0: not yet.
    pub fn ends(&self) -> [u32; 2] {
        let link = lock(&self.control).link.clone();
        [link.recv_end(), link.send_end()]
    }

    /// Forgets a closed end.
    pub(crate) fn forget_made(&self, id: SocketId, local: Option<SocketAddr>) {
        let Some(made) = MADE.made() else { return };
        let mut made = lock(made);
        for name in [Some(Made::Twin(id)), local.map(Made::At)].into_iter().flatten() {
            if made.get(&name) == Some(&self.serial()) {
                made.remove(&name);
            }
        }
    }

    /// Notes that this process has closed or shut down the other end of a connection.
    pub(crate) fn tell_pair(&self) {
        if let Some(pair) = self.pair.get().and_then(Weak::upgrade) {
            pair.pair_has_acted.store(true, Ordering::Release);
        }
    }

    /// Tells whether the process itself has closed or shut down the other end, and nothing has been brought since.
    #[inline]
    pub fn has_news_of_pair(&self) -> bool {
        self.pair_has_acted.load(Ordering::Relaxed)
    }

    /// Waits until the driver has brought what other processes had put into their request rings before, a millisecond at most. Returns whether
    /// it has.
    pub fn sync(&self) -> bool {
        self.sync_within(WITHIN)
    }

    fn sync_within(&self, limit: Duration) -> bool {
        let link = lock(&self.control).link.clone();
        link.attachment.alive() && link.home.sync(link.request(Operation::Sync), limit, count_sleep)
    }

    /// Tells whether this process has, or had, the other end, too.
    #[inline]
    pub fn has_pair(&self) -> bool {
        self.pair.get().is_some()
    }

    /// Has the driver bring what the peer has done before, for a call that does not wait. Returns whether another look may find more: where the
    /// process has the other end, the driver may have brought all of it since the call's look.
    pub fn catch_up(&self, occasion: Occasion) -> bool {
        let pair = || self.pair.get().and_then(Weak::upgrade);
        let is_known = self.pair_has_acted.swap(false, Ordering::Acquire)
            || pair().is_some_and(|it| it.sends_undelivered());
        if !is_known && self.recv.lock().incoming.is_in_ring() {
            return self.has_pair();
        }
        let begun = now();
        if !(is_known && !IS_LATE.load(Ordering::Relaxed) || SPENT.allows(begun, occasion)) {
            return self.has_pair();
        }
        let done = self.sync_within(if is_known { OF_PAIR_WITHIN } else { WITHIN });
        if is_known || done {
            IS_LATE.store(!done, Ordering::Relaxed);
        }
        if !(is_known && done) {
            SPENT.add(begun, Duration::from_nanos(now() - begun));
        }
        done || self.has_pair()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spends 100 µs each time that it is allowed, with `pause` in between. Returns the times.
    fn spend(spent: &Spent, begin: u64, pause: Duration, tries: u64, occasion: Occasion) -> u64 {
        let took = Duration::from_micros(100);
        let mut now = begin;
        (0..tries)
            .filter(|_| {
                now += pause.as_nanos() as u64;
                let allowed = spent.allows(now, occasion);
                if allowed {
                    spent.add(now, took);
                    now += took.as_nanos() as u64;
                }
                allowed
            })
            .count() as u64
    }

    #[test]
    fn a_process_spends_a_burst_and_then_a_share() {
        let spent = Spent::default();
        let burst = spend(&spent, 0, Duration::ZERO, 10_000, Occasion::Rare);
        assert!((1000..=1015).contains(&burst), "{burst}");
        // A tenth of a second has room for ten more.
        let later = Duration::from_millis(100).as_nanos() as u64;
        let share = spend(&spent, later, Duration::from_micros(100), 1000, Occasion::Rare);
        assert!((9..=13).contains(&share), "{share}");
    }

    #[test]
    fn a_frequent_reason_leaves_half_of_the_burst() {
        let spent = Spent::default();
        let half = spend(&spent, 0, Duration::ZERO, 10_000, Occasion::Frequent);
        assert!((500..=510).contains(&half), "{half}");
        assert!(spent.allows(0, Occasion::Rare));
    }
}
