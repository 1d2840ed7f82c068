//! Ports that lead out, while one driver takes another's place.
use super::echo::{exchange, udp, Echo};
use super::tap::add_tap;
use super::{inside, stand_with, to_port, Cable, Held, Stand, PATIENCE};
use pd_driver::admin::PortSpec;
use pd_pipe::{Direction, Flow};
use pd_tests::ip;
use rustix::io::Errno;
use std::time::Instant;

fn names(stand: &Stand) -> Vec<String> {
    stand.report().ports.into_iter().map(|port| port.name).collect()
}

/// Reads all frames of a pipe. Returns the reason of its end.
fn end_of(held: &mut Held) -> Errno {
    loop {
        let waited = held.pipe.wait(PATIENCE);
        match held.pipe.frames() {
            Ok(mut frames) => while frames.next().is_some() {},
            Err(Errno::AGAIN) => waited.unwrap(),
            Err(errno) => return errno,
        }
    }
}

/// The interface and its addresses stay, and frames reach the same pipes.
#[test]
fn a_tap_and_its_mirror_go_over() {
    let Some((mut stand, cable)) = stand_with("tap", Cable::without_interfaces) else { return };
    add_tap(&stand, &cable.near());
    stand.add("eye", PortSpec::Mirror { of: "up".to_owned() }, "").unwrap();
    stand.driver.apply("[[bind]]\nmirror = true");
    let mut seen = stand.open(Direction::Receive, "eye", to_port(9)).unwrap();
    let mut receiver = stand.open(Direction::Receive, "up", to_port(9)).unwrap();
    for turn in 1..4 {
        inside(&cable.near(), || udp("10.78.0.1:0", "10.78.0.2:9").send(&[turn; 100]).unwrap());
        for held in [&mut receiver, &mut seen] {
            held.pipe.wait(PATIENCE).unwrap();
            assert_eq!(held.pipe.frames().unwrap().next().unwrap().bytes()[42..], [turn; 100]);
        }
        stand.driver.take_over().unwrap();
        assert_eq!(names(&stand), ["eye", "up"]);
        let echo = Echo::start(stand.open(Direction::Forward, "up", to_port(7)).unwrap());
        inside(&cable.near(), || exchange(&udp("10.78.0.1:0", "10.78.0.2:7"), 50));
        let report = stand.wait_for("counts go on", |report| {
            report.ports.iter().any(|port| port.name == "up" && port.frames_sent == 50 * u64::from(turn))
        });
        assert!(report.pipes.iter().all(|pipe| pipe.ended.is_none()), "{report:?}");
        drop(echo);
    }
    // An interface goes with the last driver.
    stand.driver.stop();
    assert_eq!(end_of(&mut receiver), Errno::CONNRESET);
    assert!(!ip(&format!("-n {} link show tap0", cable.near())), "the interface stays");
}

/// A port that cannot go over ends with its mirrors, and its pipes are told. All else goes on. The port can be added anew.
#[test]
fn a_veth_ends_with_its_driver_and_can_be_added_anew() {
    let Some((mut stand, cable)) = stand_with("veth", Cable::new) else { return };
    let add = |stand: &Stand| stand.add("up", PortSpec::Veth { interface: "wan".to_owned() }, &cable.far());
    add(&stand).unwrap();
    stand.add("eye", PortSpec::Mirror { of: "up".to_owned() }, "").unwrap();
    stand.add("wire", PortSpec::Link, "").unwrap();
    stand.driver.apply("[[bind]]\nmirror = true");
    let mut seen = stand.open(Direction::Receive, "eye", Flow::default()).unwrap();
    let mut sender = stand.open(Direction::Send, "wire.0", Flow::default()).unwrap();
    let mut receiver = stand.open(Direction::Receive, "wire.1", Flow::default()).unwrap();
    for turn in 0..2u8 {
        let mut waits = stand.open(Direction::Receive, "up", to_port(9)).unwrap();
        let echo = Echo::start(stand.open(Direction::Forward, "up", to_port(7)).unwrap());
        inside(&cable.near(), || exchange(&udp("10.78.0.1:0", "10.78.0.2:7"), 50));
        stand.driver.take_over().unwrap();
        assert_eq!(names(&stand), ["wire.0", "wire.1"]);
        assert_eq!((end_of(&mut waits), end_of(&mut seen)), (Errno::NODEV, Errno::NODEV));
        assert_eq!(echo.ended(), Errno::CONNRESET, "it forwards");
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
