//! Time of turns, in the bytes that the scheduler counts with. A turn's bytes are its time on the mover's thread, over the time of a
//! charged byte of late, on the average of all payers.
//!
//! A payer whose bytes take long (of a file, of memory that is in no cache) is thus charged for more of them. A payer whose bytes are cheap
//! is charged for fewer. Nothing here knows a payer or reads a clock of its own.
use crate::clock::Clock;
use std::time::Duration;

/// Time and bytes before anything was measured: 5 GB/s, a copy from another core's cache.
const FIRST: (u64, u64) = (1_000_000, 5_000_000);
/// Bytes after which earlier measurements count half.
const WINDOW_BYTES: u64 = 32 << 20;
/// Time from which on a turn may have been interrupted by others on its core. The processor time of the thread decides then.
const LONG: Duration = Duration::from_micros(200);

/// See the module.
#[derive(Debug)]
pub struct Price {
    ns: u64,
    bytes: u64,
}

impl Default for Price {
    fn default() -> Self {
        Self { ns: FIRST.0, bytes: FIRST.1 }
    }
}

impl Price {
    /// Returns the bytes that take `time` on the average.
    pub fn bytes_of(&self, time: Duration) -> u64 {
        let ns = time.as_nanos().min(u64::MAX.into());
        (ns * u128::from(self.bytes) / u128::from(self.ns)).min(u64::MAX.into()) as u64
    }

    /// Adds a turn that was charged `bytes`.
    pub fn add(&mut self, time: Duration, bytes: u64) {
        self.ns = self.ns.saturating_add(time.as_nanos() as u64).max(1);
        self.bytes = self.bytes.saturating_add(bytes).max(1);
        while self.bytes > WINDOW_BYTES {
            (self.ns, self.bytes) = ((self.ns / 2).max(1), self.bytes / 2);
        }
    }
}

/// Measures turns. A turn costs two looks at the clock, and a step at most one more at the processor time.
#[derive(Debug, Default)]
pub struct Stopwatch {
    /// A moment and the thread's processor time then.
    mark: Option<(Duration, Duration)>,
}

impl Stopwatch {
    /// Begins a step: the thread may have slept before.
    pub fn reset(&mut self) {
        self.mark = None;
    }

    /// Returns the moment at which a turn begins.
    pub fn begin(&mut self, clock: &dyn Clock) -> Duration {
        let now = clock.now();
        self.mark.get_or_insert_with(|| (now, clock.thread_time()));
        now
    }

    /// Returns the time that the turn which began at `begun` took, without that of others on the same core.
    pub fn end(&mut self, begun: Duration, clock: &dyn Clock) -> Duration {
        let now = clock.now();
        let took = now.saturating_sub(begun);
        let Some((at, used)) = self.mark.filter(|_| took > LONG) else { return took };
        let used_now = clock.thread_time();
        self.mark = Some((now, used_now));
        took.min(used_now.saturating_sub(used).saturating_sub(begun.saturating_sub(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn a_price_follows_what_turns_take() {
        let mut price = Price::default();
        assert_eq!(price.bytes_of(Duration::from_micros(1)), 5000);
        for _ in 0..1000 {
            price.add(Duration::from_micros(100), 1_000_000);
        }
        let bytes = price.bytes_of(Duration::from_micros(100));
        assert!(bytes.abs_diff(1_000_000) < 10_000, "{bytes}");
        price.add(Duration::MAX, 0);
        assert_eq!(price.bytes_of(Duration::ZERO), 0);
    }

    /// A clock with wall time and processor time.
    struct Hands(Mutex<(Duration, Duration)>);

    impl Hands {
        fn pass(&self, wall: u64, used: u64) {
            let mut hands = self.0.lock().unwrap();
            hands.0 += Duration::from_micros(wall);
            hands.1 += Duration::from_micros(used);
        }
    }

    impl Clock for Hands {
        fn now(&self) -> Duration {
            self.0.lock().unwrap().0
        }

        fn thread_time(&self) -> Duration {
            self.0.lock().unwrap().1
        }
    }

    #[test]
    fn time_of_others_on_the_core_is_not_the_turns() {
        let us = Duration::from_micros;
        let (clock, mut watch) = (Hands(Mutex::default()), Stopwatch::default());
        let mut turn = |wall, used| {
            let begun = watch.begin(&clock);
            clock.pass(wall, used);
            watch.end(begun, &clock)
        };
        assert_eq!(turn(30, 30), us(30));
        assert_eq!(turn(500, 500), us(500));
        assert_eq!(turn(20, 20), us(20));
        // The core was another's for 4 ms.
        assert_eq!(turn(4050, 50), us(50));
        assert_eq!(turn(300, 290), us(290));
    }
}
