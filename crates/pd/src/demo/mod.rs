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

use cells::{DemoCell, Sample, Samples};
use pd_bench::bench::Settings;
use pd_bench::catalogue::Conditions;
use pd_bench::files::{Piece, Source};
use pd_bench::protocol::Files;
use pd_bench::report::{bars, results};
use pd_bench::row::Row;
use pd_bench::run::interleave::{self, Cell};
use pd_bench::run::stand::{Memory, Stand};
use pd_driver::Bytes;
use pd_harness::engines;
use pd_harness::machine;
use pd_harness::measure::cpu::Quiet;
use pd_harness::progress::{self, ProgressBar};
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

    /// Returns the parts to run, each with the schemes that fit it.
    fn fitting(&self, schemes: &[Scheme]) -> Vec<(Part, Vec<Scheme>)> {
        let of = |&part: &Part| (part, schemes.iter().copied().filter(|s| s.fits(part)).collect());
        self.parts.iter().map(of).collect()
    }

    /// Returns the schemes that all files are sent over once, to compare hashes.
    fn to_verify(&self, schemes: &[Scheme]) -> Vec<Scheme> {
        match self.parts.contains(&Part::File) {
            true => schemes.iter().copied().filter(|s| *s != Scheme::TcpSendfileUntouched).collect(),
            false => Vec::new(),
        }
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

/// A demo: its sources, schemes and containers.
struct Demo<'a> {
    args: &'a DemoArgs,
    source: Source,
    files: Files,
    schemes: Vec<Scheme>,
    stand: Stand<'a>,
    bar: ProgressBar,
}

fn run(args: &DemoArgs, signals: &Signals) -> Result<(Report, Vec<Row>, Quiet)> {
    let paths = paths(args)?;
    let source = Source::open(&paths)?;
    announce(&source);
    let schemes = args.schemes();
    let parts = args.fitting(&schemes);
    let to_verify = args.to_verify(&schemes);
    let timed: usize = parts.iter().map(|(_, schemes)| schemes.len() * rounds_of_each(args)).sum();
    let bar = progress::bar((to_verify.len() + timed) as u64);

    bar.set_message("reading the files");
    let sha256 = sha256(&source, signals)?;
    let stand = set_up(args, &schemes, signals)?;
    let quiet = match (args.rounds(), &args.results) {
        (0, _) => Quiet { background_cores: 0.0, cpu_share: 1.0 },
        (_, None) => Quiet::measure(signals)?,
        (_, Some(_)) => Quiet::wait(signals)?,
    };
    let machine = machine::Machine::describe();
    let mut demo = Demo { args, source, files: files(args, paths), schemes, stand, bar };
    let (settings, verified) = demo.verify(&to_verify, &sha256)?;
    let (rounds, rows) = demo.measure(parts)?;
    demo.bar.finish_and_clear();
    warn_of_discarded(&rows)?;
    let summary = report::summarise(&rounds);
    let listed = |file: &Piece| FileRow { path: file.path.clone(), bytes: file.bytes };
    let report = Report {
        machine,
        message_bytes: args.message_bytes.0,
        window_bytes: args.window_bytes.0,
        ring_bytes: args.ring_bytes.0,
        engine: args.engine()?,
        background_cores: quiet.background_cores,
        settings,
        files: demo.source.files().iter().map(listed).collect(),
        sha256,
        verified,
        comparisons: report::compare(&rounds, &summary),
        summary,
        rounds,
    };
    Ok((report, rows, quiet))
}

impl Demo<'_> {
    /// Connects each scheme once, and sends all files over those of `to_verify`. Returns what each scheme has, and the hashes received.
    ///
    /// # Errors
    /// A receiver got other bytes, or none.
    fn verify(&mut self, to_verify: &[Scheme], sha256: &str) -> Result<(Vec<Setting>, Vec<Verified>)> {
        let message_bytes = self.args.message_bytes.0 as usize;
        let (mut settings, mut verified) = (Vec::new(), Vec::new());
        for &scheme in &self.schemes {
            let is_verified = to_verify.contains(&scheme);
            if is_verified {
                self.bar.set_message(format!("verifying {}", scheme.name()));
            }
            let bytes = is_verified.then(|| self.source.bytes());
            let (has, received) = cells::connect(scheme, message_bytes, &self.files, bytes, &mut self.stand)?;
            settings.push(Setting { scheme, has });
            let Some(received) = received else { continue };
            ensure!(
                received == sha256,
                "{}: the receiver got SHA-256 {received}, the files have {sha256}; do they change meanwhile?",
                scheme.name()
            );
            verified.push(Verified { scheme, sha256: received });
            self.bar.inc(1);
        }
        Ok((settings, verified))
    }

    /// Runs the timed rounds of each part, its schemes in turns.
    fn measure(&mut self, parts: Vec<(Part, Vec<Scheme>)>) -> Result<(Vec<Sample>, Vec<Row>)> {
        let message_bytes = self.args.message_bytes.0 as usize;
        let bytes_min = self.source.bytes().clamp(ROUND_BYTES_MIN, ROUND_BYTES_MAX);
        let (samples, mut rows) = (Samples::default(), Vec::new());
        for (part, schemes) in parts.into_iter().filter(|_| self.args.rounds() > 0) {
            let cell = |&scheme: &Scheme| -> Box<dyn Cell> {
                Box::new(DemoCell::new(part, scheme, message_bytes, bytes_min, &self.files, &samples))
            };
            let cells = schemes.iter().map(cell).collect();
            let settings = run_settings(self.args);
            rows.extend(interleave::run("demo", cells, &settings, &mut self.stand, &self.bar)?);
        }
        Ok((samples.take(), rows))
    }
}

/// Returns the files to stream: those of the options, or large ones of this machine.
fn paths(args: &DemoArgs) -> Result<Vec<PathBuf>> {
    let found = match args.files.is_empty() {
        false => args.files.clone(),
        true if args.is_simulated() => source::find_smallest().into_iter().map(|c| c.path).collect(),
        true => source::find(ROUND_BYTES_MIN).into_iter().map(|c| c.path).collect(),
    };
    let canonical =
        |path: &PathBuf| fs::canonicalize(path).with_context(|| format!("cannot open {}", path.display()));
    found.iter().map(canonical).collect()
}

/// Returns the number of rounds of a scheme in a part, with the one that warms it up.
fn rounds_of_each(args: &DemoArgs) -> usize {
    match args.rounds() as usize {
        0 => 0,
        rounds => rounds + 1,
    }
}

/// Warns of schemes that had all their rounds discarded.
///
/// # Errors
/// A scheme did not run for another reason.
fn warn_of_discarded(rows: &[Row]) -> Result<()> {
    for row in rows {
        let Some(why) = &row.not_run else { continue };
        let reason = format!("{}, {}: {why}", row.scheme, row.params_text());
        ensure!(row.discarded > 0, "{reason}");
        eprintln!("pd: warning: {reason}; its figures are discarded");
    }
    Ok(())
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
