//! Connections whose peer has not yet been seen on the fabric. The peer may have accepted in a way that
//! nothing can hook; then what was sent goes over TCP after all, as if there had never been a twin. So
//! what is sent before the peer is there is kept.
use crate::call::lock;
use crate::entry::Entry;
use crate::log::note;
use crate::twin::Twin;
use crate::{address, epoll_set, fabric, fallback_cache, real};
use libc::{c_int, iovec};
use pd_client::core::{KernelReason, Socket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};

/// How long a peer may take to accept. One that takes longer gets a plain connection.
const CLAIM_WITHIN: Duration = Duration::from_millis(500);
/// The same once as much as is kept was sent, for then the program waits.
const CLAIM_WITHIN_FULL: Duration = Duration::from_millis(50);
/// How often a wait looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The same of one for room, which ends by a look only.
pub(crate) const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_micros(100);
/// Most that is kept, and hence sent, before the peer is there; less if the kernel's socket has a smaller buffer.
const KEPT_BYTES_MAX: usize = 96 << 10;
/// A TCP receiver's first window, which takes bytes that nobody has read yet.
const WINDOW_BYTES: usize = 48 << 10;

static WAITING: Mutex<Vec<Weak<Entry>>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What is kept for one connection.
#[derive(Debug)]
pub(crate) struct Unclaimed {
    since: Instant,
    sent: Vec<u8>,
    most: usize,
}

impl Unclaimed {
    /// Of the connection of `fd`. As much is kept as the kernel takes at once: nobody may have to wait, in a call that was to
    /// receive perhaps, until the peer reads. Of AF_UNIX it is half the buffer, which has to hold what the kernel adds as
    /// well; TCP has two, and what one of them has no room for travels to the other.
    pub(crate) fn new(fd: c_int, unix: bool) -> Self {
        let buffer = address::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0).max(2) as usize;
        let most = if unix { buffer / 2 } else { buffer + WINDOW_BYTES };
        Self { since: Instant::now(), sent: Vec::new(), most: most.min(KEPT_BYTES_MAX) }
    }

    /// Bytes that may still be sent.
    pub(crate) fn room(&self) -> usize {
        self.most - self.sent.len()
    }

    pub(crate) fn keep(&mut self, pieces: &[iovec], mut bytes: usize) {
        for piece in pieces {
            let part = bytes.min(piece.iov_len);
            if part == 0 {
                // Such a piece may point nowhere.
                continue;
            }
            // SAFETY: the caller has sent from this memory just now.
            self.sent
                .extend_from_slice(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), part) });
            bytes -= part;
            if bytes == 0 {
                break;
            }
        }
    }
}

/// Whether any connection of the process is in this state: then waits are cut short.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

pub(crate) fn add(entry: &Arc<Entry>) {
    settle_at_exit();
    let mut waiting = lock(&WAITING);
    waiting.push(Arc::downgrade(entry));
    COUNT.store(waiting.len(), Ordering::Relaxed);
}

/// A forked child waits for nobody.
pub(crate) fn forget() {
    // A thread of the parent's may have had the lock.
    if let Ok(mut waiting) = WAITING.try_lock() {
        waiting.clear();
    }
    COUNT.store(0, Ordering::Relaxed);
}

/// Looks at all such connections.
pub(crate) fn look() {
    let waiting = lock(&WAITING).clone();
    for entry in waiting.iter().filter_map(Weak::upgrade) {
        settle(&entry);
    }
    // What another thread has added meanwhile stays.
    keep(|entry| entry.strong_count() > 0);
}

/// Finds out how it stands with one; true: it is decided.
pub(crate) fn settle(entry: &Arc<Entry>) -> bool {
    let decided = decide(entry, true);
    if decided {
        leave(entry);
    }
    decided
}

/// The same without giving the peer more time.
pub(crate) fn settle_now(entry: &Arc<Entry>) {
    if any() {
        decide(entry, false);
        leave(entry);
    }
}

/// The same before the last close: what was sent has to reach a peer that nobody will ever hear of, too; and one of
/// AF_UNIX could not tell whose end it is to take when the kernel's socket is gone.
pub(crate) fn settle_before_close(entry: &Arc<Entry>) {
    if !any() {
        return;
    }
    let matters =
        |twin: &Twin| twin.unix || lock(&twin.unclaimed).as_ref().is_some_and(|it| !it.sent.is_empty());
    if entry.twin().is_some_and(matters) {
        decide(entry, false);
    }
    leave(entry);
}

/// It is looked at no more.
fn leave(entry: &Arc<Entry>) {
    keep(|one| !std::ptr::eq(one.as_ptr(), Arc::as_ptr(entry)));
}

fn keep(wanted: impl Fn(&Weak<Entry>) -> bool) {
    let mut waiting = lock(&WAITING);
    waiting.retain(wanted);
    COUNT.store(waiting.len(), Ordering::Relaxed);
}

/// What was sent before the peer took its end has to reach it when this process ends.
fn settle_at_exit() {
    static ONCE: Once = Once::new();
    extern "C" fn settle() {
        crate::call::aside(settle_all_now);
    }
    // SAFETY: a function that lives as long as the program.
    ONCE.call_once(|| unsafe {
        libc::atexit(settle);
    });
}

fn settle_all_now() {
    if !any() {
        return;
    }
    for entry in lock(&WAITING).iter().filter_map(Weak::upgrade) {
        decide(&entry, false);
    }
}

fn decide(entry: &Arc<Entry>, patient: bool) -> bool {
    let Some(twin) = entry.twin() else { return true };
    let mut state = lock(&twin.unclaimed);
    let (Some(unclaimed), Some(socket)) = (state.as_ref(), twin.current()) else { return true };
    let since = unclaimed.since.elapsed();
    if socket.has_heard() {
        *state = None;
        claimed(entry, &socket);
        return true;
    }
    if patient && since < CLAIM_WITHIN && (unclaimed.room() > 0 || since < CLAIM_WITHIN_FULL) {
        return false;
    }
    if !fabric::withdraw(&socket) {
        *state = None;
        claimed(entry, &socket);
        return true;
    }
    let sent = state.take().map(|unclaimed| unclaimed.sent).unwrap_or_default();
    let Some(fd) = entry.any_fd() else { return true };
    if let Some(place) = twin.towards.filter(|_| patient) {
        fallback_cache::unclaimed(place);
    }
    note!("descriptor {fd}: nobody took the connection; {} bytes go over the kernel", sent.len());
    fabric::stays_on_kernel(fd, if patient { KernelReason::PeerSlow } else { KernelReason::Settled });
    replay(fd, &sent);
    shut_as_the_twin(entry);
    epoll_set::move_back(entry);
    entry.give_up();
    twin.abandon();
    true
}

/// The peer is there.
fn claimed(entry: &Entry, socket: &Socket) {
    socket.hold_out(false);
    shut_as_the_twin(entry);
}

/// The kernel's connection was not shut down as long as its bytes might have to go there.
fn shut_as_the_twin(entry: &Entry) {
    let (Some(twin), Some(fd)) = (entry.twin(), entry.any_fd()) else { return };
    let how = match (twin.recv_shut.load(Ordering::Relaxed), twin.send_shut.load(Ordering::Relaxed)) {
        (true, true) => libc::SHUT_RDWR,
        (true, false) => libc::SHUT_RD,
        (false, true) => libc::SHUT_WR,
        (false, false) => return,
    };
    // SAFETY: a number.
    unsafe { real::shutdown(fd, how) };
}

fn replay(fd: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: sends from a slice; polls one descriptor.
        unsafe {
            let sent = real::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL);
            if let Ok(sent) = usize::try_from(sent) {
                bytes = &bytes[sent..];
                continue;
            }
            if ![libc::EAGAIN, libc::EINTR].contains(&crate::call::errno()) {
                return;
            }
            let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
            real::poll(&mut poll, 1, 100);
        }
    }
}
