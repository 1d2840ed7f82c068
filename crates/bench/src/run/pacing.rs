//! Holding a sender to a target throughput.

use std::time::{Duration, Instant};

/// A sender that is ahead by less than this does not sleep: shorter sleeps cost more than they say.
const QUANTUM: Duration = Duration::from_millis(1);

/// The schedule of one stream.
#[derive(Debug)]
pub struct Pacer {
    start: Instant,
    bytes_per_s: f64,
    bytes: u64,
}

impl Pacer {
    /// Begins a schedule now.
    pub fn new(target_gbit_per_s: f64) -> Pacer {
        Pacer { start: Instant::now(), bytes_per_s: target_gbit_per_s * 1e9 / 8.0, bytes: 0 }
    }

    /// Returns how far ahead of its schedule the stream is when `now` has passed since the start, once `len`
    /// more bytes are sent.
    fn ahead(&mut self, len: usize, now: Duration) -> Duration {
        self.bytes += len as u64;
        Duration::from_secs_f64(self.bytes as f64 / self.bytes_per_s).saturating_sub(now)
    }

    /// Sleeps while the stream is ahead of its schedule. To be called before each message. A stream that fell
    /// behind catches up as fast as it can.
    pub fn wait(&mut self, len: usize) {
        let ahead = self.ahead(len, self.start.elapsed());
        if ahead >= QUANTUM {
            std::thread::sleep(ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_on_schedule_is_not_ahead() {
        // 8 Gbit/s are 10^9 bytes a second: a megabyte each millisecond.
        let mut pacer = Pacer::new(8.0);
        assert_eq!(pacer.ahead(1_000_000, Duration::from_millis(1)), Duration::ZERO);
        assert_eq!(pacer.ahead(1_000_000, Duration::from_millis(1)), Duration::from_millis(1));
        assert_eq!(pacer.ahead(1_000_000, Duration::from_millis(9)), Duration::ZERO);
    }

    #[test]
    fn a_paced_stream_takes_at_least_its_time() {
        let (mut pacer, start) = (Pacer::new(0.8), Instant::now());
        (0..20).for_each(|_| pacer.wait(100_000));
        assert!(start.elapsed() >= Duration::from_millis(19));
    }
}
