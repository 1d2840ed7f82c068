//! The driver's end of one channel.
use crate::memory::ClientMemory;
use crate::messages::Violation;
use pd_abi::limits::{REQUEST_RING_ENTRIES, SOCKETS_MAX};
use pd_abi::{Event, Request};
use pd_shm::ring::{Consumer, Producer, SharedCells};
use pd_shm::wait::Waker;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Events of one channel that may wait for room: one for each socket, and as many answers as a request
/// ring holds requests. Who lets more come together does not read, and is cut off.
const EVENTS_WAITING_MAX: usize = SOCKETS_MAX + REQUEST_RING_ENTRIES as usize;

/// Request ring, event ring, and how to wake and be woken.
#[derive(Debug)]
pub struct Channel {
    pub requests: Consumer<SharedCells<Request>>,
    events: Producer<SharedCells<Event>>,
    /// Events that did not fit, in order; at most [`EVENTS_WAITING_MAX`].
    waiting: VecDeque<Event>,
    waker: Waker,
    /// Watched by the mover's epoll.
    pub doorbell: OwnedFd,
    pub pipe: Option<OwnedFd>,
    pub active: bool,
    pub dirty: bool,
    pub overflowing: bool,
    pub quiet_turns: u32,
}

impl Channel {
    pub fn new(
        requests: Consumer<SharedCells<Request>>,
        events: Producer<SharedCells<Event>>,
        doorbell: OwnedFd,
    ) -> Self {
        Self {
            requests,
            events,
            waiting: VecDeque::new(),
            waker: Waker::default(),
            doorbell,
            pipe: None,
            active: false,
            dirty: false,
            overflowing: false,
            quiet_turns: 0,
        }
    }

    /// Whether there are requests; for spinning.
    pub fn has_requests(&self) -> bool {
        self.requests.cells().producer_beyond(self.requests.position())
    }

    /// Writes an event, or keeps it until there is room. Says whether there was room.
    ///
    /// # Errors
    /// If the client broke the protocol.
    pub fn post(&mut self, event: Event) -> Result<bool, Violation> {
        if !self.waiting.is_empty() || !self.events.write(event).map_err(|_| Violation::EventRing)? {
            if self.waiting.len() == EVENTS_WAITING_MAX {
                return Err(Violation::Events);
            }
            self.waiting.push_back(event);
            return Ok(false);
        }
        Ok(true)
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
        self.overflowing = !self.waiting.is_empty();
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
    pub fn ring_pipe(&self) {
        if let Some(pipe) = &self.pipe {
            // Our end does not block; a full pipe is readable already.
            let _ = rustix::io::write(pipe, &[1]);
        }
    }
}
