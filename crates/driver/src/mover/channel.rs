//! The driver's end of one channel.
use crate::memory::{ClientMemory, Events, Requests};
use crate::messages::Violation;
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use pd_abi::limits::{MESSAGE_BYTES_MAX, REQUEST_RING_ENTRIES, SOCKETS_MAX};
use pd_abi::{Event, Operation, Request, SocketId, Span};
use pd_shm::wait::Waker;
use pd_shm::Pod;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Events of one channel that may wait for room: one for each socket, and as many answers as a request
/// ring holds requests. Who lets more come together does not read, and is cut off.
const EVENTS_WAITING_MAX: usize = SOCKETS_MAX + REQUEST_RING_ENTRIES as usize;

/// A stream that grows by less than this between two looks is left alone for [`REST`]: each look takes a cache line from the
/// sender that writes it, and each piece that is delivered one from the receiver. (Measured, docs/results/experiments.md.)
const PIECE_BYTES: u64 = 16 << 10;
/// See [`PIECE_BYTES`]. The last bytes of a stream come later by at most this.
const REST: Duration = Duration::from_micros(6);
/// Turns in a row in which a send has grown that make a stream. Who waits for an answer after each send makes none.
const STREAM_TURNS: u32 = 4;

/// Request ring, event ring, and how to wake and be woken.
#[derive(Debug)]
pub struct Channel {
    requests: Requests,
    /// The send that was taken last, until something comes after it: the client may let it grow.
    open: Option<Request>,
    /// Bytes that it has grown by in the present turn.
    grown: u64,
    /// Bytes of requests taken, and as many for each request as it costs, since [`Self::take_cost`].
    cost: u64,
    /// Turns in a row in which it grew by little, and until when the channel is left alone.
    growths: u32,
    rest_until: Duration,
    events: Events,
    /// Events that did not fit, in order; at most [`EVENTS_WAITING_MAX`].
    waiting: VecDeque<Event>,
    waker: Waker,
    doorbell: OwnedFd,
    /// Tells whether the mover's epoll watches the doorbell. It could not be added where this is false.
    is_heard: bool,
    pipe: Option<OwnedFd>,
    /// Tells whether the mover looks at it: then `need_wakeup` is 0, and the scheduler has it.
    active: bool,
    /// Tells whether events are written and not published: then the outbox has it.
    dirty: bool,
    quiet_turns: u32,
}

/// A channel as another driver goes on with it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelState {
    /// What the client rings, and what it is woken by beside.
    doorbell: Fd,
    pipe: Option<Fd>,
    /// Requests read, and events written.
    read: u64,
    written: u64,
    /// The send that may still grow, and events that wait for room, as bytes.
    open: Option<Vec<u8>>,
    waiting: Vec<Vec<u8>>,
}

impl Channel {
    /// State that another driver goes on with.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&self, pack: &mut Pack) -> Result<ChannelState, Hindrance> {
        if self.dirty {
            return Err(Hindrance::passing("events are not published yet"));
        }
        Ok(ChannelState {
            doorbell: pack.add(&self.doorbell)?,
            pipe: self.pipe.as_ref().map(|pipe| pack.add(pipe)).transpose()?,
            read: self.requests.position(),
            written: self.events.position(),
            open: self.open.map(|request| request.as_bytes().to_vec()),
            waiting: self.waiting.iter().map(|event| event.as_bytes().to_vec()).collect(),
        })
    }

    /// Goes on with what another driver has given, in the client's memory.
    ///
    /// # Errors
    /// The fault in it.
    pub fn resume(
        state: ChannelState,
        index: usize,
        memory: &ClientMemory,
        fds: &mut Unpacked,
    ) -> Result<Self, Wrong> {
        let ChannelState { doorbell, pipe, read, written, open, waiting } = state;
        let rings = memory.resume_channel(index, read, written);
        let (requests, events) = rings.map_err(|errno| Wrong::of(format!("rings of a channel: {errno}")))?;
        let open = open.map(|bytes| {
            let request = Request::from_bytes(&bytes).filter(|_| read > 0);
            request.filter(|request| request.operation == Operation::Send as u8)
        });
        let waiting: Option<VecDeque<_>> = waiting.iter().map(|bytes| Event::from_bytes(bytes)).collect();
        let known = waiting.filter(|waiting| waiting.len() <= EVENTS_WAITING_MAX);
        let (Some(waiting), false) = (known, open == Some(None)) else {
            return Err(Wrong::of("an entry of a ring"));
        };
        let pipe = pipe.map(|pipe| fds.take(pipe)).transpose()?;
        let fresh = Self::new(requests, events, fds.take(doorbell)?, false);
        Ok(Self { open: open.flatten(), waiting, pipe, ..fresh })
    }

    /// A channel that is not looked at yet. `is_heard` tells whether the mover watches its doorbell.
    pub fn new(requests: Requests, events: Events, doorbell: OwnedFd, is_heard: bool) -> Self {
        Self {
            requests,
            open: None,
            grown: 0,
            cost: 0,
            growths: 0,
            rest_until: Duration::ZERO,
            events,
            waiting: VecDeque::new(),
            waker: Waker::default(),
            doorbell,
            is_heard,
            pipe: None,
            active: false,
            dirty: false,
            quiet_turns: 0,
        }
    }

    /// Returns what the client rings while the mover does not look.
    pub fn doorbell(&self) -> &OwnedFd {
        &self.doorbell
    }

    /// Returns whether somebody watches the doorbell. A channel that nobody hears has to be looked at.
    pub fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// Records whether the doorbell is watched by now.
    pub fn set_heard(&mut self, is_heard: bool) {
        self.is_heard = is_heard;
    }

    /// Takes the pipe of its reader, and wakes it: it may have known of the pipe before, and have been woken without.
    pub fn set_pipe(&mut self, pipe: Option<OwnedFd>) {
        self.pipe = pipe;
        self.ring_pipe();
    }

    /// Begins to be looked at, with no quiet turns. Returns false if it was already: only the first call has the scheduler take it.
    pub fn activate(&mut self) -> bool {
        self.quiet_turns = 0;
        !std::mem::replace(&mut self.active, true)
    }

    /// Ends being looked at unless requests have come, and says whether it did. To be called after `need_wakeup` was set and a
    /// fence: of a request that comes later its client rings.
    pub fn look_away(&mut self) -> bool {
        self.quiet_turns = 0;
        self.active = self.has_requests();
        !self.active
    }

    /// Ends being looked at by a mover that gives it to another, whatever has come.
    pub fn leave(&mut self) {
        self.active = false;
    }

    /// Ends a look that found `taken` requests. Returns the looks in a row that found none.
    pub fn count_look(&mut self, taken: usize) -> u32 {
        self.quiet_turns = if taken > 0 { 0 } else { self.quiet_turns + 1 };
        self.quiet_turns
    }

    /// Begins to count looks without requests anew.
    pub fn restart_quiet(&mut self) {
        self.quiet_turns = 0;
    }

    /// Records that events are to be published. Returns false if that was known: only the first call has the outbox take it.
    pub fn mark_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.dirty, true)
    }

    /// Returns whether events wait for room. As long as they do, the outbox has the channel among the overflowing.
    pub fn is_overflowing(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether there are requests; for spinning.
    pub fn has_requests(&self) -> bool {
        self.requests.cells().producer_beyond(self.requests.position())
            || self.open.is_some_and(|open| self.requests.last_word() != open.numbers().1)
    }

    /// Copies the next request out, or what the last send has grown by, as a send of its own. The latter at most once in a turn
    /// unless other requests follow.
    ///
    /// # Errors
    /// If the client broke the protocol.
    pub fn next_request(&mut self) -> Result<Option<Request>, Violation> {
        // Before the look at the last one's word, which does not change any more once there are others.
        let more = self.requests.available().map_err(|_| Violation::RequestRing)? > 0;
        if let (Some(open), true) = (&mut self.open, more || self.grown == 0) {
            let word = self.requests.last_word();
            if word != open.numbers().1 {
                let rest = grow(open, word)?;
                self.grown += rest.span().len;
                return Ok(Some(rest));
            }
        }
        if !more {
            return Ok(None);
        }
        self.open = None;
        let Some(mut request) = self.requests.read().map_err(|_| Violation::RequestRing)? else {
            return Ok(None);
        };
        if request.operation == Operation::Send as u8 {
            // With what it has grown by since it was published.
            request = request.with_numbers(request.numbers().0, self.requests.last_word());
            self.open = Some(request);
        }
        Ok(Some(request))
    }

    /// What it has cost so much more.
    #[inline]
    pub fn add_cost(&mut self, bytes: u64) {
        self.cost += bytes;
    }

    /// What it has cost since the last time.
    pub fn take_cost(&mut self) -> u64 {
        std::mem::take(&mut self.cost)
    }

    /// Whether a stream is left alone for a while.
    pub fn rests(&self, now: impl FnOnce() -> Duration) -> bool {
        !self.rest_until.is_zero() && self.rest_until > now()
    }

    /// Ends a turn in which `taken` requests were taken: gives their places back, but for that of a send that may grow.
    pub fn end_turn(&mut self, taken: usize, now: Duration) {
        let grown = std::mem::take(&mut self.grown);
        self.growths = if taken == 1 && (1..PIECE_BYTES).contains(&grown) { self.growths + 1 } else { 0 };
        self.rest_until = if self.growths >= STREAM_TURNS { now + REST } else { Duration::ZERO };
        match self.open {
            _ if taken == 0 => {}
            Some(_) => self.requests.release_but_last(),
            None => self.requests.release(),
        }
    }

    /// Writes an event, or keeps it until there is room. Says whether it is the first that waits.
    ///
    /// # Errors
    /// If the client broke the protocol.
    pub fn post(&mut self, event: Event) -> Result<bool, Violation> {
        let overflows = self.is_overflowing();
        if !overflows && self.events.write(event).map_err(|_| Violation::EventRing)? {
            return Ok(false);
        }
        if self.waiting.len() == EVENTS_WAITING_MAX {
            return Err(Violation::Events);
        }
        self.waiting.push_back(event);
        Ok(!overflows)
    }

    /// Writes events that wait, as far as there is room by now. Says whether any was written.
    ///
    /// # Errors
    /// If the client broke the protocol.
    pub fn retry(&mut self) -> Result<bool, Violation> {
        let mut moved = false;
        while let Some(&event) = self.waiting.front() {
            if !self.events.write(event).map_err(|_| Violation::EventRing)? {
                break;
            }
            self.waiting.pop_front();
            moved = true;
        }
        Ok(moved)
    }

    /// Publishes what was written and wakes the reader if it asks for that.
    pub fn publish(&mut self, memory: &ClientMemory, index: usize) {
        self.dirty = false;
        let produced = self.events.publish();
        if self.waker.wake(&memory.event_wait(index), produced) && memory.pipe_wanted(index) {
            self.ring_pipe();
        }
    }

    /// Wakes who waits for the pipe, if there is one.
    fn ring_pipe(&self) {
        if let Some(pipe) = &self.pipe {
            // Our end does not block; a full pipe is readable already.
            let _ = rustix::io::write(pipe, &[1]);
        }
    }
}

/// Takes note of a send's new word. Returns the send of what it has grown by.
fn grow(open: &mut Request, word: u64) -> Result<Request, Violation> {
    let (first, known) = (open.span(), open.sends());
    *open = open.with_numbers(open.numbers().0, word);
    let (span, sends) = (open.span(), open.sends());
    if span.len <= first.len || span.len > MESSAGE_BYTES_MAX || sends <= known {
        return Err(Violation::Span);
    }
    let rest = Span { offset: first.offset + first.len, len: span.len - first.len, ..first };
    Ok(Request::several_sends(SocketId(open.socket), rest, sends - known))
}

#[cfg(test)]
mod tests;
