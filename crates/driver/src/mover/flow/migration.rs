//! State of a flow whose ends went from one client to another: former owners' bytes and rings, and owners to come.
//! The mover acts on it ([`crate::mover::migration`]).
use super::Flow;
use crate::ids::ClientId;
use crate::memory::Remainder;
use crate::messages::{Endpoint, FlowEnd, Former, Ring};
use crate::takeover::pack::Hindrance;
use pd_abi::layout::direct;
use pd_shm::Mapping;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// How soon after a look at a ring that its writer has not left there is another one; twice as long each time...
const LOOK_FIRST: Duration = Duration::from_millis(1);
/// ...up to this.
const LOOK_LAST: Duration = Duration::from_secs(1);

/// State of a flow that was moved.
#[derive(Debug, Default)]
pub struct Migration {
    /// Where it shall deliver as soon as no copy is under way, and whose end that was.
    next: Option<Endpoint>,
    formers: Vec<Former>,
    /// Unread bytes in rings of former receivers, in the order of the stream.
    undrained: VecDeque<Undrained>,
    /// Bytes of them that were counted when they were delivered first.
    counted: u64,
    /// By end, how often it has gone to another client since the conductor was told that nothing of former clients' is under way.
    moves: [u32; 2],
    /// Senders to come, each with the number of sends that were accepted before it.
    successors: VecDeque<(u64, Endpoint)>,
    /// Sends accepted before those of the present sender.
    base: u64,
    /// The sender's ring, as long as it may write there and the receiver cannot read it.
    remainder: Option<Box<DrainRing>>,
    /// The receiver has still to read a ring that the present sender has left, or a former one had.
    held: bool,
    /// The sender's ring is read here: its receiver has gone to another client.
    read_here: bool,
    /// The sender writes nothing more into its ring; the receiver has read it to the end. Both for good.
    sender_left: bool,
    receiver_left: bool,
}

/// A flow whose ends have all arrived where they went, as another driver goes on with it.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrationState {
    counted: u64,
    base: u64,
    read_here: bool,
    sender_left: bool,
    receiver_left: bool,
}

/// Where a former receiver's bytes are.
#[derive(Debug)]
pub enum FormerRing {
    /// In its receive ring.
    Receive(Ring),
    /// In the ring of the sender that it read: the ring's offset in the mapping, and its bytes.
    Direct(Arc<Mapping>, usize, u64),
}

impl FormerRing {
    /// The receive ring, which goes back when it is read up.
    pub fn into_receive_ring(self) -> Option<Ring> {
        match self {
            Self::Receive(ring) => Some(ring),
            Self::Direct(..) => None,
        }
    }

    /// Address and bytes of the ring.
    fn place(&self) -> (u64, u64) {
        let (map, offset, bytes) = match self {
            Self::Receive(ring) => (&ring.map, ring.offset(), ring.bytes()),
            Self::Direct(map, head, bytes) => (map, *head, *bytes),
        };
        (map.address(offset, bytes as usize).as_ptr() as u64, bytes)
    }
}

/// Bytes in a former receiver's ring.
#[derive(Debug)]
struct Undrained {
    ring: FormerRing,
    /// Offset in the ring of the next byte to be put under way (free-running), and how many there are.
    at: u64,
    left: u64,
    /// Bytes not yet delivered.
    undelivered: u64,
}

/// A ring that the mover reads until its writer has left it.
#[derive(Debug)]
struct DrainRing {
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

impl From<Remainder> for DrainRing {
    fn from(Remainder { map, head, bytes, read, is_last: _ }: Remainder) -> Self {
        let (map, look_at, pause) = (Arc::new(map), Duration::ZERO, LOOK_FIRST);
        Self { map, head, bytes, given_back: read, read, look_at, pause }
    }
}

/// A client's counter cannot be what it is.
pub struct Impossible;

impl Migration {
    /// State that another driver goes on with.
    ///
    /// # Errors
    /// If an end is on its way to another client.
    pub fn give(&self) -> Result<MigrationState, Hindrance> {
        let Self { next, formers, undrained, counted, moves, successors, base, remainder, held, .. } = self;
        let has_arrived = next.is_none() && formers.is_empty() && successors.is_empty();
        if !has_arrived || !undrained.is_empty() || *moves != [0; 2] || remainder.is_some() || *held {
            return Err(Hindrance::passing("a connection is on its way from one process to another"));
        }
        let &Self { read_here, sender_left, receiver_left, .. } = self;
        Ok(MigrationState { counted: *counted, base: *base, read_here, sender_left, receiver_left })
    }

    /// Goes on with what another driver has given.
    pub fn resume(state: MigrationState) -> Self {
        let MigrationState { counted, base, read_here, sender_left, receiver_left } = state;
        Self { counted, base, read_here, sender_left, receiver_left, ..Self::default() }
    }

    /// Whether the flow must not put anything under way.
    pub fn is_waiting(&self) -> bool {
        self.held || self.is_switching()
    }

    /// Whether it is to have another destination.
    pub fn is_switching(&self) -> bool {
        self.next.is_some()
    }

    /// Whether there is a ring of the source's that the destination cannot read.
    pub fn has_remainder(&self) -> bool {
        self.remainder.is_some()
    }

    /// Address and length of what is to be copied next.
    pub fn next_undrained(&self) -> Option<(u64, u64)> {
        let piece = self.undrained.iter().find(|piece| piece.left > 0)?;
        let (base, bytes) = piece.ring.place();
        let position = piece.at & (bytes - 1);
        Some((base + position, piece.left.min(bytes - position)))
    }

    /// `len` bytes of it are under way.
    pub fn take_undrained(&mut self, len: u64) {
        if let Some(piece) = self.undrained.iter_mut().find(|piece| piece.left > 0) {
            piece.at += len;
            piece.left -= len;
        }
    }

    /// A copy of `len` bytes has ended. Says whether it was one of these.
    pub fn deliver_undrained(&mut self, len: u64) -> bool {
        let Some(piece) = self.undrained.iter_mut().find(|piece| piece.undelivered > 0) else { return false };
        piece.undelivered -= len;
        true
    }

    /// Where bytes lay that are all delivered.
    pub fn read_up(&mut self) -> Option<FormerRing> {
        self.undrained.front().filter(|piece| piece.undelivered == 0)?;
        self.undrained.pop_front().map(|piece| piece.ring)
    }

    /// The sender that comes next, if all sends before its own are done.
    pub fn inherit(&mut self, sends_done: u64) -> Option<Endpoint> {
        self.successors.front().filter(|(base, _)| sends_done >= *base)?;
        let (base, successor) = self.successors.pop_front()?;
        self.base = base;
        Some(successor)
    }

    /// The flow shall deliver to this client from now on, and to the one that was to be next no more, which is returned. With `left`
    /// the connection has left the direct path with the destination. With `is_move` it had one before.
    pub fn retarget(
        &mut self,
        destination: Endpoint,
        former: Option<Former>,
        left: bool,
        is_move: bool,
    ) -> Option<Endpoint> {
        self.read_here |= left;
        self.moves[FlowEnd::Destination as usize] += u32::from(is_move);
        self.formers.extend(former);
        // Of a former sender's ring the new destination gets what the former one had not read, here.
        self.held = false;
        self.next.replace(destination)
    }

    /// How often this end has gone to another client since the last time, if nothing of former clients' is under way.
    pub fn take_drained(&mut self, end: FlowEnd) -> Option<u32> {
        let is_drained = match end {
            FlowEnd::Source => self.successors.is_empty(),
            FlowEnd::Destination => self.next.is_none() && self.undrained.is_empty(),
        };
        let moves = &mut self.moves[end as usize];
        (is_drained && *moves > 0).then(|| std::mem::take(moves))
    }

    /// The sender's ring is read here from now on. Returns whether the sender has left it.
    pub fn drain(&mut self, remainder: Remainder) -> bool {
        let is_last = remainder.is_last || self.sender_left;
        self.remainder = Some(Box::new(DrainRing::from(remainder)));
        is_last
    }

    /// Ends reading the sender's ring here.
    pub fn end_remainder(&mut self) {
        self.remainder = None;
    }

    /// When the sender's ring is to be looked at, if it is read here.
    pub fn look_at(&self) -> Option<Duration> {
        Some(self.remainder.as_ref()?.look_at)
    }

    /// The sender writes nothing more into its ring. What it sends waits for the receiver to read that, unless it is read here.
    pub fn leave_ring(&mut self) {
        self.sender_left = true;
        self.held |= !self.read_here && !self.receiver_left;
    }

    /// The receiver has read the sender's ring to the end. Returns whether the flow waited for that.
    pub fn release(&mut self) -> bool {
        self.receiver_left = true;
        std::mem::take(&mut self.held)
    }

    /// Sockets that the flow touches no more.
    pub fn take_formers(&mut self) -> Vec<Former> {
        std::mem::take(&mut self.formers)
    }

    /// `source` comes after the senders that there are, which have made `base` sends in all. With `held` its bytes wait until the
    /// receiver has read the ring of the one before it. Returns how many sends that one has made.
    pub fn hand_over(&mut self, base: u64, source: Endpoint, held: bool) -> u64 {
        let before = self.successors.back().map_or(self.base, |(base, _)| *base);
        self.successors.push_back((base, source));
        self.held |= held && !self.receiver_left;
        self.moves[FlowEnd::Source as usize] += 1;
        base - before
    }

    /// Drops the unread pieces. Returns the receive rings that they lie in.
    pub fn drop_undrained(&mut self) -> impl Iterator<Item = Ring> {
        std::mem::take(&mut self.undrained).into_iter().filter_map(|piece| piece.ring.into_receive_ring())
    }

    /// The last of the senders to come.
    pub fn last_successor(&self) -> Option<&Endpoint> {
        self.successors.back().map(|(_, successor)| successor)
    }

    /// The senders to come.
    pub fn successors(&self) -> impl Iterator<Item = &Endpoint> {
        self.successors.iter().map(|(_, successor)| successor)
    }

    /// Lets `change` see each end that is to come.
    pub fn each_end(&mut self, change: &mut impl FnMut(&mut Endpoint)) {
        self.successors.iter_mut().map(|(_, successor)| successor).chain(&mut self.next).for_each(change);
    }

    /// Whether this client is one of the senders to come.
    pub fn has_successor(&self, client: ClientId) -> bool {
        self.successors.iter().any(|(_, successor)| successor.client == client)
    }

    /// Numbers of the present sender's first send, and of its successor's.
    pub fn sends_of_present(&self) -> (u64, u64) {
        (self.base, self.successors.front().map_or(u64::MAX, |(base, _)| *base))
    }

    /// How many of so many bytes were counted when they were delivered first.
    pub fn take_counted(&mut self, bytes: u64) -> u64 {
        let again = self.counted.min(bytes);
        self.counted -= again;
        again
    }

    /// Bytes that have come into the sender's ring since the last look; none if this is not their place in the stream.
    ///
    /// # Errors
    /// If there are more than it holds.
    pub fn look_at_remainder(&mut self, now: Duration, in_order: bool) -> Result<u64, Impossible> {
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
        // Bytes count as the sender says (`ToMover::Reported`).
        self.counted += len;
        match self.undrained.back_mut() {
            _ if len == 0 => {}
            Some(piece) if matches!(piece.ring, FormerRing::Direct(..)) => {
                piece.left += len;
                piece.undelivered += len;
            }
            _ => {
                let place = FormerRing::Direct(Arc::clone(&ring.map), ring.head, ring.bytes);
                let at = written - len;
                self.undrained.push_back(Undrained { ring: place, at, left: len, undelivered: len });
            }
        }
        Ok(len)
    }
}

impl Flow {
    /// Delivers to the next client from now on. Returns the former one, and its ring if it has read all.
    pub fn switch_destination(&mut self) -> Option<(Endpoint, Option<Ring>)> {
        let next = self.migration()?.next.take()?;
        let (former, ring, at, left) = self.replace_destination(next);
        let (Some(migration), Some(ring)) = (self.migration(), ring) else { return Some((former, None)) };
        if left == 0 {
            return Some((former, Some(ring)));
        }
        migration.counted += left;
        migration.undrained.push_front(Undrained {
            ring: FormerRing::Receive(ring),
            at,
            left,
            undelivered: left,
        });
        self.add_pending(left);
        Some((former, None))
    }
}
