//! Traffic for tests and benchmarks: the same for the same seed.
use crate::frame::{tcp, udp, Ends};
use crate::maglev::Backend;
use crate::random::{Random, Zipf};

/// Address of the service that a flood is for.
pub const SERVICE: [u8; 4] = [198, 18, 0, 80];
const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
const FAR: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SYN: u8 = 2;

/// Backends with addresses from 10.1.0.0 on.
pub fn backends(count: usize) -> Vec<Backend> {
    let backend = |n: usize| Backend {
        address: [10, 1, (n >> 8) as u8, n as u8].into(),
        mac: [2, 1, 0, 0, (n >> 8) as u8, n as u8],
    };
    (0..count).map(backend).collect()
}

/// Ends of a client's frames to port 80 of [`SERVICE`].
pub fn client_ends(client: u64) -> Ends {
    let [_, _, _, _, a, b, c, d] = client.to_be_bytes();
    Ends { macs: [FAR, NEAR], addresses: [[100 + a % 28, b, c, d], SERVICE], ports: [1024 + d as u16, 80] }
}

/// Returns a flood of first frames of TCP, each from another source.
pub fn syn_flood(seed: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random::new(seed);
    std::iter::repeat_with(move || {
        let (from, rest) = (random.word(), random.word());
        let mut ends = client_ends(from & 0xffff_ffff);
        ends.ports[0] = (rest as u16).max(1);
        tcp(&ends, (rest >> 32) as u32, SYN, 64)
    })
}

/// Datagrams of `flows` flows by Zipf's law, with the rank of each.
pub fn zipf_flows(seed: u64, flows: usize, exponent: f64) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let (zipf, mut random) = (Zipf::new(flows, exponent), Random::new(seed));
    std::iter::repeat_with(move || {
        let rank = zipf.draw(&mut random);
        (rank, udp(&client_ends(pd_maglev::mix(rank as u64 + 1) & 0xffff_ffff), &[0; 8], 64))
    })
}

/// Lines of logs with their ends, of which one in `each` breaks a rule.
pub fn log_lines(seed: u64, each: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random::new(seed);
    std::iter::repeat_with(move || {
        let (client, kind, second) = (random.below(64), random.below(each.max(1)), random.below(60));
        let port = 1024 + random.below(60_000);
        let line = match kind {
            0 => format!("Nov 26 06:12:{second:02} web1 sshd[2211]: Failed password for root from 203.0.113.{client} port {port} ssh2"),
            1 => format!("Nov 26 06:12:{second:02} web1 sshd[2212]: Accepted publickey for user{client} from 192.0.2.{client} port {port} ssh2: ED25519"),
            2 => format!("Nov 26 06:12:{second:02} web1 systemd[1]: Started session-{port}.scope - Session {port} of User user{client}."),
            3 => format!("Nov 26 06:12:{second:02} web1 kernel: eth0: renamed from veth{port}"),
            _ => format!("192.0.2.{client} - - [26/Nov/2026:06:14:{second:02} +0000] \"GET /assets/{port}.js HTTP/1.1\" 200 {port} \"-\" \"Mozilla/5.0 (X11; Linux x86_64)\""),
        };
        (line + "\n").into_bytes()
    })
}
