//! Token buckets.
use std::time::Duration;

/// Rate of tokens, and size of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Tokens a second.
    pub rate: f64,
    /// Most tokens in a bucket, and the number at the start.
    pub burst: f64,
}

/// Tokens of one payer.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: f64,
    at: Duration,
}

impl Bucket {
    /// Makes a full bucket.
    pub fn new(flow: Flow, now: Duration) -> Self {
        Self { tokens: flow.burst, at: now }
    }

    /// Adds the tokens that have come by `now`.
    fn fill(&mut self, flow: Flow, now: Duration) {
        let since = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * flow.rate).min(flow.burst);
        self.at = self.at.max(now);
    }

    /// Tells whether there is a token.
    pub fn has(&mut self, flow: Flow, now: Duration) -> bool {
        self.fill(flow, now);
        self.tokens >= 1.0
    }

    /// Takes tokens, more than there are if need be. A debt is paid back before there is a token again.
    pub fn take(&mut self, tokens: f64) {
        self.tokens -= tokens;
    }

    /// Tells whether nothing is owed. A new bucket would be the same.
    pub fn is_full(&mut self, flow: Flow, now: Duration) -> bool {
        self.fill(flow, now);
        self.tokens >= flow.burst
    }

    /// Returns the time at which there is a token again.
    pub fn ready_at(&self, flow: Flow) -> Duration {
        self.at + Duration::from_secs_f64(((1.0 - self.tokens) / flow.rate).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_spent_owed_and_come_back() {
        let flow = Flow { rate: 10.0, burst: 2.0 };
        let at = Duration::from_millis;
        let mut bucket = Bucket::new(flow, at(0));
        assert!(bucket.is_full(flow, at(0)) && bucket.has(flow, at(0)));
        bucket.take(4.0);
        assert!(!bucket.has(flow, at(0)));
        assert_eq!(bucket.ready_at(flow), at(300));
        assert!(!bucket.has(flow, at(299)) && bucket.has(flow, at(301)));
        assert!(!bucket.is_full(flow, at(301)) && bucket.is_full(flow, at(10_000)));
        bucket.take(1.0);
        assert!(bucket.has(flow, at(10_000)));
    }
}
