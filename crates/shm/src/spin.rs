use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The limit of this process's spins that are made without one of their own.
static LIMIT: OnceLock<Duration> = OnceLock::new();

/// Limits the spins of this process; zero has every wait sleep at once. The first call counts, and comes before the first spin.
pub fn limit_spins(limit: Duration) {
    let _ = LIMIT.set(limit);
}

/// Set where a filter of system calls may end the process for a yield.
static NEVER_YIELD: AtomicBool = AtomicBool::new(false);

/// Makes no thread of this process yield any more.
pub fn never_yield() {
    NEVER_YIELD.store(true, Ordering::Relaxed);
}

/// Set while more threads want to run on this machine than it has cores.
static CORES_SCARCE: AtomicBool = AtomicBool::new(false);

/// Shortens the spins of this process while `scarce`: other threads wait for the core that a spin holds, maybe on other cores.
pub fn set_cores_scarce(scarce: bool) {
    // A store would take the line from the other threads.
    if cores_scarce() != scarce {
        CORES_SCARCE.store(scarce, Ordering::Relaxed);
    }
}

/// Tells whether other threads wait for the core that a spin would hold.
pub fn cores_scarce() -> bool {
    CORES_SCARCE.load(Ordering::Relaxed)
}

/// Lets other threads run while this one waits for one of them.
pub fn yield_now() {
    match NEVER_YIELD.load(Ordering::Relaxed) {
        true => std::hint::spin_loop(),
        false => std::thread::yield_now(),
    }
}

fn limit() -> Duration {
    *LIMIT.get_or_init(|| Spin::LIMIT_DEFAULT)
}

/// Returns whether pausing can help at all: another party may run at the same time.
pub fn spinning_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        std::thread::available_parallelism().map_or(1, NonZero::get) > 1 && !limit().is_zero()
    })
}

/// Time for which a spin pauses between looks before it offers the core to others. It doubles with each offer that
/// nobody takes.
const PATIENCE_MIN: Duration = Duration::from_micros(1);

/// Longest yield after which no other thread has run on this core.
const YIELD_ALONE: Duration = Duration::from_micros(2);
/// Longest yield to a thread that takes turns. A thread that took longer keeps the core until the scheduler ends its
/// slice. Beside such a thread a sleep is better than a yield: the scheduler prefers a thread that wakes up.
const YIELD_FOREIGN: Duration = Duration::from_millis(1);
/// Waits that do not yield after a yield longer than [`YIELD_FOREIGN`]: the first number once, four times as many with
/// each repetition, the second number at most.
const CROWDED: (u32, u32) = (16, 4096);
/// Time without such a yield after which the number of waits begins anew. A kernel thread that runs now and then is no
/// neighbour.
const CROWD_FORGOTTEN: Duration = Duration::from_secs(1);
/// Waits in a row that share the core before one sleeps. The scheduler leaves threads that take turns on their core, but
/// places a thread that wakes up on an idle core, if there is one.
const SHARED_MAX: u32 = 1024;

/// While cores are scarce the limit is this part of what it is otherwise: about what a sleep costs the thread that makes it.
const SCARCE: u32 = 12;

/// The shortest spin is this part of the limit.
const LEAST: u32 = 16;

/// A bounded spin before a sleep. It learns from earlier waits. If the awaited event came within the limit, by a sleep
/// or without, the next spin may last for the limit; otherwise it lasts half as long as this one. A spin lasts at least
/// a sixteenth of the limit, so that it can learn again when peers are quick.
///
/// Between pause instructions it yields the core, so that a party on the same core can cause the event. Two processes
/// then take turns without a sleep, a wake-up and an idle core between them. A yield is a system call. On a core that
/// nobody shares yields become rare, and stay so from one wait to the next. They cease for a while after one that went
/// to a thread which keeps the core.
///
/// While cores are scarce ([`set_cores_scarce`]) the limit is a twelfth.
#[derive(Clone, Debug)]
pub struct Spin {
    limit: Duration,
    bound: Duration,
    began: Option<Instant>,
    /// Time of pauses before the next yield.
    patience: Duration,
    /// Waits in a row that shared the core.
    shared: u32,
    /// Waits to come that do not yield.
    crowded: u32,
    /// Value of `crowded` after the next long yield. Each short yield lowers it by one.
    penalty: u32,
    /// Time of the last yield to a thread that keeps the core.
    crowd: Option<Instant>,
}

impl Spin {
    /// The cost of a sleep and a wake-up together on a virtual core, about: a longer spin wastes more than
    /// it could save.
    pub const LIMIT_DEFAULT: Duration = Duration::from_micros(50);

    /// A spin of at most `limit`; none if that is zero.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            bound: limit,
            began: None,
            patience: PATIENCE_MIN,
            shared: 0,
            crowded: 0,
            penalty: CROWDED.0,
            crowd: None,
        }
    }

    /// Returns the longest time that a spin may last now.
    fn limit(&self) -> Duration {
        if cores_scarce() {
            self.limit / SCARCE
        } else {
            self.limit
        }
    }

    /// Spins until `ready` returns true or the bound is reached, which is false. A caller that sleeps after that calls
    /// [`Self::slept`].
    pub fn until(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            self.bound = self.limit();
            return true;
        }
        if self.limit.is_zero() {
            return false;
        }
        let began = Instant::now();
        let (mut spent, mut shares) = (Duration::ZERO, false);
        let (bound, mut next) = self.plan();
        while spent < bound && self.shared < SHARED_MAX {
            let yields = spent >= next;
            if yields {
                yield_now();
            } else {
                std::hint::spin_loop();
            }
            let found = ready();
            let now = began.elapsed();
            if yields {
                let alone = now - spent <= YIELD_ALONE;
                self.patience = if alone { (self.patience * 2).min(self.limit() / 2) } else { PATIENCE_MIN };
                next = if alone && spinning_allowed() { now + self.patience } else { now };
                shares |= !alone;
                self.look_for_crowds(now - spent, began + now);
            }
            spent = now;
            if found {
                self.bound = self.limit();
                self.shared = if shares { self.shared + 1 } else { 0 };
                return true;
            }
        }
        self.shared = 0;
        self.began = Some(began);
        false
    }

    /// Returns how long this spin lasts at most, and when it first yields.
    fn plan(&mut self) -> (Duration, Duration) {
        let pausing = |time| if spinning_allowed() { time } else { Duration::ZERO };
        if self.crowded > 0 {
            self.crowded -= 1;
            let pauses = pausing(self.limit() / LEAST);
            return (pauses, pauses);
        }
        (self.bound.min(self.limit()), pausing(self.patience))
    }

    /// Learns from a yield that lasted for `yielded` and ended at `now`.
    fn look_for_crowds(&mut self, yielded: Duration, now: Instant) {
        if yielded > YIELD_FOREIGN {
            let last = self.crowd.replace(now);
            if last.is_some_and(|last| now.saturating_duration_since(last) > CROWD_FORGOTTEN) {
                self.penalty = CROWDED.0;
            }
            self.crowded = self.penalty;
            self.penalty = (self.penalty * 4).min(CROWDED.1);
        } else {
            self.penalty = (self.penalty - 1).max(CROWDED.0);
        }
    }

    /// Learns from a sleep that followed a spin in vain and has ended.
    pub fn slept(&mut self) {
        if let Some(began) = self.began.take() {
            self.learn(began.elapsed());
        }
    }

    fn learn(&mut self, waited: Duration) {
        let limit = self.limit();
        self.bound = if waited < limit { limit } else { (self.bound / 2).max(limit / LEAST) };
    }
}

impl Default for Spin {
    fn default() -> Self {
        Self::new(limit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(64);

    #[test]
    fn long_waits_make_spins_short_and_a_quick_one_long_again() {
        let mut spin = Spin::new(LIMIT);
        for bound in [32, 16, 8, 4, 4] {
            spin.learn(LIMIT);
            assert_eq!(spin.bound, Duration::from_micros(bound));
        }
        spin.learn(LIMIT / 2);
        assert_eq!(spin.bound, LIMIT);
    }

    #[test]
    fn it_does_not_yield_to_those_who_keep_the_core() {
        let mut spin = Spin::new(LIMIT);
        let mut now = Instant::now();
        for waits in [16, 64, 256, 1024, 4096, 4096] {
            now += CROWD_FORGOTTEN;
            spin.look_for_crowds(YIELD_FOREIGN * 2, now);
            assert_eq!(spin.crowded, waits);
        }
        let (bound, next) = spin.plan();
        assert_eq!((bound, spin.crowded), (next, 4095), "it is over before it would yield");
        spin.crowded = 0;
        assert!(spin.plan().1 < spin.plan().0);
        (0..4096).for_each(|_| spin.look_for_crowds(LIMIT, now));
        assert_eq!((spin.crowded, spin.penalty), (0, 16));
    }

    #[test]
    fn a_crowd_is_forgotten() {
        let mut spin = Spin::new(LIMIT);
        let mut now = Instant::now();
        for _ in 0..10 {
            now += CROWD_FORGOTTEN * 2;
            spin.look_for_crowds(YIELD_FOREIGN * 2, now);
            assert_eq!(spin.crowded, CROWDED.0);
        }
    }

    #[test]
    fn it_ends_with_what_it_waits_for_or_without() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            looks == 3
        };
        assert!(Spin::new(Duration::from_secs(60)).until(third));
        assert_eq!(looks, 3);
        let mut spin = Spin::new(LIMIT);
        assert!(!spin.until(|| false) && spin.began.is_some());
        assert!(!Spin::new(Duration::ZERO).until(|| false));
    }
}
