//! The receiving half of a socket: what was delivered, handed out and given back, on all paths.
use super::ring::Ring;
use crate::direct::incoming::Incoming;
use crate::error::{elsewhere, moved, not_connected, Error, Result};
use crate::kernel::Inbox;
use crate::link::{Link, MOVED};
use crate::turn::{HasTurn, Turn};
use pd_abi::layout::{ELSEWHERE, ENDED};
use pd_abi::Operation;
use pd_shm::byte_ring;
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Non-blocking calls without a result before one checks that the driver is there.
pub(crate) const IDLE_CALLS: u32 = 1024;

/// The receiving half of a socket; of a listener: its count of connections.
#[derive(Debug)]
pub(crate) struct RecvSide {
    pub(crate) link: Arc<Link>,
    pub(crate) connected: bool,
    /// The driver was asked to connect it, and may have done so.
    pub(crate) connecting: bool,
    pub(crate) listening: bool,
    pub(crate) shut: bool,
    pub(crate) lowat: u64,
    pub(crate) timeout: Option<Duration>,
    /// Bytes given back; connections taken.
    pub(crate) consumer: u64,
    /// Bytes handed out.
    pub(crate) cursor: u64,
    /// Bytes delivered, as last seen.
    pub(crate) producer: u64,
    pub(crate) ring: Option<Ring>,
    /// On the direct path.
    pub(crate) incoming: Incoming,
    /// Of a connection that the kernel carries.
    pub(crate) kernel: Option<Box<Inbox>>,
    /// See [`crate::core::Socket::set_receives_shared`].
    pub(crate) receives_shared: bool,
    /// Another process may take the socket.
    pub(crate) may_move: bool,
    /// Of a socket whose bytes are copied: those that were peeked at, which is what they stay.
    pub(crate) peeked: Vec<u8>,
    space_answered: u64,
    /// Given back before what came earlier.
    pub(super) early: Vec<(u64, u64)>,
    pub(crate) idle_calls: u32,
    turn: Turn,
}

impl HasTurn for RecvSide {
    fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }
}

/// Bytes handed out: where they are, and where in the stream.
#[derive(Clone, Copy, Debug)]
pub struct Handout {
    /// First byte. Dangling if `len` is 0.
    pub ptr: NonNull<u8>,
    /// Bytes; 0: the stream has ended.
    pub len: usize,
    /// Position of the first byte in the stream.
    pub start: u64,
}

impl RecvSide {
    pub(crate) fn new(link: Arc<Link>, connected: bool, receives_shared: bool) -> Self {
        Self {
            link,
            connected,
            connecting: false,
            listening: false,
            shut: false,
            lowat: 1,
            timeout: None,
            consumer: 0,
            cursor: 0,
            producer: 0,
            ring: None,
            incoming: Incoming::default(),
            kernel: None,
            receives_shared,
            may_move: false,
            peeked: Vec::new(),
            space_answered: 0,
            early: Vec::new(),
            idle_calls: 0,
            turn: Turn::new(),
        }
    }

    pub(crate) fn forget_ring(&mut self) {
        self.ring = None;
    }

    /// Starts counting anew, on another link.
    pub(crate) fn restart(&mut self) {
        (self.consumer, self.cursor, self.producer) = (0, 0, 0);
    }

    /// Looks for what was delivered. Returns the bytes that can be handed out.
    #[inline]
    fn refresh(&mut self) -> Result<u64> {
        if self.link.direct.is_some() {
            self.leave_if_asked()?;
            if self.follow()? {
                self.producer = self.direct_producer()?;
                return Ok(self.producer - self.cursor);
            }
        }
        let producer = self.link.recv_producer();
        if producer != self.producer {
            self.take_delivery(producer)?;
        }
        Ok(self.producer - self.cursor)
    }

    pub(crate) fn take_delivery(&mut self, producer: u64) -> Result<()> {
        // With everything given back the driver may have attached another ring meanwhile.
        if self.consumer == self.producer || self.ring.is_none() {
            let words = self.link.ring_words();
            if self.ring.as_ref().is_none_or(|ring| ring.words != words) {
                let map = self.link.attachment.ring(words)?;
                let bytes = map.len() as u64 / 2;
                self.ring = Some(Ring { words, memory: byte_ring::Ring::new(map, 0, bytes), origin: 0 });
            }
        }
        let ring_bytes = self.ring.as_ref().map_or(0, |ring| ring.memory.bytes());
        if producer.wrapping_sub(self.consumer) > ring_bytes || producer < self.producer {
            self.link.attachment.die(Some("a receive counter of the driver is broken"));
            return Err(self.link.attachment.dead_error());
        }
        self.producer = producer;
        Ok(())
    }

    /// Bytes to be had, in whichever ring they lie.
    pub(crate) fn there(&mut self) -> Result<u64> {
        if let Some(inbox) = &self.kernel {
            return Ok(self.producer - self.cursor + inbox.carrier.queued());
        }
        if self.link.direct.is_none() {
            return Ok(self.link.recv_producer().saturating_sub(self.cursor));
        }
        let there = self.refresh()?;
        Ok(there + if self.is_remainder() { self.beyond() } else { 0 })
    }

    /// Bytes or connections to be had, and how the stream ended (0: it did not).
    pub(crate) fn poll(&mut self) -> (u64, u32) {
        if let Some(inbox) = &self.kernel {
            return (self.producer - self.cursor, inbox.end);
        }
        let end = self.link.recv_end();
        let there = if self.listening {
            self.link.recv_producer().saturating_sub(self.consumer)
        } else {
            match self.there() {
                Ok(there) if self.is_remainder() => there.max(self.lowat),
                Ok(there) => there,
                // The next receive says what has failed.
                Err(_) => self.lowat,
            }
        };
        let dead = if self.link.attachment.alive() { 0 } else { libc::ECONNRESET as u32 };
        (there, if end == 0 { dead } else { end })
    }

    /// Hands out what is there, or says why nothing comes any more; none: nothing yet. Returns where in the stream, and how many
    /// bytes; 0: the stream has ended.
    #[inline]
    pub(crate) fn take(&mut self, max: usize) -> Result<Option<(u64, u64)>> {
        let mut there = self.producer - self.cursor;
        let mut end = 0;
        // Another client may have taken the socket, and the bytes that are known to be there with it.
        if self.may_move && self.link.recv_end() == MOVED {
            return Err(moved());
        }
        if there < self.lowat.max(max as u64) {
            if self.kernel.is_some() {
                (end, there) = self.take_from_kernel()?;
            } else {
                // The end is loaded first: what was delivered before it is then seen.
                end = self.link.recv_end();
                if end == MOVED {
                    return Err(moved());
                }
                there = self.refresh()?;
            }
        }
        if there > 0 && (there >= self.lowat || self.nothing_more(end)) {
            let len = there.min(max as u64);
            let start = self.cursor;
            self.cursor += len;
            self.went_on();
            return Ok(Some((start, len)));
        }
        if there > 0 {
            return Ok(None);
        }
        if !self.connected {
            return Err(not_connected());
        }
        // Also of one that is shut: what has come in the kernel stays to be received.
        if end == ELSEWHERE {
            return Err(elsewhere());
        }
        if end != 0 && end != ENDED {
            return Err(Error::from_driver(end, || "the connection has failed".to_owned()));
        }
        if end == ENDED || self.shut {
            return Ok(Some((self.cursor, 0)));
        }
        if self.is_lost() {
            return Err(self.link.attachment.dead_error());
        }
        if self.ring_is_full() {
            return Err(Error::new(
                Errno::NOBUFS,
                "all of the receive ring is handed out; give bytes back with pd_recv_done first",
            ));
        }
        Ok(None)
    }

    /// Returns whether waiting for more bytes is in vain.
    fn nothing_more(&self, end: u32) -> bool {
        end != 0 || self.shut || self.ring_is_full() || self.is_remainder() || self.is_lost()
    }

    /// Tells whether the driver has gone, and the connection with it.
    fn is_lost(&self) -> bool {
        self.kernel.is_none() && !self.link.attachment.alive()
    }

    pub(crate) fn ring_is_full(&self) -> bool {
        let Some(ring) = &self.ring else { return false };
        let bytes = self.producer - self.consumer.max(ring.origin);
        bytes > 0 && bytes == ring.memory.bytes()
    }

    /// Lends what was taken, as far as it lies in one ring: a peek may have gone on from one to the next.
    pub(crate) fn lend(&mut self, (start, len): (u64, u64)) -> Handout {
        let origin = self.ring.as_ref().map_or(0, |ring| ring.origin);
        let len = if start < origin { len.min(origin - start) } else { len };
        self.cursor = start + len;
        if !self.peeked.is_empty() {
            let kept = self.peeked.len().min(len as usize);
            self.forget_kept(kept);
        }
        self.handout((start, len))
    }

    pub(crate) fn handout(&self, (start, len): (u64, u64)) -> Handout {
        let Some(ring) = self.ring.as_ref().filter(|_| len > 0) else {
            return Handout { ptr: NonNull::dangling(), len: 0, start };
        };
        let ring = self.incoming.before.as_ref().filter(|_| start < ring.origin).unwrap_or(ring);
        let offset = ring.memory.place(start.wrapping_sub(ring.origin));
        Handout { ptr: ring.memory.map().address(offset, len as usize), len: len as usize, start }
    }

    /// Gives back everything before `consumer`.
    #[inline]
    pub(crate) fn give_back(&mut self, consumer: u64) -> Result<()> {
        let before = std::mem::replace(&mut self.consumer, consumer);
        if self.kernel.is_some() {
            self.give_back_to_kernel();
            return Ok(());
        }
        if self.give_back_direct(before, consumer)? {
            return Ok(());
        }
        self.link.store_recv_consumer(consumer);
        // SYNC POINT: space-dekker (the driver stores `space_wake_at`, fences, looks at `recv_consumer`)
        fence(Ordering::SeqCst);
        if self.may_move && !self.link.is_last_received(consumer)? {
            return Err(moved());
        }
        let wanted = self.link.space_wake_at();
        if wanted != 0 && consumer >= wanted && wanted != self.space_answered {
            self.space_answered = wanted;
            if self.link.attachment.alive() {
                self.link.submit(self.link.request(Operation::Space))?;
            }
        }
        Ok(())
    }
}
