//! Waiting on one connection, for callers that have to come back when a signal handler is due.
use crate::direct::Noticing;
use crate::socket::Socket;
use crate::turn::SLEEP_MAX;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pause between looks of a wait for more bytes than there is room for.
const FULL_LOOK_EVERY: Duration = Duration::from_millis(1);

/// Longest wait for bytes that a previous process has left, in all calls together: the driver brings them at once, unless it has no memory
/// for a ring.
const INHERITED_WITHIN: Duration = Duration::from_secs(2);
/// Time between looks whether it has brought them.
const INHERITED_LOOK_EVERY: Duration = Duration::from_micros(200);

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

    /// Waits until the driver has brought what the process that had a twin before was brought and has not received. For calls that do not
    /// wait: in the kernel those bytes would be there. Waits for nothing that the peer does. Returns whether something can be received.
    pub fn await_inherited(&self) -> bool {
        if !self.inherits.load(Ordering::Relaxed) {
            return false;
        }
        let until = *self.inherits_until.get_or_init(|| Instant::now() + INHERITED_WITHIN);
        let mut before = 0;
        loop {
            let mut side = self.recv.lock();
            // In this order: what is brought before the word changes is seen with it.
            let is_undrained = side.link.is_undrained();
            let (there, end) = side.poll();
            drop(side);
            if !is_undrained || end != 0 || Instant::now() >= until {
                self.inherits.store(false, Ordering::Relaxed);
                return there > 0 || end != 0;
            }
            if there > 0 && there == before {
                // The ring may be full.
                return true;
            }
            before = there;
            self.rest_recv(INHERITED_LOOK_EVERY, there, None);
        }
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
