//! Waking the peer, and sleeping until the peer or the driver wakes.
//!
//! A side that publishes an index then checks whether the peer sleeps or awaits an event. While the peer sleeps often, a
//! fence lies between the two. While the peer seldom sleeps, it takes the fence over: it makes one on all cores before
//! it sleeps ([`pd_shm::barrier`]). A stream needs no fence then.
use super::half::Half;
use crate::due;
use crate::turn::WaitTurn;
use pd_abi::layout::direct;
use pd_shm::wait::{SharedCells, SleeperCells};
use pd_shm::{barrier, cores_scarce, sleep_on, spinning_allowed, Own, Region, Sleep, Theirs};
use std::cell::Cell;
use std::sync::atomic::{compiler_fence, fence, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Waits in a row that ended without a sleep before the peer need not fence.
const AWAKE_MIN: u32 = 256;

/// Where one kind of waiting has its words: three in the sleeper's index page, the doorbell in the waker's.
#[derive(Debug)]
pub(super) struct Words {
    wake_at: usize,
    event_at: usize,
    unfenced: usize,
    doorbell: usize,
}

/// Waiting for bytes.
pub(super) const RECV: Words = Words {
    wake_at: direct::RECV_WAKE_AT,
    event_at: direct::RECV_EVENT_AT,
    unfenced: direct::RECV_UNFENCED,
    doorbell: direct::RECV_DOORBELL,
};

/// Waiting for room.
pub(super) const SEND: Words = Words {
    wake_at: direct::SEND_WAKE_AT,
    event_at: direct::SEND_EVENT_AT,
    unfenced: direct::SEND_UNFENCED,
    doorbell: direct::SEND_DOORBELL,
};

/// The waker's memory: each value asked for is answered once.
#[derive(Debug, Default)]
pub(super) struct Waker {
    woken_at: u64,
    nudged_at: u64,
}

impl Waker {
    /// Call after the index was stored: wakes the peer if it waits for that. Says whether the driver shall post it
    /// an event.
    #[inline]
    pub(super) fn tell(&mut self, own: &Half<Own>, peer: &Half<Theirs>, words: &Words, index: u64) -> bool {
        // SYNC POINT: direct-dekker
        if peer.map.load_u32(words.unfenced, Ordering::Acquire) == 0 {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        let wake_at = peer.map.load_u64(words.wake_at, Ordering::Relaxed);
        let event_at = peer.map.load_u64(words.event_at, Ordering::Relaxed);
        if wake_at == 0 {
            self.woken_at = 0;
        } else if index >= wake_at && wake_at != self.woken_at {
            self.woken_at = wake_at;
            ring(own, words);
        }
        if event_at != 0 && index >= event_at && event_at != self.nudged_at {
            self.nudged_at = event_at;
            return true;
        }
        false
    }
}

#[cold]
fn ring(own: &Half<Own>, words: &Words) {
    // SYNC POINT: wake-doorbell
    own.map.advance_doorbell(words.doorbell);
    own.map.futex_wake(words.doorbell);
}

/// Fence between a waker's store and its look at the sleeper's words. Symmetric while this side sleeps often: each side makes one. Asymmetric
/// while it does not: this side makes it on all cores before it sleeps (`membarrier`), and the peer makes none.
#[derive(Debug, Default)]
pub(super) struct AsymmetricFence {
    awake: u32,
    unfenced: bool,
}

impl AsymmetricFence {
    /// Counts a wait that ended without a sleep. No thread sleeps on these words.
    #[inline]
    pub(super) fn went_on(&mut self, own: &Half<Own>, peer: &Half<Theirs>, words: &Words) {
        self.awake = self.awake.saturating_add(1);
        if self.awake == AWAKE_MIN
            && barrier::register()
            && peer.map.load_u32(direct::BARRIERS, Ordering::Relaxed) != 0
        {
            self.unfenced = true;
            own.map.store_u32(words.unfenced, 1, Ordering::Release);
        }
    }

    /// Makes the fence between the request for a wake-up and the look at the peer's index.
    fn make(&mut self, own: &Half<Own>, words: &Words) {
        self.awake = 0;
        // SYNC POINT: direct-dekker
        if std::mem::take(&mut self.unfenced) {
            own.map.store_u32(words.unfenced, 0, Ordering::Relaxed);
            barrier::everywhere();
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// Asks for an event when the peer's index reaches `index`. Look at it after this. `lent`: a thread that sleeps
    /// on these words has the fence, so that the worst is assumed.
    pub(super) fn arm(&mut self, own: &Half<Own>, words: &Words, index: u64, lent: bool) {
        own.map.store_u64(words.event_at, index, Ordering::Relaxed);
        self.unfenced |= lent && barrier::register();
        self.make(own, words);
    }
}

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

/// For sleepers that have to come back when a signal handler is due.
#[derive(Clone, Copy)]
pub(crate) struct Noticing<'a> {
    /// Tells whether one is due.
    pub(crate) signal: &'a Cell<bool>,
}

impl Noticing<'_> {
    fn sleep(&self, wait: impl FnOnce(&dyn Fn(&Sleep<'_>) -> isize) -> bool) {
        self.signal.set(due::sleep(wait));
    }

    /// Ends a wait whose event has come: handlers that are due no longer matter.
    pub(super) fn end(&self) {
        self.signal.set(false);
    }
}

/// The words of a sleep that ends by the peer or by the driver.
pub(super) struct Doorbells<'a> {
    /// The driver's, in control and status line.
    pub(super) line: SharedCells<'a, Own, Theirs>,
    /// The peer's, once there is one.
    pub(super) direct: Option<&'a (Half<Own>, Half<Theirs>)>,
    pub(super) words: &'static Words,
    /// The peer's index that is waited for.
    index: u64,
    noticing: Option<Noticing<'a>>,
    fence: Cell<AsymmetricFence>,
    seen: Cell<u32>,
}

impl<'a> Doorbells<'a> {
    pub(super) fn new(
        line: SharedCells<'a, Own, Theirs>,
        direct: Option<&'a (Half<Own>, Half<Theirs>)>,
        words: &'static Words,
        index: u64,
        noticing: Option<Noticing<'a>>,
    ) -> Self {
        Self { line, direct, words, index, noticing, fence: Cell::default(), seen: Cell::new(0) }
    }

    /// Takes the fence of the side that sleeps, until [`Self::into_fence`].
    pub(super) fn with_fence(self, fence: &mut AsymmetricFence) -> Self {
        self.fence.set(std::mem::take(fence));
        self
    }

    pub(super) fn into_fence(self) -> AsymmetricFence {
        self.fence.into_inner()
    }

    /// Says whether a signal ended the sleep.
    fn wait(&self, seen: u32, timeout: Duration, make: impl Fn(&Sleep<'_>) -> isize) -> bool {
        let (status, at) = self.line.doorbell;
        match self.direct {
            None => status.futex_wait(at, self.seen.get(), timeout, make),
            Some((_, peer)) => {
                let places = [(&*peer.map, self.words.doorbell, seen), (status, at, self.seen.get())];
                Region::futex_wait_two(places, timeout, make)
            }
        }
    }
}

impl SleeperCells for Doorbells<'_> {
    fn load_doorbell(&self) -> u32 {
        self.seen.set(self.line.load_doorbell());
        self.direct.map_or(0, |(_, peer)| peer.map.load_u32(self.words.doorbell, Ordering::Acquire))
    }

    fn store_wake_at(&self, value: u64) {
        self.line.store_wake_at(value);
        if let Some((own, _)) = self.direct {
            let index = if value == 0 { 0 } else { self.index };
            own.map.store_u64(self.words.wake_at, index, Ordering::Relaxed);
        }
    }

    fn fence(&self) {
        let Some((own, _)) = self.direct else { return self.line.fence() };
        let mut fence = self.fence.take();
        fence.make(own, self.words);
        self.fence.set(fence);
    }

    fn sleep(&self, seen: u32, timeout: Duration) {
        match self.noticing {
            Some(noticing) => noticing.sleep(|make| self.wait(seen, timeout, make)),
            None => drop(self.wait(seen, timeout, |sleep| sleep.make())),
        }
    }
}

impl WaitTurn for Doorbells<'_> {
    fn wait_turn(&self, word: &AtomicU32, seen: u32, timeout: Duration) {
        match self.noticing {
            Some(noticing) => noticing.sleep(|make| sleep_on(word, seen, timeout, make)),
            None => drop(sleep_on(word, seen, timeout, |sleep| sleep.make())),
        }
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
