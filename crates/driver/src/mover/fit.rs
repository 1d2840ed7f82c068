//! Whether a flow's receive ring has the size that it should have by now. Rings get the share that there is when they
//! are asked for; a flow whose ring is larger than that of others gets more than its share of the engine, too.
//!
//! Shares are those of [`super::division`]: a flow shares with the others of its payer.

/// A ring that was full is exchanged for one this many times larger, at least, when there are fewer flows.
const GROWTH: u64 = 4;

/// What there is to share, in bytes a ring.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    by_rings: u64,
    by_busy: u64,
}

impl Shares {
    /// Of so many bytes for so many rings, and of so many for rings whose flows are busy.
    pub fn new((ring_bytes, rings): (u64, u64), (busy_bytes, busy): (u64, u64)) -> Self {
        Self { by_rings: ring_bytes / rings.max(1), by_busy: busy_bytes / busy.max(1) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Fits,
    /// A larger one is to be had, when it happens to be empty.
    TooSmall,
    /// Nothing more goes into it until it is empty.
    TooLarge,
    /// Its receiver did not empty it from one look to the next, and may be waiting for more than there is: it stays.
    Kept,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Fit {
    state: State,
    /// It was full since the last look.
    filled: bool,
    /// Bytes delivered until the last look.
    delivered: u64,
}

impl Fit {
    pub fn note_full(&mut self) {
        self.filled = true;
    }

    /// With a ring that the flow has just got.
    pub fn begin(&mut self) {
        (self.state, self.filled) = (State::Fits, false);
    }

    /// The ring is to be exchanged as soon as it is empty.
    #[inline]
    pub fn is_poor(&self) -> bool {
        matches!(self.state, State::TooSmall | State::TooLarge)
    }

    /// Bytes go into it only when it is empty.
    pub fn is_closed(&self) -> bool {
        self.state == State::TooLarge
    }

    /// At each tick: of a ring of `bytes`, whose receiver wishes for `wished`, and through which `delivered` have gone.
    /// Returns whether the flow was busy: as much as it holds went through it since the last look.
    pub fn look(&mut self, (bytes, wished): (u64, u64), delivered: u64, shares: Shares) -> bool {
        let filled = std::mem::take(&mut self.filled);
        let busy = delivered.saturating_sub(self.delivered) >= bytes;
        self.delivered = delivered;
        self.state = match self.state {
            // Rings have powers of two.
            State::Fits if busy && bytes > shares.by_busy.next_power_of_two() => State::TooLarge,
            State::Fits if filled && bytes < wished && bytes <= shares.by_rings / GROWTH => State::TooSmall,
            State::TooLarge => State::Kept,
            state => state,
        };
        busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::division::RINGS_BYTES;

    /// A flow with a ring of `bytes`, through which so much goes from look to look, while so many are busy; whether its
    /// ring is poor at the end, and whether it takes bytes.
    fn after(bytes: u64, steps: &[(u64, u64)]) -> (bool, bool) {
        let (mut fit, mut delivered) = (Fit::default(), 0);
        for &(more, busy) in steps {
            delivered += more;
            let counts =
                fit.look((bytes, 4 << 20), delivered, Shares::new((RINGS_BYTES, busy), (RINGS_BYTES, busy)));
            assert_eq!(counts, more >= bytes);
        }
        (fit.is_poor(), !fit.is_closed())
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
            let mut fit = Fit::default();
            if was_full {
                fit.note_full();
            }
            fit.look((256 << 10, 4 << 20), 0, Shares::new((RINGS_BYTES, rings), (RINGS_BYTES, 1)));
            (fit.is_poor(), fit.is_closed())
        };
        assert_eq!(look(true, 4), (true, false), "takes bytes until it happens to be empty");
        assert_eq!(look(true, 5), (false, false));
        assert_eq!(look(false, 1), (false, false));
    }
}
