//! The packetised interface, as of DPDK's drivers: descriptor rings, buffers of 2 KB from a pool, a header before each frame,
//! bursts of 32. The twin of a pipe for benchmarks and tests, which compare both over the same [`Port`].
//!
//! The program owns the pool. It posts free buffers to the receive ring; the NIC copies a frame into the oldest and completes the
//! descriptor. The program posts the buffer to the send ring; the NIC copies the frame out and completes the descriptor, and the
//! buffer is free again. Both sides are of one process, and trust each other.
//!
//! The program works over any [`Rings`]: those of this file, and those of [`memif`].
pub mod memif;

use crate::port::Port;
use pd_shm::memfd::{self, Pages};
use pd_shm::{Own, Region};
use rustix::io::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

const DESCRIPTORS: usize = 1024;
const BUFFERS: usize = 8192;
const BUFFER_BYTES: usize = 2048;
/// Header of a buffer: a line that the program writes and reads for each frame, like an mbuf.
const HEADER_BYTES: usize = 64;
/// Bytes before the frame: the header, and headroom.
const FRAME_OFFSET: usize = 2 * HEADER_BYTES;
/// Longest frame that a buffer holds. The NIC drops longer ones.
pub const PACKET_BYTES_MAX: usize = BUFFER_BYTES - FRAME_OFFSET;
/// Frames that either side moves in a turn.
const BURST: usize = 32;

/// A ring of descriptors: buffer in the low half, length above, and the highest bit set by the NIC when done. Descriptors on lines of
/// their own would be faster, but cards pack them, and so does this ring.
#[derive(Debug)]
struct Descriptors {
    entries: Vec<AtomicU64>,
    /// Number of descriptors posted by the program.
    posted: Line,
}

/// A counter on a line of its own.
#[derive(Debug)]
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

#[derive(Debug)]
struct Shared {
    buffers: Region<Own>,
    receive: Descriptors,
    send: Descriptors,
}

/// The NIC of the packetised interface, with its port.
#[derive(Debug)]
pub struct PacketNic {
    shared: Arc<Shared>,
    port: Port,
    received: u64,
    sent: u64,
    scratch: Vec<u8>,
}

/// Descriptor rings from the program's side. Buffers are named by their numbers in the pool.
pub trait Rings {
    /// Returns the memory that the pool lies in, and the pool's offset.
    fn memory(&self) -> (&Region<Own>, usize);

    /// Takes the oldest received frame: returns its buffer and its length.
    fn take(&mut self) -> Option<(usize, usize)>;

    /// Returns the number of frames for which the send ring has room.
    fn room(&self) -> usize;

    /// Puts a frame of this length into the send ring.
    fn send(&mut self, buffer: usize, length: usize);

    /// Takes a buffer back whose frame has left.
    fn reclaim(&mut self) -> Option<usize>;

    /// Returns whether the receive ring has room for a free buffer.
    fn wants_buffer(&self) -> bool;

    /// Puts a free buffer into the receive ring.
    fn post(&mut self, buffer: usize);

    /// Publishes the frames sent and buffers posted since the last call to the NIC.
    fn publish(&mut self);
}

/// The rings of this file.
#[derive(Debug)]
pub struct OwnRings {
    shared: Arc<Shared>,
    posted: u64,
    taken: u64,
    sent: u64,
    reclaimed: u64,
    /// Counts of sent frames and posted buffers that the NIC has seen.
    published: (u64, u64),
}

impl OwnRings {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, posted: 0, taken: 0, sent: 0, reclaimed: 0, published: (0, 0) }
    }
}

impl Rings for OwnRings {
    fn memory(&self) -> (&Region<Own>, usize) {
        (&self.shared.buffers, 0)
    }

    #[inline]
    fn take(&mut self) -> Option<(usize, usize)> {
        if self.taken == self.posted {
            return None;
        }
        let received = self.shared.receive.at(self.taken).load(Ordering::Acquire);
        self.taken += u64::from(received & DONE != 0);
        (received & DONE != 0).then(|| parts(received))
    }

    #[inline]
    fn room(&self) -> usize {
        DESCRIPTORS - (self.sent - self.reclaimed) as usize
    }

    #[inline]
    fn send(&mut self, buffer: usize, length: usize) {
        self.shared.send.at(self.sent).store(descriptor(buffer, length), Ordering::Relaxed);
        self.sent += 1;
    }

    #[inline]
    fn reclaim(&mut self) -> Option<usize> {
        if self.reclaimed == self.sent {
            return None;
        }
        let sent = self.shared.send.at(self.reclaimed).load(Ordering::Acquire);
        self.reclaimed += u64::from(sent & DONE != 0);
        (sent & DONE != 0).then(|| parts(sent).0)
    }

    #[inline]
    fn wants_buffer(&self) -> bool {
        self.posted - self.taken < DESCRIPTORS as u64
    }

    #[inline]
    fn post(&mut self, buffer: usize) {
        self.shared.receive.at(self.posted).store(descriptor(buffer, 0), Ordering::Relaxed);
        self.posted += 1;
    }

    #[inline]
    fn publish(&mut self) {
        if self.published.0 != self.sent {
            self.shared.send.posted.0.store(self.sent, Ordering::Release);
        }
        if self.published.1 != self.posted {
            self.shared.receive.posted.0.store(self.posted, Ordering::Release);
        }
        self.published = (self.sent, self.posted);
    }
}

/// The program's side.
#[derive(Debug)]
pub struct Packets<R = OwnRings> {
    rings: R,
    free: Vec<usize>,
}

/// Returns the buffers of a used pool, in random order.
fn free_buffers() -> Vec<usize> {
    let mut free: Vec<usize> = (0..BUFFERS).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for last in (1..BUFFERS).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        free.swap(last, (random % (last as u64 + 1)) as usize);
    }
    free
}

/// Makes both sides, with all buffers free. The port must not be a link.
///
/// # Errors
/// Errors of making memory.
pub fn pair(port: Port) -> Result<(PacketNic, Packets)> {
    let bytes = BUFFERS * BUFFER_BYTES;
    let file = memfd::create("pd-packets", bytes, Pages::Ordinary)?;
    let buffers = Region::<Own>::new(&file, bytes)?;
    buffers.populate(0, bytes)?;
    let shared = Arc::new(Shared { buffers, receive: Descriptors::new(), send: Descriptors::new() });
    let scratch = vec![0; BUFFER_BYTES];
    let nic = PacketNic { shared: Arc::clone(&shared), port, received: 0, sent: 0, scratch };
    Ok((nic, Packets { rings: OwnRings::new(shared), free: free_buffers() }))
}

impl PacketNic {
    /// Takes sent frames, at most a burst, and fills posted buffers from the port, at most a burst.
    pub fn turn(&mut self) {
        let Self { shared, port, received, sent, scratch } = self;
        let posted = shared.send.posted.0.load(Ordering::Acquire);
        for _ in 0..BURST.min((posted - *sent) as usize) {
            let entry = shared.send.at(*sent);
            let descriptor = entry.load(Ordering::Relaxed);
            let (buffer, length) = parts(descriptor);
            let place = shared.buffers.address(buffer * BUFFER_BYTES + FRAME_OFFSET, length);
            // SAFETY: inside the pool (checked) and the scratch; the program leaves a posted buffer alone.
            unsafe { place.as_ptr().copy_to_nonoverlapping(scratch[..length].as_mut_ptr(), length) };
            port.take(&scratch[..length]);
            entry.store(descriptor | DONE, Ordering::Release);
            *sent += 1;
        }
        let posted = shared.receive.posted.0.load(Ordering::Acquire);
        for _ in 0..BURST.min((posted - *received) as usize) {
            let Some(frame) = port.peek() else { break };
            if frame.len() > PACKET_BYTES_MAX {
                port.advance();
                continue;
            }
            let entry = shared.receive.at(*received);
            let (buffer, _) = parts(entry.load(Ordering::Relaxed));
            // SAFETY: private bytes, which fit into the buffer; the program leaves a posted buffer alone.
            unsafe {
                shared.buffers.copy_in(buffer * BUFFER_BYTES + FRAME_OFFSET, frame.as_ptr(), frame.len());
            }
            entry.store(descriptor(buffer, frame.len()) | DONE, Ordering::Release);
            port.advance();
            *received += 1;
        }
    }

    /// Returns the frames given to the program: each descriptor is a notification.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the NIC's port.
    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }
}

impl<R: Rings> Packets<R> {
    /// Takes a burst, passes each frame to `each`, sends the result, and posts free buffers. `each` gets a buffer of
    /// [`PACKET_BYTES_MAX`] and the length of the frame in it. The result is the length of the frame to send from there; none drops
    /// it. Returns the number of frames.
    #[inline]
    pub fn turn(&mut self, mut each: impl FnMut(&mut [u8], usize) -> Option<usize>) -> usize {
        let mut burst = [(0, 0); BURST];
        let mut count = 0;
        // As in drivers, all buffers of a burst are prefetched before the first is used.
        while count < BURST.min(self.rings.room()) {
            let Some((buffer, length)) = self.rings.take() else { break };
            self.header(buffer, length);
            burst[count] = (buffer, length);
            count += 1;
        }
        for &(buffer, length) in &burst[..count] {
            let (memory, pool) = self.rings.memory();
            let place = memory.address(pool + buffer * BUFFER_BYTES + FRAME_OFFSET, PACKET_BYTES_MAX);
            // SAFETY: inside the pool (checked); a buffer that the NIC is done with is the program's.
            let room = unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), PACKET_BYTES_MAX) };
            match each(room, length) {
                Some(length) => self.rings.send(buffer, length.min(PACKET_BYTES_MAX)),
                None => self.free.push(buffer),
            }
        }
        for _ in 0..BURST {
            let Some(buffer) = self.rings.reclaim() else { break };
            self.free.push(buffer);
        }
        for _ in 0..BURST {
            if !self.rings.wants_buffer() {
                break;
            }
            let Some(buffer) = self.free.pop() else { break };
            self.rings.post(buffer);
        }
        self.rings.publish();
        count
    }

    /// Prefetches the frame, and writes the fields of its header that a driver writes for the program.
    #[inline]
    fn header(&self, buffer: usize, length: usize) {
        let (memory, pool) = self.rings.memory();
        let at = pool + buffer * BUFFER_BYTES;
        memory.prefetch_to_write(at + FRAME_OFFSET);
        memory.store_u64(at, buffer as u64, Ordering::Relaxed);
        memory.store_u64(at + 8, length as u64, Ordering::Relaxed);
        memory.store_u64(at + 16, FRAME_OFFSET as u64, Ordering::Relaxed);
        memory.store_u64(at + 24, 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Gen, Recipe};

    #[test]
    fn frames_come_back_in_order_and_dropped_buffers_are_free_again() {
        let recipe = Recipe { sizes: vec![64, 594, 1518, 9000], flows: 1, frames: 40_000 };
        let (mut nic, mut program) = pair(Port::Gen(Gen::new(recipe).unwrap())).unwrap();
        let mut seen = 0u64;
        // More turns than the frames take, even if each third is dropped.
        for _ in 0..4000 {
            nic.turn();
            program.turn(|_, length| {
                seen += 1;
                (seen % 3 != 0).then_some(length)
            });
        }
        let Port::Gen(gen) = nic.port() else { unreachable!() };
        let counts = gen.counts();
        // Each fourth frame is too long for a buffer.
        assert_eq!((counts.made.0, seen, counts.wrong), (40_000, 30_000, 0));
        assert_eq!(counts.returned.0, 20_000);
    }
}
