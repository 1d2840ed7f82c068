//! The agent's end of one pipe.
//!
//! The agent trusts no word, entry or byte of the program. Words and entries are loaded once and bounded by the agent's own record
//! ([`Announcer`], [`Intake`]). Bytes are copied out, and only the copy is inspected.
use crate::handover::{self, GrantCells, LeftCells};
use crate::intake::{Intake, IntakeCells, Sent, Taken};
use crate::memory::AgentMemory;
use crate::notify::{AnnounceCells, Announced, Announcer};
use crate::shape::{Direction, Shape, Unit};
use crate::violation::Violation;
use pd_abi::pipe::{entry, entry_offset, frame_stride, pipe_control, pipe_status, BACK, FRAME_BYTES_MAX};
use pd_abi::pipe::{link, link_parts, LinkPath};
use pd_shm::copy::{copy, prefetch};
use pd_shm::ringer::{Rung, RungCells, WakeEnd};
use pd_shm::wait::Waker;
use pd_shm::{Own, Region};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Bytes of a frame that are inspected: Ethernet, IPv4 without options or ARP, and ports.
pub const HEADER_BYTES: usize = 64;

impl Rung for AgentMemory {
    fn region(&self) -> &Region<Own> {
        &self.status
    }
}

impl AgentMemory {
    fn recv_cells(self: &Arc<Self>) -> RungCells<'_, Self> {
        RungCells {
            wake_at: (&self.control, pipe_control::RECV_WAKE_AT),
            doorbell: (self, pipe_status::RECV_DOORBELL),
            ringer: self.ringer.get(),
        }
    }

    fn send_cells(self: &Arc<Self>) -> RungCells<'_, Self> {
        RungCells {
            wake_at: (&self.control, pipe_control::SEND_WAKE_AT),
            doorbell: (self, pipe_status::SEND_DOORBELL),
            ringer: self.ringer.get(),
        }
    }
}

/// The words of a pipe as its agent reaches them.
struct Cells<'a>(&'a AgentMemory, Shape);

impl AnnounceCells for Cells<'_> {
    fn load_given_back(&self) -> u64 {
        let forwards = self.1.direction() == Direction::Forward;
        let word = if forwards { pipe_control::SEND_PRODUCER } else { pipe_control::RECV_CONSUMER };
        self.0.control.load_u64(word, Ordering::Acquire)
    }
    fn load_wanted(&self) -> u32 {
        self.0.control.load_u32(pipe_control::RECV_WANTED, Ordering::Relaxed)
    }
    fn store_producer(&self, position: u64) {
        self.0.status.store_u64(pipe_status::RECV_PRODUCER, position, Ordering::Release);
    }
}

impl IntakeCells for Cells<'_> {
    fn load_producer(&self) -> u64 {
        self.0.control.load_u64(pipe_control::SEND_PRODUCER, Ordering::Acquire)
    }
    fn load_entry(&self, position: u64) -> u32 {
        self.0.control.load_u32(entry_offset(position, self.1.ring_bytes()), Ordering::Relaxed)
    }
    fn store_consumer(&self, position: u64) {
        self.0.status.store_u64(pipe_status::SEND_CONSUMER, position, Ordering::Release);
    }
}

impl GrantCells for Cells<'_> {
    fn store_from(&self, position: u64) {
        self.0.status.store_u64(pipe_status::LINK_FROM, position, Ordering::Relaxed);
    }
    fn store_link(&self, word: u32) {
        self.0.status.store_u32(pipe_status::LINK, word, Ordering::Release);
    }
}

impl LeftCells for Cells<'_> {
    fn load_left(&self) -> u32 {
        self.0.control.load_u32(pipe_control::LINK_LEFT, Ordering::Acquire)
    }
    fn load_left_at(&self) -> u64 {
        self.0.control.load_u64(pipe_control::LINK_LEFT_AT, Ordering::Relaxed)
    }
}

/// Part of a pipe in the direct path of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linked {
    No,
    /// The path is offered, or the pipe receives on it: the program has something to say.
    Heard,
    /// The pipe sends on it: the receiver looks at its words, and the agent does not.
    Unheard,
}

/// The agent's end of a pipe.
#[derive(Debug)]
pub struct End {
    shape: Shape,
    memory: Arc<AgentMemory>,
    announcer: Announcer,
    intake: Intake,
    recv_waker: Waker,
    send_waker: Waker,
    /// Set when the memory is sealed.
    started: bool,
    ended: Option<Errno>,
    notifications: u64,
    /// Set if the ring was full at the last append.
    short: bool,
    /// Agent's end of a pair that wakes the program, with each ring of its doorbell.
    wake_fd: Option<Arc<WakeEnd>>,
    linked: Linked,
    /// Set while another agent has the pipe.
    is_passive: bool,
}

/// State of a pipe's end for another agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndState {
    announced: Announced,
    taken: Taken,
    notifications: u64,
}

impl End {
    /// Returns the state that another agent goes on with.
    pub fn state(&self) -> EndState {
        let (announced, taken) = (self.announcer.state(), self.intake.state());
        EndState { announced, taken, notifications: self.notifications }
    }

    /// Goes on with the state of another agent. The words that an agent publishes, and no program writes, are as the state says.
    ///
    /// # Errors
    /// `EINVAL` where no agent can have left it.
    pub fn resume(&mut self, state: &EndState, ports: u16) -> rustix::io::Result<()> {
        let &EndState { ref announced, ref taken, notifications } = state;
        let announcer = Announcer::resume(self.shape.ring_bytes(), self.shape.grain(), announced);
        let intake = Intake::resume_from(self.shape, ports, taken);
        let (Ok(announcer), Ok(intake)) = (announcer, intake) else { return Err(Errno::INVAL) };
        let word = |at| self.memory.status.load_u64(at, Ordering::Relaxed);
        let said = (word(pipe_status::RECV_PRODUCER), word(pipe_status::SEND_CONSUMER));
        let is_over = self.memory.status.load_u32(pipe_status::END, Ordering::Relaxed) != 0;
        if said != (announcer.announced(), intake.published()) || notifications > u64::MAX / 2 || is_over {
            return Err(Errno::INVAL);
        }
        (self.announcer, self.intake, self.notifications) = (announcer, intake, notifications);
        Ok(())
    }

    /// Leaves the pipe to another agent: from now on nothing is written or woken, also not at the end.
    pub fn hand_over(&mut self) {
        self.is_passive = true;
    }

    /// Begins to serve a pipe that another agent has left. Its program looks at all words, since that agent may not have told it.
    pub fn begin(&mut self) {
        if std::mem::take(&mut self.is_passive) {
            self.wake_both();
        }
    }

    /// Sets the part of the pipe in a direct path that another agent has granted.
    pub fn set_linked(&mut self, sends: bool) {
        self.linked = if sends { Linked::Unheard } else { Linked::Heard };
    }

    /// Keeps the ring from `given` on from being given back to the program, which sends, as another agent did up to `left`.
    ///
    /// # Errors
    /// `EINVAL` where that was not taken, or is free already.
    pub fn resume_lent(&mut self, given: u64, left: u64) -> rustix::io::Result<()> {
        let at = self.intake.published();
        let (from, to) = (given.wrapping_sub(at), left.wrapping_sub(at));
        if from > to || to > self.intake.taken().wrapping_sub(at) {
            return Err(Errno::INVAL);
        }
        self.intake.lend(Some(given));
        Ok(())
    }

    /// Returns the agent's word of the path.
    pub fn link(&self) -> (u32, LinkPath) {
        link_parts(self.memory.status.load_u32(pipe_status::LINK, Ordering::Relaxed))
    }

    /// Makes the end of a pipe whose verdicts may name `ports` ports. Nothing moves before [`Self::start`]. If it `is_passive`, another agent has
    /// the pipe until [`Self::begin`].
    pub fn new(shape: Shape, memory: Arc<AgentMemory>, ports: u16, is_passive: bool) -> Self {
        Self {
            shape,
            memory,
            announcer: Announcer::new(shape.ring_bytes(), shape.grain()),
            intake: Intake::new(shape, ports),
            recv_waker: Waker::default(),
            send_waker: Waker::default(),
            started: false,
            ended: None,
            notifications: 0,
            short: false,
            wake_fd: None,
            linked: Linked::No,
            is_passive,
        }
    }

    /// Starts the pipe, after the memory that the program has mapped is sealed.
    pub fn start(&mut self) {
        self.started = true;
    }

    /// Returns direction, unit and size.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns whether the pipe moves bytes: it has started and not ended.
    pub fn is_open(&self) -> bool {
        self.ended.is_none() && self.started
    }

    /// Returns the reason of the pipe's end.
    pub fn ended(&self) -> Option<Errno> {
        self.ended
    }

    /// Returns the notifications made.
    pub fn notifications(&self) -> u64 {
        self.notifications
    }

    /// Asks for the lines of the next [`Self::look`] and [`Self::tell`] of a pipe whose program receives.
    #[inline]
    pub fn prefetch(&self) {
        let AgentMemory { status, control, .. } = &*self.memory;
        let own = status.address(pipe_status::RECV_PRODUCER, size_of::<u64>());
        let theirs = control.address(pipe_control::RECV_CONSUMER, size_of::<u64>());
        prefetch(own.as_ptr() as u64, theirs.as_ptr() as u64);
    }

    /// Reads the program's words. Returns whether they have changed.
    ///
    /// # Errors
    /// A violation, upon which the caller ends the pipe.
    #[inline]
    pub fn look(&mut self) -> std::result::Result<bool, Violation> {
        let (cells, mut news) = (Cells(&self.memory, self.shape), false);
        if self.shape.receives() {
            news |= self.announcer.look(&cells)?;
        }
        if self.shape.sends() && self.linked != Linked::Unheard {
            news |= self.intake.look(&cells, self.announcer.announced())?;
        }
        Ok(news)
    }

    fn freed(&self) -> u64 {
        match self.shape.direction() {
            Direction::Forward => self.intake.taken(),
            _ => self.announcer.given_back(),
        }
    }

    /// Returns the bytes that can be appended.
    #[inline]
    pub fn room(&self) -> u64 {
        if self.is_open() && self.shape.receives() {
            self.announcer.room(self.freed())
        } else {
            0
        }
    }

    /// Returns the place for a frame of `length` bytes behind the appended ones, or for bytes; none if the ring is full.
    #[inline]
    fn place(&self, length: usize) -> Option<*mut u8> {
        let bytes = match self.shape.unit() {
            Unit::Frames => frame_stride(length as u16),
            Unit::Bytes => length as u64,
        };
        if length == 0 || bytes > self.room() {
            return None;
        }
        Some(self.memory.ring.own()?.address(self.shape.offset(self.announcer.tail()), length).as_ptr())
    }

    /// Counts a frame or bytes copied to [`Self::place`].
    #[inline]
    fn placed(&mut self, length: usize) {
        match self.shape.unit() {
            Unit::Frames => {
                let at = entry_offset(self.announcer.tail(), self.shape.ring_bytes());
                self.memory.status.store_u32(at, entry(length as u16, BACK), Ordering::Relaxed);
                self.announcer.append(frame_stride(length as u16));
                // With many pipes, the next frame is another one's: its line is here when it comes.
                if let Some(ring) = self.memory.ring.own() {
                    ring.prefetch_to_write(self.shape.offset(self.announcer.tail()));
                }
            }
            Unit::Bytes => self.announcer.append(length as u64),
        }
    }

    /// Appends a frame, of at most [`FRAME_BYTES_MAX`], or bytes. Returns false if there is no room.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        if self.shape.unit() == Unit::Frames && bytes.len() > FRAME_BYTES_MAX.into() {
            return false;
        }
        let place = self.place(bytes.len());
        self.short = place.is_none();
        let Some(place) = place else { return false };
        // SAFETY: `place` has room for the bytes, in a mapping that is the agent's to write; a program that writes there, too,
        // spoils what it receives itself.
        unsafe { copy(place, bytes.as_ptr(), bytes.len()) };
        self.placed(bytes.len());
        true
    }

    /// Appends a frame or bytes that another pipe sends, by one copy, if `check` accepts the header of the copy. A refused frame
    /// counts as taken.
    #[inline]
    pub fn append_from(&mut self, from: &End, sent: &Sent, check: impl FnOnce(&[u8]) -> bool) -> Appended {
        let place = self.place(sent.length);
        self.short = place.is_none();
        let Some(place) = place else { return Appended::Full };
        let source = from.memory.ring.address(from.shape.offset(sent.position), sent.length);
        // SAFETY: both ranges lie in their mappings, which are of different files. The source may change meanwhile: its bytes are
        // data, and only the copy is looked at.
        unsafe { copy(place, source.as_ptr(), sent.length) };
        let mut header = [0; HEADER_BYTES];
        let len = sent.length.min(HEADER_BYTES);
        // SAFETY: the copy just made, which is at least `len` bytes long.
        unsafe { copy(header.as_mut_ptr(), place, len) };
        if !check(&header[..len]) {
            return Appended::Refused;
        }
        self.placed(sent.length);
        Appended::Done
    }

    /// Copies the frame of `length` bytes that was appended last, or its first bytes, into `to`. Returns the copy.
    pub fn copy_last<'a>(&self, length: usize, to: &'a mut [u8]) -> &'a [u8] {
        let len = length.min(to.len());
        let position = self.announcer.tail().wrapping_sub(frame_stride(length as u16));
        let source = self.memory.ring.address(self.shape.offset(position), len);
        // SAFETY: `len` bytes of the mapping, checked, and of a private buffer. A program may write there: the copy is used.
        unsafe { copy(to.as_mut_ptr(), source.as_ptr(), len) };
        &to[..len]
    }

    /// Returns the oldest frame or piece of the program that was not taken yet.
    ///
    /// # Errors
    /// A violation, upon which the caller ends the pipe.
    #[inline]
    pub fn sent(&mut self) -> std::result::Result<Option<Sent>, Violation> {
        if !self.is_open() || self.linked == Linked::Unheard {
            return Ok(None);
        }
        self.intake.next(&Cells(&self.memory, self.shape))
    }

    /// Copies the frame or piece `sent`, or its first bytes, into `to`. Returns the copy.
    #[inline]
    pub fn copy_out<'a>(&self, sent: &Sent, to: &'a mut [u8]) -> &'a [u8] {
        let len = sent.length.min(to.len());
        let source = self.memory.ring.address(self.shape.offset(sent.position), len);
        // SAFETY: `len` bytes of the mapping, checked, and of a private buffer. The source may change meanwhile: the copy is used.
        unsafe { copy(to.as_mut_ptr(), source.as_ptr(), len) };
        &to[..len]
    }

    /// Takes the frame or piece that [`Self::sent`] returned.
    #[inline]
    pub fn take(&mut self) {
        self.intake.take();
    }

    /// Takes `bytes` of the piece that [`Self::sent`] returned.
    pub fn take_part(&mut self, bytes: usize) {
        self.intake.take_part(bytes);
    }

    /// Announces appended bytes and publishes taken ones, as far as the program is due a notification, and wakes it.
    #[inline]
    pub fn tell(&mut self) -> Told {
        if !self.is_open() {
            return Told { announced: false, rung: false };
        }
        let cells = Cells(&self.memory, self.shape);
        let announced = self.announcer.announce(&cells);
        let mut rung = false;
        if let Some(position) = announced {
            self.notifications += 1;
            rung |= self.recv_waker.wake(&self.memory.recv_cells(), position);
        }
        if let Some(position) = self.intake.publish(&cells) {
            rung |= self.send_waker.wake(&self.memory.send_cells(), position);
        }
        if rung {
            self.wake();
        }
        Told { announced: announced.is_some(), rung }
    }

    /// Sets the agent's end of a pair that wakes the program: see [`super::Agent::set_wake_fd`].
    pub fn set_wake_fd(&mut self, wake_fd: Arc<WakeEnd>) {
        self.wake_fd = Some(wake_fd);
        if !self.is_passive {
            // The program may already have asked for a wake-up, and wait for earlier events.
            self.wake();
        }
    }

    /// Wakes a program that waits in `poll` or `epoll`.
    pub fn wake(&self) {
        if let Some(wake_fd) = &self.wake_fd {
            wake_fd.wake();
        }
    }

    /// Returns whether the program has sent frames or bytes that were not taken.
    pub fn has_sent(&self) -> bool {
        self.intake.has_untaken()
    }

    /// Returns whether an action of the program may be due: it sends, has unannounced bytes, has a full ring with more bytes to
    /// come, or has a part in a direct path other than sending.
    pub fn waits(&self) -> bool {
        match self.linked {
            Linked::Unheard => return false,
            Linked::Heard => return true,
            Linked::No => {}
        }
        self.shape.sends() || self.short || self.announcer.tail() != self.announcer.announced()
    }

    /// Asks the program to ring; 0 asks for no ring. A fence and another look come before the sleep.
    pub fn ask_wakeup(&self, sleep: u32) {
        // SYNC POINT: pipe-need-wakeup
        self.memory.status.store_u32(pipe_status::NEED_WAKEUP, sleep, Ordering::Relaxed);
    }

    /// Returns the agent's end of the pair that wakes the program.
    pub fn wake_fd(&self) -> Option<&Arc<WakeEnd>> {
        self.wake_fd.as_ref()
    }

    /// Returns whether the program waits in `poll` or `epoll`.
    pub fn has_wake_fd(&self) -> bool {
        self.wake_fd.is_some()
    }

    /// Tells the program the path of its frames.
    pub fn set_link(&mut self, number: u32, path: LinkPath) {
        self.linked = if path == LinkPath::Agent { Linked::No } else { Linked::Heard };
        Cells(&self.memory, self.shape).store_link(link(number, path));
        self.wake_both();
    }

    fn wake_both(&mut self) {
        self.recv_waker.wake_always(&self.memory.recv_cells());
        self.send_waker.wake_always(&self.memory.send_cells());
        self.wake();
    }

    /// Returns whether the program has mapped the memory of this offer.
    pub fn has_mapped(&self, number: u32) -> bool {
        self.memory.control.load_u32(pipe_control::LINK_MAPPED, Ordering::Acquire) == number
    }

    /// Grants the direct path from this sending end to `receiver`. Returns the position in the ring at which the receiver begins.
    pub fn grant(&mut self, number: u32, receiver: &mut End) -> u64 {
        let (own, theirs) = (Cells(&self.memory, self.shape), Cells(&receiver.memory, receiver.shape));
        self.intake.publish(&own);
        receiver.announcer.announce_all(&theirs);
        let from = self.intake.taken();
        handover::grant(number, from, &own, &theirs);
        (self.linked, receiver.linked) = (Linked::Unheard, Linked::Heard);
        self.wake_both();
        receiver.wake_both();
        from
    }

    /// Returns the position in the sender's ring up to which the program has given back. Nothing of it is believed.
    pub fn given_back_directly(&self) -> u64 {
        // SYNC POINT: link-lent
        self.memory.control.load_u64(pipe_control::LINK_CONSUMER, Ordering::Acquire)
    }

    /// Sets whether the program, which receives, has frames of a direct path that it has left.
    pub fn set_borrows(&mut self, borrows: bool) {
        self.linked = if borrows { Linked::Heard } else { Linked::No };
    }

    /// Keeps the ring from `position` on from being given back to the program, which sends; with none, no more.
    pub fn lend(&mut self, position: Option<u64>) {
        self.intake.lend(position);
    }

    /// Returns the position at which the program has left the direct path, once it has. Nothing of it is believed.
    pub fn left(&self, number: u32) -> Option<u64> {
        handover::left(number, &Cells(&self.memory, self.shape))
    }

    /// Goes on with the program's sends, which another has read from `from` to `left`; from `lent` on frames are lent still. Without a
    /// position `left`, all that was sent counts as read; also where more was read than sent, or more lies behind `lent` than the ring has, since
    /// either side may be at fault. Returns whether frames are lent.
    ///
    /// # Errors
    /// [`Violation::Index`] where no receiver can have read up to that position, whatever was sent: before `from`, or off a line. An impossible
    /// position of the program itself is found by the next look.
    pub fn go_on(
        &mut self,
        number: u32,
        from: u64,
        left: Option<u64>,
        lent: Option<u64>,
    ) -> std::result::Result<bool, Violation> {
        let cells = Cells(&self.memory, self.shape);
        let (producer, grain) = (cells.load_producer(), self.shape.grain());
        let is_behind = |bytes: u64| bytes % grain == 0 && bytes <= u64::MAX / 2;
        let sent = producer.wrapping_sub(from);
        let read = left.map_or(sent, |left| left.wrapping_sub(from));
        let free = lent.map_or(read, |lent| lent.wrapping_sub(from)).min(read);
        let fits = is_behind(read) && read <= sent && sent - free <= self.shape.ring_bytes();
        let at = match is_behind(sent) {
            true if fits => from.wrapping_add(read),
            true => producer,
            false => from,
        };
        self.intake.resume(at);
        let lent = lent.filter(|_| is_behind(sent) && fits);
        self.intake.lend(lent);
        if self.intake.publish(&cells).is_none() {
            cells.store_consumer(at);
        }
        self.set_link(number, LinkPath::Agent);
        if left.is_some() && !is_behind(read) {
            return Err(Violation::Index);
        }
        Ok(lent.is_some())
    }

    /// Returns the counts of the direct path by the program: frames, bytes, dropped and foreign ones. Nothing of it is believed.
    pub fn link_counts(&self) -> [u64; 4] {
        use pipe_control::*;
        [LINK_FRAMES, LINK_BYTES, LINK_DROPPED, LINK_FOREIGN]
            .map(|word| self.memory.control.load_u64(word, Ordering::Relaxed))
    }

    /// Ends the pipe. The program sees `errno` after the announced bytes, unless another agent has ended the pipe before.
    pub fn end(&mut self, errno: Errno) {
        if self.ended.is_none() {
            self.ended = Some(errno);
            let is_over = self.memory.status.load_u32(pipe_status::END, Ordering::Relaxed) != 0;
            if !self.is_passive && !is_over {
                let errno = errno.raw_os_error() as u32;
                self.memory.status.store_u32(pipe_status::END, errno, Ordering::Release);
                self.wake_both();
            }
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.end(Errno::CONNRESET);
    }
}

/// News of which a program was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Bytes were announced.
    pub announced: bool,
    /// The program was woken.
    pub rung: bool,
}

/// Outcome of appending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// The frame is appended.
    Done,
    /// The frame is refused for good.
    Refused,
    /// The ring is full.
    Full,
}
