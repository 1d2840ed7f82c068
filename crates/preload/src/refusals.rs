//! Places that had no listener on the fabric when they were tried, or where connections were over before they had been worth a
//! twin, which costs more than the kernel's connection alone: for a while they are the kernel's.
use crate::unix::File;
use pd_client::core::KernelReason;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Places remembered.
const SLOTS: usize = 64;
/// Powers of two of milliseconds: the first refusal counts so long, each after that twice as long as the one before.
const FIRST: u64 = 0;
const LAST: u64 = 9;
/// One whose listener is known to the driver but takes no twins: finding out is slow. Half a minute.
const UNCLAIMED: u64 = 15;

/// One with brief connections only: two seconds, after which some have twins again. If those are brief, too, it is twice as long, up
/// to eight seconds.
const BRIEF: u64 = 11;
const BRIEF_LAST: u64 = 13;
/// A connection that has sent less often than this and carried fewer bytes was brief: it has not saved what its twin has cost (150
/// to 190 µs of all cores, of which a send saves 15 and a megabyte 270).
const SENDS_WORTH: u64 = 10;
const BYTES_WORTH: u64 = 512 << 10;
/// So many in a row, within this time of the first, are what connections to a place are like.
const BRIEF_IN_A_ROW: u64 = 16;
const BRIEF_WITHIN_MS: u64 = 1000;

/// What a program connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Address(SocketAddr),
    /// Of AF_UNIX.
    File(File),
}

const UNTIL_BITS: u32 = 40;
const UNTIL: u64 = (1 << UNTIL_BITS) - 1;

/// Of an address's hash 20 bits, the power of two, and the time until which it is not to be tried in milliseconds.
static REFUSALS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// Why each is not to be tried, as a [`KernelReason`]: to be told, not to be relied on.
static REASONS: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

/// As many brief connections to a place, in the words' bits for the power, less one; and when the first was over.
static BRIEFS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// Brief ones, too, have twins.
static ALL: AtomicBool = AtomicBool::new(false);

/// The user wants brief connections on the fabric, too.
pub(crate) fn want_all() {
    ALL.store(true, Ordering::Relaxed);
}

/// The clock by which refusals end.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: room for a time.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// The slot of a place, and the part of its hash that words keep.
fn find(to: impl Hash) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    to.hash(&mut hasher);
    let hash = hasher.finish();
    (hash as usize % SLOTS, hash >> (UNTIL_BITS + 4))
}

fn word(hash: u64, power: u64, time: u64) -> u64 {
    hash << (UNTIL_BITS + 4) | power << UNTIL_BITS | time & UNTIL
}

/// Takes a word apart: hash, power, end in milliseconds.
fn parts(word: u64) -> (u64, u64, u64) {
    (word >> (UNTIL_BITS + 4), word >> UNTIL_BITS & 15, word & UNTIL)
}

fn remember(slot: usize, hash: u64, power: u64, reason: KernelReason) {
    REASONS[slot].store(reason as u32, Ordering::Relaxed);
    REFUSALS[slot].store(word(hash, power, now_ms() + (1 << power)), Ordering::Relaxed);
}

/// Why `to` is not to be tried now; none: it may be.
pub(crate) fn holds(to: impl Hash) -> Option<KernelReason> {
    let (slot, hash) = find(to);
    let (of, _, until) = parts(REFUSALS[slot].load(Ordering::Relaxed));
    let reason = KernelReason::from_raw(REASONS[slot].load(Ordering::Relaxed));
    (of == hash && until > now_ms()).then_some(reason.unwrap_or(KernelReason::Refused))
}

/// A connection to `to` was refused just now: perhaps nobody listens yet. Who is refused again soon waits longer.
pub(crate) fn refused(to: impl Hash, reason: KernelReason) {
    hold_longer(to, FIRST..=LAST, reason);
}

/// Holds `to` for a time of these: the first, unless one of them was over only lately.
fn hold_longer(to: impl Hash, powers: RangeInclusive<u64>, reason: KernelReason) {
    let (slot, hash) = find(to);
    let (of, power, until) = parts(REFUSALS[slot].load(Ordering::Relaxed));
    let again = of == hash && powers.contains(&power) && now_ms() < until + 2 * (1 << power);
    remember(slot, hash, if again { (power + 1).min(*powers.end()) } else { *powers.start() }, reason);
}

/// At `to` somebody listens who took no twin.
pub(crate) fn unclaimed(to: impl Hash) {
    let (slot, hash) = find(to);
    remember(slot, hash, UNCLAIMED, KernelReason::PeerSlow);
}

/// A connection to `to` is over for this process, which has sent so often on it; bytes are those of both directions.
pub(crate) fn ended(to: Place, (sends, bytes): (u64, u64)) {
    if ALL.load(Ordering::Relaxed) {
        return;
    }
    let (slot, hash) = find(to);
    let slot = &BRIEFS[slot];
    let (of, before, first) = parts(slot.load(Ordering::Relaxed));
    if sends >= SENDS_WORTH || bytes >= BYTES_WORTH {
        if of == hash {
            slot.store(0, Ordering::Relaxed);
        }
        return;
    }
    let now = now_ms() & UNTIL;
    if of != hash || now.wrapping_sub(first) >= BRIEF_WITHIN_MS {
        slot.store(word(hash, 0, now), Ordering::Relaxed);
    } else if before + 2 < BRIEF_IN_A_ROW {
        slot.store(word(hash, before + 1, first), Ordering::Relaxed);
    } else {
        slot.store(0, Ordering::Relaxed);
        hold_longer(to, BRIEF..=BRIEF_LAST, KernelReason::Brief);
    }
}
