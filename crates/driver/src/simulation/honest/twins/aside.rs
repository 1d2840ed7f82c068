//! Ends that go on in the kernel. A side that has left sends all further bytes there, where none is lost: of them only the number counts.
//! Both streams of the fabric end where their senders have left it.
use super::*;
use pd_abi::{LEFT_BEFORE, PEER_LEFT, PEER_UNMARKED, STEP_ASIDE_BY_CHOICE, STEP_ASIDE_UNMARKED, UNMARKED};

/// Facts in the answer beside the position.
const FACTS: u64 = PEER_LEFT | PEER_UNMARKED | LEFT_BEFORE | UNMARKED;

impl Honest {
    /// Tells whether a socket's sender leaves the fabric now, by itself.
    pub(in crate::simulation::honest) fn is_leaving(&mut self, at: usize) -> bool {
        let Some(socket) = &self.sockets[at] else { return false };
        let Some(twin) = socket.twin else { return false };
        let is_settled = twin.settle_at.is_none() && !twin.is_settling && !twin.stays;
        is_settled && !self.is_lock_others(socket) && self.random.chance(20)
    }

    /// Asks the driver to end the stream of a socket. Returns a value for the trace.
    pub(in crate::simulation::honest) fn step_aside(
        &mut self,
        at: usize,
        follows: bool,
        book: &mut Book,
    ) -> u64 {
        let Some(socket) = &self.sockets[at] else { return 100 };
        let (id, channel, sent, total) = (socket.id, socket.channel, socket.sent, socket.total);
        let by_choice = if !follows && self.random.chance(300) { STEP_ASIDE_BY_CHOICE } else { 0 };
        let unmarked = self.random.pick(&[0, STEP_ASIDE_UNMARKED]);
        let request = Request { value: by_choice | unmarked, ..Request::new(Operation::StepAside, id, 0) };
        if !self.ask(channel, request, Asked::StepAside(at)) {
            return 101;
        }
        self.lock(at);
        self.set(at, |socket| (socket.sender, socket.has_shut) = (Wait::Over, true));
        self.set_twin(at, |twin| twin.has_left = true);
        let number = socket_number(self, at);
        book.leave(number, sent, total);
        102
    }

    /// Handles the answer.
    pub(in crate::simulation::honest) fn stepped_aside(&mut self, at: usize, event: &Event, book: &mut Book) {
        let number = socket_number(self, at);
        self.set(at, |socket| socket.has_shut = false);
        if event.errno != 0 {
            self.unlock(at, false);
            book.stay(number);
            self.set(at, |socket| socket.sender = Wait::Awake);
            self.set_twin(at, |twin| (twin.has_left, twin.stays) = (false, true));
            return;
        }
        self.unlock(at, true);
        self.keep(at);
        let Some(socket) = &self.sockets[at] else { return };
        let has_ended = |link: &Link| {
            // A receiver that has not begun does not know where the driver's count begins.
            link.line_u32(socket.id, socket_status::RECV_END) != 0 || socket.receiver == Wait::ForTurn
        };
        // A stream that has ended is there whole.
        if !self.link.as_ref().is_some_and(has_ended) {
            book.promised(number, socket.rings.base() + (event.number() & !FACTS));
        }
    }

    /// Goes on in the kernel with an end that a previous client has led there, if the driver knows of it.
    pub(super) fn taken_aside(&mut self, at: usize, aside: bool, was_answered: bool, book: &mut Book) {
        let number = socket_number(self, at);
        if aside {
            assert!(book.has_left(number), "socket {number} has not left");
            self.step_aside(at, true, book);
        } else if book.has_left(number) {
            // The client died before the driver read its request.
            assert!(!was_answered, "socket {number} has left, and is not told so");
            book.stay(number);
        }
    }
}

fn socket_number(honest: &Honest, at: usize) -> Number {
    honest.sockets[at].as_ref().and_then(|socket| socket.number).expect("a connected socket")
}
