//! Connections whose peer has not yet been seen on the fabric. The peer may have accepted in a way that
//! nothing can hook; then what was sent goes over TCP after all, as if there had never been a twin. So
//! what is sent before the peer is there is kept.
pub(crate) mod settling;
pub(crate) mod watch;

use crate::address;
use libc::{c_int, iovec};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between looks of a wait.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Time between looks of a wait for room, which ends by a look only.
pub(crate) const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_micros(100);
/// Most that is kept, and hence sent, before the peer is there; less if the kernel's socket has a smaller buffer.
const KEPT_BYTES_MAX: usize = 96 << 10;
/// A TCP receiver's first window, which takes bytes that nobody has read yet.
const WINDOW_BYTES: usize = 48 << 10;

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Bytes kept for one connection.
#[derive(Debug)]
pub(crate) struct PendingClaim {
    since: Instant,
    sent: Vec<u8>,
    most: usize,
}

impl PendingClaim {
    /// Of the connection of `fd`. As much is kept as the kernel takes at once: nobody may have to wait, in a call that was to
    /// receive perhaps, until the peer reads. Of AF_UNIX it is half the buffer, which has to hold what the kernel adds as
    /// well; TCP has two, and what one of them has no room for travels to the other.
    pub(crate) fn new(fd: c_int, unix: bool) -> Self {
        let buffer = address::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0).max(2) as usize;
        let most = if unix { buffer / 2 } else { buffer + WINDOW_BYTES };
        Self { since: Instant::now(), sent: Vec::new(), most: most.min(KEPT_BYTES_MAX) }
    }

    /// Bytes that may still be sent.
    pub(crate) fn room(&self) -> usize {
        self.most - self.sent.len()
    }

    pub(crate) fn keep(&mut self, pieces: &[iovec], mut bytes: usize) {
        for piece in pieces {
            let part = bytes.min(piece.iov_len);
            if part == 0 {
                // Such a piece may point nowhere.
                continue;
            }
            // SAFETY: the caller has sent from this memory just now.
            self.sent
                .extend_from_slice(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), part) });
            bytes -= part;
            if bytes == 0 {
                break;
            }
        }
    }
}

/// Returns whether no more than one connection of the process is in this state.
pub(crate) fn is_alone() -> bool {
    COUNT.load(Ordering::Relaxed) <= 1
}

/// Returns whether any connection of the process is in this state: then waits are cut short.
#[inline]
pub(crate) fn any_pending() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}
