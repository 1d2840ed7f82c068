//! Allowance of a flow for a turn, and its own rates, which are its tenant's for each connection. Rates of the tenant as a whole are in
//! [`crate::mover::throttle`].
use super::Flow;
use crate::policy::rate::{Bucket, Meter};
use crate::policy::{Rate, Rates};
use std::time::Duration;

/// Bytes and messages that a flow may put under way in its turn.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    pub bytes: u64,
    pub messages: u64,
}

impl Allowance {
    pub const ALL: Self = Self { bytes: u64::MAX, messages: u64::MAX };

    /// Limits itself to `other`.
    pub fn limit_to(&mut self, other: Self) {
        *self = Self { bytes: self.bytes.min(other.bytes), messages: self.messages.min(other.messages) };
    }

    /// Returns the part that is used up, if `left` is left.
    pub fn less(self, left: Self) -> Self {
        Self { bytes: self.bytes - left.bytes, messages: self.messages - left.messages }
    }
}

/// Buckets of one flow, made from its tenant's limits for each connection.
#[derive(Debug)]
pub struct Own {
    of: Rates,
    bytes: Option<(Bucket, Meter)>,
    messages: Option<(Bucket, Meter)>,
}

impl Own {
    fn new(of: Rates) -> Box<Self> {
        let make = |rate: Option<Rate>| rate.map(|rate| (Bucket::new(rate), Meter::default()));
        Box::new(Self { of, bytes: make(of.bytes), messages: make(of.messages) })
    }

    fn ready(&mut self, (bytes, messages): (u64, u64), now: Duration) -> Result<Allowance, Duration> {
        let of = |part: &mut Option<(Bucket, Meter)>, want| match part {
            Some((bucket, meter)) => meter.ready(bucket, want, now),
            None => Ok(u64::MAX),
        };
        Ok(Allowance { bytes: of(&mut self.bytes, bytes)?, messages: of(&mut self.messages, messages)? })
    }

    fn spend(&mut self, spent: Allowance) {
        let of = |part: &mut Option<(Bucket, Meter)>, count| {
            if let Some((_, meter)) = part {
                meter.spend(count);
            }
        };
        of(&mut self.bytes, spent.bytes);
        of(&mut self.messages, spent.messages);
    }
}

impl Flow {
    /// Returns the bytes and messages, of those wanted, that its own rates let go. The rates are `of` from now on.
    ///
    /// # Errors
    /// Time to ask again.
    pub fn ready(&mut self, of: Rates, want: (u64, u64), now: Duration) -> Result<Allowance, Duration> {
        if self.own.as_ref().map_or(Rates::default(), |own| own.of) != of {
            self.own = of.any().then(|| Own::new(of));
        }
        self.own.as_mut().map_or(Ok(Allowance::ALL), |own| own.ready(want, now))
    }

    /// Counts bytes and messages that it has put under way.
    pub fn spend(&mut self, spent: Allowance) {
        if let Some(own) = &mut self.own {
            own.spend(spent);
        }
    }
}
