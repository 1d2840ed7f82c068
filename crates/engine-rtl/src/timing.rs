//! Time that packets take between card and host, in cycles of the card's clock.
use crate::limit::Link;
use std::collections::VecDeque;

/// The card's clock.
pub const CLOCK_MHZ: f64 = 250.0;
/// Nanoseconds of a cycle.
pub const CYCLE_NS: f64 = 1000.0 / CLOCK_MHZ;

/// A link and the host behind it.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Bytes of TLPs per cycle, each link, each direction.
    pub bytes_per_cycle: f64,
    /// Links side by side, used as one: a packet takes the one that is free first, and packets arrive in the order in
    /// which they were sent.
    pub links: usize,
    /// From the card's pins to the host's memory controller, or back, besides what the rate takes.
    pub flight_cycles: f64,
    /// From a read's arrival at the host to its first completion.
    pub memory_cycles: f64,
    /// Most payload of a packet.
    pub mps: u32,
    /// Most bytes of a read.
    pub mrrs: u32,
    /// Payload of writes that the host lets be under way.
    pub posted_bytes_max: usize,
    /// Requests that the host lets be under way.
    pub requests_max: usize,
}

impl Timing {
    /// A host that answers at once, over a link that takes what the pins carry.
    pub const IDEAL: Self = Self {
        bytes_per_cycle: f64::INFINITY,
        links: 1,
        flight_cycles: 0.0,
        memory_cycles: 0.0,
        mps: 256,
        mrrs: 512,
        posted_bytes_max: usize::MAX,
        requests_max: usize::MAX,
    };

    /// `link` in a server: 125 ns each way through both ends' physical, data link and transaction layers, and
    /// 250 ns in the host, so that a read of 64 bytes takes half a microsecond, as pcie-bench measured on a Haswell
    /// server; credits for 16 KB of writes and 128 requests on each link.
    pub fn of(link: &Link) -> Self {
        let links = link.links as usize;
        Self {
            bytes_per_cycle: link.tlp_gbit_per_s() / f64::from(link.links) / 8.0 * CYCLE_NS,
            links,
            flight_cycles: 125.0 / CYCLE_NS,
            memory_cycles: 250.0 / CYCLE_NS,
            mps: link.mps,
            mrrs: link.mrrs,
            posted_bytes_max: links * (16 << 10),
            requests_max: links * 128,
        }
    }
}

/// Direction of the links.
pub struct Lane {
    /// When each is free.
    free: Vec<f64>,
    last: f64,
    bytes_per_cycle: f64,
    flight_cycles: f64,
}

/// Cycles that a sender's buffer lasts: so far ahead of the link packets are taken from the card.
const BUFFER_CYCLES: f64 = 16.0;

impl Lane {
    pub fn new(timing: &Timing) -> Self {
        Self {
            free: vec![0.0; timing.links],
            last: 0.0,
            bytes_per_cycle: timing.bytes_per_cycle,
            flight_cycles: timing.flight_cycles,
        }
    }

    /// Sends a packet of `bytes`; returns when all of it has arrived.
    pub fn send(&mut self, now: f64, bytes: usize) -> f64 {
        let first = self.free.iter_mut().min_by(|a, b| a.total_cmp(b));
        let free = first.expect("there is a link");
        *free = free.max(now) + bytes as f64 / self.bytes_per_cycle;
        self.last = self.last.max(*free + self.flight_cycles);
        self.last
    }

    /// Returns whether the sender has room for one more.
    pub fn has_room(&self, now: f64) -> bool {
        self.free.iter().any(|free| *free < now + BUFFER_CYCLES)
    }
}

/// Flow control credits of the card for its requests.
pub struct Credits {
    bytes: usize,
    requests: usize,
    largest: usize,
    flight_cycles: f64,
    /// Bytes of payload that come back with one request, and when.
    returning: VecDeque<(f64, usize)>,
}

impl Credits {
    pub fn new(timing: &Timing) -> Self {
        Self {
            bytes: timing.posted_bytes_max,
            requests: timing.requests_max,
            largest: timing.mps as usize,
            flight_cycles: timing.flight_cycles,
            returning: VecDeque::new(),
        }
    }

    /// Returns whether the largest packet may be sent.
    pub fn suffice(&mut self, now: f64) -> bool {
        while self.returning.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, bytes)) = self.returning.pop_front() {
                self.bytes += bytes;
                self.requests += 1;
            }
        }
        self.bytes >= self.largest && self.requests >= 1
    }

    pub fn take(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.requests -= 1;
    }

    /// A packet arrived at the host, which says so.
    pub fn give_back(&mut self, arrived: f64, bytes: usize) {
        self.returning.push_back((arrived + self.flight_cycles, bytes));
    }
}
