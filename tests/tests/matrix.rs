//! Every kind of program reaches every other: native, unmodified, one without any of ours, and one on another host. Another host is a
//! namespace across the bridge that the driver serves nobody in.
use pd_tests::{ip, is_root, program_path, Network, Puppet, TestDriver};
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Native,
    Unmodified,
    Plain,
    Remote,
}
use Kind::{Native, Plain, Remote, Unmodified};

const KINDS: [Kind; 4] = [Native, Unmodified, Plain, Remote];
/// Bytes of each direction of a cell: beyond the buffers of the kernel and the first ring.
const BYTES: u64 = 600_000;

/// A namespace of the network, and its last number in both families.
type Place = (&'static str, u32);
const SERVER: Place = ("a", 1);
const CLIENT: Place = ("b", 2);
const FAR: Place = ("s", 3);

struct Matrix {
    driver: TestDriver,
    network: Network,
}

impl Matrix {
    fn puppet(&self, kind: Kind, place: Place) -> Puppet {
        let namespace = self.network.namespace(place.0);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace]);
        match kind {
            Native => return self.network.puppet(&self.driver, place.0),
            Unmodified => {
                let library = program_path("libpd_preload.so");
                assert!(library.exists(), "build it first: cargo build -p pd-preload");
                command.args(["env", &format!("LD_PRELOAD={}", library.display()), "PD_PRELOAD=all"]);
            }
            Plain | Remote => {}
        }
        Puppet::new(self.driver.spawn(command.arg(program_path("plain"))))
    }

    fn cell(&self, client_kind: Kind, server_kind: Kind, v6: bool) {
        let place = |kind, usual| if kind == Remote { FAR } else { usual };
        let (from, at) = (place(client_kind, CLIENT), place(server_kind, SERVER));
        let mut server = self.puppet(server_kind, at);
        let mut client = self.puppet(client_kind, from);
        let host =
            |(_, number): Place| if v6 { format!("[fd77::{number}]") } else { format!("10.77.0.{number}") };
        let addr = server.ok(&format!("listen l {}:0 8", host(at)));

        let names = client.ok(&format!("connect c {addr}"));
        let accepted = server.ok("accept s l");
        let (local, peer) = names.split_once(' ').unwrap();
        assert_eq!(accepted, format!("{peer} {local}"), "the two ends name each other");
        assert!(peer == addr && local.starts_with(&host(from)), "{names}");
        let way = if [client_kind, server_kind] == [Native; 2] { "offloaded" } else { "kernel" };
        for (kind, puppet, name) in [(client_kind, &mut client, "c"), (server_kind, &mut server, "s")] {
            if kind == Native {
                assert_eq!(puppet.ok(&format!("path {name}")), way);
            }
        }
        exchange(&mut client, &mut server, 0);

        // One direction ends, and the other goes on.
        client.ok("shutdown c");
        assert_eq!(server.ok("end s"), "0");
        pass(&mut server, "s", &mut client, "c", 2);
        server.ok("close s");
        assert_eq!(client.ok("end c"), "0");
        client.ok("close c");

        for reset_by_client in [true, false] {
            client.ok(&format!("connect c {addr}"));
            server.ok("accept s l");
            exchange(&mut client, &mut server, 3);
            let (resetter, named, other, ended) = match reset_by_client {
                true => (&mut client, "c", &mut server, "s"),
                false => (&mut server, "s", &mut client, "c"),
            };
            resetter.ok(&format!("reset {named}"));
            assert_eq!(other.errno(&format!("end {ended}")), libc::ECONNRESET);
            other.ok(&format!("close {ended}"));
        }

        client.ok(&format!("connect c {addr}"));
        server.ok("accept s l");
        exchange(&mut client, &mut server, 6);
        let (dying, other, ended) = match v6 {
            true => (&mut server, &mut client, "c"),
            false => (&mut client, &mut server, "s"),
        };
        dying.kill();
        match other.ask(&format!("end {ended}")) {
            Ok(bytes) => assert_eq!(bytes, "0"),
            Err((errno, _)) => assert_eq!(errno, libc::ECONNRESET),
        }
    }
}

/// Passes bytes from one to the other, which checks each of them.
fn pass(from: &mut Puppet, sender: &str, to: &mut Puppet, receiver: &str, seed: u64) {
    from.tell(&format!("send {sender} {seed} 0 {BYTES} 50000"));
    to.ok(&format!("recv {receiver} {seed} 0 {BYTES}"));
    from.answer().unwrap();
}

fn exchange(client: &mut Puppet, server: &mut Puppet, seed: u64) {
    pass(client, "c", server, "s", seed);
    pass(server, "s", client, "c", seed + 1);
}

#[test]
fn every_kind_of_program_reaches_every_other() {
    if !is_root("making network namespaces") {
        return;
    }
    let matrix = Matrix { driver: TestDriver::new(), network: Network::new() };
    let far = matrix.network.namespace(FAR.0);
    assert!(ip(&format!("-n {far} addr add 10.77.0.{}/24 dev br0", FAR.1)));
    assert!(ip(&format!("-n {far} addr add fd77::{}/64 dev br0 nodad", FAR.1)));
    assert!(ip(&format!("-n {far} link set lo up")));
    // The driver serves the two namespaces whatever runs in them.
    let _serving = [SERVER, CLIENT].map(|place| {
        let mut puppet = matrix.puppet(Native, place);
        puppet.ok("malloc m 100");
        puppet
    });
    for client in KINDS {
        for server in KINDS {
            if [client, server].iter().all(|kind| matches!(kind, Plain | Remote)) {
                println!("{client:?} to {server:?}: none of ours");
                continue;
            }
            for v6 in [false, true] {
                println!("{client:?} to {server:?}{}", if v6 { ", IPv6" } else { "" });
                matrix.cell(client, server, v6);
            }
        }
    }
}
