//! Token buckets.
use std::time::Duration;

/// How fast tokens come, and how many a bucket holds.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// A second.
    pub rate: f64,
    /// At most; the first time, too.
    pub burst: f64,
}

/// Tokens of one payer.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    tokens: f64,
    at: Duration,
}

impl Bucket {
    /// A full one.
    pub fn new(flow: Flow, now: Duration) -> Self {
        Self { tokens: flow.burst, at: now }
    }

    /// Takes note of the time.
    fn fill(&mut self, flow: Flow, now: Duration) {
        let since = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + since * flow.rate).min(flow.burst);
        self.at = self.at.max(now);
    }

    /// Whether there is a token.
    pub fn has(&mut self, flow: Flow, now: Duration) -> bool {
        self.fill(flow, now);
        self.tokens >= 1.0
    }

    /// Takes tokens, more than there are if need be: they are paid back before there is one again.
    pub fn take(&mut self, tokens: f64) {
        self.tokens -= tokens;
    }

    /// Whether nothing is owed: a new one would be the same.
    pub fn is_full(&mut self, flow: Flow, now: Duration) -> bool {
        self.fill(flow, now);
        self.tokens >= flow.burst
    }

    /// When there is a token again.
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
