//! Rings of senders that are read here, because those who read them have gone.
use super::{Moves, Piece, Source};
use crate::ids::FlowId;
use crate::messages::{Leave, Remainder, ToConductor, ToMover};
use crate::mover::flow::Flow;
use crate::mover::Mover;
use pd_abi::layout::{direct, socket_status};
use pd_shm::Mapping;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// A ring that the mover reads until its writer has left it.
#[derive(Debug)]
pub struct Unfinished {
    map: Arc<Mapping>,
    head: usize,
    bytes: u64,
    /// Bytes that the former receiver has given back: nobody gives back more, so that no more than a ring comes.
    given_back: u64,
    /// Bytes that were read, by the former receiver or here.
    read: u64,
    /// When to look again, and how long to wait after that.
    look_at: Duration,
    pause: Duration,
}

impl From<Remainder> for Unfinished {
    fn from(Remainder { map, head, bytes, read, is_last: _ }: Remainder) -> Self {
        let (map, look_at, pause) = (Arc::new(map), Duration::ZERO, LOOK_FIRST);
        Self { map, head, bytes, given_back: read, read, look_at, pause }
    }
}

/// How soon after a look at a ring that its writer has not left there is another one; twice as long each time...
const LOOK_FIRST: Duration = Duration::from_millis(1);
/// ...up to this.
const LOOK_LAST: Duration = Duration::from_secs(1);

/// A client's counter cannot be what it is.
struct Impossible;

impl Moves {
    /// Bytes that have come into the sender's ring since the last look; none if this is not their place in the stream.
    ///
    /// # Errors
    /// If there are more than it holds.
    fn look_at_remainder(&mut self, now: Duration, in_order: bool) -> Result<u64, Impossible> {
        let Some(ring) = self.remainder.as_deref_mut() else { return Ok(0) };
        ring.look_at = now + ring.pause;
        ring.pause = (ring.pause * 2).min(LOOK_LAST);
        if !in_order {
            return Ok(0);
        }
        let written = ring.map.load_u64(direct::PRODUCER, Ordering::Acquire);
        if written.wrapping_sub(ring.given_back) > ring.bytes || written < ring.read {
            return Err(Impossible);
        }
        let len = written - std::mem::replace(&mut ring.read, written);
        match self.unread.back_mut() {
            _ if len == 0 => {}
            Some(piece) if matches!(piece.source, Source::Direct(..)) => {
                piece.left += len;
                piece.undelivered += len;
            }
            _ => {
                let source = Source::Direct(Arc::clone(&ring.map), ring.head, ring.bytes);
                let at = written - len;
                self.unread.push_back(Piece { source, at, left: len, undelivered: len });
            }
        }
        Ok(len)
    }
}

impl Mover {
    /// Tells a client that its connection leaves the direct path, when both flows know: `id`, which brings it bytes, and the
    /// one back. That one's mover, the client's, tells it; it heard of the move from the conductor before this mover did.
    pub(in crate::mover) fn tell_to_leave(&mut self, id: FlowId, leave: &Leave) {
        let Leave { to, path } = leave;
        if to.mover != self.settings.id {
            self.peers[to.mover.index()].send(ToMover::Leave { flow: id, leave: Box::new(leave.clone()) });
            return;
        }
        let incoming = self.socket(to.client, to.slot.socket(to.generation)).and_then(|s| s.incoming);
        // SYNC POINT: direct-left (the peer sees all that the former client wrote)
        to.memory.publish_u32(to.slot, socket_status::PATH, *path);
        fence(Ordering::SeqCst);
        self.kick(id, incoming.map_or(self.settings.id, |(mover, _)| mover));
        self.kick(id.peer(), self.settings.id);
    }

    /// Takes what has come into a ring that is read in a former receiver's place. `last`: the sender has left it.
    pub(in crate::mover) fn read_on(&mut self, id: FlowId, last: bool) {
        let now = self.now;
        let Some(flow) = self.flows.used(id).filter(|flow| flow.has_remainder()) else { return };
        // Copies of sends and bytes in the ring never come together, unless the sender breaks the protocol.
        let in_order = flow.has_no_send_under_way() && !flow.is_aborted();
        let Some(moves) = flow.moves.as_mut() else { return };
        let found = moves.look_at_remainder(now, in_order);
        if last {
            moves.remainder = None;
        }
        match found {
            Ok(0) => {}
            Ok(len) => {
                flow.pending += len;
                // They count as the sender says (`Reported`).
                moves.counted += len;
                self.resume(id);
            }
            Err(Impossible) => self.break_flow(id),
        }
    }

    /// The sender's words about its ring are impossible.
    fn break_flow(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get(id) else { return };
        if let Some(moves) = &mut flow.moves {
            moves.remainder = None;
        }
        let client = flow.source().client;
        self.tell_conductor(ToConductor::BrokeRing { client });
        self.abort(id, Flow::failure(), Some(Flow::failure()));
    }

    /// Looks at the rings whose writers have not left them.
    pub(in crate::mover) fn look_at_unfinished(&mut self) {
        self.next_look = Duration::MAX;
        for at in (0..self.unfinished.len()).rev() {
            let id = self.unfinished[at];
            if self.look_at(id).is_some_and(|at| at <= self.now) {
                self.read_on(id, false);
            }
            match self.look_at(id) {
                Some(at) => self.next_look = self.next_look.min(at),
                None => {
                    self.unfinished.swap_remove(at);
                }
            }
        }
    }

    /// When the ring of a flow is to be looked at, if it has one that is read here.
    fn look_at(&mut self, id: FlowId) -> Option<Duration> {
        Some(self.flows.used(id)?.moves.as_ref()?.remainder.as_ref()?.look_at)
    }
}
