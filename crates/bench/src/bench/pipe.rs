//! `pipe`: a program that echoes frames, over a pipe and over the packetised interface of today's NICs (Ensō).
//!
//! One software NIC, one generator and one program for both, so that only the interface differs. The NIC copies each frame in and out
//! and checks what comes back; the program swaps the MAC addresses of each frame. NIC and program are threads that look without
//! sleeping. The schemes take turns round by round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use pd_abi::pipe::PIPE_RING_BYTES_DEFAULT;
use pd_harness::measure::cores::Watch;
use pd_harness::progress;
use pd_harness::signals::Signals;
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
const SCHEMES: [&str; 3] = ["packetised", "pipe", "pipe-each"];
/// A part of a round that is not counted: pages and caches are filled.
const WARM_UP: u32 = 5;
/// Turns between two looks at the clock.
const TURNS: usize = 16;

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
    /// One turn.
    fn turn(&mut self);
    /// Counts of what was made, and of what came back.
    fn counts(&mut self) -> GenCounts;
    /// Times that the program was told of frames.
    fn notifications(&mut self) -> u64;
}

struct PipeNic {
    agent: Agent,
    port: pd_pipe::PortId,
    pipe: pd_pipe::PipeId,
}

impl Nic for PipeNic {
    fn turn(&mut self) {
        self.agent.turn();
    }
    fn counts(&mut self) -> GenCounts {
        match self.agent.port(self.port) {
            Port::Gen(gen) => gen.counts(),
            _ => GenCounts::default(),
        }
    }
    fn notifications(&mut self) -> u64 {
        self.agent.counts(self.pipe).map_or(0, |counts| counts.notifications)
    }
}

impl Nic for PacketNic {
    fn turn(&mut self) {
        PacketNic::turn(self);
    }
    fn counts(&mut self) -> GenCounts {
        match self.port() {
            Port::Gen(gen) => gen.counts(),
            _ => GenCounts::default(),
        }
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

/// The program over a pipe: one turn.
fn echo(pipe: &mut Pipe) {
    let Ok(mut frames) = pipe.frames() else { return std::hint::spin_loop() };
    while let Some(mut frame) = frames.next() {
        if let Some(bytes) = frame.bytes_mut() {
            swap_addresses(bytes);
        }
    }
}

fn generator(sizes: &[usize]) -> Result<Gen> {
    Gen::new(Recipe { sizes: sizes.to_vec(), flows: 1, frames: 0 }).context("the recipe")
}

/// One round of a scheme.
fn measure(scheme: &str, sizes: &[usize], round: Duration) -> Result<Metrics> {
    if scheme == "packetised" {
        let (nic, mut program) = packetised::pair(Port::Gen(generator(sizes)?))?;
        let mut each = |room: &mut [u8], length: usize| {
            swap_addresses(&mut room[..length]);
            Some(length)
        };
        let program = move || {
            program.turn(&mut each);
        };
        return run(nic, program, round);
    }
    let mut agent = Agent::new()?;
    if scheme == "pipe-each" {
        agent.set_burst(1);
    }
    let port = agent.add_port(Port::Gen(generator(sizes)?));
    let shape = Shape::new(Direction::Forward, Unit::Frames, PIPE_RING_BYTES_DEFAULT)?;
    let (id, offer) = agent.open(shape, port, &[], None)?;
    let mut pipe = Pipe::map(offer)?;
    agent.seal(id)?;
    run(PipeNic { agent, port, pipe: id }, move || echo(&mut pipe), round)
}

/// Has NIC and program take their turns for a round.
fn run(mut nic: impl Nic, mut program: impl FnMut() + Send, round: Duration) -> Result<Metrics> {
    let stop = AtomicBool::new(false);
    let (nic_side, program_side) = thread::scope(|scope| {
        let program = scope.spawn(|| {
            let work = || {
                while !stop.load(Ordering::Relaxed) {
                    program();
                }
            };
            Used::by(work).1
        });
        let turns = |nic: &mut dyn FnMut(), time: Duration| {
            let start = Instant::now();
            while start.elapsed() < time {
                (0..TURNS).for_each(|_| nic());
            }
            start.elapsed()
        };
        turns(&mut || nic.turn(), round / WARM_UP);
        let before = (nic.counts(), nic.notifications());
        let (time, used) = Used::by(|| turns(&mut || nic.turn(), round));
        let after = (nic.counts(), nic.notifications());
        stop.store(true, Ordering::Relaxed);
        ((before, after, time, used), program.join())
    });
    let (before, after, time, nic_used) = nic_side;
    let program_used = program_side.ok().context("the program panicked")?;
    ensure!(after.0.wrong == 0 && after.0.missing == 0, "frames came back wrong: {:?}", after.0);
    let frames = (after.0.returned.0 - before.0.returned.0) as f64;
    let bytes = (after.0.returned.1 - before.0.returned.1) as f64;
    ensure!(frames > 0.0, "no frame came back");
    let told = (after.1 - before.1).max(1) as f64;
    Ok(Metrics::from([
        ("packets_per_s", frames / time.as_secs_f64()),
        ("throughput_gbit_per_s", bytes * 8e-9 / time.as_secs_f64()),
        ("packets_per_notification", frames / told),
        ("cpu_share_percent_nic", nic_used.share()),
        ("cpu_share_percent_program", program_used.share()),
    ]))
}

/// Runs it.
pub fn run_all(settings: &Settings, signals: &Signals) -> Result<Vec<Row>> {
    let sizes = settings.pick(&SIZES[..1], &SIZES);
    let mut rows = Vec::new();
    for (name, sizes) in sizes {
        let params: Params = vec![("frame_bytes", json!(name))];
        if !settings.wants(&params) {
            continue;
        }
        let bar = progress::bar(settings.rounds as u64);
        let mut figures: Vec<Vec<Option<Metrics>>> = vec![Vec::new(); SCHEMES.len()];
        let mut watch = Watch::default();
        for round in 0..settings.rounds {
            bar.set_message(format!("pipe: frames of {name} bytes"));
            let mut order: Vec<usize> = (0..SCHEMES.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for scheme in order {
                signals.check()?;
                let time = Duration::from_secs_f64(settings.round_s);
                let (round, _) = undisturbed(&mut watch, || measure(SCHEMES[scheme], sizes, time))?;
                figures[scheme].push(round);
            }
            // Ratios are those of one round.
            let base = figures[0][round].as_ref().map(|figures| figures["packets_per_s"]);
            for rounds in &mut figures {
                if let (Some(figures), Some(base)) = (&mut rounds[round], base) {
                    let ratio = figures["packets_per_s"] / base;
                    figures.insert("over_packetised", ratio);
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        for (scheme, rounds) in SCHEMES.iter().zip(figures) {
            rows.push(Row::of_undisturbed(Bench::Pipe.name(), scheme, params.clone(), rounds));
        }
    }
    Ok(rows)
}
