//! Leaving the fabric: a connection that both ends have taken up goes on in the kernel's connection beside it, at any
//! time, in both directions and without loss.
//!
//! The side that leaves tells the driver ([`pd_client::core::Socket::step_aside`]), which ends its stream on the fabric. The peer
//! learns, before its next send is over, that it shall leave, too. Each side then sends a *mark* of one byte over the kernel's
//! connection, and all later bytes behind the mark. The receiver reads the fabric's stream to its end, takes the mark off the
//! kernel's, and goes on there. The mark is more than a boundary: it makes the kernel's socket readable, so that a thread that
//! waits there in ways that the library cannot see comes and reads what lies on the fabric. Where no thread does, the side that
//! follows sends none ([`leaving`]).
//!
//! The driver's answer says up to where bytes still come that the peer had sent before it could know. A side that has left waits
//! for those, and answers `EAGAIN` only when everything later comes by the kernel, mark first.
//!
//! This file holds the progress of a connection; the steps are in the files of this folder.
mod declining;
pub(crate) mod ending;
pub(crate) mod leaving;
mod mark;
pub(crate) mod receiving;

use crate::call::{lock, Failure};
use crate::counts::OwnCounts;
use pd_client::core::ELSEWHERE;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// This side sends in the kernel.
const SENDS: u32 = 1;
/// The peer's mark has been taken off.
const MARKED: u32 = 2;
/// This side receives in the kernel, too.
const OVER: u32 = 4;
/// The peer sends no mark.
const UNMARKED: u32 = 8;

/// Progress of a connection into the kernel.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    /// One thread at a time has it leave.
    leaving: Mutex<()>,
    /// One thread at a time takes the mark off: the byte after it is the program's.
    marking: Mutex<()>,
    /// Errno for which the mark cannot be taken off, which the kernel reports once; 0: none; or [`FAILURE_TOLD`].
    failed: AtomicI32,
    /// The last number is being closed: what the connection would still send could go to another descriptor.
    closed: AtomicBool,
    /// This side may come back, and so may the peer.
    may_return: [AtomicBool; 2],
    /// Bytes over the kernel since the marks.
    pub(crate) counts: Arc<OwnCounts>,
    pub(crate) progress: Progress,
}

impl Aside {
    /// Has no other thread use the kernel's descriptor for a departure, until the result is dropped.
    pub(crate) fn pause(&self) -> [MutexGuard<'_, ()>; 2] {
        [lock(&self.leaving), lock(&self.marking)]
    }

    /// Waits for a thread that has the connection leave.
    fn await_departure(&self) {
        drop(lock(&self.leaving));
    }

    /// The kernel's descriptor is about to be closed. A thread that has the connection leave is waited for.
    pub(crate) fn closes(&self) {
        let _paused = self.pause();
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Returns whether the kernel's descriptor is closed, or about to be. For a thread that has the connection leave.
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// Progress of a connection into the kernel, for all processes that hold it.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Progress {
    /// Up to which position bytes come on the fabric, whatever the peer does.
    owed: AtomicU64,
    done: AtomicU32,
}

impl Progress {
    fn has(&self, what: u32) -> bool {
        self.done.load(Ordering::Acquire) & what != 0
    }

    fn set(&self, what: u32) {
        self.done.fetch_or(what, Ordering::AcqRel);
    }

    /// Returns whether this side sends over the kernel.
    #[inline]
    pub(crate) fn sends(&self) -> bool {
        self.has(SENDS)
    }

    /// Nothing of it is the fabric's any more.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.has(OVER)
    }

    /// Another process has had it go on in the kernel, in both directions, and has taken the mark off.
    pub(crate) fn is_over_elsewhere(&self) {
        self.set(SENDS | MARKED | OVER);
    }

    /// Position up to which the driver brings what the peer has sent, if this side has left or is about to; 0 else.
    pub(crate) fn owed(&self) -> u64 {
        self.owed.load(Ordering::Relaxed)
    }

    /// Becomes another's.
    pub(crate) fn copy(&self, other: &Self) {
        self.owed.store(other.owed(), Ordering::Relaxed);
        self.done.store(other.done.load(Ordering::Relaxed), Ordering::Release);
    }
}

/// Returns whether the fabric says that the connection goes on in the kernel.
pub(crate) fn is_elsewhere(failure: Failure) -> bool {
    failure == Failure::Errno(ELSEWHERE)
}

/// The mark could not be taken off, and the program was told why.
const FAILURE_TOLD: i32 = -1;

/// Returns whether a send failed because the process has no memory or numbers left, or the driver has none for it.
pub(crate) fn lacks_means(failure: Failure) -> bool {
    let lacking = [libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::ENFILE];
    matches!(failure, Failure::Errno(errno) if lacking.contains(&errno))
}
