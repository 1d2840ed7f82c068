//! Time limits of waits for another process: the driver, or a peer.
use std::time::{Duration, Instant};

/// Longest time without a look that counts, and the longest pause between two looks.
const SLICE: Duration = Duration::from_millis(250);

/// Rest of a time after which a wait is given up. Time in which this process was stopped does not count: the other process may have been
/// stopped with it, as all that a container engine or a hypervisor pauses.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    looked: Instant,
}

impl Patience {
    /// Returns one that lasts for `time` from now on.
    pub fn new(time: Duration) -> Self {
        Self { left: time, looked: Instant::now() }
    }

    /// Returns whether to wait on. Called at least four times a second.
    pub fn lasts(&mut self) -> bool {
        let now = Instant::now();
        self.left = self.left.saturating_sub(now.saturating_duration_since(self.looked).min(SLICE));
        self.looked = now;
        !self.left.is_zero()
    }

    /// Calls `is_there`, which waits for at most the given time, until it returns true. False: it has not, up to the end.
    pub fn until(&mut self, mut is_there: impl FnMut(Duration) -> bool) -> bool {
        while self.lasts() {
            if is_there(self.left.min(SLICE)) {
                return true;
            }
        }
        is_there(Duration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_look_counts_up_to_a_slice() {
        let mut patience = Patience::new(2 * SLICE);
        patience.looked -= Duration::from_secs(100);
        assert!(patience.lasts());
        patience.looked -= SLICE;
        assert!(!patience.lasts());
        assert!(!patience.lasts());
    }

    #[test]
    fn the_last_look_comes_after_the_end() {
        let mut times = Vec::new();
        let time = Duration::from_millis(10);
        assert!(!Patience::new(time).until(|most| {
            std::thread::sleep(most);
            times.push(most);
            false
        }));
        assert!(times.len() > 1 && times[0] <= time && times.last() == Some(&Duration::ZERO), "{times:?}");
        assert!(Patience::new(Duration::ZERO).until(|_| true));
    }
}
