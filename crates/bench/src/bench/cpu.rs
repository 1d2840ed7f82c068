//! `cpu`: cores consumed at target throughputs, and at the most that each scheme carries (Figure 9).
//!
//! The sender sleeps while it is ahead of its target. A scheme that cannot carry a target has the
//! throughput that it reached in its row, below the target.

use anyhow::Result;
use pd_harness::progress;
use pd_harness::signals::Signals;

use super::stream_cell::StreamCell;
use super::{Bench, Settings};
use crate::catalogue::{Scheme, PEERS};
use crate::row::Row;
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

/// The paper's message size.
const MESSAGE_BYTES: usize = 64 << 10;
const TARGETS: [Option<f64>; 6] = [Some(5.0), Some(10.0), Some(20.0), Some(40.0), Some(80.0), None];
const TARGETS_QUICK: [Option<f64>; 3] = [Some(5.0), Some(20.0), None];

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&[&PEERS[..], &[Scheme::Memcpy]].concat());
    let targets = settings.pick(&TARGETS_QUICK, &TARGETS);
    let mut stand = Stand::set_up(&schemes, Memory::FEW, &settings.engine, signals)?;
    let bar = progress::bar((targets.len() * schemes.len() * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for target_gbit_per_s in targets {
        // A limit has no throughput but its own.
        let schemes = schemes.iter().filter(|s| **s != Scheme::Memcpy || target_gbit_per_s.is_none());
        let cells = schemes.map(|&scheme| {
            let cell: Box<dyn Cell> = Box::new(StreamCell {
                target_gbit_per_s,
                ..StreamCell::of(scheme, MESSAGE_BYTES, settings.round_s)
            });
            cell
        });
        let name = Bench::Cpu.name();
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}
