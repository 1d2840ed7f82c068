//! The packetised interface over memif: the NIC is a memif port, with its checks, and the program a zero-copy client of it.
//!
//! The program lays a pool and a ring for each direction into its region. The NIC copies a frame into the buffer of a descriptor of one
//! ring. The program changes the frame in place and puts the same buffer into the other ring, from which the NIC copies it out. Pool,
//! bursts and headers are those of [`super`].
use super::{
    free_buffers, Packets, Rings, BUFFERS, BUFFER_BYTES, DESCRIPTORS, FRAME_OFFSET, PACKET_BYTES_MAX,
};
use crate::port::{Device, Memif, Port, Taken};
use pd_shm::memfd::{self, Pages};
use pd_shm::{Own, Region};
use rustix::fs::{fcntl_add_seals, SealFlags};
use rustix::io::{Errno, Result};
use rustix::net::{
    bind, connect, listen, recv, sendmsg, socket_with, AddressFamily, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// First word of a ring.
const COOKIE: u32 = 0x03e3_1f20;
/// Offsets in a ring: flags, head, tail, descriptors.
const FLAGS: usize = 4;
const HEAD: usize = 6;
const TAIL: usize = 64;
const ENTRIES: usize = 128;
const ENTRY_BYTES: usize = 16;
/// Flag: the reader of a ring polls.
const MASK_INT: u16 = 1;
/// Offsets of the rings: from the program, to the program. The pool lies behind them.
const RINGS: [usize; 2] = [0, 32 << 10];
const POOL: usize = 64 << 10;
const REGION_BYTES: usize = POOL + BUFFERS * BUFFER_BYTES;
/// Size of a message, and types of a client's messages and the answers.
const MESSAGE_BYTES: usize = 128;
const INIT: u8 = 3;
const ADD_REGION: u8 = 4;
const ADD_RING: u8 = 5;
const CONNECT: u8 = 6;
/// Longest time until the port answers a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// Frames that the NIC moves in a turn, each way.
const BURST: usize = 32;

/// The NIC: a memif port, and the source and sink of its frames.
#[derive(Debug)]
pub struct MemifNic {
    device: Memif,
    port: Port,
    received: u64,
}

impl MemifNic {
    /// Takes sent frames, at most a burst, and fills buffers from the port, at most a burst.
    pub fn turn(&mut self) {
        let Self { device, port, received } = self;
        for _ in 0..BURST {
            let Some(frame) = device.peek() else { break };
            port.take(frame);
            device.advance();
        }
        for _ in 0..BURST {
            let Some(frame) = port.peek() else { break };
            if frame.len() <= PACKET_BYTES_MAX {
                // A frame without a buffer waits here, and is not lost.
                if device.send(frame) != Taken::Done {
                    break;
                }
                *received += 1;
            }
            port.advance();
        }
        device.flush();
    }

    /// Returns the frames given to the program.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the NIC's port.
    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }
}

/// Rings of a client of memif.
#[derive(Debug)]
pub struct MemifRings {
    region: Region<Own>,
    /// The buffer of each descriptor, by ring.
    buffers: [Vec<usize>; 2],
    posted: u16,
    taken: u16,
    sent: u16,
    reclaimed: u16,
    /// Kept open: the port hangs up when it is closed.
    _socket: OwnedFd,
}

impl MemifRings {
    fn entry(ring: usize, index: u16) -> usize {
        RINGS[ring] + ENTRIES + usize::from(index) % DESCRIPTORS * ENTRY_BYTES
    }

    fn tail(&self, ring: usize) -> u16 {
        self.region.load_u32(RINGS[ring] + TAIL, Ordering::Acquire) as u16
    }

    /// Writes a descriptor: no flags, region 0.
    fn put(&mut self, ring: usize, index: u16, buffer: usize, length: usize) {
        let entry = Self::entry(ring, index);
        let offset = POOL + buffer * BUFFER_BYTES + FRAME_OFFSET;
        self.region.store_u64(entry, (length as u64) << 32, Ordering::Relaxed);
        self.region.store_u32(entry + 8, offset as u32, Ordering::Relaxed);
        self.buffers[ring][usize::from(index) % DESCRIPTORS] = buffer;
    }
}

impl Rings for MemifRings {
    fn memory(&self) -> (&Region<Own>, usize) {
        (&self.region, POOL)
    }

    #[inline]
    fn take(&mut self) -> Option<(usize, usize)> {
        if self.tail(1) == self.taken {
            return None;
        }
        let length = (self.region.load_u64(Self::entry(1, self.taken), Ordering::Relaxed) >> 32) as usize;
        let buffer = self.buffers[1][usize::from(self.taken) % DESCRIPTORS];
        self.taken = self.taken.wrapping_add(1);
        Some((buffer, length))
    }

    #[inline]
    fn room(&self) -> usize {
        DESCRIPTORS - usize::from(self.sent.wrapping_sub(self.reclaimed))
    }

    #[inline]
    fn send(&mut self, buffer: usize, length: usize) {
        self.put(0, self.sent, buffer, length);
        self.sent = self.sent.wrapping_add(1);
    }

    #[inline]
    fn reclaim(&mut self) -> Option<usize> {
        if self.tail(0) == self.reclaimed {
            return None;
        }
        let buffer = self.buffers[0][usize::from(self.reclaimed) % DESCRIPTORS];
        self.reclaimed = self.reclaimed.wrapping_add(1);
        Some(buffer)
    }

    #[inline]
    fn wants_buffer(&self) -> bool {
        usize::from(self.posted.wrapping_sub(self.taken)) < DESCRIPTORS
    }

    #[inline]
    fn post(&mut self, buffer: usize) {
        self.put(1, self.posted, buffer, PACKET_BYTES_MAX);
        self.posted = self.posted.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        self.region.store_u16(RINGS[0] + HEAD, self.sent, Ordering::Release);
        self.region.store_u16(RINGS[1] + HEAD, self.posted, Ordering::Release);
    }
}

/// Makes both sides, connected, with all buffers free. The port must not be a link.
///
/// # Errors
/// Errors of making memory, sockets and the port; `EPROTO` where the port refuses the client.
pub fn pair(port: Port) -> Result<(MemifNic, Packets<MemifRings>)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("pd-packets-{}-{number}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let listener = seqpacket()?;
    bind(&listener, &address)?;
    listen(&listener, 1)?;
    let mut nic = MemifNic { device: Memif::new(listener, 0)?, port, received: 0 };

    let file = memfd::create("pd-packets", REGION_BYTES, Pages::Ordinary)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let region = Region::<Own>::new(&file, REGION_BYTES)?;
    region.populate(0, REGION_BYTES)?;
    for ring in RINGS {
        region.store_u32(ring, COOKIE, Ordering::Relaxed);
    }
    region.store_u16(RINGS[1] + FLAGS, MASK_INT, Ordering::Relaxed);
    let socket = seqpacket()?;
    connect(&socket, &address)?;
    shake(&socket, &file, &mut nic.device)?;
    let buffers = [(); 2].map(|()| vec![0; DESCRIPTORS]);
    let rings = MemifRings { region, buffers, posted: 0, taken: 0, sent: 0, reclaimed: 0, _socket: socket };
    Ok((nic, Packets { rings, free: free_buffers() }))
}

fn seqpacket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends a client's messages, while the port takes turns.
fn shake(socket: &OwnedFd, memory: &OwnedFd, device: &mut Memif) -> Result<()> {
    let log = DESCRIPTORS.ilog2() as u8;
    let ring = |flags: u16, at: usize| {
        message(ADD_RING, &[(2, &flags.to_ne_bytes()), (8, &(at as u32).to_ne_bytes()), (12, &[log])])
    };
    let messages = [
        (message(INIT, &[(2, &0x0200u16.to_ne_bytes())]), None),
        (message(ADD_REGION, &[(4, &(REGION_BYTES as u64).to_ne_bytes())]), Some(memory.as_fd())),
        (ring(1, RINGS[0]), None),
        (ring(0, RINGS[1]), None),
        (message(CONNECT, &[]), None),
    ];
    await_answer(socket, device)?; // the greeting
    for (message, fd) in &messages {
        say(socket, message, *fd)?;
        await_answer(socket, device)?;
    }
    Ok(())
}

fn message(kind: u8, fields: &[(usize, &[u8])]) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[0] = kind;
    for (at, bytes) in fields {
        message[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    message
}

fn say(socket: &OwnedFd, message: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = fd.as_slice();
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

fn await_answer(socket: &OwnedFd, device: &mut Memif) -> Result<()> {
    /// Message of a port that hangs up, with its reason.
    const DISCONNECT: u8 = 8;
    let mut bytes = [0; MESSAGE_BYTES];
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        device.flush();
        match recv(socket, &mut bytes, RecvFlags::empty()) {
            Ok((_, len)) if len > 0 && bytes[0] != DISCONNECT => return Ok(()),
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    Err(Errno::PROTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Gen, Recipe};

    #[test]
    fn frames_come_back_in_order_and_dropped_buffers_are_free_again() {
        let recipe = Recipe { sizes: vec![64, 594, 1518, 9000], flows: 1, frames: 200_000 };
        let (mut nic, mut program) = pair(Port::Gen(Gen::new(recipe).unwrap())).unwrap();
        let mut seen = 0u64;
        // More turns than the frames take, and more frames than an index counts.
        for _ in 0..20_000 {
            nic.turn();
            program.turn(|_, length| {
                seen += 1;
                (seen % 3 != 0).then_some(length)
            });
        }
        let Port::Gen(gen) = nic.port() else { unreachable!() };
        let counts = gen.counts();
        assert_eq!((counts.made.0, seen, counts.wrong), (200_000, 150_000, 0));
        assert_eq!((counts.returned.0, nic.received()), (100_000, 150_000));
    }
}
