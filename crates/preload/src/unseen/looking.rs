//! Looks for waits that the library does not see, and has connections leave the fabric for them.
use super::{is_found, FIRST_CALLS, FOUND};
use crate::address::is_nonblocking;
use crate::aside::leaving;
use crate::closed;
use crate::entry::{Entry, State};
use crate::fallback_cache::now_ns;
use crate::log::note;
use crate::table;
use crate::twin::Twin;
use libc::c_int;
use pd_client::core::KernelReason;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A process looks without limit until it has spent so much time on that...
const FREE_NS: u64 = 20_000_000;
/// ...and after that for one part of its time in so many.
const PART: u64 = 100;

static SPENT_NS: AtomicU64 = AtomicU64::new(0);
static NEXT_NS: AtomicU64 = AtomicU64::new(0);

/// A call has moved bytes.
#[inline]
pub(crate) fn used(entry: &Arc<Entry>, twin: &Twin) {
    if twin.attention.calls.load(Ordering::Relaxed) < FIRST_CALLS {
        is_waited_for(entry, twin);
    }
}

/// Tells whether somebody waits for the connection where the library does not see it; then it has left the fabric. Asked by calls that
/// find nothing and do not wait, which look again then, and by the first ones that move bytes.
#[cold]
pub(crate) fn is_waited_for(entry: &Arc<Entry>, twin: &Twin) -> bool {
    if twin.names.is_some() || twin.progress().sends() || entry.socket().is_none_or(|it| it.is_watched()) {
        return false;
    }
    // A closed process has no twin that has not left, and may not look.
    if closed::is_closed() || !(is_found() || twin.attention.is_due() && finds(&entry.fds(), is_nonblocking))
    {
        return false;
    }
    leaving::leave(entry, twin, KernelReason::UnseenWait)
}

/// A connection was accepted from a listener.
pub(crate) fn accepted(from: c_int, entry: &Arc<Entry>) {
    let (Some(twin), Some(listener)) = (entry.twin(), table::entry(from)) else { return };
    let Some(socket) = listener.socket() else { return };
    let Some(State::Listener(listening)) = socket.state() else { return };
    let is_seen = || socket.is_watched() || !listening.attention.is_due();
    if is_found() || !is_seen() && finds(&listener.fds(), |_| false) {
        leaving::leave(entry, twin, KernelReason::UnseenWait);
    }
}

/// Looks whether somebody waits for one of these numbers, unless too much time went into that. `suffices`: one that may wait for
/// any number is enough.
fn finds(fds: &[c_int], suffices: impl Fn(c_int) -> bool) -> bool {
    let now = now_ns();
    if SPENT_NS.load(Ordering::Relaxed) > FREE_NS && now < NEXT_NS.load(Ordering::Relaxed) {
        return false;
    }
    let found = unseen_waiter(fds, fds.iter().any(|&fd| suffices(fd)));
    let took = now_ns().saturating_sub(now);
    SPENT_NS.fetch_add(took, Ordering::Relaxed);
    NEXT_NS.store(now + took * PART, Ordering::Relaxed);
    found.into_iter().for_each(is_told);
    found.is_some()
}

/// The process waits by something that the library does not see.
pub(crate) fn is_told(what: &'static str) {
    if !FOUND.swap(true, Ordering::Relaxed) {
        note!("connections of this process are the kernel's from now on: it waits by {what}");
    }
}

/// Returns what may wait, unseen by the library, for one of the numbers, or for `any`.
pub(crate) fn unseen_waiter(fds: &[c_int], any: bool) -> Option<&'static str> {
    let all = std::fs::read_dir("/proc/self/fd").ok()?;
    for name in all.flatten().map(|entry| entry.file_name()) {
        let Some(number) = name.to_str().and_then(|name| name.parse::<c_int>().ok()) else { continue };
        if pd_client::core::is_own(number) || table::epoll(number).is_some() {
            continue;
        }
        let Ok(link) = std::fs::read_link(format!("/proc/self/fd/{number}")) else { continue };
        match link.to_str() {
            Some("anon_inode:[io_uring]") => return Some("an io_uring"),
            Some("anon_inode:[eventpoll]") if any || has_member(number, fds) => {
                return Some("an epoll instance that the library does not know");
            }
            _ => {}
        }
    }
    None
}

/// Returns whether one of the numbers is a member of the kernel's epoll instance.
fn has_member(epoll: c_int, fds: &[c_int]) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{epoll}")) else { return false };
    let members =
        text.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok());
    members.into_iter().any(|member: c_int| fds.contains(&member))
}
