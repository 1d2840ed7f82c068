//! Token buckets that several movers share without a lock.
//!
//! A [`Bucket`] is one word: until when its tokens are spent, in nanoseconds. Tokens come at a rate and wait up to
//! the burst. A mover takes them in leases of 1/256 of a second's worth through its own [`Meter`] and spends the
//! lease message by message, so the word is touched once per lease. In any time T a bucket gives at most
//! `burst + rate * T`; what a mover holds and has not spent is one lease at most.
use super::limits::{Rate, BURST_SECONDS_MAX};
use crate::gate::Words;
use crate::ids::TenantId;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Added to the clock, so that a bucket is full at its beginning.
pub(crate) const EPOCH_NS: u64 = 2 * BURST_SECONDS_MAX * 1_000_000_000;

/// A bucket. Any mover may take from it.
pub struct Bucket {
    rate: Rate,
    burst_ns: u64,
    spent_until_ns: Word,
}

/// Where a bucket's word is.
enum Word {
    Own(AtomicU64),
    /// With the gate: what a tenant sends on the kernel draws from the same bucket.
    Shared(Arc<Words>, TenantId),
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate.fmt(f)
    }
}

impl Bucket {
    /// A full bucket.
    pub fn new(rate: Rate) -> Self {
        let burst_ns = rate.cost_ns(rate.burst);
        Self { rate, burst_ns, spent_until_ns: Word::Own(AtomicU64::new(0)) }
    }

    /// The bucket of a tenant, full, which the kernel's half of the policy draws from as well.
    pub fn shared(rate: Rate, words: &Arc<Words>, tenant: TenantId) -> Self {
        words.tenant(tenant).spent_until_ns.store(0, Ordering::Relaxed);
        Self { spent_until_ns: Word::Shared(Arc::clone(words), tenant), ..Self::new(rate) }
    }

    /// All tokens are there again.
    #[cfg(any(test, fuzzing, feature = "hostile"))]
    pub fn fill(&self) {
        if let Word::Own(word) = &self.spent_until_ns {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Its rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Takes `count` tokens, at most the burst.
    ///
    /// # Errors
    /// When there will be so many, if nobody else takes any.
    pub fn take(&self, count: u64, now: Duration) -> Result<(), Duration> {
        let now_ns = EPOCH_NS + now.as_nanos() as u64;
        let cost = self.rate.cost_ns(count.min(self.rate.burst));
        let word = match &self.spent_until_ns {
            Word::Own(word) => word,
            Word::Shared(words, tenant) => &words.tenant(*tenant).spent_until_ns,
        };
        let mut spent = word.load(Ordering::Relaxed);
        loop {
            let until = spent.max(now_ns.saturating_sub(self.burst_ns)) + cost;
            if until > now_ns {
                return Err(now + Duration::from_nanos(until - now_ns));
            }
            // No other memory hangs on it: a number that only grows.
            match word.compare_exchange_weak(spent, until, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => spent = other,
            }
        }
    }
}

/// One mover's tokens out of a bucket.
#[derive(Debug, Default)]
pub struct Meter {
    left: u64,
}

impl Meter {
    /// How many tokens may be spent now: `want` of them, or more, or fewer where it is a lease's worth.
    ///
    /// # Errors
    /// When to ask again.
    pub fn ready(&mut self, bucket: &Bucket, want: u64, now: Duration) -> Result<u64, Duration> {
        let lease = bucket.rate.lease();
        let need = want.min(lease).saturating_sub(self.left);
        if need > 0 {
            match bucket.take(lease, now) {
                Ok(()) => self.left += lease,
                Err(_) => {
                    bucket.take(need, now)?;
                    self.left += need;
                }
            }
        }
        Ok(self.left)
    }

    /// Spends tokens that were ready.
    pub fn spend(&mut self, count: u64) {
        self.left = self.left.saturating_sub(count);
    }
}

#[cfg(test)]
mod tests;
