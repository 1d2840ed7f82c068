//! The applications of `apps/` as programs of the benchmark.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use pd_apps::frame::{Ends, UDP_PAYLOAD};
use pd_apps::kv::client::Client;
use pd_apps::kv::protocol::Op;
use pd_apps::kv::store::Store;
use pd_apps::kv::Kv;
use pd_apps::logmon::{Filters, Logmon, Rules, FILTERS};
use pd_apps::maglev::Maglev;
use pd_apps::nitro::Nitro;
use pd_apps::random::{Random, Zipf};
use pd_apps::traffic::{backends, log_lines, syn_flood, zipf_flows, SERVICE};
use pd_apps::{over_packets, over_pipe, App, Verdict};
use pd_pipe::packetised::{self, memif, Packets, Rings};
use pd_pipe::{Check, Direction, GenCounts, Port, Trace, Unit};
use serde_json::json;

use super::{open, run, Cell, Measure, Nic};
use crate::row::Metrics;

const SCHEMES: [&str; 3] = ["packetised", "memif", "pipe"];
/// Frames that are played over and over. The flows of a flood are more than a cache of flows has.
const FRAMES: usize = 16_384;
const SEED: u64 = 1;
/// Keys of the store, which are all set before.
const KEYS: usize = 1 << 16;
/// Inverse of the share of requests that set a key; the others get one.
const SETS: u64 = 20;
/// Requests under way where the latency is measured.
const WINDOWS: [u64; 2] = [1, 32];
/// Bytes of a packet of logs.
const PIECE_BYTES: usize = 1448;
/// Inverse of the share of lines that break a rule.
const BAD_LINES: u64 = 100;
/// Bytes that a monitor looks at before it gives them back.
const SCAN_BYTES: usize = 32 << 10;

/// A NIC without returning frames.
struct OneWay<N>(N);

impl<N: Nic> Nic for OneWay<N> {
    fn turn(&mut self) {
        self.0.turn();
    }
    fn counts(&mut self) -> GenCounts {
        let counts = self.0.counts();
        GenCounts { returned: counts.made, ..counts }
    }
    fn notifications(&mut self) -> u64 {
        self.0.notifications()
    }
    fn times(&mut self) -> Vec<Duration> {
        self.0.times()
    }
}

/// Frames of a cell, of which at most a window is under way.
#[derive(Clone)]
struct Traffic {
    frames: Arc<Vec<Vec<u8>>>,
    window: u64,
    check: Check,
}

impl Traffic {
    fn port(&self) -> Result<Port> {
        let trace = Trace::new(self.frames.iter(), self.window, self.check);
        Ok(Port::Trace(trace.context("a trace")?))
    }
}

/// Measures one round of an application that sends frames back.
fn measure<A: App + Send>(scheme: &str, traffic: &Traffic, mut app: A, round: Duration) -> Result<Metrics> {
    let mut metrics = match scheme {
        "packetised" => {
            let (nic, mut packets) = packetised::pair(traffic.port()?)?;
            run(nic, move || over_packets(&mut packets, &mut app), round)?
        }
        "memif" => {
            let (nic, mut packets) = memif::pair(traffic.port()?)?;
            run(nic, move || over_packets(&mut packets, &mut app), round)?
        }
        _ => {
            let (nic, mut pipe) = open(traffic.port()?, Direction::Forward, Unit::Frames, None)?;
            run(nic, move || over_pipe(&mut pipe, None, &mut app).unwrap_or(0), round)?
        }
    };
    if traffic.window > 0 {
        // Little's law.
        metrics.insert("latency_us_mean", traffic.window as f64 * 1e6 / metrics["packets_per_s"]);
    }
    Ok(metrics)
}

/// Feeds a burst of packets to the monitor. Returns their number.
fn feed(packets: &mut Packets<impl Rings>, app: &mut Logmon) -> usize {
    packets.turn(|room, length| {
        app.feed(&room[..length], 0);
        None
    })
}

/// Measures one round of the monitor of logs.
fn monitor(scheme: &str, traffic: &Traffic, round: Duration) -> Result<Metrics> {
    let filters = Filters::parse(FILTERS).map_err(anyhow::Error::msg)?;
    let mut app = Logmon::new(filters, Rules { threshold: 5, window_s: 600 });
    match scheme {
        "packetised" => {
            let (nic, mut packets) = packetised::pair(traffic.port()?)?;
            return run(OneWay(nic), move || feed(&mut packets, &mut app), round);
        }
        "memif" => {
            let (nic, mut packets) = memif::pair(traffic.port()?)?;
            return run(OneWay(nic), move || feed(&mut packets, &mut app), round);
        }
        _ => {}
    }
    let (nic, mut pipe) = open(traffic.port()?, Direction::Receive, Unit::Bytes, None)?;
    let mut bytes = 0;
    let program = move || {
        let Ok(unread) = pipe.peek() else { return 0 };
        let done = app.scan(&unread[..unread.len().min(SCAN_BYTES)], 0);
        if done == 0 || pipe.done(done).is_err() {
            return 0;
        }
        bytes += done;
        let packets = bytes / PIECE_BYTES;
        bytes %= PIECE_BYTES;
        packets
    };
    run(OneWay(nic), program, round)
}

/// Compares the parts that a balancer leaves unchanged: source address and ports.
fn is_balanced(made: &[u8], returned: &[u8]) -> bool {
    made.len() == returned.len() && made[26..30] == returned[26..30] && made[34..50] == returned[34..50]
}

/// Tells whether `returned` answers the request. A key may be missing: the index is lossy.
fn is_answered(made: &[u8], returned: &[u8]) -> bool {
    let answer = returned.get(UDP_PAYLOAD..UDP_PAYLOAD + 12);
    answer.is_some_and(|answer| answer[2] <= 1 && answer[8..] == made[UDP_PAYLOAD + 8..UDP_PAYLOAD + 12])
}

fn key(rank: usize) -> [u8; 8] {
    (rank as u64).to_be_bytes()
}

/// Requests for keys by Zipf's law, with values of eight bytes.
fn requests() -> Vec<Vec<u8>> {
    let ends = Ends { macs: [[2; 6], [4; 6]], addresses: [[10, 0, 0, 1], [10, 0, 0, 2]], ports: [5000, 0] };
    let (mut client, zipf, mut random) = (Client::new(ends, 1), Zipf::new(KEYS, 0.99), Random::new(SEED));
    let request = |_| {
        let key = key(zipf.draw(&mut random));
        if random.below(SETS) == 0 {
            client.request(Op::Set, &key, &key, 0)
        } else {
            client.request(Op::Get, &key, b"", key.len())
        }
    };
    (0..FRAMES).map(request).collect()
}

fn store() -> Kv {
    let mut store = Store::new(16 << 20, KEYS / 2, SEED);
    for rank in 0..KEYS {
        store.set(&key(rank), &key(rank));
    }
    Kv::new(store, 0, 1)
}

/// Returns a row for each application, and one for the store with few requests under way.
pub(super) fn cells() -> Result<Vec<Cell>> {
    let traffic = |frames: Vec<Vec<u8>>, check: Check| Traffic { frames: Arc::new(frames), window: 0, check };
    let flood = traffic(syn_flood(SEED).take(FRAMES).collect(), is_balanced);
    let flows = zipf_flows(SEED, FRAMES, 1.1).map(|(_, frame)| frame).take(FRAMES);
    let flows = traffic(flows.collect(), |made, returned| made == returned);
    let lines: Vec<u8> = log_lines(SEED, BAD_LINES).take(FRAMES * 8).flatten().collect();
    let logs = traffic(lines.chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect(), |_, _| true);
    let requests = traffic(requests(), is_answered);
    let cell =
        |app: &str, measure: Measure| Cell { params: vec![("app", json!(app))], schemes: &SCHEMES, measure };
    let balancer = || Maglev::new(SERVICE.into(), 80, &backends(1000), Verdict::Back);
    let mut cells = vec![
        cell("maglev", Box::new(move |scheme, round| measure(scheme, &flood, balancer(), round))),
        cell(
            "nitro",
            Box::new(move |scheme, round| measure(scheme, &flows, Nitro::new(100, 0.001, SEED), round)),
        ),
        cell("logmon", Box::new(move |scheme, round| monitor(scheme, &logs, round))),
    ];
    for window in [0].into_iter().chain(WINDOWS) {
        let traffic = Traffic { window, ..requests.clone() };
        let mut cell = cell("kv", Box::new(move |scheme, round| measure(scheme, &traffic, store(), round)));
        if window > 0 {
            cell.params.push(("requests_under_way", json!(window)));
        }
        cells.push(cell);
    }
    Ok(cells)
}
