//! The driver's end of one channel.
use crate::memory::{ClientMemory, Events, Requests};
use crate::messages::Violation;
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use pd_abi::limits::{MESSAGE_BYTES_MAX, REQUEST_RING_ENTRIES, SOCKETS_MAX};
use pd_abi::{Event, Operation, Request, SocketId, Span};
use pd_shm::ringer::WakeEnd;
use pd_shm::wait::Waker;
use pd_shm::wake;
use pd_shm::Pod;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Most events of one channel that wait for room: one for each socket, and as many answers as a request ring holds requests. A client with
/// more does not read, and is cut off.
const EVENTS_WAITING_MAX: usize = SOCKETS_MAX + REQUEST_RING_ENTRIES as usize;

/// Growth between two looks below which a stream is left alone for [`REST`]. Each look takes a cache line from the sender that writes it.
/// Each piece that is delivered takes one from the receiver. (Measured, docs/results/experiments.md.)
const PIECE_BYTES: u64 = 16 << 10;
/// Rest of a stream: see [`PIECE_BYTES`]. The last bytes of a stream are late by at most this time.
const REST: Duration = Duration::from_micros(6);
/// Turns in a row with a growing send that make a stream. A client that waits for an answer after each send makes none.
const STREAM_TURNS: u32 = 4;

/// Request ring and event ring, with the means to wake and to be woken.
#[derive(Debug)]
pub struct Channel {
    requests: Requests,
    /// Last send taken, until another request follows: the client may let it grow.
    open: Option<Request>,
    /// Bytes by which the send has grown in the present turn.
    grown: u64,
    /// Cost in bytes since [`Self::take_cost`]: the bytes of requests taken, and a cost for each request.
    cost: u64,
    /// Turns in a row in which the send grew by little.
    growths: u32,
    /// Time until which the channel is left alone.
    rest_until: Duration,
    events: Events,
    /// Events that did not fit, in order; at most [`EVENTS_WAITING_MAX`].
    waiting: VecDeque<Event>,
    waker: Waker,
    doorbell: OwnedFd,
    /// Set if the mover's epoll watches the doorbell. False if the doorbell could not be added.
    is_watched: bool,
    /// The driver's end of the wake pipe.
    pipe: Option<Arc<WakeEnd>>,
    /// Set while the mover looks at the channel: then `need_wakeup` is 0, and the scheduler has it.
    active: bool,
    /// Set while events are written and not published: then the outbox has the channel.
    dirty: bool,
    quiet_turns: u32,
}

/// A channel as another driver goes on with it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelState {
    /// Eventfd that the client rings.
    doorbell: Fd,
    /// The driver's end of the wake pipe.
    pipe: Option<Fd>,
    /// Number of requests read.
    read: u64,
    /// Number of events written.
    written: u64,
    /// Send that may still grow, as bytes.
    open: Option<Vec<u8>>,
    /// Events that wait for room, as bytes.
    waiting: Vec<Vec<u8>>,
}

impl ChannelState {
    /// Sets the number of requests read, the send that may still grow, and the number of events written. No event waits.
    pub fn set_positions(&mut self, (read, open): (u64, Option<Vec<u8>>), written: u64) {
        (self.read, self.open, self.written) = (read, open, written);
        self.waiting.clear();
    }
}

impl Channel {
    /// Returns the state that another driver goes on with.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&self, pack: &mut Pack) -> Result<ChannelState, Hindrance> {
        if self.dirty {
            return Err(Hindrance::passing("events are not published yet"));
        }
        Ok(ChannelState {
            doorbell: pack.add(&self.doorbell)?,
            pipe: self.pipe.as_ref().and_then(|pipe| pipe.fd()).map(|pipe| pack.add(pipe)).transpose()?,
            read: self.requests.position(),
            written: self.events.position(),
            open: self.open.map(|request| request.as_bytes().to_vec()),
            waiting: self.waiting.iter().map(|event| event.as_bytes().to_vec()).collect(),
        })
    }

    /// Takes over state that another driver has given, in the client's memory.
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
        // A send to another kind of socket, or a write to another kind of file, may wait.
        if let Some(Err(errno)) = pipe.as_ref().map(wake::check) {
            return Err(Wrong::of(format!("a wake pipe: {errno}")));
        }
        let fresh = Self::new(requests, events, fds.take(doorbell)?, false);
        let pipe = pipe.map(|pipe| WakeEnd::new(pipe, memory.ringer().cloned()));
        Ok(Self { open: open.flatten(), waiting, pipe, ..fresh })
    }

    /// Makes a channel that is not looked at yet. `is_watched`: the mover watches its doorbell.
    pub fn new(requests: Requests, events: Events, doorbell: OwnedFd, is_watched: bool) -> Self {
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
            is_watched,
            pipe: None,
            active: false,
            dirty: false,
            quiet_turns: 0,
        }
    }

    /// Returns the eventfd that the client rings while the mover does not look.
    pub fn doorbell(&self) -> &OwnedFd {
        &self.doorbell
    }

    /// Returns whether the mover watches the doorbell. A channel without a watched doorbell has to be looked at.
    pub fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Records whether the doorbell is watched by now.
    pub fn set_watched(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    /// Sets the wake pipe of the reader, and wakes the reader. A reader that knew of the pipe before may have missed a wake-up.
    pub fn set_pipe(&mut self, pipe: Option<Arc<WakeEnd>>) {
        self.pipe = pipe;
        self.ring_pipe();
    }

    /// Begins to be looked at, with no quiet turns. Returns false if it was already: only the first call has the scheduler take it.
    pub fn activate(&mut self) -> bool {
        self.quiet_turns = 0;
        !std::mem::replace(&mut self.active, true)
    }

    /// Ends being looked at unless requests have come. Returns whether it did. The caller has set `need_wakeup` and made a fence: the
    /// client rings for a later request.
    pub fn look_away(&mut self) -> bool {
        self.quiet_turns = 0;
        self.active = self.has_requests();
        !self.active
    }

    /// Ends being looked at, whatever has come: the mover gives the channel to another.
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

    /// Returns whether events wait for room. The outbox then has the channel among the overflowing.
    pub fn is_overflowing(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Tells whether there are requests; for spinning.
    pub fn has_requests(&self) -> bool {
        self.requests.cells().producer_beyond(self.requests.position())
            || self.open.is_some_and(|open| self.requests.last_word() != open.numbers().1)
    }

    /// Copies the next request out. Growth of the last send comes as a send of its own, at most once in a turn unless other requests
    /// follow.
    ///
    /// # Errors
    /// The client broke the protocol.
    pub fn next_request(&mut self) -> Result<Option<Request>, Violation> {
        // Order matters: the last send's word does not change any more once other requests follow.
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
            // The send includes its growth since it was published.
            request = request.with_numbers(request.numbers().0, self.requests.last_word());
            self.open = Some(request);
        }
        Ok(Some(request))
    }

    /// Returns the number of requests read, and the second number of the last one if it may grow; 0: it may not.
    #[inline]
    pub fn progress(&self) -> (u64, u64) {
        (self.requests.position(), self.open.map_or(0, |open| open.numbers().1))
    }

    /// Adds to the cost of the channel.
    #[inline]
    pub fn add_cost(&mut self, bytes: u64) {
        self.cost += bytes;
    }

    /// Returns the cost since the last call.
    pub fn take_cost(&mut self) -> u64 {
        std::mem::take(&mut self.cost)
    }

    /// Tells whether a stream is left alone for a while.
    pub fn rests(&self, now: impl FnOnce() -> Duration) -> bool {
        !self.rest_until.is_zero() && self.rest_until > now()
    }

    /// Ends a turn in which `taken` requests were taken: gives their places back, except that of a send that may grow.
    pub fn end_turn(&mut self, taken: usize, now: Duration) {
        let grown = std::mem::take(&mut self.grown);
        self.growths = if taken == 1 && (1..PIECE_BYTES).contains(&grown) { self.growths + 1 } else { 0 };
        self.rest_until = if self.growths >= STREAM_TURNS { now + REST } else { Duration::ZERO };
        if taken > 0 {
            self.release();
        }
    }

    /// Gives the places of requests back that were read, except that of a send that may grow.
    pub fn release(&mut self) {
        match self.open {
            Some(_) => self.requests.release_but_last(),
            None => self.requests.release(),
        }
    }

    /// Writes an event, or keeps it until there is room. Returns whether it is the first that waits.
    ///
    /// # Errors
    /// The client broke the protocol.
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

    /// Writes events that wait, as far as there is room by now. Returns whether any was written.
    ///
    /// # Errors
    /// The client broke the protocol.
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

    /// Publishes the events written, and wakes the reader if it asks for that.
    pub fn publish(&mut self, memory: &ClientMemory, index: usize) {
        self.dirty = false;
        let produced = self.events.publish();
        if self.waker.wake(&memory.event_wait(index), produced) && memory.pipe_wanted(index) {
            self.ring_pipe();
        }
    }

    /// Wakes a reader that waits for the wake pipe, if there is one.
    fn ring_pipe(&self) {
        if let Some(pipe) = &self.pipe {
            pipe.wake();
        }
    }
}

/// Records a send's new word. Returns the growth as a send.
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
