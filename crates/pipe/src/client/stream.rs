//! Bytes of a stream, lent in one piece whichever side has passed them on.
//!
//! On the agent's path they lie in the own ring, which the agent alone writes, and are lent there. On the direct path of a link the ring is
//! another program's, which may change the bytes at any moment, and a message may begin in one ring and end in the other. So this program
//! copies what the other has sent into a ring of its own ([`Gathered`]), gives the place back at once, and lends the copy. Bytes of the own
//! ring that are unread when the path changes go there, too, so that all unread bytes follow each other.
//!
//! Bytes stay where they were lent until they are consumed: the own ring keeps the place of those that went from there into the copy.
use super::Pipe;
use pd_abi::limits::PAGE_BYTES;
use pd_abi::pipe::{link_parts, pipe_status, LinkPath};
use pd_shm::byte_ring::{offset_in, Consumer};
use pd_shm::copy::copy;
use pd_shm::memfd::{self, Pages};
use pd_shm::{Own, Region};
use rustix::io::{Errno, Result};
use std::ptr::NonNull;
use std::slice;
use std::time::{Duration, Instant};

/// A ring of this process alone, mapped twice: copies of unread bytes, in one piece.
#[derive(Debug)]
pub(super) struct Gathered {
    ring: Region<Own>,
    /// Positions of the first unread byte, and behind the last.
    cursor: Consumer,
    /// Bytes from `read` on whose place in the pipe's own ring may be lent still.
    owed: u64,
    /// Position behind them there.
    owed_end: u64,
}

impl Gathered {
    /// Makes an empty ring of `ring_bytes`, with all its pages.
    ///
    /// # Errors
    /// `ENOMEM`, `EMFILE` and others of making and mapping memory.
    pub fn new(ring_bytes: u64) -> Result<Self> {
        let bytes = ring_bytes as usize;
        let fd = memfd::create("pd-pipe-gathered", bytes, Pages::Ordinary)?;
        memfd::allocate(&fd, bytes)?;
        let ring = Region::<Own>::twice(&fd, 0, bytes, PAGE_BYTES)?;
        Ok(Self { ring, cursor: Consumer::new(ring_bytes), owed: 0, owed_end: 0 })
    }

    /// Returns the unread bytes.
    #[inline]
    pub fn unread(&self) -> u64 {
        self.cursor.unread()
    }

    /// Returns the bytes that can be appended.
    #[inline]
    pub fn room(&self) -> u64 {
        self.cursor.ring_bytes() - self.unread()
    }

    fn address(&self, position: u64, len: usize) -> NonNull<u8> {
        self.ring.address(offset_in(position, self.cursor.ring_bytes()) as usize, len)
    }

    /// Appends a copy of `len` bytes, for which there is room.
    ///
    /// # Safety
    /// `len` bytes can be read at `from`, in memory that is not this ring's.
    pub unsafe fn append(&mut self, from: NonNull<u8>, len: usize) {
        assert!(len as u64 <= self.room(), "appended without room");
        // SAFETY: readable, the caller says; the place is free, and `&mut self` rules out a borrow of it.
        unsafe { copy(self.address(self.cursor.known(), len).as_ptr(), from.as_ptr(), len) };
        self.cursor.see_trusted(self.cursor.known().wrapping_add(len as u64));
    }

    /// Returns the first `len` unread bytes.
    #[inline]
    pub fn bytes(&self, len: usize) -> &[u8] {
        assert!(len as u64 <= self.unread(), "more than is unread");
        // SAFETY: `len` bytes of the ring, which this process alone has, and which are written only by `append`, behind them.
        unsafe { slice::from_raw_parts(self.address(self.cursor.read(), len).as_ptr(), len) }
    }

    /// Counts the first `len` unread bytes as read.
    #[inline]
    pub fn consume(&mut self, len: u64) {
        self.cursor.take(len);
        self.owed = self.owed.saturating_sub(len);
    }
}

impl Pipe {
    /// Returns whether unread bytes are in the ring of copies, or are going to be.
    #[inline]
    fn is_gathering(&self) -> bool {
        self.direct.is_some() || self.gathered.as_ref().is_some_and(|gathered| gathered.unread() > 0)
    }

    /// Returns how many of the last bytes that were read in the own ring keep their place there: those that are lent there and among the
    /// copies, and those behind them.
    #[inline]
    pub(super) fn owed(&self) -> u64 {
        let Some(gathered) = self.gathered.as_ref().filter(|gathered| gathered.owed > 0) else { return 0 };
        self.reader.read().wrapping_sub(gathered.owed_end).wrapping_add(gathered.owed)
    }

    /// Returns the known unread bytes of a stream, which are in one piece.
    #[inline]
    pub(super) fn known_stream(&self) -> u64 {
        match &self.gathered {
            Some(gathered) if self.is_gathering() => gathered.unread(),
            _ => self.reader.unread(),
        }
    }

    /// Returns the first `len` unread bytes of a stream. The caller bounds them by [`Self::known_stream`].
    #[inline]
    pub(super) fn stream(&self, len: usize) -> &[u8] {
        match &self.gathered {
            Some(gathered) if self.is_gathering() => gathered.bytes(len),
            _ => self.bytes(len),
        }
    }

    /// Counts the first `len` unread bytes of a stream as read. The caller bounds them by [`Self::known_stream`].
    #[inline]
    pub(super) fn consume_stream(&mut self, len: u64) {
        if len > 0 {
            self.needed = 1;
        }
        let is_gathering = self.is_gathering();
        match &mut self.gathered {
            Some(gathered) if is_gathering => gathered.consume(len),
            _ => self.reader.consume(len),
        }
    }

    /// Looks for bytes of a stream, and follows the agent's word about their path. Returns the number of unread bytes.
    ///
    /// # Errors
    /// As for [`Pipe::unread`].
    pub(super) fn unread_stream(&mut self) -> Result<usize> {
        loop {
            // Loaded before the look for bytes, so that none are missed.
            let (end, link) = (self.end(), self.load_link());
            let has_moved = match self.direct {
                Some(_) => end.is_none() && !self.gather_sent(link),
                None => self.gather_announced(link),
            };
            if has_moved {
                continue;
            }
            return match self.known_stream() {
                0 => Err(end.unwrap_or(Errno::AGAIN)),
                known => Ok(known as usize),
            };
        }
    }

    /// Copies what the other end has sent, as far as there is room. Returns false where the path is left.
    fn gather_sent(&mut self, link: u32) -> bool {
        let (is_last, is_news) = (link_parts(link).1 == LinkPath::Last, link != self.link);
        self.link = link;
        if is_news && !is_last {
            // The agent passes on what was not copied.
            self.leave();
            return false;
        }
        // One look after the word that the sender has gone has seen all that it had sent.
        if (is_news || !is_last) && self.look_direct().is_err() {
            self.leave();
            return false;
        }
        while self.gather_piece() {
            self.publish_direct();
        }
        if is_last && self.waiting_direct() == Some(0) {
            self.leave();
            return false;
        }
        true
    }

    /// Takes note of announced bytes, and copies them where others are copied before them. Returns whether the path is direct now.
    fn gather_announced(&mut self, link: u32) -> bool {
        self.refresh();
        let is_news = link != self.link;
        let is_granted =
            is_news && matches!(link_parts(link).1, LinkPath::Direct | LinkPath::Recalled | LinkPath::Last);
        if is_granted || self.is_gathering() {
            self.gather_own();
        }
        // All that the agent had announced before its word is copied or read: what follows is in the other ring.
        is_news && (!is_granted || self.reader.unread() == 0) && self.follow_receiving(link)
    }

    /// Copies announced bytes, as far as there is room.
    fn gather_own(&mut self) {
        let Some(gathered) = &mut self.gathered else { return };
        let len = self.reader.unread().min(gathered.room());
        if len == 0 {
            return;
        }
        if gathered.unread() == 0 {
            (gathered.owed, gathered.owed_end) = (len, self.reader.read().wrapping_add(len));
        }
        let from = self.memory.ring.address(self.shape.offset(self.reader.read()), len as usize);
        // SAFETY: announced bytes in the mapping of the own ring.
        unsafe { gathered.append(from, len as usize) };
        self.reader.consume(len);
        if self.reader.due() {
            self.give_back();
        }
    }

    /// Sleeps until there are `least` unread bytes of a stream: [`Pipe::wait`], [`Pipe::wait_more`].
    ///
    /// # Errors
    /// As for [`Pipe::wait_more`].
    pub(super) fn wait_for_stream(&mut self, least: u64, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(done) = self.has_unread(least) {
                return done;
            }
            if least > self.shape.ring_bytes() {
                return Err(Errno::MSGSIZE);
            }
            let (left, link) = (timeout.saturating_sub(start.elapsed()), self.link);
            let (known, rings) = (self.known_stream(), self.rings(pipe_status::RECV_DOORBELL));
            match self.direct {
                Some(_) => self.sleep_direct(left),
                None => self.sleep_announced(left),
            }
            if let Some(done) = self.has_unread(least) {
                return done;
            }
            // The time is over, or a signal came, unless another side has the next bytes by now, or some have come, or the agent has rung.
            let is_called = self.link != link || self.rings(pipe_status::RECV_DOORBELL) != rings;
            if left.is_zero() || !is_called && self.known_stream() == known {
                return Err(Errno::AGAIN);
            }
        }
    }

    /// Looks whether there are `least` unread bytes of a stream, or never will be.
    fn has_unread(&mut self, least: u64) -> Option<Result<()>> {
        let end = self.end();
        // Fewer are no answer.
        let _ = self.unread_stream();
        match self.known_stream() >= least {
            true => Some(Ok(())),
            false => end.map(Err),
        }
    }
}
