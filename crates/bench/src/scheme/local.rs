//! Limits, in one process: a copy by `memcpy`, the copy engine alone, and the copy engine between two
//! threads that touch the bytes as the programs of every other scheme do.
#![allow(unsafe_code)]

use std::sync::mpsc::sync_channel;

use anyhow::{bail, ensure, Context, Result};
use pd_abi::{Command, CommandType};
use pd_engine::{Cpu, Engine, QueuePair};
use pd_harness::digest::{rewrite, Blocks};
use pd_harness::measure::now_ns;

use super::memory::PageAligned;
use super::Scheme;
use crate::protocol::{Order, Streamed};
use crate::run::times::ProcessTimes;

/// Size of the source and the destination ring, if two messages are not larger.
const RING_BYTES: usize = 4 << 20;
/// Commands that the engine gets at a time.
const BATCH: usize = 64;
/// The pipeline's threads hand on at least this much.
const WINDOW_BYTES: usize = 128 << 10;

/// Runs a local scheme.
pub fn run(scheme: Scheme, order: &Order) -> Result<Streamed> {
    let times = ProcessTimes::now();
    let start_ns = now_ns();
    let checksum = match scheme {
        Scheme::Memcpy => memcpy(order)?,
        Scheme::Engine => engine(order)?,
        Scheme::EnginePipeline => pipeline(order)?,
        other => bail!("{} needs two processes", other.name()),
    };
    let end_ns = now_ns();
    let (user_s, system_s) = times.elapsed();
    let bytes = order.bytes;
    Ok(Streamed { bytes, checksum, start_ns, end_ns, user_s, system_s, ..Streamed::default() })
}

fn ring_bytes(message_bytes: usize) -> usize {
    RING_BYTES.max(2 * message_bytes) / message_bytes * message_bytes
}

/// Runs one thread that rewrites each message in one buffer, copies it to another and reads the copy.
fn memcpy(order: &Order) -> Result<String> {
    let (mut from, mut to) = (PageAligned::new(order.message_bytes), PageAligned::new(order.message_bytes));
    let (mut sent, mut received) = (Blocks::new(order.message_bytes), Blocks::new(order.message_bytes));
    for lap in 0..order.messages() {
        rewrite(from.get(), lap);
        sent.update(from.get());
        to.get().copy_from_slice(from.get());
        received.update(to.get());
    }
    let (sent, received) = (sent.finish(), received.finish());
    ensure!(sent == received, "memcpy: checksum {sent:016x} was sent and {received:016x} received");
    Ok(format!("{received:016x}"))
}

/// A queue pair of the engine, and the addresses it works on.
struct Copier {
    pair: Box<dyn QueuePair>,
    chunk_bytes: usize,
    commands: Vec<Command>,
    completions: Vec<Command>,
}

impl Copier {
    fn new() -> Result<Copier> {
        let engine = Cpu::new();
        let chunk_bytes = engine.capability().chunk_bytes_max as usize;
        let pair = engine.queue_pair().context("the cpu engine has queue pairs")?;
        Ok(Copier {
            pair,
            chunk_bytes,
            commands: Vec::with_capacity(BATCH),
            completions: vec![Command::default(); BATCH],
        })
    }

    /// Copies `count` messages of `len` bytes, those longer than the engine's chunks in several commands.
    ///
    /// # Safety
    /// `len * count` bytes are readable at `src` and writable at `dst`, and nobody else touches them meanwhile.
    unsafe fn copy(&mut self, src: u64, dst: u64, len: usize, count: usize) {
        let chunk = len.min(self.chunk_bytes);
        let bytes = len * count;
        for first in (0..bytes).step_by(chunk * BATCH) {
            self.commands.clear();
            self.commands.extend((first..bytes.min(first + chunk * BATCH)).step_by(chunk).map(|at| {
                Command {
                    request_type: CommandType::GeneralSend as u8,
                    src_addr: src + at as u64,
                    dst_addr: dst + at as u64,
                    data_len: chunk.min(bytes - at) as u32,
                    ..Default::default()
                }
            }));
            let mut submitted = 0;
            while submitted < self.commands.len() || self.pair.in_flight() > 0 {
                // SAFETY: the caller's promise, passed on.
                submitted += unsafe { self.pair.submit(&self.commands[submitted..]) };
                self.pair.reap(&mut self.completions);
            }
        }
    }
}

/// Runs the engine alone, around two rings.
fn engine(order: &Order) -> Result<String> {
    let len = order.message_bytes;
    let bytes = ring_bytes(len);
    let (mut from, mut to) = (PageAligned::new(bytes), PageAligned::new(bytes));
    rewrite(from.get(), 1);
    to.get().fill(0xff);
    let (src, dst) = (from.get().as_ptr() as u64, to.get().as_mut_ptr() as u64);
    let mut copier = Copier::new()?;
    let (mut left, per_lap) = (order.messages() as usize, bytes / len);
    while left > 0 {
        let count = left.min(per_lap);
        // SAFETY: both rings have `per_lap` messages, and this thread alone uses them.
        unsafe { copier.copy(src, dst, len, count) };
        left -= count;
    }
    let copied = (order.messages() as usize).min(per_lap) * len;
    ensure!(from.get()[..copied] == to.get()[..copied], "the engine's copy differs");
    Ok("compared".to_owned())
}

/// A part of a ring, handed on.
#[derive(Clone, Copy)]
struct Window {
    at: usize,
    messages: usize,
}

/// Runs producer, engine and consumer, each a thread, over one pair of rings.
fn pipeline(order: &Order) -> Result<String> {
    let len = order.message_bytes;
    let bytes = ring_bytes(len);
    let (mut from, mut to) = (PageAligned::new(bytes), PageAligned::new(bytes));
    let (src, dst) = (from.get().as_mut_ptr() as usize, to.get().as_mut_ptr() as usize);
    let window = (WINDOW_BYTES / len).clamp(1, bytes / len);
    // A window has one of three owners, and the rings hold as many as are under way: those in two queues, and
    // one with each thread.
    let windows = bytes / len / window;
    let depth = windows.saturating_sub(3) / 2;
    let (filled, to_copy) = sync_channel::<Window>(depth);
    let (copied, to_read) = sync_channel::<Window>(depth);
    let at = move |n: usize| n % windows * window * len;
    let messages = order.messages() as usize;
    std::thread::scope(|scope| {
        let producer = scope.spawn(move || {
            let mut digest = Blocks::new(len);
            for n in 0..messages.div_ceil(window) {
                let part = Window { at: at(n), messages: window.min(messages - n * window) };
                for message in 0..part.messages {
                    // SAFETY: this window is the producer's, see above.
                    let message = unsafe {
                        std::slice::from_raw_parts_mut((src + part.at + message * len) as *mut u8, len)
                    };
                    rewrite(message, n as u64);
                    digest.update(message);
                }
                if filled.send(part).is_err() {
                    break;
                }
            }
            digest.finish()
        });
        let engine = scope.spawn(move || -> Result<()> {
            let mut copier = Copier::new()?;
            for part in to_copy {
                // SAFETY: this window of both rings is the engine's, see above.
                unsafe { copier.copy((src + part.at) as u64, (dst + part.at) as u64, len, part.messages) };
                copied.send(part)?;
            }
            Ok(())
        });
        let mut digest = Blocks::new(len);
        for part in to_read {
            for message in 0..part.messages {
                // SAFETY: this window of the destination is the consumer's, see above.
                digest.update(unsafe {
                    std::slice::from_raw_parts((dst + part.at + message * len) as *const u8, len)
                });
            }
        }
        engine.join().expect("no panics")?;
        let (sent, received) = (producer.join().expect("no panics"), digest.finish());
        ensure!(sent == received, "the engine: checksum {sent:016x} was sent and {received:016x} received");
        Ok(format!("{received:016x}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_copies_what_it_was_given() {
        for scheme in [Scheme::Memcpy, Scheme::Engine, Scheme::EnginePipeline] {
            for message_bytes in [64, 4096, 65536, 4 << 20] {
                let order = Order::of(message_bytes, 37);
                let streamed = run(scheme, &order).unwrap();
                assert_eq!(streamed.bytes, 37 * message_bytes as u64, "{}", scheme.name());
            }
        }
    }
}
