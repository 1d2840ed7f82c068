//! Attacks by traffic: connections from the attacker to itself, all of them busy.

use std::convert::Infallible;
use std::fs::File;
use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use pd_client::{Listener, Path, SendBuffer, Stream};
use pd_harness::digest::rewrite;
use pd_harness::processor::xxh3;
use rustix::fs::{fadvise, Advice};

use super::Scene;

/// Rings of a bulk connection: more than goes through while its threads pause.
const RING_BYTES: u64 = 4 << 20;
pub(super) const BULK_BYTES: usize = 64 << 10;
/// Messages that a bulk attacker writes in turn, or two for each connection if that is more.
const WINDOW: usize = 32;
const TINY_BYTES: usize = 64;
const HUGE_BYTES: usize = 64 << 20;
/// Bytes of a file at a time: as many as the driver reads by itself.
pub(super) const FILE_BYTES: u64 = 1 << 20;
/// Most bytes received of a connection at a time.
pub(super) const RECV_BYTES: usize = 64 << 10;
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
    ends.iter().flat_map(|(from, to)| [from, to]).for_each(|stream| stream.set_nonblocking(true));
    Ok(ends.into_iter().unzip())
}

/// Sends in bulk. Both ends process each byte as the victim does, so that the two tenants load the cores alike.
pub(super) fn bulk(scene: &Scene) -> Result<Infallible> {
    let (senders, receivers) = connect(scene)?;
    for stream in senders.iter().chain(&receivers) {
        stream.set_send_ring_bytes(RING_BYTES)?;
        stream.set_recv_ring_bytes(RING_BYTES)?;
    }
    receive(scene, receivers, |stream| {
        lend(stream, |bytes| {
            black_box(xxh3(bytes));
        })
    });
    let buffer = |_| SendBuffer::new(BULK_BYTES).context("no send memory");
    let mut window = (0..WINDOW.max(2 * senders.len())).map(buffer).collect::<Result<Vec<_>>>()?;
    let (mut next, mut number) = (0, 0u64);
    send(scene, senders, |_, stream| {
        let buffer = &mut window[next];
        let Some(message) = buffer.try_mut() else { return false };
        rewrite(message, number);
        black_box(xxh3(message));
        let sent = stream.send(buffer, ..).is_ok();
        number += 1;
        next = (next + usize::from(sent)) % window.len();
        sent
    })
}

pub(super) fn tiny(scene: &Scene) -> Result<Infallible> {
    let (senders, receivers) = connect(scene)?;
    receive(scene, receivers, |stream| lend(stream, |_| {}));
    let buffer = SendBuffer::new(TINY_BYTES).context("no send memory")?;
    send(scene, senders, |_, stream| stream.send(&buffer, ..).is_ok())
}

/// Sends one message at a time on a ring that takes all of it.
pub(super) fn huge(scene: &Scene) -> Result<Infallible> {
    let (senders, receivers) = connect(scene)?;
    for stream in senders.iter().chain(&receivers) {
        stream.set_send_ring_bytes(HUGE_BYTES as u64)?;
        stream.set_recv_ring_bytes(HUGE_BYTES as u64)?;
    }
    receive(scene, receivers, |stream| lend(stream, |_| {}));
    let buffer = SendBuffer::new(HUGE_BYTES).context("no send memory")?;
    send(scene, senders, |_, stream| stream.send(&buffer, ..).is_ok())
}

/// Pieces of `file`, which is dropped from the page cache after each pass: half of them are on the disk.
pub(super) fn files(scene: &Scene, file: &File) -> Result<Infallible> {
    let (senders, receivers) = connect(scene)?;
    receive(scene, receivers, |stream| lend(stream, |_| {}));
    let bytes = file.metadata()?.len();
    let mut offset = 0;
    send(scene, senders, |_, stream| {
        if offset >= bytes {
            offset = 0;
            // Pages that are mapped stay.
            let _ = fadvise(file, 0, None, Advice::DontNeed);
        }
        let sent = stream.send_file(file, offset, FILE_BYTES.min(bytes - offset) as usize);
        offset += sent.as_ref().map_or(0, |sent| *sent as u64);
        sent.is_ok_and(|sent| sent > 0)
    })
}

pub(super) fn denied_connects(scene: &Scene) -> Result<Infallible> {
    let victim = scene.attack.victim.context("no victim listens")?;
    let denied = Stream::connect(victim).err().context("the policy allows it")?;
    anyhow::ensure!(denied.errno() == libc::EACCES, "not denied but {denied}");
    scene.begin();
    loop {
        scene.tally.tried(Stream::connect(victim).is_ok());
    }
}

pub(super) fn churn(scene: &Scene) -> Result<Infallible> {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).context("cannot listen")?;
    let to = listener.local_addr()?;
    let message = SendBuffer::new(TINY_BYTES).context("no send memory")?;
    let once = || -> Result<()> {
        let (client, server) = (Stream::connect(to)?, listener.accept()?);
        client.send(&message, ..)?;
        drop(client);
        server.recv(TINY_BYTES)?;
        Ok(())
    };
    scene.begin();
    loop {
        scene.tally.tried(once().is_ok());
    }
}

/// Lets `work` send on all connections in turn, and pauses when none takes a message. `work` gets the number of the connection, too.
pub(super) fn send<S>(
    scene: &Scene,
    mut senders: Vec<S>,
    mut work: impl FnMut(usize, &mut S) -> bool,
) -> Result<Infallible> {
    scene.begin();
    loop {
        let sent = senders.iter_mut().enumerate().map(|(at, sender)| u64::from(work(at, sender))).sum();
        scene.tally.tries.fetch_add(sent, Ordering::Relaxed);
        if sent == 0 {
            sleep(PAUSE);
        }
    }
}

/// Lets `take` receive on all connections in turn, in a thread of its own, and pauses when nothing comes. `take` returns the number of bytes.
pub(super) fn receive<R: Send + 'static>(
    scene: &Scene,
    mut receivers: Vec<R>,
    mut take: impl FnMut(&mut R) -> usize + Send + 'static,
) {
    let tally = Arc::clone(&scene.tally);
    std::thread::spawn(move || loop {
        let bytes = receivers.iter_mut().map(|receiver| take(receiver) as u64).sum();
        tally.came(bytes);
        if bytes == 0 {
            sleep(PAUSE);
        }
    });
}

/// Lends whatever comes of a connection to `look`. Returns the number of bytes.
fn lend(stream: &Stream, look: impl Fn(&[u8])) -> usize {
    stream.recv(RECV_BYTES).map_or(0, |received| {
        look(&received);
        received.len()
    })
}
