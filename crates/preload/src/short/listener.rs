//! Listeners that take connections from the kernel and from the fabric, on one address. The fabric's part
//! begins when the process has accepted and accepts again: a process that waits, and leaves accepting to others, takes none, and one
//! that forks for each connection is known by then.
//!
//! The driver gives a connection to one of the processes that share a listener, and it waits there until that process accepts. So
//! such a process takes connections from when it has accepted one while it had another: it does not serve one after the other.
use super::{open_to_new, Names, Spare};
use crate::call::{errno, interrupts, lock, Failure, Outcome, AGAIN};
use crate::entry::{self, Entry, State};
use crate::file_lock::FileLock;
use crate::log::note;
use crate::sleep::sleep_on;
use crate::twin::Twin;
use crate::unseen::looking;
use crate::{address, epoll_set, fabric, real, table};
use arc_swap::ArcSwapOption;
use libc::{c_int, sockaddr, socklen_t};
use pd_client::core::{ready, Socket};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Of connections that wait to be accepted there are at least so many, for who finds no room goes to the
/// kernel for a while.
const BACKLOG_MIN: u32 = 128;
/// One accept in so many looks at the kernel's listener first.
const KERNEL_EVERY: u32 = 16;
/// Looks before a sleep.
const SPINS: u32 = 20;

/// Listeners of the process that are paused.
static PAUSED: AtomicU32 = AtomicU32::new(0);

/// The fabric's part of a listener.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    end: ArcSwapOption<Socket>,
    opening: Mutex<()>,
    /// Takes no new connections until it is used again.
    paused: AtomicBool,
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
            ..Self::default()
        }
    }

    /// It stays with the kernel.
    pub(crate) fn bar(&self) {
        self.barred.store(true, Ordering::Relaxed);
        self.close();
    }

    /// The last descriptor is closed.
    pub(crate) fn close(&self) {
        if let Some(end) = self.end.swap(None) {
            let _ = end.close();
        }
        if self.paused.swap(false, Ordering::Relaxed) {
            PAUSED.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Before a fork: nobody knows which of the two processes will accept.
    pub(super) fn pause(&self) {
        self.shared.store(true, Ordering::Relaxed);
        let Some(end) = self.end.load_full() else { return };
        if !self.paused.swap(true, Ordering::Relaxed) {
            PAUSED.fetch_add(1, Ordering::Relaxed);
            if end.set_paused(true).is_err() {
                self.close();
            }
        }
    }

    /// This process uses it.
    fn resume(&self, end: &Arc<Socket>) {
        if open_to_new() && self.may_take() && self.paused.swap(false, Ordering::Relaxed) {
            PAUSED.fetch_sub(1, Ordering::Relaxed);
            if end.set_paused(false).is_err() {
                self.close();
            }
        }
    }

    /// A connection is accepted, by the kernel or on the fabric alone.
    pub(crate) fn has_accepted(&self, accepted: &Arc<Entry>) {
        if !self.multiplexes.load(Ordering::Relaxed) {
            *lock(&self.last) = Arc::downgrade(accepted);
            self.accepted.store(true, Ordering::Relaxed);
        }
    }

    /// Tells whether connections may wait for this process.
    fn may_take(&self) -> bool {
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
    pub(super) fn opened(&self) -> Option<Arc<Socket>> {
        let end = self.end.load_full()?;
        if self.paused.load(Ordering::Relaxed) {
            self.resume(&end);
        }
        Some(end)
    }

    /// The fabric's end, opened at first.
    fn end(&self, fd: c_int, entry: &Arc<Entry>) -> Option<Arc<Socket>> {
        if let Some(end) = self.opened() {
            return Some(end);
        }
        let unix = entry.socket().is_none_or(|socket| socket.unix.load(Ordering::Relaxed));
        if unix || self.barred.load(Ordering::Relaxed) || !open_to_new() || !self.may_take() {
            return None;
        }
        self.open(fd, entry)
    }

    #[cold]
    fn open(&self, fd: c_int, entry: &Arc<Entry>) -> Option<Arc<Socket>> {
        let _opening = lock(&self.opening);
        if let Some(end) = self.end.load_full() {
            return Some(end);
        }
        if looking::unseen_waiter(&entry.fds(), false).is_some() {
            // Nobody would be told of connections that are the fabric's alone.
            self.barred.store(true, Ordering::Relaxed);
            return None;
        }
        let (family, local) = address::local(fd)?;
        let backlog = self.backlog.load(Ordering::Relaxed).max(BACKLOG_MIN);
        let v6_only = address::option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1);
        let end = fabric::listen_short(fd, local, v6_only, backlog)?;
        self.v6.store(family == libc::AF_INET6, Ordering::Relaxed);
        // Accepted sockets inherit it.
        self.recv_timeout_ns.store(address::timeout_ns(fd, libc::SO_RCVTIMEO), Ordering::Relaxed);
        note!("descriptor {fd}: listens on {local}, on the fabric, too");
        self.end.store(Some(end.clone()));
        if epoll_set::watch_listener(entry, &end) {
            Some(end)
        } else {
            self.bar();
            None
        }
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

/// `accept`: whichever of the two has a connection first. The kernel's if the fabric has no part in it.
///
/// # Safety
/// As for `accept4`.
pub(crate) unsafe fn accept(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Outcome<c_int> {
    if !super::wanted() {
        return Err(Failure::Plain);
    }
    let entry = entry::find(fd).ok_or(Failure::Plain)?;
    let socket = entry.socket().ok_or(Failure::Plain)?;
    let Some(State::Listener(listener)) = socket.state() else { return Err(Failure::Plain) };
    let listening = &listener.short;
    let end = listening.end(fd, &entry).ok_or(Failure::Plain)?;
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Failure::Plain);
    }
    if listening.accepts.fetch_add(1, Ordering::Relaxed) % KERNEL_EVERY == KERNEL_EVERY - 1 && is_ready(fd) {
        // SAFETY: the caller's promise.
        if let Some(accepted) = unsafe { accept_kernel(listening, fd, address, len, flags) }? {
            return Ok(accepted);
        }
    }
    let mut waits: Option<Option<Instant>> = None;
    loop {
        if let Some((accepted, twin, spare)) = take(listening, &end, flags)? {
            // SAFETY: the caller's promise.
            let written = unsafe { write_address(&twin, address, len) };
            note!("descriptor {accepted}: accepted on the fabric alone");
            let adopted = entry::adopt(accepted, Some(State::Twin(Box::new(twin))));
            let Some(socket) = adopted.as_ref().and_then(|entry| entry.socket()) else {
                // SAFETY: made just now.
                unsafe { real::close(accepted) };
                return Err(Failure::Errno(libc::EMFILE));
            };
            adopted.iter().for_each(|entry| listening.has_accepted(entry));
            socket.facts.accepted(listening.v6.load(Ordering::Relaxed), flags, spare);
            if let Err(errno) = written {
                table::release(accepted);
                // SAFETY: made just now.
                unsafe { real::close(accepted) };
                return Err(Failure::Errno(errno));
            }
            return Ok(accepted);
        }
        let until = match waits {
            Some(until) => until,
            None => {
                if socket.facts.nonblocking() {
                    return Err(Failure::Plain);
                }
                let timeout_ns = address::timeout_ns(fd, libc::SO_RCVTIMEO);
                *waits.insert((timeout_ns != 0).then(|| Instant::now() + Duration::from_nanos(timeout_ns)))
            }
        };
        if (0..SPINS).any(|_| {
            std::hint::spin_loop();
            has_come(&end)
        }) {
            continue;
        }
        // SAFETY: the caller's promise.
        if let Some(accepted) = unsafe { wait(listening, fd, &end, until, (address, len), flags) }? {
            return Ok(accepted);
        }
    }
}

fn has_come(end: &Socket) -> bool {
    end.ready(ready::IN) & ready::IN != 0
}

/// Waits for either; a connection of the kernel's is accepted at once.
unsafe fn wait(
    listening: &Listening,
    fd: c_int,
    end: &Arc<Socket>,
    until: Option<Instant>,
    (address, len): (*mut sockaddr, *mut socklen_t),
    flags: c_int,
) -> Outcome<Option<c_int>> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if left == Some(Duration::ZERO) {
        return Err(AGAIN);
    }
    let mut kernel = vec![libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    match sleep_on(vec![(end.clone(), ready::IN)], &mut kernel, left, std::ptr::null()) {
        Err(Failure::Errno(libc::EINTR)) if !interrupts(until.is_some()) => return Ok(None),
        other => other?,
    }
    if kernel[0].revents == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { accept_kernel(listening, fd, address, len, flags) }
}

fn is_ready(fd: c_int) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor.
    unsafe { real::poll(&mut poll, 1, 0) > 0 }
}

/// The kernel's `accept` without waiting, though the socket may be one that waits, and though another process may have taken
/// what was there: those that share a listener take turns.
unsafe fn accept_kernel(
    listening: &Listening,
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Outcome<Option<c_int>> {
    let joined = crate::hooks::socket::look_at_listener(fd);
    // Of the threads of this process...
    let _turn = lock(&listening.opening);
    // ...and of the processes that accept here, of which none has to change what the others see of the socket.
    let _turn = FileLock::new(fd);
    if !is_ready(fd) {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let accepted = unsafe { real::accept4(fd, address, len, flags) };
    if accepted >= 0 {
        crate::hooks::socket::claim(fd, accepted, joined);
        return Ok(Some(accepted));
    }
    match errno() {
        libc::EAGAIN => Ok(None),
        failed => Err(Failure::Errno(failed)),
    }
}

/// A connection of the fabric's, if one has come, and a descriptor for it, of a spare socket if there is one.
fn take(
    listening: &Listening,
    end: &Arc<Socket>,
    flags: c_int,
) -> Outcome<Option<(c_int, Twin, Option<Spare>)>> {
    if !has_come(end) {
        return Ok(None);
    }
    let v6 = listening.v6.load(Ordering::Relaxed);
    let domain = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: makes a descriptor.
    let (fd, spare) = unsafe { super::socket(domain, libc::SOCK_STREAM | flags, 0) };
    if fd < 0 {
        return Err(Failure::Errno(errno()));
    }
    table::is_new(fd);
    let taken = end.accept().and_then(|accepted| Ok((accepted.peer_addr()?, accepted)));
    let (peer, accepted) = match taken {
        Ok(taken) => taken,
        Err(error) => {
            // SAFETY: made just now.
            unsafe { real::close(fd) };
            if error.errno() != libc::EAGAIN {
                note!("cannot accept on the fabric: {error}");
            }
            return Ok(None);
        }
    };
    accepted.set_nonblocking(true);
    let timeouts = [listening.recv_timeout_ns.load(Ordering::Relaxed), 0];
    let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    let twin = Twin::alone(accepted, nonblocking, timeouts, Names::new(v6, peer, false));
    Ok(Some((fd, twin, spare)))
}

unsafe fn write_address(twin: &Twin, at: *mut sockaddr, len: *mut socklen_t) -> Result<(), c_int> {
    if at.is_null() {
        return Ok(());
    }
    match &twin.names {
        // SAFETY: the caller's promise.
        Some(names) => unsafe { names.write_peer(at, len) },
        None => Ok(()),
    }
}
