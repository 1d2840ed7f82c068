//! The echo between two programs over two links: one has the generator, the other swaps the addresses in a copy. On the direct path the
//! agent sleeps; its share of a core stands beside.
//!
//! In the row `link` both programs look without sleeping. In the row `link-asleep` one frame is under way, and each program waits for it: by
//! the calls of the library, or in an instance of epoll that has the descriptor of its pipe.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use pd_abi::pipe::{frame_stride, BACK, PIPE_RING_BYTES_DEFAULT};
use pd_pipe::{Agent, Direction, Gen, GenCounts, Pipe, PipeId, PortId, Shape, Unit};
use pd_shm::ringer::WakeEnd;
use pd_shm::wake;
use rustix::event::{epoll, Timespec};
use serde_json::json;

use super::{generator, measure, run, swap_addresses, Cell, Nic, Used, SIZES};
use crate::row::Metrics;

const SCHEMES: [&str; 4] = ["packetised", "memif", "link-agent", "link"];
/// Ways to wait.
const SCHEMES_ASLEEP: [&str; 2] = ["link-wait", "link-epoll"];
/// Longest sleep of a program, which ends with its round.
const SLEEP_MAX: Duration = Duration::from_millis(5);
/// Frames that the generator makes in a turn.
const BURST: usize = 256;
/// Owner of all four pipes, on the direct path.
const OWNER: u64 = 1;

/// The program that has the generator.
struct Source {
    gen: Gen,
    to: Pipe,
    back: Pipe,
}

impl Nic for Source {
    fn turn(&mut self) {
        if let Ok(mut frames) = self.back.frames() {
            while let Some(frame) = frames.next() {
                self.gen.check(frame.bytes());
            }
        }
        for _ in 0..BURST {
            match self.gen.peek() {
                Some(frame) if self.to.send(frame, BACK).is_ok() => self.gen.advance(),
                _ => break,
            }
        }
        self.to.flush();
    }
    fn counts(&mut self) -> GenCounts {
        self.gen.counts()
    }
    fn notifications(&mut self) -> u64 {
        0
    }
    fn times(&mut self) -> Vec<Duration> {
        Vec::new()
    }
}

/// Swaps the addresses of frames, as many as there is room for. Returns their number.
fn echo(from: &mut Pipe, to: &mut Pipe, largest: u64) -> usize {
    let mut room = PIPE_RING_BYTES_DEFAULT - to.untaken();
    let (Ok(mut frames), true) = (from.frames(), room >= largest) else {
        std::hint::spin_loop();
        return 0;
    };
    let mut count = 0;
    while room >= largest {
        let Some(frame) = frames.next() else { break };
        let length = frame.length();
        let Ok(place) = to.place(length) else { break };
        frame.copy_to(place);
        swap_addresses(place);
        to.placed(BACK);
        room -= frame_stride(length as u16);
        count += 1;
    }
    drop(frames);
    to.flush();
    count
}

/// An agent in a thread, which sleeps with nothing to do.
struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Used>>,
}

impl Background {
    fn start(mut agent: Agent) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = thread::spawn(move || Used::by(|| agent.run(&is_over)).1);
        Self { stop, thread: Some(thread) }
    }

    fn end(&mut self) -> Option<Used> {
        self.stop.store(true, Ordering::Release);
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}

fn open(agent: &mut Agent, port: PortId, direction: Direction, owner: Option<u64>) -> Result<(PipeId, Pipe)> {
    let shape = Shape::new(direction, Unit::Frames, PIPE_RING_BYTES_DEFAULT)?;
    let (id, offer) = agent.open(shape, port, &[], None)?;
    let pipe = Pipe::map(offer)?;
    agent.seal(id)?;
    agent.set_owner(id, owner);
    Ok((id, pipe))
}

/// A program's way to wait for frames of a pipe.
enum Wait {
    /// By the library's calls.
    Calls,
    /// In this instance of epoll.
    Epoll(OwnedFd),
}

impl Wait {
    /// Makes an instance of epoll with the descriptor of a pipe.
    fn in_epoll(agent: &mut Agent, id: PipeId, pipe: &mut Pipe) -> Result<Self> {
        let (theirs, own) = wake::pair()?;
        pipe.set_wake_fd(theirs)?;
        agent.set_wake_fd(id, WakeEnd::new(own, None));
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let fd = pipe.wake_fd().context("a descriptor")?;
        epoll::add(&instance, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self::Epoll(instance))
    }

    /// Sleeps until the pipe has frames, or some time has passed. The caller looks for frames.
    fn sleep(&self, pipe: &mut Pipe) {
        match self {
            Self::Calls => _ = pipe.wait(SLEEP_MAX),
            Self::Epoll(instance) => {
                if pipe.arm() == Ok(false) {
                    let timeout = Timespec { tv_sec: 0, tv_nsec: SLEEP_MAX.subsec_nanos().into() };
                    let none = epoll::EventFlags::empty();
                    let nothing = epoll::Event { flags: none, data: epoll::EventData::new_u64(0) };
                    let _ = epoll::wait(instance, &mut [nothing], Some(&timeout));
                }
            }
        }
    }
}

/// The program that has the generator, with one frame under way.
struct Pinger {
    source: Source,
    wait: Wait,
    sent: Instant,
    times: Vec<Duration>,
}

impl Nic for Pinger {
    fn turn(&mut self) {
        let Source { gen, to, back } = &mut self.source;
        if gen.counts().made == gen.counts().returned {
            match gen.peek() {
                Some(frame) if to.send(frame, BACK).is_ok() => gen.advance(),
                _ => return,
            }
            self.sent = Instant::now();
            to.flush();
        }
        self.wait.sleep(back);
        if let Ok(mut frames) = back.frames() {
            while let Some(frame) = frames.next() {
                gen.check(frame.bytes());
                self.times.push(self.sent.elapsed());
            }
        }
    }
    fn counts(&mut self) -> GenCounts {
        self.source.counts()
    }
    fn notifications(&mut self) -> u64 {
        0
    }
    fn times(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.times)
    }
}

/// An agent with two links, and their pipes: the generator's sends, what the other program receives and sends, and what comes back.
struct Links {
    agent: Agent,
    pipes: [Pipe; 4],
    /// Of the pipes that receive.
    waits: [Wait; 2],
}

impl Links {
    fn new(is_direct: bool, in_epoll: bool) -> Result<Self> {
        let mut agent = Agent::new()?;
        let owner = is_direct.then_some(OWNER);
        let (mut pipes, mut waits) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (near, far) = agent.add_link();
            for (port, direction) in [(near, Direction::Send), (far, Direction::Receive)] {
                let (id, mut pipe) = open(&mut agent, port, direction, owner)?;
                if direction == Direction::Receive {
                    waits.push(match in_epoll {
                        true => Wait::in_epoll(&mut agent, id, &mut pipe)?,
                        false => Wait::Calls,
                    });
                }
                pipes.push((id, pipe));
            }
        }
        if is_direct {
            agent.turn();
            for (id, pipe) in &mut pipes {
                pipe.accept(&agent.peer(*id)?)?;
            }
            agent.turn();
            ensure!(pipes.iter().all(|(id, _)| agent.is_direct(*id)), "the links have no direct path");
        }
        let pipes: Vec<_> = pipes.into_iter().map(|(_, pipe)| pipe).collect();
        let (pipes, waits) = (pipes.try_into().ok(), waits.try_into().ok());
        Ok(Self { agent, pipes: pipes.context("four pipes")?, waits: waits.context("two that receive")? })
    }
}

fn largest(sizes: &[usize]) -> u64 {
    frame_stride(sizes.iter().copied().max().unwrap_or(0) as u16)
}

/// Measures one round over links.
fn measure_links(is_direct: bool, sizes: &[usize], round: Duration) -> Result<Metrics> {
    let Links { agent, pipes: [to, mut from, mut out, back], .. } = Links::new(is_direct, false)?;
    let largest = largest(sizes);
    let source = Source { gen: generator(sizes)?, to, back };
    let mut background = Background::start(agent);
    let mut metrics = run(source, move || echo(&mut from, &mut out, largest), round)?;
    let used = background.end().context("the agent panicked")?;
    metrics.insert("cpu_share_percent_agent", used.share());
    metrics.remove("packets_per_notification");
    Ok(metrics)
}

/// Measures one round over links on the direct path, with one frame under way for which both programs wait.
fn measure_asleep(in_epoll: bool, sizes: &[usize], round: Duration) -> Result<Metrics> {
    let Links { agent, pipes: [to, mut from, mut out, back], waits: [echo_wait, wait] } =
        Links::new(true, in_epoll)?;
    let largest = largest(sizes);
    let source = Source { gen: generator(sizes)?, to, back };
    let pinger = Pinger { source, wait, sent: Instant::now(), times: Vec::new() };
    let mut background = Background::start(agent);
    let program = move || {
        echo_wait.sleep(&mut from);
        echo(&mut from, &mut out, largest)
    };
    let mut metrics = run(pinger, program, round)?;
    let used = background.end().context("the agent panicked")?;
    metrics.insert("cpu_share_percent_agent", used.share());
    // A program's time for a frame is mostly sleep.
    for figure in ["packets_per_notification", "program_ns_per_packet", "program_cycles_per_packet"] {
        metrics.remove(figure);
    }
    Ok(metrics)
}

/// The rows.
pub(super) fn cells() -> [Cell; 2] {
    let (name, sizes) = SIZES[0];
    let params = |app: &str| vec![("app", json!(app)), ("frame_bytes", json!(name))];
    let busy = Cell {
        params: params("link"),
        schemes: &SCHEMES,
        measure: Box::new(move |scheme, time| match scheme {
            "link" => measure_links(true, sizes, time),
            "link-agent" => measure_links(false, sizes, time),
            _ => measure(scheme, sizes, time),
        }),
    };
    let asleep = Cell {
        params: params("link-asleep"),
        schemes: &SCHEMES_ASLEEP,
        measure: Box::new(move |scheme, time| measure_asleep(scheme == "link-epoll", sizes, time)),
    };
    [busy, asleep]
}
