//! Results as tables for a terminal.

use comfy_table::{presets, Cell, CellAlignment, Table};
use pd_harness::measure::stats::Summary;

use crate::baseline;
use crate::bench::{isolation, sidecar, tune, Bench};
use crate::row::Row;

/// Returns the metrics of a benchmark that its table shows: name, heading, decimals.
pub fn columns(bench: &str) -> &'static [(&'static str, &'static str, usize)] {
    match bench {
        "latency" => &[
            ("latency_us_mean", "mean us", 1),
            ("latency_us_p50", "P50 us", 1),
            ("latency_us_p99", "P99 us", 1),
            ("latency_us_p999", "P99.9 us", 1),
            ("cpu_us_per_round_trip", "CPU us", 1),
        ],
        "connections" => &[
            ("throughput_gbit_per_s", "Gbit/s", 2),
            ("throughput_normalised", "of 128", 2),
            ("cpu_s_per_gb", "CPU s/GB", 3),
            ("idle_bytes_per_connection", "idle B/conn", 0),
            ("active_bytes_per_connection", "active B/conn", 0),
            ("idle_driver_core_percent", "idle driver %", 2),
        ],
        "fairness" => &[
            ("throughput_gbit_per_s", "Gbit/s", 2),
            ("share_gbit_per_s_least", "least", 2),
            ("share_gbit_per_s_most", "most", 2),
            ("share_gbit_per_s_deviation", "deviation", 3),
            ("jain_index", "Jain", 4),
        ],
        "isolation" => &[
            ("kept", "kept", 2),
            ("kept_below_share", "below share", 2),
            ("throughput_gbit_per_s", "Gbit/s", 1),
            ("throughput_gbit_per_s_alone", "alone", 1),
            ("longest_gap_ms", "gap ms", 1),
            ("longest_gap_ms_alone", "alone", 1),
            ("latency_us_p99", "P99 us", 1),
            ("latency_us_p99_alone", "alone", 1),
            ("latency_us_worst", "worst us", 0),
            ("jain_index", "Jain", 3),
            ("ended_ms", "ended ms", 1),
            ("attacks_per_s", "attacks/s", 0),
            ("refused_per_s", "refused/s", 0),
            ("cpu_cores", "cores", 2),
            ("cpu_cores_alone", "alone", 2),
            ("driver_cores", "driver", 2),
            ("driver_cores_alone", "alone", 2),
            ("mover_wait_cores", "mover waits", 2),
            ("attacker_cores", "attacker", 2),
        ],
        "memory" => &[
            ("memory_bytes", "bytes", 0),
            ("memory_bytes_idle", "idle bytes", 0),
            ("memory_bytes_pairwise", "pairwise bytes", 0),
        ],
        "breakdown" => &[("cpu_share_percent", "% of CPU", 1), ("cpu_s_per_gb", "CPU s/GB", 4)],
        "programs" => &[
            ("requests_per_s", "requests/s", 0),
            ("throughput_gbit_per_s", "Gbit/s", 2),
            ("cpu_us_per_request", "CPU us", 2),
            ("cpu_s_per_gb", "CPU s/GB", 3),
        ],
        "sidecar" => &[
            ("requests_per_s", "requests/s", 0),
            ("latency_us_p50", "P50 us", 0),
            ("latency_us_p99", "P99 us", 0),
            ("cpu_us_per_request", "CPU us", 1),
            ("over_tcp_without_proxy", "over TCP without proxy", 2),
            ("cpu_over_tcp_without_proxy", "CPU of it", 2),
            ("p99_over_tcp", "P99 over TCP with proxy", 2),
            ("fabric_share", "on the fabric", 2),
        ],
        "tune" => &[
            ("throughput_gbit_per_s", "Gbit/s", 2),
            ("cpu_s_per_gb", "CPU s/GB", 3),
            ("latency_us_p50", "P50 us", 1),
            ("over_linux", "over Linux's default, all", 2),
        ],
        "pipe" => &[
            ("packets_per_s", "packets/s", 0),
            ("packets_per_s_without_loss", "without loss", 0),
            ("busiest_over_mean", "busiest pipe of the mean", 2),
            ("throughput_gbit_per_s", "Gbit/s", 2),
            ("over_packetised", "over packetised", 2),
            ("program_cycles_per_packet", "program's cycles/packet", 1),
            ("program_time_over_packetised", "of packetised's", 2),
            ("latency_us_mean", "latency us", 2),
            ("latency_over_packetised", "of packetised's", 2),
            ("latency_us_p50", "P50 us", 2),
            ("latency_us_p99", "P99 us", 2),
            ("p99_over_packetised", "of packetised's", 2),
            ("packets_per_notification", "packets/notification", 0),
            ("cpu_share_percent_nic", "NIC's core %", 1),
            ("cpu_share_percent_agent", "agent's core %", 1),
            ("cpu_share_percent_program", "program's core %", 1),
        ],
        "setup" => &[("connections_per_s", "connections/s", 0), ("cpu_us_per_connection", "CPU us", 1)],
        _ => &[
            ("throughput_gbit_per_s", "Gbit/s", 2),
            ("messages_per_s", "messages/s", 0),
            ("cpu_cores", "cores", 2),
            ("cpu_s_per_gb", "CPU s/GB", 3),
            ("softirq_s_per_gb", "softirq s/GB", 3),
        ],
    }
}

/// Formats a figure with `decimals` decimals, large ones in groups of three digits.
pub fn figure(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    let mut grouped = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{rest}")
}

/// Formats a benchmark's rows: medians, with the spread of the first metric.
pub fn table(bench: &str, rows: &[&Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    let columns = columns(bench);
    let mut heading = vec!["scheme".to_owned(), "parameters".to_owned()];
    heading.extend(columns.iter().map(|(_, title, _)| (*title).to_owned()));
    heading.insert(3, "(min..max)".to_owned());
    let compared = baseline::is_in(rows);
    heading.extend(baseline::RATIOS.iter().filter(|_| compared).map(|(_, title)| (*title).to_owned()));
    let winners = baseline::winners(bench, rows);
    let won = winners.iter().any(|winner| !winner.is_empty());
    heading.extend(won.then(|| "wins".to_owned()));
    table.set_header(heading);
    for (row, winner) in rows.iter().zip(winners) {
        let mut cells = vec![Cell::new(&row.scheme), Cell::new(row.params_text())];
        if row.not_run.is_some() {
            cells.push(Cell::new("not run").set_alignment(CellAlignment::Right));
            table.add_row(cells);
            continue;
        }
        for (n, (metric, _, decimals)) in columns.iter().enumerate() {
            let summary = row.metrics.get(metric);
            let text = summary.map_or(String::new(), |s| figure(s.median, *decimals));
            cells.push(Cell::new(text).set_alignment(CellAlignment::Right));
            if n == 0 {
                let spread = summary.map_or(String::new(), |s| {
                    format!("{}..{}", figure(s.min, *decimals), figure(s.max, *decimals))
                });
                cells.push(Cell::new(spread));
            }
        }
        if compared {
            cells.extend(baseline::RATIOS.iter().map(|(ratio, _)| {
                let text = row.median(ratio).map_or(String::new(), |ratio| figure(ratio, 2));
                Cell::new(text).set_alignment(CellAlignment::Right)
            }));
        }
        cells.extend(won.then(|| Cell::new(winner)));
        table.add_row(cells);
    }
    let mut text = table.to_string();
    for (scheme, settings) in settings(rows) {
        text += &format!("\n{scheme}: {settings}");
    }
    if bench == Bench::Tune.name() {
        text += &format!("\n{}", tune::verdict(rows));
    }
    if bench == Bench::Sidecar.name() {
        text += &format!("\n{}", sidecar::verdict(rows));
    }
    if bench == Bench::Isolation.name() {
        text += &format!("\n{}", isolation::verdict(rows));
    }
    if let Some(cores) = cores(rows) {
        text += &format!("\n{cores}");
    }
    for (scheme, reason) in reasons(rows) {
        text += &format!("\n{scheme} not run: {reason}");
    }
    text
}

/// Describes the cores of the machine around the rounds, if it has two.
pub fn cores(rows: &[&Row]) -> Option<String> {
    let spread = |metric: &str| {
        let all: Vec<_> = rows.iter().filter_map(|row| row.metrics.get(metric)).collect();
        let median = Summary::of(all.iter().map(|s| s.median))?.median;
        let least = all.iter().map(|s| s.min).fold(f64::MAX, f64::min);
        let most = all.iter().map(|s| s.max).fold(0.0, f64::max);
        Some(format!("{} ({}..{})", figure(median, 0), figure(least, 0), figure(most, 0)))
    };
    let repeated = rows.iter().filter(|row| row.metrics.get("repeats").is_some_and(|s| s.max > 0.0)).count();
    Some(format!(
        "two cores: {} ns apart, a ring of 4 MB between them {} Gbit/s; rows with rounds repeated because of cores farther apart, or of stolen time: {repeated} of {}",
        spread("cores_apart_ns")?,
        spread("cores_copy_gbit_per_s")?,
        rows.len()
    ))
}

/// Returns the settings that both ends of schemes reported, each once. Candidates have theirs in their names.
pub fn settings<'a>(rows: &[&'a Row]) -> Vec<(&'a str, &'a str)> {
    let said = rows.iter().filter(|row| !row.settings.is_empty() && row.bench != Bench::Tune.name());
    let mut settings: Vec<_> = said.map(|row| (row.scheme.as_str(), row.settings.as_str())).collect();
    settings.sort_unstable();
    settings.dedup();
    settings
}

/// Returns the reasons why schemes did not run, each once.
fn reasons<'a>(rows: &[&'a Row]) -> Vec<(&'a str, &'a str)> {
    let mut reasons: Vec<_> =
        rows.iter().filter_map(|row| Some((row.scheme.as_str(), row.not_run.as_deref()?))).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Metrics;

    #[test]
    fn large_figures_are_grouped() {
        assert_eq!(figure(1234567.0, 0), "1,234,567");
        assert_eq!(figure(-1234.56, 1), "-1,234.6");
        assert_eq!(figure(12.0, 2), "12.00");
    }

    #[test]
    fn a_table_shows_what_did_not_run() {
        let run = Row::of("setup", "tcp", vec![], &[Metrics::from([("connections_per_s", 20_000.0)])]);
        let not = Row::not_run("setup", "unix", vec![], "no sockets left".into());
        let text = table("setup", &[&run, &not]);
        assert!(text.contains("20,000") && text.ends_with("unix not run: no sockets left"), "{text}");
    }
}
