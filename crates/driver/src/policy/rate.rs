//! Token buckets that several movers share without a lock.
//!
//! A [`Bucket`] is one word: the time until which its tokens are spent, in nanoseconds. Tokens come at a rate and
//! wait up to the burst. A mover takes them in leases of 1/256 of a second's worth through its own [`Meter`] and
//! spends the lease message by message. The word is thus touched once per lease. In any time T a bucket gives at
//! most `burst + rate * T`. A mover holds at most one unspent lease.
use super::limits::{Rate, BURST_SECONDS_MAX};
use crate::gate::Words;
use crate::ids::TenantId;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Offset to the clock, so that a bucket is full at its beginning.
pub(crate) const EPOCH_NS: u64 = 2 * BURST_SECONDS_MAX * 1_000_000_000;

/// A bucket. Any mover may take from it.
pub struct Bucket {
    rate: Rate,
    burst_ns: u64,
    spent_until_ns: Word,
}

/// Place of a bucket's word.
enum Word {
    Own(AtomicU64),
    /// A word shared with the gate: bytes that a tenant sends on the kernel draw from the same bucket.
    Shared(Arc<Words>, TenantId),
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate.fmt(f)
    }
}

impl Bucket {
    /// Makes a full bucket.
    pub fn new(rate: Rate) -> Self {
        let burst_ns = rate.cost_ns(rate.burst);
        Self { rate, burst_ns, spent_until_ns: Word::Own(AtomicU64::new(0)) }
    }

    /// Makes the full bucket of a tenant, which the kernel's half of the policy draws from as well.
    pub fn shared(rate: Rate, words: &Arc<Words>, tenant: TenantId) -> Self {
        words.tenant(tenant).spent_until_ns.store(0, Ordering::Relaxed);
        Self { spent_until_ns: Word::Shared(Arc::clone(words), tenant), ..Self::new(rate) }
    }

    /// Fills the bucket.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn fill(&self) {
        if let Word::Own(word) = &self.spent_until_ns {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the bucket's rate.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// Takes `count` tokens, at most the burst.
    ///
    /// # Errors
    /// The time at which `count` tokens will be available, if nobody else takes any.
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
            // No other memory depends on the word: a number that only grows.
            match word.compare_exchange_weak(spent, until, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => spent = other,
            }
        }
    }
}

/// A mover's tokens from a bucket.
#[derive(Debug, Default)]
pub struct Meter {
    left: u64,
}

impl Meter {
    /// Returns the number of tokens that may be spent now: `want`, or more, or fewer where that is a lease's worth.
    ///
    /// # Errors
    /// The time to ask again.
    pub fn ready(&mut self, bucket: &Bucket, want: u64, now: Duration) -> Result<u64, Duration> {
        let lease = bucket.rate.lease();
        let need = want.min(lease).saturating_sub(self.left);
        if need > 0 {
            match bucket.take(lease - self.left, now) {
                Ok(()) => self.left = lease,
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
