//! Pipes through a driver: frames, accounts, policy, rates, deaths, and hostile clients beside one that loses no frame.
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

#[test]
fn frames_come_back_whole_and_are_on_the_accounts() {
    let stand = Stand::new(&[("wan", gen(5000)), ("drain", PortSpec::Sink)]);
    let options = Options::new(Direction::Forward, "wan,drain");
    let mut pipe = stand.open(&options).unwrap();
    let expected = memory((Direction::Forward, Unit::Frames, RING));
    assert_eq!(stand.driver.report().memory_used_bytes, expected);
    let mut number = 0;
    while number < 5000 {
        pipe.wait(PATIENCE).unwrap();
        let mut frames = pipe.frames().unwrap();
        while let Some(mut frame) = frames.next() {
            match number % 5 {
                3 => frame.verdict(DROP),
                4 => frame.verdict(1),
                _ => {}
            }
            number += 1;
        }
    }
    let report = stand.wait_for("all is delivered", |report| {
        let of = |name: &str| report.ports.iter().find(|port| port.name == name).unwrap().frames_sent;
        (of("wan"), of("drain")) == (3000, 1000)
    });
    assert_eq!((stand.port("wan").frames_received, stand.port("wan").frames_wrong), (5000, 0));
    let [pipe_report] = &report.pipes[..] else { panic!("{report:?}") };
    let counts = pipe_report.counts;
    assert_eq!((counts.frames_received, counts.frames_sent, counts.frames_dropped), (5000, 4000, 1000));
    assert_eq!(pipe_report.ports, ["wan", "drain"]);
    // Nothing comes any more.
    assert_eq!(pipe.wait(Duration::from_millis(1)), Err(Errno::AGAIN));
    drop(pipe);
    stand.settle(0, 0);
    let [tenant] = &stand.report().tenants[..] else { panic!("{report:?}") };
    assert_eq!((tenant.pipes_open, tenant.pipes_opened, tenant.counts), (0, 1, counts));
}

#[test]
fn a_link_carries_frames_and_bytes_and_a_program_waits_in_poll() {
    let stand = Stand::new(&[("wire", PortSpec::Link), ("cable", PortSpec::Link)]);
    let receive = Options::new(Direction::Receive, "wire.1");
    let mut receiver = stand.open(&receive).unwrap();
    let mut sender = stand.open(&Options::new(Direction::Send, "wire.0")).unwrap();
    receiver.take_wake_fd();
    for number in 0..2000u32 {
        let frame = [&[7; 14][..], &number.to_ne_bytes(), &[9; 50]].concat();
        while sender.send(&frame, 0).is_err() {
            sender.wait_room(RING / 2, PATIENCE).unwrap();
        }
        sender.flush();
        if number % 100 == 0 {
            // Each time from a sleep.
            let mut got = 0;
            while got == 0 {
                if !receiver.arm().unwrap() {
                    let fd = receiver.wake_fd().unwrap();
                    let patience = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
                    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)), Ok(1));
                }
                got = forward(&mut receiver);
            }
        }
        forward(&mut receiver);
    }
    sender.wait_room(RING, PATIENCE).unwrap();
    stand.wait_for("all is received", |report| {
        report.ports.iter().any(|port| port.name == "wire.1" && port.frames_received == 2000)
    });
    let mut stream = stand.open(&Options::bytes(Direction::Send, "cable.0")).unwrap();
    let mut sink = stand.open(&Options::bytes(Direction::Receive, "cable.1")).unwrap();
    stream.send(b"hello, pipe", 0).unwrap();
    stream.flush();
    sink.wait(PATIENCE).unwrap();
    assert_eq!(sink.peek().unwrap(), b"hello, pipe");
    // A second end of a stream, and a frame pipe on a port of bytes.
    let open = |options: &Options| stand.open(options).map(drop).unwrap_err().errno();
    assert_eq!(open(&Options::bytes(Direction::Receive, "cable.1")), libc::EADDRINUSE);
    assert_eq!(open(&Options::new(Direction::Receive, "cable.1")), libc::EINVAL);
    assert_eq!(open(&Options::new(Direction::Receive, "nowhere")), libc::ENOENT);
    assert_eq!(
        open(&Options { ring_bytes: 5000, ..Options::new(Direction::Receive, "wire.1") }),
        libc::EINVAL
    );
    // Pipes end with their port.
    stand.remove("wire").unwrap();
    assert_eq!(ending(&mut receiver), Errno::NODEV);
    assert!(stand.remove("wire").is_err() && stand.remove("cable.0").is_err());
    assert!(stand.add("cable", PortSpec::Sink).is_err() && stand.add("a.b", PortSpec::Sink).is_err());
    drop((sender, receiver, stream, sink));
    stand.settle(0, 0);
}

#[test]
fn the_policy_says_who_has_pipes_and_what_their_frames_come_from() {
    let stand = Stand::new(&[("wire", PortSpec::Link), ("wan", gen(0))]);
    let open = |direction, port| stand.open(&Options::new(direction, port));
    let mut before = open(Direction::Receive, "wan").unwrap();
    stand.driver.apply("default = \"deny\"");
    assert_eq!(ending(&mut before), Errno::ACCESS);
    let denied = open(Direction::Receive, "wan").map(drop).unwrap_err();
    assert_eq!((denied.errno(), denied.message().contains("[[bind]]")), (libc::EACCES, true), "{denied}");
    // Without a binding, a port that does not exist looks like one that does.
    assert_eq!(open(Direction::Receive, "nowhere").map(drop).unwrap_err().errno(), libc::EACCES);
    let lease = "mac = \"02:00:00:00:00:07\"\nipv4 = \"10.0.0.7\"";
    stand.driver.apply(&format!(
        "[[bind]]\nport = \"wire.0\"\n{lease}\n[[bind]]\nport = \"wire.1\"\nprotocol = \"udp\"\nl4_port = 53"
    ));
    assert_eq!(open(Direction::Receive, "wire.1").map(drop).unwrap_err().errno(), libc::EACCES);
    let dns = Flow { protocol: 17, ports: [0, 53], ..Flow::default() };
    let receive = Options { flow: dns, ..Options::new(Direction::Receive, "wire.1") };
    let (mut sender, mut receiver) =
        (open(Direction::Send, "wire.0").unwrap(), stand.open(&receive).unwrap());
    let mut frame = [0u8; 64];
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    (frame[23], frame[37]) = (17, 53);
    frame[26..30].copy_from_slice(&[10, 0, 0, 7]);
    let (mut forged, mut other) = (frame, frame);
    (forged[29], other[37]) = (8, 54);
    for bytes in [&forged, &other, &frame] {
        sender.send(bytes, 0).unwrap();
    }
    sender.flush();
    receiver.wait(PATIENCE).unwrap();
    assert_eq!(receiver.frames().unwrap().next().unwrap().bytes(), frame);
    let report = stand.wait_for("all is judged", |report| {
        report.pipes.iter().any(|pipe| pipe.direction == "send" && pipe.counts.frames_sent == 1)
    });
    let counts = report.pipes.iter().find(|pipe| pipe.direction == "send").unwrap().counts;
    assert_eq!((counts.frames_refused, counts.frames_unbound), (1, 1));
    drop((before, sender, receiver));
    stand.settle(0, 0);
}

/// Two processes of one tenant on a link. Frames go directly while nothing needs the agent, and none is lost, doubled or changed when
/// something does.
#[test]
fn a_link_goes_directly_between_processes_while_nothing_needs_the_agent() {
    goes_directly("pipe-number", "pipe-check");
}

/// Programs sleep in the kernel's epoll: both of them, and each beside one that waits by its calls.
#[test]
fn a_link_goes_directly_between_processes_in_epoll() {
    goes_directly("pipe-number-in-epoll", "pipe-check-in-epoll");
    goes_directly("pipe-number-in-epoll", "pipe-check");
    goes_directly("pipe-number", "pipe-check-in-epoll");
}

/// Lines of streams of bytes come whole and in order.
#[test]
fn a_link_of_bytes_goes_directly_between_processes_while_nothing_needs_the_agent() {
    goes_directly("pipe-lines", "pipe-lines-check");
    goes_directly("pipe-lines-in-epoll", "pipe-lines-check-in-epoll");
}

fn goes_directly(sends: &str, checks: &str) {
    let stand = Stand::new(&[("wire", PortSpec::Link)]);
    let start = |what, port| {
        let mut puppet = Puppet::new(stand.driver.peer(&[what, port]));
        assert_eq!(puppet.line(), "ready");
        puppet
    };
    let goes = |path: &str| {
        let before = stand.port("wire.1").bytes_received;
        stand.wait_for(path, |report| {
            let is_so = report.pipes.iter().all(|pipe| pipe.ended.is_none() && pipe.path == path);
            let port = |name: &str| report.ports.iter().find(|port| port.name == name).unwrap();
            let ports = [port("wire.0"), port("wire.1")];
            is_so
                && report.pipes.len() == 2
                && ports.iter().all(|port| port.path == path)
                && port("wire.1").bytes_received > before + 1_600_000
        })
    };
    let mut receiver = start(checks, "wire.1");
    let mut sender = start(sends, "wire.0");
    let report = goes("direct");
    // Accounts of both agree.
    let of = |direction: &str| report.pipes.iter().find(|pipe| pipe.direction == direction).unwrap().counts;
    assert_eq!(of("send").frames_sent, of("receive").frames_received);
    assert_eq!(of("send").bytes_sent, of("receive").bytes_received);
    for name in ["wire.0", "wire.1"] {
        let of = TapOf::Port { name: name.to_owned() };
        let Ok(mut tap) = pd_driver::admin::tap(stand.driver.admin_socket(), of, 64) else {
            assert!(sends.starts_with("pipe-lines"), "frames can be observed");
            continue;
        };
        goes("agent");
        tap.records.wait(PATIENCE).unwrap();
        drop(tap);
        goes("direct");
    }
    stand.add("copy", PortSpec::Mirror { of: "wire.1".to_owned() }).unwrap();
    goes("agent");
    stand.remove("copy").unwrap();
    goes("direct");
    stand.driver.apply(
        "[[tenant]]\nname = \"default\"\nrate = { messages_per_second = 1000000, burst_messages = 50000 }",
    );
    goes("agent");
    stand.driver.apply("");
    goes("direct");
    // Deaths, of either, at any moment.
    let mut random = Random(31);
    for turn in 0..20 {
        let (dead, what, port) = match turn % 2 {
            0 => (&mut receiver, checks, "wire.1"),
            _ => (&mut sender, sends, "wire.0"),
        };
        std::thread::sleep(Duration::from_micros(random.below(10_000)));
        dead.kill();
        *dead = start(what, port);
        if turn % 5 == 4 {
            goes("direct");
        }
    }
    receiver.kill();
    stand.wait_for("the sender is alone", |report| {
        report.pipes.len() == 1 && report.pipes[0].ended.is_none() && report.pipes[0].path == "agent"
    });
    sender.kill();
    drop((receiver, sender));
    stand.settle(0, 0);
}

/// At any time: no more than the burst, the rate's worth of the time, and a lease.
#[test]
fn a_tenant_sends_no_faster_than_its_rate() {
    let stand = Stand::new(&[("drain", PortSpec::Sink)]);
    stand.driver.apply(
        "[[tenant]]\nname = \"default\"\nrate = { messages_per_second = 20000, burst_messages = 2000 }",
    );
    let start = Instant::now();
    let mut pipes: Vec<_> =
        (0..2).map(|_| stand.open(&Options::new(Direction::Send, "drain")).unwrap()).collect();
    for _ in 0..2500 {
        for pipe in &mut pipes {
            while pipe.send(&[1; 64], 0).is_err() {
                pipe.wait_room(64, PATIENCE).unwrap();
            }
        }
    }
    pipes.iter_mut().for_each(|pipe| pipe.wait_room(RING, PATIENCE).unwrap());
    let took = start.elapsed();
    assert_eq!(stand.port("drain").frames_sent, 5000);
    let most = 2000.0 + 20000.0 * took.as_secs_f64() + 200.0;
    assert!(5000.0 <= most, "5000 frames in {took:?}");
    let policy = stand.driver.policy();
    assert!(policy.tenants.iter().any(|tenant| tenant.rate_waits > 0), "{policy:?}");
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

/// A pipe on a generator that never ends, in a process of its own, which forwards each frame.
struct Innocent {
    _process: Puppet,
}

impl Innocent {
    fn start(stand: &Stand) -> Self {
        stand.add("innocent", gen(0)).unwrap();
        let mut puppet = Puppet::new(stand.driver.peer(&["pipe-forward", "innocent"]));
        assert_eq!(puppet.line(), "ready");
        Self { _process: puppet }
    }

    /// Frames have come back since, and none was lost, doubled or changed.
    fn check(&self, stand: &Stand) {
        let before = stand.port("innocent").frames_sent;
        let goes_on = |report: &PipesReport| {
            report.ports.iter().any(|port| port.name == "innocent" && port.frames_sent > before + 1000)
        };
        stand.wait_for("the innocent pipe goes on", goes_on);
        let port = stand.port("innocent");
        assert_eq!((port.frames_wrong, port.frames_missing), (0, 0));
    }
}

#[test]
fn a_client_that_hangs_up_at_any_step_leaves_nothing() {
    let stand = Stand::new(&[("wan", gen(0)), ("wire", PortSpec::Link)]);
    let innocent = Innocent::start(&stand);
    let memory = stand.driver.report().memory_used_bytes;
    for direction in [PipeDirection::Receive, PipeDirection::Send, PipeDirection::Forward] {
        for step in 0..7 {
            let mut raw = Raw::attach(&stand.driver, 1);
            let request = PipeRequest::new(direction, PipeUnit::Frames, "wan,wire.0").unwrap();
            if step == 0 {
                let frame = Frame::new(FrameKind::Pipe).with_bytes(RING, 0).with_pipe_request(&request);
                pd_tests::send_frame(&raw.socket, &frame).unwrap();
                continue;
            }
            let (number, offer) = ask(&mut raw, direction, "wan,wire.0").unwrap();
            if step == 1 {
                continue;
            }
            let mut pipe = pd_pipe::Pipe::map(offer).unwrap();
            if step == 2 {
                pd_tests::send_frame(&raw.socket, &Frame::new(FrameKind::PipeMapped).with_id(number))
                    .unwrap();
                continue;
            }
            tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
            if step == 4 {
                tell(&mut raw, FrameKind::PipeWakeFd, number, FrameKind::PipeWakeFd).unwrap();
                assert_eq!(
                    tell(&mut raw, FrameKind::PipeWakeFd, number, FrameKind::PipeWakeFd).err(),
                    Some(libc::EEXIST)
                );
            }
            if step >= 5 {
                match direction {
                    PipeDirection::Send => {
                        // Nobody receives there: the frame waits for ever.
                        pipe.send(&[1; 64], 1).unwrap();
                        pipe.flush();
                    }
                    _ => pipe.wait(Duration::from_secs(20)).unwrap(),
                }
            }
            if step == 6 {
                tell(&mut raw, FrameKind::PipeClose, number, FrameKind::Ready).unwrap();
                // Memory that it kept mapped stays on its account until it lets go.
                assert!(stand.driver.report().memory_used_bytes > memory);
            }
        }
        stand.settle(1, memory);
    }
    innocent.check(&stand);
}

#[test]
fn killed_clients_leave_nothing_and_cost_no_other_a_frame() {
    let stand = Stand::new(&[("wan", gen(0))]);
    let innocent = Innocent::start(&stand);
    let memory = stand.driver.report().memory_used_bytes;
    let mut random = Random(29);
    for _ in 0..25 {
        let mut child = stand.driver.peer(&["pipe-forward", "wan"]);
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    stand.settle(1, memory);
    let port = stand.port("wan");
    assert_eq!(port.frames_wrong, 0);
    innocent.check(&stand);
    assert!(stand.driver.is_running());
}

#[test]
fn impossible_words_end_their_pipe_and_no_other() {
    let stand = Stand::new(&[("wan", gen(0)), ("drain", PortSpec::Sink)]);
    let innocent = Innocent::start(&stand);
    let memory = stand.driver.report().memory_used_bytes;
    let mut raw = Raw::attach(&stand.driver, 1);
    use PipeDirection::{Forward, Receive, Send};
    let words = [(Receive, pipe_control::RECV_CONSUMER), (Send, pipe_control::SEND_PRODUCER)];
    let mut cut_off = 0;
    for (direction, word) in [words[0], words[1], (Forward, pipe_control::SEND_PRODUCER)] {
        for value in [1, 63, RING + 64, u64::MAX, 1 << 63, 128] {
            let port = if direction == Send { "drain" } else { "wan" };
            let (number, offer) = ask(&mut raw, direction, port).unwrap();
            let bytes = FRAME_TABLE_OFFSET + table_bytes(RING);
            let control = Region::<Own>::new(&offer.control, bytes).unwrap();
            let doorbell = offer.doorbell.try_clone().unwrap();
            let mut pipe = pd_pipe::Pipe::map(offer).unwrap();
            tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
            if value == 128 {
                // In range: the fault is in the table, which a receiver does not have.
                if direction == Receive {
                    tell(&mut raw, FrameKind::PipeClose, number, FrameKind::Ready).unwrap();
                    continue;
                }
                if direction == Forward {
                    pipe.wait(Duration::from_secs(20)).unwrap();
                }
                control.store_u32(entry_offset(0, RING), entry(u16::MAX, 9), Ordering::Relaxed);
            }
            control.store_u64(word, value, Ordering::Release);
            rustix::io::write(&doorbell, &1u64.to_ne_bytes()).unwrap();
            cut_off += 1;
            let until = Instant::now() + PATIENCE;
            let ended = loop {
                let now = match direction {
                    Send => pipe.place(64).map(drop),
                    _ => pipe.wait_more(Duration::from_millis(5)),
                };
                match now {
                    Err(Errno::AGAIN | Errno::NOBUFS) | Ok(()) if Instant::now() < until => {}
                    other => break other,
                }
            };
            assert_eq!(ended, Err(Errno::PROTO), "{direction:?} {value}");
            tell(&mut raw, FrameKind::PipeClose, number, FrameKind::Ready).unwrap();
        }
    }
    // Pages taken away before the seal.
    let (number, offer) = ask(&mut raw, Send, "drain").unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&offer.ring, hole, 4096, 4096).unwrap();
    drop(offer);
    assert_eq!(tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).err(), Some(libc::EPROTO));
    let tenants = stand.report().tenants;
    assert_eq!(tenants.iter().map(|tenant| tenant.pipes_cut_off).sum::<u64>(), cut_off);
    drop(raw);
    stand.settle(1, memory);
    innocent.check(&stand);
}

/// Receivers that never look: on links, by the agent and directly, on a mirror and on a generator. Frames of others go on, and memory stays as it is.
#[test]
fn a_program_that_never_looks_holds_up_no_port_but_its_own() {
    let link = PortSpec::Link;
    let ports = [("a", link.clone()), ("b", link.clone()), ("live", link), ("wan", gen(0))];
    let stand = Stand::new(&ports);
    stand.add("copy", PortSpec::Mirror { of: "live.1".to_owned() }).unwrap();
    stand.driver.apply("[[bind]]\nmirror = true");
    let innocent = Innocent::start(&stand);
    // With a second sender frames of that link go by the agent.
    let idle = ["a.1", "b.1", "copy", "wan"]
        .map(|port| stand.open(&Options::new(Direction::Receive, port)).unwrap());
    let mut blocked =
        ["a.0", "b.0", "b.0"].map(|port| stand.open(&Options::new(Direction::Send, port)).unwrap());
    let mut receiver = stand.open(&Options::new(Direction::Receive, "live.1")).unwrap();
    let mut sender = stand.open(&Options::new(Direction::Send, "live.0")).unwrap();
    let memory = stand.driver.report().memory_used_bytes;
    for pipe in &mut blocked {
        let until = Instant::now() + PATIENCE;
        while pipe.wait_room(64, Duration::from_millis(100)).is_ok() {
            assert!(Instant::now() < until, "a sender whose frames nobody takes waits");
            while pipe.send(&[3; 64], 0).is_ok() {}
        }
    }
    let mut got = 0;
    for _ in 0..40 {
        for _ in 0..500 {
            while sender.send(&[7; 64], 0).is_err() {
                sender.flush();
                receiver.wait(PATIENCE).unwrap();
                got += forward(&mut receiver);
            }
        }
        sender.flush();
    }
    while got < 20_000 {
        receiver.wait(PATIENCE).unwrap();
        got += forward(&mut receiver);
    }
    innocent.check(&stand);
    let report = stand.report();
    let of = |port: &str| {
        report.pipes.iter().find(|pipe| pipe.ports[0] == port && pipe.direction == "receive").unwrap()
    };
    // Frames for which a mirror has no room are lost and counted. Those of a link wait.
    assert!(of("copy").counts.frames_lost >= 20_000 - 2 * RING / 64, "{:?}", of("copy"));
    for port in ["a.1", "b.1", "wan", "live.1"] {
        assert_eq!((of(port).counts.frames_lost, of(port).ended.as_ref()), (0, None), "{port}");
    }
    assert_eq!(stand.driver.report().memory_used_bytes, memory);
    drop((idle, blocked, sender, receiver));
}

/// A program tries to write what the agent alone writes: by its descriptors, by new ones, and through its read-only mapping.
#[test]
fn what_the_agent_writes_stays_as_it_is_whatever_a_program_tries() {
    use rustix::fs::{fcntl_add_seals, ftruncate, open, Mode, OFlags, SealFlags};
    use std::os::fd::AsRawFd;
    let stand = Stand::new(&[("wire", PortSpec::Link)]);
    let mut sender = stand.open(&Options::new(Direction::Send, "wire.0")).unwrap();
    let mut raw = Raw::attach(&stand.driver, 1);
    let (number, offer) = ask(&mut raw, PipeDirection::Receive, "wire.1").unwrap();
    let copies = [&offer.status, &offer.ring].map(|fd| fd.try_clone().unwrap());
    let mut pipe = pd_pipe::Pipe::map(offer).unwrap();
    tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
    for fd in &copies {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = open(&*path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        for fd in [Some(fd.try_clone().unwrap()), again.ok()].into_iter().flatten() {
            assert!(Region::<Own>::new(&fd, 4096).is_err() && rustix::io::pwrite(&fd, &[9], 0).is_err());
            assert!(ftruncate(&fd, 0).is_err() && fcntl_add_seals(&fd, SealFlags::WRITE).is_err());
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            assert!(fallocate(&fd, hole, 0, 4096).is_err());
        }
    }
    sender.send(&[5; 64], 0).unwrap();
    sender.flush();
    pipe.wait(PATIENCE).unwrap();
    let mut frames = pipe.frames().unwrap();
    let frame = frames.next().unwrap();
    let memory = open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    assert!(rustix::io::pwrite(&memory, &[9], frame.as_ptr() as u64).is_err());
    assert_eq!(frame.bytes(), [5; 64]);
}

/// Policy and ports change while a client maps its memory. It is told so, and not cut off.
#[test]
fn a_pipe_that_ends_while_it_is_opened_is_refused_with_the_reason() {
    let stand = Stand::new(&[("wire", PortSpec::Link), ("drain", PortSpec::Sink)]);
    let innocent = Innocent::start(&stand);
    let memory = stand.driver.report().memory_used_bytes;
    let mut raw = Raw::attach(&stand.driver, 1);
    let (number, offer) = ask(&mut raw, PipeDirection::Receive, "wire.1").unwrap();
    let pipe = pd_pipe::Pipe::map(offer).unwrap();
    stand.driver.apply("[[bind]]\nport = [\"innocent\", \"wire.0\", \"drain\"]");
    let refused = raw.ask(&Frame::new(FrameKind::PipeMapped).with_id(number), FrameKind::Ready).unwrap_err();
    assert_eq!(refused.errno as i32, libc::EACCES);
    assert!(refused.reason().contains("[[bind]]"), "{}", refused.reason());
    assert_eq!(pipe.ended(), Some(Errno::ACCESS));
    let (number, offer) = ask(&mut raw, PipeDirection::Receive, "wire.0").unwrap();
    stand.remove("wire").unwrap();
    assert_eq!(tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).err(), Some(libc::ENODEV));
    drop((pipe, offer));
    stand.settle(1, memory);
    let (number, offer) = ask(&mut raw, PipeDirection::Send, "drain").unwrap();
    drop(pd_pipe::Pipe::map(offer).unwrap());
    tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
    tell(&mut raw, FrameKind::PipeClose, number, FrameKind::Ready).unwrap();
    innocent.check(&stand);
}

/// Any frames about pipes in any order: each is answered or refused, or ends the client.
#[test]
fn frames_about_pipes_in_any_order_do_no_harm() {
    let stand = Stand::new(&[("wan", gen(0)), ("wire", PortSpec::Link)]);
    let innocent = Innocent::start(&stand);
    let memory = stand.driver.report().memory_used_bytes;
    let mut random = Random(2029);
    for _ in 0..60 {
        let raw = Raw::attach(&stand.driver, 1);
        for _ in 0..1 + random.below(8) {
            let kinds = [
                FrameKind::Pipe,
                FrameKind::PipeMapped,
                FrameKind::PipeWakeFd,
                FrameKind::PipePeer,
                FrameKind::PipeClose,
            ];
            let kind = kinds[random.below(5) as usize];
            let mut frame = Frame::new(kind).with_id(random.below(4) as u32);
            let names = ["wan", "wire.0", "wire.1", "wan,wire.0", "", ",", "no"][random.below(7) as usize];
            let direction = [PipeDirection::Receive, PipeDirection::Send, PipeDirection::Forward];
            let request =
                PipeRequest::new(direction[random.below(3) as usize], PipeUnit::Frames, names).unwrap();
            frame = frame
                .with_pipe_request(&request)
                .with_bytes([RING, RING, 0, u64::MAX, 1 << 40][random.below(5) as usize], 0);
            if random.below(4) == 0 {
                for byte in &mut frame.text {
                    *byte = random.below(256) as u8;
                }
            }
            if pd_tests::send_frame(&raw.socket, &frame).is_err() {
                break;
            }
        }
    }
    stand.settle(1, memory);
    innocent.check(&stand);
    assert!(stand.driver.is_running());
}

#[test]
fn a_tenant_has_its_share_of_pipes_and_of_memory() {
    let stand = Stand::new(&[("drain", PortSpec::Sink)]);
    let mut raw = Raw::attach(&stand.driver, 1);
    let mut pipes = 0;
    let refused = loop {
        match ask(&mut raw, PipeDirection::Send, "drain") {
            Ok(_) => pipes += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused.errno as i32, pipes), (libc::EMFILE, 256), "{}", refused.reason());
    let request = PipeRequest::new(PipeDirection::Send, PipeUnit::Frames, "drain").unwrap();
    let large = Frame::new(FrameKind::Pipe).with_bytes(64 << 20, 0).with_pipe_request(&request);
    let mut other = Raw::attach(&stand.driver, 1);
    let refused = loop {
        match other.ask(&large, FrameKind::Pipe) {
            Ok(_) => {}
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.errno as i32, libc::ENOMEM, "{}", refused.reason());
    drop((raw, other));
    stand.settle(0, 0);
}

#[test]
fn pipes_end_with_the_driver() {
    let mut stand = Stand::new(&[("wire", PortSpec::Link)]);
    let mut pipe = stand.open(&Options::new(Direction::Receive, "wire.0")).unwrap();
    stand.driver.stop();
    assert_eq!(pipe.wait(PATIENCE), Err(Errno::CONNRESET));
    stand.driver.start();
    let error = stand.open(&Options::new(Direction::Receive, "wire.0")).map(drop).unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT, "{error}");
}
