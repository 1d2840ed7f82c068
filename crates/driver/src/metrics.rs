//! Counters of the driver as a whole.
use std::sync::atomic::{AtomicU64, Ordering};

/// Each is written by one thread at a time and read by anyone.
#[derive(Debug, Default, serde::Serialize)]
pub struct Metrics {
    /// Clients that attached.
    pub clients_attached: AtomicU64,
    /// Clients refused or cut off.
    pub clients_cut_off: AtomicU64,
    /// Times that nobody was accepted for a while, because no descriptors were left.
    pub accepts_paused: AtomicU64,
    /// Connections made.
    pub connections_made: AtomicU64,
    /// Connections that the policy denied.
    pub connections_denied: AtomicU64,
    /// Connections beyond what their tenant may have.
    pub connections_over_quota: AtomicU64,
    /// Connections that a new policy ended.
    pub connections_cut: AtomicU64,
    /// Requests answered with an errno.
    pub requests_refused: AtomicU64,
    /// Sends on sockets that were not connected any more.
    pub sends_dropped: AtomicU64,
    /// Times that a flow had to wait for memory for its ring.
    pub rings_denied: AtomicU64,
    /// Commands that an engine failed and the cpu engine did again.
    pub commands_redone: AtomicU64,
    /// Engines no longer used because they kept failing.
    pub engines_quarantined: AtomicU64,
    /// Times that a mover slept.
    pub mover_sleeps: AtomicU64,
}

impl Metrics {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}
