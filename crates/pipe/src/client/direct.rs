//! The direct path of a link ([`crate::handover`]): the sender's ring is read where it is, and space is given back to the sender.
//!
//! A program notices the agent's word when it looks for frames that are not there, for room, or publishes what it has sent. The receiver
//! bounds each word and each entry of the sender as the agent does, and leaves the path upon an impossible one, so that the agent
//! judges it. The sender takes a position of the receiver's only between what was free before and what it has published.
//!
//! Frames are lent in the sender's ring; bytes of a stream are copied out of it ([`super::stream`]).
use super::copied::Copied;
use super::eventfd::{self, OwnEventfd, PeerEventfd};
use super::stream::Gathered;
use super::Pipe;
use crate::handover::{self, LeaveCells};
use crate::intake::{Intake, IntakeCells, To};
use crate::memory::{ClientMemory, Eventfds, PeerMemory, PeerOffer};
use crate::shape::{Direction, Shape, Unit};
use crate::violation::Violation;
use pd_abi::pipe::{entry_offset, link_parts, pipe_control, pipe_status, LinkPath, FRAME_BYTES_MAX};
use pd_shm::byte_ring::check_consumer;
use pd_shm::wait::{self, SharedCells, SleeperCells, Waker};
use pd_shm::{Own, Region, Theirs};
use rustix::io::{Errno, Result};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{fence, Ordering};
use std::time::Duration;

/// Bytes between two looks whether the agent is there. Nothing of it is needed on the direct path.
const LOOK_BYTES: u64 = 4 << 20;

/// A way to the agent's user, who has the memory of pipes.
pub trait Broker: fmt::Debug + Send {
    /// Asks for the memory of the other end, as the agent offers it. None: the pipe stays on the agent's path.
    fn peer(&mut self) -> Option<PeerOffer>;
    /// Returns whether the agent is there. Called once for some megabytes.
    fn is_alive(&self) -> bool;
}

/// The other end of a link.
#[derive(Debug)]
pub(super) struct Peer {
    number: u32,
    memory: PeerMemory,
    shape: Shape,
    /// Of a receiver: the position in the sender's ring.
    intake: Intake,
    waker: Waker,
    /// Eventfd by which the other end wakes this program in `poll`, and the one by which this end wakes the other's.
    own_eventfd: Option<OwnEventfd>,
    peer_eventfd: Option<PeerEventfd>,
    /// Frames and bytes received, frames dropped, and frames with a foreign verdict.
    counts: [u64; 4],
    /// Position at the last look for the agent.
    looked: u64,
    /// Copy of the frame that is lent, if its program has asked for one.
    copied: Copied,
    /// Frames that are lent several at a time: where each ends in the sender's ring, and its length. The sender may change its own record.
    loans: VecDeque<(u64, u16)>,
}

/// The sender's words, as its receiver reaches them.
struct PeerCells<'a>(&'a PeerMemory, Shape, &'a ClientMemory);

impl IntakeCells for PeerCells<'_> {
    #[inline]
    fn load_producer(&self) -> u64 {
        self.0.control.load_u64(pipe_control::SEND_PRODUCER, Ordering::Acquire)
    }
    #[inline]
    fn load_entry(&self, position: u64) -> u32 {
        self.0.control.load_u32(entry_offset(position, self.1.ring_bytes()), Ordering::Relaxed)
    }
    fn store_consumer(&self, position: u64) {
        self.2.control.store_u64(pipe_control::LINK_CONSUMER, position, Ordering::Release);
    }
}

impl LeaveCells for ClientMemory {
    fn store_left_at(&self, position: u64) {
        self.control.store_u64(pipe_control::LINK_LEFT_AT, position, Ordering::Relaxed);
    }
    fn store_left(&self, number: u32) {
        self.control.store_u32(pipe_control::LINK_LEFT, number, Ordering::Release);
    }
}

/// The words of a sleep that two sides may end: the agent by its doorbell, and the other end by its own.
pub(super) struct TwoDoorbells<'a> {
    wake_at: (&'a Region<Own>, usize),
    doorbells: [(&'a Region<Theirs>, usize); 2],
    second: Cell<u32>,
}

impl SleeperCells for TwoDoorbells<'_> {
    fn load_doorbell(&self) -> u32 {
        let [first, second] = self.doorbells.map(|(region, at)| region.load_u32(at, Ordering::Acquire));
        self.second.set(second);
        first
    }
    fn store_wake_at(&self, value: u64) {
        self.wake_at.0.store_u64(self.wake_at.1, value, Ordering::Relaxed);
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn sleep(&self, seen: u32, timeout: Duration) {
        let [(first, at), (second, other_at)] = self.doorbells;
        let places = [(first, at, seen), (second, other_at, self.second.get())];
        Region::futex_wait_two(places, timeout, |sleep| sleep.make());
    }
}

impl Peer {
    /// Returns the address of the frame of `len` bytes that is not taken yet. Its sender may change the bytes.
    #[inline]
    pub(super) fn address(&self, len: usize) -> NonNull<u8> {
        match &self.memory.ring {
            Some(ring) => ring.address(self.shape.offset(self.intake.taken()), len),
            None => unreachable!("a sender's peer has no frames"),
        }
    }

    /// Returns a copy of that frame, made once.
    #[inline]
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: `len` bytes of the mapping. The frame stays the same until it is taken, which clears the copy.
        unsafe { self.copied.get(self.address(len), len) }
    }

    /// Wakes the other end's program, if it waits for `position`. Returns whether it does.
    fn wake(&mut self, own: &ClientMemory, wake_at: usize, position: u64) -> bool {
        let words = SharedCells {
            wake_at: (&self.memory.control, wake_at),
            doorbell: (&own.control, pipe_control::PEER_DOORBELL),
        };
        self.waker.wake(&eventfd::PeerCells { words, eventfd: self.peer_eventfd.as_ref() }, position)
    }

    /// Returns it without eventfds: the path is left.
    fn without_eventfds(mut self: Box<Self>) -> Box<Self> {
        (self.own_eventfd, self.peer_eventfd) = (None, None);
        self
    }

    /// Returns the length of the next frame for the program. Frames before it that their sender has dropped are taken.
    #[inline]
    fn next(&mut self, own: &ClientMemory) -> std::result::Result<Option<u16>, Violation> {
        let cells = PeerCells(&self.memory, self.shape, own);
        while let Some(sent) = self.intake.next(&cells)? {
            match sent.to {
                To::Port(_) => return Ok(Some(sent.length as u16)),
                To::Dropped => self.counts[2] += 1,
                To::Foreign => self.counts[3] += 1,
            }
            self.intake.take();
        }
        Ok(None)
    }
}

impl Pipe {
    /// Sets the way to the memory of the other end. Without one the pipe stays on the agent's path, but for [`Self::accept`].
    pub fn set_broker(&mut self, broker: Box<dyn Broker>) {
        self.broker = Some(broker);
    }

    /// Returns whether the agent offers the direct path.
    pub fn is_offered(&self) -> bool {
        link_parts(self.load_link()).1 == LinkPath::Offered
    }

    /// Returns whether the pipe is on the direct path, as far as it knows.
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Maps the memory of the other end, which the agent offers.
    ///
    /// # Errors
    /// `EINVAL` where nothing is offered, or other memory, or no eventfd for a program that waits in `poll`; `ENOMEM` and others of `mmap`;
    /// `EAGAIN` and `ENOSYS` where this end cannot signal the other's eventfd.
    pub fn accept(&mut self, offer: &PeerOffer) -> Result<()> {
        self.map_peer(self.load_link(), offer)
    }

    /// Maps the memory that belongs to this word of the agent.
    fn map_peer(&mut self, word: u32, offer: &PeerOffer) -> Result<()> {
        let (number, path) = link_parts(word);
        if path != LinkPath::Offered || offer.ring.is_some() != self.shape.receives() {
            return Err(Errno::INVAL);
        }
        let shape = Shape::new(Direction::Send, self.shape.unit(), offer.ring_bytes)?;
        let is_stream = self.shape.receives() && shape.unit() == Unit::Bytes;
        if is_stream && self.gathered.is_none() {
            self.gathered = Some(Box::new(Gathered::new(self.shape.ring_bytes())?));
        }
        let Eventfds { own, peer: theirs } = &offer.eventfds;
        let own_eventfd = match &self.wakes {
            Some(wakes) => Some(wakes.add(own.as_ref().ok_or(Errno::INVAL)?)?),
            None => None,
        };
        let peer_eventfd = theirs.as_ref().map(PeerEventfd::new).transpose()?;
        let (memory, intake, waker) = (PeerMemory::map(offer)?, Intake::new(shape, 1), Waker::default());
        let loans = VecDeque::new();
        let lends_frames = self.shape.receives() && !is_stream;
        let copied = Copied::new(if lends_frames { FRAME_BYTES_MAX.into() } else { 0 });
        let peer = Peer {
            number,
            memory,
            shape,
            intake,
            waker,
            own_eventfd,
            peer_eventfd,
            counts: self.link_counts,
            looked: 0,
            copied,
            loans,
        };
        (self.link, self.direct, self.offered) = (word, None, Some(Box::new(peer)));
        // Marks that nothing is given back: the sender may begin before this program does, and the last position is of another ring.
        self.memory.control.store_u64(pipe_control::LINK_CONSUMER, u64::MAX, Ordering::Relaxed);
        self.memory.control.store_u32(pipe_control::LINK_MAPPED, number, Ordering::Release);
        self.ring();
        Ok(())
    }

    pub(super) fn load_link(&self) -> u32 {
        // SYNC POINT: link-granted
        self.memory.status.load_u32(pipe_status::LINK, Ordering::Acquire)
    }

    /// Asks for the memory of the other end.
    #[cold]
    fn take_offer(&mut self) {
        self.offered = None;
        let Some(offer) = self.broker.as_mut().and_then(|broker| broker.peer()) else { return };
        // Memory of a later offer may be another pipe's.
        if self.load_link() == self.link {
            // Without it the agent passes frames on.
            let _ = self.map_peer(self.link, &offer);
        }
    }

    /// Follows the agent's word, in a receiving pipe that has read its own ring to the end. Returns whether the sender's ring is read now.
    #[cold]
    pub(super) fn follow_receiving(&mut self, link: u32) -> bool {
        self.link = link;
        let (number, path) = link_parts(link);
        match path {
            LinkPath::Agent => self.offered = None,
            LinkPath::Offered => self.take_offer(),
            LinkPath::Direct | LinkPath::Recalled | LinkPath::Last => {
                self.direct = self.offered.take().filter(|peer| peer.number == number);
                if let Some(peer) = &mut self.direct {
                    let from = self.memory.status.load_u64(pipe_status::LINK_FROM, Ordering::Relaxed);
                    peer.intake.resume(from);
                    peer.looked = from;
                    self.memory.control.store_u64(pipe_control::LINK_CONSUMER, from, Ordering::Release);
                    // A word that came since is news.
                    self.link = pd_abi::pipe::link(number, LinkPath::Direct);
                }
            }
        }
        self.direct.is_some()
    }

    /// Follows the agent's word in a sending pipe.
    #[cold]
    pub(super) fn follow_sending(&mut self, link: u32) {
        self.link = link;
        self.direct = None;
        match link_parts(link) {
            (_, LinkPath::Offered) => self.take_offer(),
            (number, LinkPath::Direct) => {
                self.direct = self.offered.take().filter(|peer| peer.number == number);
                let freed = self.memory.status.load_u64(pipe_status::SEND_CONSUMER, Ordering::Acquire);
                self.writer.cursor.see_trusted(freed);
            }
            _ => self.offered = None,
        }
    }

    /// Looks for frames in the sender's ring. Follows the agent's word where it has none.
    ///
    /// # Errors
    /// As for [`Pipe::unread`].
    pub(super) fn unread_direct(&mut self) -> Result<usize> {
        while let Self { direct: Some(peer), memory, .. } = self {
            match peer.next(memory) {
                Ok(Some(length)) => return Ok(length.into()),
                Ok(None) => {}
                Err(_) => break,
            }
            let (end, link) = (self.end(), self.load_link());
            if let Some(end) = end {
                return Err(end);
            }
            let is_last = link_parts(link).1 == LinkPath::Last;
            if link != self.link {
                self.link = link;
                if !is_last {
                    break;
                }
            } else if is_last {
                // The look after this word has seen all that the sender had sent.
                break;
            }
            match self.look_direct() {
                Ok(true) => {}
                Ok(false) if is_last => {}
                Ok(false) => {
                    // Frames that their sender dropped.
                    self.publish_direct();
                    return Err(Errno::AGAIN);
                }
                Err(_) => break,
            }
        }
        self.leave();
        self.unread()
    }

    /// Looks how far the sender has sent.
    ///
    /// # Errors
    /// [`Violation::Index`] where it cannot have.
    pub(super) fn look_direct(&mut self) -> std::result::Result<bool, Violation> {
        let Self { direct: Some(peer), memory, .. } = self else { return Ok(false) };
        peer.intake.look(&PeerCells(&peer.memory, peer.shape, memory), 0)
    }

    /// Copies a piece of what the sender of a stream has sent. Returns whether there was one, and room for it.
    pub(super) fn gather_piece(&mut self) -> bool {
        let Self { direct: Some(peer), gathered: Some(gathered), memory, .. } = self else { return false };
        let Ok(Some(sent)) = peer.intake.next(&PeerCells(&peer.memory, peer.shape, memory)) else {
            return false;
        };
        let len = (sent.length as u64).min(gathered.room()).min(peer.shape.piece()) as usize;
        if len == 0 {
            return false;
        }
        // SAFETY: `len` bytes of the mapping of the sender's ring, which may change meanwhile: the copy is used.
        unsafe { gathered.append(peer.address(len), len) };
        peer.intake.take_part(len);
        peer.counts[0] += 1;
        peer.counts[1] += len as u64;
        true
    }

    /// Returns the length of the next frame in the sender's ring.
    #[inline]
    pub(super) fn next_direct(&mut self) -> Option<u16> {
        let Self { direct: Some(peer), memory, .. } = self else { return None };
        peer.next(memory).ok().flatten()
    }

    /// Takes the frame that [`Self::next_direct`] returned, and gives it back.
    #[inline]
    pub(super) fn take_direct(&mut self, length: u16) {
        let Some(peer) = &mut self.direct else { return };
        peer.intake.take();
        peer.copied.clear();
        peer.counts[0] += 1;
        peer.counts[1] += u64::from(length);
        if peer.intake.unpublished() >= peer.shape.piece() {
            self.publish_direct();
        }
    }

    /// Gives all taken frames back to the sender.
    pub(super) fn publish_direct(&mut self) {
        let Self { direct: Some(peer), memory, .. } = self else { return };
        let words = [
            pipe_control::LINK_FRAMES,
            pipe_control::LINK_BYTES,
            pipe_control::LINK_DROPPED,
            pipe_control::LINK_FOREIGN,
        ];
        for (word, count) in words.into_iter().zip(peer.counts) {
            memory.control.store_u64(word, count, Ordering::Relaxed);
        }
        let Some(position) = peer.intake.publish(&PeerCells(&peer.memory, peer.shape, memory)) else {
            return;
        };
        let wakes = peer.wake(memory, pipe_control::SEND_WAKE_AT, position);
        // A sender that has begun to wait in `poll` has no eventfd on this path, which is recalled: the agent wakes it.
        if wakes && self.load_link() != self.link {
            self.ring();
        }
        self.look_for_agent(position);
    }

    /// Tells the receiver of frames up to `position`, if it sleeps.
    pub(super) fn wake_receiver(&mut self, position: u64) {
        let Self { direct: Some(peer), memory, .. } = self else { return };
        peer.wake(memory, pipe_control::LINK_WAKE_AT, position);
        self.look_for_agent(position);
    }

    fn look_for_agent(&mut self, position: u64) {
        let Some(peer) = self.direct.as_mut().filter(|peer| position.wrapping_sub(peer.looked) >= LOOK_BYTES)
        else {
            return;
        };
        peer.looked = position;
        self.agent_is_gone = self.broker.as_ref().is_some_and(|broker| !broker.is_alive());
    }

    /// Leaves the direct path: the agent passes on what was not taken.
    pub(super) fn leave(&mut self) {
        self.publish_direct();
        if let Some(peer) = self.direct.take() {
            self.link_counts = peer.counts;
            handover::leave(peer.number, peer.intake.taken(), &self.memory);
            self.left = Some(peer).filter(|peer| !peer.loans.is_empty()).map(Peer::without_eventfds);
            self.ring();
        }
    }

    /// Lends the next frame in the sender's ring: returns the address of its first byte, and its length.
    pub(super) fn lend_direct(&mut self) -> Option<(NonNull<u8>, u16)> {
        let length = self.next_direct()?;
        let peer = self.direct.as_mut()?;
        let at = peer.address(length.into());
        if peer.loans.is_empty() {
            self.lent_before = self.lent;
            peer.intake.lend(Some(peer.intake.taken()));
        }
        peer.intake.take();
        peer.loans.push_back((peer.intake.taken(), length));
        peer.counts[0] += 1;
        peer.counts[1] += u64::from(length);
        Some((at, length))
    }

    /// Ends the oldest loan in a sender's ring. Returns its length.
    pub(super) fn take_back_direct(&mut self) -> Option<u16> {
        let peer = self.left.as_mut().or(self.direct.as_mut())?;
        let (end, length) = peer.loans.pop_front()?;
        peer.intake.lend(Some(end).filter(|_| !peer.loans.is_empty()));
        if peer.intake.unpublished() >= peer.shape.piece() {
            self.publish_direct();
            self.publish_left();
        }
        Some(length)
    }

    /// Gives frames back whose loans have ended since the path was left. The agent tells the sender of the space.
    pub(super) fn publish_left(&mut self) {
        let Self { left: Some(peer), memory, .. } = self else { return };
        // SYNC POINT: link-lent
        if peer.intake.publish(&PeerCells(&peer.memory, peer.shape, memory)).is_some() {
            if peer.loans.is_empty() {
                self.left = None;
            }
            self.ring();
        }
    }

    /// Returns the bytes of a sender's ring that lent frames take.
    pub(super) fn lent_direct(&self) -> u64 {
        self.left.iter().chain(&self.direct).map(|peer| peer.intake.lent()).sum()
    }

    /// Returns the bytes of the sender's ring that are known and neither read nor lent.
    pub(super) fn waiting_direct(&self) -> Option<u64> {
        self.direct.as_ref().map(|peer| peer.intake.end().wrapping_sub(peer.intake.taken()))
    }

    /// Returns whether frames that are lent, and on the direct path those that are unread, leave the sender too little of its ring. A sender that
    /// has gone sends nothing to it either.
    pub(super) fn is_peer_full(&self) -> bool {
        let has_gone = || link_parts(self.load_link()).1 == LinkPath::Last;
        self.is_peer_lent()
            || self.direct.as_ref().is_some_and(|peer| {
                let unread = peer.intake.end().wrapping_sub(peer.intake.taken());
                let is_full = unread + peer.intake.lent() + peer.shape.headroom() > peer.shape.ring_bytes();
                is_full || unread > 0 && has_gone()
            })
    }

    /// Returns whether frames that are lent leave the sender too little of its ring.
    pub(super) fn is_peer_lent(&self) -> bool {
        let is_lent = |peer: &Peer| peer.intake.lent() + peer.shape.headroom() > peer.shape.ring_bytes();
        self.left.iter().chain(&self.direct).any(|peer| is_lent(peer))
    }

    /// Has the sender signal the eventfd with its next frame, and the agent with other news. Gives taken frames back.
    pub(super) fn ask_peer(&mut self) {
        self.publish_direct();
        let Self { direct: Some(peer), memory, .. } = self else { return };
        let wake_at = peer.intake.end().wrapping_add(1);
        memory.control.store_u64(pipe_control::LINK_WAKE_AT, wake_at, Ordering::Relaxed);
        // No position of the own ring: the agent rings for its other news.
        memory.control.store_u64(pipe_control::RECV_WAKE_AT, u64::MAX, Ordering::Relaxed);
    }

    /// Takes that back: the program is awake.
    pub(super) fn ask_peer_no_more(&mut self) {
        if self.direct.is_some() {
            self.memory.control.store_u64(pipe_control::LINK_WAKE_AT, 0, Ordering::Relaxed);
        }
    }

    /// Sleeps until the sender or the agent has news, at most `timeout`.
    pub(super) fn sleep_direct(&mut self, timeout: Duration) {
        self.publish_direct();
        let Self { direct: Some(peer), memory, .. } = &*self else { return };
        let (known, mut spin) = (peer.intake.end(), self.spin.clone());
        let cells = self.two_doorbells(peer, pipe_control::LINK_WAKE_AT, pipe_status::RECV_DOORBELL);
        // No position of the own ring: the agent rings for its other news.
        memory.control.store_u64(pipe_control::RECV_WAKE_AT, u64::MAX, Ordering::Relaxed);
        wait::sleep(&cells, known.wrapping_add(1), &mut spin, timeout, || {
            let sent = PeerCells(&peer.memory, peer.shape, memory).load_producer();
            sent != known || self.load_link() != self.link || self.end().is_some()
        });
        memory.control.store_u64(pipe_control::RECV_WAKE_AT, 0, Ordering::Relaxed);
        self.spin = spin;
    }

    /// Sleeps until the sender has sent more frames than are known, or the path is another.
    ///
    /// # Errors
    /// As for [`Pipe::wait`].
    pub(super) fn sleep_for_direct_frames(&mut self, timeout: Duration) -> Result<()> {
        self.sleep_direct(timeout);
        if self.waiting_direct() == Some(0) {
            return self.unread().map(drop);
        }
        let (end, link) = (self.end(), self.load_link());
        let is_news = link != self.link && link_parts(link).1 != LinkPath::Last;
        let looked = self.look_direct();
        if is_news || looked.is_err() {
            // The agent passes on what is unread.
            self.link = link;
            self.leave();
            return Err(Errno::AGAIN);
        }
        match looked {
            Ok(true) => Ok(()),
            _ => Err(end.unwrap_or(Errno::AGAIN)),
        }
    }

    /// Returns the words of a sleep in which the other end rings, too.
    pub(super) fn two_doorbells<'a>(
        &'a self,
        peer: &'a Peer,
        wake_at: usize,
        doorbell: usize,
    ) -> TwoDoorbells<'a> {
        TwoDoorbells {
            wake_at: (&self.memory.control, wake_at),
            doorbells: [(&self.memory.status, doorbell), (&peer.memory.control, pipe_control::PEER_DOORBELL)],
            second: Cell::new(0),
        }
    }

    /// Loads the position up to which sent bytes are free, by the side that reads them.
    pub(super) fn load_freed(&self) -> u64 {
        // SYNC POINT: pipe-taken
        match &self.direct {
            Some(peer) => peer.memory.control.load_u64(pipe_control::LINK_CONSUMER, Ordering::Acquire),
            None => self.memory.status.load_u64(pipe_status::SEND_CONSUMER, Ordering::Acquire),
        }
    }

    /// Returns that position; none if it cannot be.
    pub(super) fn freed(&self) -> Option<u64> {
        let (position, cursor) = (self.load_freed(), &self.writer.cursor);
        check_consumer(position, cursor.freed(), cursor.published()).is_ok().then_some(position)
    }
}
