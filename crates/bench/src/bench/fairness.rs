//! `fairness`: pairs of containers with one connection each, and connections of one pair of containers, all
//! at once (Figure 15). The results are the standard deviation of the shares and Jain's index.
//!
//! As in the paper, each container of the first kind has one core. Pair n sends from core n and receives on
//! the next one, modulo the number of cores.

use std::thread::available_parallelism;

use anyhow::Result;
use pd_harness::measure::stats::{jain_index, standard_deviation};
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::json;

use super::{Bench, Settings};
use crate::catalogue::{Cores, Scheme};
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

const SCHEMES: [Scheme; 4] = [Scheme::Pipedevice, Scheme::PipedeviceDefault, Scheme::Tcp, Scheme::TcpTuned];
const MESSAGE_BYTES: usize = 64 << 10;
const COUNTS: [usize; 3] = [4, 16, 64];
const COUNTS_QUICK: [usize; 1] = [16];
/// The paper's number of pairs.
const PAIRS: usize = 16;
const PAIRS_QUICK: usize = 4;
/// Shares need more time than throughput to be told from chance.
pub const ROUND_FACTOR: f64 = 3.0;

/// Pairs of containers that all send at once.
pub struct FairnessCell {
    /// Scheme of the pairs.
    pub scheme: Scheme,
    /// Pairs...
    pub pairs: usize,
    /// ...and connections of each.
    pub connections: usize,
    /// Length of a round in milliseconds.
    pub ms: u64,
    /// Number of the driver's movers, if it is varied.
    pub movers: Option<u64>,
}

impl FairnessCell {
    fn cores(&self, pair: usize) -> Cores {
        if self.pairs == 1 {
            return Cores::default();
        }
        let cores = available_parallelism().map_or(1, usize::from);
        if self.movers.is_some() {
            // Ends that share a core would hide what a further mover adds.
            let own = |end: usize| (cores > 2 * self.pairs).then_some(2 * pair + end);
            return Cores { send: own(0), recv: own(1) };
        }
        Cores { send: Some(pair % cores), recv: Some((pair + 1) % cores) }
    }
}

impl Cell for FairnessCell {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn params(&self) -> Params {
        let movers = self.movers.map(|movers| ("movers", json!(movers)));
        let others = [
            ("message_bytes", json!(MESSAGE_BYTES)),
            ("pairs", json!(self.pairs)),
            ("connections", json!(self.connections)),
        ];
        others.into_iter().chain(movers).collect()
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        for pair in 0..self.pairs {
            stand.pair_of(self.scheme, pair)?;
        }
        Ok(Metrics::new())
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let signals = stand.signals;
        for pair in 0..self.pairs {
            let cores = self.cores(pair);
            stand.pair_of(self.scheme, pair)?.open(MESSAGE_BYTES, self.connections, cores, signals)?;
        }
        for pair in 0..self.pairs {
            stand.pair_of(self.scheme, pair)?.start_sharing(MESSAGE_BYTES, self.ms)?;
        }
        let mut shares = Vec::new();
        for pair in 0..self.pairs {
            let (bytes, seconds) = stand.pair_of(self.scheme, pair)?.shares(signals)?;
            shares.extend(bytes.iter().map(|b| *b as f64 * 8e-9 / seconds));
        }
        for pair in 0..self.pairs {
            stand.pair_of(self.scheme, pair)?.close(signals)?;
        }
        Ok(Metrics::from([
            ("throughput_gbit_per_s", shares.iter().sum()),
            ("share_gbit_per_s_least", shares.iter().copied().fold(f64::INFINITY, f64::min)),
            ("share_gbit_per_s_most", shares.iter().copied().fold(0.0, f64::max)),
            ("share_gbit_per_s_deviation", standard_deviation(&shares)),
            ("jain_index", jain_index(&shares)),
        ]))
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        stand.end_pairs(self.scheme);
        Ok(())
    }
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&SCHEMES);
    let pairs = if settings.quick { PAIRS_QUICK } else { PAIRS };
    let mut shapes: Vec<(usize, usize)> = vec![(pairs, 1)];
    shapes.extend(settings.pick(&COUNTS_QUICK, &COUNTS).into_iter().map(|connections| (1, connections)));
    let memory = Memory { budget_bytes: 1 << 30, ..Memory::FEW };
    let mut stand = Stand::set_up(&schemes, memory, &settings.engine, signals)?;
    let bar = progress::bar((shapes.len() * schemes.len() * (settings.rounds + 1)) as u64);
    let ms = (settings.round_s * ROUND_FACTOR * 1e3) as u64;
    let mut rows = Vec::new();
    for (pairs, connections) in shapes {
        let cells = schemes.iter().map(|&scheme| {
            let cell: Box<dyn Cell> = Box::new(FairnessCell { scheme, pairs, connections, ms, movers: None });
            cell
        });
        let name = Bench::Fairness.name();
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}
