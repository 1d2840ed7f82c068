//! The command line of `pd bench`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use clap::builder::PossibleValuesParser;
use pd_harness::machine::Machine;
use pd_harness::measure::cpu::Quiet;
use pd_harness::signals::Signals;

use crate::ab;
use crate::bench::{Bench, Settings};
use crate::catalogue::Scheme;
use crate::report::page::Report;
use crate::report::{results, tables};
use crate::row::Row;

/// Measures PipeDevice beside its peers.
///
/// `all` runs every benchmark; `ab` compares this pd with another one and exits with 1 if it is
/// significantly slower. Needs root and iproute2; removes all it makes.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Benchmark
    #[arg(value_parser = PossibleValuesParser::new(names().into_iter().chain(["all", "ab"])))]
    name: String,
    /// Fewer parameters and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Rounds of every scheme [default: 5; 3 with --quick; 8 for ab]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Milliseconds of a round, about [default: 800; 300 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    round_ms: Option<u32>,
    /// Keep rounds in which others disturbed the machine: a test that benchmarks run, whose figures say nothing
    #[arg(long, conflicts_with = "results")]
    smoke: bool,
    /// Schemes to run [default: all of the benchmark]
    #[arg(long, value_delimiter = ',', value_enum)]
    schemes: Vec<Scheme>,
    /// Only rows with this parameter, as the results name it; may be repeated, with a name for several values
    #[arg(long, value_name = "NAME=VALUE", value_parser = parameter)]
    only: Vec<(String, String)>,
    /// PipeDevice's engine
    #[arg(long, default_value = "cpu")]
    engine: String,
    /// Where the results go, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Directory for a page with plots and tables, and results.json
    #[arg(long)]
    report: Option<PathBuf>,
    /// Directory of results that documents are made from: a quiet machine's go to MACHINE/results.json in it, with plots
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// For ab: the other pd
    #[arg(long)]
    base: Option<PathBuf>,
}

impl BenchArgs {
    fn settings(&self) -> Settings {
        Settings {
            quick: self.quick,
            rounds: usize::from(self.rounds.unwrap_or(if self.quick { 3 } else { 5 })),
            round_s: f64::from(self.round_ms.unwrap_or(if self.quick { 300 } else { 800 })) / 1e3,
            schemes: self.schemes.clone(),
            only: self.only.clone(),
            engine: self.engine.clone(),
            smoke: self.smoke,
        }
    }

    /// Returns the given options, with a blank before each.
    fn options(&self) -> String {
        let mut text = String::new();
        if self.quick {
            text += " --quick";
        }
        if let Some(rounds) = self.rounds {
            text += &format!(" --rounds {rounds}");
        }
        if let Some(ms) = self.round_ms {
            text += &format!(" --round-ms {ms}");
        }
        if self.smoke {
            text += " --smoke";
        }
        if !self.schemes.is_empty() {
            let names: Vec<&str> = self.schemes.iter().map(|s| s.name()).collect();
            text += &format!(" --schemes {}", names.join(","));
        }
        for (name, value) in &self.only {
            text += &format!(" --only {name}={value}");
        }
        if self.engine != "cpu" {
            text += &format!(" --engine {}", self.engine);
        }
        text
    }

    fn benches(&self) -> Vec<Bench> {
        Bench::ALL.into_iter().filter(|bench| self.name == "all" || self.name == bench.name()).collect()
    }
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &BenchArgs) -> Result<i32> {
    ensure!(rustix::process::getuid().is_root(), "the benchmarks make containers; run pd as root (sudo)");
    if let Some(dir) = &args.report {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let signals = Signals::watch()?;
    if args.name == "ab" {
        let Some(base) = &args.base else { bail!("what to compare with is missing; give --base PATH/TO/pd") };
        return ab::run(base, args.rounds, args.results.as_deref(), &signals);
    }
    let machine = Machine::describe();
    let mut before = quiet(args, &signals)?;
    let background_cores = before.background_cores;
    let (mut rows, mut left_out) = (Vec::new(), BTreeSet::new());
    for bench in args.benches() {
        let settings = args.settings();
        let found = bench.run(&settings, &signals)?;
        let (found, others): (Vec<Row>, Vec<Row>) =
            found.into_iter().partition(|row| settings.wants(&row.params));
        left_out.extend(others.iter().map(Row::params_text));
        if found.is_empty() {
            continue;
        }
        println!("{}\n{}\n", bench.title(), tables::table(bench.name(), &found.iter().collect::<Vec<_>>()));
        let after = quiet(args, &signals)?;
        let command = format!("pd bench {}{}", bench.name(), args.options());
        let run = results::Run { bench: bench.name(), command: &command, before, after, rows: &found };
        match (&args.results, run.disturbance()) {
            (Some(dir), _) => results::record(dir, &machine, &run)?,
            (None, Some(disturbance)) => {
                eprintln!("pd: warning: discard these figures of {}: {disturbance}", bench.name());
            }
            (None, None) => {}
        }
        before = after;
        rows.extend(found);
        // Written after each benchmark, so that an interrupted run keeps its results.
        if let Some(path) = &args.json {
            write_json(path, &rows)?;
        }
    }
    if rows.is_empty() {
        ensure!(!left_out.is_empty(), "none of these schemes belongs to {}; leave out --schemes", args.name);
        let there = left_out.into_iter().collect::<Vec<_>>().join("; ");
        bail!("no row has all the parameters given by --only; there are: {there}");
    }
    if let Some(dir) = &args.report {
        Report { machine, background_cores, options: args.options(), rows }.write(dir)?;
        println!("report: {}", dir.join("index.html").display());
    }
    Ok(0)
}

/// Measures how quiet the machine is. Before a run that is to be recorded, waits for a quiet machine.
fn quiet(args: &BenchArgs, signals: &Signals) -> Result<Quiet> {
    match args.results {
        Some(_) => Quiet::wait(signals),
        None => Quiet::measure(signals),
    }
}

fn parameter(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').ok_or("write NAME=VALUE, such as program=nginx")?;
    Ok((parts.0.to_owned(), parts.1.to_owned()))
}

fn write_json(path: &Path, rows: &[Row]) -> Result<()> {
    let rows: Vec<_> = rows.iter().map(Row::to_json).collect();
    let text = serde_json::to_string_pretty(&rows)? + "\n";
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the names of all benchmarks.
pub fn names() -> Vec<&'static str> {
    Bench::ALL.iter().map(|b| b.name()).collect()
}
