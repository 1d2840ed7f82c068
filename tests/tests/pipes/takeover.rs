//! Pipes while one driver takes another's place.
use super::*;

/// Frames of a link are neither lost, doubled nor changed while drivers take over: by the agent, directly, and while the path changes.
#[test]
fn a_link_goes_on_through_take_overs() {
    goes_on("pipe-number", "pipe-check");
}

#[test]
fn a_link_in_epoll_goes_on_through_take_overs() {
    goes_on("pipe-number-in-epoll", "pipe-check-in-epoll");
    goes_on("pipe-number", "pipe-check-in-epoll");
}

#[test]
fn a_link_of_bytes_goes_on_through_take_overs() {
    goes_on("pipe-lines", "pipe-lines-check");
    goes_on("pipe-lines-in-epoll", "pipe-lines-check-in-epoll");
}

fn goes_on(sends: &str, checks: &str) {
    let mut stand = Stand::new(&[("wire", PortSpec::Link)]);
    let start = |stand: &Stand, what, port| {
        let mut puppet = Puppet::new(stand.driver.peer(&[what, port]));
        assert_eq!(puppet.line(), "ready");
        puppet
    };
    let goes = |stand: &Stand, path: &str| {
        let before = stand.port("wire.1").bytes_received;
        stand.wait_for(path, |report| {
            let is_so = report.pipes.iter().all(|pipe| pipe.ended.is_none() && pipe.path == path);
            let port = report.ports.iter().find(|port| port.name == "wire.1").unwrap();
            is_so && report.pipes.len() == 2 && port.bytes_received > before + 1_600_000
        });
    };
    let _receiver = start(&stand, checks, "wire.1");
    let _sender = start(&stand, sends, "wire.0");
    let mut random = Random(5);
    for turn in 0..12 {
        let rate = "[[tenant]]\nname = \"default\"\nrate = { messages_per_second = 1000000, burst_messages = 50000 }";
        let path = if turn / 2 % 2 == 0 { "direct" } else { "agent" };
        stand.driver.apply(if path == "agent" { rate } else { "" });
        // At times the path is about to change.
        if turn % 3 != 2 {
            goes(&stand, path);
        }
        let before = stand.port("wire.1").bytes_received;
        std::thread::sleep(Duration::from_micros(random.below(5000)));
        stand.driver.take_over().unwrap();
        goes(&stand, path);
        assert!(stand.port("wire.1").bytes_received > before, "counts go on");
    }
    stand.driver.take_over().unwrap();
    stand.driver.apply("");
    stand.driver.take_over().unwrap();
    goes(&stand, "direct");
}

/// Numbers of the frames of `gen` that have come, which has to be in order.
fn received(pipe: &mut Pipe, next: &mut u64) {
    let mut frames = pipe.frames().unwrap();
    while let Some(frame) = frames.next() {
        let number = u64::from_be_bytes(frame.bytes()[42..50].try_into().unwrap());
        assert_eq!(number, *next);
        *next += 1;
    }
}

#[test]
fn frames_of_a_source_and_to_a_sink_are_counted_on() {
    let mut stand = Stand::new(&[("wan", gen(0)), ("drain", PortSpec::Sink)]);
    stand.driver.apply("[[bind]]\nmirror = true");
    stand.add("copy", PortSpec::Mirror { of: "drain".to_owned() }).unwrap();
    let mut source = stand.open(&Options::new(Direction::Receive, "wan")).unwrap();
    let mut sink = stand.open(&Options::new(Direction::Send, "drain")).unwrap();
    let (mut next, mut sent) = (0, 0u64);
    let memory = stand.driver.report().memory_used_bytes;
    for turn in 1..6 {
        let end = next + 2000;
        while next < end {
            source.wait(PATIENCE).unwrap();
            received(&mut source, &mut next);
            let frame = [&[7; 14][..], &sent.to_ne_bytes(), &[9; 50]].concat();
            while sink.send(&frame, 0).is_err() {
                sink.wait_room(RING / 2, PATIENCE).unwrap();
            }
            sent += 1;
            sink.flush();
        }
        // Of a program that opens a pipe meanwhile.
        let mut raw = Raw::attach(&stand.driver, 1);
        let (number, offer) = ask_for(&mut raw, &Options::new(Direction::Receive, "copy")).unwrap();
        let mut copies = pd_pipe::Pipe::map(offer).unwrap();
        stand.driver.take_over().unwrap();
        assert_eq!(stand.driver.report().memory_used_bytes, memory + memory_of_one());
        tell(&mut raw, FrameKind::PipeMapped, number, FrameKind::Ready).unwrap();
        let frame = [&[7; 14][..], &sent.to_ne_bytes(), &[9; 50]].concat();
        sink.wait_room(RING / 2, PATIENCE).unwrap();
        sink.send(&frame, 0).unwrap();
        sink.flush();
        sent += 1;
        copies.wait(PATIENCE).unwrap();
        assert_eq!(copies.frames().unwrap().next().unwrap().bytes(), frame);
        let report = stand.wait_for("all is delivered", |report| {
            report.ports.iter().any(|port| port.name == "drain" && port.frames_sent == sent)
        });
        let of = |direction: &str, port: &str| {
            let is =
                |pipe: &&pd_driver::admin::PipeReport| pipe.direction == direction && pipe.ports[0] == port;
            report.pipes.iter().find(is).unwrap().counts
        };
        assert_eq!(of("send", "drain").frames_sent, sent);
        assert!(of("receive", "wan").frames_received >= next, "turn {turn}");
        let [tenant] = &report.tenants[..] else { panic!("{report:?}") };
        assert_eq!(tenant.counts.frames_sent, sent);
        drop((copies, raw));
        stand.wait_for("it has left", |report| report.pipes.len() == 2);
    }
    assert_eq!(stand.port("wan").frames_wrong, 0);
    drop((source, sink));
    stand.settle(0, 0);
}

fn memory_of_one() -> u64 {
    memory((Direction::Receive, Unit::Frames, RING))
}

/// A program that sleeps while drivers change is woken by the next.
#[test]
fn a_program_that_sleeps_is_woken_by_the_next_driver() {
    let mut stand = Stand::new(&[("wire", PortSpec::Link), ("cable", PortSpec::Link)]);
    for (unit, port) in [(Unit::Frames, "wire"), (Unit::Bytes, "cable")] {
        let options = |direction, end| Options { unit, ..Options::new(direction, &format!("{port}.{end}")) };
        let mut receiver = stand.open(&options(Direction::Receive, 1)).unwrap();
        let mut sender = stand.open(&options(Direction::Send, 0)).unwrap();
        let bytes = [5; 100];
        for _ in 0..3 {
            std::thread::scope(|scope| {
                let woken = scope.spawn(|| {
                    receiver.wait(PATIENCE).unwrap();
                    match unit {
                        Unit::Frames => assert_eq!(receiver.frames().unwrap().next().unwrap().bytes(), bytes),
                        Unit::Bytes => {
                            assert_eq!(receiver.peek().unwrap(), bytes);
                            receiver.done(100).unwrap();
                        }
                    }
                });
                std::thread::sleep(Duration::from_millis(20));
                stand.driver.take_over().unwrap();
                sender.send(&bytes, 0).unwrap();
                sender.flush();
                woken.join().unwrap();
            });
        }
    }
}

/// The ring of a forwarding pipe is written by both sides, and no other process can map it for that.
#[test]
fn a_pipe_that_forwards_ends_and_others_of_its_port_go_on() {
    let mut stand = Stand::new(&[("wire", PortSpec::Link), ("wan", gen(0))]);
    let mut forwards = stand.open(&Options::new(Direction::Forward, "wan")).unwrap();
    let mut ended = stand.open(&Options::new(Direction::Receive, "wire.0")).unwrap();
    let mut sender = stand.open(&Options::new(Direction::Send, "wire.0")).unwrap();
    let mut receiver = stand.open(&Options::new(Direction::Receive, "wire.1")).unwrap();
    forwards.wait(PATIENCE).unwrap();
    forward(&mut forwards);
    // A pipe that has ended before, and is closed after.
    stand.add("more", PortSpec::Link).unwrap();
    let mut over = stand.open(&Options::new(Direction::Receive, "more.0")).unwrap();
    stand.remove("more").unwrap();
    assert_eq!(ending(&mut over), Errno::NODEV);
    stand.driver.take_over().unwrap();
    assert_eq!(ending(&mut forwards), Errno::CONNRESET);
    assert_eq!(ending(&mut over), Errno::NODEV);
    for pipe in [&mut forwards, &mut over] {
        tell(&mut pipe.raw, FrameKind::PipeClose, pipe.number, FrameKind::Ready).unwrap();
    }
    // The client may open another.
    let (number, _) = ask(&mut forwards.raw, PipeDirection::Forward, "wan").unwrap();
    assert_eq!(number, forwards.number + 1);
    sender.send(&[3; 60], 0).unwrap();
    sender.flush();
    receiver.wait(PATIENCE).unwrap();
    assert_eq!(forward(&mut receiver), 1);
    assert_eq!(ended.wait(Duration::from_millis(1)), Err(Errno::AGAIN));
    drop((forwards, over, sender, receiver, ended));
    stand.settle(0, 0);
}
