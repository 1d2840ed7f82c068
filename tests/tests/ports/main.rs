//! Ports that lead out of the driver. [`veth`] and [`tap`] are interfaces of the kernel in real namespaces, [`dpdk`] programs of DPDK,
//! [`memif`] a hostile client of memif.
mod dpdk;
mod echo;
mod memif;
mod program;
mod takeover;
mod tap;
mod veth;

use pd_abi::pipe::{PipeDirection, PipeRequest, PipeUnit};
use pd_abi::{Frame, FrameKind};
use pd_driver::admin::{add_port, PipesReport, PortSpec};
use pd_driver::openers::namespace_file;
use pd_pipe::{Direction, Flow, Offer, Pipe, Shape, Unit};
use pd_tests::{alone, ip, needs_root, Raw, TestDriver};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::MutexGuard;
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
fn to_port(port: u16) -> Flow {
    Flow { protocol: 17, ports: [0, port], ..Flow::default() }
}

/// Makes a driver and a cable for ports of a kind; none if they cannot be made, with the reason printed.
fn stand_with(kind: &str, cable: impl FnOnce() -> Cable) -> Option<(Stand, Cable)> {
    needs_root("making network namespaces");
    let both = (Stand::new(), cable());
    match pd_driver::openers::check(kind) {
        Ok(()) => Some(both),
        Err(why) => {
            println!("SKIPPED: {why}");
            None
        }
    }
}
