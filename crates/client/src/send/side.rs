//! The sending half of a socket: what was sent and is not yet delivered, on all paths.
use crate::arena::Block;
use crate::direct::outgoing::Outgoing;
use crate::direct::setup::connections;
use crate::error::{bad_socket, elsewhere, moved, not_connected, Error, Result};
use crate::link::Link;
use crate::turn::{HasTurn, Turn};
use pd_abi::layout::{ELSEWHERE, ENDED, SHUT};
use pd_abi::limits::SENDS_IN_FLIGHT_MAX;
use pd_abi::Span;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Where bytes to be sent come from: called with a place and its size, writes there and says how many
/// bytes it wrote; fewer than the size: there are no more.
pub type Fill<'a> = dyn FnMut(*mut u8, usize) -> Result<usize> + 'a;

/// Called with the place and the number of bytes that [`Fill`] wrote and that are not sent, because another process has taken the socket
/// meanwhile.
pub type Unsent<'a> = dyn FnMut(*const u8, usize) + 'a;

/// The sending half of a socket.
#[derive(Debug)]
pub(crate) struct SendSide {
    pub(crate) link: Arc<Link>,
    /// The socket's.
    serial: u64,
    pub(crate) connected: bool,
    pub(crate) shut: bool,
    /// Shut, for the connection goes on in the kernel.
    pub(crate) aside: bool,
    /// Shut by a close: a send that another thread has begun adds nothing.
    closed: bool,
    /// Each send looks whether the peer is there.
    pub(super) looks: bool,
    /// Another process may take the socket over at any time.
    pub(crate) may_move: bool,
    /// Accepted, and not yet claimed by a thread.
    pub(crate) adoptable: bool,
    pub(crate) ring_bytes: u64,
    pub(crate) timeout: Option<Duration>,
    posted: u64,
    pub(super) completed: u64,
    pub(super) bytes: u64,
    /// Bytes of all sends so far.
    sent: u64,
    /// Sends in flight: the block that must not be written meanwhile, if they are of one, and bytes.
    flights: VecDeque<(Option<Block>, u32)>,
    /// On the direct path.
    pub(crate) out: Outgoing,
    turn: Turn,
}

impl HasTurn for SendSide {
    fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }
}

impl SendSide {
    pub(crate) fn new(
        link: Arc<Link>,
        serial: u64,
        connected: bool,
        adoptable: bool,
        ring_bytes: u64,
    ) -> Self {
        Self {
            link,
            serial,
            connected,
            shut: false,
            aside: false,
            closed: false,
            looks: false,
            may_move: false,
            adoptable,
            ring_bytes,
            timeout: None,
            posted: 0,
            completed: 0,
            bytes: 0,
            sent: 0,
            flights: VecDeque::new(),
            out: Outgoing::default(),
            turn: Turn::new(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    pub(crate) fn has_sent(&self) -> bool {
        self.posted > 0 || self.out.has_sent()
    }

    /// Returns the number of sends of the socket, and their bytes.
    pub(super) fn carried(&self) -> (u64, u64) {
        let (messages, bytes) = self.out.carried();
        (self.posted + messages, self.sent + bytes)
    }

    /// Counts what the driver has done with and frees it.
    #[inline]
    pub(crate) fn reap(&mut self) {
        self.leave_if_asked();
        if self.out.has_ring() {
            // A failure shows itself in `end`.
            let _ = self.look_for_room();
        }
        if self.flights.is_empty() {
            return;
        }
        if !self.link.attachment.alive() {
            self.land(self.posted);
        } else {
            self.land(self.link.send_consumer());
        }
    }

    /// [`Self::reap`] after the close: the line belongs to a later socket once the driver is done.
    pub(crate) fn reap_closed(&mut self) {
        let consumer = self.link.send_consumer();
        fence(Ordering::Acquire);
        let done = !self.link.attachment.alive() || !self.link.line_is_ours();
        self.land(if done { self.posted } else { consumer });
    }

    fn land(&mut self, completed: u64) {
        // A counter that cannot be is no counter.
        if completed.wrapping_sub(self.completed) > self.posted - self.completed {
            return;
        }
        for _ in self.completed..completed {
            if let Some((block, len)) = self.flights.pop_front() {
                self.bytes -= u64::from(len);
                if let Some(block) = block {
                    block.land();
                }
            }
        }
        self.completed = completed;
    }

    /// Bytes that may be sent now.
    pub(super) fn room(&self) -> u64 {
        if self.flights.len() as u64 >= SENDS_IN_FLIGHT_MAX {
            return 0;
        }
        self.ring_bytes.saturating_sub(self.bytes)
    }

    /// Returns whether a poll says that the socket is writable: half of the ring, so that wake-ups are few.
    pub(crate) fn writable(&self) -> bool {
        if self.out.has_ring() {
            return self.connected && self.out.is_writable();
        }
        if self.is_overdue() {
            return self.connected && self.flights.is_empty();
        }
        self.connected
            && self.bytes <= self.ring_bytes / 2
            && self.flights.len() as u64 <= SENDS_IN_FLIGHT_MAX / 2
    }

    /// The counter at which a waiter wants to be woken: half of what is in flight, or all of it before the first byte
    /// on the direct path.
    pub(crate) fn wake_at(&self) -> u64 {
        let flights = self.flights.len() as u64;
        self.completed + if self.is_overdue() { flights } else { flights / 2 }.max(1)
    }

    /// Asks for a `Ready` event when there is room. Says whether something has been done meanwhile.
    pub(crate) fn arm(&mut self) -> bool {
        if self.out.has_ring() {
            return self.arm_direct();
        }
        self.link.store_send_wake_at(self.wake_at());
        let before = self.completed;
        self.reap();
        self.completed != before || self.end().is_err()
    }

    /// Returns whether a send looks at the driver's words, whose cache line the driver keeps writing: always
    /// while little is in flight, once in 16 sends while much is.
    #[inline]
    pub(super) fn wants_look(&self) -> bool {
        let flights = self.flights.len();
        self.looks || flights < 2 || flights % 16 == 0
    }

    /// Shut for good, and not because the connection goes on in the kernel.
    pub(crate) fn is_shut_by_program(&self) -> bool {
        self.shut && !self.aside
    }

    /// Ends the sends of this process, before the driver is told of a close.
    pub(crate) fn close(&mut self) {
        (self.shut, self.closed) = (true, true);
    }

    /// Returns whether the socket can send, as far as this process knows.
    #[inline]
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.shut || !self.connected {
            return Err(self.not_open());
        }
        Ok(())
    }

    #[cold]
    fn not_open(&self) -> Error {
        if !self.connected {
            return not_connected();
        }
        if self.aside {
            return elsewhere();
        }
        if self.closed {
            return bad_socket();
        }
        Error::new(Errno::PIPE, "the socket was shut down for sending")
    }

    /// Returns the error for which nothing can be sent any more, if there is one.
    #[inline]
    pub(crate) fn end(&self) -> Result<()> {
        self.check_open()?;
        let end = self.link.send_end();
        if end == 0 && self.link.attachment.alive() {
            return Ok(());
        }
        Err(self.ended(end))
    }

    #[cold]
    fn ended(&self, end: u32) -> Error {
        if [ENDED, SHUT].contains(&end) {
            return Error::new(Errno::PIPE, "the peer has closed the connection");
        }
        if end == ELSEWHERE {
            return elsewhere();
        }
        if end != 0 {
            return Error::from_driver(end, || "the connection has failed".to_owned());
        }
        self.link.attachment.dead_error()
    }

    /// Posts one request for `len` bytes of `block` from `offset` on.
    #[inline]
    pub(super) fn post(&mut self, block: Block, offset: u64, len: u64) -> Result<()> {
        self.check_open()?;
        if !block.take_off(self.serial) {
            return Err(foreign());
        }
        let span = Span { region: block.region(), offset, len };
        if let Err(error) = self.link.submit_send(span) {
            block.land();
            return Err(error);
        }
        self.count(Some(block), len);
        Ok(())
    }

    /// Checks that the send just posted goes, where another process may take the socket at the same time.
    ///
    /// # Errors
    /// `ESTALE`: it does not. The process that has the socket now is to send those bytes.
    #[inline]
    pub(super) fn check_taken(&self) -> Result<()> {
        match !self.may_move || self.link.is_last_taken(self.posted)? {
            true => Ok(()),
            false => Err(moved()),
        }
    }

    /// One more send is in flight.
    #[inline]
    pub(super) fn count(&mut self, block: Option<Block>, len: u64) {
        self.posted += 1;
        self.bytes += len;
        self.sent += len;
        self.out.weigh(len, connections());
        self.flights.push_back((block, len as u32));
    }
}

pub(crate) fn partial(len: usize, left: u64, error: Error) -> Result<usize> {
    match len - left as usize {
        0 => Err(error),
        sent => Ok(sent),
    }
}

pub(super) fn foreign() -> Error {
    Error::new(Errno::FAULT, "the bytes do not lie in one block of pd_malloc; send from such memory only")
}
