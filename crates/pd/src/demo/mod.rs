//! `pd demo`: real files from one container to another, through kernel TCP over the bridge and through
//! PipeDevice, interleaved, verified and measured.
//!
//! The demo is a benchmark of `pd bench` with its own options, words and bars: peers, schemes, rounds and plots are those of
//! [`pd_bench`]. All its resources (containers, bridge, driver, directory, hugepages) belong to values that remove them when dropped,
//! on errors and on signals too. After a SIGKILL, the next `pd` removes the rest.

mod cells;
mod report;
mod schemes;
mod source;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use rustix::fs::{access, Access};
use sha2::{Digest as _, Sha256};

use cells::{DemoCell, Samples};
use pd_bench::bench::Settings;
use pd_bench::catalogue::Conditions;
use pd_bench::files::Source;
use pd_bench::protocol::Files;
use pd_bench::report::{bars, results};
use pd_bench::row::Row;
use pd_bench::run::interleave::{self, Cell};
use pd_bench::run::stand::{Memory, Stand};
use pd_driver::Bytes;
use pd_harness::engines;
use pd_harness::machine;
use pd_harness::measure::cpu::Quiet;
use pd_harness::progress;
use pd_harness::signals::Signals;
use report::{FileRow, Report, Setting, Verified};
use schemes::{Part, Scheme};

/// Least bytes of a round, over any number of passes.
const ROUND_BYTES_MIN: u64 = 1_000_000_000;
/// A timed round moves at most this much of a larger source; the verifying pass moves all.
const ROUND_BYTES_MAX: u64 = 2_000_000_000;

/// Streams real files between two containers, through kernel TCP and through PipeDevice.
///
/// Prints a table and writes demo.json and demo.svg. Needs root and iproute2; removes all it makes.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// File to stream; may be given several times [default: large files of this machine, 1 GB in all; with a
    /// simulated engine one of a few MB]
    #[arg(long = "file")]
    files: Vec<PathBuf>,
    /// Rounds of every scheme; 0 only verifies the files [default: 5, 0 with a simulated engine]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1000))]
    rounds: Option<u32>,
    /// Keep rounds in which others disturbed the machine: a test that the demo runs, whose figures say nothing
    #[arg(long, conflicts_with = "results")]
    smoke: bool,
    /// Parts to run
    #[arg(long, value_delimiter = ',', default_values = ["file", "bulk"])]
    parts: Vec<Part>,
    /// Schemes to run [default: all that this build has, with a simulated engine pipedevice-mediated]
    #[arg(long, value_delimiter = ',')]
    schemes: Vec<Scheme>,
    /// Bytes of one message
    #[arg(long, default_value = "65536")]
    message_bytes: Bytes,
    /// PipeDevice's send and receive rings
    #[arg(long, default_value = "4M")]
    ring_bytes: Bytes,
    /// Memory that senders send from
    #[arg(long, default_value = "2M")]
    window_bytes: Bytes,
    /// Bytes of a file that the PipeDevice sender checksums and sends at a time
    #[arg(long, default_value = "1M")]
    read_bytes: Bytes,
    /// PipeDevice's engine
    #[arg(long, default_value = "cpu")]
    engine: String,
    /// Waveform of all that the rtl engine does (FST)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Where the figures go
    #[arg(long, default_value = "demo.json")]
    out: PathBuf,
    /// Where the picture goes
    #[arg(long, default_value = "demo.svg")]
    plot: PathBuf,
    /// Directory of results that documents are made from: a quiet machine's go to MACHINE/results.json in it
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Print JSON in place of the table
    #[arg(long)]
    json: bool,
}

impl DemoArgs {
    fn schemes(&self) -> Vec<Scheme> {
        // Without the rule, the two containers might not need the engine.
        Scheme::ALL
            .into_iter()
            .filter(|s| match self.schemes.is_empty() {
                true => !self.is_simulated() || *s == Scheme::PipedeviceMediated,
                false => self.schemes.contains(s),
            })
            .collect()
    }

    fn is_simulated(&self) -> bool {
        engines::is_simulated(&self.engine)
    }

    /// Returns the number of rounds. A simulation runs none: its time is not the machine's, and a round would take minutes.
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.is_simulated() { 0 } else { 5 })
    }

    /// Returns the command that repeats the figures.
    fn command(&self) -> String {
        let rounds = self.rounds.map(|rounds| format!(" --rounds {rounds}"));
        let files = self.files.iter().map(|file| format!(" --file {}", file.display()));
        format!("pd demo{}{}", rounds.unwrap_or_default(), files.collect::<String>())
    }

    /// Returns the engine in the form of the driver's configuration.
    fn engine(&self) -> Result<String> {
        let Some(trace) = &self.trace else { return Ok(self.engine.clone()) };
        ensure!(self.engine == "rtl", "--trace is of the rtl engine; add --engine rtl");
        let trace = std::path::absolute(trace)?;
        let trace = trace.to_str().with_context(|| format!("{} is no UTF-8", trace.display()))?;
        Ok(format!("rtl:trace={trace}"))
    }

    fn check(&self) -> Result<()> {
        let message = self.message_bytes.0;
        engines::by_name(&self.engine()?)?;
        ensure!(
            self.rounds() > 0 || self.parts.contains(&Part::File),
            "--rounds 0 verifies files and measures nothing; add file to --parts"
        );
        let within = |option: &str, value: Bytes, low: u64, high: u64| -> Result<()> {
            ensure!(
                (low..=high).contains(&value.0),
                "{option} {value} is out of range; use {} to {}",
                Bytes(low),
                Bytes(high)
            );
            Ok(())
        };
        within("--message-bytes", self.message_bytes, 64, 16 << 20)?;
        within("--ring-bytes", self.ring_bytes, 64 << 10, 1 << 30)?;
        within("--window-bytes", self.window_bytes, 2 * message, self.ring_bytes.0)?;
        within("--read-bytes", self.read_bytes, message, self.window_bytes.0 / 2)?;
        for (option, value) in [("--window-bytes", self.window_bytes), ("--read-bytes", self.read_bytes)] {
            ensure!(value.0 % message == 0, "{option} {value} is no multiple of --message-bytes {message}");
        }
        ensure!(
            self.parts.iter().any(|part| self.schemes().iter().any(|s| s.fits(*part))),
            "none of the --schemes runs in any of the --parts; add tcp"
        );
        Ok(())
    }
}

/// Runs the subcommand; returns the status to exit with.
pub fn main(args: &DemoArgs) -> Result<i32> {
    args.check()?;
    ensure!(rustix::process::getuid().is_root(), "the demo makes containers; run pd as root (sudo)");
    for path in [&args.out, &args.plot] {
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        access(dir, Access::WRITE_OK).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let signals = Signals::watch()?;
    let (report, rows, before) = run(args, &signals)?;
    if let Some(dir) = &args.results {
        let after = Quiet::wait(&signals)?;
        let run = results::Run { bench: "demo", command: &args.command(), before, after, rows: &rows };
        results::record(dir, &report.machine, &run)?;
    }
    let json = serde_json::to_string_pretty(&report)?;
    fs::write(&args.out, format!("{json}\n"))
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    let measured = !report.rounds.is_empty();
    if measured {
        bars::write(&args.plot, &report.charts())?;
    }
    match (args.json, measured) {
        (true, _) => println!("{json}"),
        (false, true) => {
            println!("{}", report.tables());
            println!("\nfigures: {}   picture: {}", args.out.display(), args.plot.display());
        }
        (false, false) => println!("{}", report.verified()),
    }
    Ok(0)
}

fn run(args: &DemoArgs, signals: &Signals) -> Result<(Report, Vec<Row>, Quiet)> {
    let paths = match args.files.is_empty() {
        false => args.files.clone(),
        true if args.is_simulated() => source::find_smallest().into_iter().map(|c| c.path).collect(),
        true => source::find(ROUND_BYTES_MIN).into_iter().map(|c| c.path).collect(),
    };
    let paths: Vec<PathBuf> = paths
        .iter()
        .map(|p| fs::canonicalize(p).with_context(|| format!("cannot open {}", p.display())))
        .collect::<Result<_>>()?;
    let source = Source::open(&paths)?;
    announce(&source);
    let schemes = args.schemes();
    let parts: Vec<(Part, Vec<Scheme>)> =
        args.parts.iter().map(|&p| (p, schemes.iter().copied().filter(|s| s.fits(p)).collect())).collect();
    let verified_schemes: Vec<Scheme> = match args.parts.contains(&Part::File) {
        true => schemes.iter().copied().filter(|s| *s != Scheme::TcpSendfileUntouched).collect(),
        false => Vec::new(),
    };
    let rounds_in_all: usize = match args.rounds() as usize {
        0 => 0,
        rounds => parts.iter().map(|(_, s)| s.len() * (rounds + 1)).sum(),
    };
    let bar = progress::bar((verified_schemes.len() + rounds_in_all) as u64);

    bar.set_message("reading the files");
    let sha256 = sha256(&source, signals)?;
    let mut stand = set_up(args, &schemes, signals)?;
    let quiet = match (args.rounds(), &args.results) {
        (0, _) => Quiet { background_cores: 0.0, cpu_share: 1.0 },
        (_, None) => Quiet::measure(signals)?,
        (_, Some(_)) => Quiet::wait(signals)?,
    };
    let machine = machine::Machine::describe();
    let (message_bytes, files) = (args.message_bytes.0 as usize, files(args, paths));
    let (mut settings, mut verified) = (Vec::new(), Vec::new());
    for &scheme in &schemes {
        let is_verified = verified_schemes.contains(&scheme);
        if is_verified {
            bar.set_message(format!("verifying {}", scheme.name()));
        }
        let bytes = is_verified.then(|| source.bytes());
        let (has, received) = cells::connect(scheme, message_bytes, &files, bytes, &mut stand)?;
        settings.push(Setting { scheme, has });
        let Some(received) = received else { continue };
        ensure!(
            received == sha256,
            "{}: the receiver got SHA-256 {received}, the files have {sha256}; do they change meanwhile?",
            scheme.name()
        );
        verified.push(Verified { scheme, sha256: received });
        bar.inc(1);
    }
    let bytes_min = source.bytes().clamp(ROUND_BYTES_MIN, ROUND_BYTES_MAX);
    let (samples, mut rows) = (Samples::default(), Vec::new());
    for (part, schemes) in parts.into_iter().filter(|_| args.rounds() > 0) {
        let cell = |&scheme: &Scheme| -> Box<dyn Cell> {
            Box::new(DemoCell::new(part, scheme, message_bytes, bytes_min, &files, &samples))
        };
        let cells = schemes.iter().map(cell).collect();
        rows.extend(interleave::run("demo", cells, &run_settings(args), &mut stand, &bar)?);
    }
    bar.finish_and_clear();
    for row in rows.iter().filter(|row| row.not_run.is_some()) {
        let reason =
            format!("{}, {}: {}", row.scheme, row.params_text(), row.not_run.as_deref().unwrap_or(""));
        ensure!(row.discarded > 0, "{reason}");
        eprintln!("pd: warning: {reason}; its figures are discarded");
    }
    let rounds = samples.take();
    let summary = report::summarise(&rounds);
    let report = Report {
        machine,
        message_bytes: args.message_bytes.0,
        window_bytes: args.window_bytes.0,
        ring_bytes: args.ring_bytes.0,
        engine: args.engine()?,
        background_cores: quiet.background_cores,
        settings,
        files: source.files().iter().map(|f| FileRow { path: f.path.clone(), bytes: f.bytes }).collect(),
        sha256,
        verified,
        comparisons: report::compare(&rounds, &summary),
        summary,
        rounds,
    };
    Ok((report, rows, quiet))
}

fn set_up<'a>(args: &DemoArgs, schemes: &[Scheme], signals: &'a Signals) -> Result<Stand<'a>> {
    let schemes: Vec<_> = schemes.iter().map(|scheme| scheme.in_catalogue()).collect();
    let memory =
        Memory { budget_bytes: (32 * args.ring_bytes.0).max(128 << 20), ring_bytes: args.ring_bytes.0 };
    let under = Conditions {
        window_bytes: Some(args.window_bytes.0 as usize),
        prefix: "demo",
        ..Conditions::default()
    };
    Stand::set_up_under(under, &schemes, memory, &args.engine()?, signals)
}

fn files(args: &DemoArgs, paths: Vec<PathBuf>) -> Files {
    Files { paths, read_bytes: args.read_bytes.0 as usize }
}

fn run_settings(args: &DemoArgs) -> Settings {
    Settings {
        quick: false,
        rounds: args.rounds() as usize,
        round_s: cells::ROUND_S,
        schemes: Vec::new(),
        only: Vec::new(),
        engine: args.engine.clone(),
        smoke: args.smoke,
    }
}

fn announce(source: &Source) {
    for file in source.files() {
        eprintln!("streaming {} ({:.0} MB)", file.path.display(), file.bytes as f64 / 1e6);
    }
    let available = machine::memory().and_then(|memory| memory.mem_available).unwrap_or(0);
    if source.bytes() > available / 2 {
        eprintln!(
            "pd: warning: the files have {:.1} GB and {:.1} GB of memory are available: the page cache may \
             not hold them, and disks will be measured",
            source.bytes() as f64 / 1e9,
            available as f64 / 1e9
        );
    }
}

/// Hashes the whole source, which also brings it into the page cache.
fn sha256(source: &Source, signals: &Signals) -> Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    for piece in source.files() {
        let mut offset = 0;
        while offset < piece.bytes {
            signals.check()?;
            let max = (piece.bytes - offset).min(buffer.len() as u64) as usize;
            let n = piece.file.read_at(&mut buffer[..max], offset);
            let n = n.with_context(|| format!("cannot read {}", piece.path.display()))?;
            if n == 0 {
                bail!("{} became shorter while it was read", piece.path.display());
            }
            hash.update(&buffer[..n]);
            offset += n as u64;
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
