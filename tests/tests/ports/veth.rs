//! Interfaces of the kernel whose frames the driver takes.
use super::echo::{exchange, udp, Echo};
use super::program::Program;
use super::{inside, stand_with, to_port, Cable, PATIENCE};
use pd_driver::admin::{Ask, PortSpec};
use pd_pipe::{Direction, Flow, Net};
use pd_tests::{alone, ip, needs_root};
use rustix::io::Errno;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

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

#[test]
fn a_killed_driver_leaves_the_interface_as_it_was() {
    needs_root("making network namespaces");
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

#[test]
fn a_port_goes_with_its_interface() {
    let Some((stand, cable)) = stand_with("veth", Cable::new) else { return };
    stand.add("up", veth(), &cable.far()).unwrap();
    stand.add("tun", PortSpec::Tap { interface: "tap0".to_owned() }, &cable.near()).unwrap();
    let pipes =
        ["up", "tun"].map(|port| Echo::start(stand.open(Direction::Forward, port, to_port(7)).unwrap()));
    // An interface that is down is there.
    for (namespace, name) in [(cable.far(), "wan"), (cable.near(), "tap0")] {
        assert!(ip(&format!("-n {namespace} link set {name} down")));
        assert_eq!(stand.report().ports.len(), 2);
    }
    assert!(
        ip(&format!("-n {} link del wan", cable.far())) && ip(&format!("-n {} link del tap0", cable.near()))
    );
    stand.wait_for("the ports are gone", |report| report.ports.is_empty());
    assert_eq!(pipes.map(Echo::ended), [Errno::NODEV; 2]);
    assert!(stand.driver.is_running());
}
