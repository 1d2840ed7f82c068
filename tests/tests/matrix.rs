//! Every kind of program reaches every other: native, unmodified, one without any of ours, and one on another host. Another host is a
//! namespace across the bridge that the driver serves nobody in.
use pd_tests::{ip, needs_root, program_path, Network, Puppet, TestDriver};
use std::net::SocketAddr;
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Native,
    /// With the library, in a mode.
    Unmodified(&'static str),
    Plain,
    Remote,
}
use Kind::{Native, Plain, Remote, Unmodified};

const KINDS: [Kind; 6] =
    [Native, Unmodified("all"), Unmodified("default"), Unmodified("short"), Plain, Remote];
/// Bytes of each direction of a cell: beyond the buffers of the kernel and the first ring.
const BYTES: u64 = 600_000;

/// Addresses of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
    /// The server listens on any address of IPv6, and the client connects by IPv4.
    Dual,
}
use Family::{Dual, V4, V6};

/// A namespace of the network, and its last number in both families.
type Place = (&'static str, u32);
const SERVER: Place = ("a", 1);
const CLIENT: Place = ("b", 2);
const FAR: Place = ("s", 3);

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

const SIDES: [Side; 2] = [Side::Client, Side::Server];

impl Kind {
    fn or(self, usual: Place) -> Place {
        if self == Remote {
            FAR
        } else {
            usual
        }
    }
}

impl Family {
    /// The address of a place, as its peers call it.
    fn host(self, (_, number): Place) -> String {
        match self {
            V6 => format!("[fd77::{number}]"),
            V4 | Dual => format!("10.77.0.{number}"),
        }
    }

    /// Two ends, as both families name them.
    fn ends(self, names: &str) -> [String; 2] {
        let (one, other) = names.split_once(' ').expect("two addresses");
        [one, other].map(|name| {
            let address: SocketAddr = name.parse().expect("an address");
            match self {
                Dual => SocketAddr::new(address.ip().to_canonical(), address.port()).to_string(),
                V4 | V6 => name.to_owned(),
            }
        })
    }
}

struct Matrix {
    driver: TestDriver,
    network: Network,
}

/// The two programs of a cell. The client's connection is `c`, the server's end `s`.
struct Pair {
    client: Puppet,
    server: Puppet,
    /// Where the server listens.
    addr: String,
    family: Family,
}

impl Pair {
    /// Makes a connection. Returns its ends as the client names them.
    fn connect(&mut self) -> [String; 2] {
        let names = self.client.ok(&format!("connect c {}", self.addr));
        let accepted = self.family.ends(&self.server.ok("accept s l"));
        let [local, peer] = self.family.ends(&names);
        assert_eq!(accepted, [peer.clone(), local.clone()], "the two ends name each other");
        [local, peer]
    }

    /// Returns a side's program and its name of the connection, then those of the other side.
    fn sides(&mut self, side: Side) -> ((&mut Puppet, &'static str), (&mut Puppet, &'static str)) {
        let (client, server) = ((&mut self.client, "c"), (&mut self.server, "s"));
        match side {
            Side::Client => (client, server),
            Side::Server => (server, client),
        }
    }

    /// Passes bytes both ways.
    fn exchange(&mut self, seed: u64) {
        pass(&mut self.client, "c", &mut self.server, "s", seed);
        pass(&mut self.server, "s", &mut self.client, "c", seed + 1);
    }

    /// The side ends its half, and the other half goes on.
    fn half_close(&mut self, side: Side) {
        let ((closing, name), (other, its)) = self.sides(side);
        closing.ok(&format!("shutdown {name}"));
        assert_eq!(other.ok(&format!("end {its}")), "0");
        pass(other, its, closing, name, 2);
        other.ok(&format!("close {its}"));
        assert_eq!(closing.ok(&format!("end {name}")), "0");
        closing.ok(&format!("close {name}"));
    }

    fn reset(&mut self, side: Side) {
        let ((resetter, name), (other, its)) = self.sides(side);
        resetter.ok(&format!("reset {name}"));
        assert_eq!(other.errno(&format!("end {its}")), libc::ECONNRESET);
        other.ok(&format!("close {its}"));
    }

    /// The side's process is killed: the other one reads an end, and what it sends fails.
    fn die(mut self, side: Side) {
        let ((dying, _), (other, its)) = self.sides(side);
        dying.kill();
        match other.ask(&format!("end {its}")) {
            Ok(bytes) => assert_eq!(bytes, "0"),
            Err((errno, _)) => assert_eq!(errno, libc::ECONNRESET),
        }
        let failed = (0..SENDS_MAX).find_map(|_| other.ask(&format!("send {its} 1 0 50000 50000")).err());
        let (errno, why) = failed.expect("nobody receives it");
        assert!([libc::EPIPE, libc::ECONNRESET].contains(&errno), "{errno}: {why}");
    }
}

/// More sends than any buffer holds.
const SENDS_MAX: u32 = 1000;

impl Matrix {
    fn puppet(&self, kind: Kind, place: Place) -> Puppet {
        let namespace = self.network.namespace(place.0);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace]);
        match kind {
            Native => return self.network.puppet(&self.driver, place.0),
            Unmodified(mode) => {
                let library = program_path("libpd_preload.so");
                assert!(library.exists(), "build it first: cargo build -p pd-preload");
                let library = format!("LD_PRELOAD={}", library.display());
                command.args(["env", &library, &format!("PD_PRELOAD={mode}")]);
            }
            Plain | Remote => {}
        }
        Puppet::new(self.driver.spawn(command.arg(program_path("plain"))))
    }

    fn pair(&self, client_kind: Kind, server_kind: Kind, family: Family) -> Pair {
        let (from, at) = (client_kind.or(CLIENT), server_kind.or(SERVER));
        let mut server = self.puppet(server_kind, at);
        let client = self.puppet(client_kind, from);
        let host = if family == Dual { "[::]".to_owned() } else { family.host(at) };
        let bound = server.ok(&format!("listen l {host}:0 8"));
        let port = bound.rsplit_once(':').expect("a port").1;
        let addr = format!("{}:{port}", family.host(at));
        Pair { client, server, addr, family }
    }

    fn cell(&self, client_kind: Kind, server_kind: Kind, family: Family) {
        let mut pair = self.pair(client_kind, server_kind, family);
        let [local, peer] = pair.connect();
        assert!(
            peer == pair.addr && local.starts_with(&family.host(client_kind.or(CLIENT))),
            "{local} to {peer}"
        );
        let way = if [client_kind, server_kind] == [Native; 2] { "offloaded" } else { "kernel" };
        for (kind, side) in [(client_kind, Side::Client), (server_kind, Side::Server)] {
            let ((puppet, name), _) = pair.sides(side);
            // In mode `short` the way depends on whether the other side listens on the fabric by then.
            if kind == Native {
                let path = puppet.ok(&format!("path {name}"));
                let is_short = [client_kind, server_kind].contains(&Unmodified("short"));
                assert!(path == way || is_short, "{path}");
            }
        }
        pair.exchange(0);
        pair.half_close(Side::Client);
        for reset_by in SIDES {
            pair.connect();
            pair.exchange(3);
            pair.reset(reset_by);
        }
        pair.connect();
        pair.exchange(5);
        pair.half_close(Side::Server);
        pair.connect();
        pair.exchange(7);
        pair.die(Side::Client);

        let mut pair = self.pair(client_kind, server_kind, family);
        // The second one may be on another way.
        pair.connect();
        pair.half_close(Side::Client);
        pair.connect();
        pair.exchange(9);
        pair.die(Side::Server);
    }
}

/// Passes bytes from one to the other, which checks each of them.
fn pass(from: &mut Puppet, sender: &str, to: &mut Puppet, receiver: &str, seed: u64) {
    from.tell(&format!("send {sender} {seed} 0 {BYTES} 50000"));
    to.ok(&format!("recv {receiver} {seed} 0 {BYTES}"));
    from.answer().unwrap();
}

#[test]
fn every_kind_of_program_reaches_every_other() {
    needs_root("making network namespaces");
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
            for family in [V4, V6, Dual] {
                println!("{client:?} to {server:?}, {family:?}");
                matrix.cell(client, server, family);
            }
        }
    }
}
