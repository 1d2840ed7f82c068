//! Counts of the bytes that calls move in the kernel: how far the two streams are, and which calls are under way there
//! ([`crate::away`]).
use libc::c_int;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// Direction in which a call moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    Sends,
    Receives,
    /// The call peeks, or moves bytes beside the stream.
    Nothing,
    /// Urgent bytes.
    Urgent,
}

impl Moves {
    /// A send with these flags.
    pub(crate) fn sends(flags: c_int) -> Self {
        if flags & libc::MSG_OOB != 0 {
            Self::Urgent
        } else {
            Self::Sends
        }
    }

    /// A receive with these flags.
    pub(crate) fn receives(flags: c_int) -> Self {
        if flags & libc::MSG_OOB != 0 {
            Self::Urgent
        } else if flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) != 0 {
            Self::Nothing
        } else {
            Self::Receives
        }
    }
}

/// Positions in the kernel's streams since each side's mark, and calls that are under way there. One line, for each call on a
/// connection that is away touches it.
///
/// The memory of one is another connection's afterwards, and never anything else: a call enters by a pointer that it has read without holding
/// anything, and looks again whether it still is the connection's ([`crate::table::enter_away`]).
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    /// Bytes both ways at which the connection is to be looked at.
    due: AtomicU64,
    /// Calls under way, and receives that found little, in units of [`SMALL`]. With [`CLOSED`] no call begins.
    calls: AtomicU64,
}

const CLOSED: u64 = 1 << 31;
const SMALL: u64 = 1 << 32;
/// Calls under way, and [`CLOSED`].
const INSIDE: u64 = SMALL - 1;

impl Counts {
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// Bytes both ways.
    pub(crate) fn carried(&self) -> u64 {
        self.sent() + self.received()
    }

    /// Receives that found little, modulo 2 to the 32nd.
    pub(crate) fn small(&self) -> u32 {
        (self.calls.load(Ordering::Relaxed) / SMALL) as u32
    }

    /// Has the connection be looked at when it has carried so many bytes.
    pub(crate) fn set_due(&self, at: u64) {
        self.due.store(at, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn add(&self, what: Moves, bytes: usize) {
        match what {
            Moves::Sends => self.sent.fetch_add(bytes as u64, Ordering::AcqRel),
            Moves::Receives => self.received.fetch_add(bytes as u64, Ordering::AcqRel),
            Moves::Nothing | Moves::Urgent => 0,
        };
    }

    /// A call begins, as soon as calls may.
    #[inline]
    pub(crate) fn enter(&self) {
        while self.calls.fetch_add(1, Ordering::SeqCst) & CLOSED != 0 {
            self.leave();
            pd_client::core::yield_now();
        }
    }

    /// Ends the call.
    #[inline]
    pub(crate) fn leave(&self) {
        self.calls.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends a call that has moved bytes: a receive of less than `little` found little.
    /// Returns whether the connection is to be looked at.
    #[inline]
    pub(crate) fn leave_with(&self, what: Moves, moved: i64, little: i64) -> bool {
        if moved > 0 {
            self.add(what, moved as usize);
        }
        let is_due = self.carried() >= self.due.load(Ordering::Relaxed);
        let small = if what == Moves::Receives && moved < little { SMALL } else { 0 };
        self.calls.fetch_add(small.wrapping_sub(1), Ordering::SeqCst);
        is_due
    }

    /// Has no call begin. False: one is under way.
    pub(crate) fn close(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        calls & INSIDE == 0
            && self.calls.compare_exchange(calls, calls | CLOSED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn open(&self) {
        self.calls.fetch_sub(CLOSED, Ordering::SeqCst);
    }
}

/// Counts that no connection has.
static FREE: Mutex<Vec<&'static Counts>> = Mutex::new(Vec::new());

/// Counts of a connection, until it drops them.
#[derive(Debug)]
pub(crate) struct OwnCounts(&'static Counts);

impl Default for OwnCounts {
    fn default() -> Self {
        let free = FREE.try_lock().ok().and_then(|mut free| free.pop());
        Self(free.unwrap_or_else(|| Box::leak(Box::default())))
    }
}

impl OwnCounts {
    /// Returns the counts for a call that holds nothing.
    pub(crate) fn get(&self) -> &'static Counts {
        self.0
    }
}

impl Deref for OwnCounts {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        self.0
    }
}

impl Drop for OwnCounts {
    fn drop(&mut self) {
        let Self(counts) = self;
        for word in [&counts.sent, &counts.received, &counts.due] {
            word.store(0, Ordering::Relaxed);
        }
        // A late call may enter and leave meanwhile. A call that was left by a jump never leaves: its connection's counts are nobody's then. A
        // forked child may find the list locked for good.
        let is_left = counts.calls.fetch_and(INSIDE, Ordering::SeqCst) & INSIDE == 0;
        if let (true, Ok(mut free)) = (is_left, FREE.try_lock()) {
            free.push(counts);
        }
    }
}
