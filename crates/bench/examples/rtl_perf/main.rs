//! Figures of the hardware in cycle-accurate simulation, beside the limits of PCI Express and the figures of the paper:
//!
//!     make rtl-perf            # or: cargo run --release -p pd-bench --example rtl_perf -- DIR
//!
//! writes DIR/rtl-perf.json, DIR/rtl-perf.md and plots. The simulation is deterministic, so a bar that is missed is an error.

mod bench;
mod host;

use bench::{latency, throughput, Figures, Setting, SETTINGS};
use host::Load;
use pd_bench::report::plot::{svg, Plot};
use pd_bench::row::{Metrics, Row};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

/// PipeDevice's throughput in the paper (section V-B): messages of 4 KB and more, gen3 2x8.
const PAPER_GBIT_PER_S: f64 = 85.0;
/// Most bytes of one command: longer messages are split by the driver.
const COMMAND_BYTES_MAX: u32 = 4096;
const MESSAGE_BYTES: [u32; 11] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];
const QUEUES: [u32; 5] = [1, 4, 16, 64, 256];
const BATCH: u32 = 16;

/// Returns a load on one queue pair with all its depth, or on many with two batches each at least.
fn load(queues: u32, command_bytes: u32, batch: u32) -> Load {
    let in_flight_max = (1024 / queues).max(2 * BATCH);
    Load { queues, command_bytes, batch, in_flight_max }
}

#[derive(Default)]
struct Report {
    rows: Vec<Row>,
    text: String,
    missed: Vec<String>,
}

impl Report {
    fn row(
        &mut self,
        bench: &'static str,
        scheme: &str,
        x: (&'static str, u32),
        metric: &'static str,
        y: f64,
    ) {
        let metrics = Metrics::from([(metric, y)]);
        self.rows.push(Row::of(bench, scheme, vec![(x.0, json!(x.1))], &[metrics]));
    }

    fn line(&mut self, line: &str) {
        println!("{line}");
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn bar(&mut self, what: &str, value: f64, holds: bool, bar: &str) {
        let verdict = if holds { "reached" } else { "NOT reached" };
        self.line(&format!("| {what} | {value:.3} | {bar} | {verdict} |"));
        if !holds {
            self.missed.push(what.to_owned());
        }
    }
}

fn main() -> ExitCode {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "rtl-report".to_owned());
    let mut report = Report::default();
    match measure(&mut report).and_then(|()| write(&report, Path::new(&dir)).map_err(|e| e.to_string())) {
        Ok(()) if report.missed.is_empty() => ExitCode::SUCCESS,
        Ok(()) => {
            eprintln!("bars missed: {}", report.missed.join("; "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("rtl-perf: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(report: &mut Report) -> Result<(), String> {
    let paper = &SETTINGS[0];
    by_size(report)?;
    by_queues(report, paper)?;
    latencies(report)?;
    bars(report, paper)
}

fn by_size(report: &mut Report) -> Result<(), String> {
    report.line("\n### Throughput by message size, one queue pair, batches of 16, Gbit/s (of the limit)\n");
    let mut head = "| message, bytes |".to_owned();
    for setting in &SETTINGS {
        let _ = write!(head, " {} |", setting.name);
    }
    report.line(&head);
    report.line(&format!("|---:|{}", "---:|".repeat(SETTINGS.len())));
    let mut last = Vec::new();
    for bytes in MESSAGE_BYTES {
        let mut line = format!("| {bytes} |");
        // Longer messages are split into commands of that size.
        if bytes <= COMMAND_BYTES_MAX {
            let run = |setting| throughput(setting, load(1, bytes, BATCH));
            last = SETTINGS.iter().map(run).collect::<Result<Vec<_>, _>>()?;
        }
        for (setting, figures) in SETTINGS.iter().zip(&last) {
            let share = 100.0 * figures.gbit_per_s / figures.limit_gbit_per_s;
            let _ = write!(line, " {:.1} ({share:.1} %) |", figures.gbit_per_s);
            let x = ("message_bytes", bytes);
            report.row("rtl_throughput", setting.name, x, "throughput_gbit_per_s", figures.gbit_per_s);
            let limit = format!("{} limit", setting.name);
            report.row("rtl_throughput", &limit, x, "throughput_gbit_per_s", figures.limit_gbit_per_s);
        }
        if bytes >= COMMAND_BYTES_MAX {
            let x = ("message_bytes", bytes);
            report.row("rtl_throughput", "paper", x, "throughput_gbit_per_s", PAPER_GBIT_PER_S);
        }
        report.line(&line);
    }
    Ok(())
}

fn by_queues(report: &mut Report, setting: &Setting) -> Result<(), String> {
    report.line(&format!("\n### Throughput by queue pairs, {}, batches of 16, Gbit/s\n", setting.name));
    report.line("| queue pairs | 64 bytes | 1,024 bytes | 4,096 bytes |\n|---:|---:|---:|---:|");
    for queues in QUEUES {
        let mut line = format!("| {queues} |");
        for (scheme, bytes) in [("64 B", 64), ("1 KB", 1024), ("4 KB", 4096)] {
            let figures = throughput(setting, load(queues, bytes, BATCH))?;
            let _ = write!(line, " {:.1} |", figures.gbit_per_s);
            report.row("rtl_queues", scheme, ("queues", queues), "throughput_gbit_per_s", figures.gbit_per_s);
        }
        report.line(&line);
    }
    Ok(())
}

fn latencies(report: &mut Report) -> Result<(), String> {
    report.line("\n### From doorbell to interrupt, one command on an idle card, ns\n");
    let cases: Vec<(&Setting, u32)> =
        SETTINGS.iter().map(|s| (s, 64)).chain(SETTINGS.iter().map(|s| (s, 4096))).collect();
    let mut head = "| |".to_owned();
    let mut columns = Vec::new();
    for (setting, bytes) in cases {
        let _ = write!(head, " {}, {bytes} B |", setting.name);
        let latency = latency(setting, bytes)?;
        let total: f64 = latency.parts.iter().map(|part| part.1).sum();
        report.row("rtl_latency", setting.name, ("message_bytes", bytes), "latency_ns", total);
        columns.push((latency, total));
    }
    report.line(&head);
    report.line(&format!("|---|{}", "---:|".repeat(columns.len())));
    for part in 0..columns[0].0.parts.len() {
        let mut line = format!("| {} |", columns[0].0.parts[part].0);
        for (latency, _) in &columns {
            let _ = write!(line, " {:.0} |", latency.parts[part].1);
        }
        report.line(&line);
    }
    let totals: String = columns.iter().map(|(_, total)| format!(" {total:.0} |")).collect();
    report.line(&format!("| together |{totals}"));
    Ok(())
}

fn bars(report: &mut Report, setting: &Setting) -> Result<(), String> {
    report.line(&format!("\n### Bars, {}\n", setting.name));
    report.line("| what | is | bar | |\n|---|---:|---:|---|");
    let share = |figures: &Figures| figures.gbit_per_s / figures.limit_gbit_per_s;
    let large = throughput(setting, load(1, 4096, BATCH))?;
    let medium = throughput(setting, load(1, 1024, BATCH))?;
    let many = throughput(setting, load(256, 4096, BATCH))?;
    report.bar("4 KB, of the limit", share(&large), share(&large) >= 0.95, ">= 0.95");
    report.bar("1 KB in batches of 16, of the limit", share(&medium), share(&medium) >= 0.90, ">= 0.90");
    let ratio = many.gbit_per_s / large.gbit_per_s;
    report.bar("256 queue pairs over 1", ratio, (ratio - 1.0).abs() <= 0.02, "0.98 to 1.02");
    let writes = large.register_writes_per_batch.max(many.register_writes_per_batch);
    report.bar("register writes per batch", writes, writes <= 1.0, "<= 1");
    let unbatched = throughput(setting, load(1, 4096, 1))?;
    report.line(&format!(
        "\nOne command a doorbell at 4 KB: {:.1} Gbit/s, limit with such commands {:.1}; with batches of 16 {:.1}, limit \
         {:.1}. Interrupts per command {:.3} and {:.3}, register writes {:.3} and {:.3}. The driver writes and reads \
         entries and doorbells only: no byte of payload.",
        unbatched.gbit_per_s,
        unbatched.batched_limit_gbit_per_s,
        large.gbit_per_s,
        large.batched_limit_gbit_per_s,
        unbatched.interrupts_per_command,
        large.interrupts_per_command,
        unbatched.register_writes_per_command,
        large.register_writes_per_command,
    ));
    Ok(())
}

fn write(report: &Report, dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(dir)?;
    let rows: Vec<_> = report.rows.iter().map(Row::to_json).collect();
    std::fs::write(dir.join("rtl-perf.json"), serde_json::to_string_pretty(&rows)? + "\n")?;
    std::fs::write(dir.join("rtl-perf.md"), &report.text)?;
    let plots = [
        ("rtl_throughput", "Throughput in simulation, Gbit/s", "message_bytes", "message, bytes", true),
        ("rtl_queues", "Throughput in simulation, gen3 2x8, Gbit/s", "queues", "queue pairs", false),
    ];
    for (bench, title, x, x_title, y_log) in plots {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.bench == bench).collect();
        let plot =
            Plot { title, x, x_title, y: "throughput_gbit_per_s", y_log, only_with: None, only_without: &[] };
        let text = svg(&plot, &rows)?.ok_or("nothing to draw")?;
        std::fs::write(dir.join(format!("{bench}.svg")), text)?;
    }
    Ok(())
}
