//! All connections at once, each in a thread of its own, for a given time: the share of each.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};
use pd_harness::digest::{combine, rewrite, Blocks};

use crate::protocol::Reply;
use crate::scheme::End;

/// Bytes of one connection, and their checksum.
type Carried = (u64, u64);

/// Sends on every connection until the time is over, then ends them.
pub fn send(end: Box<dyn End>, message_bytes: usize, ms: u64) -> Result<Reply> {
    each(end, |mut end, start| {
        let (mut digest, mut bytes, mut lap) = (Blocks::new(message_bytes), 0, 0);
        while start.elapsed() < Duration::from_millis(ms) {
            end.send(0, message_bytes, &mut |message| {
                rewrite(message, lap);
                digest.update(message);
            })?;
            bytes += message_bytes as u64;
            lap += 1;
        }
        end.flush()?;
        end.close()?;
        Ok((bytes, digest.finish()))
    })
}

/// Receives on every connection until its end.
pub fn receive(end: Box<dyn End>, message_bytes: usize) -> Result<Reply> {
    each(end, |mut end, _| {
        let (mut digest, mut bytes) = (Blocks::new(message_bytes), 0);
        loop {
            match end.recv(0, &mut |received| digest.update(received))? {
                0 => return Ok((bytes, digest.finish())),
                n => bytes += n as u64,
            }
        }
    })
}

fn each(
    end: Box<dyn End>,
    work: impl Fn(Box<dyn End + Send>, Instant) -> Result<Carried> + Sync,
) -> Result<Reply> {
    let ends = end.split()?;
    let (barrier, work) = (Barrier::new(ends.len()), &work);
    let start = Instant::now();
    let carried: Vec<Carried> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let threads: Vec<_> = ends
            .into_iter()
            .map(|end| {
                scope.spawn(move || {
                    barrier.wait();
                    work(end, Instant::now())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panics")).collect::<Result<_>>()
    })?;
    ensure!(!carried.is_empty(), "there are no connections");
    Ok(Reply::Shares {
        bytes: carried.iter().map(|c| c.0).collect(),
        checksum: combine(carried.iter().map(|c| c.1)),
        seconds: start.elapsed().as_secs_f64(),
    })
}
