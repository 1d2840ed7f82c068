//! Waiting on one connection, for callers that have to come back when a signal handler is due.
use crate::direct::Noticing;
use crate::socket::Socket;
use crate::turn::SLEEP_MAX;
use std::cell::Cell;
use std::time::Duration;

/// Pause between looks of a wait for more bytes than there is room for.
const FULL_LOOK_EVERY: Duration = Duration::from_millis(1);

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Look again: something happened, or for no reason, or a part of the time is over.
    Look,
    /// A signal handler is due: see [`crate::core::let_run`].
    Signal,
}

fn outcome(signal: &Cell<bool>) -> Pause {
    if signal.get() {
        Pause::Signal
    } else {
        Pause::Look
    }
}

impl Socket {
    /// Sleeps until more than `known` bytes can be received or the stream ends; at most `timeout`, and at most the
    /// time after which one looks for the driver.
    pub fn pause_recv(&self, timeout: Duration, known: u64) -> Pause {
        let signal = Cell::new(false);
        self.rest_recv(timeout, known, Some(Noticing { signal: &signal }));
        outcome(&signal)
    }

    /// [`Self::pause_recv`] for callers to whom signals are nothing.
    pub(crate) fn rest_recv(&self, timeout: Duration, known: u64, noticing: Option<Noticing<'_>>) {
        let mut side = self.recv.lock();
        let (there, end) = side.poll();
        if there > known || end != 0 || side.shut || self.check_usable().is_err() {
            return;
        }
        if known > 0 && side.ring_is_full() {
            drop(side);
            std::thread::sleep(timeout.min(FULL_LOOK_EVERY));
            return;
        }
        let wake_at = side.wake_at() + known;
        if !side.spin_locked(wake_at) {
            drop(self.sleep_for_recv(side, wake_at, timeout.min(SLEEP_MAX), noticing));
        }
    }

    /// Sleeps until there is room to send or nothing can be sent any more; limits as in
    /// [`Self::pause_recv`].
    pub fn pause_send(&self, timeout: Duration) -> Pause {
        let signal = Cell::new(false);
        self.rest_send(timeout, Some(Noticing { signal: &signal }));
        outcome(&signal)
    }

    /// [`Self::pause_send`] for callers to whom signals are nothing.
    pub(crate) fn rest_send(&self, timeout: Duration, noticing: Option<Noticing<'_>>) {
        let mut side = self.send.lock();
        side.reap();
        if !(side.writable() || side.end().is_err() || self.check_usable().is_err()) {
            drop(self.sleep_for_send(side, timeout.min(SLEEP_MAX), noticing));
        }
    }
}
