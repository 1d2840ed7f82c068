//! Two containers in network namespaces of their own: they meet by address and port, and by nothing else.
use pd_tests::{ip, needs_root, Network, Puppet, TestDriver};
use std::thread;
use std::time::Duration;

/// Makes a driver, the network, and a puppet in each namespace.
fn stage() -> (TestDriver, Network, Puppet, Puppet) {
    needs_root("making network namespaces");
    let driver = TestDriver::with("cpu", |settings| settings.hugepages = pd_driver::HugepageUse::Off);
    let network = Network::new();
    let (a, b) = (network.puppet(&driver, "a"), network.puppet(&driver, "b"));
    (driver, network, a, b)
}

/// Moves a stream each way between connected sockets called `c` and `s`.
fn exchange(client: &mut Puppet, server: &mut Puppet, seed: u64) {
    client.tell(&format!("send c {seed} 0 3000000 50000"));
    server.ok(&format!("recv s {seed} 0 3000000"));
    client.answer().unwrap();
    server.tell(&format!("send s {} 0 1000000 7777", !seed));
    client.ok(&format!("recv c {} 0 1000000", !seed));
    server.answer().unwrap();
}

fn split(names: &str) -> (&str, &str) {
    names.split_once(' ').expect("two addresses")
}

fn port(addr: &str) -> u16 {
    addr.parse::<std::net::SocketAddr>().expect("address").port()
}

#[test]
fn containers_connect_by_address_and_port() {
    let (_driver, _network, mut a, mut b) = stage();
    for (seed, client_ip, server_ip) in [(1, "10.77.0.2", "10.77.0.1"), (2, "[fd77::2]", "[fd77::1]")] {
        let server_addr = format!("{server_ip}:7000");
        assert_eq!(a.ok(&format!("listen l {server_addr} 8")), server_addr);
        let connected = b.ok(&format!("connect c {server_addr}"));
        let accepted = a.ok("accept s l");
        // The names that both sides see are the same, and those of the namespaces.
        let (client_local, client_peer) = split(&connected);
        let (server_local, server_peer) = split(&accepted);
        assert_eq!((client_peer, server_local), (&*server_addr, &*server_addr));
        assert_eq!(client_local, server_peer);
        assert_eq!(client_local, format!("{client_ip}:{}", port(client_local)));
        assert_ne!(port(client_local), 0);
        exchange(&mut b, &mut a, seed);
        b.ok("shutdown c");
        assert_eq!(a.ok("end s"), "0");
        a.ok("close s");
        assert_eq!(b.ok("end c"), "0");
        b.ok("close c");
        a.ok("close l");
        assert_eq!(b.errno(&format!("connect c {server_addr}")), libc::ECONNREFUSED);
    }
}

#[test]
fn wildcards_take_both_families_and_a_namespace_reaches_itself_by_its_address() {
    let (_driver, _network, mut a, mut b) = stage();
    assert_eq!(a.ok("listen l [::]:7001 8"), "[::]:7001");
    for (to, local) in [("10.77.0.1:7001", "[::ffff:10.77.0.1]:7001"), ("[fd77::1]:7001", "[fd77::1]:7001")] {
        b.ok(&format!("connect c {to}"));
        let accepted = a.ok("accept s l");
        assert_eq!(split(&accepted).0, local, "the address connected to, in the listener's family");
        exchange(&mut b, &mut a, 3);
        b.ok("close c");
        a.ok("close s");
    }
    for to in ["10.77.0.1:7001", "[fd77::1]:7001", "127.0.0.1:7001", "[::1]:7001"] {
        let connected = a.ok(&format!("connect c {to}"));
        let (local, peer) = split(&connected);
        assert_eq!(peer, to);
        assert_eq!(local.rsplit_once(':').unwrap().0, to.rsplit_once(':').unwrap().0);
        a.ok("accept s l");
        a.ok("send c 4 0 100000 100000");
        a.ok("recv s 4 0 100000");
        a.ok("close c");
        a.ok("close s");
    }
}

#[test]
fn loopback_stays_its_own() {
    let (driver, _network, mut a, mut b) = stage();
    for loopback in ["127.0.0.1", "127.9.9.9", "[::1]"] {
        let addr = format!("{loopback}:7002");
        a.ok(&format!("listen l {addr} 8"));
        assert_eq!(b.errno(&format!("connect c {addr}")), libc::ECONNREFUSED, "only the neighbour listens");
        let mut host = driver.puppet();
        assert_eq!(host.errno(&format!("connect c {addr}")), libc::ECONNREFUSED, "nor does the host");
        b.ok(&format!("listen l {addr} 8"));
        for (puppet, seed) in [(&mut a, 5u64), (&mut b, 6)] {
            let connected = puppet.ok(&format!("connect c {addr}"));
            let accepted = puppet.ok("accept s l");
            assert_eq!(split(&connected).1, addr);
            assert_eq!(split(&connected), (split(&accepted).1, split(&accepted).0));
            puppet.ok(&format!("send c {seed} 0 200000 20000"));
        }
        // Each got its own.
        a.ok("recv s 5 0 200000");
        b.ok("recv s 6 0 200000");
        a.ok("close-all");
        b.ok("close-all");
    }
}

#[test]
fn addresses_not_owned_ports_taken_hosts_unknown() {
    let (driver, _network, mut a, mut b) = stage();
    for (own, other, nowhere) in
        [("10.77.0.1", "10.77.0.2", "10.77.0.9"), ("[fd77::1]", "[fd77::2]", "[fd77::9]")]
    {
        assert_eq!(a.errno(&format!("listen l {other}:7003 8")), libc::EADDRNOTAVAIL);
        assert_eq!(a.errno(&format!("listen l {nowhere}:7003 8")), libc::EADDRNOTAVAIL);
        a.ok(&format!("listen l {own}:7003 8"));
        assert_eq!(a.errno(&format!("listen m {own}:7003 8")), libc::EADDRINUSE);
        let mut again = driver.puppet();
        assert_eq!(again.errno(&format!("listen l {own}:7003 8")), libc::EADDRNOTAVAIL, "the host");
        drop(again);
        // A port of another namespace is a separate one.
        b.ok(&format!("listen l {other}:7003 8"));
        assert_eq!(b.errno(&format!("connect c {own}:7004")), libc::ECONNREFUSED);
        assert_eq!(b.errno(&format!("connect c {nowhere}:7003")), libc::EHOSTUNREACH);
        b.ok(&format!("connect c {own}:7003"));
        a.ok("accept s l");
        exchange(&mut b, &mut a, 7);
        // A closed listener's port is free again, while its connections go on.
        a.ok("close l");
        a.ok(&format!("listen l {own}:7003 8"));
        exchange(&mut b, &mut a, 8);
        a.ok("close-all");
        b.ok("close-all");
    }
    let (_, message) = a.ask("listen l 10.77.0.2:7003 8").unwrap_err();
    assert!(message.contains("10.77.0.2:7003"), "names the address: {message}");
}

#[test]
fn a_stolen_address_gains_nothing() {
    let (_driver, network, mut a, mut b) = stage();
    b.ok("listen l 10.77.0.2:7005 8");
    a.ok("listen l 0.0.0.0:7005 8");
    assert!(ip(&format!("-n {} addr add 10.77.0.2/32 dev lo", network.namespace("a"))));
    // Longer than the driver trusts its last read.
    thread::sleep(Duration::from_millis(120));
    assert_eq!(a.errno("listen m 10.77.0.2:7006 8"), libc::EADDRNOTAVAIL);
    // Not even from within: the address is the neighbour's.
    a.ok("connect c 10.77.0.2:7005");
    b.ok("accept s l");
    exchange(&mut a, &mut b, 9);
    let mut second = network.puppet(&_driver, "b");
    second.ok("connect c 10.77.0.2:7005");
    b.ok("accept s l");
    exchange(&mut second, &mut b, 10);
    // A new process of the thief's namespace gains nothing either.
    let mut late = network.puppet(&_driver, "a");
    assert_eq!(late.errno("listen l 10.77.0.2:7007 8"), libc::EADDRNOTAVAIL);
    // An address that was removed can no longer be bound; existing bindings stay.
    assert!(ip(&format!("-n {} addr del 10.77.0.1/24 dev eth0", network.namespace("a"))));
    thread::sleep(Duration::from_millis(120));
    a.ok("listen k 127.0.0.1:7008 8");
}

#[test]
fn addresses_that_come_late_are_found() {
    let (_driver, network, mut a, mut b) = stage();
    assert_eq!(a.errno("listen l 10.77.0.50:7009 8"), libc::EADDRNOTAVAIL);
    assert!(ip(&format!("-n {} addr add 10.77.0.50/24 dev eth0", network.namespace("a"))));
    thread::sleep(Duration::from_millis(120));
    a.ok("listen l 10.77.0.50:7009 8");
    b.ok("connect c 10.77.0.50:7009");
    a.ok("accept s l");
    exchange(&mut b, &mut a, 11);
    // An address given up by one namespace may go to another: containers move.
    a.ok("close-all");
    assert!(ip(&format!("-n {} addr del 10.77.0.50/24 dev eth0", network.namespace("a"))));
    assert!(ip(&format!("-n {} addr add 10.77.0.50/24 dev eth0", network.namespace("b"))));
    thread::sleep(Duration::from_millis(120));
    b.ok("listen l 10.77.0.50:7009 8");
    assert_eq!(a.errno("listen l 10.77.0.50:7010 8"), libc::EADDRNOTAVAIL);
    a.ok("connect c 10.77.0.50:7009");
    b.ok("accept s l");
    exchange(&mut a, &mut b, 12);
}
