//! The attach socket: frames that are none, frames at the wrong time, frames that nobody reads.
use super::stage;
use pd_abi::{Frame, FrameKind, MAGIC, VERSION};
use pd_driver::admin::{Answer, Ask};
use pd_driver::Violation;
use pd_shm::{attach, Pod};
use pd_tests::{needs_root, Raw, SentRegion, TestDriver};
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{kill_process, Pid, Signal};
use std::mem::MaybeUninit;
use std::time::Duration;

fn frame(kind: FrameKind) -> Frame {
    Frame::new(kind)
}

/// Connections in each of the states before, during and after attaching.
fn states(driver: &TestDriver) -> Vec<(OwnedFd, &'static str)> {
    let welcomed = Raw::welcomed(driver);
    let attached = Raw::attach(driver, 1);
    vec![(Raw::dial(driver), "fresh"), (welcomed.socket, "welcomed"), (attached.socket, "attached")]
}

/// Reads to the end of the connection. The reason of the driver's goodbye.
fn goodbye(socket: &OwnedFd) -> Option<String> {
    let mut reason = None;
    let patience = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    loop {
        let mut ready = [PollFd::new(socket, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&patience)), Ok(1), "not cut off");
        match attach::receive(socket, RecvFlags::empty()) {
            Ok(Some((frame, _))) if frame.checked_kind() == Some(FrameKind::Goodbye) => {
                reason = Some(frame.reason().to_owned());
            }
            Ok(Some(_)) | Err(Errno::CONNRESET | Errno::INTR) => {}
            Ok(None) => return reason,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn bytes_that_are_no_frame() {
    let scene = stage();
    let hello = frame(FrameKind::Hello);
    let unknown = (1..).find(|&kind| Frame { kind, ..hello }.checked_kind().is_none()).unwrap();
    let mut cases: Vec<(String, Vec<u8>)> =
        [1, 8, 40, 127, 129, 256, 65_536].map(|len| (format!("{len} bytes"), vec![0x50; len])).into();
    for (what, bad) in [
        ("magic", Frame { magic: MAGIC ^ 1, ..hello }),
        ("no magic", Frame { magic: 0, ..hello }),
        ("version", Frame { version: VERSION + 1, ..hello }),
        ("kind 0", Frame { kind: 0, ..hello }),
        ("the first unknown kind", Frame { kind: unknown, ..hello }),
        ("kind", Frame { kind: u32::MAX, ..hello }),
    ] {
        cases.push((what.to_owned(), bad.as_bytes().to_vec()));
    }
    // A good frame with something behind it is no frame either.
    cases.push(("tail".to_owned(), [hello.as_bytes(), &[1]].concat()));
    for (what, bytes) in &cases {
        for (socket, state) in states(&scene.driver) {
            let before = scene.cut_offs();
            rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL).unwrap();
            let violation = match what.as_str() {
                "version" => Violation::Version(VERSION + 1),
                _ => Violation::Frame,
            };
            assert_eq!(goodbye(&socket), Some(violation.to_string()), "{what} when {state}");
            assert_eq!(scene.cut_offs(), before + 1);
        }
    }
    // The administrator's report has it, once for a process.
    let Answer::Kernel(kernel) = scene.driver.tell(&Ask::Kernel) else { panic!("no report") };
    let [refused] = &kernel.refused[..] else { panic!("{:?}", kernel.refused) };
    assert_eq!((refused.pid, refused.errno), (std::process::id(), Errno::PROTO.raw_os_error()));
    assert_eq!(refused.why, Violation::Frame.to_string());
    scene.end();
}

#[test]
fn frames_at_the_wrong_time() {
    let scene = stage();
    let control = frame(FrameKind::Mapped).with_id(Frame::REGION_CONTROL);
    let never = [
        frame(FrameKind::Welcome),
        frame(FrameKind::Ready),
        frame(FrameKind::ReceiveRegion),
        frame(FrameKind::Error),
        frame(FrameKind::Goodbye),
        frame(FrameKind::Mapped).with_id(0),
        frame(FrameKind::Mapped).with_id(7),
        frame(FrameKind::WakePipe).with_id(1),
        frame(FrameKind::WakePipe).with_id(u32::MAX),
        // A wish that is none, and pipes that the client does not have.
        frame(FrameKind::Pipe).with_bytes(64 << 10, 0),
        frame(FrameKind::PipeMapped),
        frame(FrameKind::PipeWakeFd).with_id(1),
        frame(FrameKind::PipePeer).with_id(1),
        frame(FrameKind::PipeClose).with_id(u32::MAX),
    ];
    let early = [
        control,
        frame(FrameKind::Channel),
        frame(FrameKind::SendRegion).with_bytes(4096, 0),
        frame(FrameKind::Doorbell),
        frame(FrameKind::PeerDoorbell),
        frame(FrameKind::FileSocket),
    ];
    for bad in never.into_iter().chain(early) {
        let socket = Raw::dial(&scene.driver);
        attach::send(&socket, &bad, &[], SendFlags::empty()).unwrap();
        assert_eq!(goodbye(&socket), Some(Violation::Frame.to_string()), "{bad:?} first");
    }
    let too_early = [FrameKind::Hello, FrameKind::Channel, FrameKind::FileSocket].map(frame);
    for bad in never.into_iter().chain(too_early) {
        let raw = Raw::welcomed(&scene.driver);
        attach::send(&raw.socket, &bad, &[], SendFlags::empty()).unwrap();
        assert_eq!(goodbye(&raw.socket), Some(Violation::Frame.to_string()), "{bad:?} when welcomed");
    }
    for bad in never.into_iter().chain([frame(FrameKind::Hello), control]) {
        let raw = Raw::attach(&scene.driver, 1);
        attach::send(&raw.socket, &bad, &[], SendFlags::empty()).unwrap();
        assert_eq!(goodbye(&raw.socket), Some(Violation::Frame.to_string()), "{bad:?} when attached");
    }
    // A region is mapped once.
    let mut raw = Raw::attach(&scene.driver, 1);
    let (region, map) = raw.send_region(4096);
    attach::send(&raw.socket, &frame(FrameKind::Mapped).with_id(region.id), &[], SendFlags::empty()).unwrap();
    scene.expect_cut_off(&mut raw, Violation::Frame);
    drop((raw, region, map));
    scene.end();
}

#[test]
fn descriptors_that_nobody_asked_for() {
    let scene = stage();
    let gift = rustix::pipe::pipe().unwrap();
    // From Linux 6.16 on the kernel refuses to pass them.
    for count in [1, attach::FDS_MAX, attach::FDS_MAX + 1, 8, 100] {
        let raw = Raw::attach(&scene.driver, 0);
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = vec![gift.0.as_fd(); count];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let hello = frame(FrameKind::Channel);
        let bytes = [std::io::IoSlice::new(hello.as_bytes())];
        match rustix::net::sendmsg(&raw.socket, &bytes, &mut ancillary, SendFlags::empty()) {
            Err(error) => assert_eq!(error, rustix::io::Errno::PERM),
            Ok(_) => {
                let said = goodbye(&raw.socket);
                assert_eq!(said, Some(Violation::Frame.to_string()), "{count} descriptors");
            }
        }
    }
    drop(gift);
    scene.end();
}

/// Asks for the same thing, and reads no answer, until the driver reads no more questions. Returns how many were asked.
pub fn ask_deafly(raw: &Raw, wish: &Frame) -> usize {
    let (mut asked, mut refused) = (0, 0);
    while refused < 20 {
        match rustix::net::send(&raw.socket, wish.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(_) => (asked, refused) = (asked + 1, 0),
            Err(Errno::AGAIN) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error} after {asked} questions"),
        }
        assert!(asked < 100_000, "the driver reads without end");
    }
    asked
}

/// Reads frames until there are `count` answers. Returns the others.
pub fn read_answers(raw: &Raw, count: usize) -> Vec<(Frame, Vec<OwnedFd>)> {
    let (mut answers, mut others) = (0, Vec::new());
    while answers < count {
        let mut ready = [PollFd::new(&raw.socket, PollFlags::IN)];
        let patience = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(poll(&mut ready, Some(&patience)), Ok(1), "{answers} of {count} answers");
        let (frame, fds) = attach::receive(&raw.socket, RecvFlags::empty()).unwrap().expect("not cut off");
        match frame.checked_kind() {
            Some(FrameKind::ReceiveRegion) => others.push((frame, fds)),
            Some(FrameKind::Goodbye) => panic!("{}", frame.reason()),
            _ => answers += 1,
        }
    }
    others
}

#[test]
fn answers_wait_for_a_client_that_reads_none() {
    let scene = stage();
    let before = scene.cut_offs();
    for wish in
        [FrameKind::SendRegion, FrameKind::WakePipe, FrameKind::Channel, FrameKind::FileSocket].map(frame)
    {
        let raw = Raw::attach(&scene.driver, 1);
        let asked = ask_deafly(&raw, &wish);
        scene.bystander.check(&scene.driver);
        assert!(read_answers(&raw, asked).is_empty());
    }
    assert_eq!(scene.cut_offs(), before);
    scene.end();
}

/// Connections made to a client that has no room for one more frame cost it nothing but its own time.
#[test]
fn a_peer_cannot_have_a_deaf_client_cut_off() {
    const CONNECTIONS: usize = 40;
    let scene = stage();
    let before = scene.cut_offs();
    let mut deaf = Raw::attach(&scene.driver, 1);
    let (listener, address) = deaf.listen(0, CONNECTIONS as u64);
    let asked = ask_deafly(&deaf, &frame(FrameKind::PeerDoorbell));
    let mut peer = scene.driver.puppet();
    for index in 0..CONNECTIONS {
        peer.ok(&format!("connect c{index} {address}"));
        peer.ok(&format!("send c{index} {index} 0 1000 1000"));
        if index % 2 == 1 {
            peer.ok(&format!("close c{index}"));
        }
    }
    scene.bystander.check(&scene.driver);
    let report = scene.driver.report();
    let client = report.clients.iter().find(|client| client.sockets > CONNECTIONS).expect("it is there");
    assert!(client.region_bytes <= 8 << 20, "{client:?}: one region that it knows nothing of");
    for (frame, mut fds) in read_answers(&deaf, asked) {
        let fd = fds.pop().expect("a descriptor");
        deaf.receive_regions.push(SentRegion { id: frame.id, fd, bytes: frame.bytes as usize });
    }
    for index in 0..CONNECTIONS {
        let socket = deaf.accept(0, listener);
        let bytes = deaf.received(socket, 0, 1000);
        pd_tests::verify(index as u64, 0, &bytes);
    }
    assert_eq!(scene.cut_offs(), before);
    assert_eq!(deaf.is_cut_off(), None);
    drop((deaf, peer));
    scene.end();
}

#[test]
fn a_stopped_process_goes_on_where_it_was() {
    const CONNECTIONS: usize = 200;
    let scene = stage();
    let before = scene.cut_offs();
    let (mut stopped, mut peer) = (scene.driver.puppet(), scene.driver.puppet());
    let address = stopped.ok(&format!("listen l 127.0.0.1:0 {CONNECTIONS}"));
    let pid = Pid::from_raw(stopped.pid() as i32).expect("a process");
    kill_process(pid, Signal::STOP).expect("stopped");
    for index in 0..CONNECTIONS {
        peer.ok(&format!("connect c {address}"));
        peer.ok(&format!("send c {index} 0 5000 500"));
        peer.ok("close c");
    }
    kill_process(pid, Signal::CONT).expect("goes on");
    stopped.ok(&format!("accept-many a l {CONNECTIONS}"));
    for index in 0..CONNECTIONS {
        stopped.ok(&format!("recv a{index} {index} 0 5000"));
        assert_eq!(stopped.ok(&format!("end a{index}")), "0");
    }
    assert_eq!(scene.cut_offs(), before);
    drop((stopped, peer));
    scene.end();
}

#[test]
fn clients_that_leave_halfway() {
    let scene = stage();
    let before = scene.cut_offs();
    for _ in 0..20 {
        drop(Raw::dial(&scene.driver));
        let socket = Raw::dial(&scene.driver);
        attach::send(&socket, &frame(FrameKind::Hello), &[], SendFlags::empty()).unwrap();
        drop(socket);
        drop(Raw::welcomed(&scene.driver));
        drop(Raw::attach(&scene.driver, 0));
        let mut raw = Raw::attach(&scene.driver, 2);
        let _unmapped = raw.ask_send_region(100_000);
        drop(raw);
        // An empty message is an end.
        let raw = Raw::attach(&scene.driver, 1);
        rustix::net::send(&raw.socket, &[], SendFlags::empty()).unwrap();
        assert_eq!(goodbye(&raw.socket), None);
    }
    assert_eq!(scene.cut_offs(), before, "nobody did wrong");
    scene.end();
}

#[test]
fn clients_that_say_nothing_keep_nobody_out() {
    let scene = stage();
    let silent: Vec<_> = (0..200).map(|_| Raw::dial(&scene.driver)).collect();
    let mut raw = Raw::attach(&scene.driver, 1);
    raw.open(0);
    scene.bystander.check(&scene.driver);
    drop((silent, raw));
    scene.end();
}

#[test]
fn wishes_that_cannot_be() {
    needs_root("a driver's budgets");
    let scene = stage();
    let mut raw = Raw::attach(&scene.driver, 0);
    for bytes in [0, (1 << 30) + 1, u64::MAX, u64::MAX - 4095, 1 << 63] {
        let refusal = raw.ask(&frame(FrameKind::SendRegion).with_bytes(bytes, 0), FrameKind::SendRegion);
        let refusal = refusal.expect_err("a region that cannot be");
        assert_eq!(refusal.errno, libc::ENOMEM as u32, "{bytes}");
        assert!(!refusal.reason().is_empty());
    }
    // Beyond the budget (1 GiB in all).
    let refusal = raw.ask(&frame(FrameKind::SendRegion).with_bytes(1 << 30, 0), FrameKind::SendRegion);
    assert!(refusal.expect_err("beyond the budget").reason().contains("memory.budget_bytes"));
    for index in 0..pd_abi::limits::CHANNELS_MAX {
        assert_eq!(raw.add_channel(), index);
    }
    let refusal = raw.ask(&frame(FrameKind::Channel), FrameKind::Channel).expect_err("one too many");
    assert_eq!(refusal.errno, libc::ENOSPC as u32);
    assert_eq!(raw.is_cut_off(), None);
    raw.open(63);
    drop(raw);
    scene.end();
}
