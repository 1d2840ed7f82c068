//! The client: one request under way on each connection, for a given time.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use hdrhistogram::Histogram;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pd_harness::digest::Blocks;
use pd_harness::measure::cpu::MachineTimes;

use super::{head_end, header, Load, Loaded, BLOCK_BYTES, DIGEST, PROXY};

/// Most bytes of one read, as the benchmark's other sockets have it.
const READ_BYTES: usize = 256 << 10;
/// Events taken at a time.
const EVENTS: usize = 64;
/// Longest time for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

struct Connection {
    stream: TcpStream,
    asked: Instant,
    head: Vec<u8>,
    /// The body under way: remaining bytes, its checksum so far, and the checksum announced in the head.
    body: Option<(usize, Blocks, u64)>,
}

/// Runs the load.
pub(super) fn run(load: &Load) -> Result<Loaded> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let request = format!("GET /{} HTTP/1.1\r\nHost: {}\r\n\r\n", load.bytes, load.address);
    let mut connections = Vec::new();
    for number in 0..load.connections {
        let stream = TcpStream::connect((load.address, load.port))
            .with_context(|| format!("cannot connect to {}:{}", load.address, load.port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
        connections.push(Connection { stream, asked: Instant::now(), head: Vec::new(), body: None });
    }
    for connection in &mut connections {
        connection.ask(&request)?;
    }
    let mut latencies = Histogram::<u64>::new(3)?;
    let (mut requests, mut requests_all, mut under_way) = (0, 0, connections.len());
    let begin = Instant::now() + Duration::from_millis(load.warm_up_ms);
    let (mut begun, mut ended) = (None, None);
    let (mut piece, mut events) = (vec![0; READ_BYTES], [EpollEvent::empty(); EVENTS]);
    while under_way > 0 {
        let count = epoll.wait(&mut events, EpollTimeout::try_from(PATIENCE)?)?;
        ensure!(count > 0, "no answer came within {} s", PATIENCE.as_secs());
        for event in &events[..count] {
            let connection = &mut connections[event.data() as usize];
            if !connection.read(&mut piece, load)? {
                continue;
            }
            let now = Instant::now();
            requests_all += 1;
            match &begun {
                None if now >= begin => begun = Some((now, MachineTimes::now()?)),
                Some((start, _)) if ended.is_none() => {
                    requests += 1;
                    latencies.record((now - connection.asked).as_nanos() as u64)?;
                    if now - *start >= Duration::from_millis(load.ms) {
                        ended = Some((now, MachineTimes::now()?));
                    }
                }
                _ => {}
            }
            if ended.is_some() {
                under_way -= 1;
            } else {
                connection.ask(&request)?;
            }
        }
    }
    let ((start, before), (end, after)) = begun.zip(ended).context("the time was too short")?;
    let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Loaded {
        requests,
        requests_all,
        seconds: (end - start).as_secs_f64(),
        p50_us: us(0.5),
        p99_us: us(0.99),
        busy_s: (after - before).busy_s,
    })
}

impl Connection {
    fn ask(&mut self, request: &str) -> Result<()> {
        self.asked = Instant::now();
        // A short request fits into the buffers of a connection on which nothing else is under way.
        self.stream.write_all(request.as_bytes()).context("cannot send a request")
    }

    /// Reads the bytes that have arrived. Returns whether the answer is complete.
    fn read(&mut self, piece: &mut [u8], load: &Load) -> Result<bool> {
        loop {
            let count = match self.stream.read(piece) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error).context("an answer broke off"),
            };
            ensure!(count > 0, "the server or proxy has closed a connection");
            if self.take(&piece[..count], load)? {
                return Ok(true);
            }
            if count < piece.len() {
                return Ok(false);
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8], load: &Load) -> Result<bool> {
        if self.body.is_none() {
            let begun = self.head.len();
            self.head.extend_from_slice(bytes);
            let Some(end) = head_end(&self.head) else { return Ok(false) };
            bytes = &bytes[end - begun..];
            self.body = Some(begin(std::str::from_utf8(&self.head[..end])?, load)?);
            self.head.clear();
        }
        let Some((left, digest, expected)) = &mut self.body else { return Ok(false) };
        ensure!(bytes.len() <= *left, "more came than the answer's bytes");
        *left -= bytes.len();
        digest.update(bytes);
        if *left > 0 {
            return Ok(false);
        }
        let expected = *expected;
        let Some((_, digest, _)) = self.body.take() else { return Ok(false) };
        ensure!(digest.finish() == expected, "other bytes came than the server has sent");
        Ok(true)
    }
}

/// Returns the body that a head announces.
fn begin(head: &str, load: &Load) -> Result<(usize, Blocks, u64)> {
    ensure!(head.starts_with("HTTP/1.1 200 "), "answered: {}", head.lines().next().unwrap_or_default());
    let proxy = header(head, PROXY);
    match (proxy, &load.proxy) {
        (Some(own), Some(wanted)) => ensure!(own == wanted, "an answer passed {own}, not {wanted}"),
        (Some(own), None) => anyhow::bail!("an answer passed {own}"),
        (None, Some(_)) => anyhow::bail!("an answer passed no proxy"),
        (None, None) => {}
    }
    let bytes = header(head, "content-length").context("an answer has no length")?.parse::<usize>()?;
    ensure!(bytes == load.bytes, "{bytes} bytes are answered in place of {}", load.bytes);
    let digest = header(head, DIGEST).context("an answer has no checksum")?;
    Ok((bytes, Blocks::new(BLOCK_BYTES), u64::from_str_radix(digest, 16)?))
}
