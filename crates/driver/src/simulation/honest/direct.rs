//! The direct path of honest clients: rings that two of them share, and the stream's way onto them and off them.
//!
//! A thread that needs a ring asks for it on the attach socket, and goes on with the answer ([`Wait::ForFrame`]). The rules are
//! those of docs/design/paths.md.
mod rings;

use super::calls::{has_moved, wait_of, Call, RECEIVES, SENDS};
use super::*;
use crate::simulation::kernel::Hold;
use pd_abi::layout::{direct, path};
use pd_abi::{LEFT_RECEIVING, LEFT_SENDING};
use pd_shm::{memfd, Access, Own, Region, Theirs};

/// Interval at which a thread of a direct connection looks again without a wake-up.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Index page and ring of one side.
pub(super) struct Half<A: Access> {
    map: Region<A>,
    _hold: Hold,
    ring_offset: usize,
    bytes: u64,
}

/// A question about a ring on the attach socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    id: SocketId,
    kind: FrameKind,
}

/// A receiver's progress on its way off the direct path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Leaving {
    #[default]
    Not,
    /// Reads the ring up to this index, until its end is known.
    Until(u64),
    /// Reads the ring up to its end, at this index.
    At(u64),
    Done,
}

/// The rings of a socket, and the progress of its two threads with them.
#[derive(Default)]
pub(super) struct Rings {
    own: Option<Half<Own>>,
    /// Set when the driver has sealed the own ring.
    is_sealed: bool,
    peer: Option<Half<Theirs>>,
    /// Time before which nobody asks again for a refused ring.
    refused: Option<Duration>,
    /// Set if the peer waits for an event that was not requested yet.
    owes_nudge: bool,
    /// The answer where the rings end: bytes that count of the own one, and of the peer's. None: it was refused.
    ends: Option<Option<(u64, u64)>>,
    out: Out,
    into: Into,
}

#[derive(Default)]
struct Out {
    /// Sends by the driver, and the number that makes a ring due.
    weight: u64,
    due: u64,
    is_direct: bool,
    has_left: bool,
    written: u64,
    /// Set if the peer is to be woken when its ring is available.
    has_to_tell: bool,
    /// The `path` word that an earlier call saw.
    seen: u32,
    /// Set if the rings existed when the peer was asked for a wake-up.
    is_armed: bool,
    told: Told,
}

#[derive(Default)]
struct Into {
    /// Position in the stream of the first byte of the peer's ring.
    origin: Option<u64>,
    leaving: Leaving,
    /// Bytes of the stream that came by a ring, which the driver does not count.
    by_ring: u64,
    /// Set if the rings existed when the peer was asked for a wake-up.
    is_armed: bool,
    told: Told,
}

/// The peer's wake-up requests that were answered.
#[derive(Default)]
struct Told {
    woken: u64,
    nudged: u64,
}

/// Words of one kind of waiting.
struct Words {
    wake_at: usize,
    event_at: usize,
    doorbell: usize,
}

const RECV: Words =
    Words { wake_at: direct::RECV_WAKE_AT, event_at: direct::RECV_EVENT_AT, doorbell: direct::RECV_DOORBELL };
const SEND: Words =
    Words { wake_at: direct::SEND_WAKE_AT, event_at: direct::SEND_EVENT_AT, doorbell: direct::SEND_DOORBELL };

impl<A: Access> Half<A> {
    fn load(&self, word: usize) -> u64 {
        self.map.load_u64(word, Ordering::Acquire)
    }

    fn place(&self, at: u64) -> usize {
        self.ring_offset + (at & (self.bytes - 1)) as usize
    }
}

impl Half<Own> {
    fn store(&self, word: usize, value: u64) {
        self.map.store_u64(word, value, Ordering::Release);
    }
}

/// Wakes the peer if it waits for this index. Returns whether the driver is to post it an event.
fn tell(own: &Half<Own>, peer: &Half<Theirs>, words: &Words, index: u64, told: &mut Told) -> bool {
    fence(Ordering::SeqCst);
    let (wake_at, event_at) = (peer.load(words.wake_at), peer.load(words.event_at));
    if wake_at == 0 {
        told.woken = 0;
    } else if index >= wake_at && wake_at != told.woken {
        told.woken = wake_at;
        let doorbell = own.map.load_u32(words.doorbell, Ordering::Relaxed).wrapping_add(1);
        own.map.store_u32(words.doorbell, doorbell, Ordering::Release);
    }
    let has_to_nudge = event_at != 0 && index >= event_at && event_at != told.nudged;
    if has_to_nudge {
        told.nudged = event_at;
    }
    has_to_nudge
}

/// Result of a claim of bytes in a ring.
pub(super) enum Claim {
    /// The thread waits for an answer.
    Unknown,
    Counts,
    /// Another process has the end, and is to send or receive them.
    Refused,
    /// The driver does not say.
    Failed,
}

/// Bytes for a receiver, beside those that the driver has delivered.
pub(super) enum Found {
    /// The thread waits for a frame, or has made a request. The value is for the trace.
    Later(u64),
    /// The peer's ring holds this many more bytes.
    InRing(u64),
    /// No bytes of the ring are due: the driver's count applies.
    ByDriver,
    /// The ring is not available now.
    Unknown,
}

impl Honest {
    /// Asks for a ring. The asking thread waits for the answer, or for the end of another question.
    fn ask_ring(&mut self, at: usize, kind: FrameKind) -> bool {
        let (Some(link), Some(socket)) = (&self.link, &self.sockets[at]) else { return false };
        if self.exchange.is_none() {
            if link.send(&Frame::new(kind).with_id(socket.id.0)).is_err() {
                return false;
            }
            self.exchange = Some(Exchange { id: socket.id, kind });
        }
        true
    }

    /// Handles the answer to it. Returns whether the frame was one.
    pub(super) fn ring_answered(&mut self, kind: FrameKind, frame: &Frame) -> bool {
        let Some(exchange) = self.exchange.take() else { return false };
        let Some(link) = &mut self.link else { return true };
        let came = link.came.take();
        let of = self.sockets.iter_mut().flatten().find(|socket| socket.id == exchange.id);
        let now = self.now;
        let rings = of.map(|socket| &mut socket.rings);
        let (ring_offset, bytes) = (frame.page_bytes as usize, frame.bytes);
        let len = || ring_offset + bytes as usize;
        match (exchange.kind, kind, came) {
            (FrameKind::DirectRing, FrameKind::DirectRing, Some((fd, hold))) => {
                let map = Region::<Own>::new(&fd, len()).expect("a mapping");
                memfd::seal_against_all(fd).expect("a seal");
                if let Some(rings) = rings {
                    rings.own = Some(Half { map, _hold: hold, ring_offset, bytes });
                }
                let mapped = Frame::new(FrameKind::DirectMapped).with_id(exchange.id.0);
                if link.send(&mapped).is_ok() {
                    self.exchange = Some(Exchange { kind: FrameKind::DirectMapped, ..exchange });
                    return true;
                }
            }
            (FrameKind::DirectMapped, FrameKind::Ready, None) => {
                rings.into_iter().for_each(|rings| rings.is_sealed = true);
            }
            (FrameKind::PeerRing, FrameKind::PeerRing, Some((fd, hold))) => {
                let map = Region::<Theirs>::new(fd, len()).expect("a mapping");
                if let Some(rings) = rings {
                    rings.peer = Some(Half { map, _hold: hold, ring_offset, bytes });
                }
            }
            (FrameKind::RingEnds, FrameKind::RingEnds | FrameKind::Error, None) => {
                let ends = (kind == FrameKind::RingEnds).then_some((frame.bytes, frame.page_bytes));
                rings.into_iter().for_each(|rings| rings.ends = Some(ends));
            }
            (_, FrameKind::Error, None) => {
                kernel::with(|kernel| kernel.has_refused_ring = true);
                if let Some(rings) = rings {
                    rings.refused = Some(now + LOOK_EVERY);
                    rings.out.weight = 0;
                }
            }
            (asked, answered, came) => panic!("{asked:?} is answered by {answered:?}, {}", came.is_some()),
        }
        for socket in self.sockets.iter_mut().flatten() {
            for wait in [&mut socket.receiver, &mut socket.sender] {
                if *wait == Wait::ForFrame {
                    *wait = Wait::Awake;
                }
            }
        }
        true
    }

    /// Tells whether an event has to be requested for the peer of a socket.
    pub(super) fn owes_nudge(&self) -> bool {
        self.sockets.iter().flatten().any(|socket| socket.rings.owes_nudge)
    }

    pub(super) fn nudge(&mut self) -> bool {
        let Some(at) =
            self.sockets.iter().position(|socket| socket.as_ref().is_some_and(|it| it.rings.owes_nudge))
        else {
            return false;
        };
        let Some(socket) = &self.sockets[at] else { return false };
        let request = Request::new(Operation::Nudge, socket.id, 0);
        let is_posted = self.post(socket.channel, request);
        self.set(at, |socket| socket.rings.owes_nudge &= !is_posted);
        is_posted
    }

    /// Joins the peer's ring, follows the stream there, or leaves it.
    pub(super) fn look_into_ring(&mut self, at: usize, end: u32) -> Found {
        let now = self.now;
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return Found::Unknown };
        let word = link.line_u32(socket.id, socket_status::PATH);
        let (received, given_back) = (socket.arriving.received, socket.given_back);
        let rings = &mut socket.rings;
        if rings.is_peer_due(word) || (rings.peer.is_some() && !rings.is_sealed) {
            if !rings.may_ask(now) {
                return Found::Unknown;
            }
            let kind = if rings.is_sealed { FrameKind::PeerRing } else { FrameKind::DirectRing };
            if rings.own.is_some() && !rings.is_sealed && self.exchange.is_none() {
                // Mapping it failed: the connection is over.
                return Found::ByDriver;
            }
            if self.ask_ring(at, kind) {
                self.set(at, |socket| socket.receiver = Wait::ForFrame);
            }
            return Found::Later(80);
        }
        if word & path::RECV_UNDRAINED != 0 {
            // The driver brings bytes of a previous client first.
            return Found::ByDriver;
        }
        let written = rings.pair().map_or(0, |(_, peer)| peer.load(direct::PRODUCER));
        let is_last = word & path::LAST != 0;
        if word & path::LEFT != 0 && matches!(rings.into.leaving, Leaving::Not | Leaving::Until(_)) {
            let mut last = written;
            if is_last && word & path::PEER_TAKEN != 0 && rings.pair().is_some() {
                // The peer may not have published the last bytes that count.
                match rings.ends.take() {
                    Some(Some((_, end))) => last = end,
                    Some(None) => return Found::ByDriver,
                    None => {
                        if self.ask_ring(at, FrameKind::RingEnds) {
                            self.set(at, |socket| socket.receiver = Wait::ForFrame);
                        }
                        return Found::Later(82);
                    }
                }
            }
            // The word was loaded before the index.
            rings.into.leaving = match rings.into.leaving {
                _ if is_last => Leaving::At(last),
                Leaving::Not => Leaving::Until(written),
                leaving => leaving,
            };
        }
        let has_begun = written > 0 || matches!(rings.into.leaving, Leaving::At(last) if last > 0);
        if has_begun && rings.into.origin.is_none() && rings.into.leaving != Leaving::Done {
            let delivered = link.line_u64(socket.id, socket_status::RECV_PRODUCER);
            if delivered == rings.by_driver(received) {
                rings.into.origin = Some(received);
            } else {
                return Found::ByDriver;
            }
        }
        if let Leaving::At(last) = rings.into.leaving {
            let origin = rings.into.origin.unwrap_or(received);
            if last == 0 || received == origin + last {
                if given_back < received {
                    self.give_back(at);
                }
                return self.leave_ring(at, last);
            }
        }
        let Some(socket) = &mut self.sockets[at] else { return Found::Unknown };
        let into = &mut socket.rings.into;
        // The end was loaded before the word: without `LAST` there, the peer had ended its stream before the recall.
        let Some(origin) = into.origin else { return Found::ByDriver };
        let written = match into.leaving {
            Leaving::Until(last) | Leaving::At(last) => last,
            _ if ![0, ENDED, ELSEWHERE].contains(&end) && !is_last => received - origin,
            _ => written,
        };
        assert!(origin + written >= received, "the index of a ring runs backwards: {written}");
        Found::InRing(origin + written - received)
    }

    /// Leaves the peer's ring, which was read to the end: the driver carries the next bytes.
    fn leave_ring(&mut self, at: usize, last: u64) -> Found {
        let Some(socket) = &self.sockets[at] else { return Found::Unknown };
        let request = Request { value: LEFT_RECEIVING, ..Request::new(Operation::Left, socket.id, 0) };
        if self.post(socket.channel, request) {
            self.set(at, |socket| {
                let into = &mut socket.rings.into;
                into.by_ring += last;
                (into.origin, into.leaving) = (None, Leaving::Done);
            });
        }
        Found::Later(81)
    }

    /// Takes bytes of the peer's ring. Returns a value for the trace.
    pub(super) fn take_of_ring(&mut self, at: usize, there: u64, book: &mut Book) -> u64 {
        let len = there.min(self.random.between(1, 6000));
        let Some(socket) = &mut self.sockets[at] else { return 0 };
        let (number, received) = (socket.number.expect("a connected socket"), socket.arriving.received);
        let Rings { peer: Some(peer), into: Into { origin: Some(origin), .. }, .. } = &socket.rings else {
            unreachable!("a ring that holds something");
        };
        let held = received + there - socket.given_back.max(*origin);
        assert!(held <= peer.bytes, "more bytes than a direct ring has: {held}");
        let got = (received..received + len).map(|position| {
            let offset = peer.place(position - origin);
            peer.map.load_u64(offset & !7, Ordering::Relaxed).to_le_bytes()[offset % 8]
        });
        if Self::is_unlocked(socket) {
            socket.calls[RECEIVES] = Some(Call::receive(got.collect(), true));
            return 7000 + len;
        }
        got.for_each(|got| book.take(number, &mut socket.arriving, got));
        book.by_rings += len;
        if self.random.chance(700) || there == len {
            self.give_back(at);
        }
        3000 + len
    }

    /// Gives the taken bytes of the peer's ring back.
    pub(super) fn give_back_of_ring(&mut self, at: usize) {
        let Some(socket) = &mut self.sockets[at] else { return };
        let received = socket.arriving.received;
        let Rings { own: Some(own), peer: Some(peer), into, owes_nudge, .. } = &mut socket.rings else {
            return;
        };
        let Some(origin) = into.origin.filter(|&origin| received > origin) else { return };
        own.store(direct::CONSUMER, received - origin);
        *owes_nudge |= tell(own, peer, &SEND, received - origin, &mut into.told);
    }

    /// Runs a sender on the direct path. Returns a value for the trace, or none if the driver is to carry the next bytes.
    pub(super) fn send_direct(&mut self, at: usize, book: &mut Book) -> Option<u64> {
        let now = self.now;
        let is_stale = self.random.chance(300);
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return Some(90) };
        let (id, channel, done) = (socket.id, socket.channel, socket.done == socket.posted);
        let word = link.line_u32(id, socket_status::PATH);
        let rings = &mut socket.rings;
        // The call may have read the word before it changed.
        let seen = std::mem::replace(&mut rings.out.seen, word);
        let word = if is_stale { seen } else { word };
        if rings.is_sealed && !rings.out.has_left && word & path::LEFT != 0 {
            let request = Request { value: LEFT_SENDING, ..Request::new(Operation::Left, id, 0) };
            if self.post(channel, request) {
                self.set(at, |socket| {
                    (socket.rings.out.has_left, socket.rings.out.is_direct) = (true, false);
                });
            }
            return Some(91);
        }
        if rings.out.is_direct && rings.is_peer_due(word) && rings.may_ask(now) {
            if self.ask_ring(at, FrameKind::PeerRing) {
                self.set(at, |socket| socket.sender = Wait::ForFrame);
            }
            return Some(92);
        }
        if rings.out.is_direct && rings.out.has_to_tell {
            self.tell_receiver(at);
        }
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return Some(90) };
        let asked = path::DIRECT | path::LEFT | path::SENDS_OFFLOADED | path::SEND_UNDRAINED;
        let rings = &mut socket.rings;
        let goes = word & asked == path::DIRECT && !rings.out.has_left;
        if !rings.out.is_direct {
            if !goes || rings.out.weight < rings.out.due || socket.sent == socket.total {
                return None;
            }
            if !done {
                // No more sends go by the driver, so that the switch happens.
                if rings.out.weight < 2 * rings.out.due {
                    return None;
                }
                return Some(self.wait_for_room(at));
            }
            if !rings.is_sealed {
                if !rings.may_ask(now) || rings.own.is_some() && self.exchange.is_none() {
                    rings.out.weight = 0;
                    return None;
                }
                if self.ask_ring(at, FrameKind::DirectRing) {
                    self.set(at, |socket| socket.sender = Wait::ForFrame);
                }
                return Some(93);
            }
            if link.line_u32(id, socket_status::PATH) & asked != path::DIRECT {
                rings.out.weight = 0;
                return None;
            }
            rings.out.is_direct = true;
            return Some(94);
        }
        if socket.sent == socket.total {
            return None;
        }
        let Some(own) = &rings.own else { return Some(90) };
        let consumed = rings.peer.as_ref().map_or(0, |peer| peer.load(direct::CONSUMER));
        assert!(consumed <= rings.out.written, "more given back than written: {consumed}");
        let wanted = self.random.pick(&[1, 7, 64, 300, 1000, 4096, 5000]);
        let room = own.bytes - (rings.out.written - consumed);
        let len = wanted.min(room).min(socket.total - socket.sent);
        if len == 0 {
            return Some(self.wait_for_room(at));
        }
        let number = socket.number.expect("a connected socket");
        for offset in 0..len {
            let place = own.place(rings.out.written + offset);
            let mut bytes = own.map.load_u64(place & !7, Ordering::Relaxed).to_le_bytes();
            bytes[place % 8] = byte(number, socket.sent + offset);
            own.map.store_u64(place & !7, u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        if Self::is_unlocked(socket) {
            socket.calls[SENDS] = Some(Call::send(len, true));
            return Some(8000 + len);
        }
        socket.sent += len;
        let record = &mut book.sockets[number];
        (record.sent, record.uses_ring) = (socket.sent, true);
        self.publish_sent(at, len);
        Some(4000 + len)
    }

    /// Publishes bytes in the own ring.
    fn publish_sent(&mut self, at: usize, len: u64) {
        let Some(socket) = &mut self.sockets[at] else { return };
        let Rings { own: Some(own), out, .. } = &mut socket.rings else { return };
        out.written += len;
        own.store(direct::MESSAGES, own.load(direct::MESSAGES) + 1);
        own.store(direct::PRODUCER, out.written);
        self.tell_receiver(at);
    }

    /// Claims the bytes of a call before they are published. Returns whether the driver counts them by that.
    pub(super) fn claim_bytes(&mut self, at: usize, direction: usize, len: u64) -> Option<bool> {
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return None };
        let has_ended = || link.line_u32(socket.id, socket_status::SEND_END) != 0;
        if direction == SENDS && has_ended() && !has_moved(link, socket, SENDS) {
            // The stream has ended meanwhile: the call begins anew.
            socket.calls[SENDS] = None;
            return None;
        }
        let is_taken = link.line_u32(socket.id, socket_status::PATH) & path::TAKEN != 0;
        let word = [direct::RECEIVED, direct::SENT][direction];
        let index = socket.rings.claimed(socket.arriving.received, direction, len);
        socket.rings.own.as_ref()?.store(word, index);
        fence(Ordering::SeqCst);
        Some(!is_taken)
    }

    /// Looks whether claimed bytes count, and asks the driver if another process has taken the end.
    pub(super) fn claim_result(&mut self, at: usize, direction: usize, len: u64) -> Claim {
        let (Some(link), Some(socket)) = (&self.link, &mut self.sockets[at]) else { return Claim::Failed };
        if link.line_u32(socket.id, socket_status::PATH) & path::TAKEN == 0 {
            return Claim::Counts;
        }
        let index = socket.rings.claimed(socket.arriving.received, direction, len);
        match socket.rings.ends.take() {
            Some(Some((sent, received))) if index <= [received, sent][direction] => Claim::Counts,
            Some(Some(_)) => Claim::Refused,
            Some(None) => Claim::Failed,
            None => {
                if self.ask_ring(at, FrameKind::RingEnds) {
                    self.set(at, |socket| *wait_of(socket, direction) = Wait::ForFrame);
                }
                Claim::Unknown
            }
        }
    }

    /// Publishes the bytes of a call that were claimed.
    pub(super) fn publish_call(&mut self, at: usize, direction: usize, len: u64) {
        if direction == SENDS {
            return self.publish_sent(at, len);
        }
        let Some(socket) = &mut self.sockets[at] else { return };
        let index = socket.rings.claimed(socket.arriving.received, direction, len);
        let Rings { own: Some(own), peer: Some(peer), into, owes_nudge, .. } = &mut socket.rings else {
            return;
        };
        own.store(direct::CONSUMER, index);
        *owes_nudge |= tell(own, peer, &SEND, index, &mut into.told);
    }

    /// Takes back all claims, as a driver with a bug sees it.
    pub fn forget_claims(&self) {
        let rings = self.sockets.iter().flatten().filter_map(|socket| socket.rings.own.as_ref());
        rings
            .for_each(|own| [direct::SENT, direct::RECEIVED].into_iter().for_each(|word| own.store(word, 0)));
    }

    fn tell_receiver(&mut self, at: usize) {
        let Some(socket) = &mut self.sockets[at] else { return };
        let Rings { own: Some(own), peer, out, owes_nudge, .. } = &mut socket.rings else { return };
        out.has_to_tell = peer.is_none();
        if let Some(peer) = peer {
            *owes_nudge |= tell(own, peer, &RECV, out.written, &mut out.told);
        }
    }
}
