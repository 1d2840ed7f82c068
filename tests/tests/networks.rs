//! Networks of tenants that use the same addresses, in real network namespaces.
use pd_driver::admin::{Answer, Ask};
use pd_tests::talker::{connect, tenant, Scene, Way};
use pd_tests::{needs_root, peer_path, Network, Puppet, TestDriver};
use std::process::Command;
use std::time::{Duration, Instant};

/// Makes a policy with a network of each name, with these namespaces.
fn policy(networks: &[(&str, &[String])]) -> String {
    let network = |(name, members): &(&str, &[String])| {
        let files: Vec<_> = members.iter().map(|name| format!("\"/run/netns/{name}\"")).collect();
        format!("[[network]]\nname = \"{name}\"\nnamespaces = [{}]\n", files.join(", "))
    };
    networks.iter().map(network).collect()
}

fn exchange(a: &mut Puppet, from: &str, b: &mut Puppet, to: &str, seed: u32) {
    a.tell(&format!("send {from} {seed} 0 300000 50000"));
    b.ok(&format!("recv {to} {seed} 0 300000"));
    a.answer().unwrap();
}

#[test]
fn two_networks_with_the_same_addresses_reach_their_own_only() {
    needs_root("network namespaces");
    let driver = TestDriver::new();
    // Each has 10.77.0.1 and 10.77.0.2.
    let (red, blue) = (Network::new(), Network::new());
    let members = |network: &Network| ["a", "b"].map(|letter| network.namespace(letter));
    let (of_red, of_blue) = (members(&red), members(&blue));
    driver.apply(&policy(&[("red", &of_red), ("blue", &of_blue)]));
    let mut at = [&red, &blue].map(|network| ["a", "b"].map(|letter| network.puppet(&driver, letter)));
    for (seed, [a, b]) in at.iter_mut().enumerate() {
        for address in ["10.77.0.2", "[fd77::2]"] {
            let to = b.ok(&format!("listen l {address}:7300 8"));
            assert_eq!(to, format!("{address}:7300"));
            a.ok(&format!("connect c {to}"));
            b.ok("accept s l");
            exchange(a, "c", b, "s", seed as u32 + 1);
            for name in ["close l", "close s"] {
                b.ok(name);
            }
            a.ok("close c");
        }
    }
    let clients = driver.report().clients;
    let of = |name: &str| clients.iter().filter(|client| client.network.as_deref() == Some(name)).count();
    assert_eq!((of("red"), of("blue")), (2, 2), "{clients:?}");
    // A socket of red listens, and none of blue: its address is unreachable there.
    let [[_, red_b], [blue_a, _]] = &mut at;
    red_b.ok("listen l 10.77.0.2:7301 8");
    blue_a.tell("connect d 10.77.0.2:7301");
    let (errno, why) = blue_a.answer().expect_err("nobody of its network listens there");
    assert_eq!(errno, libc::ECONNREFUSED, "{why}");
}

#[test]
fn a_new_policy_ends_connections_that_cross_networks_and_no_others() {
    needs_root("network namespaces");
    let driver = TestDriver::new();
    let network = Network::new();
    let [a_name, b_name] = ["a", "b"].map(|letter| network.namespace(letter));
    let both = [a_name.clone(), b_name.clone()];
    driver.apply(&policy(&[("red", &both)]));
    // Both are on one bridge, where the kernel would carry connections that the fabric refuses.
    let puppet = |name: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).arg(peer_path()).arg("puppet").env("PD_KERNEL", "off");
        Puppet::new(driver.spawn(&mut command))
    };
    let (mut a, mut b) = (puppet(&a_name), puppet(&b_name));
    let to = b.ok("listen l 10.77.0.2:7302 8");
    a.ok(&format!("connect c {to}"));
    b.ok("accept s l");
    // Within a namespace.
    b.ok(&format!("connect own {to}"));
    b.ok("accept other l");
    // An equal policy in other words ends nothing.
    assert_eq!(driver.apply(&format!("{}cgroups = [\"/nowhere\"]", policy(&[("red", &both)]))), 0);
    exchange(&mut a, "c", &mut b, "s", 1);
    assert_eq!(driver.apply(&policy(&[("red", &[a_name]), ("blue", &[b_name])])), 1);
    a.tell("recv c 1 0 1");
    let (errno, _) = a.answer().expect_err("it has ended");
    assert_eq!(errno, libc::ECONNRESET);
    a.tell(&format!("connect d {to}"));
    let (errno, why) = a.answer().expect_err("another network's");
    assert!([libc::ECONNREFUSED, libc::EHOSTUNREACH].contains(&errno), "{why}");
    b.ok("send own 1 0 1000 1000");
    b.ok("recv other 1 0 1000");
    // And back.
    assert_eq!(driver.apply(""), 0);
    a.ok(&format!("connect e {to}"));
    b.ok("accept t l");
    exchange(&mut a, "e", &mut b, "t", 2);
}

/// Red and blue with a and b each, which have 10.77.0.1 and 10.77.0.2.
struct Two {
    scene: Scene,
    blue: Network,
    networks: String,
}

/// Maps: in blue 10.9.0.0/24 means red, in red 10.8.0.0/24 means blue. IPv6 is mapped likewise.
const MAPS: &str = r#"
    [[map]]
    from = "blue"
    prefix = "10.9.0.0/24"
    to = "red"
    at = "10.77.0.0/24"
    [[map]]
    from = "red"
    prefix = "10.8.0.0/24"
    to = "blue"
    at = "10.77.0.0/24"
    [[map]]
    from = "blue"
    prefix = "fd09::/64"
    to = "red"
    at = "fd77::/64"
    [[map]]
    from = "red"
    prefix = "fd08::/64"
    to = "blue"
    at = "fd77::/64"
"#;

impl Two {
    fn new() -> Self {
        let scene = Scene::of(&["a", "b"]);
        let blue = Network::new();
        let members = |network: &Network| ["a", "b"].map(|letter| network.namespace(letter));
        let networks = tenant(&scene.network, "red", &["a", "b"], "")
            + &tenant(&blue, "blue", &["a", "b"], "")
            + &policy(&[("red", &members(&scene.network)), ("blue", &members(&blue))]);
        Self { scene, blue, networks }
    }

    fn red(&self, letter: &str, way: Way) -> Puppet {
        self.scene.start(letter, way)
    }

    fn blue(&self, letter: &str, way: Way) -> Puppet {
        self.scene.start_in(&self.blue, letter, way)
    }

    /// Connections ended on the fabric, and on the kernel.
    fn apply(&self, more: &str) -> (u64, u64) {
        match self.scene.driver.tell(&Ask::Apply { text: format!("{}\n{more}", self.networks) }) {
            Answer::Applied { cut, cut_on_kernel, kept_on_kernel: 0, not_on_kernel: None } => {
                (cut, cut_on_kernel)
            }
            other => panic!("{other:?}"),
        }
    }
}

const WAYS: [Way; 4] = [Way::Library("default"), Way::Library("short"), Way::Static, Way::Plain];

/// A rule about red's addresses does not apply to blue's, though the addresses are the same. A service leads to the backend of
/// the own network.
#[test]
fn rules_and_services_hold_for_each_network_by_itself() {
    let two = Two::new();
    let (mut red, mut blue) = (two.red("b", Way::Static), two.blue("b", Way::Static));
    for server in [&mut red, &mut blue] {
        server.ok("listen 7400");
        server.ok("listen 7401");
    }
    let rules = |port: u16, to: &str| {
        format!(
            "[[rule]]\nto = \"{to}\"\nport = {port}\naction = \"deny\"\n\
             [[service]]\naddress = \"10.96.0.1:80\"\nbackends = [\"10.77.0.2:7400\"]\n"
        )
    };
    two.apply(&rules(7401, "red"));
    for way in WAYS {
        let (mut a, mut other) = (two.red("a", way), two.blue("a", way));
        assert_eq!(connect(&mut a, way, 0, "10.77.0.2", 7400), 0, "{way:?}");
        assert_eq!(connect(&mut a, way, 1, "10.77.0.2", 7401), libc::EACCES, "{way:?}");
        assert_eq!(connect(&mut other, way, 1, "10.77.0.2", 7401), 0, "{way:?}: blue's");
        assert_eq!(connect(&mut a, way, 2, "10.96.0.1", 80), 0, "{way:?}");
        assert_eq!(connect(&mut other, way, 2, "10.96.0.1", 80), 0, "{way:?}");
    }
    // Open connections of the one end, and those of the other stay.
    let (mut a, mut other) = (two.red("a", Way::Static), two.blue("a", Way::Static));
    for client in [&mut a, &mut other] {
        assert_eq!(connect(client, Way::Static, 3, "10.77.0.2", 7400), 0);
        assert_eq!(connect(client, Way::Static, 4, "10.96.0.1", 80), 0);
    }
    let (_, on_kernel) = two.apply(&rules(7400, "blue"));
    assert!(on_kernel >= 2, "{on_kernel}");
    for name in [3, 4] {
        let errno: i32 = other.ok(&format!("end {name}")).parse().unwrap();
        assert!([libc::ECONNABORTED, libc::ECONNRESET].contains(&errno), "{errno}");
        assert_eq!(a.ask(&format!("end {name} 50")).unwrap_err().0, libc::ETIMEDOUT, "red's");
    }
    assert_eq!(connect(&mut other, Way::Static, 5, "10.96.0.1", 80), libc::EACCES);
    assert_eq!(connect(&mut a, Way::Static, 5, "10.96.0.1", 80), 0);
}

/// Two processes accept on the listener of a third one, and end with it.
const WORKERS: &str = r#"
import os, select, socket, sys
listener = socket.create_server(("0.0.0.0", int(sys.argv[2])), backlog=16)
listener.setblocking(False)
ends, ours = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        os.close(ours)
        waits = select.epoll() if sys.argv[1] == "epoll" else select.poll()
        waits.register(listener, select.EPOLLIN)
        waits.register(ends, select.EPOLLIN)
        kept = []
        while True:
            for fd, _ in waits.poll():
                if fd == ends:
                    os._exit(0)
                try:
                    connection, _ = listener.accept()
                except BlockingIOError:
                    continue
                connection.send(b"h")
                kept.append(connection)
for line in sys.stdin:
    print("ok ", flush=True)
"#;

/// Each side sees an address that is valid in its own network, rules apply to the real address, and the kernel has no way.
#[test]
fn a_mapped_address_reaches_the_other_network() {
    let two = Two::new();
    two.apply(MAPS);
    let (mut red, mut blue) = (two.red("b", Way::Native), two.blue("a", Way::Native));
    for (seed, (address, mapped, seen)) in
        [("10.77.0.2", "10.9.0.2", "10.8.0.1"), ("[fd77::2]", "[fd09::2]", "[fd08::1]")]
            .into_iter()
            .enumerate()
    {
        red.ok(&format!("listen l {address}:7410 8"));
        let [local, peer] = ends(&blue.ok(&format!("connect c {mapped}:7410")));
        assert_eq!(peer, format!("{mapped}:7410"));
        let [own, from] = ends(&red.ok("accept s l"));
        assert_eq!(own, format!("{address}:7410"));
        let port = local.rsplit(':').next().unwrap();
        assert_eq!(from, format!("{seen}:{port}"), "as red names it");
        exchange(&mut blue, "c", &mut red, "s", seed as u32 + 1);
        exchange(&mut red, "s", &mut blue, "c", seed as u32 + 3);
        // And back by the name.
        blue.ok(&format!("listen k {}:7411 8", if seed == 0 { "10.77.0.1" } else { "[fd77::1]" }));
        red.ok(&format!("connect d {seen}:7411"));
        let [_, from] = ends(&blue.ok("accept t k"));
        assert!(from.starts_with(&format!("{mapped}:")), "{from}");
        for name in ["close c", "close k", "close t"] {
            blue.ok(name);
        }
        for name in ["close l", "close s", "close d"] {
            red.ok(name);
        }
    }
    // Unmodified programs without the kernel. Their listeners are found at once, in each mode of the library.
    let mut open = Vec::new();
    for (number, mode) in MODES.into_iter().enumerate() {
        let mut server = two.red("b", Way::Library(mode));
        let (port, other) = (7450 + number as u16, 7460 + number as u16);
        server.ok(&format!("listen {port}"));
        server.ok(&format!("hear6 {other}"));
        for way in MODES.map(Way::Library) {
            let mut client = two.blue("a", way);
            assert_eq!(connect(&mut client, way, 0, "10.9.0.2", port), 0, "{way:?} to {mode}");
            let names = (client.ok("peer 0"), server.ok("last"));
            assert_eq!(names, (format!("10.9.0.2 {port}"), "10.8.0.1".to_owned()), "{way:?} to {mode}");
            assert_eq!(connect(&mut client, way, 1, "fd09::2", other), 0, "{way:?} to {mode}");
            open.push(client);
        }
        assert_eq!(connect(&mut blue, Way::Native, number as u32, "10.9.0.2", port), 0, "{mode}");
        open.push(server);
    }
    // A server whose processes are made after it listens, and wait by `poll` or `epoll`.
    for (number, how) in ["epoll", "poll"].into_iter().enumerate() {
        let space = two.scene.network.namespace("b");
        let library = format!("LD_PRELOAD={}", pd_tests::program_path("libpd_preload.so").display());
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &space, "env", &library, "PD_PRELOAD=short"]);
        let port = 7470 + number as u16;
        command.args(["python3", "-c", WORKERS, how, &port.to_string()]);
        let mut server = Puppet::new(two.scene.driver.spawn(&mut command));
        server.ok("listens");
        let mut client = two.blue("a", Way::Library("short"));
        // After a fork the fabric has a listener when one of the processes waits, and the kernel has no way here.
        let mut attempts = 0;
        loop {
            match connect(&mut client, Way::Library("short"), 0, "10.9.0.2", port) {
                0 => break,
                error => assert_eq!(error, libc::ECONNREFUSED, "{how}, connection 0"),
            }
            attempts += 1;
            assert!(attempts < 500, "{how}: no worker is reached");
            std::thread::sleep(Duration::from_millis(10));
        }
        for name in 1..4 {
            let result = connect(&mut client, Way::Library("short"), name, "10.9.0.2", port);
            assert_eq!(result, 0, "{how}, connection {name}");
        }
    }
    // The kernel has no way, and the connect fails at once, whatever its routes are.
    let space = two.blue.namespace("a");
    assert!(pd_tests::ip(&format!("-n {space} route add default dev eth0")));
    for way in [Way::Static, Way::Plain] {
        let mut client = two.blue("a", way);
        let begin = Instant::now();
        assert_eq!(connect(&mut client, way, 0, "10.9.0.2", 7412), libc::EHOSTUNREACH, "{way:?}");
        assert!(begin.elapsed() < Duration::from_secs(2), "{way:?}: at once");
    }
    // Rules apply to the real address.
    red.ok("listen l 10.77.0.2:7413 8");
    blue.ok("connect e 10.9.0.2:7413");
    red.ok("accept u l");
    let rule = "[[rule]]\nfrom = \"blue\"\nto = \"red\"\naddress = \"10.77.0.2\"\naction = \"deny\"\n";
    assert!(two.apply(&format!("{MAPS}{rule}")).0 >= 2);
    let (errno, _) = blue.ask("recv e 1 0 1").unwrap_err();
    assert_eq!(errno, libc::ECONNRESET);
    assert_eq!(connect(&mut blue, Way::Native, 1, "10.9.0.2", 7413), libc::EACCES);
    for way in [Way::Static].into_iter().chain(MODES.map(Way::Library)) {
        assert_eq!(connect(&mut two.blue("a", way), way, 0, "10.9.0.2", 7413), libc::EACCES, "{way:?}");
    }
}

/// Modes of the library.
const MODES: [&str; 3] = ["default", "all", "short"];

impl Two {
    /// A program in a namespace, with these words of `env`.
    fn run(&self, network: &Network, letter: &str, environment: &[&str], program: &[&str]) -> Puppet {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.namespace(letter), "env"]).args(environment).args(program);
        Puppet::new(self.scene.driver.spawn(&mut command))
    }

    /// Runs a program with the library, in this mode.
    fn run_with(&self, network: &Network, letter: &str, mode: &str, program: &[&str]) -> Puppet {
        let library = format!("LD_PRELOAD={}", pd_tests::program_path("libpd_preload.so").display());
        self.run(network, letter, &[&library, &format!("PD_PRELOAD={mode}")], program)
    }
}

fn across() -> [String; 2] {
    ["python3".to_owned(), format!("{}/programs/across.py", env!("CARGO_MANIFEST_DIR"))]
}

/// Programs that know nothing of the driver: names, both directions, the end of either, a reset of either, and the death of a side.
#[test]
fn an_unmodified_client_of_a_mapped_address_has_a_connection_like_any_other() {
    let two = Two::new();
    two.apply(MAPS);
    let plain = pd_tests::program_path("plain");
    let plain = [plain.to_str().expect("a path")];
    let families = [
        ("10.77.0.2", "10.9.0.2", "10.8.0.1", "10.77.0.1"),
        ("[fd77::2]", "[fd09::2]", "[fd08::1]", "[fd77::1]"),
    ];
    for (client_mode, server_mode) in [("default", "default"), ("all", "short"), ("short", "all")] {
        for (index, (address, mapped, seen, own)) in families.into_iter().enumerate() {
            let what = format!("{client_mode} to {server_mode}, {mapped}");
            let mut server = two.run_with(&two.scene.network, "b", server_mode, &plain);
            let mut client = two.run_with(&two.blue, "a", client_mode, &plain);
            let port =
                server.ok(&format!("listen l {address}:0")).rsplit_once(':').expect("a port").1.to_owned();
            let to = format!("{mapped}:{port}");
            let [local, peer] = ends(&client.ok(&format!("connect c {to}")));
            assert_eq!((local.rsplit_once(':').expect("a port").0, &peer), (own, &to), "{what}");
            let [accepted, from] = ends(&server.ok("accept s l"));
            let name = format!("{seen}:{}", local.rsplit_once(':').expect("a port").1);
            assert_eq!((accepted, from), (format!("{address}:{port}"), name), "{what}");
            exchange(&mut client, "c", &mut server, "s", 1);
            exchange(&mut server, "s", &mut client, "c", 2);
            // Half of it ends, and the other half goes on.
            client.ok("shutdown c");
            assert_eq!(server.ok("end s"), "0", "{what}");
            exchange(&mut server, "s", &mut client, "c", 3);
            server.ok("close s");
            assert_eq!(client.ok("end c"), "0", "{what}");
            client.ok("close c");
            for by_client in [true, false] {
                client.ok(&format!("connect c {to}"));
                server.ok("accept s l");
                exchange(&mut client, "c", &mut server, "s", 4);
                let (resetter, named, other, ended) = match by_client {
                    true => (&mut client, "c", &mut server, "s"),
                    false => (&mut server, "s", &mut client, "c"),
                };
                resetter.ok(&format!("reset {named}"));
                assert_eq!(other.errno(&format!("end {ended}")), libc::ECONNRESET, "{what}");
                other.ok(&format!("close {ended}"));
            }
            client.ok(&format!("connect c {to}"));
            server.ok("accept s l");
            exchange(&mut client, "c", &mut server, "s", 5);
            let (dying, other, ended) = match index {
                0 => (&mut client, &mut server, "s"),
                _ => (&mut server, &mut client, "c"),
            };
            dying.kill();
            match other.ask(&format!("end {ended}")) {
                Ok(bytes) => assert_eq!(bytes, "0", "{what}"),
                Err((errno, _)) => assert_eq!(errno, libc::ECONNRESET, "{what}"),
            }
        }
    }
}

/// Clients in every mode, by every kind of connect, and what they are told where there is no connection.
#[test]
fn unmodified_clients_reach_a_mapped_address_in_every_mode() {
    let two = Two::new();
    let more = "[[rule]]\nfrom = \"blue\"\nto = \"red\"\nport = 7482\naction = \"deny\"\n\
                [[service]]\naddress = \"10.96.0.1:80\"\nbackends = [\"10.9.0.2:7480\"]\n";
    two.apply(&format!("{MAPS}{more}"));
    let script = across();
    let script = script.each_ref().map(String::as_str);
    let mut server = two.run_with(&two.scene.network, "b", "default", &script);
    for (address, port) in [("10.77.0.2", 7480), ("fd77::2", 7481), ("10.77.0.2", 7482)] {
        server.ok(&format!("serve {address} {port}"));
    }
    let space = two.blue.namespace("a");
    assert!(pd_tests::ip(&format!("-n {space} route add default dev eth0")));
    assert!(pd_tests::ip(&format!("-n {space} route add unreachable 10.50.0.0/16")));
    for mode in MODES {
        let mut client = two.run_with(&two.blue, "a", mode, &script);
        for how in ["blocking", "epoll", "poll", "select"] {
            assert_eq!(client.ok(&format!("echo 10.9.0.2 7480 {how}")), "10.77.0.1", "{mode}");
            assert_eq!(client.ok(&format!("echo fd09::2 7481 {how}")), "fd77::1", "{mode}");
            assert_eq!(client.ok(&format!("echo ::ffff:10.9.0.2 7480 {how}")), "::ffff:10.77.0.1", "{mode}");
            client.ok(&format!("dup 10.9.0.2 7480 {how}"));
            // Errors of a port without a listener, a rule that denies, an address without an owner, and one that no map has.
            for (to, errno) in [
                ("10.9.0.2 7483", libc::ECONNREFUSED),
                ("10.9.0.2 7482", libc::EACCES),
                ("10.9.0.77 7480", libc::EHOSTUNREACH),
                ("10.50.0.1 7480", libc::EHOSTUNREACH),
            ] {
                assert_eq!(client.errno(&format!("connect {to} {how}")), errno, "{mode}, {how}: {to}");
            }
        }
        client.ok("bound 10.9.0.2 7480 10.77.0.1");
        client.ok("echo 10.96.0.1 80 blocking");
        client.ok("pass 10.9.0.2 7480 blocking");
        client.ok("fork 10.9.0.2 7480 blocking");
        client.ok("echo 10.9.0.2 7480 epoll");
    }
    // A connect waits for room in the listener's backlog, if the program waits.
    let mut native = two.red("b", Way::Native);
    native.ok("listen l 10.77.0.2:7485 1");
    let mut waiting = two.run_with(&two.blue, "a", "default", &script);
    let mut other = two.run_with(&two.blue, "a", "all", &script);
    other.ok("connect 10.9.0.2 7485 epoll");
    waiting.tell("connect 10.9.0.2 7485 blocking");
    assert_eq!(other.errno("connect 10.9.0.2 7485 epoll"), libc::ECONNREFUSED);
    native.ok("accept s l");
    waiting.answer().expect("there is room");
    native.ok("accept t l");
    // Without a driver the kernel's word holds, and comes at once.
    let library = format!("LD_PRELOAD={}", pd_tests::program_path("libpd_preload.so").display());
    for mode in MODES {
        let mode = format!("PD_PRELOAD={mode}");
        let mut client = two.run(&two.blue, "a", &[&library, &mode, "PD_SOCKET=/nowhere"], &script);
        let begin = Instant::now();
        for how in ["blocking", "epoll"] {
            assert_eq!(client.errno(&format!("connect 10.9.0.2 7480 {how}")), libc::EHOSTUNREACH, "{mode}");
        }
        assert!(begin.elapsed() < Duration::from_secs(2), "{mode}: at once");
    }
}

/// The library has learnt that connections to an address are better left to the kernel, and then the address is mapped.
#[test]
fn an_address_that_is_mapped_later_is_reached_by_programs_that_know_it_as_the_kernels() {
    let two = Two::new();
    let (here, there) = (two.blue.namespace("a"), two.blue.namespace("b"));
    assert!(pd_tests::ip(&format!("-n {there} addr add 10.9.0.2/24 dev eth0")));
    assert!(pd_tests::ip(&format!("-n {here} route add 10.9.0.0/24 dev eth0")));
    two.apply("");
    let script = across();
    let script = script.each_ref().map(String::as_str);
    let mut servers =
        [(&two.scene.network, "10.77.0.2"), (&two.blue, "0.0.0.0")].map(|(network, address)| {
            let mut server = two.run_with(network, "b", "default", &script);
            server.ok(&format!("serve {address} 7484"));
            server
        });
    let mut client = two.run_with(&two.blue, "a", "default", &script);
    // Of so many short-lived ones the last are the kernel's.
    for _ in 0..40 {
        client.ok("connect 10.9.0.2 7484 blocking");
    }
    two.apply(MAPS);
    servers[1].kill();
    client.ok("echo 10.9.0.2 7484 blocking");
    client.ok("echo 10.9.0.2 7484 epoll");
}

/// Returns the local and the peer's address of a stream.
fn ends(said: &str) -> [String; 2] {
    let mut words = said.split_whitespace().map(str::to_owned);
    [(); 2].map(|()| words.next().expect("an address"))
}

#[test]
fn a_map_that_changes_ends_its_connections_and_no_others() {
    let two = Two::new();
    two.apply(MAPS);
    let (mut red, mut blue) = (two.red("b", Way::Native), two.blue("a", Way::Native));
    let mut blue_b = two.blue("b", Way::Native);
    red.ok("listen l 10.77.0.2:7420 8");
    blue_b.ok("listen l 10.77.0.2:7420 8");
    blue.ok("connect c 10.9.0.2:7420");
    red.ok("accept s l");
    blue.ok("connect own 10.77.0.2:7420");
    blue_b.ok("accept s l");
    // A further map does not affect theirs.
    let more = "[[map]]\nfrom = \"blue\"\nprefix = \"10.10.0.0/24\"\nto = \"red\"\nat = \"10.77.0.0/24\"\n";
    assert_eq!(two.apply(&format!("{MAPS}{more}")), (0, 0));
    exchange(&mut blue, "c", &mut red, "s", 1);
    // Another prefix for red's: the name no longer holds.
    assert_eq!(two.apply(&MAPS.replace("10.9.0.0/24", "10.11.0.0/24")).0, 1);
    for (puppet, name) in [(&mut blue, "c"), (&mut red, "s")] {
        assert_eq!(puppet.ask(&format!("recv {name} 1 0 1")).unwrap_err().0, libc::ECONNRESET);
    }
    exchange(&mut blue, "own", &mut blue_b, "s", 2);
    let gone = connect(&mut blue, Way::Native, 1, "10.9.0.2", 7420);
    assert!([libc::EHOSTUNREACH, libc::ENETUNREACH].contains(&gone), "{gone}");
    assert_eq!(connect(&mut blue, Way::Native, 2, "10.11.0.2", 7420), 0);
    // The way back alone: red's name of blue.
    red.ok("accept t l");
    assert_eq!(
        two.apply(&MAPS.replace("10.9.0.0/24", "10.11.0.0/24").replace("10.8.0.0/24", "10.12.0.0/24")).0,
        1
    );
    // A mistake changes nothing.
    let wrong =
        Ask::Apply { text: format!("{}\n{}", two.networks, MAPS.replace("to = \"red\"", "to = \"green\"")) };
    let why = pd_driver::admin::ask(two.scene.driver.admin_socket(), &wrong).unwrap_err().to_string();
    assert!(why.contains("'green' is no network"), "{why}");
    assert_eq!(connect(&mut blue, Way::Native, 3, "10.11.0.2", 7420), 0);
}

/// The test prints the cost of a connect with each, on the kernel and by a map on the fabric.
#[test]
fn ten_thousand_rules_and_a_hundred_maps_bind_as_a_few_do() {
    let two = Two::new();
    let mut server = two.blue("b", Way::Static);
    server.ok("listen 7430");
    let mut red = two.red("b", Way::Native);
    red.ok("listen l 10.77.0.2:7431 512");
    let (mut client, mut native) = (two.blue("a", Way::Static), two.blue("a", Way::Native));
    let rules = |count: u16| -> String {
        let one = |n: u16| format!("[[rule]]\nfrom = \"blue\"\nport = {}\naction = \"deny\"\n", 10_000 + n);
        (0..count).map(one).collect()
    };
    let maps = |count: u16| -> String {
        let one = |n: u16| {
            let of = |from, to, net| {
                format!("[[map]]\nfrom = \"{from}\"\nprefix = \"10.{net}.{n}.0/24\"\nto = \"{to}\"\nat = \"10.77.0.0/24\"\n")
            };
            of("blue", "red", 9) + &of("red", "blue", 8)
        };
        (0..count).map(one).collect()
    };
    for (count, half) in [(10, 1), (10, 50), (10_000, 50)] {
        let begin = Instant::now();
        two.apply(&(rules(count) + &maps(half)));
        let applied = begin.elapsed();
        let last = 10_000 + count - 1;
        assert_eq!(connect(&mut client, Way::Static, 9, "10.77.0.2", last), libc::EACCES);
        assert_eq!(connect(&mut client, Way::Static, 9, &format!("10.9.{}.2", half - 1), last), libc::EACCES);
        assert_eq!(connect(&mut client, Way::Static, 9, "10.77.0.2", 7430), 0);
        let median = client.ok("times 10.77.0.2 7430 500");
        let begin = Instant::now();
        native.ok(&format!("connect-many c 10.9.{}.2:7431 200", half - 1));
        let each = begin.elapsed() / 200;
        red.ok("accept-many s l 200");
        let policy = format!("{count} rules, {} maps", 2 * half);
        eprintln!("{policy}: applied in {applied:?}, median connect {median} us on the kernel, mean {each:?} by a map");
    }
}
