//! The echo between two programs over two links: one has the generator, the other swaps the addresses in a copy. On the direct path the
//! agent sleeps; its share of a core stands beside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use pd_abi::pipe::{frame_stride, BACK, PIPE_RING_BYTES_DEFAULT};
use pd_pipe::{Agent, Direction, Gen, GenCounts, Pipe, PipeId, PortId, Shape, Unit};
use serde_json::json;

use super::{generator, measure, run, swap_addresses, Cell, Nic, Used, SIZES};
use crate::row::Metrics;

const SCHEMES: [&str; 4] = ["packetised", "memif", "link-agent", "link"];
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

/// Measures one round over links.
fn measure_links(is_direct: bool, sizes: &[usize], round: Duration) -> Result<Metrics> {
    let mut agent = Agent::new()?;
    let owner = is_direct.then_some(OWNER);
    let mut pipes = Vec::new();
    for _ in 0..2 {
        let (near, far) = agent.add_link();
        for (port, direction) in [(near, Direction::Send), (far, Direction::Receive)] {
            pipes.push(open(&mut agent, port, direction, owner)?);
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
    let mut pipes = pipes.into_iter().map(|(_, pipe)| pipe);
    let mut next = || pipes.next().context("four pipes");
    let (to, mut from, mut out, back) = (next()?, next()?, next()?, next()?);
    let largest = frame_stride(sizes.iter().copied().max().unwrap_or(0) as u16);
    let source = Source { gen: generator(sizes)?, to, back };
    let mut background = Background::start(agent);
    let mut metrics = run(source, move || echo(&mut from, &mut out, largest), round)?;
    let used = background.end().context("the agent panicked")?;
    metrics.insert("cpu_share_percent_agent", used.share());
    metrics.remove("packets_per_notification");
    Ok(metrics)
}

/// The row.
pub(super) fn cell() -> Cell {
    let (name, sizes) = SIZES[0];
    Cell {
        params: vec![("app", json!("link")), ("frame_bytes", json!(name))],
        schemes: &SCHEMES,
        measure: Box::new(move |scheme, time| match scheme {
            "link" => measure_links(true, sizes, time),
            "link-agent" => measure_links(false, sizes, time),
            _ => measure(scheme, sizes, time),
        }),
    }
}
