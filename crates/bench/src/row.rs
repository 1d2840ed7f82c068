//! Results: one flat JSON object for each benchmark, scheme and set of parameters.
//!
//! A metric `m` is five fields: `m` (the median over the rounds), `m_min`, `m_max`, `m_quartile_low` and `m_quartile_high`.
//! `parameters` are those of the row as text. `settings` is the report of both ends on their kernel TCP or path. `rounds_discarded`
//! counts rounds on a disturbed machine. A cell that could not be run has `not_run` with the reason, and no metrics.

use std::collections::BTreeMap;

use pd_harness::measure::stats::Summary;
use serde_json::{json, Map, Value};

/// The figures of one round, by names with units.
pub type Metrics = BTreeMap<&'static str, f64>;

/// Parameters that distinguish rows of one benchmark and scheme, in order.
pub type Params = Vec<(&'static str, Value)>;

/// A result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The benchmark.
    pub bench: &'static str,
    /// Name of the scheme.
    pub scheme: String,
    /// Message size and the like.
    pub params: Params,
    /// Rounds measured.
    pub rounds: usize,
    /// Rounds discarded, because the machine was disturbed.
    pub discarded: usize,
    /// Medians and spreads.
    pub metrics: BTreeMap<&'static str, Summary>,
    /// Settings of both ends, as they report them; may be empty.
    pub settings: String,
    /// Reason why there are none.
    pub not_run: Option<String>,
}

impl Row {
    /// Summarises the rounds of one cell.
    pub fn of(bench: &'static str, scheme: &str, params: Params, rounds: &[Metrics]) -> Row {
        let mut names: Vec<&'static str> = rounds.iter().flat_map(|r| r.keys().copied()).collect();
        names.sort_unstable();
        names.dedup();
        let metrics = names.into_iter().filter_map(|name| {
            Some((name, Summary::of(rounds.iter().filter_map(|round| round.get(name).copied()))?))
        });
        Row {
            bench,
            scheme: scheme.to_owned(),
            params,
            rounds: rounds.len(),
            discarded: 0,
            metrics: metrics.collect(),
            settings: String::new(),
            not_run: None,
        }
    }

    /// Summarises the rounds of one cell, of which the ones that a disturbed machine spoilt are missing. A cell that lacks more than half of
    /// them has no figures.
    pub fn of_undisturbed(
        bench: &'static str,
        scheme: &str,
        params: Params,
        rounds: Vec<Option<Metrics>>,
    ) -> Row {
        let all = rounds.len();
        let rounds: Vec<Metrics> = rounds.into_iter().flatten().collect();
        let discarded = all - rounds.len();
        let row = if 2 * discarded > all {
            let reason = format!("the machine was disturbed in {discarded} of {all} rounds");
            Row::not_run(bench, scheme, params, reason)
        } else {
            Row::of(bench, scheme, params, &rounds)
        };
        Row { discarded, ..row }
    }

    /// Makes the row of a cell that the machine could not run.
    pub fn not_run(bench: &'static str, scheme: &str, params: Params, reason: String) -> Row {
        Row { not_run: Some(reason), ..Row::of(bench, scheme, params, &[]) }
    }

    /// Returns the median of a metric.
    pub fn median(&self, metric: &str) -> Option<f64> {
        self.metrics.get(metric).map(|summary| summary.median)
    }

    /// Returns a parameter that is a number.
    pub fn param(&self, name: &str) -> Option<f64> {
        self.params.iter().find(|(n, _)| *n == name)?.1.as_f64()
    }

    /// Returns the parameters as text for people.
    pub fn params_text(&self) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        self.params.iter().map(|(n, v)| format!("{n} {}", text(v))).collect::<Vec<_>>().join(", ")
    }

    /// Returns the flat object.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("bench".into(), json!(self.bench));
        object.insert("scheme".into(), json!(self.scheme));
        for (name, value) in &self.params {
            object.insert((*name).into(), value.clone());
        }
        object.insert("parameters".into(), json!(self.params_text()));
        object.insert("rounds".into(), json!(self.rounds));
        for (name, summary) in &self.metrics {
            object.insert((*name).into(), json!(summary.median));
            for (suffix, figure) in [
                ("min", summary.min),
                ("max", summary.max),
                ("quartile_low", summary.quartile_low),
                ("quartile_high", summary.quartile_high),
            ] {
                object.insert(format!("{name}_{suffix}"), json!(figure));
            }
        }
        if self.discarded > 0 {
            object.insert("rounds_discarded".into(), json!(self.discarded));
        }
        if !self.settings.is_empty() {
            object.insert("settings".into(), json!(self.settings));
        }
        if let Some(reason) = &self.not_run {
            object.insert("not_run".into(), json!(reason));
        }
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_flat_and_has_units_rounds_and_spread() {
        let rounds =
            [10.0, 30.0, 20.0].map(|v| Metrics::from([("throughput_gbit_per_s", v), ("cpu_s_per_gb", 1.0)]));
        let params = vec![("message_bytes", json!(64))];
        let row = Row::of("throughput", "tcp", params, &rounds);
        let json = row.to_json();
        let object = json.as_object().unwrap();
        assert!(object.values().all(|v| !v.is_object() && !v.is_array()));
        assert_eq!(json["bench"], "throughput");
        assert_eq!(json["message_bytes"], 64);
        assert_eq!(json["rounds"], 3);
        assert_eq!(json["throughput_gbit_per_s"], 20.0);
        assert_eq!(json["throughput_gbit_per_s_min"], 10.0);
        assert_eq!(json["throughput_gbit_per_s_quartile_high"], 25.0);
        assert_eq!(row.param("message_bytes"), Some(64.0));
        assert_eq!(row.params_text(), "message_bytes 64");
    }

    #[test]
    fn a_row_without_half_of_its_rounds_has_no_figures() {
        let round = || Some(Metrics::from([("a_s", 1.0)]));
        let row = |rounds| Row::of_undisturbed("x", "y", vec![], rounds);
        let most = row(vec![round(), None, round()]);
        assert_eq!((most.discarded, most.rounds, most.median("a_s")), (1, 2, Some(1.0)));
        let few = row(vec![None, round(), None]);
        assert_eq!((few.discarded, few.median("a_s")), (2, None));
        assert_eq!(few.not_run.unwrap(), "the machine was disturbed in 2 of 3 rounds");
    }

    #[test]
    fn what_did_not_run_says_why_and_has_no_figures() {
        let row = Row::not_run("latency", "sockmap", vec![], "BPF is not permitted".into());
        let json = row.to_json();
        assert_eq!(json["not_run"], "BPF is not permitted");
        assert_eq!(json["rounds"], 0);
        assert_eq!(json.as_object().unwrap().len(), 5);
    }

    #[test]
    fn a_metric_that_some_rounds_lack_is_summarised_over_the_others() {
        let rounds = [Metrics::from([("a_s", 1.0)]), Metrics::from([("a_s", 3.0), ("b_s", 5.0)])];
        let row = Row::of("x", "y", vec![], &rounds);
        assert_eq!((row.median("a_s"), row.median("b_s")), (Some(2.0), Some(5.0)));
    }
}
