//! Services of drivers that other drivers take over from.
use super::{connect, service, stage, Stage};
use pd_driver::admin::BackendReport;
use pd_driver::Settings;
use pd_tests::talker::{self, Way};
use pd_tests::{peer_path, program_path};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
