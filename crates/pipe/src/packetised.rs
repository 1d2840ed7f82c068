//! The packetised interface, as DPDK's drivers have it: descriptor rings, buffers of 2 KB from a pool, a header before each frame,
//! bursts of 32. The twin of a pipe in the same harness.
//!
//! The program owns the pool. It posts free buffers to the receive ring; the NIC copies a frame into the oldest and says so in the
//! descriptor. The program posts the buffer to the send ring; the NIC copies the frame out and says so, and the buffer is free again.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use anyhow::Result;
use pd_pipe::{Gen, GenCounts};
use pd_shm::memfd::{self, Pages};
use pd_shm::{Own, Region};

use super::{swap_addresses, Nic};

const DESCRIPTORS: usize = 1024;
const BUFFERS: usize = 8192;
const BUFFER_BYTES: usize = 2048;
/// Header of a buffer: a line that the program writes and reads for each frame, as of an mbuf.
const HEADER_BYTES: usize = 64;
/// Bytes before the frame: the header, and headroom.
const FRAME_OFFSET: usize = 2 * HEADER_BYTES;
const BURST: usize = 32;

/// A ring of descriptors: buffer in the low half, length above, and the highest bit where the NIC is done with it. Lines of their own for
/// each descriptor would be kinder to it; cards pack them, and so does this.
struct Descriptors {
    entries: Vec<AtomicU64>,
    /// Descriptors posted by the program.
    posted: Line,
}

/// A counter on a line of its own.
#[repr(align(128))]
struct Line(AtomicU64);

const DONE: u64 = 1 << 63;

impl Descriptors {
    fn new() -> Self {
        Self {
            entries: (0..DESCRIPTORS).map(|_| AtomicU64::new(0)).collect(),
            posted: Line(AtomicU64::new(0)),
        }
    }

    fn at(&self, index: u64) -> &AtomicU64 {
        &self.entries[index as usize % DESCRIPTORS]
    }
}

fn descriptor(buffer: usize, length: usize) -> u64 {
    buffer as u64 | (length as u64) << 32
}

fn parts(descriptor: u64) -> (usize, usize) {
    ((descriptor as u32) as usize, ((descriptor & !DONE) >> 32) as usize)
}

struct Shared {
    buffers: Region<Own>,
    receive: Descriptors,
    send: Descriptors,
}

/// The NIC of the packetised interface.
pub struct PacketNic {
    shared: Arc<Shared>,
    gen: Gen,
    received: u64,
    sent: u64,
    scratch: Vec<u8>,
}

/// The program's side.
pub struct Program {
    shared: Arc<Shared>,
    free: Vec<usize>,
    posted: u64,
    taken: u64,
    sent: u64,
    reclaimed: u64,
}

/// Both sides, with all buffers free.
pub fn pair(gen: Gen) -> Result<(PacketNic, Program)> {
    let bytes = BUFFERS * BUFFER_BYTES;
    let file = memfd::create("pd-bench-packets", bytes, Pages::Ordinary)?;
    let buffers = Region::<Own>::new(&file, bytes)?;
    buffers.populate(0, bytes)?;
    let shared = Arc::new(Shared { buffers, receive: Descriptors::new(), send: Descriptors::new() });
    // A pool that has been used: its buffers are in no order.
    let mut free: Vec<usize> = (0..BUFFERS).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for last in (1..BUFFERS).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        free.swap(last, (random % (last as u64 + 1)) as usize);
    }
    let nic =
        PacketNic { shared: Arc::clone(&shared), gen, received: 0, sent: 0, scratch: vec![0; BUFFER_BYTES] };
    Ok((nic, Program { shared, free, posted: 0, taken: 0, sent: 0, reclaimed: 0 }))
}

impl Nic for PacketNic {
    fn turn(&mut self) {
        let Self { shared, gen, received, sent, scratch } = self;
        let posted = shared.send.posted.0.load(Ordering::Acquire);
        for _ in 0..BURST.min((posted - *sent) as usize) {
            let entry = shared.send.at(*sent);
            let (buffer, length) = parts(entry.load(Ordering::Relaxed));
            let place = shared.buffers.address(buffer * BUFFER_BYTES + FRAME_OFFSET, length);
            // SAFETY: inside the pool (checked) and the scratch; the program leaves a posted buffer alone.
            unsafe { place.as_ptr().copy_to_nonoverlapping(scratch[..length].as_mut_ptr(), length) };
            gen.check(&scratch[..length]);
            entry.store(DONE, Ordering::Release);
            *sent += 1;
        }
        let posted = shared.receive.posted.0.load(Ordering::Acquire);
        for _ in 0..BURST.min((posted - *received) as usize) {
            let Some(frame) = gen.peek() else { break };
            let entry = shared.receive.at(*received);
            let (buffer, _) = parts(entry.load(Ordering::Relaxed));
            // SAFETY: private bytes; the program leaves a posted buffer alone.
            unsafe {
                shared.buffers.copy_in(buffer * BUFFER_BYTES + FRAME_OFFSET, frame.as_ptr(), frame.len());
            }
            entry.store(descriptor(buffer, frame.len()) | DONE, Ordering::Release);
            gen.advance();
            *received += 1;
        }
    }

    fn counts(&mut self) -> GenCounts {
        self.gen.counts()
    }

    /// Each descriptor is one.
    fn notifications(&mut self) -> u64 {
        self.received
    }
}

impl Program {
    /// Takes a burst, swaps addresses, sends it, and posts free buffers.
    pub fn turn(&mut self) {
        let mut burst = 0;
        while burst < BURST && self.taken < self.posted && self.sent - self.reclaimed < DESCRIPTORS as u64 {
            let received = self.shared.receive.at(self.taken).load(Ordering::Acquire);
            if received & DONE == 0 {
                break;
            }
            let (buffer, length) = parts(received);
            self.header(buffer, length);
            let frame = self.shared.buffers.address(buffer * BUFFER_BYTES + FRAME_OFFSET, length);
            // SAFETY: inside the pool (checked); a buffer that the NIC is done with is the program's.
            swap_addresses(unsafe { std::slice::from_raw_parts_mut(frame.as_ptr(), length) });
            self.shared.send.at(self.sent).store(descriptor(buffer, length), Ordering::Relaxed);
            self.sent += 1;
            self.taken += 1;
            burst += 1;
        }
        if burst > 0 {
            self.shared.send.posted.0.store(self.sent, Ordering::Release);
        }
        self.reclaim();
        self.post();
    }

    /// Writes what a driver writes into the header of each frame, and the program reads.
    fn header(&self, buffer: usize, length: usize) {
        let at = buffer * BUFFER_BYTES;
        let words = &self.shared.buffers;
        words.store_u64(at, buffer as u64, Ordering::Relaxed);
        words.store_u64(at + 8, length as u64, Ordering::Relaxed);
        words.store_u64(at + 16, FRAME_OFFSET as u64, Ordering::Relaxed);
        words.store_u64(at + 24, 0, Ordering::Relaxed);
    }

    fn reclaim(&mut self) {
        for _ in 0..BURST {
            let at = self.reclaimed;
            if at == self.sent || self.shared.send.at(at).load(Ordering::Acquire) & DONE == 0 {
                break;
            }
            // The oldest sent is the oldest received.
            let (buffer, _) = parts(self.shared.receive.at(at).load(Ordering::Relaxed));
            self.free.push(buffer);
            self.reclaimed += 1;
        }
    }

    fn post(&mut self) {
        let mut posted = 0;
        // The descriptor of a frame that is being sent names its buffer until it is reclaimed.
        while posted < BURST && self.posted - self.reclaimed < DESCRIPTORS as u64 {
            let Some(buffer) = self.free.pop() else { break };
            self.shared.receive.at(self.posted).store(descriptor(buffer, 0), Ordering::Relaxed);
            self.posted += 1;
            posted += 1;
        }
        if posted > 0 {
            self.shared.receive.posted.0.store(self.posted, Ordering::Release);
        }
    }
}
