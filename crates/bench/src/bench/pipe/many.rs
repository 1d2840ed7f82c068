//! Many pipes of one agent: the highest rate at which none loses a frame, as RFC 2544 has it, and the rate at overload.
//!
//! `flows` binds each pipe to a flow of its own. `hash` binds all to every frame, so that a hash spreads [`FLOWS`] flows over them. The source
//! offers numbered frames of 64 bytes by the clock, and the port loses those that it has no place for. The program checks each frame: that its
//! flow comes to this pipe alone, the order in the flow, and the bytes. Every frame offered is received once or counted as lost, else the round
//! fails.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use pd_abi::pipe::{PIPE_RING_BYTES_DEFAULT, PIPE_RING_BYTES_MIN};
use pd_pipe::{
    Agent, Device, Direction, Flow, Made, Pipe, PipeId, PortId, Route, Shape, Taken, Unit, PIPES_MAX,
};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use serde_json::json;

use super::{Cell, Used, TURNS};
use crate::row::Metrics;
use crate::settings::Settings;

const SCHEMES: [&str; 1] = ["pipe"];
/// Numbers of pipes with a flow each.
const BY_FLOW: [usize; 6] = [1, 16, 64, 256, 512, PIPES_MAX];
/// Numbers of pipes that share all flows.
const BY_HASH: [usize; 4] = [1, 2, 4, 8];
/// Flows that a hash spreads.
const FLOWS: usize = 1024;
/// Bytes of all rings, which the third-level cache holds on most processors.
const RINGS_BYTES: u64 = 32 << 20;
const FRAME_BYTES: usize = 64;
/// Offset of the UDP source port: the flow.
const FLOW: usize = 34;
/// Offset of a frame's number.
const NUMBER: usize = 42;
/// Offset of the bytes that all frames have in common.
const REST: usize = NUMBER + 8;
/// Frames that a port keeps for an agent that is late, as a NIC's ring of descriptors does.
const QUEUE: u64 = 4096;
/// Least number of frames that are made before they are read.
const AHEAD: usize = 128;
/// Steps of a search: the rate is known to 1 % of that at overload.
const STEPS: usize = 7;
/// Most trials of a rate. One without a loss is enough: a core that is taken away for a millisecond is a loss, too.
const TRIES: usize = 3;
/// Longest time in which the last frames of a trial are received.
const PATIENCE: Duration = Duration::from_secs(10);
/// Port that no flow has.
const NO_PIPE: usize = usize::MAX;

/// The number of a frame that the source offers next, and of the first that is not due.
#[derive(Debug, Default)]
struct Pace {
    next: AtomicU64,
    due: AtomicU64,
}

/// The source of the port's frames. They are made some time before the agent reads them, as a NIC does: else the agent waits for the stores.
#[derive(Debug)]
struct Source {
    /// Frames that are made, by the last digits of their numbers.
    frames: Vec<[u8; FRAME_BYTES]>,
    /// Numbers of these.
    made: Range<u64>,
    flows: u64,
    pace: Arc<Pace>,
}

impl Source {
    fn new(flows: usize, pace: Arc<Pace>) -> Self {
        Self { frames: vec![blank(); 2 * AHEAD], made: 0..0, flows: flows as u64, pace }
    }

    /// Makes frames until half of them lie behind `number`.
    #[cold]
    fn make(&mut self, number: u64) {
        let until = number + 2 * AHEAD as u64;
        let from = if self.made.contains(&number) { self.made.end } else { number };
        for number in from..until {
            let frame = &mut self.frames[number as usize % (2 * AHEAD)];
            // Port 0 would be any.
            let port = 1 + (number % self.flows) as u16;
            frame[FLOW..FLOW + 2].copy_from_slice(&port.to_be_bytes());
            frame[NUMBER..REST].copy_from_slice(&number.to_be_bytes());
        }
        self.made = number..until;
    }
}

/// Returns a frame without flow and number.
fn blank() -> [u8; FRAME_BYTES] {
    let mut frame = std::array::from_fn(|at| at as u8);
    // Ethernet, IPv4 and UDP as the port `gen` makes them.
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14..34].fill(0);
    (frame[14], frame[22], frame[23]) = (0x45, 64, 17);
    frame[26..34].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
    frame[34..42].copy_from_slice(&[0, 0, 0, 9, 0, 0, 0, 0]);
    frame
}

impl Device for Source {
    fn peek(&mut self) -> Option<&[u8]> {
        let number = self.pace.next.load(Ordering::Relaxed);
        if number >= self.pace.due.load(Ordering::Relaxed) {
            return None;
        }
        if !self.made.contains(&number) || self.made.end - number <= AHEAD as u64 {
            self.make(number);
        }
        Some(&self.frames[number as usize % (2 * AHEAD)])
    }
    fn advance(&mut self) {
        self.pace.next.store(self.pace.next.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
    fn send(&mut self, _frame: &[u8]) -> Taken {
        Taken::Lost
    }
    fn flush(&mut self) -> bool {
        false
    }
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}

/// A flow as the program has seen it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Pipe of its frames.
    pipe: usize,
    /// Least number of its next frame.
    next: u64,
}

/// Counts of the program, which the NIC's thread reads.
#[derive(Debug, Default)]
struct Received {
    frames: AtomicU64,
    wrong: AtomicU64,
}

/// The program's record of flows.
struct Record {
    seen: Vec<Seen>,
    rest: [u8; FRAME_BYTES],
}

impl Record {
    /// Makes the record of `flows`, of which each has a pipe of its own, or the one that it comes to first.
    fn new(flows: usize, is_bound: bool) -> Self {
        let seen = |flow| Seen { pipe: if is_bound { flow } else { NO_PIPE }, next: 0 };
        Self { seen: (0..flows).map(seen).collect(), rest: blank() }
    }

    /// Returns whether a frame that has come to `pipe` is one that the source has made, in its order.
    #[inline]
    fn check(&mut self, pipe: usize, bytes: &[u8]) -> bool {
        let Ok(bytes) = <&[u8; FRAME_BYTES]>::try_from(bytes) else { return false };
        let number = bytes[NUMBER..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let flow = (number % self.seen.len() as u64) as usize;
        let seen = &mut self.seen[flow];
        if seen.pipe == NO_PIPE {
            seen.pipe = pipe;
        }
        let is_next = seen.pipe == pipe && number >= seen.next;
        seen.next = number + 1;
        is_next
            && bytes[FLOW..FLOW + 2] == (1 + flow as u16).to_be_bytes()
            && bytes[..FLOW] == self.rest[..FLOW]
            && bytes[FLOW + 2..NUMBER] == self.rest[FLOW + 2..NUMBER]
            && bytes[REST..] == self.rest[REST..]
    }
}

/// Receives from all pipes in turns until `stop`. Returns the frames of each.
fn receive(mut pipes: Vec<Pipe>, mut record: Record, received: &Received, stop: &AtomicBool) -> Vec<u64> {
    let mut by_pipe = vec![0; pipes.len()];
    let (mut frames, mut wrong) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        for (at, pipe) in pipes.iter_mut().enumerate() {
            let Ok(mut announced) = pipe.frames() else { continue };
            while let Some(frame) = announced.next() {
                wrong += u64::from(!record.check(at, frame.bytes()));
                by_pipe[at] += 1;
                frames += 1;
            }
        }
        received.wrong.store(wrong, Ordering::Relaxed);
        received.frames.store(frames, Ordering::Release);
    }
    by_pipe
}

/// An agent with pipes on one port, and the source of that.
struct Nic {
    agent: Agent,
    port: PortId,
    pipes: Vec<PipeId>,
    pace: Arc<Pace>,
    received: Arc<Received>,
}

/// Frames of a trial.
struct Trial {
    offered: u64,
    lost: u64,
    time: Duration,
}

impl Nic {
    /// Makes `count` pipes, with a flow each or with all `flows`.
    fn new(count: usize, flows: usize, is_bound: bool) -> Result<(Self, Vec<Pipe>)> {
        let pace = Arc::new(Pace::default());
        let mut agent = Agent::new()?;
        let port = agent.add_device(Box::new(Source::new(flows, Arc::clone(&pace))))?;
        let most = (RINGS_BYTES / count as u64).next_power_of_two();
        let ring_bytes = most.clamp(PIPE_RING_BYTES_MIN, PIPE_RING_BYTES_DEFAULT);
        let shape = Shape::new(Direction::Receive, Unit::Frames, ring_bytes)?;
        let (mut ids, mut pipes) = (Vec::new(), Vec::new());
        for number in 0..count {
            let own = Flow { protocol: 17, ports: [1 + number as u16, 0], ..Flow::default() };
            let flow = if is_bound { own } else { Flow::default() };
            let (made, files, offer) = Made::new(shape)?;
            let id = agent.adopt(made, &Route { flow, ..Route::to(port) })?;
            pipes.push(Pipe::map(offer)?);
            ensure!(files.seal().is_ok(), "the memory of pipe {number} has holes");
            agent.start(id)?;
            ids.push(id);
        }
        let received = Arc::default();
        Ok((Self { agent, port, pipes: ids, pace, received }, pipes))
    }

    fn notifications(&self) -> u64 {
        let of = |id: &PipeId| self.agent.counts(*id).map_or(0, |counts| counts.notifications);
        self.pipes.iter().map(of).sum()
    }

    /// Returns the frames that found no place in a ring, and those for which there was no pipe.
    fn refused(&self) -> u64 {
        let counts = self.agent.port_counts(self.port);
        counts.frames_lost + counts.frames_unbound
    }

    /// Offers frames for a time, `rate` a second or as many as the agent takes, and waits until the program has received the last.
    fn offer(&mut self, rate: f64, time: Duration) -> Result<Trial> {
        let (start, first, refused) =
            (Instant::now(), self.pace.next.load(Ordering::Relaxed), self.refused());
        let (received, mut missed, mut over) = (self.received.frames.load(Ordering::Acquire), 0, false);
        let took = loop {
            let elapsed = start.elapsed();
            over |= elapsed >= time;
            let next = self.pace.next.load(Ordering::Relaxed);
            if !over {
                let due = match rate.is_finite() {
                    true => first + (rate * elapsed.as_secs_f64()) as u64,
                    false => next + QUEUE,
                };
                let late = due.saturating_sub(next).saturating_sub(QUEUE);
                missed += late;
                self.pace.next.store(next + late, Ordering::Relaxed);
                self.pace.due.store(due.max(next), Ordering::Relaxed);
            }
            let offered = self.pace.due.load(Ordering::Relaxed) - first;
            let lost = missed + self.refused() - refused;
            let here = self.received.frames.load(Ordering::Acquire) - received;
            if over && here + lost >= offered && next - first == offered {
                ensure!(here + lost == offered, "{here} received and {lost} lost of {offered}");
                break Trial { offered, lost, time: elapsed };
            }
            ensure!(elapsed < time + PATIENCE, "{here} received and {lost} lost of {offered}");
            for _ in 0..TURNS {
                self.agent.turn();
            }
        };
        ensure!(self.received.wrong.load(Ordering::Relaxed) == 0, "frames came wrong or to another pipe");
        Ok(took)
    }
}

/// Measures a round: the rate at overload, and the highest one without a loss.
fn measure(count: usize, flows: usize, is_bound: bool, round: Duration) -> Result<Metrics> {
    let (mut nic, pipes) = Nic::new(count, flows, is_bound)?;
    let (received, stop) = (Arc::clone(&nic.received), AtomicBool::new(false));
    let record = Record::new(flows, is_bound);
    let (measured, program) = thread::scope(|scope| {
        let program = scope.spawn(|| Used::by(|| receive(pipes, record, &received, &stop)));
        let measured = search(&mut nic, round);
        stop.store(true, Ordering::Relaxed);
        (measured, program.join())
    });
    let (by_pipe, used) = program.ok().context("the program panicked")?;
    let (mut metrics, nic_used) = measured?;
    let busiest = by_pipe.iter().copied().max().unwrap_or(0) as f64;
    metrics.extend([
        ("cpu_share_percent_nic", nic_used.share()),
        ("cpu_share_percent_program", used.share()),
        ("busiest_over_mean", busiest * count as f64 / by_pipe.iter().sum::<u64>().max(1) as f64),
    ]);
    Ok(metrics)
}

fn search(nic: &mut Nic, round: Duration) -> Result<(Metrics, Used)> {
    nic.offer(f64::INFINITY, round / super::WARM_UP)?;
    let notified = nic.notifications();
    let (most, used) = Used::by(|| nic.offer(f64::INFINITY, round));
    let most = most?;
    let notified = (nic.notifications() - notified).max(1) as f64;
    let received = (most.offered - most.lost) as f64;
    ensure!(received > 0.0, "no frame was received");
    let rate = received / most.time.as_secs_f64();
    let (mut low, mut high) = (0.0, rate * 1.25);
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        let (mut tries, mut has_lost) = (0, true);
        while has_lost && tries < TRIES {
            has_lost = nic.offer(middle, round)?.lost > 0;
            tries += 1;
        }
        match has_lost {
            true => high = middle,
            false => low = middle,
        }
    }
    let figures = [
        ("packets_per_s", rate),
        ("packets_per_s_without_loss", low),
        ("packets_per_notification", received / notified),
    ];
    Ok((Metrics::from(figures), used))
}

/// The rows.
pub(super) fn cells(settings: &Settings) -> Vec<Cell> {
    // Each pipe has descriptors of the agent and of the program.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    let cell = |count: usize, is_bound: bool| Cell {
        params: vec![
            ("app", json!("many")),
            ("by", json!(if is_bound { "flows" } else { "hash" })),
            ("pipes", json!(count)),
        ],
        schemes: &SCHEMES,
        measure: Box::new(move |_, round| {
            measure(count, if is_bound { count } else { FLOWS }, is_bound, round)
        }),
    };
    let by_flow = settings.pick(&BY_FLOW[..2], &BY_FLOW).into_iter().map(|count| cell(count, true));
    by_flow
        .chain(settings.pick(&BY_HASH[2..3], &BY_HASH).into_iter().map(|count| cell(count, false)))
        .collect()
}
