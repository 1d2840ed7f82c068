//! Streams and round trips over an [`End`], by both sides.

use std::time::Instant;

use anyhow::{ensure, Context, Result};
use hdrhistogram::Histogram;
use pd_harness::digest::{rewrite, Blocks, Digest};
use pd_harness::measure::now_ns;

use super::pacing::Pacer;
use super::times::ProcessTimes;
use crate::files::Source;
use crate::protocol::{Content, Latency, Order, Streamed};
use crate::scheme::End;

/// Round trips before the first that counts.
const WARM_UP: u64 = 50;
/// Longest time of a measurement of round trips, whatever their number.
const PING_PONG_S: f64 = 4.0;

/// Measures `work`, which returns a checksum.
fn timed(bytes: u64, work: impl FnOnce() -> Result<String>) -> Result<Streamed> {
    let times = ProcessTimes::now();
    let start_ns = now_ns();
    let checksum = work()?;
    let end_ns = now_ns();
    let (user_s, system_s) = times.elapsed();
    Ok(Streamed { bytes, checksum, start_ns, end_ns, user_s, system_s, ..Streamed::default() })
}

/// Sends the stream, every byte touched, to the connections in turn. Bytes of memory are rewritten before.
pub fn send(
    end: &mut dyn End,
    connections: usize,
    order: &Order,
    source: Option<&Source>,
) -> Result<Streamed> {
    timed(order.bytes, || {
        let mut digest = Digest::new(order.touch, connections, order.message_bytes);
        match order.content {
            Content::Memory => send_memory(end, connections, order, &mut digest)?,
            Content::Files => {
                let source = source.context("no files were opened")?;
                end.send_files(source, order.bytes, &mut |bytes| digest.update(0, bytes))?;
            }
        }
        end.flush()?;
        Ok(digest.finish())
    })
}

fn send_memory(end: &mut dyn End, connections: usize, order: &Order, digest: &mut Digest) -> Result<()> {
    let mut pacer = order.target_gbit_per_s.map(Pacer::new);
    let mut left = order.bytes;
    for n in 0..order.messages() {
        let connection = (n % connections as u64) as usize;
        if let Some(pacer) = &mut pacer {
            pacer.wait(order.message_bytes);
        }
        let len = left.min(order.message_bytes as u64) as usize;
        end.send(connection, len, &mut |message| {
            rewrite(message, n);
            digest.update(connection, message);
        })?;
        left -= len as u64;
    }
    Ok(())
}

/// Receives the stream, every byte touched.
pub fn receive(end: &mut dyn End, connections: usize, order: &Order) -> Result<Streamed> {
    let mut gaps = Gaps::default();
    end.expect(order.bytes);
    let streamed = timed(order.bytes, || {
        let mut digest = Digest::new(order.touch, connections, order.message_bytes);
        let (mut left, mut ready) = (order.bytes, Vec::new());
        while left > 0 {
            end.readable(&mut ready)?;
            for &connection in &ready {
                let n = end.recv(connection, &mut |bytes| digest.update(connection, bytes))?;
                ensure!(n > 0, "connection {connection} ended with {left} bytes missing in all");
                if order.gaps {
                    gaps.piece(now_ns());
                }
                left = left.saturating_sub(n as u64);
                if left == 0 {
                    break;
                }
            }
        }
        Ok(digest.finish())
    })?;
    Ok(Streamed { first_ns: gaps.first_ns, gap_ns: gaps.longest_ns, ..streamed })
}

/// When pieces came, by the monotonic clock.
#[derive(Debug, Default)]
struct Gaps {
    first_ns: u64,
    last_ns: u64,
    longest_ns: u64,
}

impl Gaps {
    fn piece(&mut self, now_ns: u64) {
        match self.first_ns {
            0 => self.first_ns = now_ns,
            _ => self.longest_ns = self.longest_ns.max(now_ns.saturating_sub(self.last_ns)),
        }
        self.last_ns = now_ns;
    }
}

/// Sends a message, waits until it has come back, and so on.
pub fn ping(end: &mut dyn End, order: &Order) -> Result<Latency> {
    end.prefer_latency()?;
    end.expect(0);
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3)?;
    let start = Instant::now();
    let mut done = false;
    for n in 0.. {
        done |= n >= WARM_UP + order.messages() || start.elapsed().as_secs_f64() > PING_PONG_S;
        let sent = Instant::now();
        exchange(end, order.message_bytes, n, done)?;
        if done {
            break;
        }
        if n >= WARM_UP {
            histogram.saturating_record(sent.elapsed().as_nanos() as u64);
        }
    }
    Ok(summarise(&histogram))
}

/// The first byte of the last message of [`ping`] says so; all others have this bit clear.
const LAST: u8 = 0x80;

fn exchange(end: &mut dyn End, len: usize, n: u64, last: bool) -> Result<()> {
    let (mut sent, mut checksum) = (Blocks::new(len), Blocks::new(len));
    end.send(0, len, &mut |message| {
        rewrite(message, n);
        message[0] = if last { LAST } else { message[0] & !LAST };
        sent = Blocks::new(len);
        sent.update(message);
    })?;
    end.flush()?;
    let mut left = len;
    while left > 0 {
        let n = end.recv(0, &mut |bytes| checksum.update(bytes))?;
        ensure!(n > 0 && n <= left, "{n} bytes came back where {left} were missing");
        left -= n;
    }
    ensure!(checksum.finish() == sent.finish(), "message {n} came back changed");
    Ok(())
}

/// Sends back every message, until the last.
pub fn pong(end: &mut dyn End, order: &Order) -> Result<()> {
    end.prefer_latency()?;
    end.expect(0);
    let mut message = vec![0; order.message_bytes];
    loop {
        let mut filled = 0;
        while filled < message.len() {
            let n = end.recv(0, &mut |bytes| {
                let end = (filled + bytes.len()).min(message.len());
                message[filled..end].copy_from_slice(&bytes[..end - filled]);
                filled = end;
            })?;
            ensure!(n > 0, "the stream ended in the middle of a message");
        }
        end.send(0, message.len(), &mut |memory| memory.copy_from_slice(&message))?;
        end.flush()?;
        if message[0] & LAST != 0 {
            return Ok(());
        }
    }
}

fn summarise(histogram: &Histogram<u64>) -> Latency {
    let us = |ns: u64| ns as f64 / 1e3;
    Latency {
        count: histogram.len(),
        mean_us: histogram.mean() / 1e3,
        p50_us: us(histogram.value_at_quantile(0.5)),
        p99_us: us(histogram.value_at_quantile(0.99)),
        p999_us: us(histogram.value_at_quantile(0.999)),
        max_us: us(histogram.max()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_lies_between_two_pieces() {
        let mut gaps = Gaps::default();
        [100, 105, 125, 126].into_iter().for_each(|now| gaps.piece(now));
        assert_eq!((gaps.first_ns, gaps.longest_ns), (100, 20));
    }

    #[test]
    fn quantiles_are_in_microseconds() {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        (1..=1000u64).for_each(|n| histogram.record(n * 1000).unwrap());
        let latency = summarise(&histogram);
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 0.002;
        assert_eq!(latency.count, 1000);
        assert!(near(latency.p50_us, 500.0) && near(latency.p99_us, 990.0) && near(latency.max_us, 1000.0));
        assert!(near(latency.mean_us, 500.5));
    }
}
