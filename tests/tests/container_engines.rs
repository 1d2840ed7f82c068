//! Containers of podman and docker on the fabric: with the device that `pd cdi` describes, and with one folder
//! mounted. Needs root, and podman, docker.io and iptables: `make test-engines` installs them.
use engine::{Description, Engine};
use pd_tests::{is_root, peer_path, TestDriver};
use std::io::Read;
use std::time::{Duration, Instant};

#[path = "container_engines/engine.rs"]
mod engine;

const BYTES: &str = "300000000";

/// A connection between two containers, each started with `options`.
fn native(engine: &Engine, driver: &TestDriver, options: &[String]) {
    let (receiver, mut printed) =
        engine.start("pd-receiver", options, &["/peer", "recv", "0.0.0.0:7000", "65536"]);
    let to = format!("{}:7000", receiver.address());
    let until = Instant::now() + Duration::from_secs(60);
    // It is refused until the receiver listens.
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

#[test]
#[ignore = "needs podman, docker.io and iptables: make test-engines"]
fn containers_of_podman_and_docker_reach_each_other() {
    assert!(is_root("container engines"), "run as root");
    let driver = TestDriver::new();
    let peer = peer_path();
    let programs = [peer.as_path()];

    let podman = Engine::podman();
    podman.import(&programs);
    let description = Description::new(driver.socket());
    native(&podman, &driver, &["--device".to_owned(), "pipedevice/fabric=native".to_owned()]);
    description.remove();
    drop(podman);

    let docker = Engine::docker();
    docker.import(&programs);
    let folder = driver.socket().parent().unwrap().display();
    native(&docker, &driver, &["-v".to_owned(), format!("{folder}:/run/pipedevice:ro")]);
    drop(docker);
}
