//! Waiting until the driver has brought what others had asked for before (`Operation::Sync`).
use super::Channel;
use pd_abi::layout::{channel_control, channel_status};
use pd_abi::Request;
use pd_shm::wait::{self, SleeperCells};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time between looks of a thread that waits for a sync beside another one.
const SYNC_LOOK_EVERY: Duration = Duration::from_micros(50);

impl Channel {
    /// Waits at most `limit` until the driver has carried out `request`, a sync. Returns whether it has. Calls `slept` before each sleep. No event
    /// tells of the end, so that no other sleeper wakes.
    pub(crate) fn sync(&self, request: Request, limit: Duration, slept: impl Fn()) -> bool {
        let until = Instant::now() + limit;
        let number = {
            let mut inner = self.inner.lock();
            let number = inner.syncs + 1;
            if inner.requests.write(request.with_numbers(number, 0)) != Ok(true) {
                return false;
            }
            inner.syncs = number;
            self.publish(&mut inner);
            number
        };
        self.note_cores();
        let cells = Noted {
            cells: wait::SharedCells {
                wake_at: (&self.control, self.at + channel_control::SYNC_WAKE_AT),
                doorbell: (&self.status, self.at + channel_status::SYNC_DOORBELL),
            },
            slept: &slept,
        };
        let is_done = || self.status.load_u64(self.at + channel_status::SYNCED, Ordering::Acquire) >= number;
        while !is_done() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // One thread at a time asks to be woken.
            match self.sync_spin.try_lock() {
                Ok(mut spin) => wait::sleep(&cells, number, &mut spin, left, is_done),
                Err(_) => {
                    slept();
                    std::thread::sleep(left.min(SYNC_LOOK_EVERY));
                }
            }
        }
        true
    }
}

/// Words of a sleep that is noted.
struct Noted<'a, C, F> {
    cells: C,
    slept: &'a F,
}

impl<C: SleeperCells, F: Fn()> SleeperCells for Noted<'_, C, F> {
    fn load_doorbell(&self) -> u32 {
        self.cells.load_doorbell()
    }
    fn store_wake_at(&self, value: u64) {
        self.cells.store_wake_at(value);
    }
    fn fence(&self) {
        self.cells.fence();
    }
    fn sleep(&self, seen: u32, timeout: Duration) {
        (self.slept)();
        self.cells.sleep(seen, timeout);
    }
}
