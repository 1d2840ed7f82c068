//! Programs and devices of DPDK, by memif.
use super::program::Program;
use super::{open_at, Stand, PATIENCE, RING};
use pd_driver::admin::{Ask, PortSpec};
use pd_pipe::{Direction, Flow, Pcap, Pipe};
use pd_tests::{alone, needs_root, program_path};
use rustix::io::Errno;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// testpmd with memif, which exchanges the MAC addresses of received frames and sends them back; killed when dropped.
struct Testpmd {
    child: Child,
    _input: std::process::ChildStdin,
}

const TESTPMD: &str = "dpdk-testpmd";

impl Testpmd {
    fn start(socket: &std::path::Path) -> Option<Self> {
        let device = format!("net_memif0,role=client,id=3,socket={},socket-abstract=no", socket.display());
        let prefix = format!("pd-ports-{}", std::process::id());
        let mut command = Command::new(TESTPMD);
        command.args([
            "--no-huge",
            "-m",
            "256",
            "--no-pci",
            "--no-telemetry",
            "--no-shconf",
            "--file-prefix",
            &prefix,
            "--lcores",
            "0@0,1@0",
        ]);
        command.args([
            "--vdev",
            &device,
            "--",
            "--forward-mode=macswap",
            "--auto-start",
            "--total-num-mbufs=4096",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let input = child.stdin.take().unwrap();
        Some(Self { child, _input: input })
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a frame until it has come back, and the frames behind it.
fn round(sender: &mut Pipe, receiver: &mut Pipe, number: u8, count: usize) {
    let until = Instant::now() + PATIENCE;
    let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &[number; 200]].concat();
    let back = [&frame[6..12], &frame[..6], &frame[12..]].concat();
    let mut came = 0;
    while came < count {
        assert!(Instant::now() < until, "{came} frames of {count} came back");
        sender.send(&frame, 0).unwrap();
        sender.flush();
        sender.wait_room(RING, PATIENCE).unwrap();
        if receiver.wait(Duration::from_millis(20)).is_ok() {
            let mut frames = receiver.frames().unwrap();
            while let Some(frame) = frames.next() {
                // Of an earlier round.
                if frame.bytes() == back {
                    came += 1;
                }
            }
        }
    }
}

#[test]
fn a_program_of_dpdk_has_frames_by_memif_and_may_die() {
    let stand = Stand::new();
    let path = stand.driver.folder().join("memif.sock");
    stand.add("dpdk", PortSpec::Memif { socket: path.clone(), id: 3 }, "").unwrap();
    let mut sender = stand.open(Direction::Send, "dpdk", Flow::default()).unwrap();
    let mut receiver = stand.open(Direction::Receive, "dpdk", Flow::default()).unwrap();
    // No client: sent frames are lost, and the sender goes on.
    sender.pipe.send(&[1; 64], 0).unwrap();
    sender.pipe.flush();
    sender.pipe.wait_room(RING, PATIENCE).unwrap();
    stand.wait_for("it is lost", |report| report.ports[0].frames_unsent == 1);
    for number in 0..2 {
        let Some(testpmd) = Testpmd::start(&path) else {
            return println!("SKIPPED: there is no {TESTPMD}: install dpdk-dev");
        };
        round(&mut sender.pipe, &mut receiver.pipe, number, 200);
        // By SIGKILL, with frames on their way.
        drop(testpmd);
    }
    let report = stand.report();
    assert!(report.ports[0].kind == "memif" && report.ports[0].frames_received >= 400, "{report:?}");
}

/// `pd port add` of a device of DPDK, in the foreground; killed when dropped.
struct Bridge(Child);

impl Bridge {
    fn start(program: &Program, device: &str) -> Self {
        let mut command = Command::new(program_path("pd"));
        command.args(["port", "add", "wan", "dpdk", "--device", device, "--admin-socket"]);
        // On one core, beside the pipes of the test.
        command.arg(program.folder.path().join("a")).args(["--", "--lcores", "0@0,1@0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }

    /// Returns the process of testpmd, which `pd` has started.
    fn testpmd(&self) -> Option<u32> {
        let pd = procfs::process::Process::new(self.0.id() as i32).ok()?;
        pd.task_main_thread().ok()?.children().ok()?.first().copied()
    }

    /// Status and last words.
    fn ended(mut self) -> (bool, String) {
        let mut said = String::new();
        std::io::Read::read_to_string(self.0.stderr.as_mut().unwrap(), &mut said).unwrap();
        (self.0.wait().unwrap().success(), said)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Frames that tell their number, of many lengths.
fn numbered(number: u8) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &vec![number; 46 + usize::from(number) * 30]].concat()
}

#[test]
fn a_device_of_dpdk_is_a_port_as_long_as_its_command_runs() {
    needs_root("a driver, and testpmd");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join(TESTPMD).exists()) {
        return println!("SKIPPED: there is no {TESTPMD}: install dpdk-dev");
    }
    let _alone = alone();
    let program = Program::start();
    let at = |name: &str| program.folder.path().join(name);
    // A device that receives the same 40 frames over and over, and writes sent frames to a file.
    let mut played =
        Pcap::new(None::<&[u8]>, Some(Box::new(std::fs::File::create(at("played")).unwrap()))).unwrap();
    (0..40).for_each(|number| played.write(&numbered(number)));
    played.finish().unwrap();
    let [rx, tx] = ["played", "sent"].map(|name| at(name).display().to_string());
    let device = format!("net_pcap0,rx_pcap={rx},tx_pcap={tx},infinite_rx=1");
    let bridge = Bridge::start(&program, &device);
    let until = Instant::now() + PATIENCE;
    let report = || pd_driver::admin::ask(&at("a"), &Ask::Pipes);
    let mut held = loop {
        match open_at(at("s"), Direction::Receive, "wan", Flow::default()) {
            Ok(held) => break held,
            Err(_) => assert!(Instant::now() < until, "no port: {:?}", report()),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut sender = open_at(at("s"), Direction::Send, "wan", Flow::default()).unwrap();
    let (mut came, mut wrong) = ([false; 40], 0);
    while came.contains(&false) {
        assert!(Instant::now() < until, "{came:?} of what the device receives");
        let _ = held.pipe.wait(Duration::from_millis(100));
        let Ok(mut frames) = held.pipe.frames() else { continue };
        while let Some(frame) = frames.next() {
            let number = frame.bytes()[14];
            wrong += u32::from(number >= 40 || frame.bytes() != numbered(number));
            came[usize::from(number) % 40] = true;
        }
    }
    assert_eq!(wrong, 0);
    drop(held);
    // A few at a time, so that testpmd has buffers for all.
    for number in 0..40u8 {
        sender.pipe.send(&numbered(39 - number), 0).unwrap();
        sender.pipe.flush();
        sender.pipe.wait_room(RING, PATIENCE).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let testpmd = bridge.testpmd().expect("testpmd runs");
    bridge.signal(rustix::process::Signal::TERM);
    assert!(bridge.ended().0);
    assert!(!std::path::Path::new(&format!("/proc/{testpmd}")).exists(), "testpmd stays");
    assert_eq!(sender.pipe.ended(), Some(Errno::NODEV), "the port goes with it");
    assert!(!at("wan.memif").exists());
    let mut sent = Pcap::new(Some(std::fs::File::open(at("sent")).unwrap()), None).unwrap();
    for number in 0..40u8 {
        let frame = numbered(39 - number);
        assert!(sent.peek().is_some_and(|came| came == frame), "frame {number} of what was sent");
        sent.advance();
    }
    // A device that there is not: testpmd says why, and its end is the port's.
    let (done, said) = Bridge::start(&program, "net_pcap0,rx_pcap=/nowhere,tx_pcap=/nowhere").ended();
    assert!(!done && said.contains("dpdk-testpmd has ended"), "{said}");
    assert!(!program.pd(&["port", "rm", "wan"]).status.success());
}
