//! Measures the ways to copy that were considered for the `cpu` engine, and the engine itself.
//!
//! `cargo run --release -p pd-bench --example copy [--results DIR] [alone|shared|queue]...`
//!
//! - `alone`: one thread copies messages around two rings, whose size alone determines the caches. This is
//!   the case that benchmarks of memcpy measure.
//! - `shared`: three threads pass a window of bytes on: a producer writes it, the copier copies it, a
//!   consumer reads it. This is the work of an engine. Each side is timed by itself: a fast copy that leaves
//!   the bytes far from the consumer gains nothing.
//! - `queue`: the same through the queue pair of the `cpu` engine, in batches.
//!
//! With `--results docs/results` the rows of `shared` go to `results.json` of the machine, if that was quiet.
//!
//! Figures are the median of several runs, candidates taking turns, in GB/s (1e9 bytes) of payload unless a heading says otherwise.

mod kernels;
mod memory;
mod shared;

use clap::{Parser, ValueEnum};
use kernels::{candidates, Kernel};
use memory::Memory;
use pd_abi::{Command, CommandType};
use pd_bench::report::results;
use pd_bench::row::{Metrics, Row};
use pd_engine::Engine;
use pd_harness::machine::Machine;
use pd_harness::measure::cpu::Quiet;
use pd_harness::signals::Signals;
use serde_json::json;
use shared::Rates;
use std::path::{Path, PathBuf};
use std::time::Instant;

const SIZES: [usize; 9] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const REPEATS: usize = 5;

/// The command that repeats the recorded figures.
const COMMAND: &str = "cargo run --release -p pd-bench --example copy -- --results docs/results shared";

/// Bytes that are handed on at a time, in the rows that are recorded.
const RECORDED: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Alone,
    Shared,
    Queue,
}

/// Measures ways to copy.
#[derive(Parser)]
struct Args {
    /// Parts to measure [default: all]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Directory of results that documents are made from
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let wants = |part| args.parts.is_empty() || args.parts.contains(&part);
    if wants(Part::Alone) {
        alone();
    }
    if wants(Part::Shared) {
        match &args.results {
            Some(dir) => record_shared(dir)?,
            None => _ = table_shared(),
        }
    }
    if wants(Part::Queue) {
        table_queue("in order");
        table_queue("scattered");
    }
    Ok(())
}

/// Measures `shared` on a quiet machine, and records its rows.
fn record_shared(dir: &Path) -> anyhow::Result<()> {
    let (signals, machine) = (Signals::watch()?, Machine::describe());
    let before = Quiet::wait(&signals)?;
    let rows = table_shared();
    let after = Quiet::wait(&signals)?;
    results::record(
        dir,
        &machine,
        &results::Run { bench: "copy", command: COMMAND, before, after, rows: &rows },
    )
}

fn alone() {
    for (what, bytes) in [("512 KB (L2)", 512 << 10), ("8 MB (L3)", 8 << 20), ("256 MB (memory)", 256 << 20)]
    {
        println!("\nalone: source and destination together {what}");
        heading(&candidates().iter().map(|c| c.0).collect::<Vec<_>>());
        let memory = Memory::new(bytes);
        let (src, dst) = (memory.start(), memory.at(bytes / 2));
        for size in SIZES.into_iter().filter(|size| *size <= bytes / 2) {
            let mut runs = vec![Vec::new(); candidates().len()];
            for _ in 0..REPEATS {
                for ((_, kernel), runs) in candidates().into_iter().zip(&mut runs) {
                    runs.push(alone_once(kernel, src, dst, bytes / 2, size));
                }
            }
            print!("{:>8}", human(size));
            for mut rates in runs {
                rates.sort_by(f64::total_cmp);
                print!("{:>9.2}", rates[REPEATS / 2]);
            }
            println!();
        }
    }
}

fn alone_once(kernel: Kernel, src: *mut u8, dst: *mut u8, ring: usize, size: usize) -> f64 {
    let total = (4 * ring).clamp(16 << 20, 256 << 20);
    let start = Instant::now();
    let mut at = 0;
    for _ in 0..total / size {
        // SAFETY: both rings have `ring` bytes and `at + size` is at most that.
        unsafe { kernel(dst.add(at), src.add(at), size) };
        at += size;
        if at + size > ring {
            at = 0;
        }
    }
    total as f64 / start.elapsed().as_nanos() as f64
}

/// Prints the tables of `shared`. Returns the rows to record.
fn table_shared() -> Vec<Row> {
    let names: Vec<&str> = candidates().iter().map(|c| c.0).collect();
    let mut rows = Vec::new();
    for handed_on in [RECORDED, 1 << 20] {
        println!("\nshared: rings of 4 MB, handed on every {}; write / copy / read / all", human(handed_on));
        heading(&names);
        for size in SIZES.into_iter().filter(|size| *size <= 1 << 20) {
            let window = handed_on.max(size);
            let mut copies: Vec<shared::Copy> =
                candidates().into_iter().map(|(_, kernel)| in_pieces(kernel, size)).collect();
            let rounds = shared::run(4 << 20, window, REPEATS, &mut copies);
            let cells: Vec<Rates> = rounds.iter().map(|rounds| Rates::medians(rounds)).collect();
            for (label, pick) in shared::COLUMNS {
                print!("{:>8}", if label == "copy" { human(size) } else { label.into() });
                for cell in &cells {
                    print!("{:>9.2}", pick(cell));
                }
                println!();
            }
            if handed_on == RECORDED {
                let row = |(&name, rounds): (&&str, &Vec<Rates>)| row(name, size, window, rounds);
                rows.extend(names.iter().zip(&rounds).map(row));
            }
        }
    }
    rows
}

/// Returns the row of a candidate that copied messages of `size` and handed them on every `window` bytes.
fn row(name: &str, size: usize, window: usize, rounds: &[Rates]) -> Row {
    let metrics = |rates: &Rates| Metrics::from([("copy_gb_per_s", rates.copy), ("all_gb_per_s", rates.all)]);
    let rounds: Vec<Metrics> = rounds.iter().map(metrics).collect();
    Row::of("copy", name, vec![("message_bytes", json!(size)), ("window_bytes", json!(window))], &rounds)
}

/// Copies a window in messages of `size`.
fn in_pieces(kernel: Kernel, size: usize) -> shared::Copy<'static> {
    Box::new(move |dst, src, bytes| {
        for at in (0..bytes).step_by(size) {
            // SAFETY: the window has `bytes` bytes, a multiple of `size`, on both sides.
            unsafe { kernel(dst.add(at), src.add(at), size) };
        }
    })
}

fn table_queue(order: &str) {
    println!("\nqueue: through the queue pair, messages {order}, handed on every 64 K, ns per message");
    heading(&BATCHES.map(|b| format!("batch {b}")).each_ref().map(String::as_str));
    for size in SIZES.into_iter().filter(|size| *size <= 256 << 10) {
        let mut copies: Vec<shared::Copy> =
            BATCHES.into_iter().map(|batch| through_queue(batch, size, order == "scattered")).collect();
        print!("{:>8}", human(size));
        for rounds in shared::run(4 << 20, size.max(64 << 10), REPEATS, &mut copies) {
            print!("{:>11.1}", size as f64 / Rates::medians(&rounds).copy);
        }
        println!();
    }
}

const BATCHES: [usize; 4] = [1, 8, 64, 1024];

/// Copies a window in messages of `size`, submitted and reaped `batch` at a time; scattered within the
/// batch, they are like those of many connections.
fn through_queue(batch: usize, size: usize, scattered: bool) -> shared::Copy<'static> {
    let mut pair = pd_engine::Cpu::new().queue_pair().expect("the cpu engine has queue pairs");
    let mut commands: Vec<Command> = Vec::with_capacity(batch);
    let mut completions = vec![Command::default(); batch];
    Box::new(move |dst, src, bytes| {
        for first in (0..bytes).step_by(size * batch) {
            commands.clear();
            commands.extend((first..bytes.min(first + size * batch)).step_by(size).map(|at| Command {
                request_type: CommandType::GeneralSend as u8,
                src_addr: src as u64 + at as u64,
                dst_addr: dst as u64 + at as u64,
                data_len: size as u32,
                ..Default::default()
            }));
            if scattered {
                let count = commands.len();
                for at in 0..count {
                    commands.swap(at, (at * 7919 + 13) % count);
                }
            }
            // SAFETY: the window has `bytes` bytes on both sides and stays until `run` returns.
            assert_eq!(unsafe { pair.submit(&commands) }, commands.len());
            while pair.in_flight() > 0 {
                pair.reap(&mut completions);
            }
        }
    })
}

fn heading(names: &[&str]) {
    print!("{:>8}", "bytes");
    for name in names {
        print!("{name:>9}");
    }
    println!();
}

fn human(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes}"),
        1024..1_048_576 => format!("{} K", bytes >> 10),
        _ => format!("{} M", bytes >> 20),
    }
}
