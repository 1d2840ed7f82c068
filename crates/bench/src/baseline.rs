//! Ratios to kernel TCP: to the better of Linux's default and the tuned one, with the same parameters, round by round.
//!
//! `gain_over_tcp` is above 1 where a scheme is better, be it by a higher rate or by a shorter time. `cpu_over_tcp` is the CPU
//! time for the same work over TCP's.

use pd_harness::measure::stats::Summary;

use crate::catalogue::Scheme;
use crate::row::{Metrics, Params, Row};

/// Metrics that [`compare`] adds, and their headings.
pub const RATIOS: [(&str, &str); 2] =
    [("gain_over_tcp", "gain over the better TCP"), ("cpu_over_tcp", "CPU of it")];

/// Figures to compare, and whether more is better: the first that rounds have counts.
const FIGURES: [(&str, bool); 4] = [
    ("requests_per_s", true),
    ("connections_per_s", true),
    ("latency_us_p50", false),
    ("throughput_gbit_per_s", true),
];
const CPU: [&str; 4] =
    ["cpu_us_per_request", "cpu_us_per_connection", "cpu_us_per_round_trip", "cpu_s_per_gb"];
/// Benchmarks whose rows are parts of a whole, or are kernel TCP alone.
const WITHOUT: [&str; 3] = ["breakdown", "memory", "tune"];

/// Rounds of one scheme with one set of parameters, in order. Failed and discarded rounds are missing.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// Tells whether the scheme is a form of kernel TCP that ratios are to.
    pub is_baseline: bool,
    /// Parameters.
    pub params: Params,
    /// Figures of each round.
    pub rounds: Vec<Option<Metrics>>,
}

impl Rounds {
    fn median(&self, figure: &str) -> Option<f64> {
        let figures = self.rounds.iter().flatten().filter_map(|round| round.get(figure).copied());
        Some(Summary::of(figures)?.median)
    }

    fn first<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        names.into_iter().find(|name| self.rounds.iter().flatten().any(|round| round.contains_key(name)))
    }
}

/// Adds to each round its ratios to the same round of the better TCP.
pub fn compare(bench: &str, all: &mut [Rounds]) {
    if WITHOUT.contains(&bench) {
        return;
    }
    let baselines: Vec<Rounds> = all.iter().filter(|rounds| rounds.is_baseline).cloned().collect();
    for own in all {
        let Some(figure) = own.first(FIGURES.map(|(name, _)| name)) else { continue };
        let more_is_better = FIGURES.contains(&(figure, true));
        let rate = |rounds: &Rounds| {
            rounds.median(figure).map(|median| if more_is_better { median } else { -median })
        };
        let same = baselines.iter().filter(|rounds| rounds.params == own.params && rate(rounds).is_some());
        let Some(better) = same.max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)))
        else {
            continue;
        };
        let cpu = own.first(CPU);
        for (own, better) in own.rounds.iter_mut().zip(&better.rounds) {
            let (Some(own), Some(better)) = (own, better) else { continue };
            let ratio = |name: &str| Some(own.get(name)? / better.get(name).filter(|value| **value > 0.0)?);
            let gain = ratio(figure).map(|ratio| if more_is_better { ratio } else { 1.0 / ratio });
            let cpu = cpu.and_then(ratio);
            own.extend(gain.map(|gain| (RATIOS[0].0, gain)));
            own.extend(cpu.map(|cpu| (RATIOS[1].0, cpu)));
        }
    }
}

/// Returns for each row the winner among the rows with its parameters: the scheme with the best median of the compared figure. Empty
/// where there is nothing to win, and for schemes that do less than others ([`Scheme::is_limit`]).
pub fn winners<'a>(bench: &str, rows: &[&'a Row]) -> Vec<&'a str> {
    let none = WITHOUT.contains(&bench) || bench == "isolation";
    // At target throughputs all have the same rate.
    let figures = FIGURES.into_iter().filter(|_| bench != "cpu").chain([("cpu_s_per_gb", false)]);
    let figure = figures.into_iter().find(|(name, _)| rows.iter().any(|row| row.median(name).is_some()));
    let Some((figure, more_is_better)) = figure.filter(|_| !none) else { return vec![""; rows.len()] };
    let better = |row: &&&Row| row.median(figure).map(|value| if more_is_better { value } else { -value });
    let winner = |row: &&Row| {
        let same = rows.iter().filter(|other| other.params == row.params);
        let same = same.filter(|other| better(other).is_some() && !Scheme::is_limit(&other.scheme));
        same.max_by(|a, b| better(a).unwrap_or(0.0).total_cmp(&better(b).unwrap_or(0.0)))
    };
    rows.iter().map(|row| winner(row).map_or("", |winner| winner.scheme.as_str())).collect()
}

/// Tells whether rows are compared with kernel TCP.
pub fn is_in(rows: &[&Row]) -> bool {
    rows.iter().any(|row| row.metrics.contains_key(RATIOS[0].0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rounds(is_baseline: bool, bytes: u64, figure: &'static str, values: &[f64]) -> Rounds {
        let round = |value: &f64| Some(Metrics::from([(figure, *value), ("cpu_s_per_gb", 1.0 / value)]));
        Rounds {
            is_baseline,
            params: vec![("message_bytes", json!(bytes))],
            rounds: values.iter().map(round).collect(),
        }
    }

    fn ratios(rounds: &Rounds) -> Vec<Option<f64>> {
        rounds.rounds.iter().map(|round| round.as_ref()?.get("gain_over_tcp").copied()).collect()
    }

    #[test]
    fn ratios_are_to_the_better_tcp_with_the_same_parameters_in_the_same_round() {
        let gbit = "throughput_gbit_per_s";
        let mut all = [
            rounds(true, 64, gbit, &[10.0, 10.0]),
            rounds(true, 64, gbit, &[20.0, 5.0]),
            rounds(false, 64, gbit, &[40.0, 20.0]),
            rounds(true, 4096, gbit, &[80.0, 80.0]),
        ];
        compare("throughput", &mut all);
        // The median of the second is 12.5.
        assert_eq!(ratios(&all[2]), [Some(2.0), Some(4.0)]);
        assert_eq!(ratios(&all[0]), [Some(0.5), Some(2.0)]);
        assert_eq!(ratios(&all[3]), [Some(1.0), Some(1.0)]);
        assert_eq!(all[2].rounds[0].as_ref().unwrap()["cpu_over_tcp"], 0.5);
    }

    #[test]
    fn the_best_of_the_rows_with_the_same_parameters_wins() {
        let row = |scheme: &str, bytes: u64, figure: &'static str, value: f64| {
            let metrics = Metrics::from([(figure, value), ("cpu_s_per_gb", value)]);
            Row::of("x", scheme, vec![("message_bytes", json!(bytes))], &[metrics])
        };
        let gbit = "throughput_gbit_per_s";
        let rows = [
            row("tcp", 64, gbit, 10.0),
            row("unix", 64, gbit, 30.0),
            row("memcpy", 64, gbit, 90.0),
            row("tcp", 4096, gbit, 5.0),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        assert_eq!(winners("throughput", &rows), ["unix", "unix", "unix", "tcp"]);
        assert_eq!(winners("cpu", &rows), ["tcp", "tcp", "tcp", "tcp"]);
        assert_eq!(winners("memory", &rows), [""; 4]);
        let rows = [row("tcp", 64, "latency_us_p50", 20.0), row("unix", 64, "latency_us_p50", 10.0)];
        assert_eq!(winners("latency", &rows.iter().collect::<Vec<_>>()), ["unix", "unix"]);
    }

    #[test]
    fn a_shorter_time_is_a_gain() {
        let p50 = "latency_us_p50";
        let mut all = [rounds(true, 64, p50, &[20.0]), rounds(false, 64, p50, &[5.0])];
        compare("latency", &mut all);
        assert_eq!(ratios(&all[1]), [Some(4.0)]);
    }

    #[test]
    fn a_round_that_one_of_the_two_lacks_has_no_ratio() {
        let gbit = "throughput_gbit_per_s";
        let mut all = [rounds(true, 64, gbit, &[10.0, 10.0]), rounds(false, 64, gbit, &[20.0, 20.0])];
        all[0].rounds[1] = None;
        compare("throughput", &mut all);
        assert_eq!(ratios(&all[1]), [Some(2.0), None]);
        all[0].rounds[0] = None;
        let mut alone = [all[1].clone()];
        alone[0].rounds = rounds(false, 64, gbit, &[1.0]).rounds;
        compare("throughput", &mut alone);
        assert_eq!(ratios(&alone[0]), [None]);
    }
}
