//! A policy for both data planes: native programs, unmodified ones, static ones and those without the library have the same
//! permissions.
use pd_driver::admin::Answer;
use pd_driver::admin::{Ask, TenantReport};
use pd_tests::talker::{connect, tenant, Scene, Way};
use pd_tests::{ip, Puppet};
use std::time::{Duration, Instant};

/// A driver, namespaces a (tenant red) and b (tenant blue).
struct Stage {
    scene: Scene,
    tenants: String,
}

fn stage() -> Stage {
    let scene = Scene::of(&["a", "b"]);
    let network = &scene.network;
    let tenants = tenant(network, "red", &["a"], "") + &tenant(network, "blue", &["b"], "MORE");
    Stage { scene, tenants }
}

impl Stage {
    fn talker(&self, letter: &str, way: Way) -> Puppet {
        self.scene.start(letter, way)
    }

    /// Puts rules in force, with more about the tenant blue. Connections ended on the fabric, and on the kernel.
    fn apply(&self, blue: &str, rules: &str) -> (u64, u64) {
        let text = format!("{}\n{rules}", self.tenants.replace("MORE", blue));
        match self.scene.driver.tell(&Ask::Apply { text }) {
            Answer::Applied { cut, cut_on_kernel, kept_on_kernel: 0, not_on_kernel: None } => {
                (cut, cut_on_kernel)
            }
            other => panic!("{other:?}"),
        }
    }

    fn tenant(&self, name: &str) -> TenantReport {
        self.scene.driver.policy().tenants.into_iter().find(|tenant| tenant.name == name).unwrap()
    }

    fn hits(&self) -> Vec<u64> {
        self.scene.driver.policy().rules.iter().map(|rule| rule.hits).collect()
    }
}

const LIBRARY: [Way; 3] = [Way::Library("default"), Way::Library("all"), Way::Library("short")];

/// Every client towards every server: allowed on one port, denied on another.
#[test]
fn the_same_verdict_whatever_carries_the_bytes() {
    let stage = stage();
    let servers = [Way::Plain, Way::Static].into_iter().chain(LIBRARY);
    let ways = || [Way::Static, Way::Plain].into_iter().chain(LIBRARY);
    let mut running = Vec::new();
    for (index, way) in servers.enumerate() {
        let (mut server, port) = (stage.talker("a", way), 7200 + 10 * index as u16);
        server.ok(&format!("listen {port}"));
        server.ok(&format!("listen {}", port + 1));
        running.push((server, way, port));
    }
    let mut native = stage.talker("a", Way::Native);
    native.ok("listen l 10.77.0.1:7290 64");
    native.ok("listen m 10.77.0.1:7291 64");
    let denied: Vec<_> = (0..10).map(|index| (7201 + 10 * index).to_string()).collect();
    let rules =
        format!("[[rule]]\nfrom = \"blue\"\nto = \"red\"\nport = [{}]\naction = \"deny\"", denied.join(", "));
    stage.apply("", &rules);
    let mut client = stage.talker("b", Way::Native);
    assert_eq!(connect(&mut client, Way::Native, 0, "10.77.0.1", 7290), 0);
    assert_eq!(connect(&mut client, Way::Native, 1, "10.77.0.1", 7291), libc::EACCES);
    for way in ways() {
        let mut client = stage.talker("b", way);
        for (name, (_, server, port)) in running.iter().enumerate() {
            let begin = Instant::now();
            let cell = format!("{way:?} to {server:?}");
            assert_eq!(connect(&mut client, way, name as u32, "10.77.0.1", *port), 0, "{cell}");
            assert_eq!(connect(&mut client, way, 40, "10.77.0.1", port + 1), libc::EACCES, "{cell}");
            assert!(begin.elapsed() < Duration::from_secs(3), "{cell}: refused at once");
        }
    }
    // Each is a hit, by either plane.
    assert_eq!(stage.hits(), [26, 26]);
    let blue = stage.tenant("blue").account;
    assert_eq!((blue.connections_denied, blue.connections_made), (26, 26));
    // Others are not affected: the other direction, the own namespace, and programs in unknown namespaces.
    let mut other = stage.talker("a", Way::Static);
    assert_eq!(connect(&mut other, Way::Static, 0, "10.77.0.1", 7201), 0);
    assert_eq!(connect(&mut other, Way::Static, 1, "127.0.0.1", 7211), 0);
    // Without a policy it is as before.
    stage.scene.driver.apply("");
    for way in ways() {
        let mut client = stage.talker("b", way);
        assert_eq!(connect(&mut client, way, 0, "10.77.0.1", 7201), 0, "{way:?}");
    }
}

/// Open connections end, in every way. Prints the time that takes.
#[test]
fn a_new_rule_ends_open_connections_of_all_kinds() {
    let stage = stage();
    let mut server = stage.talker("a", Way::Static);
    server.ok("listen 7301");
    server.ok("listen 7302");
    let mut fabric = stage.talker("a", Way::Library("all"));
    fabric.ok("listen 7303");
    stage.apply("", "");
    let ways: Vec<_> = [Way::Static, Way::Plain].into_iter().chain(LIBRARY).collect();
    let mut clients: Vec<_> = ways.iter().map(|&way| (stage.talker("b", way), way)).collect();
    for (client, way) in &mut clients {
        for (name, port) in [(1, 7301), (2, 7302), (3, 7303)] {
            assert_eq!(connect(client, *way, name, "10.77.0.1", port), 0, "{way:?}");
        }
    }
    let rules = "[[rule]]\nfrom = \"blue\"\nto = \"red\"\nport = [7301, 7303]\naction = \"deny\"";
    let begin = Instant::now();
    let (cut, cut_on_kernel) = stage.apply("", rules);
    println!("cut {cut} and {cut_on_kernel} within {:?}", begin.elapsed());
    assert!(cut + cut_on_kernel >= 10, "{cut}, {cut_on_kernel}");
    for (client, way) in &mut clients {
        for name in [1, 3] {
            let errno: i32 = client.ok(&format!("end {name}")).parse().unwrap();
            assert!([libc::ECONNABORTED, libc::ECONNRESET].contains(&errno), "{way:?}, {name}: {errno}");
        }
        assert_eq!(client.ask("end 2").unwrap_err().0, libc::ETIMEDOUT, "{way:?}: not denied");
        assert_eq!(connect(client, *way, 5, "10.77.0.1", 7301), libc::EACCES, "{way:?}");
        assert_eq!(connect(client, *way, 2, "10.77.0.1", 7302), 0, "{way:?}");
    }
}

#[test]
fn a_quota_counts_both_ways() {
    let mut stage = stage();
    let mut server = stage.talker("a", Way::Static);
    server.ok("listen 7310");
    let mut native = stage.talker("a", Way::Native);
    native.ok("listen l 10.77.0.1:7311 64");
    stage.apply("connections_max = 3", "");
    let (mut client, mut other) = (stage.talker("b", Way::Native), stage.talker("b", Way::Static));
    assert_eq!(connect(&mut client, Way::Native, 0, "10.77.0.1", 7311), 0);
    assert_eq!(connect(&mut other, Way::Static, 0, "10.77.0.1", 7310), 0);
    assert_eq!(connect(&mut other, Way::Static, 1, "10.77.0.1", 7310), 0);
    assert_eq!(connect(&mut other, Way::Static, 2, "10.77.0.1", 7310), libc::EMFILE);
    assert_eq!(connect(&mut client, Way::Native, 1, "10.77.0.1", 7311), libc::EMFILE);
    let mut library = stage.talker("b", Way::Library("all"));
    assert_eq!(connect(&mut library, Way::Library("all"), 0, "10.77.0.1", 7310), libc::EMFILE);
    let blue = stage.tenant("blue").account;
    assert_eq!((blue.connections_open, blue.connections_over_quota), (3, 3));
    // The next driver counts the same.
    for over in 3..6 {
        stage.scene.driver.take_over().unwrap();
        let blue = stage.tenant("blue").account;
        assert_eq!((blue.connections_open, blue.connections_over_quota), (3, over));
        assert_eq!(blue.connections_made, 3);
        assert_eq!(connect(&mut other, Way::Static, 2, "10.77.0.1", 7310), libc::EMFILE);
    }
    // Closing gives back the quota.
    other.ok("close 0");
    let end = Instant::now() + Duration::from_secs(5);
    while stage.tenant("blue").account.connections_open > 2 {
        assert!(Instant::now() < end, "{:?}", stage.tenant("blue").account);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(connect(&mut client, Way::Native, 1, "10.77.0.1", 7311), 0);
    assert_eq!(connect(&mut other, Way::Static, 2, "10.77.0.1", 7310), libc::EMFILE);
}

#[test]
fn a_rate_binds_what_stays_on_the_kernel() {
    let stage = stage();
    let mut server = stage.talker("a", Way::Static);
    server.ok("listen 7320");
    let mut old = stage.talker("b", Way::Static);
    assert_eq!(connect(&mut old, Way::Static, 0, "10.77.0.1", 7320), 0);
    stage.apply("rate = { bytes_per_second = \"10MB\", burst_bytes = \"1MB\" }", "");
    let mut new = stage.talker("b", Way::Static);
    assert_eq!(connect(&mut new, Way::Static, 0, "10.77.0.1", 7320), 0);
    let begin = Instant::now();
    old.tell("pour 0 2");
    new.tell("pour 0 2");
    let sent: f64 =
        [old.answer(), new.answer()].map(|answer| answer.unwrap().parse::<f64>().unwrap()).iter().sum();
    let took = begin.elapsed().as_secs_f64();
    // Bytes in buffers of the two have been taken, but have not gone.
    let most = 1e6 + 10e6 * took + 2.0 * 8e6;
    eprintln!("{sent} bytes in {took} s at 10 MB/s");
    assert!(sent < most && sent > 4e6, "{sent} of {most}");
    let blue = stage.tenant("blue");
    assert!(blue.rate_waits > 0, "{blue:?}");
    // Without the rate more goes than it allows, once waiting bytes have gone and TCP has adapted. Other processes may have the processors
    // meanwhile.
    stage.apply("", "");
    let mut pour = || new.ok("pour 0 2").parse::<f64>().unwrap();
    let free = (0..10).map(|_| pour()).find(|&free| free > 40e6).expect("more than the rate allows");
    // A rate that is never reached costs a look at each packet.
    stage.apply("rate = { bytes_per_second = \"100GB\" }", "");
    let looked_at = pour();
    eprintln!("bytes in 2 s: {free} without a rate, {looked_at} with one that is never reached");
    // Bytes of a connection on the kernel count when it is over.
    assert_eq!(connect(&mut new, Way::Static, 1, "10.77.0.1", 7320), 0);
    let sent: f64 = new.ok("pour 1 0.2").parse().unwrap();
    new.ok("close 1");
    let end = Instant::now() + Duration::from_secs(10);
    while (stage.tenant("blue").account.bytes_sent as f64) < sent {
        assert!(Instant::now() < end, "{:?}", stage.tenant("blue").account);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(stage.tenant("red").account.bytes_received as f64 >= sent);
}

/// The last of ten thousand rules binds. Prints the cost of a connect with ten rules and with all.
#[test]
fn ten_thousand_rules_bind_as_ten_do() {
    let stage = stage();
    let mut server = stage.talker("a", Way::Static);
    server.ok("listen 7330");
    let mut client = stage.talker("b", Way::Static);
    let rules = |count: u16| -> String {
        let one = |n: u16| format!("[[rule]]\nfrom = \"blue\"\nport = {}\naction = \"deny\"\n", 10_000 + n);
        (0..count).map(one).collect()
    };
    for count in [10, 10_000] {
        let begin = Instant::now();
        stage.apply("", &rules(count));
        let applied = begin.elapsed();
        assert_eq!(connect(&mut client, Way::Static, 9, "10.77.0.1", 10_000 + count - 1), libc::EACCES);
        assert_eq!(connect(&mut client, Way::Static, 9, "10.77.0.1", 7330), 0);
        let median = client.ok("times 10.77.0.1 7330 500");
        eprintln!("{count} rules: applied in {applied:?}, median connect {median} us");
    }
}

/// An address that a container gets later belongs to it; one that only a rule names is bound, too.
#[test]
fn addresses_come_and_go() {
    let stage = stage();
    let mut server = stage.talker("a", Way::Static);
    server.ok("listen 7340");
    stage.apply("", "[[rule]]\nfrom = \"blue\"\nto = \"red\"\naction = \"deny\"\n");
    let mut client = stage.talker("b", Way::Static);
    assert_eq!(connect(&mut client, Way::Static, 0, "10.77.0.1", 7340), libc::EACCES);
    assert!(ip(&format!("-n {} addr add 10.77.0.9/24 dev eth0", stage.scene.network.namespace("a"))));
    let end = Instant::now() + Duration::from_secs(5);
    while connect(&mut client, Way::Static, 0, "10.77.0.9", 7340) != libc::EACCES {
        assert!(Instant::now() < end, "the new address is never known");
        std::thread::sleep(Duration::from_millis(2));
    }
    // The bridge's namespace has no client, and no rule names it but by its address.
    let switch = stage.scene.network.namespace("s");
    assert!(ip(&format!("-n {switch} addr add 10.77.0.200/24 dev br0")));
    assert!(ip(&format!("-n {switch} link set lo up")));
    let mut there = stage.talker("s", Way::Static);
    there.ok("listen 7341");
    assert_eq!(connect(&mut client, Way::Static, 1, "10.77.0.200", 7341), 0);
    let rule = "[[rule]]\nfrom = \"blue\"\naddress = \"10.77.0.200\"\naction = \"deny\"\n";
    assert_eq!(stage.apply("", rule).1, 1, "an open connection");
    assert_eq!(connect(&mut client, Way::Static, 1, "10.77.0.200", 7341), libc::EACCES);
    assert_eq!(connect(&mut client, Way::Static, 1, "10.77.0.1", 7340), 0);
    // An unknown party is not bound.
    assert_eq!(connect(&mut there, Way::Static, 2, "10.77.0.1", 7340), 0);
}

/// Policies that come while another one is staged are put in force one after the other, and each is answered.
#[test]
fn policies_at_once_are_all_answered() {
    let stage = stage();
    let mut server = stage.talker("a", Way::Static);
    server.ok("listen 7360");
    let rule = |port: u16| format!("[[rule]]\nfrom = \"blue\"\nport = {port}\naction = \"deny\"\n");
    std::thread::scope(|scope| {
        for port in 7370..7376 {
            let (stage, rule) = (&stage, rule(port));
            scope.spawn(move || stage.apply("", &rule));
        }
    });
    stage.apply("", &rule(7360));
    let mut client = stage.talker("b", Way::Static);
    assert_eq!(connect(&mut client, Way::Static, 0, "10.77.0.1", 7360), libc::EACCES);
    // Clients that come and go under a policy leave it in force for others.
    for _ in 0..5 {
        drop(stage.talker("a", Way::Native));
        drop(stage.talker("b", Way::Native));
        assert_eq!(connect(&mut client, Way::Static, 0, "10.77.0.1", 7360), libc::EACCES);
    }
}

/// Half a policy is never in force.
#[test]
fn a_policy_that_the_kernel_does_not_take_is_not_in_force_on_the_fabric_either() {
    let stage = stage();
    let mut native = stage.talker("a", Way::Native);
    native.ok("listen l 10.77.0.1:7350 64");
    let mut client = stage.talker("b", Way::Native);
    let deny = "[[rule]]\nfrom = \"blue\"\nport = 7350\naction = \"deny\"\n";
    stage.apply("", deny);
    // Five thousand networks with fifty prefixes of ports each.
    let one = |n: u32| {
        format!(
            "[[rule]]\naddress=\"11.{}.{}.1\"\nport=[\"1-32766\",\"32769-65534\"]\naction=\"deny\"\n",
            n / 100,
            n % 100
        )
    };
    let many: String = (0..5_000).map(one).collect();
    let text = format!("{}\n{many}", stage.tenants.replace("MORE", ""));
    let why = pd_driver::admin::ask(stage.scene.driver.admin_socket(), &Ask::Apply { text })
        .unwrap_err()
        .to_string();
    assert!(why.contains("the kernel does not take it") && why.contains("too large"), "{why}");
    assert_eq!(connect(&mut client, Way::Native, 0, "10.77.0.1", 7350), libc::EACCES);
    assert_eq!(stage.hits().len(), 2);
}
