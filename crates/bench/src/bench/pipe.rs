//! `pipe`: a program that echoes frames, and the applications of `apps/`, over a pipe and over the packetised interface of today's NICs
//! (Ensō).
//!
//! `memif` is the packetised interface of DPDK's memif without copies: the driver's port, and the twin's program as its client.
//!
//! `link` is the echo between two programs over two links, directly; `link-agent` the same through an agent, which is a third thread.
//! `link-wait` and `link-epoll` have one frame under way, directly, for which both programs sleep by the library's calls or in epoll.
//!
//! All schemes have the same software NIC, generator and program, so that only the interface differs. The NIC copies each frame in
//! and out and checks those that come back; the echo swaps the MAC addresses of each frame. NIC and program are threads that poll.
//! The schemes take turns round by round. The program's time for a frame is that of its turns with frames, by a clock read around
//! each [`SAMPLED`]th turn.

mod apps;
mod link;
mod many;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use pd_abi::pipe::PIPE_RING_BYTES_DEFAULT;
use pd_harness::machine::clock_mhz;
use pd_harness::progress;
use pd_harness::signals::Signals;
use pd_pipe::packetised::memif::{self, MemifNic};
use pd_pipe::packetised::{self, PacketNic};
use pd_pipe::{Agent, Direction, Gen, GenCounts, Pipe, Port, Recipe, Shape, Unit};
use rustix::time::{clock_gettime, ClockId};
use serde_json::json;

use super::{Bench, Settings};
use crate::row::{Metrics, Params, Row};
use crate::run::undisturbed::undisturbed;

/// Sizes of frames: the smallest, and the simple Internet mix.
const SIZES: [(&str, &[usize]); 3] =
    [("64", &[64]), ("imix", &[64, 64, 594, 64, 64, 594, 64, 594, 64, 64, 594, 1518]), ("1518", &[1518])];
const SCHEMES: [&str; 4] = ["packetised", "memif", "pipe", "pipe-each"];
/// A part of a round that is not counted: pages and caches are filled.
const WARM_UP: u32 = 5;
/// Time after which a round without frames is an error.
const ROUND_MOST: Duration = Duration::from_secs(20);
/// Turns between two looks at the clock.
const TURNS: usize = 16;
/// Turns of the program for each timed one.
const SAMPLED: usize = 16;

/// Use of one side in a round.
struct Used {
    cpu: Duration,
    wall: Duration,
}

impl Used {
    /// Runs `work` and measures this thread's CPU time.
    fn by<R>(work: impl FnOnce() -> R) -> (R, Used) {
        let cpu = || {
            let now = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
        };
        let (start, before) = (Instant::now(), cpu());
        let result = work();
        let used = Used { cpu: cpu() - before, wall: start.elapsed() };
        (result, used)
    }

    fn share(&self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.wall.as_secs_f64()
    }
}

/// A NIC and its generator, in turns.
trait Nic: Send {
    /// Takes one turn.
    fn turn(&mut self);
    /// Returns the counts of frames made and returned.
    fn counts(&mut self) -> GenCounts;
    /// Times that the program was told of frames.
    fn notifications(&mut self) -> u64;
    /// Times that frames took to come back, if they were timed, since the last call.
    fn times(&mut self) -> Vec<Duration>;
}

struct PipeNic {
    agent: Agent,
    port: pd_pipe::PortId,
    pipe: pd_pipe::PipeId,
}

/// Returns the counts of a port. If no frames come back, those made count as returned.
fn counts(port: &Port) -> GenCounts {
    match port {
        Port::Gen(gen) => gen.counts(),
        Port::Trace(trace) => trace.counts(),
        _ => GenCounts::default(),
    }
}

fn times(port: &mut Port) -> Vec<Duration> {
    match port {
        Port::Trace(trace) => trace.take_times(),
        _ => Vec::new(),
    }
}

impl Nic for PipeNic {
    fn times(&mut self) -> Vec<Duration> {
        times(self.agent.port(self.port))
    }
    fn turn(&mut self) {
        self.agent.turn();
    }
    fn counts(&mut self) -> GenCounts {
        counts(self.agent.port(self.port))
    }
    fn notifications(&mut self) -> u64 {
        self.agent.counts(self.pipe).map_or(0, |counts| counts.notifications)
    }
}

impl Nic for PacketNic {
    fn times(&mut self) -> Vec<Duration> {
        times(self.port())
    }
    fn turn(&mut self) {
        PacketNic::turn(self);
    }
    fn counts(&mut self) -> GenCounts {
        counts(self.port())
    }
    fn notifications(&mut self) -> u64 {
        self.received()
    }
}

impl Nic for MemifNic {
    fn times(&mut self) -> Vec<Duration> {
        times(self.port())
    }
    fn turn(&mut self) {
        MemifNic::turn(self);
    }
    fn counts(&mut self) -> GenCounts {
        counts(self.port())
    }
    fn notifications(&mut self) -> u64 {
        self.received()
    }
}

fn swap_addresses(frame: &mut [u8]) {
    if let Some(addresses) = frame.first_chunk_mut::<12>() {
        addresses.rotate_left(6);
    }
}

/// Runs one turn of the program over a pipe. Returns the number of frames.
fn echo(pipe: &mut Pipe) -> usize {
    let Ok(mut frames) = pipe.frames() else {
        std::hint::spin_loop();
        return 0;
    };
    let mut count = 0;
    while let Some(mut frame) = frames.next() {
        if let Some(bytes) = frame.bytes_mut() {
            swap_addresses(bytes);
        }
        count += 1;
    }
    count
}

fn generator(sizes: &[usize]) -> Result<Gen> {
    Gen::new(Recipe { sizes: sizes.to_vec(), flows: 1, frames: 0 }).context("the recipe")
}

/// Makes an agent with a pipe on `port`.
fn open(port: Port, direction: Direction, unit: Unit, burst: Option<usize>) -> Result<(PipeNic, Pipe)> {
    let mut agent = Agent::new()?;
    if let Some(burst) = burst {
        agent.set_burst(burst);
    }
    let port = agent.add_port(port);
    let (id, offer) = agent.open(Shape::new(direction, unit, PIPE_RING_BYTES_DEFAULT)?, port, &[], None)?;
    let pipe = Pipe::map(offer)?;
    agent.seal(id)?;
    Ok((PipeNic { agent, port, pipe: id }, pipe))
}

/// Measures one round of a scheme of the echo.
fn measure(scheme: &str, sizes: &[usize], round: Duration) -> Result<Metrics> {
    let port = Port::Gen(generator(sizes)?);
    let mut each = |room: &mut [u8], length: usize| {
        swap_addresses(&mut room[..length]);
        Some(length)
    };
    match scheme {
        "packetised" => {
            let (nic, mut program) = packetised::pair(port)?;
            return run(nic, move || program.turn(&mut each), round);
        }
        "memif" => {
            let (nic, mut program) = memif::pair(port)?;
            return run(nic, move || program.turn(&mut each), round);
        }
        _ => {}
    }
    let burst = (scheme == "pipe-each").then_some(1);
    let (nic, mut pipe) = open(port, Direction::Forward, Unit::Frames, burst)?;
    run(nic, move || echo(&mut pipe), round)
}

/// Runs NIC and program for a round. If a busy machine lets no frame come back, the round is made longer.
fn run(mut nic: impl Nic, mut program: impl FnMut() -> usize + Send, round: Duration) -> Result<Metrics> {
    let (stop, is_timed) = (AtomicBool::new(false), AtomicBool::new(false));
    let (nic_side, program_side) = thread::scope(|scope| {
        let program = scope.spawn(|| time_program(&mut program, &stop, &is_timed));
        let turns = |nic: &mut dyn FnMut(), time: Duration| {
            let start = Instant::now();
            while start.elapsed() < time {
                (0..TURNS).for_each(|_| nic());
            }
            start.elapsed()
        };
        turns(&mut || nic.turn(), round / WARM_UP);
        nic.times();
        let before = (nic.counts(), nic.notifications());
        let (time, used) = Used::by(|| {
            let mut time = turns(&mut || nic.turn(), round);
            let has_figures = |nic: &mut dyn Nic| {
                is_timed.load(Ordering::Relaxed) && nic.counts().returned.0 > before.0.returned.0
            };
            while time < ROUND_MOST && !has_figures(&mut nic) {
                time += turns(&mut || nic.turn(), round);
            }
            time
        });
        let after = (nic.counts(), nic.notifications());
        stop.store(true, Ordering::Relaxed);
        ((before, after, time, used, nic.times()), program.join())
    });
    let (before, after, time, nic_used, mut times) = nic_side;
    let (program_used, program_ns) = program_side.ok().context("the program panicked")?;
    let mut metrics = rates(before, after, time)?;
    metrics.extend([
        ("cpu_share_percent_nic", nic_used.share()),
        ("cpu_share_percent_program", program_used.share()),
        ("program_ns_per_packet", program_ns),
    ]);
    times.sort_unstable();
    if let Some(last) = times.len().checked_sub(1) {
        let part = |part: f64| times[(last as f64 * part) as usize].as_secs_f64() * 1e6;
        metrics.extend([("latency_us_p50", part(0.5)), ("latency_us_p99", part(0.99))]);
    }
    if let Some(mhz) = clock_mhz() {
        metrics.insert("program_cycles_per_packet", program_ns * mhz * 1e-3);
    }
    Ok(metrics)
}

/// Runs the program until `stop`, and times one turn of several. Returns its processor time and the nanoseconds of a frame. Sets
/// `is_timed` when a turn with frames was timed.
fn time_program(
    program: &mut impl FnMut() -> usize,
    stop: &AtomicBool,
    is_timed: &AtomicBool,
) -> (Used, f64) {
    let (mut busy, mut frames) = (Duration::ZERO, 0);
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            for _ in 1..SAMPLED {
                program();
            }
            // A turn without frames says nothing.
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                let count = program();
                if count > 0 {
                    busy += start.elapsed();
                    frames += count;
                    is_timed.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
    };
    let ((), used) = Used::by(work);
    (used, busy.as_secs_f64() * 1e9 / frames.max(1) as f64)
}

/// Returns the rates between two looks at the NIC: its counts, and the notifications of the program.
fn rates(before: (GenCounts, u64), after: (GenCounts, u64), time: Duration) -> Result<Metrics> {
    ensure!(after.0.wrong == 0 && after.0.missing == 0, "frames came back wrong: {:?}", after.0);
    let frames = (after.0.returned.0 - before.0.returned.0) as f64;
    let bytes = (after.0.returned.1 - before.0.returned.1) as f64;
    ensure!(frames > 0.0, "no frame came back");
    let told = (after.1 - before.1).max(1) as f64;
    Ok(Metrics::from([
        ("packets_per_s", frames / time.as_secs_f64()),
        ("throughput_gbit_per_s", bytes * 8e-9 / time.as_secs_f64()),
        ("packets_per_notification", frames / told),
    ]))
}

/// Measures one round of a scheme.
type Measure = Box<dyn Fn(&str, Duration) -> Result<Metrics>>;

/// A row's parameters and schemes, and the measurement of a round.
struct Cell {
    params: Params,
    schemes: &'static [&'static str],
    measure: Measure,
}

/// Figures that are shown as a ratio to the packetised interface's, and the names of the ratios.
const RATIOS: [(&str, &str); 5] = [
    ("packets_per_s", "over_packetised"),
    ("program_ns_per_packet", "program_time_over_packetised"),
    ("latency_us_mean", "latency_over_packetised"),
    ("latency_us_p50", "p50_over_packetised"),
    ("latency_us_p99", "p99_over_packetised"),
];

/// Runs it.
pub fn run_all(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let echo = |(name, sizes): (&'static str, &'static [usize])| Cell {
        params: vec![("app", json!("echo")), ("frame_bytes", json!(name))],
        schemes: &SCHEMES,
        measure: Box::new(move |scheme, time| measure(scheme, sizes, time)),
    };
    let mut cells: Vec<Cell> = settings.pick(&SIZES[..1], &SIZES).into_iter().map(echo).collect();
    cells.extend(link::cells());
    cells.extend(many::cells(settings));
    cells.extend(apps::cells()?);
    let mut rows = Vec::new();
    for cell in cells.into_iter().filter(|cell| settings.wants(&cell.params)) {
        let bar = progress::bar(settings.rounds as u64);
        let mut figures: Vec<Vec<Option<Metrics>>> = vec![Vec::new(); cell.schemes.len()];
        let mut watch = settings.watch();
        for round in 0..settings.rounds {
            bar.set_message(format!("pipe: {}", cell.params[0].1));
            let mut order: Vec<usize> = (0..cell.schemes.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for scheme in order {
                signals.check()?;
                let time = Duration::from_secs_f64(settings.round_s);
                let (round, _) = undisturbed(&mut watch, || (cell.measure)(cell.schemes[scheme], time))?;
                figures[scheme].push(round);
            }
            // Ratios are those of one round.
            let base = figures[0][round].clone().filter(|_| cell.schemes[0] == SCHEMES[0]);
            for figures in figures.iter_mut().filter_map(|rounds| rounds[round].as_mut()) {
                for (figure, ratio) in RATIOS {
                    let base = base.as_ref().and_then(|base| base.get(figure));
                    if let (Some(value), Some(base)) = (figures.get(figure).copied(), base) {
                        figures.insert(ratio, value / base);
                    }
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        for (scheme, rounds) in cell.schemes.iter().zip(figures) {
            rows.push(Row::of_undisturbed(Bench::Pipe.name(), scheme, cell.params.clone(), rounds));
        }
    }
    Ok(rows)
}
