//! The benchmarks.

pub mod breakdown;
pub mod connections;
pub mod cpu;
pub mod fairness;
pub mod isolation;
pub mod latency;
pub mod memory;
pub mod movers;
pub mod parts;
pub mod pipe;
pub mod programs;
pub mod setup;
pub mod sidecar;
pub mod stream_cell;
pub mod throughput;
pub mod tune;

use anyhow::Result;
use pd_harness::signals::Signals;

use crate::row::Row;
pub use crate::settings::Settings;

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Cores consumed at target throughputs (paper, Figure 9).
    Cpu,
    /// Throughput by message size (Figures 10 and 11).
    Throughput,
    /// Throughput and memory by number of connections (Figure 12).
    Connections,
    /// Round-trip time by message size (Figures 13 and 14).
    Latency,
    /// Shares of pairs of containers, and of connections of one pair (Figure 15).
    Fairness,
    /// Pairs of containers by number of movers.
    Movers,
    /// A pair of containers beside a hostile client.
    Isolation,
    /// Memory of n containers with m sockets (section V-A2).
    Memory,
    /// CPU time by part (Tables I and II, Figure 2).
    Breakdown,
    /// Connections opened and closed per second.
    Setup,
    /// Programs that know nothing of PipeDevice.
    Programs,
    /// A proxy that connections pass.
    Sidecar,
    /// A program that echoes frames, over a pipe and over a packetised interface.
    Pipe,
    /// Ways to set up kernel TCP, beside each other: which of them is `tcp-tuned`.
    Tune,
}

impl Bench {
    /// All of them, in the order of the report.
    pub const ALL: [Bench; 14] = [
        Bench::Tune,
        Bench::Throughput,
        Bench::Cpu,
        Bench::Latency,
        Bench::Connections,
        Bench::Setup,
        Bench::Programs,
        Bench::Sidecar,
        Bench::Pipe,
        Bench::Fairness,
        Bench::Movers,
        Bench::Isolation,
        Bench::Memory,
        Bench::Breakdown,
    ];

    /// Returns the name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Bench::Cpu => "cpu",
            Bench::Throughput => "throughput",
            Bench::Connections => "connections",
            Bench::Latency => "latency",
            Bench::Fairness => "fairness",
            Bench::Movers => "movers",
            Bench::Isolation => "isolation",
            Bench::Memory => "memory",
            Bench::Breakdown => "breakdown",
            Bench::Setup => "setup",
            Bench::Programs => "programs",
            Bench::Sidecar => "sidecar",
            Bench::Pipe => "pipe",
            Bench::Tune => "tune",
        }
    }

    /// Returns the title, with the figure of the paper.
    pub fn title(self) -> &'static str {
        match self {
            Bench::Cpu => "CPU at target throughputs (Figure 9)",
            Bench::Throughput => "Throughput by message size (Figures 10 and 11)",
            Bench::Connections => "Connections at 1 KB (Figure 12)",
            Bench::Latency => "Round-trip time by message size (Figures 13 and 14)",
            Bench::Fairness => "Fairness (Figure 15)",
            Bench::Movers => "Pairs of containers by number of movers",
            Bench::Isolation => "Beside a hostile client",
            Bench::Memory => "Memory for containers and sockets (section V-A2)",
            Bench::Breakdown => "Where CPU time goes (Tables I and II, Figure 2)",
            Bench::Setup => "Connections opened and closed",
            Bench::Programs => "Unmodified programs",
            Bench::Sidecar => "Connections through a proxy",
            Bench::Pipe => "Frames over a pipe and over a packetised interface",
            Bench::Tune => "Kernel TCP tuned",
        }
    }

    /// Runs it.
    pub fn run(self, settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
        match self {
            Bench::Cpu => cpu::run(settings, signals),
            Bench::Throughput => throughput::run(settings, signals),
            Bench::Connections => connections::run(settings, signals),
            Bench::Latency => latency::run(settings, signals),
            Bench::Fairness => fairness::run(settings, signals),
            Bench::Movers => movers::run(settings, signals),
            Bench::Isolation => isolation::run(settings, signals),
            Bench::Memory => memory::run(settings, signals),
            Bench::Breakdown => breakdown::run(settings, signals),
            Bench::Setup => setup::run(settings, signals),
            Bench::Programs => programs::run(settings, signals),
            Bench::Sidecar => sidecar::run(settings, signals),
            Bench::Pipe => pipe::run_all(settings, signals),
            Bench::Tune => tune::run(settings, signals),
        }
    }
}

/// Returns the bars of a benchmark, and the rows that miss one, as text.
fn with_misses(mut bars: String, rows: &[&Row], misses: fn(&Row) -> Vec<String>) -> String {
    for row in rows {
        let misses = misses(row);
        if !misses.is_empty() {
            bars += &format!("\nmissed: {}, {}: {}", row.scheme, row.params_text(), misses.join("; "));
        }
    }
    bars
}
