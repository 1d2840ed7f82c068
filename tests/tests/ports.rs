//! Ports that lead out of the driver: interfaces of the kernel in real namespaces.
use pd_abi::pipe::{PipeDirection, PipeRequest, PipeUnit};
use pd_abi::{Frame, FrameKind};
use pd_driver::admin::{add_port, Ask, PipesReport, PortSpec};
use pd_driver::openers::namespace_file;
use pd_pipe::{Direction, Flow, Net, Offer, Pcap, Pipe, Shape, Unit};
use pd_tests::{alone, ip, is_root, program_path, Raw, TestDriver};
use rustix::io::Errno;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const RING: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// Two namespaces with a cable between them: `near`, with 10.78.0.1 on `eth0`, and `far`, with 10.78.0.2 on `wan`.
struct Cable(String);

impl Cable {
    fn new() -> Self {
        let this = Self::without_interfaces();
        let (near, far) = (this.near(), this.far());
        assert!(ip(&format!("-n {near} link add eth0 type veth peer name wan netns {far}")));
        for (namespace, name, address) in [(&near, "eth0", 1), (&far, "wan", 2)] {
            assert!(ip(&format!("-n {namespace} addr add 10.78.0.{address}/24 dev {name}")));
            assert!(ip(&format!("-n {namespace} link set {name} up")));
        }
        this
    }

    fn without_interfaces() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let this = Self(format!("pdt{}p{number}", std::process::id()));
        for namespace in [this.near(), this.far()] {
            assert!(ip(&format!("netns add {namespace}")));
            assert!(ip(&format!("-n {namespace} link set lo up")));
        }
        this
    }

    fn near(&self) -> String {
        format!("{}n", self.0)
    }

    fn far(&self) -> String {
        format!("{}f", self.0)
    }

    /// Tells whether a program is attached to the far interface.
    fn has_program(&self) -> bool {
        let shown = Command::new("ip").args(["-n", &self.far(), "link", "show", "wan"]).output().unwrap();
        String::from_utf8_lossy(&shown.stdout).contains("xdp")
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for namespace in [self.near(), self.far()] {
            ip(&format!("netns del {namespace}"));
        }
    }
}

/// Waits until the kernel has noticed that the interfaces of a cable are up. Until then it drops sent frames.
fn settle(namespace: &str) {
    let cable = &namespace[..namespace.len() - 1];
    let until = Instant::now() + PATIENCE;
    for namespace in [format!("{cable}n"), format!("{cable}f")] {
        let settled = || {
            let shown = Command::new("ip").args(["-n", &namespace, "link", "show", "up"]).output().unwrap();
            !String::from_utf8_lossy(&shown.stdout).contains("qdisc noop ")
        };
        while !settled() {
            assert!(Instant::now() < until, "an interface in {namespace} does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Runs in a network namespace of a cable, on a thread of its own.
fn inside<T: Send>(namespace: &str, run: impl FnOnce() -> T + Send) -> T {
    settle(namespace);
    let file = std::fs::File::open(namespace_file(namespace)).unwrap();
    std::thread::scope(|scope| {
        let run = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            run()
        };
        scope.spawn(run).join().unwrap()
    })
}

/// A driver with ports. Stands run one at a time, so that none has the others' load.
struct Stand {
    driver: TestDriver,
    _alone: MutexGuard<'static, ()>,
}

impl Stand {
    fn new() -> Self {
        Self { _alone: alone(), driver: TestDriver::new() }
    }

    fn add(&self, name: &str, port: PortSpec, namespace: &str) -> std::io::Result<()> {
        let namespace = (!namespace.is_empty()).then(|| namespace_file(namespace));
        add_port(self.driver.admin_socket(), name, port, namespace.as_deref())
    }

    fn report(&self) -> PipesReport {
        self.driver.pipes()
    }

    fn wait_for(&self, what: &str, wished: impl Fn(&PipesReport) -> bool) -> PipesReport {
        self.driver.wait_for_pipes(what, wished)
    }

    fn open(&self, direction: Direction, port: &str, flow: Flow) -> Result<Held, i32> {
        open_at(&self.driver, direction, port, flow)
    }
}

/// Opens a pipe of a client of its own, at a driver's socket.
fn open_at(
    socket: impl AsRef<std::path::Path>,
    direction: Direction,
    port: &str,
    flow: Flow,
) -> Result<Held, i32> {
    let mut raw = Raw::attach(socket, 1);
    let asked = match direction {
        Direction::Receive => PipeDirection::Receive,
        Direction::Send => PipeDirection::Send,
        Direction::Forward => PipeDirection::Forward,
    };
    let mut request = PipeRequest::new(asked, PipeUnit::Frames, port).unwrap();
    (request.protocol, request.ports) = (flow.protocol, flow.ports);
    request.addresses = flow.addresses.map(|net| (net.address, net.prefix));
    let frame = Frame::new(FrameKind::Pipe).with_bytes(RING, 0).with_pipe_request(&request);
    let (answer, fds) = raw.ask(&frame, FrameKind::Pipe).map_err(|refused| refused.errno as i32)?;
    let [status, control, ring, doorbell] = <[OwnedFd; 4]>::try_from(fds).unwrap();
    let shape = Shape::new(direction, Unit::Frames, RING).unwrap();
    let pipe = Pipe::map(Offer { shape, status, control, ring, doorbell }).unwrap();
    let mapped = Frame::new(FrameKind::PipeMapped).with_id(answer.id);
    raw.ask(&mapped, FrameKind::Ready).map_err(|refused| refused.errno as i32)?;
    Ok(Held { pipe, _raw: raw })
}

/// A pipe of a client of its own.
struct Held {
    pipe: Pipe,
    _raw: Raw,
}

/// A program that sends datagrams back to where they came from, until it is dropped or its pipe ends.
struct Echo {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Errno>>,
}

impl Echo {
    fn start(held: Held) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        // The client as well as its pipe.
        let run = move || {
            let mut held = held;
            Self::run(&mut held.pipe, &stopped)
        };
        Self { stop, thread: Some(std::thread::spawn(run)) }
    }

    fn run(pipe: &mut Pipe, stopped: &AtomicBool) -> Errno {
        loop {
            match pipe.wait(Duration::from_millis(50)) {
                Err(Errno::AGAIN) if !stopped.load(Ordering::Relaxed) => continue,
                Err(errno) => break errno,
                Ok(()) => {}
            }
            let mut frames = pipe.frames().unwrap();
            while let Some(mut frame) = frames.next() {
                if let Some(bytes) = frame.bytes_mut() {
                    swap(bytes, 0, 6);
                    swap(bytes, 26, 4);
                    swap(bytes, 34, 2);
                }
            }
        }
    }

    /// Returns the error that its pipe ended with.
    fn ended(mut self) -> Errno {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Exchanges two neighbouring fields of `len` bytes.
fn swap(bytes: &mut [u8], at: usize, len: usize) {
    let (first, second) = bytes[at..at + 2 * len].split_at_mut(len);
    first.swap_with_slice(second);
}

/// Sends datagrams of many sizes one after the other, each of which is to come back.
fn exchange(socket: &UdpSocket, count: usize) {
    let mut buffer = [0; 2048];
    for number in 0..count {
        let bytes: Vec<_> = (0..1 + number * 37 % 1472).map(|at| (at + number) as u8).collect();
        socket.send(&bytes).unwrap();
        let len = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("datagram {number}: {error}"));
        assert_eq!(buffer[..len], bytes, "datagram {number}");
    }
}

fn udp(from: &str, to: &str) -> UdpSocket {
    let socket = UdpSocket::bind(from).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(to).unwrap();
    socket
}

fn to_port(port: u16) -> Flow {
    Flow { protocol: 17, ports: [0, port], ..Flow::default() }
}

/// Makes a driver and a cable for ports of a kind; none if they cannot be made, with the reason printed.
fn stand_with(kind: &str, cable: impl FnOnce() -> Cable) -> Option<(Stand, Cable)> {
    if !is_root("making network namespaces") {
        return None;
    }
    let both = (Stand::new(), cable());
    match pd_driver::openers::check(kind) {
        Ok(()) => Some(both),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}

fn veth() -> PortSpec {
    PortSpec::Veth { interface: "wan".to_owned() }
}

#[test]
fn a_program_answers_for_its_flow_and_the_kernel_for_all_others() {
    let Some((stand, cable)) = stand_with("veth", Cable::new) else { return };
    stand.add("up", veth(), &cable.far()).unwrap();
    assert!(cable.has_program());
    let echo = Echo::start(stand.open(Direction::Forward, "up", to_port(7)).unwrap());
    let (socket, listener) = inside(&cable.far(), || {
        (UdpSocket::bind("10.78.0.2:8").unwrap(), TcpListener::bind("10.78.0.2:8").unwrap())
    });
    let of_kernel = std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        for _ in 0..50 {
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            socket.send_to(&buffer[..len], from).unwrap();
        }
    });
    inside(&cable.near(), || {
        exchange(&udp("10.78.0.1:0", "10.78.0.2:7"), 200);
        exchange(&udp("10.78.0.1:0", "10.78.0.2:8"), 50);
        TcpStream::connect("10.78.0.2:8").unwrap();
        // The kernel's word for a port that nobody has.
        let nobody = udp("10.78.0.1:0", "10.78.0.2:9");
        nobody.send(b"anyone?").unwrap();
        assert_eq!(nobody.recv(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    });
    of_kernel.join().unwrap();
    drop(listener);
    let [port] = &stand.report().ports[..] else { panic!() };
    assert_eq!((port.kind.as_str(), port.frames_received, port.frames_sent), ("veth", 200, 200));
    assert_eq!((port.frames_unbound, port.frames_lost, port.frames_unsent), (0, 0, 0));
    // A second port on the interface, and interfaces and namespaces that there are not.
    let refused = |port, namespace: &str| stand.add("other", port, namespace).unwrap_err().to_string();
    let twice = refused(veth(), &cable.far());
    assert!(twice.contains("interface wan: its first queue"), "{twice}");
    assert!(refused(veth(), &cable.near()).contains("there is no interface wan"));
    assert!(refused(veth(), "nowhere").contains("network namespace /run/netns/nowhere"));
    // With its pipe a flow is the kernel's again, and with its port the interface is as it was.
    drop(echo);
    stand.wait_for("the pipe is gone", |report| report.pipes.is_empty());
    inside(&cable.near(), || {
        let socket = udp("10.78.0.1:0", "10.78.0.2:7");
        socket.send(b"anyone?").unwrap();
        assert_eq!(socket.recv(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    });
    let echo = Echo::start(stand.open(Direction::Forward, "up", to_port(7)).unwrap());
    stand.driver.tell(&Ask::PortRemove { name: "up".to_owned() });
    assert_eq!(echo.ended(), Errno::NODEV);
    assert!(!cable.has_program());
    stand.add("up", veth(), &cable.far()).unwrap();
}

#[test]
fn frames_that_a_program_has_no_room_for_are_lost_and_hold_up_no_other() {
    let Some((stand, cable)) = stand_with("veth", Cable::new) else { return };
    stand.add("up", veth(), &cable.far()).unwrap();
    // A pipe that never reads, and one beside it.
    let idle = stand.open(Direction::Receive, "up", to_port(5)).unwrap();
    let _echo = Echo::start(stand.open(Direction::Forward, "up", to_port(7)).unwrap());
    inside(&cable.near(), || {
        let socket = udp("10.78.0.1:0", "10.78.0.2:5");
        for _ in 0..200 {
            socket.send(&[1; 1400]).unwrap();
        }
        exchange(&udp("10.78.0.1:0", "10.78.0.2:7"), 100);
    });
    let report = stand.wait_for("all has come", |report| {
        let idle = report.pipes.iter().find(|pipe| pipe.direction == "receive").unwrap().counts;
        idle.frames_received + idle.frames_lost == 200
    });
    assert!(report.ports[0].frames_lost >= 150, "{report:?}");
    drop(idle);
    // Flows are the 64 that the kernel's program looks through.
    let held: Vec<_> =
        (100..163).map(|port| stand.open(Direction::Receive, "up", to_port(port)).unwrap()).collect();
    let next = stand.open(Direction::Receive, "up", to_port(200)).map(drop);
    assert_eq!(next.unwrap_err(), libc::ENOSPC);
    drop(held);
}

#[test]
fn what_is_sent_has_the_addresses_of_the_policy() {
    let Some((stand, cable)) = stand_with("veth", Cable::new) else { return };
    stand.add("up", veth(), &cable.far()).unwrap();
    stand.driver.apply("[[bind]]\nport = \"up\"\nprotocol = \"udp\"\naddress = \"10.78.0.2\"\nl4_port = 7\nmac = \"02:00:00:00:00:02\"\nipv4 = \"10.78.0.2\"");
    assert_eq!(stand.open(Direction::Receive, "up", to_port(8)).map(drop).unwrap_err(), libc::EACCES);
    let address = Net { address: [10, 78, 0, 2], prefix: 32 };
    let flow = Flow { addresses: [Net::default(), address], ..to_port(7) };
    // The echo answers from the interface's own address, which differs from the leased one.
    let _echo = Echo::start(stand.open(Direction::Forward, "up", flow).unwrap());
    inside(&cable.near(), || udp("10.78.0.1:0", "10.78.0.2:7").send(b"hello").unwrap());
    stand.wait_for("the answer is refused", |report| report.pipes[0].counts.frames_refused == 1);
    assert!(ip(&format!("-n {} link set wan address 02:00:00:00:00:02", cable.far())));
    assert!(ip(&format!("-n {} neigh flush all", cable.near())));
    inside(&cable.near(), || exchange(&udp("10.78.0.1:0", "10.78.0.2:7"), 10));
}

/// `pd driver` with its files in a folder; killed when dropped.
struct Program {
    child: Child,
    folder: tempfile::TempDir,
}

impl Program {
    fn start() -> Self {
        let program = program_path("pd");
        assert!(program.exists(), "build it first: cargo build -p pd");
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let config = format!(
            "socket = {:?}\nadmin_socket = {:?}\n[memory]\nbudget_bytes = \"64MiB\"\n",
            at("s"),
            at("a")
        );
        std::fs::write(at("driver.toml"), config).unwrap();
        let mut command = Command::new(program);
        command.arg("driver").arg("--config").arg(at("driver.toml")).stderr(Stdio::null());
        let this = Self { child: command.spawn().unwrap(), folder };
        let end = Instant::now() + PATIENCE;
        while !this.pd(&["port", "ls"]).status.success() {
            assert!(Instant::now() < end, "no driver");
            std::thread::sleep(Duration::from_millis(20));
        }
        this
    }

    fn pd(&self, args: &[&str]) -> Output {
        let admin = self.folder.path().join("a");
        let args = [args, &["--admin-socket", admin.to_str().unwrap()]].concat();
        Command::new(program_path("pd")).args(args).output().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_killed_driver_leaves_the_interface_as_it_was() {
    if !is_root("making network namespaces") {
        return;
    }
    let (_alone, cable) = (alone(), Cable::new());
    if let Err(why) = pd_driver::openers::check("veth") {
        return println!("SKIPPED: {why}");
    }
    let program = Program::start();
    let added = program.pd(&["port", "add", "up", "veth", "--interface", "wan", "--netns", &cable.far()]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    assert!(cable.has_program());
    drop(program);
    let end = Instant::now() + PATIENCE;
    while cable.has_program() {
        assert!(Instant::now() < end, "the program stays");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Adds a TAP device `tap0` with 10.78.0.1 to a namespace, and a neighbour at 10.78.0.2 behind it.
fn add_tap(stand: &Stand, namespace: &str) {
    stand.add("up", PortSpec::Tap { interface: "tap0".to_owned() }, namespace).unwrap();
    assert!(ip(&format!("-n {namespace} addr add 10.78.0.1/24 dev tap0")));
    assert!(ip(&format!("-n {namespace} link set tap0 up")));
    assert!(ip(&format!("-n {namespace} neigh add 10.78.0.2 lladdr 02:00:00:00:00:02 dev tap0")));
}

#[test]
fn a_program_answers_at_the_other_end_of_a_tap() {
    let Some((stand, cable)) = stand_with("tap", Cable::without_interfaces) else { return };
    add_tap(&stand, &cable.near());
    let echo = Echo::start(stand.open(Direction::Forward, "up", to_port(7)).unwrap());
    inside(&cable.near(), || exchange(&udp("10.78.0.1:0", "10.78.0.2:7"), 200));
    let report = stand.wait_for("all is counted", |report| report.ports[0].frames_sent == 200);
    assert_eq!((report.ports[0].kind.as_str(), report.ports[0].frames_received), ("tap", 200));
    // The interface is down: sent frames cannot leave, and the sender does not wait.
    let mut sender = stand.open(Direction::Send, "up", Flow::default()).unwrap();
    assert!(ip(&format!("-n {} link set tap0 down", cable.near())));
    sender.pipe.send(&[2; 64], 0).unwrap();
    sender.pipe.flush();
    sender.pipe.wait_room(RING, PATIENCE).unwrap();
    stand.wait_for("it is lost", |report| report.ports[0].frames_unsent == 1);
    let again =
        stand.add("other", PortSpec::Tap { interface: "tap0".to_owned() }, &cable.near()).unwrap_err();
    assert!(again.to_string().contains("in use"), "{again}");
    stand.driver.tell(&Ask::PortRemove { name: "up".to_owned() });
    assert_eq!(echo.ended(), Errno::NODEV);
    assert!(!ip(&format!("-n {} link show tap0", cable.near())), "the interface stays");
}

#[test]
fn a_mirror_has_all_frames_of_its_port_and_holds_up_none() {
    let Some((stand, cable)) = stand_with("tap", Cable::without_interfaces) else { return };
    add_tap(&stand, &cable.near());
    let mirror = |of: &str| PortSpec::Mirror { of: of.to_owned() };
    stand.add("eye", mirror("up"), "").unwrap();
    for (name, of) in [("none", "nowhere"), ("none", "eye"), ("eye", "up")] {
        assert!(stand.add(name, mirror(of), "").is_err(), "{name} of {of}");
    }
    // Nobody sees another's frames without a binding of the policy.
    assert_eq!(stand.open(Direction::Receive, "eye", Flow::default()).map(drop).unwrap_err(), libc::EACCES);
    stand.driver.apply("[[bind]]");
    assert_eq!(stand.open(Direction::Receive, "eye", Flow::default()).map(drop).unwrap_err(), libc::EACCES);
    stand.driver.apply("[[bind]]\nport = \"eye\"\nmirror = true\n[[bind]]");
    assert_eq!(stand.open(Direction::Forward, "eye", Flow::default()).map(drop).unwrap_err(), libc::EINVAL);
    assert_eq!(stand.open(Direction::Send, "eye", Flow::default()).map(drop).unwrap_err(), libc::EINVAL);
    let _echo = Echo::start(stand.open(Direction::Forward, "up", to_port(7)).unwrap());
    // A pipe that sees requests, and one that never reads.
    let mut observer = stand.open(Direction::Receive, "eye", to_port(7)).unwrap();
    let idle = stand.open(Direction::Receive, "eye", Flow::default()).unwrap();
    inside(&cable.near(), || {
        let socket = udp("10.78.0.1:0", "10.78.0.2:7");
        for number in 0..200u8 {
            socket.send(&[number; 1000]).unwrap();
            assert_eq!(socket.recv(&mut [0; 2000]).unwrap(), 1000);
            observer.pipe.wait(PATIENCE).unwrap();
            let mut frames = observer.pipe.frames().unwrap();
            assert_eq!(frames.next().unwrap().bytes()[42..], [number; 1000]);
        }
    });
    let report = stand.wait_for("all is counted", |report| {
        let eye = report.ports.iter().find(|port| port.name == "eye").unwrap();
        eye.frames_received + eye.frames_lost == 400
    });
    let eye = report.ports.iter().find(|port| port.name == "eye").unwrap();
    assert!(eye.kind == "mirror" && eye.frames_lost > 100, "{report:?}");
    assert!(
        matches!(pd_driver::admin::ask(stand.driver.admin_socket(), &Ask::PortRemove { name: "up".to_owned() }), Err(why) if why.to_string().contains("eye"))
    );
    drop(idle);
    // A policy that says no more of mirrors ends the pipe.
    stand.driver.apply("[[bind]]");
    let ended = loop {
        match observer.pipe.wait(PATIENCE) {
            Ok(()) => while observer.pipe.frames().unwrap().next().is_some() {},
            Err(errno) => break errno,
        }
    };
    assert_eq!(ended, Errno::ACCESS);
    stand.driver.tell(&Ask::PortRemove { name: "eye".to_owned() });
    stand.driver.tell(&Ask::PortRemove { name: "up".to_owned() });
}

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
        let id = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
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
    if !is_root("a driver, and testpmd") {
        return;
    }
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

/// Makes a message of memif of a type, with bytes behind it.
fn message(kind: u16, rest: &[&[u8]]) -> [u8; 128] {
    let bytes = [&kind.to_ne_bytes()[..], &rest.concat()].concat();
    let mut message = [0; 128];
    message[..bytes.len()].copy_from_slice(&bytes);
    message
}

/// A client of memif by hand.
struct Client(OwnedFd);

impl Client {
    fn connect(path: &std::path::Path) -> Self {
        use rustix::net::{connect, socket, sockopt, AddressFamily, SocketAddrUnix, SocketType};
        let made = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        sockopt::set_socket_timeout(&made, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        connect(&made, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let this = Self(made);
        assert_eq!(this.hear(), Some(2));
        this
    }

    /// Returns the type of the next message; none at the end.
    fn hear(&self) -> Option<u16> {
        let mut bytes = [0; 128];
        match rustix::net::recv(&self.0, &mut bytes, rustix::net::RecvFlags::empty()) {
            Ok((128, _)) => Some(u16::from_ne_bytes([bytes[0], bytes[1]])),
            _ => None,
        }
    }

    fn say(&self, message: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) {
        use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let _ = sendmsg(&self.0, &[std::io::IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL);
    }
}

const INIT: [&[u8]; 3] = [&[0, 2], &[3, 0, 0, 0], &[0]];

/// Makes a region as a client does: two rings of 8 entries with their cookies, and buffers.
fn region() -> OwnedFd {
    use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
    let fd = memfd_create("memif", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 64 << 10).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    for offset in [0, 256] {
        rustix::io::pwrite(&fd, &0x03e3_1f20u32.to_ne_bytes(), offset).unwrap();
    }
    fd
}

fn ring(to_driver: u16, offset: u32) -> [u8; 128] {
    message(5, &[&to_driver.to_ne_bytes(), &[0; 4], &offset.to_ne_bytes(), &[3, 0, 0]])
}

#[test]
fn a_hostile_client_of_memif_ends_itself_alone() {
    let stand = Stand::new();
    let path = stand.driver.folder().join("memif.sock");
    stand.add("dpdk", PortSpec::Memif { socket: path.clone(), id: 3 }, "").unwrap();
    stand.add("wire", PortSpec::Link, "").unwrap();
    let (mut near, mut far) = (
        stand.open(Direction::Send, "wire.0", Flow::default()).unwrap(),
        stand.open(Direction::Receive, "wire.1", Flow::default()).unwrap(),
    );
    let mut receiver = stand.open(Direction::Receive, "dpdk", Flow::default()).unwrap();
    let (memory, doorbell) =
        (region(), rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap());
    let add_region = message(4, &[&[0, 0], &(64u64 << 10).to_ne_bytes()]);
    let steps: [([u8; 128], Vec<_>); 5] = [
        (message(3, &INIT), vec![]),
        (add_region, vec![memory.as_fd()]),
        (ring(1, 0), vec![doorbell.as_fd()]),
        (ring(0, 256), vec![doorbell.as_fd()]),
        (message(6, &[]), vec![]),
    ];
    // A client leaves at each step, and sends wrong messages at each step.
    let mut random = pd_tests::Random(7);
    let null = std::fs::File::open("/dev/null").unwrap();
    for until in 0..=steps.len() {
        for odd in 0..8 {
            let client = Client::connect(&path);
            for (number, (bytes, fds)) in steps[..until].iter().enumerate() {
                client.say(bytes, fds);
                assert_eq!(client.hear(), Some(if number == 4 { 7 } else { 1 }), "step {number}");
            }
            let mut bytes = [0; 128];
            bytes.fill_with(|| random.below(256) as u8);
            (bytes[0], bytes[1]) = (random.below(10) as u8, 0);
            match odd {
                0 => {}
                1 => client.say(&bytes[..1 + random.below(127) as usize], &[]),
                2 => client.say(&add_region, &[null.as_fd()]),
                3 => client.say(&add_region, &[null.as_fd(), doorbell.as_fd(), memory.as_fd()]),
                4 => client.say(&message(4, &[&[0, 0], &u64::MAX.to_ne_bytes()]), &[memory.as_fd()]),
                5 => client.say(&ring(0, u32::MAX), &[null.as_fd()]),
                _ => client.say(&bytes, &[null.as_fd()]),
            }
            if odd > 0 && until == steps.len() && odd != 1 && odd < 6 {
                assert_eq!(client.hear(), Some(8), "it is told why");
            }
        }
    }
    // Frames, then impossible words: the pipe has the frames, and the client gets the reason.
    let client = Client::connect(&path);
    for (bytes, fds) in &steps {
        client.say(bytes, fds);
        assert!(client.hear().is_some());
    }
    let entry = |length: u32, offset: u32| {
        [&[0; 4][..], &length.to_ne_bytes(), &offset.to_ne_bytes(), &[0; 4]].concat()
    };
    // The client sleeps, and is woken by a frame.
    rustix::io::pwrite(&memory, &entry(2048, 16_384), 256 + 128).unwrap();
    rustix::io::pwrite(&memory, &1u16.to_ne_bytes(), 256 + 6).unwrap();
    let mut sender = stand.open(Direction::Send, "dpdk", Flow::default()).unwrap();
    sender.pipe.send(&[9; 64], 0).unwrap();
    sender.pipe.flush();
    let patience = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut woken = [rustix::event::PollFd::new(&doorbell, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut woken, Some(&patience)), Ok(1), "it is woken");
    rustix::io::pwrite(&memory, &[7; 100], 8192).unwrap();
    rustix::io::pwrite(&memory, &entry(100, 8192), 128).unwrap();
    rustix::io::pwrite(&memory, &entry(100, u32::MAX), 144).unwrap();
    rustix::io::pwrite(&memory, &2u16.to_ne_bytes(), 6).unwrap();
    receiver.pipe.wait(PATIENCE).unwrap();
    assert_eq!(receiver.pipe.frames().unwrap().next().unwrap().bytes(), [7; 100]);
    assert_eq!(client.hear(), Some(8));
    // All of that beside others, which lose nothing.
    for number in 0..100u8 {
        near.pipe.send(&[number; 64], 0).unwrap();
        near.pipe.flush();
        far.pipe.wait(PATIENCE).unwrap();
        assert_eq!(far.pipe.frames().unwrap().next().unwrap().bytes(), [number; 64]);
    }
    assert!(stand.driver.is_running());
}
