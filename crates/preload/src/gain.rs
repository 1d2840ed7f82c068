//! Connections to which the fabric is no gain: small messages, for each of which a thread sleeps. The kernel wakes such a thread
//! within the send. So a connection whose thread sleeps that often goes on in the kernel ([`crate::aside`]):
//!
//! - On the direct path those of AF_UNIX whose thread sleeps in `epoll_wait`, `poll` or `select`, for which the peer makes a
//!   system call, and the thread one more. TCP keeps them: its way through the stack takes longer than that.
//! - On the offloaded path all, for there the driver is woken before the thread is. The driver refuses where the policy has it move
//!   the bytes.
use crate::call::lock;
use libc::c_long;
use pd_client::core::{sleeps_for_driver, Socket};
use pd_client::Path;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;

/// Calls that find nothing, for one look.
const CALLS: u32 = 16;
/// A wake-up costs as much as the kernel's copies of so many bytes.
const SMALL_BYTES: u64 = 16 << 10;
/// Poor looks in a row after which the connection leaves. A connection that the driver keeps asks after twice as many again. The direct path
/// is no gain either to AF_UNIX in `epoll_wait`, so such a connection leaves before it gets rings for it, which cost more than a thousand messages.
const POOR_LOOKS: u32 = 3;
const POOR_LOOKS_ANYWHERE: u32 = 2;

thread_local! {
    /// Calls of the thread that found nothing, on all its connections.
    static FOUND_NOTHING: Cell<u32> = const { Cell::new(0) };
}

/// Counts of one connection.
#[derive(Debug, Default)]
pub(crate) struct Gain {
    /// Calls that found nothing.
    calls: AtomicU32,
    last: Mutex<Look>,
}

/// The last look at it.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    thread: libc::pid_t,
    /// Calls of the thread that found nothing, on all its connections.
    calls: u32,
    /// Sleeps of the thread since it began.
    sleeps: c_long,
    /// Sleeps of the process until the driver had caught up. They are not the program's.
    for_driver: u32,
    /// Bytes of the connection, both ways.
    bytes: u64,
    poor: u32,
}

impl Look {
    /// Look of the calling thread at a connection that has carried `bytes`. None if the kernel does not tell.
    fn new(bytes: u64) -> Option<Self> {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: the kernel fills the structure, or says that it has not.
        let usage = unsafe {
            if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
                return None;
            }
            usage.assume_init()
        };
        // SAFETY: only asks.
        let thread = unsafe { libc::gettid() };
        let calls = FOUND_NOTHING.try_with(Cell::get).ok()?;
        Some(Self { thread, calls, sleeps: usage.ru_nvcsw, for_driver: sleeps_for_driver(), bytes, poor: 0 })
    }

    /// Poor looks in a row, up to this one.
    fn after(self, last: Self) -> u32 {
        let for_driver = c_long::from(self.for_driver.wrapping_sub(last.for_driver));
        // Of a thread with many connections each sleep is for several of them.
        let calls = c_long::from(self.calls.wrapping_sub(last.calls).max(CALLS));
        let slept = self.sleeps - last.sleeps - for_driver >= calls / 2;
        let small = self.bytes.saturating_sub(last.bytes) < u64::from(CALLS) * SMALL_BYTES;
        if self.thread == last.thread && slept && small {
            last.poor.saturating_add(1)
        } else {
            0
        }
    }
}

impl Gain {
    /// Notes a call that has found nothing. True: it is time to look.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        // A thread that ends has no count any more. It makes no talk either.
        let _ = FOUND_NOTHING.try_with(|calls| calls.set(calls.get().wrapping_add(1)));
        self.calls.fetch_add(1, Ordering::Relaxed) % CALLS == CALLS - 1
    }

    /// Looks at a connection with the fabric end `end` after a call that has found nothing; `waits`: that call does. True: it had
    /// better be the kernel's.
    #[cold]
    pub(crate) fn is_poor(&self, end: &Socket, waits: bool, unix: bool) -> bool {
        let is_poor_anywhere = unix && !waits;
        if end.path() == Path::Direct && !is_poor_anywhere {
            return false;
        }
        let Some(look) = Look::new(end.carried().1) else { return false };
        let mut last = lock(&self.last);
        *last = Look { poor: look.after(*last), ..look };
        let looks = if is_poor_anywhere { POOR_LOOKS_ANYWHERE } else { POOR_LOOKS };
        last.poor % looks == 0 && (last.poor / looks).is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_count_for_all_connections_of_a_thread() {
        let last = Look { thread: 1, calls: u32::MAX - 8, poor: 3, ..Look::default() };
        let look =
            |calls: u32, sleeps| Look { calls: last.calls.wrapping_add(calls), sleeps, poor: 0, ..last };
        assert_eq!(look(16, 8).after(last), 4, "one connection, half of whose calls sleep");
        assert_eq!(look(16, 7).after(last), 0, "one connection, most of whose calls do not");
        assert_eq!(look(160, 79).after(last), 0, "ten connections, and a sleep for several of them");
        assert_eq!(look(160, 80).after(last), 4, "ten connections that take turns");
        assert_eq!(look(2, 7).after(last), 0, "another thread has made the other calls");
        assert_eq!(Look { for_driver: 1, ..look(16, 8) }.after(last), 0, "a sleep that was for the driver");
        assert_eq!(Look { thread: 2, ..look(16, 16) }.after(last), 0, "another thread");
        assert_eq!(Look { bytes: 1 << 20, ..look(16, 16) }.after(last), 0, "bulk");
    }
}
