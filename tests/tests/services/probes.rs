//! Backends that hang or have no listener.
use super::{connect, service, stage, Stage, MANY};
use pd_driver::admin::{BackendReport, ProbeFailure};
use pd_driver::Settings;
use pd_tests::talker::{Scene, Way};
use pd_tests::{peer_path, program_path, Puppet, TestDriver};
use procfs::process::{all_processes, Process};
use rustix::process::{kill_process, Pid, Signal};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A server that answers at once, or never.
const ANSWERS: &str = r#"
import socket, sys
listener = socket.create_server(("0.0.0.0", int(sys.argv[2])), backlog=64)
kept = []
while True:
    connection, _ = listener.accept()
    if sys.argv[1] == "well":
        try:
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except OSError:
            continue
    kept = kept[-200:] + [connection]
"#;

/// Ends with its test.
struct Server(Child);

impl Server {
    fn start(stage: &Stage, how: &str, port: u16) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &stage.0.network.namespace("a"), "python3", "-c", ANSWERS, how]);
        Self(stage.0.driver.spawn(command.arg(port.to_string())))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the children of a process that run `pd internal-probe`.
fn probers(parent: u32) -> Vec<u32> {
    let is_one = |process: &Process| {
        process.stat().is_ok_and(|stat| stat.ppid == parent as i32)
            && process.cmdline().is_ok_and(|words| words.iter().any(|word| word.contains("internal-probe")))
    };
    let found = all_processes().unwrap().filter_map(Result::ok).filter(is_one);
    found.map(|process| process.pid() as u32).collect()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// Backends that hang are found by probes, and come back. A backend on the fabric alone is not probed. Without the process that probes a
/// listener is enough.
#[test]
fn a_hung_backend_is_avoided_by_probes() {
    let with_prober = |settings: &mut Settings| settings.prober = Some(program_path("pd"));
    let stage = Stage(Scene::with(&["a", "b"], with_prober));
    let ports = [7491, 7492, 7493, 7494, 7495];
    let well = Server::start(&stage, "well", ports[0]);
    let _mute = Server::start(&stage, "mute", ports[1]);
    let _greets = stage.serve(Way::Static, &[ports[2]]);
    // On the fabric alone; and nobody.
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &stage.0.network.namespace("a")]).arg(peer_path()).arg("puppet");
    let mut native = Puppet::new(stage.0.driver.spawn(command.env("PD_KERNEL", "off")));
    native.ok(&format!("listen l 10.77.0.1:{} 8", ports[3]));
    let health =
        |probe: &str| format!("health = {{ interval_ms = 200, timeout_ms = 200, fall = 2, {probe} }}");
    let http = service(&ports, &health("probe = \"http\", path = \"/healthz\""));
    stage.apply(&http);
    let states = |backends: &[BackendReport]| {
        backends.iter().map(|backend| (backend.no_listener, backend.probe)).collect::<Vec<_>>()
    };
    let (up, out, bad) =
        ((false, None), (false, Some(ProbeFailure::TimedOut)), (false, Some(ProbeFailure::BadAnswer)));
    let (fabric, none) = ((true, None), (true, None));
    stage.wait_for("each is known", |backends| states(backends) == [up, out, bad, fabric, none]);
    let mut client = stage.0.start("b", Way::Static);
    for name in 0..MANY {
        assert_eq!(connect(&mut client, Way::Static, name), 0, "{name}");
    }
    assert_eq!(stage.made()[1..], [0, 0, 0, 0], "the one that is well has had all");
    let mut other = stage.0.start("b", Way::Native);
    other.ok("connect c 10.96.0.1:80");
    assert_eq!(stage.made()[3], 1, "on the fabric alone");
    // The backend stops, and goes on.
    well.signal(Signal::STOP);
    stage.wait_for("it is stopped", |backends| states(backends) == [out, out, bad, fabric, none]);
    assert_eq!(connect(&mut client, Way::Static, MANY), libc::ECONNREFUSED);
    well.signal(Signal::CONT);
    stage.wait_for("it goes on", |backends| states(backends) == [up, out, bad, fabric, none]);
    assert_eq!(connect(&mut client, Way::Static, MANY), 0);
    // Probes by connections alone: backends that accept are up.
    stage.apply(&service(&ports, &health("probe = \"tcp\"")));
    stage.wait_for("all that accept", |backends| states(backends) == [up, up, up, fabric, none]);
    stage.apply(&http);
    stage.wait_for("as before", |backends| states(backends) == [up, out, bad, fabric, none]);
    // The worker is killed: another one takes its place.
    let supervisor = *probers(std::process::id()).first().expect("a process that probes");
    let worker = *probers(supervisor).first().expect("its worker");
    kill(worker);
    let end = Instant::now() + Duration::from_secs(10);
    while probers(supervisor).first().is_none_or(|now| *now == worker) {
        assert!(Instant::now() < end, "no other worker");
        std::thread::sleep(Duration::from_millis(5));
    }
    well.signal(Signal::STOP);
    stage.wait_for("stopped once more", |backends| states(backends) == [out, out, bad, fabric, none]);
    // The process that would start another one is killed, too.
    kill(supervisor);
    stage.wait_for("by listeners", |backends| states(backends) == [up, up, up, fabric, none]);
    // A process that probes ends with its driver.
    let driver = TestDriver::with("cpu", with_prober);
    let other = *probers(std::process::id()).first().expect("a process that probes");
    drop(driver);
    let end = Instant::now() + Duration::from_secs(10);
    while probers(std::process::id()).contains(&other) {
        assert!(Instant::now() < end, "it has not ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A program dies: its backend gets no connections until another one listens there.
#[test]
fn a_backend_without_a_listener_is_avoided() {
    let stage = stage();
    let ports = [7441, 7442, 7443];
    let server = stage.serve(Way::Library("short"), &ports[..2]);
    let third = stage.serve(Way::Static, &ports[2..]);
    stage.apply(&service(&ports, "health = { interval_ms = 100 }"));
    stage.wait_for("all are up", |backends| backends.iter().all(|backend| !backend.no_listener));
    let ways = [Way::Static, Way::Library("all")];
    let mut clients = ways.map(|way| stage.0.start("b", way));
    let mut connect_all = |count: u32| {
        for (client, way) in clients.iter_mut().zip(ways) {
            for name in 0..count {
                assert_eq!(connect(client, way, name), 0, "{way:?}, {name}");
            }
        }
    };
    connect_all(MANY);
    assert!(stage.made().iter().all(|&made| made > 0), "{:?}", stage.made());
    drop(third);
    stage.wait_for("the third is down", |backends| backends[2].no_listener);
    let before = stage.made();
    connect_all(MANY);
    assert_eq!(stage.made()[2], before[2]);
    let row = stage.top();
    assert_eq!((&row["backends_up"], &row["backends"]), (&2.into(), &3.into()), "{row}");
    assert_eq!(row["connections_made"], stage.service().counts.connections_made);
    let third = stage.serve(Way::Static, &ports[2..]);
    stage.wait_for("it is up again", |backends| !backends[2].no_listener);
    connect_all(MANY);
    assert!(stage.made()[2] > before[2]);
    drop((server, third));
    stage.wait_for("none is up", |backends| backends.iter().all(|backend| backend.no_listener));
    for (client, way) in clients.iter_mut().zip(ways) {
        assert_eq!(connect(client, way, 60), libc::ECONNREFUSED, "{way:?}");
    }
    let mut native = stage.0.start("b", Way::Native);
    assert_eq!(connect(&mut native, Way::Native, 0), libc::ECONNREFUSED);
    assert!(stage.service().counts.connections_failed >= 3);
    // A backend outside the fabric takes native programs, too, over kernel TCP.
    let _third = stage.serve(Way::Static, &ports[2..]);
    stage.wait_for("it is up once more", |backends| !backends[2].no_listener);
    let before = stage.made();
    assert!(native.ok("connect other 10.96.0.1:80").ends_with(" 10.96.0.1:80"));
    assert_eq!(stage.made()[2], before[2] + 1);
}
