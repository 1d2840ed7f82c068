//! Service addresses with several backends, as programs of all kinds see them: native, unmodified, static, without the library.
#[path = "services/probes.rs"]
mod probes;
#[path = "services/takeover.rs"]
mod takeover;

use pd_driver::admin::{Answer, Ask, BackendReport, ServiceReport};
use pd_tests::talker::{self, tenant, Scene, Way, WAYS};
use pd_tests::{program_path, Puppet};
use std::process::Command;
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
