//! Looking for the peer's index before a sleep: when a receiver had better look less often, and when a spin with the lock held is of use.
use pd_shm::{cores_scarce, spinning_allowed};
use std::time::{Duration, Instant};

/// Back-off of a receiver between two polls of a dense stream.
const BACKOFF: Duration = Duration::from_micros(2);
/// Back-off at [`BULK_BYTES_PER_NS`], where it is a small part of the bytes under way.
const LONG_BACKOFF: Duration = Duration::from_micros(8);
const BULK_BYTES_PER_NS: u128 = 1;
/// Short waits in a row that make a stream dense.
const DENSE_MIN: u32 = 16;

/// Poll back-off of a receiver. In a dense stream without answers a receiver that has taken all had better not poll at once: each
/// poll takes the line of the index from the sender, and messages are cheaper by the dozen.
#[derive(Debug, Default)]
pub(super) struct PollBackoff {
    /// The own index at the last poll.
    sent: u64,
    short_waits: u32,
    /// Begin of the last wait of a stream, and its position.
    last: Option<(Instant, u64)>,
    /// Bulk came since the wait before that.
    is_bulk: bool,
}

impl PollBackoff {
    /// Returns whether something was sent since the last wait, so that this one is for an answer.
    pub(super) fn is_exchange(&self, sent: u64) -> bool {
        self.sent != sent
    }

    /// Begins a wait at position `cursor` of a stream through a ring of `ring_bytes`. `sent` is the own index, which tells
    /// an exchange from a stream. An exchange takes no time: the clock would be a part of each round trip.
    pub(super) fn begin(&mut self, sent: u64, cursor: u64, ring_bytes: u64) -> Option<Instant> {
        if std::mem::replace(&mut self.sent, sent) != sent {
            (self.short_waits, self.last) = (0, None);
            return None;
        }
        let now = Instant::now();
        if let Some((before, from)) = self.last.replace((now, cursor)) {
            self.is_bulk = is_bulk(cursor.saturating_sub(from), now - before, ring_bytes);
        }
        Some(now)
    }

    /// Returns the time that the wait should begin with, if any.
    pub(super) fn time(&self) -> Option<Duration> {
        (self.short_waits >= DENSE_MIN && spinning_allowed() && !cores_scarce()).then(|| self.usual_time())
    }

    fn usual_time(&self) -> Duration {
        match self.is_bulk {
            true => LONG_BACKOFF,
            false => BACKOFF,
        }
    }

    /// Ends a wait of a stream that began at `began`.
    pub(super) fn end(&mut self, began: Option<Instant>) {
        if let Some(began) = began {
            self.learn(began.elapsed());
        }
    }

    fn learn(&mut self, waited: Duration) {
        let short = waited < 2 * self.usual_time();
        self.short_waits = if short { self.short_waits.saturating_add(1) } else { 0 };
    }
}

/// Returns whether `bytes` in `time` are bulk that does not fill a quarter of the ring during a back-off.
fn is_bulk(bytes: u64, time: Duration, ring_bytes: u64) -> bool {
    let (bytes, time) = (u128::from(bytes), time.as_nanos());
    bytes >= time * BULK_BYTES_PER_NS && bytes * LONG_BACKOFF.as_nanos() * 4 <= time * u128::from(ring_bytes)
}

/// Looks with the lock held, before it is given up for a longer wait: in an exchange on two cores the answer comes sooner than
/// giving it up and taking it again takes.
const LOCKED_LOOKS: u32 = 100;
/// Locked spins in vain after which only one in [`LOCKED_SPIN_AGAIN`] waits begins with one.
const LOCKED_SPINS_IN_VAIN: u32 = 8;
const LOCKED_SPIN_AGAIN: u32 = 64;

/// A bounded spin with the lock held, where waits are short enough for it.
#[derive(Debug, Default)]
pub(super) struct LockedSpin {
    in_vain: u32,
}

impl LockedSpin {
    /// Spins until `came`, if that has been of use lately. Returns whether it came.
    #[inline]
    pub(super) fn until(&mut self, came: impl Fn() -> bool) -> bool {
        let tries = self.in_vain < LOCKED_SPINS_IN_VAIN || self.in_vain % LOCKED_SPIN_AGAIN == 0;
        self.in_vain += 1;
        if !tries || !spinning_allowed() {
            return false;
        }
        for _ in 0..LOCKED_LOOKS {
            if came() {
                self.in_vain = 0;
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}

/// Spins for `time` without a look at shared memory.
pub(super) fn back_off(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_stream_backs_off_and_an_exchange_does_not() {
        let mut backoff = PollBackoff::default();
        for waits in 0..DENSE_MIN {
            assert!(backoff.begin(0, 0, 1 << 20).is_some() && backoff.short_waits == waits);
            assert_eq!(backoff.time(), None);
            backoff.learn(BACKOFF);
        }
        assert_eq!(backoff.time(), spinning_allowed().then_some(BACKOFF));
        backoff.learn(BACKOFF * 3);
        assert_eq!(backoff.time(), None, "nothing came during the back-off");
        for sent in 1..100 {
            let began = backoff.begin(sent, 0, 1 << 20);
            assert!(began.is_none() && backoff.time().is_none(), "each wait is for an answer");
            backoff.end(began);
        }
    }

    #[test]
    fn bulk_backs_off_longer_while_the_ring_has_room_for_it() {
        let (time, second) = (Duration::from_micros(10), 1_000_000_000);
        let bytes_at = |per_second: u64| per_second * 10_000 / second;
        assert!(!is_bulk(bytes_at(second / 2), time, 1 << 20));
        assert!(is_bulk(bytes_at(second), time, 1 << 20));
        assert!(is_bulk(bytes_at(20 * second), time, 1 << 20));
        assert!(!is_bulk(bytes_at(20 * second), time, 512 << 10), "the sender would wait for the receiver");
        assert!(!is_bulk(0, Duration::from_nanos(20), 1 << 20));
    }
}
