//! The direct path: rings that the two clients of a connection share. Rings are made when one of the clients first has bytes to send, and
//! taken back when neither holds them any more. The driver never touches their bytes.
//!
//! A direct connection has flows like any other. These carry no bytes, and end the connection as any flow does. [`placing`] decides which
//! connections have rings, and moves open connections when that changes. [`handoff`] deals with rings of which an end goes to another
//! process. Only the conductor writes the `path` words of direct connections, except for [`Leave`].
mod doorbells;
mod handoff;
mod placing;
mod takeover;

pub use doorbells::Doorbells;
pub(super) use handoff::DirectHandoff;
pub(super) use placing::Plan;
pub(super) use takeover::{DirectState, DoorbellsGiven, DoorbellsTaken};

use super::client::{Client, SocketState};
use super::{Conductor, Connection};
use crate::ids::{ClientId, ConnectionId, Number, Side, Slot};
use crate::memory::{DirectRing, RingEnds};
use crate::messages::{Leave, Payer, ToMover, Violation, DRIVER};
use crate::metrics::Metrics;
use pd_abi::layout::{path, socket_status};
use pd_abi::limits::PAGE_BYTES;
use pd_abi::{Frame, FrameKind, SocketId};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that direct rings share: first payers, then the rings of one payer. A few rings of this size stay in the caches. Four streams
/// through rings of 4 MB each are slower by half.
const RINGS_BYTES: u64 = 16 << 20;
/// Size below which no ring shrinks for the sake of the caches. A connection may have a megabyte under way, and both sides would sleep for
/// room more than they copy.
const RING_BYTES_DEEP: u64 = 512 << 10;
/// Bytes that direct rings share likewise, with [`RING_BYTES_DEEP`] at most for each: many rings are smaller than that.
const RINGS_BYTES_MAX: u64 = 64 << 20;
/// Smallest size, whatever the number of rings.
const RING_BYTES_BUSY: u64 = 16 << 10;
/// Interval at which clients' words are read for the counters.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Connections that are looked at for it before the mover of the same thread has its turn.
const REPORTS_PER_STEP: usize = 512;
/// Interval of looks for rings of ended connections that are let go.
const LET_GO_EVERY: Duration = Duration::from_millis(100);
/// Rings looked at each time.
const LET_GO_LOOKS: usize = 256;
/// Highest rate of a writer. A client's word is believed up to this rate.
const BYTES_PER_SECOND_MAX: u64 = 1 << 38;

/// State of all direct connections.
#[derive(Debug, Default)]
pub struct Rings {
    /// Number of rings in use.
    open: u64,
    /// Number of rings in use by payer.
    open_of: HashMap<Payer, u64>,
    /// Rings of ended connections that a client still holds.
    held: Vec<DirectRing>,
    next_report: Duration,
    /// Place of the next connection in a round of looks that is under way.
    reporting: Option<usize>,
    next_look: Duration,
    /// The number of the last doorbell.
    doorbells: u64,
}

impl Rings {
    /// Returns zero if no ring is left.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn leftovers(&self) -> usize {
        self.open as usize + self.open_of.len() + self.held.len()
    }

    /// Returns the number of the last doorbell.
    pub fn last_doorbell(&self) -> u64 {
        self.doorbells
    }

    /// Makes the numbers of further doorbells begin after `last`.
    pub fn number_doorbells_from(&mut self, last: u64) {
        self.doorbells = last;
    }

    fn enter(&mut self, payer: Payer) {
        self.open += 1;
        *self.open_of.entry(payer).or_default() += 1;
    }

    fn leave(&mut self, payer: Payer) {
        self.open -= 1;
        if let Some(open) = self.open_of.get_mut(&payer) {
            *open -= 1;
            if *open == 0 {
                self.open_of.remove(&payer);
            }
        }
    }

    /// Returns the share of one more ring of the payer in `of` bytes. Payers share equally, then the rings of one payer do.
    fn share(&self, of: u64, payer: Payer) -> u64 {
        let own = self.open_of.get(&payer).copied().unwrap_or(0);
        let payers = self.open_of.len() as u64 + u64::from(own == 0);
        of / payers / (own + 1)
    }
}

/// State of a connection on the direct path.
#[derive(Debug)]
pub struct Direct {
    /// Ring that each side writes.
    rings: [Option<DirectRing>; 2],
    /// Ring for the side that has none yet. The two are made together, because a side without a ring of its own could not read the other's.
    second: Option<DirectRing>,
    /// Clients at the two sides, with their serials.
    clients: [(ClientId, u64); 2],
    /// Bytes and messages that each side is believed to have sent.
    reported: [(u64, u64); 2],
    since: Duration,
    /// Sides that have gone to another client. The connection is offloaded again as soon as one has.
    left: [bool; 2],
    /// Ends of the rings for the first owners of those sides.
    ends: [Option<RingEnds>; 2],
    /// Sides whose sends may go by rings.
    plan: Plan,
    /// The sides' `path` words.
    words: [u32; 2],
    /// Doorbell that each side's client sleeps on.
    doorbells: [Option<Arc<doorbells::Doorbell>>; 2],
    /// Progress of a recall, after which the connection is offloaded with both its clients: see [`placing`].
    recall: Option<placing::Recall>,
}

impl Direct {
    /// Tells whether bytes go by the rings.
    pub(super) fn is_in_use(&self) -> bool {
        self.left == [false; 2] && self.recall.is_none()
    }

    /// Tells whether a side has bytes in its peer's ring that it has not given back, as both say.
    pub(super) fn has_unread(&self, side: Side) -> bool {
        if self.left[side] {
            // The mover reads the ring for a side that has moved.
            return false;
        }
        let written = self.rings[side.other()].as_ref().map_or(0, |ring| ring.said().0);
        written != self.rings[side].as_ref().map_or(0, DirectRing::said_read)
    }

    /// Tells whether no ring was ever made.
    fn is_unused(&self) -> bool {
        self.rings.iter().all(Option::is_none)
    }
}

impl Conductor {
    /// Tells whether one of the clients has as many direct connections as it may. Further ones are offloaded.
    pub(super) fn is_full(&self, clients: [ClientId; 2]) -> bool {
        let full = |id| self.client(id).is_none_or(|client| !client.may_enter_direct());
        clients.into_iter().any(full)
    }

    /// Begins a connection on the direct path. The sockets' lines say so before a client is told. `undrained`: bits of the sides' words for
    /// bytes of previous clients.
    pub(super) fn open_direct(
        &mut self,
        sides: [(ClientId, Slot); 2],
        plan: Plan,
        undrained: [u32; 2],
    ) -> Direct {
        let (rings, second, reported, left, ends, doorbells, recall) = Default::default();
        let words = plan.words();
        let words = Side::BOTH.map(|side| words[side] | undrained[side]);
        let clients = Side::BOTH.map(|side| self.enter_direct(sides[side], words[side]));
        Metrics::add(&self.metrics.connections_direct, 1);
        Direct {
            rings,
            second,
            clients,
            reported,
            since: self.clock.now(),
            left,
            ends,
            plan,
            words,
            doorbells,
            recall,
        }
    }

    /// Counts a client's socket on the direct path, and publishes its word. Returns the client with its serial.
    fn enter_direct(&mut self, (id, slot): (ClientId, Slot), word: u32) -> (ClientId, u64) {
        let Some(client) = self.client_mut(id) else { return (id, 0) };
        client.enter_direct();
        if let Some(memory) = client.memory() {
            memory.publish_u32(slot, socket_status::PATH, word);
        }
        (id, client.serial)
    }

    /// Sets bits in a side's `path` word, and publishes it to its client. A client that has the side only since the connection left the
    /// direct path is not told. Once the other end has gone to another client, the movers publish the word. A word that they were given
    /// then would otherwise come later, and replace this one.
    pub(super) fn say(&mut self, index: ConnectionId, side: Side, more: u32) {
        self.change_word(index, side, |word| word | more);
    }

    fn change_word(&mut self, index: ConnectionId, side: Side, change: impl FnOnce(u32) -> u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let (owner, mover) = (connection.owner(side), connection.movers[side.other()]);
        let Some(direct) = &mut connection.direct else { return };
        direct.words[side] = change(direct.words[side]);
        if direct.left[side] {
            return;
        }
        let (word, is_left) = (direct.words[side], direct.left[side.other()]);
        if is_left {
            let to = owner.and_then(|(client, slot)| self.endpoint(client, slot));
            if let Some(to) = to {
                let leave = Box::new(Leave { to, path: word });
                self.movers.send(mover, ToMover::Leave { flow: index.flow(side.other()), leave });
            }
            return;
        }
        self.publish_path(index, side, word);
    }

    /// Stores the `path` word of a side's client.
    fn publish_path(&self, index: ConnectionId, side: Side, word: u32) {
        let owner = self.connection(index).and_then(|connection| connection.owner(side));
        let memory = owner.and_then(|(client, slot)| Some((self.client(client)?.memory()?, slot)));
        if let Some((memory, slot)) = memory {
            memory.publish_u32(slot, socket_status::PATH, word);
        }
    }

    fn exit_direct(&mut self, (id, serial): (ClientId, u64)) {
        if let Some(client) = self.client_mut(id).filter(|client| client.serial == serial) {
            client.exit_direct();
        }
    }

    /// Has both sides of a connection look again.
    fn wake_ends(&self, index: ConnectionId) {
        let Some(Connection { movers, .. }) = self.connection(index) else { return };
        for side in Side::BOTH {
            self.movers.send(movers[side], ToMover::WakeEnds { flow: index.flow(side) });
        }
    }

    /// Ends the direct path of a connection that is over.
    pub(super) fn close_direct(&mut self, direct: Direct) {
        let before = self.rings.held.len();
        direct.clients.into_iter().for_each(|owner| self.exit_direct(owner));
        for ring in direct.rings.into_iter().flatten().chain(direct.second) {
            self.rings.leave(ring.payer);
            self.rings.held.push(ring);
        }
        self.take_back(before..self.rings.held.len());
    }

    /// Takes back the rings in `looked_at`, of ended connections, that no client holds.
    fn take_back(&mut self, looked_at: std::ops::Range<usize>) {
        let before = self.rings.held.len();
        for at in looked_at.rev() {
            if self.rings.held[at].is_let_go() {
                self.rings.held.swap_remove(at);
            }
        }
        if self.rings.held.len() < before {
            self.retry_rings();
        }
    }

    pub(super) fn direct_wake_by(&self) -> Option<Duration> {
        let report = (self.rings.open > 0).then_some(self.rings.next_report);
        let look = (!self.rings.held.is_empty()).then_some(self.rings.next_look);
        report.into_iter().chain(look).min()
    }

    pub(super) fn tick_direct(&mut self) {
        let now = self.clock.now();
        if self.rings.open > 0 && now >= self.rings.next_report {
            self.rings.next_report = now + REPORT_EVERY;
            self.rings.reporting.get_or_insert(0);
            self.collect_some();
        }
        if !self.rings.held.is_empty() && now >= self.rings.next_look {
            self.rings.next_look = now + LET_GO_EVERY;
            // The next look is at other rings.
            let looks = self.rings.held.len().min(LET_GO_LOOKS);
            self.rings.held.rotate_left(looks);
            let last = self.rings.held.len();
            self.take_back(last - looks..last);
        }
    }

    /// Answers a frame about a direct ring.
    pub(super) fn direct_frame(
        &mut self,
        id: ClientId,
        kind: FrameKind,
        frame: &Frame,
    ) -> Result<(), Violation> {
        let socket = frame.id;
        if kind == FrameKind::RingEnds {
            self.ring_ends(id, SocketId(socket));
            return Ok(());
        }
        let at = self.direct_of(id, SocketId(socket));
        let answer = match (at, kind) {
            (None, _) => {
                Err((Errno::NOTCONN, "the connection is not on the direct path, or over".to_owned()))
            }
            (Some(at), FrameKind::DirectRing) => self.make_ring(id, at),
            (Some(at), FrameKind::Doorbell) => {
                self.own_doorbell(id, at, frame.bytes);
                return Ok(());
            }
            (Some(at), FrameKind::PeerDoorbell) => {
                self.peer_doorbell(id, at);
                return Ok(());
            }
            (Some(at), FrameKind::DirectMapped) => return self.use_ring(id, at, socket),
            (Some(at), _) => self.peer_ring(at),
        };
        match answer {
            Ok((bytes, page_bytes, fd)) => {
                let frame = Frame::new(kind).with_id(socket).with_bytes(bytes, page_bytes);
                self.tell_client(id, &frame, Some(fd));
            }
            Err((errno, why)) => self.refuse(id, errno, &why),
        }
        Ok(())
    }

    /// Returns the state of a client's socket.
    fn state_of(&self, id: ClientId, socket: SocketId) -> Option<&SocketState> {
        let client = self.client(id)?;
        let state = client
            .socket(Slot::of(socket))
            .filter(|_| client.generation(Slot::of(socket)) == socket.generation());
        Some(&state?.state)
    }

    /// Returns connection and side of a client's socket, if it is on the direct path.
    fn direct_of(&self, id: ClientId, socket: SocketId) -> Option<(ConnectionId, Side)> {
        let SocketState::Connected(connected) = self.state_of(id, socket)? else { return None };
        let direct = self.connection(connected.connection)?.direct.as_ref()?;
        (!direct.left[connected.side]).then_some((connected.connection, connected.side))
    }

    fn direct_mut(&mut self, index: ConnectionId) -> Option<&mut Direct> {
        self.connections.get_mut(index)?.direct.as_deref_mut()
    }

    fn make_ring(&mut self, id: ClientId, (index, side): (ConnectionId, Side)) -> Answer {
        if self.direct_mut(index).is_none_or(|direct| direct.rings[side].is_some()) {
            return Err((Errno::ALREADY, "the direct ring is there already".to_owned()));
        }
        let (ring, second) = match self.direct_mut(index).and_then(|direct| direct.second.take()) {
            Some(ring) => (ring, None),
            None => self.allocate_both(id, (index, side))?,
        };
        let failed = |errno: Errno| (errno, format!("cannot pass on a direct ring: {errno}"));
        let answer = ring.for_owner().map(|fd| (ring.bytes(), ring.page_bytes(), fd)).map_err(failed);
        let Some(direct) = self.direct_mut(index) else { return answer };
        match (&answer, direct.rings[side.other()].is_some()) {
            (Ok(_), _) => (direct.rings[side], direct.second) = (Some(ring), second),
            // The other side has its own ring. The new one is needed when the client asks again.
            (Err(_), true) => direct.second = Some(ring),
            (Err(_), false) => [Some(ring), second].into_iter().flatten().for_each(|ring| {
                self.rings.leave(ring.payer);
            }),
        }
        answer
    }

    /// Makes a ring for a side, and one for the other: both or none, charged to their clients.
    fn allocate_both(
        &mut self,
        id: ClientId,
        (index, side): (ConnectionId, Side),
    ) -> Result<(DirectRing, Option<DirectRing>), (Errno, String)> {
        let ring = self.allocate_direct(id, self.direct_ring_bytes(id, index, side))?;
        let peer = self.connection(index).and_then(|connection| connection.owner(side.other()));
        let second = match peer.filter(|(peer, _)| self.client(*peer).is_some()) {
            Some((peer, _)) => {
                Some(self.allocate_direct(peer, self.direct_ring_bytes(peer, index, side.other()))?)
            }
            None => None,
        };
        for ring in [Some(&ring), second.as_ref()].into_iter().flatten() {
            self.rings.enter(ring.payer);
        }
        Ok((ring, second))
    }

    /// Returns the bytes of a side's ring: the size that one of the two sockets asked for, else the usual one. The ring is smaller where
    /// there are many rings, or memory is short.
    fn direct_ring_bytes(&self, id: ClientId, index: ConnectionId, side: Side) -> u64 {
        let usual = self.settings.ring_bytes_default;
        let sides = self.connection(index).map_or([None; 2], Connection::owners);
        let of = |side: Side| {
            let (client, slot) = sides[side]?;
            self.client(client)?.socket(slot)
        };
        let asked = [of(side).map(|s| s.send_ring_bytes), of(side.other()).map(|s| s.receive_ring_bytes)];
        let asked = asked.into_iter().flatten().filter(|&bytes| bytes != usual).max();
        let payer = self.client(id).map_or(DRIVER, Client::payer);
        let share = |of: u64| self.rings.share(of, payer);
        let deep = share(RINGS_BYTES_MAX).min(RING_BYTES_DEEP);
        let share = share(RINGS_BYTES).max(deep).max(RING_BYTES_BUSY);
        let bytes = asked.unwrap_or(usual).min(share).min(self.fair_ring_bytes(id));
        (bytes + 1).next_power_of_two() / 2
    }

    fn allocate_direct(&mut self, id: ClientId, wished: u64) -> Result<DirectRing, (Errno, String)> {
        let client = self.client(id).map(|client| (Arc::clone(&client.account), client.payer()));
        let (account, payer) = client.ok_or_else(|| (Errno::NOTCONN, "the client has gone".to_owned()))?;
        let mut bytes = wished.max(PAGE_BYTES as u64);
        loop {
            match self.pool.direct_ring(&account, bytes) {
                Ok(mut ring) => {
                    ring.payer = payer;
                    return Ok(ring);
                }
                Err(exhausted) => {
                    self.warn_exhausted(id, &exhausted);
                    bytes /= 2;
                    if bytes < PAGE_BYTES as u64 || !exhausted.is_of_bytes() {
                        Metrics::add(&self.metrics.rings_denied, 1);
                        self.reclaim();
                        return Err((Errno::NOBUFS, format!("no room for a direct ring: {exhausted}")));
                    }
                }
            }
        }
    }

    /// Takes a ring into use that its owner has mapped and sealed.
    fn use_ring(
        &mut self,
        id: ClientId,
        (index, side): (ConnectionId, Side),
        socket: u32,
    ) -> Result<(), Violation> {
        let ring = self.direct_mut(index).and_then(|direct| direct.rings[side].as_mut());
        ring.ok_or(Violation::Frame)?.check_sealed().map_err(|_| Violation::Frame)?;
        if self.connection(index).is_some_and(Connection::is_direct) {
            self.say(index, side.other(), path::PEER_READY);
        }
        // SYNC POINT: direct-ready (the peer stores its producer index, fences, looks at its path)
        fence(Ordering::SeqCst);
        self.wake_ends(index);
        self.tell_client(id, &Frame::new(FrameKind::Ready).with_id(socket), None);
        Ok(())
    }

    fn peer_ring(&mut self, (index, side): (ConnectionId, Side)) -> Answer {
        let ring = self.direct_mut(index).and_then(|direct| direct.rings[side.other()].as_ref());
        let ring = ring.ok_or((Errno::AGAIN, "the peer has no direct ring yet".to_owned()))?;
        let fd =
            ring.for_peer().map_err(|errno| (errno, format!("cannot pass on a direct ring: {errno}")))?;
        Ok((ring.bytes(), ring.page_bytes(), fd))
    }

    /// Ends a connection whose client says that its peer's words are impossible. A client can end only its own connection by this.
    pub(super) fn break_direct(&mut self, id: ClientId, socket: SocketId) {
        let Some((index, side)) = self.direct_of(id, socket) else { return };
        if self.connection(index).is_some_and(Connection::is_cut) {
            return;
        }
        Metrics::add(&self.metrics.connections_broken, 1);
        let peer = self.connection(index).and_then(|c| c.owner(side.other())).map(|(peer, _)| peer);
        const BROKEN: &str = "a client ended a direct connection whose peer broke the protocol";
        if self.may_say(BROKEN, id) {
            tracing::warn!(client = %id, peer = peer.map(ClientId::get), "{BROKEN}");
        }
        self.cut(index);
    }

    /// Reads the clients' counts of all direct connections.
    pub(super) fn collect_reports(&mut self) {
        if self.rings.open > 0 {
            for index in self.connections.ids() {
                self.report_sides(index);
            }
        }
    }

    /// Reads the clients' counts of some connections, if a round is under way. Returns whether one is.
    pub(super) fn collect_some(&mut self) -> bool {
        let Some(first) = self.rings.reporting.take() else { return false };
        let places = self.connections.places();
        let next = (first + REPORTS_PER_STEP).min(places);
        (first..next).for_each(|place| self.report_sides(ConnectionId::of_place(place)));
        self.rings.reporting = (next < places).then_some(next);
        true
    }

    /// Passes on the bytes and messages that the sides of a direct connection claim to have sent since the last time.
    pub(super) fn report_sides(&mut self, index: ConnectionId) {
        let now = self.clock.now();
        let connection = self.connections.get_mut_unmarked(index);
        let Some(Connection { direct: Some(direct), movers, .. }) = connection else {
            return;
        };
        let most = (now.saturating_sub(direct.since).as_secs() + 1).saturating_mul(BYTES_PER_SECOND_MAX);
        for side in Side::BOTH {
            let Some(ring) = &direct.rings[side] else { continue };
            let (was, said) = (direct.reported[side], ring.said());
            // Bytes that the reader has given back were written, whatever the writer says.
            let read = direct.rings[side.other()].as_ref().map_or(0, DirectRing::said_read);
            let bytes = said.0.max(read).clamp(was.0, most.max(was.0));
            // A send has a byte at least.
            let messages = said.1.clamp(was.1, bytes.max(was.1));
            let news = (bytes - was.0, messages - was.1);
            if news != (0, 0) {
                direct.reported[side] = (bytes, messages);
                let flow = index.flow(side);
                let (bytes, messages) = news;
                self.movers.send(movers[side], ToMover::Reported { flow, bytes, messages });
            }
        }
    }
}

/// Bytes of a ring, bytes of its pages, and its descriptor; or an errno and the reason.
type Answer = Result<(u64, u64, std::os::fd::OwnedFd), (Errno, String)>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::messages::payer;

    #[test]
    fn many_rings_of_one_payer_make_those_of_others_no_smaller() {
        let mut rings = Rings::default();
        let (one, two) = (payer(TenantId::new(0), 1), payer(TenantId::new(0), 2));
        assert_eq!(rings.share(RINGS_BYTES, one), RINGS_BYTES);
        (0..99).for_each(|_| rings.enter(one));
        assert_eq!(rings.share(RINGS_BYTES, one), RINGS_BYTES / 100);
        assert_eq!(rings.share(RINGS_BYTES, two), RINGS_BYTES / 2);
        rings.enter(two);
        assert_eq!(rings.share(RINGS_BYTES, one), RINGS_BYTES / 200);
        rings.leave(two);
        (0..99).for_each(|_| rings.leave(one));
        assert_eq!((rings.open, rings.open_of.len(), rings.share(8, two)), (0, 0, 8));
    }
}
