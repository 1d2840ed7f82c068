//! Copies on their way from movers to the agent of pipes.
use super::Subject;
use crate::ids::{MoverId, Side};
use rustix::event::{eventfd, EventfdFlags};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lanes of a mirror. Movers beyond share them.
pub(super) const LANES: usize = 8;
/// Bytes of a lane: those that a mover moves in four turns of a flow.
pub const LANE_BYTES: usize = 1 << 20;
/// Records of a lane.
const LANE_RECORDS: usize = 8192;
/// Times that a mover tries a lane before its bytes are lost: another mover may have it.
const TRIES_MAX: usize = 256;

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The connection began.
    Begin,
    /// Bytes were delivered.
    Bytes,
    /// A side's stream has ended.
    End,
}

/// A record of a lane.
#[derive(Debug)]
pub(super) struct Record {
    /// Number among the records of all lanes.
    pub number: u64,
    pub subject: Arc<Subject>,
    pub side: Side,
    pub kind: Kind,
    /// Positions of the first byte, and of the other side's next one.
    pub positions: [u64; 2],
    /// Bytes of the lane.
    pub bytes: Range<usize>,
}

/// Records, and their bytes.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub records: Vec<Record>,
    pub bytes: Vec<u8>,
    /// Records that the agent has handled.
    pub done: usize,
}

impl Lane {
    fn new() -> Self {
        // Pages that were never written take no memory.
        Self { records: Vec::with_capacity(LANE_RECORDS), bytes: Vec::with_capacity(LANE_BYTES), done: 0 }
    }

    pub fn clear(&mut self) {
        self.records.clear();
        self.bytes.clear();
        self.done = 0;
    }

    /// Returns the oldest record that the agent has not handled.
    pub fn next(&self) -> Option<&Record> {
        self.records.get(self.done)
    }
}

/// A lane that movers fill, and one that the agent empties. An agent that loses its core while it holds the second one holds up no mover.
#[derive(Debug)]
struct Pair {
    lanes: [Mutex<Lane>; 2],
    /// Index of the lane that movers fill.
    filled: AtomicUsize,
}

impl Pair {
    fn new() -> Self {
        Self { lanes: std::array::from_fn(|_| Mutex::new(Lane::new())), filled: AtomicUsize::new(0) }
    }

    /// Returns the lane for a mover, unless another mover has it, or the agent takes it at this moment.
    fn try_fill(&self) -> Option<MutexGuard<'_, Lane>> {
        let at = self.filled.load(Ordering::Relaxed);
        let lane = self.lanes[at].try_lock().ok()?;
        // The agent stores the index before it locks: a lane that it has emptied is not the one of the index any more.
        (self.filled.load(Ordering::Relaxed) == at).then_some(lane)
    }

    /// Has movers fill the other lane, and returns this one, once a mover that fills it has ended. The other one is empty.
    fn turn(&self) -> MutexGuard<'_, Lane> {
        let at = self.filled.load(Ordering::Relaxed);
        self.filled.store(1 - at, Ordering::Relaxed);
        lock(&self.lanes[at])
    }
}

/// The copies of a mirror that the agent has not taken yet.
#[derive(Debug)]
pub struct Copies {
    lanes: [Pair; LANES],
    /// Number of the next record, taken while its lane is held.
    next_number: AtomicU64,
    /// Set when a lane has records.
    is_filled: AtomicBool,
    /// Set while somebody sees the copies.
    is_watched: AtomicBool,
    /// Set while the agent has to be woken.
    is_asleep: AtomicBool,
    doorbell: OwnedFd,
    frames_lost: AtomicU64,
}

impl Copies {
    /// Begins without copies.
    ///
    /// # Errors
    /// Errors of `eventfd`.
    pub fn new() -> rustix::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            lanes: std::array::from_fn(|_| Pair::new()),
            next_number: AtomicU64::new(0),
            is_filled: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            is_asleep: AtomicBool::new(false),
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            frames_lost: AtomicU64::new(0),
        }))
    }

    /// Copies `pieces` of a side's stream for the agent, as far as there is room. Records of other kinds than bytes have no pieces.
    /// `copy` appends a piece to memory that has room for it. Returns the number of bytes copied. Neither waits nor allocates.
    pub fn put(
        &self,
        mover: MoverId,
        of: (&Arc<Subject>, Side, Kind),
        positions: [u64; 2],
        pieces: [Range<usize>; 2],
        copy: impl Fn(&mut Vec<u8>, Range<usize>),
    ) -> u64 {
        let (subject, side, kind) = of;
        if !self.is_watched.load(Ordering::Relaxed) {
            return 0;
        }
        let wanted: usize = pieces.iter().map(ExactSizeIterator::len).sum();
        let lane = &self.lanes[mover.index() % LANES];
        let Some(mut lane) = (0..TRIES_MAX).find_map(|_| {
            let free = lane.try_fill();
            if free.is_none() {
                std::hint::spin_loop();
            }
            free
        }) else {
            self.lose(wanted);
            return 0;
        };
        if lane.records.len() == LANE_RECORDS {
            self.lose(wanted);
            return 0;
        }
        let first = lane.bytes.len();
        for piece in pieces {
            let room = LANE_BYTES - lane.bytes.len();
            let fits = piece.start..piece.start + piece.len().min(room);
            copy(&mut lane.bytes, fits);
        }
        let bytes = first..lane.bytes.len();
        let copied = bytes.len();
        if copied < wanted {
            self.lose(wanted - copied);
        }
        if copied > 0 || kind != Kind::Bytes {
            let subject = Arc::clone(subject);
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            lane.records.push(Record { number, subject, side, kind, positions, bytes });
        }
        drop(lane);
        self.is_filled.store(true, Ordering::Release);
        self.ring();
        copied as u64
    }

    fn lose(&self, bytes: usize) {
        let frames = bytes.div_ceil(super::SEGMENT_BYTES_MAX).max(1);
        self.frames_lost.fetch_add(frames as u64, Ordering::Relaxed);
    }

    /// Wakes the agent, if it sleeps or is about to.
    fn ring(&self) {
        // SYNC POINT: mirror-dekker
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::Relaxed) {
            // Fails only when the counter is full, which wakes as well.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// Records that the agent is about to sleep. The agent looks once more after this and a fence.
    pub(super) fn rest(&self) {
        self.is_asleep.store(true, Ordering::Relaxed);
        // SYNC POINT: mirror-dekker
        fence(Ordering::SeqCst);
    }

    /// Exchanges lanes for those of `taken` that the agent has handled. Returns the number before which all records are in `taken`; none
    /// if there is nothing new. A record's number is taken while its lane is held: a number seen before the lane was held is that of a
    /// record in it.
    pub(super) fn take(&self, taken: &mut [Lane; LANES]) -> Option<u64> {
        if !self.is_filled.swap(false, Ordering::Acquire) {
            return None;
        }
        let mut end = self.next_number.load(Ordering::Relaxed);
        for (lane, taken) in self.lanes.iter().zip(taken) {
            if let Some(last) = taken.records.last().filter(|_| taken.next().is_some()) {
                // Later records of the lane come behind these.
                end = end.min(last.number + 1);
                self.is_filled.store(true, Ordering::Relaxed);
                continue;
            }
            taken.clear();
            std::mem::swap(&mut *lane.turn(), taken);
        }
        Some(end)
    }

    pub(super) fn set_watched(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Ordering::Relaxed);
    }

    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    pub(super) fn frames_lost(&self) -> u64 {
        self.frames_lost.load(Ordering::Relaxed)
    }

    pub(super) fn empty_lanes() -> [Lane; LANES] {
        std::array::from_fn(|_| Lane::new())
    }
}

fn lock(lane: &Mutex<Lane>) -> MutexGuard<'_, Lane> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Holds a mover's lane.
    pub fn hold(copies: &Copies, mover: usize) -> MutexGuard<'_, Lane> {
        copies.lanes[mover % LANES].try_fill().expect("a lane that nobody has")
    }

    #[test]
    fn an_agent_that_holds_its_lane_holds_up_no_mover() {
        let copies = Copies::new().unwrap();
        copies.set_watched(true);
        let subject = Subject::new(["10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()]);
        let put = || {
            let of = (&subject, Side::Connecting, Kind::Bytes);
            copies.put(MoverId::new(0), of, [0; 2], [0..1, 0..0], |to, piece| to.extend(piece.map(|_| 7)))
        };
        let held = copies.lanes[0].turn();
        assert_eq!((put(), copies.frames_lost()), (1, 0));
        drop(held);
        let mut taken = Copies::empty_lanes();
        assert_eq!((copies.take(&mut taken), taken[0].records.len()), (Some(1), 1));
        assert_eq!((put(), copies.frames_lost()), (1, 0));
        taken[0].done = 1;
        assert_eq!((copies.take(&mut taken), taken[0].records.len()), (Some(2), 1));
    }

    #[test]
    fn a_sleeping_agent_is_rung_for_once() {
        let copies = Copies::new().unwrap();
        copies.set_watched(true);
        let subject = Subject::new(["10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap()]);
        let put = || {
            let of = (&subject, Side::Connecting, Kind::End);
            copies.put(MoverId::new(0), of, [0; 2], [0..0, 0..0], |_, _| {})
        };
        let rung = || rustix::io::read(&copies.doorbell, &mut [0; 8]).is_ok();
        put();
        assert!(!rung(), "it is awake");
        copies.rest();
        put();
        put();
        assert!(rung());
        put();
        assert!(!rung(), "until it sleeps again");
        let mut taken = Copies::empty_lanes();
        assert_eq!(copies.take(&mut taken), Some(4));
        assert_eq!((taken[0].records.len(), copies.take(&mut taken)), (4, None));
        // An unread record stays, and later ones wait behind it.
        put();
        assert_eq!((copies.take(&mut taken), taken[0].records.len()), (Some(4), 4));
        taken[0].done = 4;
        assert_eq!((copies.take(&mut taken), taken[0].records.len()), (Some(5), 1));
    }
}
