//! `nitro`: heavy hitters of a port by NitroSketch (Liu et al., SIGCOMM 2019): a Count-Min sketch that looks at few frames.
//!
//! Each row of the sketch counts a frame with probability p, and then counts 1/p. The gap between two counted pairs of frame and row
//! is drawn from the geometric distribution. A frame in a gap costs a subtraction, and is not read at all.
//!
//! An estimate is the median of the rows. A row is too high by the flows that share its counter, N / columns on average. It is also
//! off by sampling, with a variance of f (1 - p) / p. The minimum, which Count-Min takes, would be too low by the latter.
use crate::frame::Parts;
use crate::random::Random;
use crate::{App, Verdict};
use pd_maglev::mix;
use std::collections::HashMap;
use std::net::Ipv4Addr;

/// Rows of the sketch, each with a hash function of its own.
pub const ROWS: usize = 5;
/// Counters of a row.
pub const COLUMNS: usize = 102_400;
/// Most flows that are candidates for heavy hitters.
pub const CANDIDATES_MAX: usize = 4096;

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// Source and destination address.
    pub addresses: [u32; 2],
    /// Ports, the source's in the high half; 0 where there are none.
    pub ports: u32,
    /// Protocol of IPv4.
    pub protocol: u8,
}

impl Flow {
    /// Returns the flow of a frame of IPv4.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let parts = Parts::of(frame)?;
        let addresses = [parts.source, parts.destination];
        Some(Self { addresses, ports: parts.ports.unwrap_or(0), protocol: parts.protocol })
    }

    fn hash(&self, seed: u64) -> u64 {
        let addresses = u64::from(self.addresses[0]) << 32 | u64::from(self.addresses[1]);
        mix(mix(addresses ^ seed) ^ u64::from(self.ports) << 8 ^ u64::from(self.protocol))
    }
}

impl std::fmt::Display for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [from, to] = self.addresses.map(Ipv4Addr::from);
        write!(f, "{} {from}:{} {to}:{}", self.protocol, self.ports >> 16, self.ports as u16)
    }
}

/// The sketch, and the flows that may be heavy.
#[derive(Debug)]
pub struct Nitro {
    rows: Vec<u32>,
    /// Counts of a sample: 1/p.
    weight: u32,
    /// 1 / ln(1 - p).
    scale: f64,
    random: Random,
    seed: u64,
    /// Pairs of frame and row to come before the next that counts.
    skip: u64,
    frames: u64,
    /// A flow is heavy with this share of all frames.
    share: f64,
    heavy: HashMap<Flow, u32>,
}

impl Nitro {
    /// Samples each `weight`th pair of frame and row on average; 1 samples all. A flow is heavy with the `share` of all frames. Hash functions
    /// and samples follow from `seed`, which senders should not know.
    pub fn new(weight: u32, share: f64, seed: u64) -> Self {
        let weight = weight.max(1);
        let mut this = Self {
            rows: vec![0; ROWS * COLUMNS],
            weight,
            scale: 1.0 / (-1.0 / f64::from(weight)).ln_1p(),
            random: Random::new(seed),
            seed: mix(seed ^ 1),
            skip: 0,
            frames: 0,
            share,
            heavy: HashMap::new(),
        };
        this.skip = this.draw();
        this
    }

    /// Pairs between two that count.
    fn draw(&mut self) -> u64 {
        if self.weight == 1 {
            return 0;
        }
        (self.random.unit().ln() * self.scale) as u64
    }

    fn place(&self, flow: &Flow, row: usize) -> usize {
        let hash = flow.hash(self.seed.wrapping_add(row as u64));
        row * COLUMNS + ((u128::from(hash) * COLUMNS as u128) >> 64) as usize
    }

    /// Counts a frame of which at least one row takes a sample.
    #[cold]
    fn sample(&mut self, frame: &[u8]) {
        let flow = Flow::of(frame);
        while self.skip < ROWS as u64 {
            if let Some(flow) = &flow {
                let at = self.place(flow, self.skip as usize);
                self.rows[at] = self.rows[at].saturating_add(self.weight);
            }
            self.skip += 1 + self.draw();
        }
        self.skip -= ROWS as u64;
        if let Some(flow) = flow {
            let estimate = self.estimate(&flow);
            if f64::from(estimate) >= self.share * self.frames as f64 {
                self.keep(flow, estimate);
            }
        }
    }

    fn keep(&mut self, flow: Flow, estimate: u32) {
        if self.heavy.len() >= CANDIDATES_MAX {
            let least = self.share * self.frames as f64;
            self.heavy.retain(|_, estimate| f64::from(*estimate) >= least);
        }
        if self.heavy.len() < CANDIDATES_MAX || self.heavy.contains_key(&flow) {
            self.heavy.insert(flow, estimate);
        }
    }

    /// Returns the estimate of a flow's frames: the median of the rows.
    pub fn estimate(&self, flow: &Flow) -> u32 {
        let mut counts: [u32; ROWS] = std::array::from_fn(|row| self.rows[self.place(flow, row)]);
        counts.sort_unstable();
        counts[ROWS / 2]
    }

    /// Frames so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Flows with the share of all frames or more, by their estimates, the heaviest first.
    pub fn heavy(&self) -> Vec<(Flow, u32)> {
        let least = self.share * self.frames as f64;
        let mut heavy: Vec<_> = (self.heavy.keys())
            .map(|flow| (*flow, self.estimate(flow)))
            .filter(|(_, estimate)| f64::from(*estimate) >= least)
            .collect();
        heavy.sort_unstable_by_key(|&(flow, estimate)| (std::cmp::Reverse(estimate), flow));
        heavy
    }
}

impl App for Nitro {
    #[inline]
    fn process(&mut self, frame: &mut [u8]) -> Verdict {
        self.frames += 1;
        if self.skip >= ROWS as u64 {
            self.skip -= ROWS as u64;
        } else {
            self.sample(frame);
        }
        Verdict::Back
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::zipf_flows;

    const FLOWS: usize = 20_000;

    /// Runs `frames` of seeded traffic. Returns the sketch, and the exact counts.
    fn run(weight: u32, seed: u64, frames: usize) -> (Nitro, HashMap<Flow, u64>) {
        let (mut app, mut exact) = (Nitro::new(weight, 0.005, seed), HashMap::new());
        for (_, mut frame) in zipf_flows(seed, FLOWS, 1.1).take(frames) {
            *exact.entry(Flow::of(&frame).unwrap()).or_default() += 1;
            assert_eq!(app.process(&mut frame), Verdict::Back);
        }
        (app, exact)
    }

    /// Returns the largest error of an estimate: five standard deviations of a sampled row, and a share of all frames for
    /// collisions.
    fn bound(weight: u32, count: u64, frames: u64) -> f64 {
        5.0 * (count.max(1) as f64 * f64::from(weight)).sqrt() + 5.0 * frames as f64 / COLUMNS as f64 + 0.5
    }

    #[test]
    fn estimates_are_within_their_bounds_of_exact_counts() {
        for (weight, seed) in [(1, 1), (100, 2), (100, 3), (20, 4)] {
            let frames = 300_000;
            let (app, exact) = run(weight, seed, frames);
            assert_eq!(app.frames(), frames as u64);
            let off = |(flow, &count): (&Flow, &u64)| {
                (f64::from(app.estimate(flow)) - count as f64).abs() > bound(weight, count, frames as u64)
            };
            let wrong = exact.iter().filter(|&pair| off(pair)).count();
            // The bound holds for a flow with high probability, not for each of thousands.
            assert!(wrong * 1000 <= exact.len(), "{wrong} of {} beyond, weight {weight}", exact.len());
            let mut heaviest: Vec<_> = exact.iter().collect();
            heaviest.sort_unstable_by_key(|&(_, count)| std::cmp::Reverse(count));
            assert!(!heaviest[..50].iter().any(|&pair| off(pair)), "weight {weight}");
        }
    }

    #[test]
    fn heavy_hitters_are_found_and_no_light_flow_is() {
        let frames = 1_000_000u64;
        let (app, exact) = run(100, 11, frames as usize);
        let heavy = app.heavy();
        let least = 0.005 * frames as f64;
        for (flow, count) in &exact {
            let (count, found) = (*count as f64, heavy.iter().any(|(other, _)| other == flow));
            let slack = bound(100, least as u64, frames);
            assert!(found || count < least + slack, "{flow} with {count} is missing");
            assert!(!found || count > least - slack, "{flow} with {count} is no heavy hitter");
        }
        assert!(heavy.len() > 5 && heavy.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    }

    #[test]
    fn rows_are_sampled_with_their_probability() {
        let (app, _) = run(100, 5, 400_000);
        for row in app.rows.chunks(COLUMNS) {
            let sum: u64 = row.iter().map(|&count| u64::from(count)).sum();
            // Binomial: 4,000 samples, standard deviation 63.
            assert!(sum.abs_diff(400_000) < 5 * 6300, "{sum}");
        }
    }

    #[test]
    fn candidates_have_a_bound_and_other_frames_are_counted_only() {
        let mut app = Nitro::new(1, 0.0, 1);
        for client in 0..2 * CANDIDATES_MAX as u64 {
            let ends = crate::traffic::client_ends(client);
            app.process(&mut crate::frame::udp(&ends, b"", 60));
        }
        assert_eq!(app.heavy.len(), CANDIDATES_MAX);
        let mut app = Nitro::new(1, 0.001, 1);
        for len in 0..60 {
            assert_eq!(app.process(&mut vec![8; len]), Verdict::Back);
        }
        assert!(app.frames() == 60 && app.heavy().is_empty());
    }
}
