//! Size of a flow's receive ring: whether the ring has the size that it should have by now. A ring gets the share that there is when it is
//! asked for. A flow whose ring is larger than that of others gets more than its share of the engine, too.
//!
//! Shares are those of [`super::division`]: a flow shares with the others of its payer.

/// Bytes that a receiver has taken by a small first ring when the ring grows.
const GROWS_AFTER_BYTES: u64 = 1 << 20;

/// Least factor by which a ring that was full grows when there are fewer flows.
const GROWTH: u64 = 4;

/// Shares in bytes for each ring.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    by_rings: u64,
    by_busy: u64,
}

impl Shares {
    /// Makes shares of `ring_bytes` for `rings` rings, and of `busy_bytes` for `busy` rings with busy flows.
    pub fn new((ring_bytes, rings): (u64, u64), (busy_bytes, busy): (u64, u64)) -> Self {
        Self { by_rings: ring_bytes / rings.max(1), by_busy: busy_bytes / busy.max(1) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Fits,
    /// A larger ring is to be had when the present one happens to be empty.
    TooSmall,
    /// No more bytes go into the ring until it is empty.
    TooLarge,
    /// A first ring, into which no more bytes go until it is empty.
    Grows,
    /// The receiver did not empty the ring from one look to the next, and may wait for more bytes than there are. The ring stays.
    Kept,
}

/// See the module.
#[derive(Debug, Default)]
pub struct RingSizing {
    state: State,
    /// Set if the ring was full since the last look.
    filled: bool,
    /// Set for a small first ring that has not grown.
    is_first: bool,
    /// Bytes delivered until the last look.
    delivered: u64,
}

impl RingSizing {
    /// Notes that the ring is full. The receiver has taken `taken` bytes so far.
    pub fn note_full(&mut self, taken: u64) {
        self.filled = true;
        if self.is_first && taken >= GROWS_AFTER_BYTES {
            (self.state, self.is_first) = (State::Grows, false);
        }
    }

    /// Begins with a ring that the flow has just got. `is_first`: a small one.
    pub fn begin(&mut self, is_first: bool) {
        (self.state, self.filled, self.is_first) = (State::Fits, false, is_first);
    }

    /// Tells whether the ring is to be exchanged as soon as it is empty.
    #[inline]
    pub fn is_to_be_resized(&self) -> bool {
        matches!(self.state, State::TooSmall | State::TooLarge | State::Grows)
    }

    /// Tells whether bytes go into the ring only when it is empty.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::TooLarge | State::Grows)
    }

    /// Updates the state at each tick. The ring has `bytes`, its receiver wishes for `wished`, and `delivered` bytes have gone through it.
    /// Returns whether the flow was busy: as many bytes as the ring holds went through since the last look.
    pub fn look(&mut self, (bytes, wished): (u64, u64), delivered: u64, shares: Shares) -> bool {
        let filled = std::mem::take(&mut self.filled);
        let busy = delivered.saturating_sub(self.delivered) >= bytes;
        self.delivered = delivered;
        self.state = match self.state {
            // Ring sizes are powers of two.
            State::Fits if busy && bytes > shares.by_busy.next_power_of_two() => State::TooLarge,
            State::Fits if filled && bytes < wished && bytes <= shares.by_rings / GROWTH => State::TooSmall,
            State::TooLarge => State::Kept,
            State::Grows => State::TooSmall,
            state => state,
        };
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::division::RINGS_BYTES;

    /// Runs a flow with a ring of `bytes`. A step is the bytes until the next look, and the number of busy flows. Returns whether the ring
    /// is poor at the end, and whether it takes bytes.
    fn after(bytes: u64, steps: &[(u64, u64)]) -> (bool, bool) {
        let (mut sizing, mut delivered) = (RingSizing::default(), 0);
        for &(more, busy) in steps {
            delivered += more;
            let counts = sizing.look(
                (bytes, 4 << 20),
                delivered,
                Shares::new((RINGS_BYTES, busy), (RINGS_BYTES, busy)),
            );
            assert_eq!(counts, more >= bytes);
        }
        (sizing.is_to_be_resized(), !sizing.is_closed())
    }

    #[test]
    fn busy_flows_share() {
        const RING: u64 = 1 << 20;
        assert_eq!(after(RING, &[(8 * RING, 1), (8 * RING, 4)]), (false, true), "its share");
        assert_eq!(after(RING, &[(8 * RING, 7)]), (false, true), "the power of two above it");
        assert_eq!(after(RING, &[(8 * RING, 8)]), (true, false));
        assert_eq!(after(RING, &[(RING - 1, 64), (0, 64)]), (false, true), "not busy");
        assert_eq!(after(RING, &[(8 * RING, 8), (0, 8), (8 * RING, 8)]), (false, true), "kept");
    }

    #[test]
    fn full_rings_grow_when_there_are_fewer() {
        let look = |was_full: bool, rings| {
            let mut sizing = RingSizing::default();
            if was_full {
                sizing.note_full(0);
            }
            sizing.look((256 << 10, 4 << 20), 0, Shares::new((RINGS_BYTES, rings), (RINGS_BYTES, 1)));
            (sizing.is_to_be_resized(), sizing.is_closed())
        };
        assert_eq!(look(true, 4), (true, false), "takes bytes until it happens to be empty");
        assert_eq!(look(true, 5), (false, false));
        assert_eq!(look(false, 1), (false, false));
    }

    #[test]
    fn a_first_ring_grows_when_it_is_full_after_a_megabyte() {
        let look = |sizing: &mut RingSizing| {
            sizing.look((128 << 10, 4 << 20), 0, Shares::new((RINGS_BYTES, 64), (RINGS_BYTES, 64)))
        };
        let mut sizing = RingSizing::default();
        sizing.begin(true);
        sizing.note_full(GROWS_AFTER_BYTES - 1);
        assert!(!sizing.is_to_be_resized(), "the receiver has not taken as much");
        sizing.note_full(GROWS_AFTER_BYTES);
        assert!(sizing.is_to_be_resized() && sizing.is_closed());
        look(&mut sizing);
        assert!(
            sizing.is_to_be_resized() && !sizing.is_closed(),
            "a receiver that waits for more bytes gets them"
        );
        sizing.begin(false);
        sizing.note_full(8 * GROWS_AFTER_BYTES);
        assert!(!sizing.is_to_be_resized(), "no first ring");
    }
}
