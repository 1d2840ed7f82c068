//! Connections that small talk took into the kernel ([`crate::gain`]), and that come back when they carry bulk.
//!
//! While a connection is away its calls are the kernel's, and are counted: both libraries know how far the kernel's two streams are. Each
//! sees for itself that the connection carries bulk. Then the side that has connected *offers* a new twin, which the other one
//! *claims*; until that the offer changes nothing. From then on each side looks at both ([`crate::back`]).
//!
//! A connection comes back only where no call of another thread on it is under way in the kernel, and each time takes twice as much bulk. A process
//! that forks, hands the connection on or asks for what only the kernel has leaves it there for good.
pub(crate) mod calls;
mod returning;

use crate::call::lock;
use crate::counts::OwnCounts;
use crate::fabric;
use crate::fallback_cache::{now_ns, Place};
use pd_client::core::{Departure, Socket};
use std::sync::{Arc, Mutex};

/// Bytes from one look to the next.
const LOOK_BYTES: u64 = 1 << 20;
/// Time within which [`LOOK_BYTES`] come if they are bulk...
const BULK_WITHIN_NS: u64 = 100_000_000;
/// ...and bytes for each receive that may find less than [`LITTLE_BYTES`].
const SMALL_BYTES: u64 = 16 << 10;
const LITTLE_BYTES: i64 = 4096;
/// Life of an offer.
const OFFER_NS: u64 = 500_000_000;
/// Looks that find bulk, the first time; each further time takes twice as many, up to 2 to this power.
const TIMES_MAX: u32 = 10;
/// Highest power by which offers and claims that have led to nothing raise the number of looks. An offer of the other side is over
/// before that many looks are.
const FAILS_MAX: u32 = 6;

/// One connection that is away.
#[derive(Debug)]
pub(crate) struct Away {
    pub(crate) counts: Arc<OwnCounts>,
    /// Destination, if this process has connected it.
    towards: Option<Place>,
    /// Times that the connection was away before.
    times: u32,
    look: Mutex<Look>,
}

#[derive(Debug, Default)]
struct Look {
    since_ns: u64,
    bytes: u64,
    small: u32,
    /// Looks in a row that found bulk.
    bulks: u32,
    /// Offers that nobody has claimed, or claims of none, in a row.
    fails: u32,
    offer: Option<Arc<Socket>>,
}

impl Look {
    fn has_failed(&mut self) {
        (self.bulks, self.fails) = (0, self.fails.saturating_add(1));
    }
}

impl Away {
    /// A connection that was away so often, with this time, and which this process has connected to a place, or has not.
    pub(crate) fn new(counts: Arc<OwnCounts>, towards: Option<Place>, times: u32) -> Self {
        counts.set_due(LOOK_BYTES);
        Self { counts, towards, times, look: Mutex::new(Look { since_ns: now_ns(), ..Look::default() }) }
    }

    /// Nobody holds it any more, or it stays away for good.
    pub(crate) fn end(&self) {
        if let Some(offer) = lock(&self.look).offer.take() {
            if !fabric::withdraw(&offer) {
                // The peer has to know before anything else comes by the kernel.
                let _ = offer.step_aside(Departure::Marked);
            }
            let _ = offer.close();
        }
    }

    /// Notes whether an offer stands: then each call looks for its claim.
    fn offers(&self, look: &Look) {
        self.counts.set_due(if look.offer.is_some() { 0 } else { look.bytes + LOOK_BYTES });
    }

    /// Returns whether the last megabytes were bulk.
    fn finds_bulk(&self, look: &mut Look) -> bool {
        let (now, bytes, small) = (now_ns(), self.counts.carried(), self.counts.small());
        let moved = bytes - look.bytes;
        let is_bulk = now - look.since_ns < BULK_WITHIN_NS
            && u64::from(small.wrapping_sub(look.small)) * SMALL_BYTES <= moved;
        let bulks = if is_bulk { look.bulks.saturating_add(1) } else { 0 };
        (look.since_ns, look.bytes, look.small, look.bulks) = (now, bytes, small, bulks);
        self.counts.set_due(bytes + LOOK_BYTES);
        bulks >= 1 << (self.times.saturating_sub(1).min(TIMES_MAX) + look.fails.min(FAILS_MAX))
    }
}
