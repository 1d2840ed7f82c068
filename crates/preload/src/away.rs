//! Connections that small talk took into the kernel ([`crate::gain`]), and that come back when they carry bulk.
//!
//! As long as one is away its calls are the kernel's, and are counted: both libraries know how far the kernel's two streams are. Each
//! sees for itself that the connection carries bulk. Then the side that has connected *offers* a new twin, which the other one
//! *claims*; until that the offer changes nothing. From then on each side looks at both ([`crate::back`]).
//!
//! It comes back only where no call of another thread on it is under way in the kernel, and each time takes twice as much bulk. A process
//! that forks, hands the connection on or asks for what only the kernel has leaves it there for good.
use crate::back::Back;
use crate::call::{self, lock, Failure, Outcome};
use crate::counts::{Counts, Moves};
use crate::entry::{self, Entry};
use crate::epoll_set::registering;
use crate::fallback_cache::{now_ns, Place};
use crate::log::note;
use crate::twin::Twin;
use crate::{fabric, table};
use libc::c_int;
use pd_client::core::{Departure, Inside, Socket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes from one look to the next.
const LOOK_BYTES: u64 = 1 << 20;
/// They are bulk if they come within this time...
const BULK_WITHIN_NS: u64 = 100_000_000;
/// ...and no more than one receive in so many bytes finds less than [`LITTLE_BYTES`].
const SMALL_BYTES: u64 = 16 << 10;
const LITTLE_BYTES: i64 = 4096;
/// How long an offer stands.
const OFFER_NS: u64 = 500_000_000;
/// Looks that find bulk, the first time; each further time takes twice as many, up to 2 to this power.
const TIMES_MAX: u32 = 10;
/// The same for offers and claims that have led to nothing; the other side's stand for less time than so many looks take.
const FAILS_MAX: u32 = 6;
/// Registrations that tell once, or one process alone, cannot stand in two instances at a time.
const SINGLE: u32 = (libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;

/// One connection that is away.
#[derive(Debug)]
pub(crate) struct Away {
    counts: Arc<Counts>,
    /// What this process has connected it to.
    towards: Option<Place>,
    /// How often it was away before.
    times: u32,
    /// Bytes both ways at which it is looked at again.
    next: AtomicU64,
    /// An offer stands.
    offers: AtomicBool,
    look: Mutex<Look>,
}

#[derive(Debug, Default)]
struct Look {
    since_ns: u64,
    bytes: u64,
    small: u64,
    /// Looks in a row that found bulk.
    bulks: u32,
    /// Offers that nobody has claimed, or claims of none, in a row.
    fails: u32,
    offer: Option<Arc<Socket>>,
}

impl Look {
    fn has_failed(&mut self) {
        (self.bulks, self.fails) = (0, self.fails.saturating_add(1));
    }
}

/// The entry of a connection that has left by choice. None: it stays where it is for good.
pub(crate) fn entry_of(entry: &Entry, twin: &Twin) -> Option<Arc<Entry>> {
    let old = entry.socket()?;
    let away = Away {
        counts: twin.aside.counts.clone(),
        towards: twin.towards,
        times: twin.times.saturating_add(1),
        next: AtomicU64::new(LOOK_BYTES),
        offers: AtomicBool::new(false),
        look: Mutex::new(Look { since_ns: now_ns(), ..Look::default() }),
    };
    let new = entry::make(None);
    let socket = new.socket()?;
    socket.unix.store(twin.unix, Ordering::Relaxed);
    socket.away.set(away).ok()?;
    lock(&socket.watchers).extend(lock(&old.watchers).iter().cloned());
    Some(new)
}

impl Away {
    /// Nobody holds it any more, or it stays away for good.
    pub(crate) fn end(&self) {
        if let Some(offer) = lock(&self.look).offer.take() {
            self.offers.store(false, Ordering::Relaxed);
            if !fabric::withdraw(&offer) {
                // The peer has to know before anything else comes by the kernel.
                let _ = offer.step_aside(Departure::Marked);
            }
            let _ = offer.close();
        }
    }

    fn carried(&self) -> u64 {
        self.counts.sent() + self.counts.received()
    }

    fn is_due(&self) -> bool {
        self.offers.load(Ordering::Relaxed) || self.carried() >= self.next.load(Ordering::Relaxed)
    }

    /// Whether the last megabytes were bulk.
    fn finds_bulk(&self, look: &mut Look) -> bool {
        let (now, bytes, small) = (now_ns(), self.carried(), self.counts.small());
        let moved = bytes - look.bytes;
        let is_bulk =
            now - look.since_ns < BULK_WITHIN_NS && (small - look.small).saturating_mul(SMALL_BYTES) <= moved;
        let bulks = if is_bulk { look.bulks.saturating_add(1) } else { 0 };
        (look.since_ns, look.bytes, look.small, look.bulks) = (now, bytes, small, bulks);
        self.next.store(bytes + LOOK_BYTES, Ordering::Relaxed);
        bulks >= 1 << (self.times.saturating_sub(1).min(TIMES_MAX) + look.fails.min(FAILS_MAX))
    }

    #[cold]
    fn look(&self, fd: c_int, entry: &Arc<Entry>) {
        let Ok(mut look) = self.look.try_lock() else { return };
        let Some(socket) = entry.socket().filter(|socket| socket.is_away()) else { return };
        if let Some(offer) = look.offer.clone() {
            if offer.has_heard() {
                if self.counts.close() {
                    look.offer = None;
                    self.come_back(fd, entry, offer);
                    self.counts.open();
                }
            } else if now_ns() - look.since_ns > OFFER_NS && fabric::withdraw(&offer) {
                let _ = offer.close();
                look.offer = None;
                look.has_failed();
                self.offers.store(false, Ordering::Relaxed);
            }
            return;
        }
        let single = lock(&socket.watchers).iter().any(|watcher| watcher.event.0 & SINGLE != 0);
        if !self.finds_bulk(&mut look) || single {
            return;
        }
        if let Some(place) = self.towards {
            look.offer = fabric::offer(fd, place);
            self.offers.store(look.offer.is_some(), Ordering::Relaxed);
            if look.offer.is_none() {
                look.has_failed();
            }
        } else if self.counts.close() {
            match fabric::claim_again(fd) {
                Some(end) => self.come_back(fd, entry, end),
                None => look.has_failed(),
            }
            self.counts.open();
        }
    }

    /// Both sides have the twin; no call is under way in the kernel.
    fn come_back(&self, fd: c_int, entry: &Arc<Entry>, end: Arc<Socket>) {
        let Some(socket) = entry.socket() else { return };
        note!("descriptor {fd}: comes back to the fabric");
        let back = Back::new(self.counts.clone(), fd, &end);
        socket.set_twin(Box::new(Twin::new(fd, end, false).back(back, self.towards, self.times)));
        registering::move_watchers(entry);
        entry.fds().into_iter().for_each(table::come_back);
        if let (Some(twin), true) = (entry.twin(), self.towards.is_some()) {
            // The other side looks at both by now.
            twin.go_back_closed(entry);
        }
    }
}

/// The counts of a connection whose calls of this kind are the kernel's.
fn counts_of(entry: &Entry, what: Moves) -> Option<Arc<Counts>> {
    let socket = entry.socket()?;
    if let Some(away) = socket.away.get().filter(|_| socket.is_away()) {
        return Some(away.counts.clone());
    }
    let twin = entry.twin()?;
    match twin.window() {
        _ if what == Moves::Receives => None,
        _ if twin.progress().sends() => Some(twin.aside.counts.clone()),
        Some(back) if !back.sends() => Some(back.counts.clone()),
        _ => None,
    }
}

/// Does a call in the kernel on a connection that is the kernel's by now, and counts what it moves. None: it is the kernel's no more.
pub(crate) fn moves<T: Copy>(
    fd: c_int,
    what: Moves,
    plain: &impl Fn() -> T,
    bytes: impl Fn(T) -> i64,
) -> Option<T> {
    if table::look(fd) == table::PLAIN {
        return Some(plain());
    }
    let entered = {
        let _inside = Inside::enter();
        match table::entry(fd) {
            None => return Some(plain()),
            Some(entry) => {
                if what == Moves::Urgent {
                    give_up_entry(&entry);
                    return Some(plain());
                }
                if entry.twin().is_some_and(Twin::is_abandoned) {
                    return Some(plain());
                }
                let counts = counts_of(&entry, what)?;
                counts.enter();
                // It may have come back just now.
                if counts_of(&entry, what).is_none_or(|now| !Arc::ptr_eq(&now, &counts)) {
                    counts.leave();
                    return None;
                }
                (entry, counts)
            }
        }
    };
    let result = plain();
    let (entry, counts) = entered;
    let moved = bytes(result);
    if moved > 0 {
        counts.add(what, moved as usize);
    }
    if what == Moves::Receives && moved < LITTLE_BYTES {
        counts.add_small();
    }
    counts.leave();
    if let Some(away) = entry.socket().and_then(|socket| socket.away.get()) {
        if away.is_due() {
            call::aside(|| away.look(fd, &entry));
        }
    }
    Some(result)
}

/// Sleeps in the kernel that may be for such connections: they do not come back meanwhile.
pub(crate) struct Stays(Vec<Arc<Counts>>);

impl Stays {
    /// Those of the numbers that are away.
    pub(crate) fn all(fds: impl Iterator<Item = c_int>) -> Self {
        let mut all = Vec::new();
        for fd in fds.filter(|&fd| table::look(fd) == table::AWAY) {
            let Some(entry) = table::entry(fd) else { continue };
            let Some(counts) = counts_of(&entry, Moves::Nothing).filter(|_| is_away(&entry)) else {
                continue;
            };
            counts.enter();
            all.push(counts);
        }
        Self(all)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Stays {
    fn drop(&mut self) {
        self.0.iter().for_each(|counts| counts.leave());
    }
}

fn is_away(entry: &Entry) -> bool {
    entry.socket().is_some_and(|socket| socket.is_away())
}

/// The connection, if it is one, stays in the kernel for good.
#[inline]
pub(crate) fn stays(fd: c_int) {
    if table::look(fd) == table::AWAY {
        call::aside(|| table::entry(fd).iter().for_each(give_up_entry));
    }
}

#[cold]
fn give_up_entry(entry: &Arc<Entry>) {
    let Some(socket) = entry.socket().filter(|socket| socket.is_away()) else { return };
    if let Some(away) = socket.away.get() {
        away.end();
    }
    table::give_up(entry);
}

/// How often a call begins anew because its connection passes to and fro between the kernel and the fabric.
const TRIES: u32 = 1000;

/// [`call::call`] of a call that moves bytes of the connection `fd`.
pub(crate) fn moving(
    fd: i32,
    what: Moves,
    work: impl Fn() -> Outcome<isize>,
    plain: impl Fn() -> isize,
) -> isize {
    moving_as(fd, what, work, plain, |bytes| bytes as i64)
}

/// The same where a result that is not negative stands for so many bytes.
pub(crate) fn moving_as<T: From<i8> + Copy>(
    fd: i32,
    what: Moves,
    work: impl Fn() -> Outcome<T>,
    plain: impl Fn() -> T,
    bytes: impl Fn(T) -> i64,
) -> T {
    for _ in 0..TRIES {
        match call::begin(&work) {
            Ok(result) => return result,
            Err(Failure::Kernel) => {
                if let Some(result) = moves(fd, what, &plain, &bytes) {
                    return result;
                }
            }
            Err(_) => return plain(),
        }
    }
    plain()
}
