//! `throughput`: message sizes from 64 B to 4 MB over one connection (Figures 10 and 11). As in Figure 11
//! the sending container has one core; the receiver and the driver may use all.

use anyhow::Result;
use pd_harness::progress;
use pd_harness::signals::Signals;

use super::stream_cell::StreamCell;
use super::{Bench, Settings, LIMITS, PEERS};
use crate::row::Row;
use crate::run::interleave::{self, Cell};
use crate::run::pair::Cores;
use crate::run::stand::{Memory, Stand};

const SIZES: [usize; 9] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SIZES_QUICK: [usize; 4] = [64, 1 << 10, 64 << 10, 1 << 20];

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&[&PEERS[..], &LIMITS[..]].concat());
    let sizes = settings.pick(&SIZES_QUICK, &SIZES);
    let mut stand = Stand::set_up(&schemes, Memory::FEW, &settings.engine, signals)?;
    let bar = progress::bar((sizes.len() * schemes.len() * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for message_bytes in sizes {
        let cells = schemes.iter().map(|&scheme| {
            let cell: Box<dyn Cell> = Box::new(StreamCell {
                scheme,
                pair: 0,
                message_bytes,
                connections: 1,
                target_gbit_per_s: None,
                cores: Cores { send: Some(0), recv: None },
                gaps: false,
                round_s: settings.round_s,
                messages: 0,
            });
            cell
        });
        let name = Bench::Throughput.name();
        rows.extend(interleave::run(name, cells.collect(), settings, &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    Ok(rows)
}
