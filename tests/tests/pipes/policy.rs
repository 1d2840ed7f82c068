//! Policies, rates and shares of pipes.
use super::*;

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
