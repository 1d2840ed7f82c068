//! Waiting on one offloaded connection, for callers that have to come back when a signal handler has run.
use crate::hold::Hold;
use crate::socket::Socket;
use crate::turn::{sleep_in_turn, SLEEP_MAX};
use pd_shm::wait::{SharedCells, SleeperCells};
use std::cell::Cell;
use std::time::Duration;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Look again: something happened, or for no reason, or a part of the time is over.
    Look,
    /// A signal handler has run.
    Signal,
}

struct Noticing<'a> {
    cells: SharedCells<'a>,
    hold: &'a Hold,
    signal: &'a Cell<bool>,
}

impl SleeperCells for Noticing<'_> {
    fn load_doorbell(&self) -> u32 {
        self.cells.load_doorbell()
    }
    fn store_wake_at(&self, value: u64) {
        self.cells.store_wake_at(value);
    }
    fn fence(&self) {
        SleeperCells::fence(&self.cells);
    }
    fn sleep(&self, seen: u32, timeout: Duration) {
        let (map, offset) = self.cells.doorbell;
        self.signal.set(self.hold.release() || map.futex_wait(offset, seen, timeout));
        self.hold.again();
    }
}

fn outcome(signal: &Cell<bool>) -> Pause {
    if signal.get() {
        Pause::Signal
    } else {
        Pause::Look
    }
}

impl Socket {
    /// Sleeps until something can be received or the stream ends; at most `timeout`, and at most the
    /// time after which one looks for the driver. Signals stay held if there is nothing yet.
    pub fn pause_recv(&self, timeout: Duration, hold: &Hold) -> Pause {
        let signal = Cell::new(false);
        let mut side = self.recv.lock();
        let (there, end) = side.poll();
        if there > 0 || end != 0 || side.shut || self.check_usable().is_err() {
            return Pause::Look;
        }
        let wake_at = side.wake_at();
        let link = side.link.clone();
        let cells = Noticing { cells: link.recv_cells(), hold, signal: &signal };
        let limit = timeout.min(SLEEP_MAX);
        let came = || link.recv_producer() >= wake_at || link.recv_end() != 0 || self.check_usable().is_err();
        let (side, timed_out) =
            sleep_in_turn(&self.recv, &self.recv_turn, side, &cells, wake_at, limit, || hold.look(came()));
        if came() {
            hold.end();
        }
        drop(side);
        if timed_out {
            link.attachment.check_alive();
        }
        outcome(&signal)
    }

    /// Sleeps until there is room to send or nothing can be sent any more; limits as in
    /// [`Self::pause_recv`].
    pub fn pause_send(&self, timeout: Duration, hold: &Hold) -> Pause {
        let signal = Cell::new(false);
        let mut side = self.send.lock();
        side.reap();
        if side.writable() || side.end().is_err() || self.check_usable().is_err() {
            return Pause::Look;
        }
        let wake_at = side.wake_at();
        let link = side.link.clone();
        let cells = Noticing { cells: link.send_cells(), hold, signal: &signal };
        let limit = timeout.min(SLEEP_MAX);
        let came = || link.send_consumer() >= wake_at || link.send_end() != 0 || self.check_usable().is_err();
        let (mut side, timed_out) =
            sleep_in_turn(&self.send, &self.send_turn, side, &cells, wake_at, limit, || hold.look(came()));
        if came() {
            hold.end();
        }
        if self.watch.subscribed() {
            // The sleep took back the request for a `Ready` event.
            side.arm();
        }
        drop(side);
        if timed_out {
            link.attachment.check_alive();
        }
        outcome(&signal)
    }

    /// The events of [`crate::core::ready`] that hold now; of `OUT` only if `wanted`.
    pub fn ready(&self, wanted: u32) -> u32 {
        crate::epoll::ready::Source::readiness(self, wanted)
    }
}
