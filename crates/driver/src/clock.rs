//! Time as the driver sees it, passed in so that tests can set it.
use rustix::time::{clock_gettime, ClockId};
use std::time::Duration;

/// A monotonic clock.
pub trait Clock: Send + Sync {
    /// Returns the time since some fixed moment.
    fn now(&self) -> Duration;

    /// Returns the processor time of the calling thread. A clock of tests returns [`Self::now`].
    fn thread_time(&self) -> Duration {
        self.now()
    }
}

/// The machine's clock. Its times mean the same to all drivers, and to the kernel's programs.
#[derive(Debug, Default)]
pub struct SystemClock(());

fn time(of: ClockId) -> Duration {
    let time = clock_gettime(of);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        time(ClockId::Monotonic)
    }

    fn thread_time(&self) -> Duration {
        time(ClockId::ThreadCPUTime)
    }
}
