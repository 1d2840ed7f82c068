//! Links between processes, which go directly while nothing needs the agent.
use super::*;

/// Two processes of one tenant on a link. Frames go directly while nothing needs the agent, and none is lost, doubled or changed when
/// something does.
#[test]
fn a_link_goes_directly_between_processes_while_nothing_needs_the_agent() {
    goes_directly("pipe-number", "pipe-check");
}

/// Programs sleep in the kernel's epoll: both of them, and each beside one that waits by its calls.
#[test]
fn a_link_goes_directly_between_processes_in_epoll() {
    goes_directly("pipe-number-in-epoll", "pipe-check-in-epoll");
    goes_directly("pipe-number-in-epoll", "pipe-check");
    goes_directly("pipe-number", "pipe-check-in-epoll");
}

/// Lines of streams of bytes come whole and in order.
#[test]
fn a_link_of_bytes_goes_directly_between_processes_while_nothing_needs_the_agent() {
    goes_directly("pipe-lines", "pipe-lines-check");
    goes_directly("pipe-lines-in-epoll", "pipe-lines-check-in-epoll");
}

fn goes_directly(sends: &str, checks: &str) {
    let stand = Stand::new(&[("wire", PortSpec::Link)]);
    let start = |what, port| {
        let mut puppet = Puppet::new(stand.driver.peer(&[what, port]));
        assert_eq!(puppet.line(), "ready");
        puppet
    };
    let goes = |path: &str| {
        let before = stand.port("wire.1").bytes_received;
        stand.wait_for(path, |report| {
            let is_so = report.pipes.iter().all(|pipe| pipe.ended.is_none() && pipe.path == path);
            let port = |name: &str| report.ports.iter().find(|port| port.name == name).unwrap();
            let ports = [port("wire.0"), port("wire.1")];
            is_so
                && report.pipes.len() == 2
                && ports.iter().all(|port| port.path == path)
                && port("wire.1").bytes_received > before + 1_600_000
        })
    };
    let mut receiver = start(checks, "wire.1");
    let mut sender = start(sends, "wire.0");
    let report = goes("direct");
    // Accounts of both agree.
    let of = |direction: &str| report.pipes.iter().find(|pipe| pipe.direction == direction).unwrap().counts;
    assert_eq!(of("send").frames_sent, of("receive").frames_received);
    assert_eq!(of("send").bytes_sent, of("receive").bytes_received);
    for name in ["wire.0", "wire.1"] {
        let of = TapOf::Port { name: name.to_owned() };
        let Ok(mut tap) = pd_driver::admin::tap(stand.driver.admin_socket(), of, 64) else {
            assert!(sends.starts_with("pipe-lines"), "frames can be observed");
            continue;
        };
        goes("agent");
        tap.records.wait(PATIENCE).unwrap();
        drop(tap);
        goes("direct");
    }
    stand.add("copy", PortSpec::Mirror { of: "wire.1".to_owned() }).unwrap();
    goes("agent");
    stand.remove("copy").unwrap();
    goes("direct");
    stand.driver.apply(
        "[[tenant]]\nname = \"default\"\nrate = { messages_per_second = 1000000, burst_messages = 50000 }",
    );
    goes("agent");
    stand.driver.apply("");
    goes("direct");
    // Deaths, of either, at any moment.
    let mut random = Random(31);
    for turn in 0..20 {
        let (dead, what, port) = match turn % 2 {
            0 => (&mut receiver, checks, "wire.1"),
            _ => (&mut sender, sends, "wire.0"),
        };
        std::thread::sleep(Duration::from_micros(random.below(10_000)));
        dead.kill();
        *dead = start(what, port);
        if turn % 5 == 4 {
            goes("direct");
        }
    }
    receiver.kill();
    stand.wait_for("the sender is alone", |report| {
        report.pipes.len() == 1 && report.pipes[0].ended.is_none() && report.pipes[0].path == "agent"
    });
    sender.kill();
    drop((receiver, sender));
    stand.settle(0, 0);
}
