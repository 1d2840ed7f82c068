//! `movers`: pairs of containers with one connection each, all at once, mediated by a driver with 1, 2 and 4 movers.
//!
//! A mover is worth a processor beside those of the containers. Each end of a pair has a core of its own where there are enough, and movers run on
//! the others. Rows of a machine with fewer are marked: they show the cost of movers there.

use std::thread::available_parallelism;

use anyhow::Result;
use pd_harness::config::Movers;
use pd_harness::progress;
use pd_harness::signals::Signals;

use super::fairness::{FairnessCell, ROUND_FACTOR};
use super::{Bench, Settings};
use crate::catalogue::{Conditions, Scheme};
use crate::row::Row;
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

const SCHEMES: [Scheme; 1] = [Scheme::Pipedevice];
const MOVERS: [u64; 3] = [1, 2, 4];
const PAIRS: usize = 4;

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&SCHEMES);
    let memory = Memory { budget_bytes: 1 << 30, ..Memory::FEW };
    let bar = progress::bar((MOVERS.len() * schemes.len() * (settings.rounds + 1)) as u64);
    let ms = (settings.round_s * ROUND_FACTOR * 1e3) as u64;
    let mut rows = Vec::new();
    for movers in MOVERS {
        let cells = schemes.iter().map(|&scheme| {
            let cell: Box<dyn Cell> =
                Box::new(FairnessCell { scheme, pairs: PAIRS, connections: 1, ms, movers: Some(movers) });
            cell
        });
        let under = Conditions { movers: Movers::Count(movers), ..Conditions::default() };
        let mut stand = Stand::set_up_under(under, &schemes, memory, &settings.engine, signals)?;
        let mut more = interleave::run(Bench::Movers.name(), cells.collect(), settings, &mut stand, &bar)?;
        let processors = available_parallelism().map_or(1, usize::from) as u64;
        for row in more.iter_mut().filter(|_| processors <= movers) {
            let has = format!("{processors} processors: none for each of {movers} movers and the containers");
            row.settings =
                [std::mem::take(&mut row.settings), has].join("; ").trim_start_matches("; ").to_owned();
        }
        rows.extend(more);
    }
    bar.finish_and_clear();
    Ok(rows)
}
