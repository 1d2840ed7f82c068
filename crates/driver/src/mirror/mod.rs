//! Mirrors of connections: copies of delivered bytes, as frames of a port.
//!
//! ```text
//!     mover ── copy ──▶ lane ┐
//!     mover ── copy ──▶ lane ┴─ Copies ──▶ Frames, a device of the agent of pipes
//! ```
//!
//! A mover copies bytes out of the receive ring after it has published them, into a *lane* of its own. It never waits: bytes without
//! room, or whose lane is not free at once, are lost and counted. The agent takes lanes whole, and makes segments of TCP of them.
//!
//! A mover has a table of its own of the flows with mirrors; flows know nothing of them. The bytes are read from memory that the driver
//! alone writes, so that clients cannot change them.
mod frames;
mod lane;

pub use frames::Frames;
pub use lane::{Copies, Kind};

use crate::ids::{Payer, Side};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Prefix of `--of` before the name of a tenant. Alone, it means all connections.
pub const OF_CONNECTIONS: &str = "connections:";

/// Most payload bytes of a segment. The frame has 9,000 bytes behind its Ethernet header, as a jumbo frame.
const SEGMENT_BYTES_MAX: usize = 9000 - 40 - 20;

/// A connection as its mirrors show it.
#[derive(Debug)]
pub struct Subject {
    /// Addresses by side.
    addresses: [SocketAddr; 2],
    /// Bytes delivered from each side since it is shown: sequence numbers of one, acknowledgements of the other.
    delivered: [AtomicU64; 2],
}

impl Subject {
    /// Makes a subject for a connection between these addresses.
    pub fn new(addresses: [SocketAddr; 2]) -> Arc<Self> {
        let addresses = addresses.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
        Arc::new(Self { addresses, delivered: Default::default() })
    }

    /// Adds bytes that were delivered from a side. Returns the position of the first, and that of the other side's next one. A side's bytes are
    /// counted by one mover at a time.
    pub fn deliver(&self, side: Side, bytes: u64) -> [u64; 2] {
        let first = self.delivered[side].fetch_add(bytes, Ordering::Relaxed);
        [first, self.delivered[side.other()].load(Ordering::Relaxed)]
    }
}

/// A flow's mirrors.
#[derive(Debug)]
pub struct Showing {
    /// The flow's connection.
    pub subject: Arc<Subject>,
    /// Destinations of the copies, and the account that pays for each.
    pub to: Vec<(Arc<Copies>, Payer)>,
    /// Set if the connection has just begun.
    pub begins: bool,
}
