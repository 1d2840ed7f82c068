//! The program's end of a pipe.
//!
//! A program reads announced bytes in place. [`Pipe::frames`], [`Pipe::messages`] and [`Pipe::peek`] lend bytes of the ring, which
//! are given back in pieces as the program goes on. In a forwarding pipe it changes them in place and sets the destination of each
//! frame. A program that sends writes into the ring: [`Pipe::place`] and [`Pipe::flush`].
//!
//! A pipe is used by one thread at a time. The agent is trusted by the program, as the driver is.
mod copied;
mod direct;
mod eventfd;
mod frames;
mod lent;
mod messages;
mod stream;

pub use direct::Broker;
pub use frames::{Frame, Frames};
pub use messages::{Messages, Prefix};

use self::direct::Peer;
use self::eventfd::Wakes;
use self::stream::Gathered;
use crate::memory::{ClientMemory, Offer};
use crate::notify::{ReadCells, Reader};
use crate::shape::{Direction, Shape, Unit};
use pd_abi::pipe::{entry, entry_offset, frame_stride, pipe_control, pipe_status};
use pd_abi::pipe::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use pd_shm::byte_ring::Producer;
use pd_shm::wait::{self, SharedCells};
use pd_shm::{Own, Spin, Theirs};
use rustix::io::{Errno, Result};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{fence, Ordering};
use std::time::{Duration, Instant};

/// The words of a pipe as its program reaches them.
struct Cells<'a>(&'a ClientMemory, Shape);

impl ReadCells for Cells<'_> {
    fn load_producer(&self) -> u64 {
        self.0.status.load_u64(pipe_status::RECV_PRODUCER, Ordering::Acquire)
    }
    fn store_given_back(&self, position: u64) {
        let forwards = self.1.direction() == Direction::Forward;
        // SYNC POINT: pipe-sent
        let word = if forwards { pipe_control::SEND_PRODUCER } else { pipe_control::RECV_CONSUMER };
        self.0.control.store_u64(word, position, Ordering::Release);
    }
    fn store_wanted(&self, count: u32) {
        self.0.control.store_u32(pipe_control::RECV_WANTED, count, Ordering::Relaxed);
    }
}

/// A sending program's record.
#[derive(Debug)]
struct Writer {
    /// Positions placed, published, and free again.
    cursor: Producer,
    /// Bytes that the last [`Pipe::place`] lent.
    lent: usize,
    /// Room that the last one found missing, else 0.
    missing: u64,
}

/// A program's end of a pipe.
#[derive(Debug)]
pub struct Pipe {
    shape: Shape,
    memory: ClientMemory,
    doorbell: OwnedFd,
    reader: Reader,
    /// Bytes behind the read position in the own ring whose frames are lent by [`Pipe::lend`].
    lent: u64,
    writer: Writer,
    spin: Spin,
    /// Unread bytes of a stream that waits are for: see [`Pipe::need`].
    needed: u64,
    /// Number of the agent's sleep that was rung for last.
    rung: u32,
    /// See [`Pipe::set_wake_fd`].
    wakes: Option<Wakes>,
    /// The agent's word about the path, as far as it was followed.
    link: u32,
    /// The other end of a link: mapped, until the agent grants the direct path, and on it.
    offered: Option<Box<Peer>>,
    direct: Option<Box<Peer>>,
    /// The other end of a path that was left, while frames are lent from its ring.
    left: Option<Box<Peer>>,
    /// Copies of a stream's bytes. Made with the first path that is mapped.
    gathered: Option<Box<Gathered>>,
    /// Bytes of [`Self::lent`] whose frames were lent before those of a sender's ring.
    lent_before: u64,
    /// Counts of earlier direct paths.
    link_counts: [u64; 4],
    broker: Option<Box<dyn Broker>>,
    agent_is_gone: bool,
}

impl Pipe {
    /// Maps an agent's offer.
    ///
    /// # Errors
    /// `ENOMEM` and others of `mmap`.
    pub fn map(offer: Offer) -> Result<Self> {
        let memory = ClientMemory::map(&offer)?;
        Ok(Self {
            shape: offer.shape,
            memory,
            doorbell: offer.doorbell,
            reader: Reader::new(offer.shape.piece()),
            lent: 0,
            writer: Writer { cursor: Producer::new(offer.shape.ring_bytes()), lent: 0, missing: 0 },
            spin: Spin::new(Spin::LIMIT_DEFAULT),
            needed: 1,
            rung: 0,
            wakes: None,
            link: 0,
            offered: None,
            direct: None,
            left: None,
            gathered: None,
            lent_before: 0,
            link_counts: [0; 4],
            broker: None,
            agent_is_gone: false,
        })
    }

    /// Returns direction, unit and size.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    fn receiving(&self, unit: Unit) -> Result<()> {
        if !self.shape.receives() || self.shape.unit() != unit {
            return Err(Errno::OPNOTSUPP);
        }
        if self.lent() > 0 {
            return Err(Errno::BUSY);
        }
        Ok(())
    }

    /// Looks for bytes. Returns the number of bytes that are neither read nor lent.
    ///
    /// # Errors
    /// `EAGAIN` if there are none; the pipe's error once it has ended and all was read.
    fn unread(&mut self) -> Result<usize> {
        if self.shape.unit() == Unit::Bytes {
            return self.unread_stream();
        }
        if self.direct.is_some() {
            return self.unread_direct();
        }
        if self.reader.unread() == self.lent {
            // Loaded before the look for bytes, so that none are missed.
            let (end, link) = (self.end(), self.load_link());
            if self.reader.refresh(&Cells(&self.memory, self.shape)) == self.lent {
                if link != self.link && self.follow_receiving(link) {
                    return self.unread_direct();
                }
                return Err(end.unwrap_or(Errno::AGAIN));
            }
        }
        Ok((self.reader.unread() - self.lent) as usize)
    }

    /// Returns the reason of the pipe's end, if it has ended.
    pub fn ended(&self) -> Option<Errno> {
        self.end()
    }

    fn end(&self) -> Option<Errno> {
        if self.agent_is_gone {
            return Some(Errno::CONNRESET);
        }
        match self.memory.status.load_u32(pipe_status::END, Ordering::Acquire) {
            0 => None,
            errno => Some(Errno::from_raw_os_error(errno as i32)),
        }
    }

    /// Returns the frames announced so far, one after the other.
    ///
    /// # Errors
    /// `EAGAIN` if there are none; the pipe's error once it has ended; `EOPNOTSUPP` on another kind of pipe.
    pub fn frames(&mut self) -> Result<Frames<'_>> {
        self.receiving(Unit::Frames)?;
        self.unread()?;
        Ok(Frames::new(self))
    }

    /// Returns the messages announced so far, each with its length before it in the format `prefix`. A part of a message stays
    /// unread.
    ///
    /// # Errors
    /// As for [`Self::frames`].
    pub fn messages(&mut self, prefix: Prefix) -> Result<Messages<'_>> {
        self.receiving(Unit::Bytes)?;
        self.unread()?;
        Ok(Messages::new(self, prefix))
    }

    /// Returns all unread bytes, in one piece. The bytes stay unread until [`Self::done`]. On the direct path of a link they are a copy, which
    /// this program alone has.
    ///
    /// # Errors
    /// As for [`Self::frames`].
    pub fn peek(&mut self) -> Result<&[u8]> {
        self.receiving(Unit::Bytes)?;
        let len = self.unread()?;
        Ok(self.stream(len))
    }

    /// Has [`Self::wait`], [`Self::arm`] and what sleeps after it wait for `bytes` unread bytes: for a message of which a part is there. Holds until
    /// bytes are given back; from then on one is enough. [`Messages::next`] asks for the rest of a part by itself.
    ///
    /// # Errors
    /// `EMSGSIZE` if the ring is smaller, so that they can never be there in one piece; `EOPNOTSUPP` on another kind of pipe.
    pub fn need(&mut self, bytes: usize) -> Result<()> {
        if !self.shape.receives() || self.shape.unit() != Unit::Bytes {
            return Err(Errno::OPNOTSUPP);
        }
        if bytes as u64 > self.shape.ring_bytes() {
            return Err(Errno::MSGSIZE);
        }
        self.needed = bytes.max(1) as u64;
        Ok(())
    }

    /// Returns the bytes that [`Self::need`] has asked for, else 1.
    pub fn needed(&self) -> u64 {
        self.needed
    }

    /// Returns the first `len` unread bytes, to be changed in place before [`Self::done`] passes them on.
    ///
    /// # Errors
    /// As for [`Self::frames`]; `EINVAL` if fewer are unread.
    pub fn peek_mut(&mut self, len: usize) -> Result<&mut [u8]> {
        self.receiving(Unit::Bytes)?;
        if self.shape.direction() != Direction::Forward {
            return Err(Errno::OPNOTSUPP);
        }
        if len > self.unread()? {
            return Err(Errno::INVAL);
        }
        Ok(self.bytes_mut(self.reader.read(), len))
    }

    /// Gives back the first `len` unread bytes; in a forwarding pipe they go on.
    ///
    /// # Errors
    /// `EINVAL` if fewer are unread.
    pub fn done(&mut self, len: usize) -> Result<()> {
        self.receiving(Unit::Bytes)?;
        if len as u64 > self.known_stream() {
            return Err(Errno::INVAL);
        }
        self.consume_stream(len as u64);
        self.give_back();
        Ok(())
    }

    /// Asks for a notification although announced bytes have not been given back. This is Ensō's notification prefetch: asked
    /// for before the last bytes are processed, it has arrived when they are done.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on a sending pipe.
    pub fn prefetch(&mut self) -> Result<()> {
        if !self.shape.receives() {
            return Err(Errno::OPNOTSUPP);
        }
        if self.direct.is_none() {
            self.reader.prefetch(&Cells(&self.memory, self.shape));
            self.ring();
        }
        Ok(())
    }

    fn give_back(&mut self) {
        self.publish_direct();
        self.publish_left();
        if self.reader.give_back_but(self.owed(), &Cells(&self.memory, self.shape)) {
            self.ring();
        }
    }

    /// Takes note of what the agent has announced.
    fn refresh(&mut self) {
        self.reader.refresh(&Cells(&self.memory, self.shape));
    }

    /// Answers the agent's last notification, so that it announces more.
    fn answer(&mut self) {
        self.reader.answer(self.owed(), &Cells(&self.memory, self.shape));
        self.ring();
    }

    /// Rings the agent's doorbell if it sleeps and was not rung for this sleep.
    fn ring(&mut self) {
        // SYNC POINT: pipe-need-wakeup
        fence(Ordering::SeqCst);
        let sleep = self.memory.status.load_u32(pipe_status::NEED_WAKEUP, Ordering::Relaxed);
        if sleep != 0 && sleep != self.rung {
            self.rung = sleep;
            // If the counter is full, the agent is awake already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Returns the address of the first `len` unread bytes.
    fn address(&self, len: usize) -> NonNull<u8> {
        self.memory.ring.address(self.shape.offset(self.reader.read()), len)
    }

    /// Returns the first `len` unread bytes.
    fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: announced bytes, which the agent leaves alone until they are given back; that takes `&mut self`. No other writes them.
        unsafe { slice::from_raw_parts(self.address(len).as_ptr(), len) }
    }

    /// Returns `len` bytes at `position`, which this program owns.
    fn bytes_mut(&mut self, position: u64, len: usize) -> &mut [u8] {
        let at = self.memory.ring.address(self.shape.offset(position), len);
        // SAFETY: the ring is mapped for writing (the direction was checked), and the bytes were announced and not given back, or
        // are free and not published: the agent neither writes nor reads them until then. That takes `&mut self`.
        unsafe { slice::from_raw_parts_mut(at.as_ptr(), len) }
    }

    /// Sleeps until there are unread bytes, at most `timeout`; returns at once if there are. Read bytes are given back before a sleep. Of a stream
    /// there are as many as [`Self::need`] has asked for.
    ///
    /// # Errors
    /// `EAGAIN` after the time, or a signal; the pipe's error once it has ended and all was read, or no more can come; `ENOBUFS` if lent frames leave
    /// too little room ([`Self::lends_too_much`]); `EOPNOTSUPP` on a sending pipe.
    pub fn wait(&mut self, timeout: Duration) -> Result<()> {
        if !self.shape.receives() {
            return Err(Errno::OPNOTSUPP);
        }
        if self.shape.unit() == Unit::Bytes {
            return self.wait_for_stream(self.needed, timeout);
        }
        match self.unread() {
            Err(Errno::AGAIN) => self.wait_more(timeout),
            ready => ready.map(drop),
        }
    }

    /// Sleeps until there are more unread bytes than are known, for a message that has arrived in part. Otherwise as
    /// [`Self::wait`].
    ///
    /// # Errors
    /// As for [`Self::wait`]. What fills the ring is all that comes before some of it is given back: `EMSGSIZE` if unread bytes do, so that the message
    /// is longer than the ring; `ENOBUFS` if unread and lent frames leave less than [`Shape::headroom`] of it, so that a long frame might never come.
    pub fn wait_more(&mut self, timeout: Duration) -> Result<()> {
        if !self.shape.receives() {
            return Err(Errno::OPNOTSUPP);
        }
        if self.shape.unit() == Unit::Bytes {
            return self.wait_for_stream(self.known_stream() + 1, timeout);
        }
        if self.is_full_of_frames() && self.end().is_none() {
            return if self.has_more_frames() { Ok(()) } else { Err(Errno::NOBUFS) };
        }
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let (link, rings) = (self.link, self.rings(pipe_status::RECV_DOORBELL));
            let done = match self.direct {
                Some(_) => self.sleep_for_direct_frames(left),
                None => self.sleep_for_frames(left),
            };
            // The sleep ended for another reason than time: the path is another by now, or the agent has woken all.
            let is_called = || self.load_link() != link || self.rings(pipe_status::RECV_DOORBELL) != rings;
            let has_moved = done == Err(Errno::AGAIN) && is_called();
            let done = if has_moved { self.unread().map(drop) } else { done };
            if !has_moved || left.is_zero() || done != Err(Errno::AGAIN) {
                return done;
            }
        }
    }

    /// Returns the number of times that the agent has rung one of this program's doorbells. An agent that takes another's place rings without news.
    fn rings(&self, doorbell: usize) -> u32 {
        self.memory.status.load_u32(doorbell, Ordering::Relaxed)
    }

    /// Looks whether there are more frames than are known.
    fn has_more_frames(&mut self) -> bool {
        if self.direct.is_some() {
            return self.look_direct() == Ok(true);
        }
        let known = self.reader.known();
        self.publish_left();
        self.answer();
        self.refresh();
        self.reader.known() != known
    }

    /// Sleeps until the agent has announced more frames than are known.
    ///
    /// # Errors
    /// As for [`Self::wait`].
    fn sleep_for_frames(&mut self, timeout: Duration) -> Result<()> {
        let known = self.reader.known();
        self.sleep_announced(timeout);
        let end = self.end();
        self.refresh();
        if self.reader.known() != known {
            return Ok(());
        }
        Err(end.unwrap_or(Errno::AGAIN))
    }

    /// Sleeps until the agent has announced more bytes than are known, or has other news, at most `timeout`.
    fn sleep_announced(&mut self, timeout: Duration) {
        self.publish_left();
        self.answer();
        let cells = SharedCells::<Own, Theirs> {
            wake_at: (&self.memory.control, pipe_control::RECV_WAKE_AT),
            doorbell: (&self.memory.status, pipe_status::RECV_DOORBELL),
        };
        let (memory, shape, known) = (&self.memory, self.shape, self.reader.known());
        let (mut spin, end) = (self.spin.clone(), || self.end());
        wait::sleep(&cells, known.wrapping_add(1), &mut spin, timeout, || {
            Cells(memory, shape).load_producer() != known || self.load_link() != self.link || end().is_some()
        });
        self.spin = spin;
    }

    /// Sets the program's end of a pair ([`pd_shm::wake::pair`]) for [`Self::arm`]. The agent has the other.
    ///
    /// # Errors
    /// `EMFILE` and others of making an epoll instance.
    pub fn set_wake_fd(&mut self, wake_fd: OwnedFd) -> Result<()> {
        self.wakes = Some(Wakes::new(wake_fd)?);
        Ok(())
    }

    /// Returns the descriptor that becomes readable after [`Self::arm`]: an epoll instance, the same as long as the pipe lives.
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wakes.as_ref().map(Wakes::fd)
    }

    /// Prepares a sleep in `poll` or `epoll` on [`Self::wake_fd`], and gives read bytes back. The descriptor becomes readable with the next
    /// bytes, in a sending pipe when a quarter of the ring is free ([`Shape::headroom`]) and what the last [`Self::place`] had no room for, and when
    /// the pipe ends. Returns whether there is work already: frames, room, or as many unread bytes as [`Self::need`] has asked for.
    ///
    /// # Errors
    /// The pipe's error once it has ended and all was read, or no more can come; `ENOBUFS` if lent frames leave too little room ([`Self::lends_too_much`]).
    pub fn arm(&mut self) -> Result<bool> {
        // SYNC POINT: link-eventfd
        self.wakes.iter().for_each(Wakes::clear);
        let ready = if self.shape.receives() { self.arm_receiver() } else { self.arm_sender() };
        match self.end() {
            _ if ready => Ok(true),
            Some(end) => Err(end),
            None if self.lends_too_much() => Err(Errno::NOBUFS),
            None => Ok(false),
        }
    }

    /// Looks for frames, or for as many bytes as are needed. Returns whether they are there.
    fn has_needed(&mut self) -> bool {
        self.unread().is_ok_and(|unread| unread as u64 >= self.needed)
    }

    fn arm_receiver(&mut self) -> bool {
        loop {
            if self.has_needed() {
                return true;
            }
            let (link, waiting) = (self.link, self.waiting());
            if self.direct.is_some() {
                self.ask_peer();
            } else {
                self.publish_left();
                self.answer();
                // Not that of the last byte needed: the agent announces no more before it is answered.
                let wake_at = self.reader.known().wrapping_add(1);
                self.memory.control.store_u64(pipe_control::RECV_WAKE_AT, wake_at, Ordering::Relaxed);
            }
            // SYNC POINT: wake-dekker
            fence(Ordering::SeqCst);
            if self.has_needed() {
                self.ask_peer_no_more();
                return true;
            }
            // Else another side has what comes next, or a part of what is needed has come.
            if self.link == link && self.waiting() == waiting {
                return false;
            }
        }
    }

    fn arm_sender(&mut self) -> bool {
        self.flush();
        let (ring, room) = (self.shape.ring_bytes(), self.shape.headroom().max(self.writer.missing));
        loop {
            if self.free(room) {
                return true;
            }
            let link = self.link;
            let wake_at = self.writer.cursor.written().wrapping_sub(ring - room);
            self.memory.control.store_u64(pipe_control::SEND_WAKE_AT, wake_at, Ordering::Relaxed);
            // SYNC POINT: wake-dekker
            fence(Ordering::SeqCst);
            if self.free(room) {
                self.memory.control.store_u64(pipe_control::SEND_WAKE_AT, 0, Ordering::Relaxed);
                return true;
            }
            // Another side gives space back by now.
            if self.link == link {
                return false;
            }
        }
    }

    fn sending(&self) -> Result<()> {
        match (self.shape.direction(), self.end()) {
            (Direction::Send, None) => Ok(()),
            (Direction::Send, Some(errno)) => Err(errno),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn free(&mut self, bytes: u64) -> bool {
        if self.writer.cursor.room() < bytes {
            let link = self.load_link();
            if link != self.link {
                self.follow_sending(link);
            }
            // An impossible position is not believed.
            let _ = self.writer.cursor.see(self.load_freed());
        }
        self.writer.cursor.room() >= bytes
    }

    fn stride(&self, len: usize) -> u64 {
        match self.shape.unit() {
            Unit::Frames => frame_stride(len as u16),
            Unit::Bytes => len as u64,
        }
    }

    /// Lends `len` bytes of the ring for a frame or for bytes, which [`Self::placed`] completes.
    ///
    /// # Errors
    /// `EAGAIN` if there is no room now. `EMSGSIZE` if there can never be, or no frame has this length. The pipe's error once it has
    /// ended. `EOPNOTSUPP` unless it is a sending pipe.
    pub fn place(&mut self, len: usize) -> Result<&mut [u8]> {
        self.sending()?;
        let possible = match self.shape.unit() {
            Unit::Frames => (FRAME_BYTES_MIN.into()..=FRAME_BYTES_MAX.into()).contains(&len),
            Unit::Bytes => (1..=self.shape.ring_bytes()).contains(&(len as u64)),
        };
        if !possible {
            return Err(Errno::MSGSIZE);
        }
        if !self.free(self.stride(len)) {
            self.writer.missing = self.stride(len);
            self.flush();
            return Err(Errno::AGAIN);
        }
        (self.writer.lent, self.writer.missing) = (len, 0);
        Ok(self.bytes_mut(self.writer.cursor.written(), len))
    }

    /// Completes the bytes lent last. A frame goes to port `to` of those that the pipe was opened with ([`pd_abi::pipe::BACK`] is its
    /// own). The agent sees it after [`Self::flush`], or when a piece is complete.
    pub fn placed(&mut self, to: u16) {
        let len = std::mem::take(&mut self.writer.lent);
        if len > 0 {
            self.complete(len, to);
        }
    }

    /// Completes the first `len` of the bytes lent last, as [`Self::placed`]. With 0, all of them are free again.
    ///
    /// # Errors
    /// `EINVAL` if fewer were lent; `EMSGSIZE` if no frame has this length. The bytes stay lent.
    pub fn placed_part(&mut self, len: usize, to: u16) -> Result<()> {
        if len > self.writer.lent {
            return Err(Errno::INVAL);
        }
        if self.shape.unit() == Unit::Frames && (1..FRAME_BYTES_MIN.into()).contains(&len) {
            return Err(Errno::MSGSIZE);
        }
        self.writer.lent = len;
        self.placed(to);
        Ok(())
    }

    fn complete(&mut self, len: usize, to: u16) {
        if self.shape.unit() == Unit::Frames {
            self.write_entry(self.writer.cursor.written(), len as u16, to);
        }
        self.writer.cursor.write(self.stride(len));
        if self.writer.cursor.unpublished() >= self.shape.piece() {
            self.flush();
        }
    }

    fn write_entry(&self, position: u64, length: u16, verdict: u16) {
        let at = entry_offset(position, self.shape.ring_bytes());
        self.memory.control.store_u32(at, entry(length, verdict), Ordering::Relaxed);
    }

    /// Copies a frame, or bytes, into the ring: [`Self::place`], [`Self::placed`].
    ///
    /// # Errors
    /// As for [`Self::place`].
    pub fn send(&mut self, bytes: &[u8], to: u16) -> Result<()> {
        self.place(bytes.len())?.copy_from_slice(bytes);
        self.placed(to);
        Ok(())
    }

    /// Publishes all placed bytes to the agent.
    pub fn flush(&mut self) {
        if self.writer.cursor.unpublished() > 0 {
            let sent = self.writer.cursor.publish();
            // SYNC POINT: pipe-sent
            self.memory.control.store_u64(pipe_control::SEND_PRODUCER, sent, Ordering::Release);
            self.ring();
            // SYNC POINT: link-granted
            let link = self.load_link();
            if link != self.link {
                self.follow_sending(link);
            }
            self.wake_receiver(sent);
        }
    }

    /// Returns the placed bytes that the agent has not taken.
    pub fn untaken(&mut self) -> u64 {
        self.free(self.shape.ring_bytes());
        self.writer.cursor.untaken()
    }

    /// Sleeps until `room` bytes of the ring are free, at most `timeout`. The whole ring is free when all was taken.
    ///
    /// # Errors
    /// `EAGAIN` after the time, or a signal; the pipe's error once it has ended; `EINVAL` if the ring is smaller.
    pub fn wait_room(&mut self, room: u64, timeout: Duration) -> Result<()> {
        self.sending()?;
        let ring = self.shape.ring_bytes();
        if room > ring {
            return Err(Errno::INVAL);
        }
        self.flush();
        let start = Instant::now();
        loop {
            if self.free(room) {
                return Ok(());
            }
            let left = timeout.saturating_sub(start.elapsed());
            let (link, rings) = (self.link, self.rings(pipe_status::SEND_DOORBELL));
            self.sleep_sending(self.writer.cursor.written().wrapping_sub(ring - room), left);
            if self.free(room) {
                return Ok(());
            }
            if let Some(end) = self.end() {
                return Err(end);
            }
            // Another side gives space back by now, or another agent.
            let is_called = self.link != link || self.rings(pipe_status::SEND_DOORBELL) != rings;
            if !is_called || left.is_zero() {
                return Err(Errno::AGAIN);
            }
        }
    }

    /// Sleeps until the ring is free up to `until`, or the agent has other news.
    fn sleep_sending(&mut self, until: u64, timeout: Duration) {
        let mut spin = self.spin.clone();
        let ready = || {
            let is_free = self.freed().is_some_and(|position| position >= until);
            is_free || self.load_link() != self.link || self.end().is_some()
        };
        if let Some(peer) = &self.direct {
            let cells = self.two_doorbells(peer, pipe_control::SEND_WAKE_AT, pipe_status::SEND_DOORBELL);
            wait::sleep(&cells, until, &mut spin, timeout, ready);
        } else {
            let cells = SharedCells::<Own, Theirs> {
                wake_at: (&self.memory.control, pipe_control::SEND_WAKE_AT),
                doorbell: (&self.memory.status, pipe_status::SEND_DOORBELL),
            };
            wait::sleep(&cells, until, &mut spin, timeout, ready);
        }
        self.spin = spin;
    }
}
