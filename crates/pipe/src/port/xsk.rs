//! `veth`: frames of an interface of the kernel, by a socket of `AF_XDP`.
//!
//! A process with the needed rights has opened and bound the socket, and attached a program that redirects frames of some flows into
//! it ([`Steer`]). All other frames stay with the kernel. The device has the rings and the memory of frames, which no program of a
//! pipe ever sees. Each frame is copied from there into a pipe's ring, or from a pipe's ring into it. Each direction has half of the
//! frames.
use super::checksum::complete;
use super::device::{Device, Taken};
use crate::flow::Flow;
use pd_shm::copy::copy;
use pd_shm::{Own, Region};
use rustix::io::{Errno, Result};
use rustix::net::xdp::{
    XdpRingOffset, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING,
};
use rustix::net::{recv, send, sockopt, RecvFlags, SendFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// Bytes of memory for a frame: a page, as the kernel requires.
pub const XSK_FRAME_BYTES: usize = 4096;
/// Entries of each of the four rings, and frames of memory for each direction.
pub const XSK_RING_ENTRIES: u32 = 1024;
/// Bytes of memory for frames.
pub const XSK_MEMORY_BYTES: usize = 2 * XSK_RING_ENTRIES as usize * XSK_FRAME_BYTES;

/// Frames that the kernel sends by one call.
const KICK_FRAMES: u32 = 32;
/// Most calls of a turn to have frames sent.
const KICKS_MAX: u32 = 256 / KICK_FRAMES + 1;
/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

/// The program that chooses frames for the socket.
pub trait Steer: std::fmt::Debug + Send {
    /// Returns the most flows that the program tells apart.
    fn flows_max(&self) -> usize;

    /// Redirects frames of these flows, and no others.
    fn set(&mut self, flows: &[Flow]);
}

/// A ring that the kernel shares with the device.
#[derive(Debug)]
struct Ring {
    region: Region<Own>,
    at: XdpRingOffset,
    entry_bytes: usize,
    /// The index that this side writes.
    own: u32,
    published: u32,
}

impl Ring {
    fn map(socket: &OwnedFd, page: u64, at: XdpRingOffset, entry_bytes: usize) -> Result<Self> {
        let len = at.desc as usize + XSK_RING_ENTRIES as usize * entry_bytes;
        let region = Region::<Own>::at(socket, page, len)?;
        Ok(Self { region, at, entry_bytes, own: 0, published: 0 })
    }

    fn entry(&self, index: u32) -> usize {
        self.at.desc as usize + (index % XSK_RING_ENTRIES) as usize * self.entry_bytes
    }

    /// Returns the entries between this side's index and the kernel's producer.
    fn filled(&self) -> u32 {
        self.region.load_u32(self.at.producer as usize, Ordering::Acquire).wrapping_sub(self.own)
    }

    /// Returns the entries that the kernel has not consumed.
    fn unconsumed(&self) -> u32 {
        self.own.wrapping_sub(self.region.load_u32(self.at.consumer as usize, Ordering::Acquire))
    }

    fn publish(&mut self, word: u64) {
        if self.published != self.own {
            self.published = self.own;
            self.region.store_u32(word as usize, self.own, Ordering::Release);
        }
    }

    fn needs_wakeup(&self) -> bool {
        let flags = self.at.flags.map(|at| self.region.load_u32(at as usize, Ordering::Relaxed));
        flags.is_none_or(|flags| flags & NEED_WAKEUP != 0)
    }
}

/// The socket with its rings, its memory and its program.
#[derive(Debug)]
pub struct Xsk {
    socket: OwnedFd,
    memory: Region<Own>,
    received: Ring,
    free: Ring,
    to_send: Ring,
    sent: Ring,
    /// Free memory of frames to send.
    spare: Vec<u64>,
    /// Offset and length of the frame that was peeked and not advanced over.
    head: Option<(usize, usize)>,
    /// Set if the interface takes no frames.
    is_down: bool,
    steer: Box<dyn Steer>,
}

impl Xsk {
    /// Takes a bound socket with rings of [`XSK_RING_ENTRIES`], and the file of [`XSK_MEMORY_BYTES`] that is its memory.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for another kind of socket; errors of `mmap`.
    pub fn new(socket: OwnedFd, memory: impl AsFd, steer: Box<dyn Steer>) -> Result<Self> {
        if rustix::fs::fstat(memory.as_fd())?.st_size != XSK_MEMORY_BYTES as i64 {
            return Err(Errno::INVAL);
        }
        let memory = Region::<Own>::new(memory, XSK_MEMORY_BYTES)?;
        let at = sockopt::xdp_mmap_offsets(&socket)?;
        let mut this = Self {
            received: Ring::map(&socket, XDP_PGOFF_RX_RING, at.rx, 16)?,
            to_send: Ring::map(&socket, XDP_PGOFF_TX_RING, at.tx, 16)?,
            free: Ring::map(&socket, XDP_UMEM_PGOFF_FILL_RING, at.fr, 8)?,
            sent: Ring::map(&socket, XDP_UMEM_PGOFF_COMPLETION_RING, at.cr, 8)?,
            spare: Vec::with_capacity(XSK_RING_ENTRIES as usize),
            head: None,
            is_down: false,
            socket,
            memory,
            steer,
        };
        for frame in 0..u64::from(XSK_RING_ENTRIES) {
            this.give_back(frame * XSK_FRAME_BYTES as u64);
            this.spare.push((frame + u64::from(XSK_RING_ENTRIES)) * XSK_FRAME_BYTES as u64);
        }
        this.free.publish(at.fr.producer);
        Ok(this)
    }

    fn give_back(&mut self, frame: u64) {
        // There are as many frames as entries, so there is room.
        self.free.region.store_u64(self.free.entry(self.free.own), frame, Ordering::Relaxed);
        self.free.own = self.free.own.wrapping_add(1);
    }

    /// Takes the memory of sent frames back.
    fn reclaim(&mut self) {
        for _ in 0..self.sent.filled().min(XSK_RING_ENTRIES) {
            let frame = self.sent.region.load_u64(self.sent.entry(self.sent.own), Ordering::Relaxed);
            self.spare.push(frame);
            self.sent.own = self.sent.own.wrapping_add(1);
        }
        self.sent.publish(self.sent.at.consumer);
    }

    /// Loads the next received frame's descriptor, once.
    fn receive(&mut self) {
        while self.head.is_none() && self.received.filled() != 0 {
            let entry = self.received.entry(self.received.own);
            let at = self.received.region.load_u64(entry, Ordering::Relaxed) as usize;
            let len = self.received.region.load_u32(entry + 8, Ordering::Relaxed) as usize;
            let inside = at.checked_add(len).is_some_and(|end| end <= XSK_MEMORY_BYTES);
            self.head = Some(if inside { (at, len) } else { (0, 0) });
            if !inside {
                self.received.own = self.received.own.wrapping_add(1);
                self.head = None;
                continue;
            }
            complete(self.bytes(at, len));
        }
    }

    /// Returns the bytes of a frame that this side owns.
    fn bytes(&mut self, at: usize, len: usize) -> &mut [u8] {
        let address = self.memory.address(at, len);
        // SAFETY: `len` bytes of the mapping, checked. The frame is this side's until it is given back, and its memory is no program's.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), len) }
    }

    /// Makes the kernel send, where it waits for a call.
    fn wake_kernel(&mut self) {
        for _ in 0..KICKS_MAX {
            if self.to_send.unconsumed() == 0 || !self.to_send.needs_wakeup() {
                return;
            }
            match send(&self.socket, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // The kernel goes on with the next call.
                Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => self.is_down = false,
                Err(_) => {
                    self.is_down = true;
                    return;
                }
            }
        }
    }
}

impl Device for Xsk {
    fn peek(&mut self) -> Option<&[u8]> {
        self.receive();
        let (at, len) = self.head?;
        Some(self.bytes(at, len))
    }

    fn advance(&mut self) {
        if let Some((at, _)) = self.head.take() {
            self.received.own = self.received.own.wrapping_add(1);
            self.give_back((at - at % XSK_FRAME_BYTES) as u64);
        }
    }

    fn send(&mut self, frame: &[u8]) -> Taken {
        if self.is_down || frame.len() > XSK_FRAME_BYTES {
            return Taken::Lost;
        }
        if self.spare.is_empty() {
            self.reclaim();
        }
        let Some(at) = self.spare.pop() else { return Taken::Wait };
        let place = self.memory.address(at as usize, frame.len());
        // SAFETY: memory of one frame, which is this side's until the kernel says that it was sent; `frame` lies elsewhere.
        unsafe { copy(place.as_ptr(), frame.as_ptr(), frame.len()) };
        let entry = self.to_send.entry(self.to_send.own);
        self.to_send.region.store_u64(entry, at, Ordering::Relaxed);
        // The length, without options.
        self.to_send.region.store_u64(entry + 8, frame.len() as u64, Ordering::Relaxed);
        self.to_send.own = self.to_send.own.wrapping_add(1);
        Taken::Done
    }

    fn flush(&mut self) -> bool {
        self.received.publish(self.received.at.consumer);
        self.free.publish(self.free.at.producer);
        self.to_send.publish(self.to_send.at.producer);
        self.wake_kernel();
        self.reclaim();
        if self.free.at.flags.is_some() && self.free.needs_wakeup() {
            let _ = recv(&self.socket, &mut [0; 0], RecvFlags::DONTWAIT);
        }
        false
    }

    fn has_gone(&mut self) -> bool {
        // The kernel's word for a socket whose interface was deleted: an interface that is down says nothing.
        matches!(sockopt::socket_error(&self.socket), Ok(Err(Errno::NETDOWN)))
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.socket.as_fd()]
    }

    fn bind(&mut self, flows: &[Flow]) {
        self.steer.set(flows);
    }

    fn flows_max(&self) -> usize {
        self.steer.flows_max()
    }

    fn missed(&self) -> u64 {
        sockopt::xdp_statistics(&self.socket).map_or(0, |counts| {
            counts.rx_dropped
                + counts.rx_ring_full.unwrap_or(0)
                + counts.rx_fill_ring_empty_descs.unwrap_or(0)
        })
    }
}
