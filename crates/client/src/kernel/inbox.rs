//! Receiving what the kernel carries into a ring of this process, from which it is lent as from a receive ring.
use super::Inbox;
use crate::error::{bad_socket, Error, Result};
use crate::recv::ring::Ring;
use crate::recv::side::RecvSide;
use pd_abi::layout::ENDED;
use pd_abi::limits::PAGE_BYTES;
use pd_shm::memfd::{self, Pages};
use pd_shm::{byte_ring, Own, Region, Theirs};
use rustix::io::Errno;
use std::sync::Arc;

impl Inbox {
    /// Makes the ring that received bytes are lent from.
    fn make_ring(&mut self, origin: u64) -> Result<Ring> {
        let bytes = self.ring_bytes as usize;
        let make = || {
            let memory = memfd::create("pd-kernel-ring", bytes, Pages::Ordinary)?;
            let map = Region::<Theirs>::twice(&memory, 0, bytes, PAGE_BYTES)?;
            Ok((Region::<Own>::new(&memory, bytes)?, map))
        };
        let (memory, map) = make().map_err(|errno: Errno| {
            Error::new(Errno::NOBUFS, format!("cannot make a receive ring of {bytes} bytes: {errno}"))
        })?;
        self.memory = Some(memory);
        let memory = byte_ring::Ring::new(Arc::new(map), 0, self.ring_bytes);
        Ok(Ring { words: (0, 0, 0), memory, origin })
    }
}

impl RecvSide {
    /// Returns how the stream has ended and bytes that can be handed out. Looks for more if they are fewer than a receive waits for.
    #[cold]
    pub(crate) fn take_from_kernel(&mut self) -> Result<(u32, u64)> {
        if self.producer - self.cursor < self.lowat {
            self.fill()?;
        }
        Ok((self.kernel.as_ref().map_or(0, |inbox| inbox.end), self.producer - self.cursor))
    }

    /// Receives what has come, as far as the ring has room in one piece.
    pub(super) fn fill(&mut self) -> Result<()> {
        let Some(inbox) = self.kernel.as_mut().filter(|inbox| inbox.end == 0) else { return Ok(()) };
        if self.ring.is_none() {
            self.ring = Some(inbox.make_ring(self.producer)?);
        }
        let (Some(ring), Some(memory)) = (&self.ring, &inbox.memory) else { return Ok(()) };
        let room = ring.memory.bytes() - (self.producer - self.consumer.max(ring.origin));
        let position = self.producer - ring.origin;
        let (offset, len) = (ring.memory.place(position), room.min(ring.memory.to_end(position)));
        if len == 0 {
            return Ok(());
        }
        match inbox.carrier.fill(memory, offset, len as usize) {
            Ok(0) => inbox.end = ENDED,
            Ok(len) => self.producer += len as u64,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::BADF) => return Err(bad_socket()),
            Err(errno) => inbox.end = errno.raw_os_error() as u32,
        }
        Ok(())
    }

    /// Gives back everything before [`Self::consumer`]. A ring that is empty begins anew, in memory that a cache holds.
    pub(crate) fn give_back_to_kernel(&mut self) {
        if let Some(ring) = self.ring.as_mut().filter(|_| self.consumer == self.producer) {
            ring.origin = self.producer;
        }
    }

    /// Bytes that were received into the ring and not yet handed out.
    pub(super) fn buffered(&self) -> u64 {
        self.producer - self.cursor
    }
}
