//! Pipes through a driver: [`frames`] and accounts, [`links`], [`policy`] and rates, deaths, [`takeover`]s, and [`hostile`] clients beside one
//! that loses no frame.
mod frames;
mod hostile;
mod links;
mod many;
mod policy;
mod takeover;

use pd_abi::pipe::{entry, entry_offset, pipe_control, DROP, FRAME_TABLE_OFFSET};
use pd_abi::pipe::{table_bytes, PipeDirection, PipeRequest, PipeUnit};
use pd_abi::{Frame, FrameKind};
use pd_client::Error;
use pd_driver::admin::{Answer, Ask, PipesReport, PortReport, PortSpec, TapOf};
use pd_pipe::{Direction, Flow, Offer, Shape, Unit};
use pd_shm::{Own, Region};
use pd_tests::{alone, Puppet, Random, Raw, TestDriver};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{fallocate, FallocateFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

const RING: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// A driver with ports. Stands run one at a time, so that none has the others' load.
struct Stand {
    driver: TestDriver,
    _alone: MutexGuard<'static, ()>,
}

impl Stand {
    fn new(ports: &[(&str, PortSpec)]) -> Self {
        let this = Self { _alone: alone(), driver: TestDriver::new() };
        for (name, port) in ports {
            this.add(name, port.clone()).unwrap();
        }
        this
    }

    fn add(&self, name: &str, port: PortSpec) -> Result<(), String> {
        done(pd_driver::admin::ask(self.driver.admin_socket(), &Ask::PortAdd { name: name.to_owned(), port }))
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        done(pd_driver::admin::ask(self.driver.admin_socket(), &Ask::PortRemove { name: name.to_owned() }))
    }

    fn report(&self) -> PipesReport {
        self.driver.pipes()
    }

    fn port(&self, name: &str) -> PortReport {
        let ports = self.report().ports;
        ports.into_iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no port {name}"))
    }

    /// Waits until the report is as wished.
    fn wait_for(&self, what: &str, wished: impl Fn(&PipesReport) -> bool) -> PipesReport {
        self.driver.wait_for_pipes(what, wished)
    }

    /// Waits until no pipe is left but `pipes`, and no memory of others.
    fn settle(&self, pipes: usize, memory_bytes: u64) {
        self.wait_for("pipes are gone", |report| report.pipes.len() == pipes);
        self.driver.wait_for("their memory is back", |report| report.memory_used_bytes <= memory_bytes);
    }
}

fn done(answer: std::io::Result<Answer>) -> Result<(), String> {
    match answer {
        Ok(Answer::Done) => Ok(()),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn gen(frames: u64) -> PortSpec {
    PortSpec::Gen { sizes: vec![64, 300, 1500], flows: 3, frames }
}

/// Reads on until the pipe ends.
fn ending(pipe: &mut Pipe) -> Errno {
    loop {
        forward(pipe);
        if let Err(errno) = pipe.wait(PATIENCE) {
            return errno;
        }
    }
}

/// Forwards all that has come and is not over.
fn forward(pipe: &mut Pipe) -> u64 {
    let mut count = 0;
    if let Ok(mut frames) = pipe.frames() {
        while frames.next().is_some() {
            count += 1;
        }
    }
    count
}

/// Request.
#[derive(Clone)]
struct Options {
    direction: Direction,
    unit: Unit,
    ports: String,
    ring_bytes: u64,
    flow: Flow,
}

impl Options {
    fn new(direction: Direction, ports: &str) -> Self {
        Self {
            direction,
            unit: Unit::Frames,
            ports: ports.to_owned(),
            ring_bytes: RING,
            flow: Flow::default(),
        }
    }

    fn bytes(direction: Direction, ports: &str) -> Self {
        Self { unit: Unit::Bytes, ..Self::new(direction, ports) }
    }
}

/// A pipe of a client of its own.
struct Pipe {
    pipe: pd_pipe::Pipe,
    number: u32,
    raw: Raw,
}

impl std::ops::Deref for Pipe {
    type Target = pd_pipe::Pipe;
    fn deref(&self) -> &pd_pipe::Pipe {
        &self.pipe
    }
}

impl std::ops::DerefMut for Pipe {
    fn deref_mut(&mut self) -> &mut pd_pipe::Pipe {
        &mut self.pipe
    }
}

impl Stand {
    fn open(&self, options: &Options) -> Result<Pipe, Error> {
        let mut raw = Raw::attach(&self.driver, 1);
        let (number, offer) = ask_for(&mut raw, options)
            .map_err(|refused| Error::with_errno(refused.errno as i32, refused.reason().to_owned()))?;
        let pipe = pd_pipe::Pipe::map(offer).unwrap();
        tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
        Ok(Pipe { pipe, number, raw })
    }
}

impl Pipe {
    /// Takes the pipe's wake-up pipe, which it uses from now on.
    fn take_wake_fd(&mut self) {
        let mut fds = tell(&mut self.raw, FrameKind::PipeWakeFd, self.number, FrameKind::PipeWakeFd).unwrap();
        self.pipe.set_wake_fd(fds.pop().unwrap()).unwrap();
    }
}

fn memory(shape: (Direction, Unit, u64)) -> u64 {
    Shape::new(shape.0, shape.1, shape.2).unwrap().memory_bytes()
}

/// Sends a client's request for a pipe by hand.
fn ask_for(raw: &mut Raw, options: &Options) -> Result<(u32, Offer), Box<Frame>> {
    let direction = match options.direction {
        Direction::Receive => PipeDirection::Receive,
        Direction::Send => PipeDirection::Send,
        Direction::Forward => PipeDirection::Forward,
    };
    let unit = if options.unit == Unit::Frames { PipeUnit::Frames } else { PipeUnit::Bytes };
    let mut request = PipeRequest::new(direction, unit, &options.ports).unwrap();
    (request.protocol, request.ports) = (options.flow.protocol, options.flow.ports);
    let frame = Frame::new(FrameKind::Pipe).with_bytes(options.ring_bytes, 0).with_pipe_request(&request);
    let (answer, fds) = raw.ask(&frame, FrameKind::Pipe).map_err(Box::new)?;
    let [status, control, ring, doorbell] = <[OwnedFd; 4]>::try_from(fds).unwrap();
    let shape = Shape::new(options.direction, options.unit, options.ring_bytes).unwrap();
    Ok((answer.id, Offer { shape, status, control, ring, doorbell }))
}

fn ask(raw: &mut Raw, direction: PipeDirection, ports: &str) -> Result<(u32, Offer), Box<Frame>> {
    let direction = match direction {
        PipeDirection::Receive => Direction::Receive,
        PipeDirection::Send => Direction::Send,
        PipeDirection::Forward => Direction::Forward,
    };
    ask_for(raw, &Options::new(direction, ports))
}

fn tell(raw: &mut Raw, kind: FrameKind, number: u32, expected: FrameKind) -> Result<Vec<OwnedFd>, i32> {
    let answer = raw.ask(&Frame::new(kind).with_id(number), expected);
    answer.map(|(_, fds)| fds).map_err(|refused| refused.errno as i32)
}
