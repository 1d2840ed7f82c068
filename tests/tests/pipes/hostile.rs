//! Hostile clients, and clients that die, beside one that loses no frame.
use super::*;

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
            // A client that has hung up amid a question has its frames until that is answered.
            stand.settle(1, memory);
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
                        // A frame waits for ever where nobody receives.
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
