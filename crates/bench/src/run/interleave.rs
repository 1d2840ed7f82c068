//! Interleaved rounds: every cell once a round, so that disturbances of the machine affect all alike.

use anyhow::Result;
use indicatif::ProgressBar;
use pd_harness::measure::cores::{Cores, Watch};
use pd_harness::signals::Interrupted;

use super::stand::Stand;
use super::undisturbed::{undisturbed, Around};
use crate::baseline::{self, Rounds};
use crate::catalogue::Scheme;
use crate::row::{Metrics, Params, Row};
use crate::settings::Settings;

/// A scheme with one set of parameters.
pub trait Cell {
    /// Returns the scheme.
    fn scheme(&self) -> Scheme;
    /// Returns the number of the scheme's pair, if the cell has one of its own.
    fn pair(&self) -> Option<usize> {
        None
    }
    /// Returns the parameters that distinguish the cell from others of the scheme.
    fn params(&self) -> Params;
    /// Connects, warms up, finds out how much a round is. Figures that are measured once are returned.
    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics>;
    /// Measures one round.
    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics>;
    /// Takes the last round into the figures, by its number from 1. Not called for a disturbed round that is repeated or
    /// discarded.
    fn keep(&mut self, _round: usize) {}
    /// Disconnects.
    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()>;
}

/// A cell, and its results so far.
struct Entry {
    cell: Box<dyn Cell>,
    once: Metrics,
    settings: String,
    rounds: Vec<Option<Metrics>>,
    failed: Option<String>,
}

/// Returns whether a signal, and not the scheme, ended the work.
pub fn is_interrupted(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<Interrupted>())
}

impl Entry {
    /// Runs a step of the cell. A failure is the cell's result: its peers are ended, and the others go on.
    fn step(
        &mut self,
        stand: &mut Stand<'_>,
        step: impl FnOnce(&mut dyn Cell, &mut Stand<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.failed.is_some() {
            return Ok(());
        }
        if let Err(error) = step(&mut *self.cell, stand) {
            if is_interrupted(&error) {
                return Err(error);
            }
            self.failed = Some(format!("{error:#}"));
            match self.cell.pair() {
                Some(pair) => stand.end_pair(self.cell.scheme(), pair),
                None => stand.end_pairs(self.cell.scheme()),
            }
        }
        Ok(())
    }

    fn row(self, bench: &'static str) -> Row {
        let (scheme, params) = (self.cell.scheme().name(), self.cell.params());
        match self.failed {
            Some(reason) => Row::not_run(bench, scheme, params, reason),
            None => {
                let with_once = |mut round: Metrics| {
                    round.extend(self.once.iter().map(|(name, value)| (*name, *value)));
                    round
                };
                let rounds = self.rounds.into_iter().map(|round| round.map(with_once)).collect();
                Row { settings: self.settings, ..Row::of_undisturbed(bench, scheme, params, rounds) }
            }
        }
    }
}

/// Runs the wanted cells, which are compared with each other, in rounds. Returns rows for the others, too, as not run. Cells of one scheme must not be open at the same time: give them in separate calls.
pub fn run(
    bench: &'static str,
    cells: Vec<Box<dyn Cell>>,
    settings: &Settings,
    stand: &mut Stand<'_>,
    bar: &ProgressBar,
) -> Result<Vec<Row>> {
    let rounds = settings.rounds;
    let (cells, others): (Vec<_>, Vec<_>) =
        cells.into_iter().partition(|cell| settings.wants(&cell.params()));
    bar.inc((others.len() * (rounds + 1)) as u64);
    let entry = |cell| Entry {
        cell,
        once: Metrics::new(),
        settings: String::new(),
        rounds: Vec::new(),
        failed: None,
    };
    let mut entries: Vec<Entry> = cells.into_iter().map(entry).collect();
    let mut watch = settings.watch();
    for entry in &mut entries {
        bar.set_message(format!("{bench}: {} {}", entry.cell.scheme().name(), entry.cell.params_text()));
        let (mut once, mut settings) = (Metrics::new(), String::new());
        entry.step(stand, |cell, stand| {
            once = cell.open(stand)?;
            let signals = stand.signals;
            settings = stand.pair_of(cell.scheme(), cell.pair().unwrap_or(0))?.describe(signals)?;
            Ok(())
        })?;
        (entry.once, entry.settings) = (once, settings);
        bar.inc(1);
    }
    for round in 0..rounds {
        // Every other round backwards, so that none always follows the same one.
        let mut order: Vec<usize> = (0..entries.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for n in order {
            let mut metrics = None;
            entries[n].step(stand, |cell, stand| {
                metrics = measure(cell, stand, &mut watch)?;
                if metrics.is_some() {
                    cell.keep(round + 1);
                }
                Ok(())
            })?;
            entries[n].rounds.push(metrics);
            bar.inc(1);
        }
    }
    for entry in &mut entries {
        entry.step(stand, |cell, stand| cell.close(stand))?;
    }
    compare(bench, &mut entries);
    let left_out = |cell: Box<dyn Cell>| {
        Row::not_run(bench, cell.scheme().name(), cell.params(), "left out by --only".to_owned())
    };
    Ok(entries.into_iter().map(|entry| entry.row(bench)).chain(others.into_iter().map(left_out)).collect())
}

/// Adds the ratios to kernel TCP to each round.
fn compare(bench: &str, entries: &mut [Entry]) {
    let rounds = |entry: &mut Entry| Rounds {
        is_baseline: entry.cell.scheme().is_baseline(),
        params: entry.cell.params(),
        rounds: std::mem::take(&mut entry.rounds),
    };
    let mut all: Vec<Rounds> = entries.iter_mut().map(rounds).collect();
    baseline::compare(bench, &mut all);
    for (entry, compared) in entries.iter_mut().zip(all) {
        entry.rounds = compared.rounds;
    }
}

/// Measures one round, and figures of the machine around it: `cores_apart_ns`, `cores_copy_gbit_per_s`, and `repeats`. None if it is
/// discarded.
fn measure(cell: &mut dyn Cell, stand: &mut Stand<'_>, watch: &mut Option<Watch>) -> Result<Option<Metrics>> {
    let (metrics, Around { repeats, cores }) = undisturbed(watch, || cell.measure(stand))?;
    let Some(mut metrics) = metrics else { return Ok(None) };
    metrics.insert("repeats", f64::from(repeats));
    let mean = |figure: fn(&Cores) -> f64| cores.iter().map(figure).sum::<f64>() / cores.len() as f64;
    if !cores.is_empty() {
        metrics.insert("cores_apart_ns", mean(|cores| cores.apart_ns));
        metrics.insert("cores_copy_gbit_per_s", mean(|cores| cores.copy_gbit_per_s));
    }
    Ok(Some(metrics))
}

impl dyn Cell {
    fn params_text(&self) -> String {
        Row::not_run("", "", self.params(), String::new()).params_text()
    }
}
