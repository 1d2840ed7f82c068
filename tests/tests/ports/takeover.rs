//! Ports that lead out, while one driver takes another's place.
use super::echo::{exchange, udp, Echo};
use super::{inside, stand_with, to_port, Cable, Stand, PATIENCE};
use pd_driver::admin::PortSpec;
use pd_pipe::{Direction, Flow};
use pd_tests::ip;
use rustix::io::Errno;
use std::time::Instant;

fn names(stand: &Stand) -> Vec<String> {
    stand.report().ports.into_iter().map(|port| port.name).collect()
}

/// A port that cannot go over ends with its mirrors, and its pipes are told. All else goes on. The port can be added anew.
fn ends_with_its_driver(kind: &str, cable: fn() -> Cable, port: PortSpec, ready: fn(&Cable)) {
    let Some((mut stand, cable)) = stand_with(kind, cable) else { return };
    let namespace = if kind == "tap" { cable.near() } else { cable.far() };
    let add = |stand: &Stand| stand.add("up", port.clone(), &namespace);
    add(&stand).unwrap();
    stand.add("eye", PortSpec::Mirror { of: "up".to_owned() }, "").unwrap();
    stand.add("wire", PortSpec::Link, "").unwrap();
    stand.driver.apply("[[bind]]\nmirror = true");
    let mut seen = stand.open(Direction::Receive, "eye", Flow::default()).unwrap();
    let mut sender = stand.open(Direction::Send, "wire.0", Flow::default()).unwrap();
    let mut receiver = stand.open(Direction::Receive, "wire.1", Flow::default()).unwrap();
    for turn in 0..2u8 {
        ready(&cable);
        let mut waits = stand.open(Direction::Receive, "up", to_port(9)).unwrap();
        let echo = Echo::start(stand.open(Direction::Forward, "up", to_port(7)).unwrap());
        inside(&cable.near(), || exchange(&udp("10.78.0.1:0", "10.78.0.2:7"), 50));
        stand.driver.take_over().unwrap();
        assert_eq!(names(&stand), ["wire.0", "wire.1"]);
        assert_eq!(waits.pipe.wait(PATIENCE), Err(Errno::NODEV));
        assert_eq!(echo.ended(), Errno::CONNRESET, "it forwards");
        if turn == 0 {
            // What it has received comes first.
            let ended = loop {
                seen.pipe.wait(PATIENCE).unwrap_or(());
                match seen.pipe.frames() {
                    Ok(mut frames) => while frames.next().is_some() {},
                    Err(errno) => break errno,
                }
            };
            assert_eq!(ended, Errno::NODEV);
        }
        sender.pipe.send(&[turn; 64], 0).unwrap();
        sender.pipe.flush();
        receiver.pipe.wait(PATIENCE).unwrap();
        assert_eq!(receiver.pipe.frames().unwrap().next().unwrap().bytes(), [turn; 64]);
        // The interface is free when the driver before has ended.
        let until = Instant::now() + PATIENCE;
        while let Err(why) = add(&stand) {
            assert!(Instant::now() < until, "{why}");
        }
    }
}

#[test]
fn a_tap_ends_with_its_driver_and_can_be_added_anew() {
    let ready = |cable: &Cable| {
        let near = cable.near();
        assert!(ip(&format!("-n {near} addr add 10.78.0.1/24 dev tap0")));
        assert!(ip(&format!("-n {near} link set tap0 up")));
        assert!(ip(&format!("-n {near} neigh add 10.78.0.2 lladdr 02:00:00:00:00:02 dev tap0")));
    };
    let port = PortSpec::Tap { interface: "tap0".to_owned() };
    ends_with_its_driver("tap", Cable::without_interfaces, port, ready);
}

#[test]
fn a_veth_ends_with_its_driver_and_can_be_added_anew() {
    let port = PortSpec::Veth { interface: "wan".to_owned() };
    ends_with_its_driver("veth", Cable::new, port, |_| ());
}
