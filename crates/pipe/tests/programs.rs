//! An agent on a thread of its own, and programs that sleep, echo, and are killed.

use pd_abi::pipe::{BACK, PIPE_RING_BYTES_DEFAULT};
use pd_pipe::{Agent, Direction, Gen, Offer, Pcap, Pipe, PipeId, Port, PortId, Recipe, Shape, Sink, Unit};
use rustix::io::{fcntl_setfd, Errno, FdFlags};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn shape(direction: Direction, unit: Unit) -> Shape {
    Shape::new(direction, unit, PIPE_RING_BYTES_DEFAULT).unwrap()
}

fn open(agent: &mut Agent, shape: Shape, port: PortId) -> (PipeId, Pipe) {
    let (id, offer) = agent.open(shape, port, &[], None).unwrap();
    let pipe = Pipe::map(offer).unwrap();
    agent.seal(id).unwrap();
    (id, pipe)
}

fn gen(frames: u64) -> Port {
    Port::Gen(Gen::new(Recipe { sizes: vec![64, 1518, 594], flows: 4, frames }).unwrap())
}

/// Runs the agent beside `program`.
fn beside<R>(agent: &mut Agent, program: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let agent = scope.spawn(|| agent.run(&stop));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(program));
        stop.store(true, Ordering::Release);
        agent.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Echoes `frames` frames, sleeping where there are none.
fn echo(pipe: &mut Pipe, frames: u64) {
    let mut left = frames;
    while left > 0 {
        match pipe.wait(LONG) {
            Ok(()) => {}
            Err(Errno::AGAIN) => continue,
            Err(errno) => panic!("{errno}"),
        }
        let mut frames = pipe.frames().unwrap();
        while let Some(mut frame) = frames.next() {
            frame.bytes_mut().unwrap()[..6].reverse();
            left = left.saturating_sub(1);
        }
    }
}

#[test]
fn a_forwarding_program_echoes_every_frame_in_order() {
    const FRAMES: u64 = 100_000;
    let mut agent = Agent::new().unwrap();
    let port = agent.add_port(gen(FRAMES));
    let (id, mut pipe) = open(&mut agent, shape(Direction::Forward, Unit::Frames), port);
    beside(&mut agent, || echo(&mut pipe, FRAMES));
    // The frame passed on last is still to be taken.
    while agent.turn() {}
    let Port::Gen(gen) = agent.port(port) else { unreachable!() };
    let counts = gen.counts();
    assert_eq!((counts.made.0, counts.returned, counts.missing, counts.wrong), (FRAMES, counts.made, 0, 0));
    assert!(agent.counts(id).unwrap().notifications < FRAMES);
}

#[test]
fn two_programs_that_sleep_exchange_a_stream() {
    const BYTES: usize = 8 << 20;
    let mut agent = Agent::new().unwrap();
    let (near, far) = agent.add_link();
    let (_, mut from) = open(&mut agent, shape(Direction::Send, Unit::Bytes), near);
    let (_, mut to) = open(&mut agent, shape(Direction::Receive, Unit::Bytes), far);
    beside(&mut agent, || {
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut sent = 0;
                while sent < BYTES {
                    let len = (1 + sent % 10_007).min(BYTES - sent);
                    match from.place(len) {
                        Ok(place) => {
                            place.iter_mut().enumerate().for_each(|(at, byte)| *byte = (sent + at) as u8);
                            from.placed(BACK);
                            sent += len;
                        }
                        Err(Errno::AGAIN) => _ = from.wait_room(64 << 10, LONG),
                        Err(errno) => panic!("{errno}"),
                    }
                }
                from.flush();
                from.wait_room(PIPE_RING_BYTES_DEFAULT, LONG).unwrap();
            });
            let mut got = 0;
            while got < BYTES {
                if to.wait(LONG) == Err(Errno::AGAIN) {
                    continue;
                }
                let bytes = to.peek().unwrap();
                let len = bytes.len();
                assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == (got + at) as u8));
                to.done(len).unwrap();
                got += len;
            }
        });
    });
}

#[test]
fn a_capture_goes_through_a_program_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from.pcap"), folder.path().join("to.pcap"));
    let file = |path| Box::new(std::fs::File::create(path).unwrap());
    let mut capture = Pcap::new(None::<std::fs::File>, Some(file(&from))).unwrap();
    for number in 0..5000usize {
        capture.write(&vec![number as u8; 14 + number * 7 % 1500]);
    }
    capture.finish().unwrap();

    let mut agent = Agent::new().unwrap();
    let reader = std::fs::File::open(&from).unwrap();
    let port = agent.add_port(Port::Pcap(Pcap::new(Some(reader), Some(file(&to))).unwrap()));
    let (_, mut pipe) = open(&mut agent, shape(Direction::Forward, Unit::Frames), port);
    let mut left = 5000;
    while left > 0 {
        agent.turn();
        let Ok(mut frames) = pipe.frames() else { continue };
        while frames.next().is_some() {
            left -= 1;
        }
    }
    while agent.turn() {}
    let Port::Pcap(pcap) = agent.port(port) else { unreachable!() };
    assert_eq!(pcap.finish().unwrap().written, 5000);
    assert_eq!(std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
}

/// The agent does not sleep before it has come to the frame behind those that no pipe carries.
#[test]
fn a_capture_of_frames_that_no_pipe_carries_is_read_to_its_end() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut capture = Pcap::new(None::<std::fs::File>, Some(Box::new(file.reopen().unwrap()))).unwrap();
    (0..10_000).for_each(|_| capture.write(&[1; 13]));
    capture.write(&[2; 60]);
    capture.finish().unwrap();
    let mut agent = Agent::new().unwrap();
    let port = agent.add_port(Port::Pcap(Pcap::new(Some(file.reopen().unwrap()), None).unwrap()));
    let (_, mut pipe) = open(&mut agent, shape(Direction::Receive, Unit::Frames), port);
    let mut turns = 0;
    while agent.turn() {
        turns += 1;
        assert!(turns < 1000);
    }
    assert_eq!(pipe.frames().unwrap().next().unwrap().bytes(), [2; 60]);
}

/// A capture is read, not mapped: one that is cut off while it is played ends there, and one that is replaced goes on as it was.
#[test]
fn a_capture_may_be_cut_off_or_replaced_while_it_is_played() {
    const FRAMES: usize = 4000;
    for is_cut in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("played.pcap");
        let file = Box::new(std::fs::File::create(&path).unwrap());
        let mut capture = Pcap::new(None::<std::fs::File>, Some(file)).unwrap();
        (0..FRAMES).for_each(|_| capture.write(&[3; 1000]));
        capture.finish().unwrap();
        let mut played = Pcap::new(Some(std::fs::File::open(&path).unwrap()), None).unwrap();
        assert!(played.peek().is_some());
        if is_cut {
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        } else {
            let new = folder.path().join("new.pcap");
            std::fs::write(&new, b"no capture").unwrap();
            std::fs::rename(new, &path).unwrap();
        }
        let mut frames = 0;
        while played.peek().is_some_and(|frame| frame == [3; 1000]) {
            played.advance();
            frames += 1;
        }
        match is_cut {
            true => assert!(frames < FRAMES && played.finish().is_err(), "{frames}"),
            false => assert_eq!((frames, played.finish().unwrap().read), (FRAMES, FRAMES as u64)),
        }
    }
}

#[test]
fn a_program_that_sleeps_is_told_that_its_pipe_has_ended() {
    let mut agent = Agent::new().unwrap();
    let port = agent.add_port(Port::Sink(Sink::default()));
    let (near, _) = agent.add_link();
    let (receiving, mut to) = open(&mut agent, shape(Direction::Receive, Unit::Frames), near);
    let (sending, mut from) = open(&mut agent, shape(Direction::Send, Unit::Frames), port);
    while from.send(&[0; 1024], BACK).is_ok() {}
    let sleepers = [
        thread::spawn(move || to.wait(LONG)),
        thread::spawn(move || from.wait_room(PIPE_RING_BYTES_DEFAULT, LONG)),
    ];
    agent.close(receiving);
    agent.close(sending);
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap(), Err(Errno::CONNRESET));
    }
}

/// Names of the descriptors that a child inherits.
const FDS: &str = "PD_PIPE_TEST_FDS";
/// Step at which the child stops to be killed.
const STEP: &str = "PD_PIPE_TEST_STEP";

/// The program of [`a_killed_program_disturbs_no_other`]: not a test of its own.
#[test]
fn child() {
    let (Ok(fds), Ok(step)) = (std::env::var(FDS), std::env::var(STEP)) else { return };
    let mut fds = fds.split(' ').map(|fd| {
        // SAFETY: inherited for this purpose, and owned by nothing else here.
        unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) }
    });
    let mut fd = || fds.next().unwrap();
    let shape = shape(Direction::Forward, Unit::Frames);
    let offer = Offer { shape, status: fd(), control: fd(), ring: fd(), doorbell: fd() };
    let stop = |at: &str| {
        if step == at {
            println!("here: {at}");
            std::io::stdout().flush().unwrap();
            thread::sleep(LONG);
        }
    };
    stop("attached");
    let mut pipe = Pipe::map(offer).unwrap();
    println!("here: mapped");
    std::io::stdout().flush().unwrap();
    if step == "mapped" {
        thread::sleep(LONG);
    }
    while pipe.wait(LONG).is_err() {}
    let mut frames = pipe.frames().unwrap();
    let mut frame = frames.next().unwrap();
    stop("reading a frame");
    frame.bytes_mut().unwrap().fill(0xff);
    stop("changed a frame");
    while frames.next().is_some() {}
    stop("before giving back");
    drop(frames);
    stop("gave back");
    loop {
        echo(&mut pipe, 1000);
        stop("echoing");
    }
}

fn spawn_child(offer: &Offer, step: &str) -> Child {
    let fds = [&offer.status, &offer.control, &offer.ring, &offer.doorbell];
    for fd in fds {
        fcntl_setfd(fd, FdFlags::empty()).unwrap();
    }
    let numbers = fds.map(|fd| fd.as_raw_fd().to_string()).join(" ");
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .envs([(FDS, numbers.as_str()), (STEP, step)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A program is killed at each step of its life; another program of the same agent loses nothing.
#[test]
fn a_killed_program_disturbs_no_other() {
    const FRAMES: u64 = 5_000;
    for step in [
        "attached",
        "mapped",
        "reading a frame",
        "changed a frame",
        "before giving back",
        "gave back",
        "echoing",
    ] {
        let mut agent = Agent::new().unwrap();
        let (to_child, to_other) = (agent.add_port(gen(0)), agent.add_port(gen(FRAMES)));
        let (id, offer) = agent.open(shape(Direction::Forward, Unit::Frames), to_child, &[], None).unwrap();
        let (_, mut other) = open(&mut agent, shape(Direction::Forward, Unit::Frames), to_other);
        let mut child = spawn_child(&offer, step);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut until = |said: &str| {
            let said = format!("here: {said}");
            while !lines.next().expect("the child has ended").unwrap().contains(&said) {}
        };
        if step == "attached" {
            until(step);
        } else {
            until("mapped");
            agent.seal(id).unwrap();
            beside(&mut agent, || {
                if step != "mapped" {
                    until(step);
                }
            });
        }
        child.kill().unwrap();
        child.wait().unwrap();
        beside(&mut agent, || echo(&mut other, FRAMES));
        agent.close(id);
        while agent.turn() {}
        let Port::Gen(gen) = agent.port(to_other) else { unreachable!() };
        assert_eq!(
            (gen.counts().returned.0, gen.counts().missing, gen.counts().wrong),
            (FRAMES, 0, 0),
            "{step}"
        );
    }
}
