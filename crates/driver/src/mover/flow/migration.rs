//! State of a flow whose ends went from one client to another: previous owners' bytes and rings, and owners to come.
//! The mover acts on it ([`crate::mover::migration`]).
use super::Flow;
use crate::ids::ClientId;
use crate::memory::UndrainedRing;
use crate::messages::{Endpoint, FlowEnd, PreviousOwner, Ring};
use crate::takeover::pack::Hindrance;
use pd_abi::layout::direct;
use pd_shm::Mapping;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Time from the first look at a ring that its writer has not left to the next. Each time is twice as long as the one before.
const LOOK_FIRST: Duration = Duration::from_millis(1);
/// Longest time between two looks.
const LOOK_LAST: Duration = Duration::from_secs(1);

/// State of a flow that was moved.
#[derive(Debug, Default)]
pub struct Migration {
    /// Receiving end to come, as soon as no copy is under way.
    next: Option<Endpoint>,
    /// Sockets of previous receivers that the flow lets go then.
    previous_owners: Vec<PreviousOwner>,
    /// Unread bytes in rings of previous receivers, in the order of the stream.
    undrained: VecDeque<Undrained>,
    /// Bytes of them that were counted when they were first delivered.
    counted: u64,
    /// Number of moves of each end since the conductor was told that nothing of previous clients is under way.
    moves: [u32; 2],
    /// Senders to come, each with the number of sends that were accepted before it.
    successors: VecDeque<(u64, Endpoint)>,
    /// Number of sends accepted before those of the present sender.
    base: u64,
    /// The sender's ring, as long as it may write there and the receiver cannot read it.
    drain_ring: Option<Box<DrainRing>>,
    /// Set while the receiver has still to read a ring that the present sender, or a previous one, has left.
    held: bool,
    /// Set if the sender's ring is read here: its receiver has gone to another client.
    read_here: bool,
    /// Set for good when the sender writes nothing more into its ring.
    sender_left: bool,
    /// Set for good when the receiver has read that ring to the end.
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

/// Place of a previous receiver's bytes.
#[derive(Debug)]
pub enum PreviousRing {
    /// The receiver's own ring.
    Receive(Ring),
    /// The ring of the sender that it read: the mapping, the ring's offset there, and its bytes.
    Direct(Arc<Mapping>, usize, u64),
}

impl PreviousRing {
    /// Returns the receive ring, which goes back when it is read up.
    pub fn into_receive_ring(self) -> Option<Ring> {
        match self {
            Self::Receive(ring) => Some(ring),
            Self::Direct(..) => None,
        }
    }

    /// Returns address and bytes of the ring.
    fn place(&self) -> (u64, u64) {
        let (map, offset, bytes) = match self {
            Self::Receive(ring) => (&ring.map, ring.offset(), ring.bytes()),
            Self::Direct(map, ring_offset, bytes) => (map, *ring_offset, *bytes),
        };
        (map.address(offset, bytes as usize).as_ptr() as u64, bytes)
    }
}

/// Bytes in a previous receiver's ring.
#[derive(Debug)]
struct Undrained {
    ring: PreviousRing,
    /// Offset in the ring of the next byte to be put under way (free-running).
    at: u64,
    /// Bytes still to be put under way.
    left: u64,
    /// Bytes not yet delivered.
    undelivered: u64,
}

/// A ring that the mover reads until its writer has left it.
#[derive(Debug)]
struct DrainRing {
    map: Arc<Mapping>,
    ring_offset: usize,
    bytes: u64,
    /// Bytes that the previous receiver has given back. The number stays, so that no more than a ring comes.
    given_back: u64,
    /// Bytes read, by the previous receiver or here.
    read: u64,
    /// Bytes that count, if that is fixed.
    end: Option<u64>,
    /// Set once the bytes that were there from the start are known.
    is_looked_at: bool,
    /// Time of the next look.
    look_at: Duration,
    /// Pause after that look.
    pause: Duration,
}

impl From<UndrainedRing> for DrainRing {
    fn from(UndrainedRing { map, ring_offset, bytes, read, is_last: _, end }: UndrainedRing) -> Self {
        let (map, look_at, pause) = (Arc::new(map), Duration::ZERO, LOOK_FIRST);
        Self { map, ring_offset, bytes, given_back: read, read, end, is_looked_at: false, look_at, pause }
    }
}

/// A client's counter is impossible.
pub struct Impossible;

impl Migration {
    /// Returns the state that another driver goes on with.
    ///
    /// # Errors
    /// An end is on its way to another client.
    pub fn give(&self) -> Result<MigrationState, Hindrance> {
        let Self {
            next, previous_owners, undrained, counted, moves, successors, base, drain_ring, held, ..
        } = self;
        let has_arrived = next.is_none() && previous_owners.is_empty() && successors.is_empty();
        if !has_arrived || !undrained.is_empty() || *moves != [0; 2] || drain_ring.is_some() || *held {
            return Err(Hindrance::passing("a connection is on its way from one process to another"));
        }
        let &Self { read_here, sender_left, receiver_left, .. } = self;
        Ok(MigrationState { counted: *counted, base: *base, read_here, sender_left, receiver_left })
    }

    /// Takes over state that another driver has given.
    pub fn resume(state: MigrationState) -> Self {
        let MigrationState { counted, base, read_here, sender_left, receiver_left } = state;
        Self { counted, base, read_here, sender_left, receiver_left, ..Self::default() }
    }

    /// Tells whether the flow must not put anything under way.
    pub fn is_waiting(&self) -> bool {
        self.is_switching() || self.holds_sends() && self.next_undrained().is_none()
    }

    /// Tells whether no send may be put under way. Bytes in rings of previous receivers may be: they come before the ring that the receiver has
    /// still to read, and the receiver does not read that before them.
    pub fn holds_sends(&self) -> bool {
        self.held
    }

    /// Tells whether the flow is to have another destination.
    pub fn is_switching(&self) -> bool {
        self.next.is_some()
    }

    /// Tells whether there is a ring of the source's that the destination cannot read.
    pub fn is_draining(&self) -> bool {
        self.drain_ring.is_some()
    }

    /// Returns address and length of the previous owners' bytes that are to be copied next.
    pub fn next_undrained(&self) -> Option<(u64, u64)> {
        let piece = self.undrained.iter().find(|piece| piece.left > 0)?;
        let (base, bytes) = piece.ring.place();
        let position = piece.at & (bytes - 1);
        Some((base + position, piece.left.min(bytes - position)))
    }

    /// Notes that `len` of these bytes are under way.
    pub fn take_undrained(&mut self, len: u64) {
        if let Some(piece) = self.undrained.iter_mut().find(|piece| piece.left > 0) {
            piece.at += len;
            piece.left -= len;
        }
    }

    /// Skips one of these bytes, as a driver with a bug would. Returns whether there was one.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn skip_undrained(&mut self) -> bool {
        let piece = self.undrained.iter_mut().find(|piece| piece.left > 0);
        piece.map(|piece| piece.at += 1).is_some()
    }

    /// Ends a copy of `len` bytes. Returns whether these were of previous owners.
    pub fn deliver_undrained(&mut self, len: u64) -> bool {
        let Some(piece) = self.undrained.iter_mut().find(|piece| piece.undelivered > 0) else { return false };
        piece.undelivered -= len;
        true
    }

    /// Takes a ring in which all bytes are delivered.
    pub fn read_up(&mut self) -> Option<PreviousRing> {
        self.undrained.front().filter(|piece| piece.undelivered == 0)?;
        self.undrained.pop_front().map(|piece| piece.ring)
    }

    /// Takes the sender that comes next, if all sends before its own are done.
    pub fn inherit(&mut self, sends_done: u64) -> Option<Endpoint> {
        self.successors.front().filter(|(base, _)| sends_done >= *base)?;
        let (base, successor) = self.successors.pop_front()?;
        self.base = base;
        Some(successor)
    }

    /// Makes the flow deliver to this client. Returns the client that was to be next before. With `left` the connection has left the direct
    /// path with the destination. With `is_move` the flow had a destination before.
    pub fn hand_off_destination(
        &mut self,
        destination: Endpoint,
        previous: Option<PreviousOwner>,
        left: bool,
        is_move: bool,
    ) -> Option<Endpoint> {
        self.read_here |= left;
        self.moves[FlowEnd::Destination as usize] += u32::from(is_move);
        self.previous_owners.extend(previous);
        // The new destination gets the unread bytes of a previous sender's ring here.
        self.held = false;
        self.next.replace(destination)
    }

    /// Returns the number of moves of this end since the last time, if nothing of previous clients is under way.
    pub fn take_drained(&mut self, end: FlowEnd) -> Option<u32> {
        let is_drained = match end {
            FlowEnd::Source => self.successors.is_empty(),
            FlowEnd::Destination => {
                // Bytes may lie in the sender's ring that nobody has looked for.
                let is_looked_at = self.drain_ring.as_ref().is_none_or(|ring| ring.is_looked_at);
                is_looked_at && self.next.is_none() && self.undrained.is_empty()
            }
        };
        let moves = &mut self.moves[end as usize];
        (is_drained && *moves > 0).then(|| std::mem::take(moves))
    }

    /// Reads the sender's ring here from now on. Returns whether the sender has left it.
    pub fn drain(&mut self, undrained: UndrainedRing) -> bool {
        let is_last = undrained.is_last || self.sender_left;
        self.drain_ring = Some(Box::new(DrainRing::from(undrained)));
        is_last
    }

    /// Fixes where the sender's ring ends, if it is read here: its writer's end has gone to another client.
    pub fn fix_end(&mut self, end: Option<u64>) {
        if let Some(ring) = &mut self.drain_ring {
            ring.end = end.or(ring.end);
        }
    }

    /// Ends reading the sender's ring here.
    pub fn end_drain(&mut self) {
        self.drain_ring = None;
    }

    /// Returns the time of the next look at the sender's ring, if it is read here.
    pub fn look_at(&self) -> Option<Duration> {
        Some(self.drain_ring.as_ref()?.look_at)
    }

    /// Notes that the sender writes nothing more into its ring. Sends wait until the receiver has read the ring, unless it is read here.
    pub fn leave_ring(&mut self) {
        self.sender_left = true;
        self.held |= !self.read_here && !self.receiver_left;
    }

    /// Notes that the receiver has read the sender's ring to the end. Returns whether the flow waited for that.
    pub fn release(&mut self) -> bool {
        self.receiver_left = true;
        std::mem::take(&mut self.held)
    }

    /// Takes the sockets that the flow touches no more.
    pub fn take_previous_owners(&mut self) -> Vec<PreviousOwner> {
        std::mem::take(&mut self.previous_owners)
    }

    /// Adds a sender after the known ones, which have made `base` sends in all. With `held` its bytes wait until the receiver has read the
    /// ring of the sender before it. Returns the number of sends of that sender.
    pub fn hand_off_source(&mut self, base: u64, source: Endpoint, held: bool) -> u64 {
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

    /// Returns the last of the senders to come.
    pub fn last_successor(&self) -> Option<&Endpoint> {
        self.successors.back().map(|(_, successor)| successor)
    }

    /// Iterates over the senders to come.
    pub fn successors(&self) -> impl Iterator<Item = &Endpoint> {
        self.successors.iter().map(|(_, successor)| successor)
    }

    /// Calls `change` with each end that is to come.
    pub fn each_end(&mut self, change: &mut impl FnMut(&mut Endpoint)) {
        self.successors.iter_mut().map(|(_, successor)| successor).chain(&mut self.next).for_each(change);
    }

    /// Tells whether this client is one of the senders to come.
    pub fn has_successor(&self, client: ClientId) -> bool {
        self.successors.iter().any(|(_, successor)| successor.client == client)
    }

    /// Returns the numbers of the present sender's first send, and of its successor's.
    pub fn sends_of_present(&self) -> (u64, u64) {
        (self.base, self.successors.front().map_or(u64::MAX, |(base, _)| *base))
    }

    /// Returns how many of `bytes` bytes were counted when they were first delivered.
    pub fn take_counted(&mut self, bytes: u64) -> u64 {
        let again = self.counted.min(bytes);
        self.counted -= again;
        again
    }

    /// Returns the bytes that have come into the sender's ring since the last look. Returns 0 if this is not their place in the stream.
    ///
    /// # Errors
    /// The sender's counter is impossible.
    pub fn look_at_drain_ring(&mut self, now: Duration, in_order: bool) -> Result<u64, Impossible> {
        let Some(ring) = self.drain_ring.as_deref_mut() else { return Ok(0) };
        ring.look_at = now + ring.pause;
        ring.pause = (ring.pause * 2).min(LOOK_LAST);
        if !in_order {
            return Ok(0);
        }
        ring.is_looked_at = true;
        // The writer may not have published the last bytes that count.
        let written = ring.end.unwrap_or_else(|| ring.map.load_u64(direct::PRODUCER, Ordering::Acquire));
        if written.wrapping_sub(ring.given_back) > ring.bytes || written < ring.read {
            return Err(Impossible);
        }
        let len = written - std::mem::replace(&mut ring.read, written);
        // The sender's reports count these bytes (`ToMover::Reported`).
        self.counted += len;
        match self.undrained.back_mut() {
            _ if len == 0 => {}
            Some(piece) if matches!(piece.ring, PreviousRing::Direct(..)) => {
                piece.left += len;
                piece.undelivered += len;
            }
            _ => {
                let place = PreviousRing::Direct(Arc::clone(&ring.map), ring.ring_offset, ring.bytes);
                let at = written - len;
                self.undrained.push_back(Undrained { ring: place, at, left: len, undelivered: len });
            }
        }
        Ok(len)
    }
}

impl Flow {
    /// Delivers to the next client from now on. Returns the previous one, and its ring if it has read everything.
    pub fn switch_destination(&mut self) -> Option<(Endpoint, Option<Ring>)> {
        let next = self.migration()?.next.take()?;
        let (previous, ring, at, left) = self.replace_destination(next);
        let (Some(migration), Some(ring)) = (self.migration(), ring) else { return Some((previous, None)) };
        if left == 0 {
            return Some((previous, Some(ring)));
        }
        migration.counted += left;
        migration.undrained.push_front(Undrained {
            ring: PreviousRing::Receive(ring),
            at,
            left,
            undelivered: left,
        });
        self.add_pending(left);
        Some((previous, None))
    }
}
