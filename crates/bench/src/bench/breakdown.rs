//! `breakdown`: CPU time by part, in kernel TCP over the bridge and in PipeDevice (Tables I and II, Figure
//! 2). `perf` samples all cores, and functions sort the samples into parts.
//!
//! Without `perf`, the kernel's accounting by process, mode and softirq is used instead. The field `source`
//! of a row tells which.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use pd_harness::own_exe;
use pd_harness::progress;
use pd_harness::signals::Signals;
use serde_json::json;

use super::stream_cell::StreamCell;
use super::{Bench, Settings};
use crate::bench::parts::part;
use crate::catalogue::Scheme;
use crate::row::{Metrics, Params, Row};
use crate::run::interleave::{is_interrupted, Cell};
use crate::run::stand::{Memory, Stand};
use crate::run::undisturbed::undisturbed;

const SCHEMES: [Scheme; 4] = [Scheme::Tcp, Scheme::TcpTuned, Scheme::Pipedevice, Scheme::PipedeviceDefault];
const MESSAGE_BYTES: usize = 64 << 10;
/// Samples a second of each core: no divisor of the clock tick's.
const SAMPLES_HZ: &str = "1999";
/// Samples need more time than throughput.
const ROUND_FACTOR: f64 = 3.0;
/// Time that `perf` takes to start sampling.
const PERF_START: Duration = Duration::from_millis(300);

/// CPU seconds per GB of each part, by name.
type Parts = BTreeMap<String, f64>;

fn perf_program() -> Option<()> {
    Command::new("perf")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .ok()?
        .success()
        .then_some(())
}

fn record(file: &Path) -> Result<Child> {
    // The helper gives perf the signals back that this program has blocked, and ends it with this program.
    Command::new(own_exe())
        .args(["internal-tied", "--parent", &std::process::id().to_string(), "--", "perf", "record"])
        .args(["--quiet", "--all-cpus", "--event", "cpu-clock", "--freq", SAMPLES_HZ, "--output"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start perf")
}

fn stop(mut perf: Child) -> Result<()> {
    let pid = rustix::process::Pid::from_child(&perf);
    // Not reaped yet, so the number is still its own. The process writes its file and ends.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    perf.wait().context("cannot wait for perf")?;
    Ok(())
}

/// Shares of samples by part, of all that are not idle; they add up to 1.
fn shares(file: &Path) -> Result<Parts> {
    let output = Command::new("perf")
        .args(["report", "--stdio", "--quiet", "--no-children", "--sort", "comm,dso,sym"])
        .args(["--field-separator", ";", "--percent-limit", "0", "--input"])
        .arg(file)
        .stderr(Stdio::null())
        .output()
        .context("cannot start perf")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let shares = parse(&text);
    ensure!(!shares.is_empty(), "perf took no samples; try sysctl kernel.perf_event_paranoid=-1");
    Ok(shares)
}

fn parse(report: &str) -> Parts {
    let mut parts = Parts::new();
    for line in report.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(';').map(str::trim).collect();
        let [percent, comm, dso, symbol, ..] = fields[..] else { continue };
        let Ok(percent) = percent.trim_end_matches('%').parse::<f64>() else { continue };
        if let Some(part) = part(comm, dso, symbol) {
            *parts.entry(part.to_owned()).or_default() += percent;
        }
    }
    let all: f64 = parts.values().sum();
    parts.values_mut().for_each(|share| *share /= all.max(f64::MIN_POSITIVE));
    parts
}

/// Measures one round of a scheme while `perf` samples. Returns CPU seconds per GB of each part.
fn sampled(cell: &mut StreamCell, stand: &mut Stand<'_>) -> Result<Parts> {
    let file = stand.dir().join("perf.data");
    let perf = record(&file)?;
    std::thread::sleep(PERF_START);
    let measured = cell.measure(stand);
    stop(perf)?;
    let cpu_s_per_gb = measured?["cpu_s_per_gb"];
    let shares = shares(&file)?;
    let _ = std::fs::remove_file(&file);
    Ok(shares.into_iter().map(|(part, share)| (part, share * cpu_s_per_gb)).collect())
}

/// Measures one round of a scheme by the kernel's accounting alone.
fn accounted(cell: &mut StreamCell, stand: &mut Stand<'_>) -> Result<Parts> {
    let metrics = cell.measure(stand)?;
    let named = [
        ("sender, user", "sender_user_s_per_gb"),
        ("sender, kernel", "sender_system_s_per_gb"),
        ("receiver, user", "receiver_user_s_per_gb"),
        ("receiver, kernel", "receiver_system_s_per_gb"),
        ("driver", "driver_s_per_gb"),
    ];
    let mut parts: Parts =
        named.iter().filter_map(|(part, name)| Some(((*part).to_owned(), *metrics.get(name)?))).collect();
    let known: f64 = parts.values().sum();
    parts.insert("softirq and others".into(), (metrics["cpu_s_per_gb"] - known).max(0.0));
    Ok(parts)
}

fn rows_of(scheme: Scheme, source: &str, rounds: &[Option<Parts>]) -> Vec<Row> {
    let mut names: Vec<&String> = rounds.iter().flatten().flat_map(BTreeMap::keys).collect();
    names.sort();
    names.dedup();
    let rows = names.into_iter().map(|name| {
        let params: Params = vec![("part", json!(name)), ("source", json!(source))];
        let figures = |parts: &Parts| {
            let (own, all) = (parts.get(name).copied().unwrap_or(0.0), parts.values().sum::<f64>());
            Metrics::from([("cpu_s_per_gb", own), ("cpu_share_percent", 100.0 * own / all)])
        };
        let figures = rounds.iter().map(|round| round.as_ref().map(figures)).collect();
        Row::of_undisturbed(Bench::Breakdown.name(), scheme.name(), params, figures)
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by(|a, b| {
        b.median("cpu_s_per_gb").unwrap_or(0.0).total_cmp(&a.median("cpu_s_per_gb").unwrap_or(0.0))
    });
    rows
}

fn scheme_rows(scheme: Scheme, settings: &Settings, stand: &mut Stand<'_>) -> Result<Vec<Row>> {
    let mut cell = StreamCell::of(scheme, MESSAGE_BYTES, settings.round_s * ROUND_FACTOR);
    cell.open(stand)?;
    let signals = stand.signals;
    let described = stand.pair(scheme)?.describe(signals)?;
    let source = if perf_program().is_some() { "perf" } else { "/proc" };
    let mut watch = settings.watch();
    let mut rounds_by = |source| {
        let work = |cell: &mut StreamCell, stand: &mut Stand<'_>| match source {
            "perf" => sampled(cell, stand),
            _ => accounted(cell, stand),
        };
        let round = |_| Ok(undisturbed(&mut watch, || work(&mut cell, stand))?.0);
        (0..settings.rounds.min(3)).map(round).collect::<Result<Vec<Option<Parts>>>>()
    };
    let (source, rounds) = match rounds_by(source) {
        Err(error) if source == "perf" && !is_interrupted(&error) => {
            eprintln!("pd: warning: {error:#}; CPU time is split by process and mode instead");
            ("/proc", rounds_by("/proc")?)
        }
        rounds => (source, rounds?),
    };
    cell.close(stand)?;
    let mut rows = rows_of(scheme, source, &rounds);
    if rows.is_empty() {
        // Not one round has parts to name rows by.
        let none = rounds.into_iter().map(|_| None).collect();
        rows.push(Row::of_undisturbed(Bench::Breakdown.name(), scheme.name(), Params::new(), none));
    }
    let rows = rows.into_iter();
    Ok(rows.map(|row| Row { settings: described.clone(), ..row }).collect())
}

/// Runs it.
pub fn run(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let schemes = settings.among(&SCHEMES);
    let mut stand = Stand::set_up(&schemes, Memory::FEW, &settings.engine, signals)?;
    let bar = progress::bar(schemes.len() as u64);
    let mut rows = Vec::new();
    for scheme in schemes {
        bar.set_message(format!("breakdown: {}", scheme.name()));
        match scheme_rows(scheme, settings, &mut stand) {
            Ok(found) => rows.extend(found),
            Err(error) if is_interrupted(&error) => return Err(error),
            Err(error) => {
                stand.end_pairs(scheme);
                let reason = format!("{error:#}");
                rows.push(Row::not_run(Bench::Breakdown.name(), scheme.name(), Params::new(), reason));
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_shared_out_and_idle_ones_are_not() {
        let report = "    50.00%;swapper;[kernel.kallsyms];[k] pv_native_safe_halt\n\
                      \x20   30.00%;pd;[kernel.kallsyms];[k] _copy_to_iter\n\
                      \x20   10.00%;pd;[kernel.kallsyms];[k] tcp_sendmsg_locked\n\
                      \x20   10.00%;pd;[kernel.kallsyms];[k] br_handle_frame\n# end\n\n";
        let parts = parse(report);
        assert_eq!(parts.len(), 3);
        assert!((parts["copy"] - 0.6).abs() < 1e-9);
        assert!((parts["TCP/IP stack"] - 0.2).abs() < 1e-9);
        assert!((parts["bridge and veth"] - 0.2).abs() < 1e-9);
    }

    #[test]
    fn parts_become_rows_the_largest_first() {
        let round = Parts::from([("copy".to_owned(), 0.3), ("other".to_owned(), 0.1)]);
        let rows = rows_of(Scheme::Tcp, "perf", &[Some(round)]);
        assert_eq!(rows[0].params_text(), "part copy, source perf");
        assert!((rows[0].median("cpu_share_percent").unwrap() - 75.0).abs() < 1e-9);
    }
}
