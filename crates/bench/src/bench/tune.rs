//! `tune`: kernel TCP over the bridge in every way that its documentation advises, beside each other; which is best is `tcp-tuned`
//! ([`Tuning::tuned`]).
//!
//! Streams of 64 KB and 1 MB and round trips of 64 KB. The score is the geometric mean of the three over Linux's default. Every candidate
//! has two containers of its own, with its settings in their network namespaces and on their links.

use anyhow::Result;
use pd_harness::measure::stats::Summary;
use pd_harness::progress;
use pd_harness::signals::Signals;
use pd_harness::tuning::{available, Tuning};
use serde_json::json;

use super::stream_cell::StreamCell;
use super::{Bench, Settings};
use crate::catalogue::Scheme;
use crate::protocol::Order;
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{self, Cell};
use crate::run::stand::{Memory, Stand};

const STREAM_BYTES: [usize; 2] = [64 << 10, 1 << 20];
const ROUND_TRIP_BYTES: usize = 64 << 10;
const ROUND_TRIPS: u64 = 2_000;

/// A candidate.
struct TuneCell {
    tuning: Tuning,
    stream: StreamCell,
    /// Round trips of a round, in place of a stream.
    round_trips: Option<u64>,
}

impl Cell for TuneCell {
    fn scheme(&self) -> Scheme {
        self.stream.scheme
    }

    fn pair(&self) -> Option<usize> {
        Some(self.stream.pair)
    }

    fn params(&self) -> Params {
        let mut params: Params = vec![("candidate", json!(self.tuning.to_string()))];
        params.extend(self.stream.params());
        params
    }

    fn open(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        match self.round_trips {
            None => self.stream.open(stand),
            Some(_) => self.stream.connect(stand).map(|()| Metrics::new()),
        }
    }

    fn measure(&mut self, stand: &mut Stand<'_>) -> Result<Metrics> {
        let Some(messages) = self.round_trips else { return self.stream.measure(stand) };
        let signals = stand.signals;
        let order = Order::of(self.stream.message_bytes, messages);
        let latency = stand.pair_of(self.stream.scheme, self.stream.pair)?.ping_pong(&order, signals)?;
        Ok(Metrics::from([("latency_us_p50", latency.p50_us), ("latency_us_p99", latency.p99_us)]))
    }

    fn close(&mut self, stand: &mut Stand<'_>) -> Result<()> {
        self.stream.close(stand)
    }
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    if settings.among(&[Scheme::TcpTuned]).is_empty() {
        return Ok(Vec::new());
    }
    let candidates = Tuning::candidates();
    let mut stand = Stand::set_up(&[], Memory::FEW, &settings.engine, signals)?;
    stand.set_tunings(candidates.clone());
    let groups = [(STREAM_BYTES[0], None), (STREAM_BYTES[1], None), (ROUND_TRIP_BYTES, Some(ROUND_TRIPS))];
    let bar = progress::bar((groups.len() * candidates.len() * (settings.rounds + 1)) as u64);
    let mut rows = Vec::new();
    for (message_bytes, round_trips) in groups {
        let (known, unknown): (Vec<_>, Vec<_>) =
            candidates.iter().enumerate().partition(|(_, tuning)| is_available(tuning));
        let cells = known.into_iter().map(|(n, tuning)| {
            let stream = StreamCell {
                pair: n + 1,
                ..StreamCell::of(Scheme::TcpTuned, message_bytes, settings.round_s)
            };
            let cell: Box<dyn Cell> = Box::new(TuneCell { tuning: tuning.clone(), stream, round_trips });
            cell
        });
        rows.extend(interleave::run(Bench::Tune.name(), cells.collect(), settings, &mut stand, &bar)?);
        rows.extend(unknown.into_iter().map(|(_, tuning)| {
            let params =
                vec![("candidate", json!(tuning.to_string())), ("message_bytes", json!(message_bytes))];
            let reason = format!("the kernel has {} only", available());
            Row::not_run(Bench::Tune.name(), Scheme::TcpTuned.name(), params, reason)
        }));
    }
    bar.finish_and_clear();
    rank(&mut rows);
    Ok(rows)
}

fn is_available(tuning: &Tuning) -> bool {
    let name = tuning.network.congestion_control.as_deref();
    name.is_none_or(|name| available().split(' ').any(|known| known == name))
}

/// Returns the candidate of a row.
fn candidate(row: &Row) -> Option<&str> {
    row.params.iter().find(|(name, _)| *name == "candidate")?.1.as_str()
}

/// Returns a candidate's improvement over Linux's default: the geometric mean over all measurements; none if any is missing.
fn score(rows: &[Row], name: &str) -> Option<f64> {
    let of = |name: &str| -> Vec<f64> {
        let own = rows.iter().filter(|row| candidate(row) == Some(name));
        // A time is better when it is short.
        own.filter_map(|row| {
            row.median("throughput_gbit_per_s").or(row.median("latency_us_p50").map(f64::recip))
        })
        .collect()
    };
    let (own, linux) = (of(name), of(&Tuning::linux().to_string()));
    if own.is_empty() || own.len() != linux.len() {
        return None;
    }
    let product: f64 = own.iter().zip(&linux).map(|(own, linux)| own / linux).product();
    Some(product.powf(1.0 / own.len() as f64))
}

/// Gives each row the score of its candidate.
fn rank(rows: &mut [Row]) {
    let scores: Vec<Option<f64>> = rows.iter().map(|row| score(rows, candidate(row)?)).collect();
    for (row, score) in rows.iter_mut().zip(scores) {
        let summary = score.filter(|_| row.not_run.is_none()).and_then(|score| Summary::of([score]));
        row.metrics.extend(summary.map(|summary| ("over_linux", summary)));
    }
}

/// Returns a summary of the rows, as text.
pub fn verdict(rows: &[&Row]) -> String {
    let scored = rows.iter().filter_map(|row| Some((candidate(row)?, row.median("over_linux")?)));
    let Some((best, score)) = scored.max_by(|a, b| a.1.total_cmp(&b.1)) else { return String::new() };
    let tuned = Tuning::tuned().to_string();
    let own = rows.iter().find(|row| candidate(row) == Some(&tuned)).and_then(|row| row.median("over_linux"));
    format!(
        "best: {best}, {score:.2} times Linux's default over all three; tcp-tuned is: {tuned}, {}",
        own.map_or("not measured here".to_owned(), |own| format!("{own:.2} times"))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(candidate: &str, bytes: u64, metric: &'static str, value: f64) -> Row {
        let params = vec![("candidate", json!(candidate)), ("message_bytes", json!(bytes))];
        Row::of("tune", "tcp-tuned", params, &[Metrics::from([(metric, value)])])
    }

    #[test]
    fn what_is_best_over_all_is_the_verdict() {
        let linux = Tuning::linux().to_string();
        let mut rows = vec![
            row(&linux, 65_536, "throughput_gbit_per_s", 10.0),
            row(&linux, 1_048_576, "throughput_gbit_per_s", 10.0),
            row(&linux, 65_536, "latency_us_p50", 100.0),
            row("other", 65_536, "throughput_gbit_per_s", 20.0),
            row("other", 1_048_576, "throughput_gbit_per_s", 20.0),
            row("other", 65_536, "latency_us_p50", 50.0),
            row("half", 65_536, "throughput_gbit_per_s", 90.0),
        ];
        rank(&mut rows);
        assert!((rows[0].median("over_linux").unwrap() - 1.0).abs() < 1e-9);
        assert!((rows[3].median("over_linux").unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(rows[6].median("over_linux"), None, "two of its figures are missing");
        let text = verdict(&rows.iter().collect::<Vec<_>>());
        assert!(text.starts_with("best: other, 2.00 times"), "{text}");
    }
}
