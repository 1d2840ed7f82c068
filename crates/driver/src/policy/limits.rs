//! Limits of the policy: rates of bytes and of messages. [`super::rate`] has the buckets that
//! enforce them.

/// Leases in a second's worth.
const LEASES_PER_SECOND: u64 = 256;
/// Longest burst, in seconds' worth of the rate.
pub const BURST_SECONDS_MAX: u64 = 3600;
/// Shortest burst: a mover sleeps for a millisecond or more between two looks at the clock.
pub const BURSTS_PER_SECOND_MAX: u64 = 100;

/// Tokens per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that come in a second.
    pub per_second: u64,
    /// Most tokens that wait.
    pub burst: u64,
    /// Tokens worth waiting for.
    pub least: u64,
}

/// Rates of bytes and of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes.
    pub bytes: Option<Rate>,
    /// Messages.
    pub messages: Option<Rate>,
}

impl Rates {
    /// Tells whether there is a rate.
    pub fn any(&self) -> bool {
        self.bytes.is_some() || self.messages.is_some()
    }
}

impl Rate {
    /// Returns the tokens that a mover takes at once.
    pub fn lease(&self) -> u64 {
        (self.per_second / LEASES_PER_SECOND).clamp(self.least.min(self.burst), self.burst)
    }

    /// Returns the nanoseconds in which `count` tokens come, rounded up.
    pub(super) fn cost_ns(&self, count: u64) -> u64 {
        (u128::from(count) * 1_000_000_000).div_ceil(self.per_second.into()) as u64
    }
}

/// Limits of sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limits of all clients of the tenant together.
    pub tenant: Rates,
    /// Limits of each end of each connection.
    pub connection: Rates,
}
