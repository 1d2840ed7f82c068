//! Attacks by traffic: connections from the attacker to itself, all of them busy.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use pd_client::{Listener, Path, SendBuffer, Stream};

use super::Scene;

/// Rings of a bulk connection: more than goes through while its threads pause.
const RING_BYTES: u64 = 4 << 20;
const BULK_BYTES: usize = 64 << 10;
const TINY_BYTES: usize = 64;
/// What is received of a connection at a time.
const RECV_BYTES: usize = 1 << 20;
/// After a look at all connections of which none could go on.
const PAUSE: Duration = Duration::from_micros(100);

/// Both ends of the attacker's connections.
type Ends = (Vec<Stream>, Vec<Stream>);

fn connect(scene: &Scene) -> Result<Ends> {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).context("cannot listen")?;
    let to = listener.local_addr()?;
    let pair = |_| -> Result<(Stream, Stream)> { Ok((Stream::connect(to)?, listener.accept()?)) };
    let ends = (0..scene.attack.connections).map(pair).collect::<Result<Vec<_>>>()?;
    anyhow::ensure!(ends.iter().all(|(from, _)| from.path() == Path::Offloaded), "the driver moves nothing");
    Ok(ends.into_iter().unzip())
}

pub(super) fn bulk(scene: &Scene) -> Result<Infallible> {
    let (senders, receivers) = connect(scene)?;
    for stream in senders.iter().chain(&receivers) {
        stream.set_send_ring_bytes(RING_BYTES)?;
        stream.set_recv_ring_bytes(RING_BYTES)?;
    }
    stream(scene, senders, receivers, BULK_BYTES)
}

pub(super) fn tiny(scene: &Scene) -> Result<Infallible> {
    let (senders, receivers) = connect(scene)?;
    stream(scene, senders, receivers, TINY_BYTES)
}

/// Sends messages on all connections that take one, and receives whatever comes, neither looking at a byte.
fn stream(
    scene: &Scene,
    senders: Vec<Stream>,
    receivers: Vec<Stream>,
    message_bytes: usize,
) -> Result<Infallible> {
    senders.iter().chain(&receivers).for_each(|stream| stream.set_nonblocking(true));
    let tally = scene.tally.clone();
    std::thread::spawn(move || loop {
        let came = |stream: &Stream| stream.recv(RECV_BYTES).map_or(0, |received| received.len() as u64);
        let bytes = receivers.iter().map(came).sum();
        tally.bytes.fetch_add(bytes, Ordering::Relaxed);
        if bytes == 0 {
            sleep(PAUSE);
        }
    });
    let buffer = SendBuffer::new(message_bytes).context("no send memory")?;
    scene.begin();
    loop {
        let sent = senders.iter().filter(|stream| stream.send(&buffer, ..).is_ok()).count();
        scene.tally.tries.fetch_add(sent as u64, Ordering::Relaxed);
        if sent == 0 {
            sleep(PAUSE);
        }
    }
}
