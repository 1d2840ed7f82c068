//! Service addresses with several backends, as programs of all kinds see them: native, unmodified, static, without the library.
use pd_driver::admin::{Answer, Ask, BackendReport, ProbeFailure, ServiceReport};
use pd_driver::Settings;
use pd_tests::talker::{self, tenant, Scene, Way, WAYS};
use pd_tests::{peer_path, program_path, Puppet, TestDriver};
use procfs::process::{all_processes, Process};
use rustix::process::{kill_process, Pid, Signal};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Connections of one client: enough that none of three backends is left out by chance.
const MANY: u32 = 48;

/// A driver, namespaces a (tenant red) and b (tenant blue), and `talker`, dynamic and static.
struct Stage(Scene);

fn stage() -> Stage {
    Stage(Scene::of(&["a", "b"]))
}

impl Stage {
    /// Starts a program in a that listens on these ports, of IPv4 and of IPv6.
    fn serve(&self, way: Way, ports: &[u16]) -> Puppet {
        let mut server = self.0.start("a", way);
        for port in ports {
            server.ok(&format!("listen {port}"));
        }
        server
    }

    fn text(&self, rest: &str) -> String {
        tenant(&self.0.network, "red", &["a"], "") + &tenant(&self.0.network, "blue", &["b"], "") + rest
    }

    fn apply(&self, rest: &str) {
        match self.0.driver.tell(&Ask::Apply { text: self.text(rest) }) {
            Answer::Applied { not_on_kernel: None, .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn service(&self) -> ServiceReport {
        self.0.driver.policy().services.remove(0)
    }

    /// Returns the row of the service in `pd top`.
    fn top(&self) -> serde_json::Value {
        let mut command = Command::new(program_path("pd"));
        command.args(["top", "--once", "--json", "--interval", "0.1", "--admin-socket"]);
        let output = command.arg(self.0.driver.admin_socket()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        view["services"][0].clone()
    }

    /// Connections that each backend has had.
    fn made(&self) -> Vec<u64> {
        self.service().backends.iter().map(|backend| backend.counts.connections_made).collect()
    }

    fn wait_for(&self, what: &str, until: impl Fn(&[BackendReport]) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !until(&self.service().backends) {
            assert!(Instant::now() < end, "{what}: {:#?}", self.service());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Makes the text of a service in front of ports of a.
fn service(ports: &[u16], more: &str) -> String {
    let list: Vec<_> = ports.iter().map(|port| format!("\"10.77.0.1:{port}\"")).collect();
    format!("[[service]]\naddress = \"10.96.0.1:80\"\nbackends = [{}]\n{more}\n", list.join(", "))
}

fn connect(client: &mut Puppet, way: Way, name: u32) -> i32 {
    talker::connect(client, way, name, "10.96.0.1", 80)
}

#[test]
fn every_way_reaches_all_backends() {
    let stage = stage();
    let ports = [7401, 7402, 7403];
    let mut server = stage.serve(Way::Library("short"), &ports);
    let v6 = "[[service]]\naddress = \"[fd96::1]:80\"\nbackends = [\"[fd77::1]:7411\", \"[fd77::1]:7412\"]\n";
    server.ok("hear6 7411");
    server.ok("hear6 7412");
    // Nobody has the address before.
    let mut early = stage.0.start("b", Way::Static);
    assert_eq!(connect(&mut early, Way::Static, 0), libc::ENETUNREACH);
    stage.apply(&(service(&ports, "") + v6));
    for way in WAYS {
        let mut client = stage.0.start("b", way);
        let before = stage.made();
        for name in 0..MANY {
            assert_eq!(connect(&mut client, way, name), 0, "{way:?}, {name}");
        }
        // The program sees the address that it asked for.
        if way == Way::Native {
            assert!(client.ok("connect other 10.96.0.1:80").ends_with(" 10.96.0.1:80"));
            assert!(client.ok("connect six [fd96::1]:80").ends_with(" [fd96::1]:80"));
        } else {
            assert_eq!(connect(&mut client, way, MANY), 0, "{way:?}");
            assert_eq!(client.ok("peer 0"), "10.96.0.1 80", "{way:?}");
            assert_eq!(talker::connect(&mut client, way, 50, "fd96::1", 80), 0, "{way:?}");
            assert_eq!(client.ok("peer 50"), "fd96::1 80", "{way:?}");
            // A socket of IPv6 that connects to IPv4.
            assert_eq!(talker::connect(&mut client, way, 51, "::ffff:10.96.0.1", 80), 0, "{way:?}");
            assert_eq!(client.ok("peer 51"), "::ffff:10.96.0.1 80", "{way:?}");
        }
        let more: Vec<_> = stage.made().iter().zip(before).map(|(now, was)| now - was).collect();
        assert!(more.iter().all(|&count| count > 0), "{way:?}: {more:?}");
        let total = u64::from(MANY) + 1 + u64::from(way != Way::Native);
        assert_eq!(more.iter().sum::<u64>(), total, "{way:?}: {more:?}");
        if way == Way::Library("all") {
            // The kernel connects to where the twin is, and its bytes go by the fabric.
            let both = stage
                .0
                .driver
                .report()
                .connections
                .iter()
                .filter(|c| c.from.is_some() && c.to.is_some())
                .count();
            assert!(both >= MANY as usize, "{both} connections with a twin on both sides");
        }
        drop(client);
    }
    stage.wait_for("all are closed", |backends| backends.iter().all(|b| b.counts.connections_open == 0));
    // Another way in a container that does not know the service: nothing is led anywhere.
    stage.apply("");
    assert_eq!(connect(&mut early, Way::Static, 0), libc::ENETUNREACH);
}

/// A stream to a service, and the service's counts, go on when other drivers take over.
#[test]
fn streams_and_counts_go_on_when_drivers_take_over() {
    let mut stage = stage();
    stage.apply(&service(&[7461], ""));
    let start = |stage: &Stage, letter: &str, args: [&str; 3]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &stage.0.network.namespace(letter)]).arg(peer_path()).args(args);
        stage.0.driver.spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    };
    let mut receiver = start(&stage, "a", ["steady-recv", "10.77.0.1:7461", "9"]);
    let mut received = BufReader::new(receiver.stdout.take().unwrap());
    received.read_line(&mut String::new()).unwrap();
    let sender = start(&stage, "b", ["steady-send", "10.96.0.1:80", "9"]);
    stage.wait_for("it is connected", |backends| backends[0].counts.connections_open == 1);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        stage.0.driver.take_over().unwrap();
        let service = stage.service();
        for counts in [&service.counts, &service.backends[0].counts] {
            assert_eq!((counts.connections_made, counts.connections_open), (1, 1));
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    // Its standard input ends.
    let sent = sender.wait_with_output().unwrap();
    assert!(sent.status.success());
    let mut text = String::new();
    received.read_to_string(&mut text).unwrap();
    assert!(receiver.wait().unwrap().success());
    let bytes: u64 = text.trim().parse().unwrap();
    assert_eq!(String::from_utf8_lossy(&sent.stdout).trim().parse::<u64>().unwrap(), bytes);
    stage.wait_for("it is over", |backends| backends[0].counts.connections_open == 0);
    let counts = stage.service().backends.remove(0).counts;
    assert_eq!((counts.connections_made, counts.bytes_sent), (1, bytes));
}

/// A client keeps its backend, and connections are counted for the next choice, when other drivers take over.
#[test]
fn affinity_and_least_connections_are_the_next_drivers() {
    let mut stage = stage();
    let ports = [7471, 7472, 7473];
    let _server = stage.serve(Way::Library("short"), &ports);
    let mut native = stage.0.start("b", Way::Native);
    let mut fixed = stage.0.start("b", Way::Static);
    let open = |stage: &Stage| -> Vec<u64> {
        stage.service().backends.iter().map(|backend| backend.counts.connections_open).collect()
    };
    stage.apply(&service(&ports, "affinity_seconds = 3600"));
    for (names, way) in [(0..3, Way::Native), (3..6, Way::Static), (6..9, Way::Native)] {
        for name in names {
            let client = if way == Way::Native { &mut native } else { &mut fixed };
            assert_eq!(connect(client, way, name), 0, "{way:?}");
            stage.0.driver.take_over().unwrap();
        }
    }
    // A client has one backend, over both planes and all drivers.
    let mut made = stage.made();
    made.sort_unstable();
    assert_eq!(made, [0, 0, 9]);
    // On the fabric alone.
    let ports = [7474, 7475, 7476];
    let mut server = stage.0.start("a", Way::Native);
    for port in ports {
        server.ok(&format!("listen l{port} 10.77.0.1:{port} 16"));
    }
    stage.apply(&service(&ports, "balance = \"least_connections\""));
    for name in 9..15 {
        assert_eq!(connect(&mut native, Way::Native, name), 0);
    }
    assert_eq!(open(&stage), [2, 2, 2]);
    for name in 15..21 {
        stage.0.driver.take_over().unwrap();
        assert_eq!(connect(&mut native, Way::Native, name), 0);
    }
    assert_eq!(open(&stage), [4, 4, 4]);
}

const UNMODIFIED: [Way; 3] = [Way::Static, Way::Plain, Way::Library("all")];

/// Connections on the kernel know what they asked for, and are counted, whichever driver runs.
#[test]
fn connections_on_the_kernel_are_the_next_drivers() {
    let mut stage = stage();
    let ports = [7481, 7482, 7483];
    let _server = stage.serve(Way::Static, &ports);
    let mut native = stage.0.start("a", Way::Native);
    native.ok("listen l 10.77.0.1:7484 16");
    for name in 0..2 {
        assert_eq!(talker::connect(&mut native, Way::Native, name, "10.77.0.1", 7484), 0);
    }
    stage.apply(&service(&ports, "balance = \"least_connections\""));
    let open = |stage: &Stage| -> Vec<u64> {
        stage.service().backends.iter().map(|backend| backend.counts.connections_open).collect()
    };
    let mut clients = UNMODIFIED.map(|way| (way, stage.0.start("b", way)));
    for name in 0..4 {
        for (way, client) in &mut clients {
            assert_eq!(connect(client, *way, name), 0, "{way:?}");
        }
        match name {
            // This one has room for fewer connections.
            2 => {
                let settings = Settings { connections_max: 1, ..stage.0.driver.settings().clone() };
                let engine = pd_engine::by_name("cpu").unwrap();
                let clock = std::sync::Arc::new(pd_driver::SystemClock::default());
                let failed = pd_driver::Driver::take_over(settings, clock, &*engine).unwrap_err();
                assert!(failed.to_string().contains("connections_max"), "{failed}");
            }
            _ => stage.0.driver.take_over().unwrap(),
        }
        assert_eq!(open(&stage), [u64::from(name) + 1; 3]);
        for (way, client) in &mut clients {
            for name in 0..=name {
                assert_eq!(client.ok(&format!("peer {name}")), "10.96.0.1 80", "{way:?}, {name}");
            }
        }
    }
    assert_eq!(stage.made(), [4; 3]);
    for (_, client) in &mut clients {
        client.ok("close 0");
        client.ok("close 1");
    }
    stage.wait_for("half are closed", |backends| {
        backends.iter().map(|b| b.counts.connections_open).sum::<u64>() == 6
    });
    drop(clients);
    stage.wait_for("all are closed", |backends| backends.iter().all(|b| b.counts.connections_open == 0));
}

/// At no moment is a connection led by no driver's programs, or counted by none or by two.
#[test]
fn each_connect_is_led_and_counted_once_while_drivers_take_over() {
    let mut stage = stage();
    let ports = [7485, 7486, 7487];
    let _server = stage.serve(Way::Static, &ports);
    let mut client = stage.0.start("b", Way::Static);
    stage.apply(&service(&ports, ""));
    let is_over = AtomicBool::new(false);
    let count = std::thread::scope(|scope| {
        let connects = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(connect(&mut client, Way::Static, 0), 0, "{count}");
                assert_eq!(client.ok("peer 0"), "10.96.0.1 80", "{count}");
                client.ok("close 0");
                count += 1;
            }
            count
        });
        for _ in 0..5 {
            stage.0.driver.take_over().unwrap();
            let before = stage.service().counts.connections_made;
            let end = Instant::now() + Duration::from_secs(10);
            while stage.service().counts.connections_made < before + 20 {
                assert!(Instant::now() < end && !connects.is_finished());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        connects.join().unwrap()
    });
    assert_eq!(stage.made().iter().sum::<u64>(), count);
    stage.wait_for("all are closed", |backends| backends.iter().all(|b| b.counts.connections_open == 0));
    let tenants = stage.0.driver.policy().tenants;
    let blue = tenants.iter().find(|tenant| tenant.name == "blue").unwrap().account;
    assert_eq!((blue.connections_open, blue.connections_made), (0, count));
}

/// The previous driver dies at some moment of a take-over: the next one has all of it, or nothing.
#[test]
fn a_former_driver_that_dies_takes_nothing_along() {
    let mut stage = stage();
    let ports = [7488, 7489];
    let _server = stage.serve(Way::Static, &ports);
    let mut client = stage.0.start("b", Way::Static);
    stage.apply(&service(&ports, "balance = \"least_connections\""));
    let folder = tempfile::tempdir().unwrap();
    let [config, log] = ["driver.toml", "log"].map(|name| folder.path().join(name));
    let own = stage.0.driver.settings();
    let text = format!(
        "socket = {:?}\nadmin_socket = {:?}\n[memory]\nbudget_bytes = \"1GiB\"\nhugepages = \"off\"\n",
        own.socket, own.admin_socket
    );
    std::fs::write(&config, text).unwrap();
    let mut kept = 0;
    for turn in [0, 1, 2, 3, 4, 5, 1000] {
        // A process takes the place of this one's driver.
        let mut command = Command::new(program_path("pd"));
        command.args(["driver", "--take-over", "--config"]).arg(&config).stdin(Stdio::null());
        let mut previous = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        // A question that comes while a driver is taken over is answered by none.
        let is_there = || std::fs::read_to_string(&log).unwrap().contains("has another one's place");
        while !is_there() {
            assert!(Instant::now() < end, "the process is not the driver");
            std::thread::sleep(Duration::from_millis(5));
        }
        stage.wait_for("the policy is there", |backends| backends.len() == 2);
        assert_eq!(connect(&mut client, Way::Static, 0), 0, "{turn}");
        assert_eq!(connect(&mut client, Way::Static, 1), 0, "{turn}");
        let before = stage.made();
        let is_over = AtomicBool::new(false);
        let killed = std::thread::scope(|scope| {
            scope.spawn(|| {
                let end = Instant::now() + Duration::from_millis(150 * turn);
                while Instant::now() < end && !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(100));
                }
                previous.kill().unwrap();
                previous.wait().unwrap();
            });
            let killed = stage.0.driver.take_over();
            is_over.store(true, Ordering::Relaxed);
            killed
        });
        // Until another driver is there, the dead one's programs lead.
        assert_eq!(client.ok("peer 0"), "10.96.0.1 80", "{turn}");
        match killed {
            Ok(()) => {
                kept += 1;
                assert_eq!(stage.made(), before, "{turn}");
                let open = |b: &BackendReport| b.counts.connections_open == 1;
                assert!(stage.service().backends.iter().all(open), "{turn}: {:?}", stage.service());
                assert_eq!(client.ok("peer 1"), "10.96.0.1 80", "{turn}");
            }
            Err(error) => {
                eprintln!("turn {turn}: {error}");
                stage.0.driver.stop();
                stage.0.driver.start();
                stage.apply(&service(&ports, "balance = \"least_connections\""));
            }
        }
        client.ok("close 0");
        client.ok("close 1");
        stage.wait_for("all are closed", |backends| backends.iter().all(|b| b.counts.connections_open == 0));
    }
    assert!(kept > 0, "the last one dies when all is said");
}

#[test]
fn fewest_connections_affinity_drain_and_changes() {
    let stage = stage();
    let ports = [7421, 7422, 7423];
    let _server = stage.serve(Way::Library("short"), &ports);
    let open = |stage: &Stage| -> Vec<u64> {
        stage.service().backends.iter().map(|backend| backend.counts.connections_open).collect()
    };
    // Both planes count together.
    stage.apply(&service(&ports, "balance = \"least_connections\""));
    let (mut native, mut fixed) = (stage.0.start("b", Way::Native), stage.0.start("b", Way::Static));
    for name in 0..6 {
        assert_eq!(connect(&mut native, Way::Native, name), 0);
        assert_eq!(connect(&mut fixed, Way::Static, name), 0);
    }
    assert_eq!(open(&stage), [4, 4, 4]);
    // A drained backend gets nothing new, and keeps its connections.
    let drained =
        service(&ports, "").replace("\"10.77.0.1:7422\"", "{ address = \"10.77.0.1:7422\", drain = true }");
    stage.apply(&drained);
    let before = stage.made();
    for name in 6..26 {
        assert_eq!(connect(&mut native, Way::Native, name), 0);
        assert_eq!(connect(&mut fixed, Way::Static, name), 0);
    }
    assert_eq!((stage.made()[1], open(&stage)[1]), (before[1], 4));
    assert_eq!(fixed.ask("end 0").unwrap_err().0, libc::ETIMEDOUT, "it is open");
    // A client has one backend, over both planes.
    stage.apply(&service(&ports, "affinity_seconds = 3600"));
    let before = stage.made();
    for name in 26..46 {
        assert_eq!(connect(&mut native, Way::Native, name), 0);
        assert_eq!(connect(&mut fixed, Way::Static, name), 0);
    }
    let more: Vec<_> = stage.made().iter().zip(&before).map(|(now, was)| now - was).collect();
    assert!(more.contains(&40), "{more:?}");
    // The backend goes: another one, and again one.
    let kept = more.iter().position(|&count| count == 40).unwrap();
    let rest: Vec<_> = ports.iter().copied().filter(|port| *port != ports[kept]).collect();
    stage.apply(&service(&rest, "affinity_seconds = 3600"));
    let before = stage.made();
    for name in 46..56 {
        assert_eq!(connect(&mut native, Way::Native, name), 0);
        assert_eq!(connect(&mut fixed, Way::Static, name), 0);
    }
    let more: Vec<_> = stage.made().iter().zip(&before).map(|(now, was)| now - was).collect();
    assert!(more.contains(&20), "{more:?}");
    assert_eq!(fixed.ask("end 30").unwrap_err().0, libc::ETIMEDOUT, "open connections stay");
    // A policy that is wrong changes nothing.
    for (wrong, words) in [
        (service(&[], ""), ["no backends", "add backends"]),
        (
            service(&[7421], "").replace("10.96.0.1:80", "10.77.0.1:7421"),
            ["is itself a service", "its backends"],
        ),
        (service(&[0], ""), ["port 0", "write the port"]),
    ] {
        let ask = Ask::Apply { text: stage.text(&wrong) };
        let why = pd_driver::admin::ask(stage.0.driver.admin_socket(), &ask).unwrap_err().to_string();
        assert!(why.starts_with("line 7: ") && words.iter().all(|word| why.contains(word)), "{why}");
    }
    assert_eq!(stage.service().backends.len(), 2);
    assert_eq!(connect(&mut fixed, Way::Static, 60), 0);
}

/// Rules may name the service, and hold for the backend that is chosen.
#[test]
fn rules_hold_through_a_service() {
    let stage = stage();
    let ports = [7431];
    let _server = stage.serve(Way::Library("short"), &ports);
    let ways = [Way::Native, Way::Library("all"), Way::Library("short"), Way::Static];
    let rule = |address: &str, action: &str| {
        format!("[[rule]]\nfrom = \"blue\"\naddress = \"{address}\"\naction = \"{action}\"\n")
    };
    let closed = "default = \"deny\"\n";
    for (top, rules, errno) in [
        ("", String::new(), 0),
        ("", rule("10.96.0.1", "deny"), libc::EACCES),
        ("", rule("10.77.0.1", "deny"), libc::EACCES),
        ("", rule("10.96.0.1", "allow") + &rule("10.77.0.1", "deny"), libc::EACCES),
        (closed, String::new(), libc::EACCES),
        (closed, rule("10.96.0.1", "allow"), 0),
        (closed, rule("10.77.0.1", "allow"), 0),
    ] {
        let text = top.to_owned() + &stage.text(&(rules.clone() + &service(&ports, "")));
        assert!(matches!(stage.0.driver.tell(&Ask::Apply { text }), Answer::Applied { .. }));
        for way in ways {
            let mut client = stage.0.start("b", way);
            assert_eq!(connect(&mut client, way, 0), errno, "{way:?}: {top}{rules}");
        }
    }
}

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
