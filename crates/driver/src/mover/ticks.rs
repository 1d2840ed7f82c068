//! Periodic work of a mover: ticks, as long as anything wants them, and looks at its doorbells while it is busy.
use std::time::Duration;

/// Interval at which a mover that does not sleep looks at its doorbells.
const BUSY_POLL: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Ticks {
    next: Duration,
    /// Set if something needs ticks: a ring that may fall idle, a flow that is ending, an open file.
    wanted: bool,
    next_poll: Duration,
}

impl Ticks {
    /// Asks for ticks.
    #[inline]
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Returns the time of the next tick, if anything needs it.
    #[inline]
    pub fn next(&self) -> Option<Duration> {
        self.wanted.then_some(self.next)
    }

    /// Begins a tick. The next comes after `pause`, if anything asks for it.
    pub fn begin(&mut self, now: Duration, pause: Duration) {
        (self.next, self.wanted) = (now + pause, false);
    }

    /// Makes a look at the doorbells due.
    pub fn poll_soon(&mut self) {
        self.next_poll = Duration::ZERO;
    }

    /// Tells whether it is time to look at the doorbells.
    #[inline]
    pub fn is_poll_due(&self, now: Duration) -> bool {
        now >= self.next_poll
    }

    /// Notes a look at the doorbells.
    pub fn polled(&mut self, now: Duration) {
        self.next_poll = now + BUSY_POLL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_ticks_while_something_needs_them() {
        let ms = Duration::from_millis;
        let mut ticks = Ticks::default();
        assert_eq!(ticks.next(), None);
        ticks.want();
        assert_eq!(ticks.next(), Some(ms(0)));
        ticks.begin(ms(5), ms(10));
        assert_eq!(ticks.next(), None);
        ticks.want();
        assert_eq!(ticks.next(), Some(ms(15)));
        assert!(ticks.is_poll_due(ms(0)));
        ticks.polled(ms(3));
        assert_eq!((ticks.is_poll_due(ms(3)), ticks.is_poll_due(ms(4))), (false, true));
        ticks.poll_soon();
        assert!(ticks.is_poll_due(ms(3)));
    }
}
