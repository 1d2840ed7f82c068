//! Policy between real containers: denied, limited, routed, counted, and changed while they talk.
use pd_driver::admin::{Answer, Ask, TenantReport};
use pd_driver::mounts::unified_hierarchy;
use pd_driver::policy::Path;
use pd_driver::Settings;
use pd_tests::{needs_root, ControlGroup, Network, Puppet, TestDriver};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// A driver, namespaces a and b, a puppet in each, and text that makes them the tenants red and blue.
struct Stage {
    driver: TestDriver,
    network: Network,
    a: Puppet,
    b: Puppet,
    tenants: String,
}

fn stage(change: impl FnOnce(&mut Settings)) -> Stage {
    needs_root("making network namespaces");
    let driver = TestDriver::with("cpu", |settings| {
        settings.hugepages = pd_driver::HugepageUse::Off;
        change(settings);
    });
    let network = Network::new();
    let (a, b) = (network.puppet(&driver, "a"), network.puppet(&driver, "b"));
    let tenant = |name: &str, letter: &str, more: &str| {
        let namespace = network.namespace(letter);
        format!("[[tenant]]\nname = \"{name}\"\nnamespaces = [\"/run/netns/{namespace}\"]\n{more}\n")
    };
    let tenants = tenant("red", "a", "") + &tenant("blue", "b", "MORE");
    Stage { driver, network, a, b, tenants }
}

impl Stage {
    /// Puts rules in force, with more about the tenant blue. Returns the number of connections ended.
    fn apply(&self, blue: &str, rules: &str) -> u64 {
        self.driver.apply(&format!("{}\n{rules}", self.tenants.replace("MORE", blue)))
    }

    fn tenant(&self, name: &str) -> TenantReport {
        let found = self.driver.policy().tenants.into_iter().find(|tenant| tenant.name == name);
        found.unwrap_or_else(|| panic!("no tenant {name}"))
    }

    fn wait_for(&self, name: &str, until: impl Fn(&TenantReport) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !until(&self.tenant(name)) {
            assert!(Instant::now() < end, "{:?}", self.tenant(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn stream(client: &mut Puppet, server: &mut Puppet, seed: u64, from: u64, bytes: u64) {
    client.tell(&format!("send c {seed} {from} {bytes} 50000"));
    server.ok(&format!("recv s {seed} {from} {bytes}"));
    client.answer().unwrap();
}

#[test]
fn what_is_denied_is_refused_and_counted() {
    let mut stage = stage(|_| {});
    stage.a.ok("listen l 10.77.0.1:7100 8");
    stage.a.ok("listen m 10.77.0.1:7101 8");
    stage.b.ok("listen l 10.77.0.2:7100 8");
    let rules =
        "[[rule]]\nfrom = \"blue\"\nto = \"red\"\naddress = \"10.77.0.0/24\"\nport = 7100\naction = \"deny\"";
    stage.apply("", rules);
    let (errno, message) = stage.b.ask("connect c 10.77.0.1:7100").unwrap_err();
    assert_eq!(errno, libc::EACCES);
    assert!(message.contains("10.77.0.1:7100") && message.contains("pd policy show"), "{message}");
    // Another port, the other direction, and the namespace itself are not.
    stage.b.ok("connect c 10.77.0.1:7101");
    stage.a.ok("accept s m");
    stream(&mut stage.b, &mut stage.a, 1, 0, 300_000);
    stage.a.ok("connect back 10.77.0.2:7100");
    stage.a.ok("connect own 10.77.0.1:7100");
    let policy = stage.driver.policy();
    assert_eq!(policy.rules.iter().map(|rule| rule.hits).collect::<Vec<_>>(), [1, 2], "{policy:?}");
    let blue = stage.tenant("blue").account;
    assert_eq!((blue.connections_denied, blue.connections_made, blue.connections_accepted), (1, 1, 1));
    // Only allowed connections remain; those within a namespace are still allowed.
    assert_eq!(stage.apply("", "[[rule]]\naction = \"deny\""), 2);
    assert_eq!(stage.b.errno("connect c 10.77.0.1:7101"), libc::EACCES);
    assert_eq!(stage.a.errno("connect c 10.77.0.2:7100"), libc::EACCES);
    stage.a.ok("connect own 10.77.0.1:7100");
}

#[test]
fn a_service_address_leads_to_a_container() {
    let mut stage = stage(|_| {});
    stage.a.ok("listen l 10.77.0.1:7102 8");
    assert_eq!(stage.b.errno("connect c 10.96.0.1:80"), libc::EHOSTUNREACH);
    let services =
        "[[rule]]\naddress = \"10.77.0.1\"\nport = 7102\naction = \"allow\"\n[[rule]]\naction = \"deny\"\n\
                  [[service]]\naddress = \"10.96.0.1:80\"\nbackends = [\"10.77.0.1:7102\"]";
    stage.apply("", services);
    let connected = stage.b.ok("connect c 10.96.0.1:80");
    let accepted = stage.a.ok("accept s l");
    let (local, peer) = connected.split_once(' ').unwrap();
    assert_eq!(peer, "10.96.0.1:80", "the address connected to");
    assert!(local.starts_with("10.77.0.2:"));
    assert_eq!(accepted, format!("10.77.0.1:7102 {local}"), "the listener's own address");
    stream(&mut stage.b, &mut stage.a, 2, 0, 300_000);
    assert_eq!(stage.driver.policy().services[0].counts.connections_made, 1);
    // Without the service the connection stays, and no other comes.
    assert_eq!(stage.apply("", ""), 0);
    stream(&mut stage.b, &mut stage.a, 2, 300_000, 300_000);
    assert_eq!(stage.b.errno("connect d 10.96.0.1:80"), libc::EHOSTUNREACH);
}

#[test]
fn a_tenant_has_so_many_connections_and_no_more() {
    let mut stage = stage(|_| {});
    stage.a.ok("listen l 10.77.0.1:7103 64");
    stage.apply("connections_max = 3", "");
    stage.b.ok("connect-many c 10.77.0.1:7103 3");
    stage.a.ok("accept-many s l 3");
    let mut second = stage.network.puppet(&stage.driver, "b");
    let (errno, message) = second.ask("connect c 10.77.0.1:7103").unwrap_err();
    assert_eq!(errno, libc::EMFILE);
    assert!(message.contains("connections_max"), "{message}");
    // Other tenants have their own quotas, and being connected to does not count.
    stage.a.ok("connect-many own 10.77.0.1:7103 5");
    stage.b.ok("close c1");
    assert_eq!(stage.a.ok("end s1"), "0");
    stage.a.ok("close s1");
    stage.driver.wait_for("one is gone", |r| r.connections.len() == 7);
    second.ok("connect c 10.77.0.1:7103");
    assert_eq!(second.errno("connect d 10.77.0.1:7103"), libc::EMFILE);
    let blue = stage.tenant("blue").account;
    assert_eq!((blue.connections_open, blue.connections_made, blue.connections_over_quota), (3, 4, 2));
    // The quota goes with a policy, and death gives back.
    stage.apply("", "");
    second.ok("connect d 10.77.0.1:7103");
    second.kill();
    stage.a.ok("close-all");
    stage.b.ok("close-all");
    stage.driver.wait_for("all gone", |r| r.connections.is_empty());
    assert_eq!(stage.tenant("blue").account.connections_open, 0);
}

#[test]
fn what_is_reserved_for_a_tenant_is_kept_for_it() {
    let mut stage = stage(|settings| settings.clients_max = 12);
    let all = "[[tenant]]\nname = \"default\"\nclients_max = 12\n";
    stage.apply("clients_max = 3\nreserved = { clients = 3 }", all);
    // A client of red, a client of blue: two more are reserved for blue.
    stage.a.ok("listen l 10.77.0.1:7106 8");
    stage.b.ok("connect c 10.77.0.1:7106");
    let mut others: Vec<_> = (0..9).map(|_| stage.driver.puppet()).collect();
    let refused = others.iter_mut().filter_map(|puppet| puppet.ask("listen l 127.0.0.1:0 1").err());
    let refused: Vec<_> = refused.collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].0 == libc::EUSERS && refused[0].1.contains("clients_max"), "{refused:?}");
    let mut own: Vec<_> = (0..3).map(|_| stage.network.puppet(&stage.driver, "b")).collect();
    let answers =
        own.iter_mut().map(|puppet| puppet.ask("connect c 10.77.0.1:7106").map_err(|(errno, _)| errno));
    let answers: Vec<_> = answers.map(|answer| answer.err()).collect();
    assert_eq!(answers, [None, None, Some(libc::EUSERS)]);
    let holding = stage.tenant("blue").holdings.remove(0);
    let clients = holding.clients;
    assert_eq!((holding.user, clients.used, clients.max, clients.reserved), (None, 3, 3, 3));
    assert!(clients.refused > 0 && stage.driver.metrics().caps_reached > 0);
    // Reserves beyond the total are refused; the policy in force stays.
    let text = stage.tenants.replace("MORE", "reserved = { clients = 13 }");
    let why =
        pd_driver::admin::ask(stage.driver.admin_socket(), &Ask::Apply { text }).unwrap_err().to_string();
    assert!(why.contains("tenant blue: reserved.clients = 13") && why.contains("there are 12"), "{why}");
    assert_eq!(stage.tenant("blue").holdings[0].clients.reserved, 3);
}

fn reload_under_traffic(movers: usize) {
    let mut stage = stage(|settings| settings.movers = movers);
    stage.apply("", "");
    stage.a.ok("listen l 10.77.0.1:7104 8");
    stage.a.ok("listen m 10.77.0.1:7105 8");
    stage.b.ok("connect c 10.77.0.1:7104");
    stage.a.ok("accept s l");
    stage.b.ok("connect d 10.77.0.1:7105");
    stage.a.ok("accept t m");
    stream(&mut stage.b, &mut stage.a, 3, 0, 2_000_000);
    // Policies come and go while a stream passes; not a byte is lost or doubled.
    let limits = [
        "rate = { bytes_per_second = \"20MB\", burst_bytes = \"300KB\" }",
        "connection_rate = { bytes_per_second = \"30MB\", burst_bytes = \"400KB\", messages_per_second = 500 }",
        "",
        "rate = { messages_per_second = 400 }\nconnection_rate = { bytes_per_second = \"40MB\" }",
    ];
    let mut waits = 0;
    for (round, limit) in limits.iter().cycle().take(12).enumerate() {
        let from = 2_000_000 + round as u64 * 3_000_000;
        stage.b.tell(&format!("send c 3 {from} 3000000 20000"));
        stage.a.tell(&format!("recv s 3 {from} 3000000"));
        assert_eq!(stage.apply(limit, ""), 0);
        stage.b.answer().unwrap();
        stage.a.answer().unwrap();
        waits += stage.tenant("blue").rate_waits;
    }
    assert!(waits > 0, "no flow ever waited");
    // The sending tenant's account has the sent bytes, the other one's the received ones.
    let moved = 2_000_000 + 12 * 3_000_000;
    // A mover counts a message just after its receiver can have it.
    stage.wait_for("blue", |blue| blue.account.bytes_sent >= moved);
    stage.wait_for("red", |red| red.account.bytes_received >= moved);
    let (red, blue) = (stage.tenant("red").account, stage.tenant("blue").account);
    assert_eq!((blue.bytes_sent, blue.bytes_received), (moved, 0));
    assert_eq!((red.bytes_sent, red.bytes_received), (0, moved));
    assert_eq!((blue.messages_sent, red.messages_received), (40 + 12 * 150, 40 + 12 * 150));
    // Denied now: cut in the middle; the neighbour on another port is not.
    stage.b.tell(&format!("send c 3 {moved} 100000000 20000"));
    stage.a.ok(&format!("recv s 3 {moved} 1000000"));
    let rules = "[[rule]]\nport = 7104\nfrom = \"blue\"\naction = \"deny\"";
    assert_eq!(stage.apply("", rules), 1);
    assert_eq!(stage.b.answer().unwrap_err().0, libc::ECONNRESET);
    // Bytes that had arrived are read, and then the end.
    let rest = format!("recv s 3 {} 1000000000", moved + 1_000_000);
    assert_eq!(stage.a.errno(&rest), libc::ECONNRESET);
    assert_eq!(stage.apply("", rules), 0, "it is cut once");
    stage.b.tell("send d 4 0 1000000 20000");
    stage.a.ok("recv t 4 0 1000000");
    stage.b.answer().unwrap();
    stage.a.ok("close-all");
    stage.b.ok("close-all");
    stage.driver.wait_for("all gone", |r| r.connections.is_empty());
    assert!(stage.driver.is_running());
    assert_eq!(stage.tenant("blue").account.connections_open, 0);
}

#[test]
fn a_policy_changes_under_traffic() {
    reload_under_traffic(1);
}

#[test]
fn a_policy_changes_under_traffic_on_three_movers() {
    reload_under_traffic(3);
}

/// Connections by the hundred under rules by the thousand are judged in many steps. The answer counts all that ended, and those that
/// are allowed go on.
#[test]
fn many_connections_are_judged_by_many_rules() {
    let mut stage = stage(|_| {});
    for port in [7107, 7108] {
        stage.a.ok(&format!("listen l{port} 10.77.0.1:{port} 1024"));
        stage.b.ok(&format!("connect-many c{port}- 10.77.0.1:{port} 400"));
        stage.a.ok(&format!("accept-many s{port}- l{port} 400"));
    }
    let rule = |port: u16| format!("[[rule]]\nport = {port}\naddress = \"10.1.0.0/16\"\naction = \"deny\"\n");
    let rules: String = (10_000..16_000).map(rule).collect();
    assert_eq!(stage.apply("", &(rules + "[[rule]]\nport = 7107\naction = \"deny\"")), 400);
    stage.driver.wait_for("the others are left", |report| report.metrics["connections_cut"] == 400);
    assert_eq!(stage.b.errno("send c7107-1 7 0 1 1"), libc::ECONNRESET);
    stage.b.ok("send c7108-1 7 0 1000 1000");
    stage.a.ok("recv s7108-1 7 0 1000");
    assert_eq!(stage.apply("", ""), 0);
}

/// Makes a control group where those of containers are.
fn group(name: &str) -> Option<ControlGroup> {
    let containers = unified_hierarchy()?.join("pipedevice");
    std::fs::create_dir_all(&containers).ok()?;
    ControlGroup::new(containers.join(name))
}

#[test]
fn a_client_does_not_choose_its_tenant() {
    let mut stage = stage(|_| {});
    let name = stage.network.namespace("c");
    let Some(group) = group(&name) else {
        eprintln!("SKIPPED: no cgroup2 that can be written");
        return;
    };
    stage.a.ok("listen l 10.77.0.1:7106 8");
    stage.apply("", "[[tenant]]\nname = \"jailed\"\n[[rule]]\nfrom = \"jailed\"\naction = \"deny\"");
    // A process of the container, registered by its first namespace. Then it goes to a namespace of its own
    // making, or to another's, and claims to be somebody else.
    let enter = group.enter();
    let peer = pd_tests::peer_path();
    let in_b = stage.network.namespace("b");
    let netns_b = format!("--net=/run/netns/{in_b}");
    let inside = |how: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", &enter, "sh"]).args(how).arg(&peer).arg("puppet");
        command.env("PD_TENANT", "red").env("PD_CONTAINER", "web");
        Puppet::new(stage.driver.spawn(&mut command))
    };
    let mut first = inside(&["unshare", "--net"]);
    let ask = Ask::Register {
        name: name.clone(),
        tenant: "jailed".into(),
        pid: first.pid(),
        addresses: vec![],
        network: None,
    };
    // Once it is in its group.
    while std::fs::read_to_string(format!("/proc/{}/comm", first.pid())).is_ok_and(|comm| comm != "peer\n") {
        std::thread::yield_now();
    }
    assert!(matches!(stage.driver.tell(&ask), Answer::Done));
    let mut others = [inside(&["unshare", "--net"]), inside(&["nsenter", &netns_b]), inside(&["env"])];
    for puppet in [&mut first].into_iter().chain(&mut others) {
        assert_eq!(puppet.errno("connect c 10.77.0.1:7106"), libc::EACCES);
    }
    assert_eq!(stage.tenant("jailed").account.connections_denied, 4);
    // A process outside all groups belongs to its namespace's tenant.
    stage.b.ok("connect c 10.77.0.1:7106");
    drop((first, others));
}

/// A process that may make control groups below its container's own gives them names that are no text, or a path that is too long.
#[test]
fn names_below_its_control_group_take_no_client_out_of_its_tenant() {
    let mut stage = stage(|_| {});
    let name = stage.network.namespace("c");
    let Some(group) = group(&name) else {
        eprintln!("SKIPPED: no cgroup2 that can be written");
        return;
    };
    stage.a.ok("listen l 10.77.0.1:7120 8");
    let path = format!("/pipedevice/{name}");
    let jail = format!("[[tenant]]\nname = \"jailed\"\ncgroups = [\"{path}\"]");
    stage.apply("", &format!("{jail}\n[[rule]]\nfrom = \"jailed\"\naction = \"deny\""));
    let netns_b = format!("--net=/run/netns/{}", stage.network.namespace("b"));
    let inside = |group: &ControlGroup| {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >cgroup.procs; exec \"$@\"", "sh", "nsenter", &netns_b]);
        command.arg(pd_tests::peer_path()).arg("puppet").current_dir(group.path());
        Puppet::new(stage.driver.spawn(&mut command))
    };
    let below = |group: &ControlGroup, part: &[u8]| {
        ControlGroup::new(group.path().join(std::ffi::OsStr::from_bytes(part))).expect("a group of its own")
    };
    let unreadable = below(&group, b"\xff\xfe");
    assert_eq!(inside(&unreadable).errno("connect c 10.77.0.1:7120"), libc::EACCES);
    drop(unreadable);
    // Each is removed before the one above.
    let mut deep = vec![below(&group, &[b'd'; 200])];
    while deep.last().unwrap().path().as_os_str().len() < 3700 {
        deep.push(below(deep.last().unwrap(), &[b'd'; 200]));
    }
    // Beyond the longest path of a call, by a link.
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("deep");
    std::os::unix::fs::symlink(deep.last().unwrap().path(), &link).unwrap();
    let mut deeper = vec![ControlGroup::new(link.join("d".repeat(200))).expect("a group of its own")];
    for _ in 0..2 {
        deeper.push(below(deeper.last().unwrap(), &[b'd'; 200]));
    }
    let refused = inside(deeper.last().unwrap()).ask("connect c 10.77.0.1:7120");
    while deeper.pop().is_some() {}
    while deep.pop().is_some() {}
    // The kernel cuts the path off or tells none, by version.
    let (errno, why) = refused.unwrap_err();
    assert!([libc::EACCES, libc::ENAMETOOLONG].contains(&errno), "{why}");
}

/// Returns the path of a new connection from `from` to the listener of `to` at `addr`. With `shared`, its ends accept
/// bytes that can still change. It then carries some bytes.
fn path(from: &mut Puppet, to: &mut Puppet, addr: &str, shared: bool) -> String {
    from.ok(&format!("connect c {addr}"));
    to.ok("accept s p");
    if shared {
        from.ok("share c");
        to.ok("share s");
    }
    let path = from.ok("path c");
    assert_eq!(to.ok("path s"), path);
    from.tell("send c 1 0 300000 7000");
    to.ok("recv s 1 0 300000");
    from.answer().unwrap();
    path
}

#[test]
fn a_connections_path_follows_the_policy() {
    let Stage { driver, network, mut a, mut b, tenants } = stage(|_| {});
    let mut sidecar = network.puppet(&driver, "a");
    a.ok("listen p 10.77.0.1:7110 8");
    let addr = "10.77.0.1:7110";
    let both = |more: &str| {
        let files = ["a", "b"].map(|letter| format!("\"/run/netns/{}\"", network.namespace(letter)));
        format!("[[tenant]]\nname = \"one\"\nnamespaces = [{}]\n{more}\n", files.join(", "))
    };
    let rule = |from: &str, to: &str, path: &str| {
        format!("[[rule]]\nfrom = \"{from}\"\nto = \"{to}\"\naction = \"allow\"\npath = \"{path}\"\n")
    };
    let trusted = |trust: bool| format!("trust = {trust}\n");
    let tenants = tenants.replace("MORE", "");
    let rate = "rate = { bytes_per_second = \"1GB\" }";
    for (policy, beside, across, shared) in [
        // No rule on trust: processes of one container trust each other, and others share rings only if both ends accept that.
        (String::new(), "direct", "offloaded", "direct"),
        ("path = \"offloaded\"".into(), "offloaded", "offloaded", "offloaded"),
        (tenants.clone(), "direct", "offloaded", "direct"),
        (both(""), "direct", "direct", "direct"),
        // Metered connections are offloaded.
        (both(rate), "offloaded", "offloaded", "offloaded"),
        (both("connection_rate = { messages_per_second = 100000 }"), "offloaded", "offloaded", "offloaded"),
        // Unless a rule says otherwise, for any tenants. It has no term on trust.
        (both(rate) + &rule("one", "one", "direct"), "direct", "direct", "direct"),
        (both("") + &rule("one", "one", "offloaded"), "offloaded", "offloaded", "offloaded"),
        (tenants.clone() + &rule("blue", "red", "direct"), "direct", "offloaded", "direct"),
        (tenants.clone() + &rule("blue", "red", "direct") + &trusted(true), "direct", "direct", "direct"),
        (both("") + &rule("one", "one", "direct") + &trusted(false), "offloaded", "offloaded", "direct"),
        (tenants.clone() + &rule("red", "red", "offloaded"), "offloaded", "offloaded", "direct"),
        (
            format!("path = \"offloaded\"\n{}", both("")) + &rule("one", "one", "direct"),
            "direct",
            "direct",
            "direct",
        ),
    ] {
        driver.apply(&policy);
        assert_eq!(path(&mut sidecar, &mut a, addr, false), beside, "beside, {policy}");
        assert_eq!(path(&mut b, &mut a, addr, false), across, "across, {policy}");
        assert_eq!(path(&mut b, &mut a, addr, true), shared, "shared, {policy}");
    }
    // The reports know.
    driver.apply(&both(""));
    assert_eq!(path(&mut b, &mut a, addr, false), "direct");
    let account = || driver.policy().tenants.into_iter().find(|t| t.name == "one").unwrap().account;
    b.tell("send c 1 300000 200000 10000");
    a.ok("recv s 1 300000 200000");
    b.answer().unwrap();
    driver.wait_for("it is reported", |report| {
        report.connections.iter().any(|c| c.path == Path::Direct && c.bytes[0] == 500_000)
    });
    assert!(driver.report().metrics["bytes_reported"] >= 500_000 && account().bytes_sent >= 500_000);
    assert!(account().messages_sent >= 63);
    // A policy that forbids the path takes it from existing connections, too.
    a.ok("listen q 10.77.0.1:7111 8");
    driver.apply(&(both("") + "[[rule]]\nport = 7111\naction = \"allow\"\npath = \"offloaded\""));
    b.ok("connect d 10.77.0.1:7111");
    a.ok("accept e q");
    assert_eq!((b.ok("path c"), b.ok("path d")), ("direct".into(), "offloaded".into()));
    assert_eq!(driver.apply(&tenants), 0);
    assert_eq!((b.ok("path c"), a.ok("path s")), ("offloaded".into(), "offloaded".into()));
    for (to, from) in [("c", "s"), ("d", "e")] {
        b.tell(&format!("send {to} 2 0 100000 10000"));
        a.ok(&format!("recv {from} 2 0 100000"));
        b.answer().unwrap();
    }
    assert_eq!(driver.metrics().connections_cut, 0);
}

/// Policies that offload and do not come and go while streams pass both ways: not a byte is lost or doubled.
fn paths_change_under_traffic(movers: usize) {
    let Stage { driver, network: _network, mut a, mut b, .. } = stage(|s| s.movers = movers);
    let policies = ["path = \"offloaded\"", "path = \"direct\""];
    a.ok("listen p 10.77.0.1:7120 8");
    let mut random = pd_tests::Random(movers as u64);
    for round in 0..12 {
        // The connection begins on one path, and is on the other one later.
        driver.apply(policies[round % 2]);
        b.ok("connect c 10.77.0.1:7120");
        a.ok("accept s p");
        b.ok("share c");
        a.ok("share s");
        let mut at = [0, 0];
        for change in 1..=3 {
            let lengths = [0, 1].map(|_| 100_000 + random.below(4_000_000));
            let message = 100 + random.below(50_000);
            // There and back at the same time, or one after the other.
            let both = random.below(2) == 0;
            for way in [0, 1] {
                let (from, to, names) = match way {
                    0 => (&mut b, &mut a, ["c", "s"]),
                    _ => (&mut a, &mut b, ["s", "c"]),
                };
                let (begin, len) = (at[way], lengths[way]);
                from.tell(&format!("send {} {way} {begin} {len} {message}", names[0]));
                std::thread::sleep(Duration::from_micros(random.below(1500)));
                if way == 0 || both {
                    assert_eq!(driver.apply(policies[(round + change + way) % 2]), 0);
                }
                to.ok(&format!("recv {} {way} {begin} {len}", names[1]));
                from.answer().unwrap();
                at[way] += len;
            }
        }
        // The end comes after the last byte on either path. Bytes sent after leaving the ring wait until the receiver
        // has read the ring: its blocks are in use until then.
        b.tell(&format!("send c 0 {} 300000 7000", at[0]));
        b.tell("shutdown c");
        driver.apply(policies[round / 2 % 2]);
        a.ok(&format!("recv s 0 {} 300000", at[0]));
        b.answer().unwrap();
        b.answer().unwrap();
        assert_eq!(a.ok("end s"), "0");
        a.ok("close s");
        assert_eq!(b.ok("end c"), "0");
        b.ok("close c");
    }
    let metrics = driver.metrics();
    assert!(metrics.connections_recalled > 0 && metrics.connections_direct > 0, "{metrics:?}");
    assert_eq!((metrics.connections_broken, metrics.connections_cut), (0, 0));
}

#[test]
fn a_connections_path_changes_under_traffic() {
    paths_change_under_traffic(1);
}

#[test]
fn a_connections_path_changes_under_traffic_on_three_movers() {
    paths_change_under_traffic(3);
}
