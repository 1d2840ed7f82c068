//! Ends of which the program may know before the driver has told them ([`crate::hearsay`]).
use super::Twin;
use crate::call::aside;
use crate::closed;
use crate::entry::Entry;
use crate::hearsay::news;
use crate::real;
use libc::{c_int, pollfd};
use pd_client::core::{has_pairs, sleep_for, spend, Occasion};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest wait for the driver's word. The driver learns of a process that has died from its thread for that.
const WITHIN: Duration = Duration::from_millis(5);
/// Time until the second look for it. The time doubles with each look: the driver's threads need a core, too.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

impl Twin {
    /// Looks whether the peer has gone, if the program may have learned that, or has closed the other end itself. Returns whether the driver
    /// may have told an end meanwhile.
    #[inline]
    pub(crate) fn hear(&self, entry: &Arc<Entry>) -> bool {
        let news = news();
        let is_new = self.heard.news.load(Ordering::Relaxed) != news;
        has_pairs() && self.hear_of_pair() || is_new && self.ask_kernel(entry, news)
    }

    fn hear_of_pair(&self) -> bool {
        self.current().is_some_and(|end| end.has_news_of_pair()) && self.catch_up(Occasion::Frequent)
    }

    #[cold]
    fn ask_kernel(&self, entry: &Arc<Entry>, news: u32) -> bool {
        if closed::is_closed() {
            return false;
        }
        let (Some(end), Some(fd), None) = (self.current(), entry.any_fd(), &self.names) else { return false };
        let Some(ends) = spend(Occasion::Frequent, || ends_of(fd)) else { return false };
        self.heard.news.store(news, Ordering::Relaxed);
        if self.waits_for_claim() || self.heard.ends.swap(ends, Ordering::Relaxed) == ends {
            return false;
        }
        // A peer of AF_UNIX that has gone takes nothing more, either.
        let both = self.unix && ends & c_int::from(libc::POLLHUP) != 0;
        let has_told = || {
            let [receiving, sending] = end.ends().map(|end| end != 0);
            if both {
                // The end comes behind the bytes.
                sending && (receiving || end.received() > 0)
            } else {
                sending || receiving
            }
        };
        if has_told() {
            return false;
        }
        // Once for each end, so it needs no limit.
        let (until, mut pause) = (Instant::now() + WITHIN, LOOK_AGAIN);
        loop {
            end.sync();
            if has_told() {
                return true;
            }
            if Instant::now() >= until || sleep_for(pause) {
                return false;
            }
            pause *= 2;
        }
    }
}

/// Returns what the kernel's socket tells of its peer's end.
fn ends_of(fd: c_int) -> c_int {
    const ENDS: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let mut poll = pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    aside(|| {
        // SAFETY: polls one descriptor.
        let _ = unsafe { real::poll(&mut poll, 1, 0) };
    });
    c_int::from(poll.revents & ENDS)
}
