//! Interfaces that the driver makes, and mirrors of ports.
use super::echo::{exchange, udp, Echo};
use super::{inside, stand_with, to_port, Cable, Stand, PATIENCE, RING};
use pd_driver::admin::{Ask, PortSpec};
use pd_pipe::{Direction, Flow};
use pd_tests::ip;
use rustix::io::Errno;

/// Adds a TAP device `tap0` with 10.78.0.1 to a namespace, and a neighbour at 10.78.0.2 behind it.
pub(super) fn add_tap(stand: &Stand, namespace: &str) {
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
    // A binding of the policy is needed to see another's frames.
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
