//! A listener: the kernel's, of which the driver knows, and the fabric's part of it in the mode for short connections.
//!
//! The fabric's part begins when the process has accepted and accepts again: a process that leaves accepting to others takes none,
//! and one that forks for each connection is known by then. The driver gives a connection to one of the processes that share a listener,
//! and it waits there until that process accepts. So such a process takes connections from when it has accepted one while it had
//! another: it does not serve one after the other.
//!
//! In a network of the policy's the fabric's part begins when the process listens, or uses a listener that it has inherited. Until the above
//! holds it takes connections of other networks alone, which the kernel cannot bring.
use super::{Entry, State};
use crate::call::lock;
use crate::short::{may_listen, open_to_new, take_of_other_networks};
use crate::unseen::Attention;
use crate::{confined, fabric, unseen};
use arc_swap::ArcSwapOption;
use libc::c_int;
use pd_client::core::{Socket, Takes};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// One accept in so many looks at the kernel's listener first.
const KERNEL_EVERY: u32 = 16;

/// Listeners of the process that are paused.
static PAUSED: AtomicU32 = AtomicU32::new(0);

/// A listener. It is the kernel's; the fabric knows of it.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    /// The driver has been told by this process.
    joined: AtomicBool,
    /// The driver has refused that. Another process may register the same socket, so that twins may come all the same.
    refused: AtomicBool,
    /// Tells whether anybody is seen to wait for it.
    pub(crate) attention: Attention,
    /// The fabric's own part of it.
    pub(crate) short: Listening,
}

/// The fabric's part of a listener.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    end: ArcSwapOption<Socket>,
    opening: Mutex<()>,
    /// The connections that the fabric's end takes, as the driver was told.
    takes: Mutex<Takes>,
    /// The listener takes no connections until it is used again.
    paused: AtomicBool,
    /// The listener is in a network of the policy's.
    in_a_network: AtomicBool,
    /// The process accepts from it, or waits for it.
    used: AtomicBool,
    /// Waits on it would go past the library, or it is shut down.
    barred: AtomicBool,
    /// Other processes may have it, too, for there was a fork.
    shared: AtomicBool,
    /// The process has accepted a connection of a process with the library.
    accepted: AtomicBool,
    /// The process has accepted a connection while it had another.
    multiplexes: AtomicBool,
    /// The connection that was accepted last.
    last: Mutex<Weak<Entry>>,
    backlog: AtomicU32,
    v6: AtomicBool,
    recv_timeout_ns: AtomicU64,
    accepts: AtomicU32,
}

impl Listener {
    /// In a forked child.
    pub(crate) fn again(&self, watched: bool) -> Self {
        Self { short: self.short.again(watched), ..Self::default() }
    }

    /// Tells the driver, once in each process. Without a driver it is tried again with later calls. Says whether what is accepted
    /// may have a twin.
    pub(super) fn join(&self, fd: c_int) -> bool {
        let joined = self.joined.load(Ordering::Relaxed);
        if unseen::is_found() || confined::is_barren() {
            if joined {
                self.joined.store(false, Ordering::Relaxed);
                fabric::unlisten(fd);
            }
            // Some may have been made towards it.
            return true;
        }
        if !joined {
            let (joined, refused) = match fabric::listen(fd) {
                Ok(listening) => {
                    if listening.is_some_and(|listening| listening.in_a_network) {
                        self.short.in_a_network.store(true, Ordering::Relaxed);
                        take_of_other_networks();
                    }
                    (listening.is_some(), false)
                }
                Err(_) => (false, true),
            };
            self.joined.store(joined, Ordering::Relaxed);
            self.refused.store(refused, Ordering::Relaxed);
        }
        self.joined.load(Ordering::Relaxed) || self.refused.load(Ordering::Relaxed)
    }

    /// Returns whether the driver has refused that, and this process may not register it.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Listening {
    /// The program has said how many may wait.
    pub(crate) fn set_backlog(&self, backlog: c_int) {
        self.backlog.store(backlog.max(0) as u32, Ordering::Relaxed);
    }

    /// For a forked child, which inherits the kernel's listener. The parent's registrations are not its own.
    pub(crate) fn again(&self, watched: bool) -> Self {
        Self {
            backlog: AtomicU32::new(self.backlog.load(Ordering::Relaxed)),
            barred: AtomicBool::new(watched || self.barred.load(Ordering::Relaxed)),
            shared: AtomicBool::new(true),
            in_a_network: AtomicBool::new(self.in_a_network.load(Ordering::Relaxed)),
            ..Self::default()
        }
    }

    /// Stays with the kernel.
    pub(crate) fn bar(&self) {
        self.keep_shut();
        self.close();
    }

    /// Returns whether it stays with the kernel. A thread that has just set the end, and finds false, leaves the end to [`bar`](Self::bar).
    pub(crate) fn is_barred(&self) -> bool {
        self.barred.load(Ordering::SeqCst)
    }

    /// The last descriptor is closed.
    pub(crate) fn close(&self) {
        if let Some(end) = self.end.swap(None) {
            let _ = end.close();
        }
        self.count_paused(false);
    }

    /// Before a fork: nobody knows which of the two processes will accept.
    pub(crate) fn pause(&self) {
        self.shared.store(true, Ordering::Relaxed);
        let Some(end) = self.end.load_full() else { return };
        // Where this process accepts, no other is needed for what the kernel cannot bring.
        let takes = match self.in_a_network.load(Ordering::Relaxed) && self.used.load(Ordering::Relaxed) {
            true => Takes::OtherNetworks,
            false => Takes::None,
        };
        self.take(&end, takes);
    }

    /// This process uses it.
    fn resume(&self, end: &Arc<Socket>) {
        let takes = self.may_take();
        if takes != Takes::None {
            self.take(end, takes);
        }
    }

    /// Tells the driver, if it is news.
    fn take(&self, end: &Arc<Socket>, takes: Takes) {
        let mut told = lock(&self.takes);
        if *told != takes {
            *told = takes;
            drop(told);
            self.count_paused(takes == Takes::None);
            if end.set_takes(takes).is_err() {
                self.close();
            }
        }
    }

    fn count_paused(&self, paused: bool) {
        if self.paused.swap(paused, Ordering::Relaxed) != paused {
            match paused {
                true => PAUSED.fetch_add(1, Ordering::Relaxed),
                false => PAUSED.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    /// Records that this process accepts from the listener, or waits for it.
    pub(crate) fn is_used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// A connection is accepted, by the kernel or on the fabric alone.
    pub(crate) fn has_accepted(&self, accepted: &Arc<Entry>) {
        if !self.multiplexes.load(Ordering::Relaxed) {
            *lock(&self.last) = Arc::downgrade(accepted);
            self.accepted.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the connections that may wait for this process.
    pub(crate) fn may_take(&self) -> Takes {
        match open_to_new() && self.may_take_all() {
            true => Takes::All,
            false if self.in_a_network.load(Ordering::Relaxed) => Takes::OtherNetworks,
            false => Takes::None,
        }
    }

    fn may_take_all(&self) -> bool {
        if self.multiplexes.load(Ordering::Relaxed) {
            return true;
        }
        if !self.shared.load(Ordering::Relaxed) {
            return self.accepted.load(Ordering::Relaxed);
        }
        let has_another = lock(&self.last).upgrade().is_some_and(|last| last.any_fd().is_some());
        self.multiplexes.store(has_another, Ordering::Relaxed);
        has_another
    }

    /// The fabric's end, if it is open.
    pub(crate) fn opened(&self) -> Option<Arc<Socket>> {
        let end = self.end.load_full()?;
        if self.paused.load(Ordering::Relaxed) || self.in_a_network.load(Ordering::Relaxed) {
            self.resume(&end);
        }
        Some(end)
    }

    /// The fabric's end, if there is one, in use or not.
    pub(crate) fn current(&self) -> Option<Arc<Socket>> {
        self.end.load_full()
    }

    /// Returns whether the fabric's end may be opened.
    pub(crate) fn may_open(&self) -> bool {
        !self.is_barred() && self.may_take() != Takes::None
    }

    /// One thread at a time opens it, or accepts from the kernel.
    pub(crate) fn in_turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.opening)
    }

    /// The fabric's end is not to be opened.
    pub(crate) fn keep_shut(&self) {
        self.barred.store(true, Ordering::SeqCst);
    }

    /// The fabric's end, for a listener with this time-out for receiving, which accepted sockets inherit.
    pub(crate) fn set_end(&self, end: &Arc<Socket>, takes: Takes, v6: bool, recv_timeout_ns: u64) {
        *lock(&self.takes) = takes;
        self.v6.store(v6, Ordering::Relaxed);
        self.recv_timeout_ns.store(recv_timeout_ns, Ordering::Relaxed);
        self.end.store(Some(end.clone()));
    }

    /// Returns how many connections may wait, as the program has said.
    pub(crate) fn backlog(&self) -> u32 {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Returns whether it is an IPv6 socket.
    pub(crate) fn is_v6(&self) -> bool {
        self.v6.load(Ordering::Relaxed)
    }

    /// The time-out for receiving that accepted sockets inherit.
    pub(crate) fn recv_timeout_ns(&self) -> u64 {
        self.recv_timeout_ns.load(Ordering::Relaxed)
    }

    /// Counts an accept. True: it is to look at the kernel's listener first.
    pub(crate) fn is_kernels_turn(&self) -> bool {
        self.accepts.fetch_add(1, Ordering::Relaxed) % KERNEL_EVERY == KERNEL_EVERY - 1
    }
}

/// Listeners in an epoll instance that is waited for are in use again.
#[inline]
pub(crate) fn resume(members: impl FnOnce() -> Vec<Arc<Entry>>) {
    if PAUSED.load(Ordering::Relaxed) == 0 {
        return;
    }
    for entry in members() {
        if let Some(State::Listener(listener)) = entry.socket().and_then(|socket| socket.state()) {
            if let Some(end) = listener.short.end.load_full() {
                listener.short.resume(&end);
            }
        }
    }
}

/// The fabric end of a listener, for waits.
pub(crate) fn listening(entry: &Arc<Entry>) -> Option<Arc<Socket>> {
    if !may_listen() {
        return None;
    }
    match entry.socket()?.state()? {
        State::Listener(listener) => {
            listener.short.is_used();
            listener.short.opened()
        }
        State::Twin(_) => None,
    }
}
