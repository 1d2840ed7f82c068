//! `pd bench ab`: comparison of this program with another build of it, in turns on one machine.
//!
//! Each turn starts everything afresh, with either build's own driver and clients. A loss is reported when
//! the median ratio is worse than [`LOSS`] and the exact sign-flip test finds it improbable by chance, over
//! all comparisons.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use pd_harness::machine::Machine;
use pd_harness::measure::cpu::Quiet;
use pd_harness::measure::stats::{loss_probability, Summary};
use pd_harness::own_exe;
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::{json, Value};

use crate::report::results;
use crate::row::{Metrics, Row};

/// Name of the comparison, in results.
const NAME: &str = "ab";
/// Smaller losses are no reason to fail, however certain.
const LOSS: f64 = 0.97;
/// Improbable: at most this, shared by all comparisons.
const PROBABILITY: f64 = 0.05;
/// With fewer than nine nothing could be significant; an even number has each build go first as often.
const ROUNDS: u16 = 10;
/// Both paths.
const SCHEMES: &str = "pipedevice,pipedevice-direct";
/// Figures to compare, and whether more is better.
const METRICS: [(&str, bool); 2] = [("throughput_gbit_per_s", true), ("cpu_s_per_gb", false)];

/// A figure of both builds, round by round.
struct Comparison {
    scheme: String,
    message_bytes: u64,
    metric: &'static str,
    /// Ratios of this build to the other, above 1 if this one is better.
    ratios: Vec<f64>,
}

impl Comparison {
    fn is_loss(&self, comparisons: usize) -> bool {
        let median = Summary::of(self.ratios.iter().copied()).map_or(1.0, |s| s.median);
        median < LOSS && loss_probability(&self.ratios) <= PROBABILITY / comparisons as f64
    }
}

/// Runs one build's benchmark and returns its rows.
fn measure(pd: &Path, file: &Path) -> Result<Vec<Value>> {
    let output = Command::new(pd)
        .args(["bench", "throughput", "--quick", "--rounds", "1", "--schemes", SCHEMES, "--json"])
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", pd.display()))?;
    ensure!(
        output.status.success(),
        "{} bench failed; is it a build that has pd bench? {}",
        pd.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).context("pd bench wrote no rows")
}

fn compare(own: &[Vec<Value>], base: &[Vec<Value>]) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for row in own.first().into_iter().flatten() {
        let (Some(scheme), Some(message_bytes)) = (row["scheme"].as_str(), row["message_bytes"].as_u64())
        else {
            continue;
        };
        for (metric, more_is_better) in METRICS {
            let figure = |rows: &Vec<Value>| {
                let row =
                    rows.iter().find(|r| r["scheme"] == scheme && r["message_bytes"] == message_bytes)?;
                row[metric].as_f64().filter(|v| *v > 0.0)
            };
            let ratio = |(own, base): (&Vec<Value>, &Vec<Value>)| {
                let ratio = figure(own)? / figure(base)?;
                Some(if more_is_better { ratio } else { 1.0 / ratio })
            };
            let ratios = own.iter().zip(base).filter_map(ratio).collect();
            comparisons.push(Comparison { scheme: scheme.to_owned(), message_bytes, metric, ratios });
        }
    }
    comparisons
}

/// Compares, and records the ratios under `results` if that is given. Returns the status to exit with.
pub fn run(base: &Path, rounds: Option<u16>, results: Option<&Path>, signals: &Signals) -> Result<i32> {
    let rounds = rounds.unwrap_or(ROUNDS);
    let before = results.map(|_| Quiet::wait(signals)).transpose()?;
    let file = std::env::temp_dir().join(format!("pd-bench-ab-{}.json", std::process::id()));
    let measured = turns(base, rounds, &file, signals);
    let _ = std::fs::remove_file(&file);
    let [own, other] = measured?;
    let comparisons = compare(&own, &other);
    ensure!(!comparisons.is_empty(), "there is nothing to compare: no round of this build has figures");
    if let (Some(dir), Some(before)) = (results, before) {
        let command = format!("pd bench ab --base {} --rounds {rounds}", base.display());
        let (after, rows) = (Quiet::wait(signals)?, rows(&comparisons));
        let run = results::Run { bench: NAME, command: &command, before, after, rows: &rows };
        results::record(dir, &Machine::describe(), &run)?;
    }
    let mut losses = 0;
    for comparison in &comparisons {
        let Some(summary) = Summary::of(comparison.ratios.iter().copied()) else { continue };
        let loss = comparison.is_loss(comparisons.len());
        losses += usize::from(loss);
        println!(
            "{:<17} {:>8} B  {:<22} {:.3} of the base ({:.3}..{:.3}){}",
            comparison.scheme,
            comparison.message_bytes,
            comparison.metric,
            summary.median,
            summary.min,
            summary.max,
            if loss { "  LOSS" } else { "" }
        );
    }
    println!("above 1 this build is better; {losses} significant losses over {rounds} rounds");
    if loss_probability(&vec![0.5; rounds.into()]) > PROBABILITY / comparisons.len() as f64 {
        println!("so few rounds cannot show a loss to be significant");
    }
    Ok(i32::from(losses > 0))
}

/// Returns a row for each scheme and size, with the ratios of both figures.
fn rows(comparisons: &[Comparison]) -> Vec<Row> {
    let row = |both: &[Comparison]| {
        let first = &both[0];
        let of_round = |round| {
            let ratio = |c: &Comparison| Some((over_base(c.metric), *c.ratios.get(round)?));
            both.iter().filter_map(ratio).collect::<Metrics>()
        };
        let rounds: Vec<Metrics> = (0..first.ratios.len()).map(of_round).collect();
        Row::of(NAME, &first.scheme, vec![("message_bytes", json!(first.message_bytes))], &rounds)
    };
    comparisons.chunks(METRICS.len()).map(row).collect()
}

/// Returns the name of a metric's ratio, above 1 where this build is better.
fn over_base(metric: &str) -> &'static str {
    match metric {
        "throughput_gbit_per_s" => "throughput_over_base",
        _ => "cpu_gain_over_base",
    }
}

fn turns(base: &Path, rounds: u16, file: &Path, signals: &Signals) -> Result<[Vec<Vec<Value>>; 2]> {
    let builds: [PathBuf; 2] = [own_exe(), base.to_owned()];
    let bar = progress::bar(2 * u64::from(rounds));
    let mut measured = [Vec::new(), Vec::new()];
    for round in 0..usize::from(rounds) {
        for turn in 0..2 {
            let build = (round + turn) % 2;
            signals.check()?;
            measured[build].push(measure(&builds[build], file)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(gbit: f64, cpu: f64) -> Vec<Vec<Value>> {
        let row = |scheme, gbit| json!({"scheme": scheme, "message_bytes": 64, "throughput_gbit_per_s": gbit, "cpu_s_per_gb": cpu});
        vec![vec![row("one", gbit), row("other", gbit * 2.0)]; 8]
    }

    #[test]
    fn more_throughput_and_less_cpu_are_better() {
        let comparisons = compare(&rounds(12.0, 0.5), &rounds(10.0, 1.0));
        assert!((comparisons[0].ratios[0] - 1.2).abs() < 1e-9);
        assert!((comparisons[1].ratios[0] - 2.0).abs() < 1e-9);
        assert!(comparisons.iter().all(|c| c.ratios.len() == 8 && !c.is_loss(2)));
        assert_eq!(
            comparisons.iter().map(|c| &*c.scheme).collect::<Vec<_>>(),
            ["one", "one", "other", "other"]
        );
        assert!((comparisons[2].ratios[0] - 1.2).abs() < 1e-9, "each scheme with itself");
    }

    #[test]
    fn a_recorded_row_has_both_ratios() {
        let rows = super::rows(&compare(&rounds(12.0, 0.5), &rounds(10.0, 1.0)));
        assert_eq!(rows.iter().map(|row| &*row.scheme).collect::<Vec<_>>(), ["one", "other"]);
        for row in &rows {
            assert_eq!((row.rounds, row.param("message_bytes")), (8, Some(64.0)));
            assert!((row.median("throughput_over_base").unwrap() - 1.2).abs() < 1e-9);
            assert!((row.median("cpu_gain_over_base").unwrap() - 2.0).abs() < 1e-9);
        }
    }

    #[test]
    fn a_steady_loss_counts_and_a_small_or_chance_one_does_not() {
        let comparison =
            |ratios: Vec<f64>| Comparison { scheme: String::new(), message_bytes: 64, metric: "x", ratios };
        assert!(comparison(vec![0.9; 8]).is_loss(8));
        assert!(comparison(vec![0.9; ROUNDS.into()]).is_loss(16), "the default can show one");
        assert!(!comparison(vec![0.98; 8]).is_loss(8));
        assert!(!comparison(vec![0.8, 1.2, 0.7, 1.1, 0.9, 1.3, 0.8, 1.0]).is_loss(8));
        assert!(!comparison(vec![0.9; 3]).is_loss(8));
    }
}
