//! Rules that lead connections through proxies, as programs of all kinds see them: native, unmodified, static, without the library.
use pd_driver::admin::{Answer, Ask, SidecarReport};
use pd_tests::talker::{self, tenant, Scene, Way, WAYS};
use pd_tests::Puppet;
use std::time::{Duration, Instant};

const SERVER: &str = "10.77.0.1";
const SERVER6: &str = "fd77::1";

/// A driver; servers in a (tenant blue), clients in b (tenant red), proxies in p and q (tenant grey).
struct Stage(Scene);

fn stage() -> Stage {
    Stage(Scene::of(&["a", "b", "p", "q"]))
}

impl Stage {
    fn serve(&self, way: Way, port: u16) -> Puppet {
        let mut server = self.0.start("a", way);
        server.ok(&format!("hear6 {port}"));
        server
    }

    fn proxy(&self, letter: &str, way: Way) -> Puppet {
        let mut proxy = self.0.start(letter, way);
        proxy.ok("proxy 15001");
        proxy
    }

    fn text(&self, rest: &str) -> String {
        let tenants = [("blue", &["a"][..]), ("red", &["b"]), ("grey", &["p", "q"])];
        tenants.map(|(name, letters)| tenant(&self.0.network, name, letters, "")).concat() + rest
    }

    fn apply(&self, rest: &str) -> (u64, u64) {
        match self.0.driver.tell(&Ask::Apply { text: self.text(rest) }) {
            Answer::Applied { not_on_kernel: None, cut, cut_on_kernel, .. } => (cut, cut_on_kernel),
            other => panic!("{other:?}"),
        }
    }

    fn sidecar(&self) -> SidecarReport {
        self.0.driver.policy().sidecars.remove(0)
    }

    fn wait_for(&self, what: &str, until: impl Fn(&SidecarReport) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !until(&self.sidecar()) {
            assert!(Instant::now() < end, "{what}: {:#?}", self.sidecar());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Connections of red to blue over IPv4 pass these, and those over IPv6 others.
fn via(hosts: &[u8], more: &str) -> String {
    let chain = |prefix: &str, end: &str| {
        let list: Vec<_> = hosts.iter().map(|host| format!("\"{prefix}{host}{end}:15001\"")).collect();
        list.join(", ")
    };
    let rule = |net: &str, chain: String| {
        format!("[[rule]]\nfrom = \"red\"\nto = \"blue\"\naddress = \"{net}\"\naction = \"allow\"\nvia = [{chain}]\n{more}\n")
    };
    rule("0.0.0.0/0", chain("10.77.0.", "")) + &rule("::/0", chain("[fd77::", "]"))
}

fn connect(client: &mut Puppet, way: Way, name: u32, ip: &str, port: u16) -> i32 {
    talker::connect(client, way, name, ip, port)
}

/// Returns the number of connections that a proxy has seen, with original destination and peer of the last one.
fn seen(proxy: &mut Puppet) -> (u32, String, String) {
    let answer = proxy.ok("seen");
    let (count, rest) = answer.split_once(' ').unwrap();
    let (asked, peer) = rest.rsplit_once(' ').unwrap();
    (count.parse().unwrap(), asked.to_owned(), peer.to_owned())
}

fn wait_seen(proxy: &mut Puppet, count: u32) -> (String, String) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let (now, asked, peer) = seen(proxy);
        if now >= count || Instant::now() > end {
            assert_eq!(now, count, "connections of the proxy; the last asked for {asked}");
            return (asked, peer);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn every_way_passes_the_proxy() {
    let stage = stage();
    let _server = stage.serve(Way::Library("short"), 7501);
    for proxied in [Way::Library("default"), Way::Library("all"), Way::Library("short"), Way::Static] {
        let mut proxy = stage.proxy("p", proxied);
        stage.apply(&via(&[3], ""));
        stage.wait_for("the proxy is up", |sidecar| sidecar.proxies[0].on_kernel);
        let before = stage.sidecar().counts.connections_made;
        for (number, way) in WAYS.into_iter().enumerate() {
            let mut client = stage.0.start("b", way);
            let count = 2 * number as u32;
            assert_eq!(connect(&mut client, way, 1, SERVER, 7501), 0, "{way:?} by {proxied:?}");
            assert_eq!(
                wait_seen(&mut proxy, count + 1),
                (format!("{SERVER} 7501"), "10.77.0.2".to_owned()),
                "{way:?} by {proxied:?}"
            );
            assert_eq!(connect(&mut client, way, 2, SERVER6, 7501), 0, "{way:?} by {proxied:?}");
            assert_eq!(
                wait_seen(&mut proxy, count + 2),
                (format!("{SERVER6} 7501"), "fd77::2".to_owned()),
                "{way:?} by {proxied:?}"
            );
            if way != Way::Native {
                // The program sees the address that it has connected to.
                assert_eq!(client.ok("peer 1"), format!("{SERVER} 7501"), "{way:?} by {proxied:?}");
                assert_eq!(client.ok("peer 2"), format!("{SERVER6} 7501"), "{way:?} by {proxied:?}");
            }
        }
        drop(proxy);
        stage.wait_for("all are closed", |sidecar| sidecar.counts.connections_open == 0);
        assert_eq!(
            stage.sidecar().counts.connections_made - before,
            WAYS.len() as u64,
            "of IPv4, by {proxied:?}"
        );
    }
}

/// Waits until a connection is over.
fn wait_end(client: &mut Puppet, name: u32) {
    let until = Instant::now() + Duration::from_secs(20);
    while end_within(client, name, 2000) == libc::ETIMEDOUT {
        assert!(Instant::now() < until, "connection {name} is open");
    }
}

/// Reads the end of a connection: 0 or an errno. `ETIMEDOUT`: it is open.
fn end(client: &mut Puppet, name: u32) -> i32 {
    end_within(client, name, 200)
}

fn end_within(client: &mut Puppet, name: u32, milliseconds: u32) -> i32 {
    client
        .ask(&format!("end {name} {milliseconds}"))
        .map_or_else(|(errno, _)| errno, |said| said.parse().unwrap())
}

const UNMODIFIED: [Way; 3] = [Way::Library("all"), Way::Library("short"), Way::Static];

#[test]
fn a_chain_and_a_service_are_passed_once() {
    let stage = stage();
    let _server = stage.serve(Way::Library("short"), 7511);
    for proxied in [Way::Library("all"), Way::Library("short"), Way::Static] {
        let (mut first, mut second) = (stage.proxy("p", proxied), stage.proxy("q", proxied));
        let service = "[[service]]\naddress = \"10.96.0.1:80\"\nbackends = [\"10.77.0.1:7511\"]\n";
        stage.apply(&(via(&[3, 4], "") + service));
        stage.wait_for("both are up", |sidecar| sidecar.proxies.iter().all(|proxy| proxy.on_kernel));
        for (number, way) in
            (0u32..).zip([Way::Native, Way::Library("all"), Way::Library("short"), Way::Static])
        {
            let mut client = stage.0.start("b", way);
            let count = 3 * number;
            assert_eq!(connect(&mut client, way, 1, SERVER, 7511), 0, "{way:?} by {proxied:?}");
            assert_eq!(wait_seen(&mut first, count + 1), (format!("{SERVER} 7511"), "10.77.0.2".to_owned()));
            assert_eq!(wait_seen(&mut second, count + 1), (format!("{SERVER} 7511"), "10.77.0.3".to_owned()));
            assert_eq!(connect(&mut client, way, 2, SERVER6, 7511), 0, "{way:?} by {proxied:?}");
            assert_eq!(
                wait_seen(&mut second, count + 2).0,
                format!("{SERVER6} 7511"),
                "{way:?} by {proxied:?}"
            );
            // By the service: proxies see its address, and the backend is chosen after them.
            assert_eq!(connect(&mut client, way, 3, "10.96.0.1", 80), 0, "{way:?} by {proxied:?}");
            assert_eq!(wait_seen(&mut first, count + 3).0, "10.96.0.1 80", "{way:?} by {proxied:?}");
            assert_eq!(wait_seen(&mut second, count + 3).0, "10.96.0.1 80", "{way:?} by {proxied:?}");
        }
    }
}

#[test]
fn a_proxy_dies() {
    let stage = stage();
    let _server = stage.serve(Way::Library("short"), 7521);
    for (on_failure, errno) in [("close", libc::ECONNREFUSED), ("bypass", 0)] {
        let proxy = stage.proxy("p", Way::Library("all"));
        stage.apply(&via(&[3], &format!("on_failure = \"{on_failure}\"")));
        stage.wait_for("the proxy is up", |sidecar| sidecar.proxies[0].on_kernel);
        let mut clients = UNMODIFIED.map(|way| (way, stage.0.start("b", way)));
        for (way, client) in &mut clients {
            assert_eq!(connect(client, *way, 1, SERVER, 7521), 0, "{way:?}");
        }
        drop(proxy);
        stage.wait_for("the proxy is down", |sidecar| !sidecar.proxies[0].on_kernel);
        for (way, client) in &mut clients {
            // The client's connection was the proxy's.
            wait_end(client, 1);
            assert_eq!(connect(client, *way, 2, SERVER, 7521), errno, "{way:?}, {on_failure}");
            assert_eq!(connect(client, *way, 3, SERVER6, 7521), errno, "{way:?}, {on_failure}");
        }
        let mut native = stage.0.start("b", Way::Native);
        assert_eq!(connect(&mut native, Way::Native, 1, SERVER, 7521), errno, "{on_failure}");
        let sidecar = stage.sidecar();
        let (refused, bypassed) = (sidecar.counts.connections_failed, sidecar.connections_bypassed);
        assert_eq!((refused >= 4, bypassed >= 4), (errno != 0, errno == 0), "{sidecar:?}");
        // The proxy is back.
        let mut proxy = stage.proxy("p", Way::Static);
        stage.wait_for("the proxy is up again", |sidecar| sidecar.proxies[0].on_kernel);
        for (number, (way, client)) in (1u32..).zip(&mut clients) {
            assert_eq!(connect(client, *way, 4, SERVER, 7521), 0, "{way:?}");
            wait_seen(&mut proxy, number);
        }
    }
}

/// A new policy holds for new connections. Connections that have to pass a proxy and have not are ended, all others go on.
#[test]
fn a_policy_changes_under_open_connections() {
    let stage = stage();
    let _server = stage.serve(Way::Library("short"), 7531);
    let mut proxies = ["p", "q"].map(|letter| stage.proxy(letter, Way::Library("all")));
    let mut clients = UNMODIFIED.map(|way| (way, stage.0.start("b", way)));
    stage.apply("");
    let connect_all = |clients: &mut [(Way, Puppet); 3], name: u32| {
        for (way, client) in clients {
            assert_eq!(connect(client, *way, name, SERVER, 7531), 0, "{way:?}");
        }
    };
    connect_all(&mut clients, 1);
    stage.apply(&via(&[3], "on_failure = \"bypass\""));
    stage.wait_for("the proxy is up", |sidecar| sidecar.proxies[0].on_kernel);
    connect_all(&mut clients, 2);
    for (way, client) in &mut clients {
        assert_eq!(end(client, 1), libc::ETIMEDOUT, "{way:?}: it may do without");
    }
    stage.apply(&via(&[3], ""));
    for (way, client) in &mut clients {
        let ended = [libc::ECONNRESET, libc::ECONNABORTED];
        assert!(ended.contains(&end(client, 1)), "{way:?}: it has passed none");
        assert_eq!(end(client, 2), libc::ETIMEDOUT, "{way:?}: it has passed the proxy");
    }
    assert_eq!(seen(&mut proxies[0]).0, 3);
    // No proxy any more: connections that have passed one go on.
    stage.apply("");
    connect_all(&mut clients, 3);
    for (way, client) in &mut clients {
        assert_eq!(end(client, 2), libc::ETIMEDOUT, "{way:?}");
    }
    // A policy that is wrong changes nothing.
    let wrong = via(&[3, 3], "");
    let ask = Ask::Apply { text: stage.text(&wrong) };
    let why = pd_driver::admin::ask(stage.0.driver.admin_socket(), &ask).unwrap_err().to_string();
    assert!(why.starts_with("line 10: rule 1: a loop of via"), "{why}");
    connect_all(&mut clients, 4);
    assert_eq!([0, 1].map(|proxy| seen(&mut proxies[proxy]).0), [3, 0]);
    // A client that may not connect at all is not led either, and the proxy may go where it leads and nowhere else.
    let closed = "default = \"deny\"\n".to_owned() + &stage.text(&via(&[3], ""));
    assert!(matches!(stage.0.driver.tell(&Ask::Apply { text: closed }), Answer::Applied { .. }));
    stage.wait_for("the proxy is up", |sidecar| sidecar.proxies[0].on_kernel);
    connect_all(&mut clients, 5);
    wait_seen(&mut proxies[0], 6);
    for (way, client) in &mut clients {
        assert_eq!(end(client, 5), libc::ETIMEDOUT, "{way:?}: both legs may stay");
        assert_eq!(connect(client, *way, 6, "10.77.0.3", 15001), libc::EACCES, "{way:?}");
    }
}

/// Bytes of a native client's turn.
const TURN_BYTES: u64 = 30_000;

/// Waits until a conversation has gone on.
fn wait_talk(client: &mut Puppet, name: u32) {
    let talked = |client: &mut Puppet| client.ok(&format!("talked {name}")).parse::<u64>().unwrap();
    let (before, end) = (talked(client), Instant::now() + Duration::from_secs(20));
    while talked(client) == before {
        assert!(Instant::now() < end, "conversation {name} stands still");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Connections through a proxy, counts and what is done without a proxy are the next drivers'.
#[test]
fn proxies_go_on_when_drivers_take_over() {
    let mut stage = stage();
    let mut server = stage.0.start("a", Way::Library("short"));
    server.ok("echo6 7541");
    let turns = [
        (Way::Library("all"), "close", libc::ECONNREFUSED),
        (Way::Library("short"), "bypass", 0),
        (Way::Static, "close", libc::ECONNREFUSED),
    ];
    for (proxied, on_failure, errno) in turns {
        let mut proxy = stage.proxy("p", proxied);
        stage.apply(&via(&[3], &format!("on_failure = \"{on_failure}\"")));
        stage.wait_for("the proxy is up", |sidecar| sidecar.proxies[0].on_kernel);
        let mut clients = UNMODIFIED.map(|way| (way, stage.0.start("b", way)));
        for (way, client) in &mut clients {
            assert_eq!(connect(client, *way, 1, SERVER, 7541), 0, "{way:?} by {proxied:?}");
            client.ok("talk 1");
        }
        let mut native = stage.0.start("b", Way::Native);
        assert_eq!(connect(&mut native, Way::Native, 1, SERVER, 7541), 0, "by {proxied:?}");
        // The greeting.
        assert_eq!(native.ok("end c1"), "1");
        wait_seen(&mut proxy, 4);
        let counted = |stage: &Stage| {
            let sidecar = stage.sidecar();
            let made = [&sidecar.counts, &sidecar.proxies[0].counts].map(|counts| counts.connections_made);
            (made, stage.0.driver.policy().rules[0].hits)
        };
        let before = counted(&stage);
        assert!(before.0.iter().all(|&made| made >= 4) && before.1 >= 4, "{before:?}");
        for turn in 0..2 {
            // Bytes are on their way meanwhile.
            let from = turn * TURN_BYTES;
            native.ok(&format!("send c1 5 {from} {TURN_BYTES} 7000"));
            stage.0.driver.take_over().unwrap();
            assert_eq!(counted(&stage), before, "by {proxied:?}");
            native.ok(&format!("recv c1 5 {from} {TURN_BYTES}"));
            clients.iter_mut().for_each(|(_, client)| wait_talk(client, 1));
            // Sockets of both sides know what was asked for.
            for (way, client) in &mut clients {
                assert_eq!(client.ok("peer 1"), format!("{SERVER} 7541"), "{way:?} by {proxied:?}");
            }
            for number in 0..4 {
                let asked = proxy.ok(&format!("asked {number}"));
                assert_eq!(asked, format!("{SERVER} 7541"), "{number} by {proxied:?}");
            }
        }
        // A new connection passes the proxy at once.
        for (number, (way, client)) in (5u32..).zip(&mut clients) {
            assert_eq!(connect(client, *way, 2, SERVER, 7541), 0, "{way:?} by {proxied:?}");
            assert_eq!(wait_seen(&mut proxy, number).0, format!("{SERVER} 7541"), "{way:?} by {proxied:?}");
        }
        assert_eq!(connect(&mut native, Way::Native, 2, SERVER, 7541), 0, "by {proxied:?}");
        wait_seen(&mut proxy, 8);
        let (made, hits) = before;
        let now = counted(&stage);
        assert_eq!(now.0, made.map(|made| made + 4), "by {proxied:?}");
        assert!(now.1 >= hits + 4, "by {proxied:?}: {hits}, {}", now.1);
        for (way, client) in &mut clients {
            assert!(client.ok("hush 1").parse::<u64>().unwrap() > 0, "{way:?} by {proxied:?}");
        }
        // The proxy dies.
        let (refused, bypassed) =
            (stage.sidecar().counts.connections_failed, stage.sidecar().connections_bypassed);
        drop(proxy);
        stage.wait_for("the proxy is down", |sidecar| !sidecar.proxies[0].on_kernel);
        for (way, client) in &mut clients {
            wait_end(client, 1);
            assert_eq!(connect(client, *way, 3, SERVER, 7541), errno, "{way:?}, {on_failure}");
        }
        assert_eq!(connect(&mut native, Way::Native, 3, SERVER, 7541), errno, "{on_failure}");
        let sidecar = stage.sidecar();
        let (refused, bypassed) =
            (sidecar.counts.connections_failed - refused, sidecar.connections_bypassed - bypassed);
        assert_eq!((refused >= 4, bypassed >= 4), (errno != 0, errno == 0), "{sidecar:?}");
    }
}
