//! Networks of tenants that use the same addresses, in real network namespaces.
use pd_tests::{is_root, peer_path, Network, Puppet, TestDriver};
use std::process::Command;

/// A policy with a network of each name, of the namespaces of each of these.
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
    if !is_root("network namespaces") {
        return;
    }
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
    // One of red's listens, and none of blue's: its address is no way there.
    let [[_, red_b], [blue_a, _]] = &mut at;
    red_b.ok("listen l 10.77.0.2:7301 8");
    blue_a.tell("connect d 10.77.0.2:7301");
    let (errno, why) = blue_a.answer().expect_err("nobody of its network listens there");
    assert_eq!(errno, libc::ECONNREFUSED, "{why}");
}

#[test]
fn a_new_policy_ends_connections_that_cross_networks_and_no_others() {
    if !is_root("network namespaces") {
        return;
    }
    let driver = TestDriver::new();
    let network = Network::new();
    let [a_name, b_name] = ["a", "b"].map(|letter| network.namespace(letter));
    let both = [a_name.clone(), b_name.clone()];
    driver.apply(&policy(&[("red", &both)]));
    // The two are on one bridge, where the kernel would carry what the fabric does not.
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
    // The same by other words: nothing ends.
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
