//! Equal frames come from a pipe and from the packetised twin by the same logic.

use pd_apps::frame::{is_sound, udp, Ends};
use pd_apps::kv::client::Client;
use pd_apps::kv::protocol::Op;
use pd_apps::kv::store::Store;
use pd_apps::kv::{Kv, MEMCACHED_PORT};
use pd_apps::logmon::{Filters, Logmon, Rules, FILTERS};
use pd_apps::maglev::Maglev;
use pd_apps::nitro::Nitro;
use pd_apps::random::Random;
use pd_apps::traffic::{backends, log_lines, syn_flood, zipf_flows, SERVICE};
use pd_apps::{over_packets, over_pipe, App, Verdict};
use pd_pipe::packetised::{self, memif};
use pd_pipe::{Agent, Direction, Pcap, Pipe, Port, Shape, Trace, Unit};
use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

/// A file in memory.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl File {
    /// Makes a port that plays `frames` and writes returned frames to a file.
    fn port(frames: &[Vec<u8>]) -> (Self, Port) {
        let played = Self::default();
        let mut writer = Pcap::new(None::<&[u8]>, Some(Box::new(played.clone()))).unwrap();
        frames.iter().for_each(|frame| writer.write(frame));
        writer.finish().unwrap();
        let (bytes, back) = (played.0.lock().unwrap().clone(), Self::default());
        (back.clone(), Port::Pcap(Pcap::new(Some(Cursor::new(bytes)), Some(Box::new(back))).unwrap()))
    }

    /// Returns the frames written to it.
    fn frames(&self, port: &mut Port) -> Vec<Vec<u8>> {
        let Port::Pcap(pcap) = port else { unreachable!() };
        pcap.finish().unwrap();
        let mut pcap = Pcap::new(Some(Cursor::new(self.0.lock().unwrap().clone())), None).unwrap();
        let mut frames = Vec::new();
        while let Some(frame) = pcap.peek() {
            frames.push(frame.to_vec());
            pcap.advance();
        }
        frames
    }
}

fn open(agent: &mut Agent, port: pd_pipe::PortId, direction: Direction, unit: Unit) -> Pipe {
    let (id, offer) = agent.open(Shape::new(direction, unit, 64 << 10).unwrap(), port, &[], None).unwrap();
    let pipe = Pipe::map(offer).unwrap();
    agent.seal(id).unwrap();
    pipe
}

/// Runs `app` over a pipe until it has had `frames`. Returns the frames that came back.
fn by_pipe(frames: &[Vec<u8>], app: &mut impl App) -> Vec<Vec<u8>> {
    let (back, port) = File::port(frames);
    let mut agent = Agent::new().unwrap();
    let port = agent.add_port(port);
    let mut pipe = open(&mut agent, port, Direction::Forward, Unit::Frames);
    let mut answers = open(&mut agent, port, Direction::Send, Unit::Frames);
    let mut left = frames.len();
    while left > 0 {
        agent.turn();
        left -= over_pipe(&mut pipe, Some(&mut answers), app).unwrap();
    }
    while agent.turn() {}
    back.frames(agent.port(port))
}

/// Runs `app` over the packetised twin until it has had `frames`. Returns the frames that came back.
fn by_packets(frames: &[Vec<u8>], app: &mut impl App) -> Vec<Vec<u8>> {
    let (back, port) = File::port(frames);
    let (mut nic, mut packets) = packetised::pair(port).unwrap();
    let mut left = frames.len();
    while left > 0 {
        nic.turn();
        left -= over_packets(&mut packets, app);
    }
    (0..100).for_each(|_| nic.turn());
    back.frames(nic.port())
}

/// Runs `app` over memif until it has had `frames`. Returns the frames that came back.
fn by_memif(frames: &[Vec<u8>], app: &mut impl App) -> Vec<Vec<u8>> {
    let (back, port) = File::port(frames);
    let (mut nic, mut packets) = memif::pair(port).unwrap();
    let mut left = frames.len();
    while left > 0 {
        nic.turn();
        left -= over_packets(&mut packets, app);
    }
    (0..100).for_each(|_| nic.turn());
    back.frames(nic.port())
}

#[test]
fn a_balancer_leads_the_same_frames_to_the_same_backends_over_both() {
    let mut frames: Vec<_> = syn_flood(3).take(5000).collect();
    frames.extend((0..200u8).map(|n| vec![n; 60 + usize::from(n)]));
    let new = || Maglev::new(SERVICE.into(), 80, &backends(1000), Verdict::Back);
    let (mut a, mut b) = (new(), new());
    let (over_pipe, over_packets) = (by_pipe(&frames, &mut a), by_packets(&frames, &mut b));
    assert_eq!(over_pipe.len(), 5000);
    assert!(over_pipe == over_packets && over_pipe.iter().all(|frame| is_sound(frame)));
    assert_eq!((a.counts(), a.counts().foreign), (b.counts(), 200));
    let mut c = new();
    assert!(by_memif(&frames, &mut c) == over_pipe && c.counts() == b.counts());
}

#[test]
fn a_sketch_counts_the_same_over_both() {
    let frames: Vec<_> = zipf_flows(4, 1000, 1.2).map(|(_, frame)| frame).take(20_000).collect();
    let new = || Nitro::new(20, 0.01, 9);
    let (mut a, mut b) = (new(), new());
    assert!(by_pipe(&frames, &mut a) == frames && by_packets(&frames, &mut b) == frames);
    assert_eq!((a.heavy(), a.frames()), (b.heavy(), 20_000));
    assert!(!a.heavy().is_empty());
    let mut c = new();
    assert!(by_memif(&frames, &mut c) == frames && c.heavy() == a.heavy());
}

#[test]
fn a_store_gives_the_same_answers_over_both() {
    let ends = Ends {
        macs: [[2; 6], [4; 6]],
        addresses: [[10, 0, 0, 1], [10, 0, 0, 2]],
        ports: [5000, MEMCACHED_PORT],
    };
    let (mut client, mut random, mut frames) = (Client::new(ends, 1), Random::new(1), Vec::new());
    let mut longer = 0;
    for _ in 0..4000 {
        let key = random.below(200).to_string();
        let value = vec![b'v'; random.below(400) as usize];
        let meta = |text: &str| udp(&ends, &[b"\0\x01\0\0\0\x01\0\0", text.as_bytes()].concat(), 60);
        frames.push(match random.below(5) {
            0 => client.request(Op::Set, key.as_bytes(), &value, 0),
            1 => client.request(Op::Get, key.as_bytes(), b"", 300),
            2 => client.request(Op::Delete, key.as_bytes(), b"", 0),
            3 => meta(&format!("ms {key} {}\r\n{}\r\n", value.len(), String::from_utf8_lossy(&value))),
            // The answer is longer than the request.
            _ => meta(&format!("mg {key} v k\r\n")),
        });
    }
    let new = || Kv::new(Store::new(1 << 16, 64, 8), 0, 1);
    let (mut a, mut b) = (new(), new());
    let (mut over_pipe, mut over_packets) = (by_pipe(&frames, &mut a), by_packets(&frames, &mut b));
    // Answers by another pipe come in another order.
    over_pipe.sort_unstable();
    over_packets.sort_unstable();
    assert_eq!((over_pipe.len(), a.counts()), (4000, b.counts()));
    assert!(over_pipe == over_packets && over_pipe.iter().all(|frame| is_sound(frame)));
    let mut c = new();
    let mut over_memif = by_memif(&frames, &mut c);
    over_memif.sort_unstable();
    assert!(over_memif == over_pipe && c.counts() == a.counts());
    longer += over_pipe.iter().filter(|frame| frame.len() > 200).count();
    assert!(longer > 100, "{longer}");
}

#[test]
fn a_monitor_has_the_same_reports_over_both() {
    let text: Vec<u8> = log_lines(5, 30).take(5000).flatten().collect();
    let pieces: Vec<&[u8]> = text.chunks(1460).collect();
    let port = || Port::Trace(Trace::new(&pieces, 0, |_, _| true).unwrap());
    let new = || Logmon::new(Filters::parse(FILTERS).unwrap(), Rules { threshold: 2, window_s: 60 });
    let (mut a, mut b) = (new(), new());

    let mut agent = Agent::new().unwrap();
    let id = agent.add_port(port());
    let mut pipe = open(&mut agent, id, Direction::Receive, Unit::Bytes);
    // The trace starts again after its end: whole lines, so that both see the same.
    while a.counts().bytes < text.len() as u64 {
        agent.turn();
        let Ok(bytes) = pipe.peek() else { continue };
        let left = text.len() - a.counts().bytes as usize;
        let done = a.scan(&bytes[..bytes.len().min(left)], 1);
        pipe.done(done).unwrap();
    }
    let (mut nic, mut packets) = packetised::pair(port()).unwrap();
    let mut taken = 0;
    while taken < pieces.len() {
        nic.turn();
        packets.turn(|room, length| {
            if taken < pieces.len() {
                b.feed(&room[..length], 1);
            }
            taken += 1;
            None
        });
    }
    assert_eq!(a.counts(), b.counts());
    let reports = a.take_reports();
    assert!(reports.len() > 20 && reports == b.take_reports());
}
