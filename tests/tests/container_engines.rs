//! Containers of podman and docker on the fabric: with the devices that `pd cdi` describes, and with the mounts of
//! `docs/guides/unmodified.md`. Needs root, gcc, podman, docker.io and iptables: `make test-engines` installs them.
use engine::{Description, Engine};
use pd_tests::{alone, compiled_program, needs_root, peer_path, program_path, TestDriver};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[path = "container_engines/engine.rs"]
mod engine;

const BYTES: &str = "300000000";
const PORT: &str = "7300";
/// Bytes that `calls` sends in its largest case, there and back.
const CALLS_BYTES: u64 = 2 * (16 << 20);

/// Returns the options that `docs/guides/unmodified.md` has for mounts.
fn mounts(driver: &TestDriver, preload: bool) -> Vec<String> {
    let folder = driver.socket().parent().unwrap().display();
    let mut options = vec!["-v".to_owned(), format!("{folder}:/run/pipedevice:ro")];
    if preload {
        for name in ["libpd_preload.so", "libpd_preload_core.so"] {
            let library = program_path(name);
            options.extend(["-v".to_owned(), format!("{}:/usr/lib/{name}:ro", library.display())]);
        }
        options.extend(["-e".to_owned(), "LD_PRELOAD=/usr/lib/libpd_preload.so".to_owned()]);
    }
    options
}

/// Runs an exchange in podman with the device, in docker with mounts, and in docker with the device if it supports devices.
fn in_every_way(preload: bool, exchange: impl Fn(&Engine, &TestDriver, &[String])) {
    let _alone = alone();
    needs_root("container engines");
    let driver = TestDriver::new();
    let description = Description::new(driver.socket());
    let name = if preload { "preload" } else { "native" };
    let device = ["--device".to_owned(), format!("pipedevice/fabric={name}")];
    let (peer, calls) = (peer_path(), compiled_program("calls", driver.folder(), &[]));
    let programs = [peer.as_path(), calls.as_path()];

    let podman = Engine::podman();
    podman.import(&programs);
    exchange(&podman, &driver, &device);
    drop(podman);

    let docker = Engine::docker();
    docker.import(&programs);
    exchange(&docker, &driver, &mounts(&driver, preload));
    if docker.knows_devices() {
        exchange(&docker, &driver, &device);
    } else {
        // Past the test harness, which shows the output of failures only.
        let note = b"this docker does not know of devices: mounts alone were tried\n";
        std::io::stderr().write_all(note).unwrap();
    }
    drop(docker);
    description.remove();
}

/// Makes a connection between two containers, each started with `options`.
fn native(engine: &Engine, driver: &TestDriver, options: &[String]) {
    let (receiver, mut printed) =
        engine.start("pd-receiver", options, &["/peer", "recv", "0.0.0.0:7000", "65536"]);
    let to = format!("{}:7000", receiver.address());
    let until = Instant::now() + Duration::from_secs(60);
    // Refused until the receiver listens.
    let sent = loop {
        let tried = engine.run(options, &["/peer", "send", &to, BYTES, "65536", "8"]);
        if tried.status.success() {
            break String::from_utf8(tried.stdout).unwrap();
        }
        assert!(Instant::now() < until, "{tried:?}");
    };
    let mut received = String::new();
    printed.read_to_string(&mut received).unwrap();
    let sum = |text: &str| text.split_whitespace().last().map(str::to_owned);
    assert_eq!(sum(&sent), sum(&received), "{sent} / {received}");
    drop(receiver);
    driver.wait_for("no client is left", |report| report.clients.is_empty());
}

/// Runs one program in two containers, of which neither, both or one were started with `options`. Output is the
/// same, over the fabric if both were, and over kernel TCP otherwise.
fn unmodified(engine: &Engine, driver: &TestDriver, options: &[String]) {
    let mut expected = None;
    for (server_has, client_has) in [(false, false), (true, true), (true, false), (false, true)] {
        let given = |has: bool| if has { options } else { &[] };
        let before = driver.metrics();
        let server = engine.serve("pd-server", given(server_has), &["/calls", "server", PORT]);
        let ran = engine.run(given(client_has), &["/calls", "client", &server.address(), PORT]);
        assert!(ran.status.success(), "{ran:?}");
        drop(server);
        driver.wait_for("no client is left", |report| report.clients.is_empty());
        let since = driver.metrics().since(&before);
        let had = format!("server has it: {server_has}, client: {client_has}, {options:?}");
        let expected = expected.get_or_insert_with(|| ran.stdout.clone());
        assert_eq!(String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(expected), "{had}");
        assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "{had}");
        if server_has && client_has {
            assert!(since.bytes_delivered >= CALLS_BYTES, "{had}: {} bytes", since.bytes_delivered);
        } else {
            assert_eq!((since.connections_made, since.bytes_delivered), (0, 0), "{had}");
        }
    }
}

#[test]
#[ignore = "needs podman, docker.io and iptables: make test-engines"]
fn containers_of_podman_and_docker_reach_each_other() {
    in_every_way(false, native);
}

#[test]
#[ignore = "needs podman, docker.io and iptables: make test-engines"]
fn unmodified_programs_in_containers_of_podman_and_docker_use_the_fabric() {
    in_every_way(true, unmodified);
}
