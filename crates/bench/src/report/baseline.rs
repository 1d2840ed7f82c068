//! Ratios to kernel TCP: to the better of Linux's default and the tuned one, with the same parameters in the same run.

use crate::row::Row;
use crate::scheme::Scheme;

/// Headings of [`ratios`].
pub const TITLES: [&str; 2] = ["of the better TCP", "CPU of it"];

/// What is compared, and whether more is better: the first that a row has.
const FIGURES: [(&str, bool); 4] = [
    ("requests_per_s", true),
    ("connections_per_s", true),
    ("latency_us_p50", false),
    ("throughput_gbit_per_s", true),
];
const CPU: [&str; 4] =
    ["cpu_us_per_request", "cpu_us_per_connection", "cpu_us_per_round_trip", "cpu_s_per_gb"];
/// Benchmarks whose rows are parts of a whole, or of kernel TCP alone.
const WITHOUT: [&str; 3] = ["breakdown", "memory", "tune"];

fn is_baseline(row: &Row) -> bool {
    [Scheme::Tcp, Scheme::TcpTuned].iter().any(|scheme| scheme.name() == row.scheme)
}

/// Whether there is kernel TCP to compare with.
pub fn is_in(rows: &[&Row]) -> bool {
    rows.iter().any(|row| is_baseline(row) && row.not_run.is_none() && !WITHOUT.contains(&row.bench))
}

/// The better of the rows of kernel TCP with these parameters.
fn baseline<'a>(row: &Row, rows: &[&'a Row], figure: &str, more_is_better: bool) -> Option<&'a Row> {
    let own = rows.iter().copied().filter(|other| is_baseline(other) && other.params == row.params);
    let figure = |row: &Row| row.median(figure).map(|value| if more_is_better { value } else { -value });
    own.filter(|row| figure(row).is_some())
        .max_by(|a, b| figure(a).unwrap_or(0.0).total_cmp(&figure(b).unwrap_or(0.0)))
}

/// The figure of a row over that of the better TCP, and the same of the CPU time, where they are.
pub fn ratios(row: &Row, rows: &[&Row]) -> [Option<f64>; 2] {
    let Some((figure, more)) = FIGURES.iter().find(|(name, _)| row.median(name).is_some()) else {
        return [None, None];
    };
    let Some(better) = baseline(row, rows, figure, *more) else { return [None, None] };
    let ratio = |name: &str| Some(row.median(name)? / better.median(name).filter(|value| *value > 0.0)?);
    [ratio(figure), CPU.iter().find_map(|name| ratio(name))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Metrics;
    use serde_json::json;

    fn row(scheme: &str, bytes: u64, figure: &'static str, value: f64) -> Row {
        let metrics = Metrics::from([(figure, value), ("cpu_s_per_gb", 1.0 / value)]);
        Row::of("throughput", scheme, vec![("message_bytes", json!(bytes))], &[metrics])
    }

    #[test]
    fn ratios_are_to_the_better_tcp_with_the_same_parameters() {
        let gbit = "throughput_gbit_per_s";
        let rows = [
            row("tcp", 64, gbit, 10.0),
            row("tcp-tuned", 64, gbit, 20.0),
            row("tcp-loopback", 64, gbit, 100.0),
            row("pipedevice", 64, gbit, 40.0),
            row("tcp", 4096, gbit, 80.0),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        assert!(is_in(&rows));
        assert_eq!(ratios(rows[3], &rows), [Some(2.0), Some(0.5)]);
        assert_eq!(ratios(rows[0], &rows)[0], Some(0.5));
        assert_eq!(ratios(rows[4], &rows)[0], Some(1.0));
    }

    #[test]
    fn the_better_time_is_the_shorter_one() {
        let rows = [
            row("tcp", 64, "latency_us_p50", 30.0),
            row("tcp-tuned", 64, "latency_us_p50", 20.0),
            row("pipedevice", 64, "latency_us_p50", 5.0),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        assert_eq!(ratios(rows[2], &rows)[0], Some(0.25));
    }

    #[test]
    fn without_tcp_there_are_no_ratios() {
        let rows = [row("pipedevice", 64, "throughput_gbit_per_s", 1.0)];
        let rows: Vec<&Row> = rows.iter().collect();
        assert!(!is_in(&rows));
        assert_eq!(ratios(rows[0], &rows), [None, None]);
    }
}
