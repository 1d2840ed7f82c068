//! Counts of the bytes that calls move in the kernel: how far the two streams are, and which calls are under way there
//! ([`crate::away`]).
use libc::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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

/// Positions in the kernel's streams since each side's mark, and calls that are under way there.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sent: AtomicU64,
    received: AtomicU64,
    /// Receives that found little.
    small: AtomicU64,
    /// Calls under way; [`CLOSED`]: none begins.
    inside: AtomicU32,
}

const CLOSED: u32 = 1 << 31;

impl Counts {
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// Receives that found little.
    pub(crate) fn small(&self) -> u64 {
        self.small.load(Ordering::Relaxed)
    }

    /// A receive has found little.
    pub(crate) fn add_small(&self) {
        self.small.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, what: Moves, bytes: usize) {
        match what {
            Moves::Sends => self.sent.fetch_add(bytes as u64, Ordering::AcqRel),
            Moves::Receives => self.received.fetch_add(bytes as u64, Ordering::AcqRel),
            Moves::Nothing | Moves::Urgent => 0,
        };
    }

    /// A call begins, as soon as calls may.
    pub(crate) fn enter(&self) {
        while self.inside.fetch_add(1, Ordering::SeqCst) & CLOSED != 0 {
            self.leave();
            pd_client::core::yield_now();
        }
    }

    /// Ends the call.
    pub(crate) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    /// Has no call begin. False: one is under way.
    pub(crate) fn close(&self) -> bool {
        self.inside.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn open(&self) {
        self.inside.fetch_sub(CLOSED, Ordering::SeqCst);
    }
}
