//! Frames and bytes through a driver, and their accounts.
use super::*;

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
fn pipes_end_with_the_driver() {
    let mut stand = Stand::new(&[("wire", PortSpec::Link)]);
    let mut pipe = stand.open(&Options::new(Direction::Receive, "wire.0")).unwrap();
    stand.driver.stop();
    assert_eq!(pipe.wait(PATIENCE), Err(Errno::CONNRESET));
    stand.driver.start();
    let error = stand.open(&Options::new(Direction::Receive, "wire.0")).map(drop).unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT, "{error}");
}
