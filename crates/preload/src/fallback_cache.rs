//! Cache of places whose connections fall back to the kernel for a while: places without a listener on the fabric, and places with
//! short-lived connections, for which a twin costs more than it saves.
use pd_client::core::KernelReason;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Places remembered.
const SLOTS: usize = 64;
/// Powers of two of milliseconds: the time of the first refusal; each further one doubles it, up to the last.
const FIRST: u64 = 0;
const LAST: u64 = 9;
/// Time for a place whose listener is known to the driver but claims no twins, which is slow to find out: half a minute.
const CLAIMED_NONE: u64 = 15;

/// Time for a place with short-lived connections: two seconds, after which some have twins again. If those are short-lived, too, it
/// doubles, up to eight seconds.
const SHORT_LIVED: u64 = 11;
const SHORT_LIVED_LAST: u64 = 13;
/// A connection with fewer sends and fewer bytes was short-lived: it has not saved the cost of its twin (150 to 190 µs of all cores, of
/// which a send saves 15 and a megabyte 270).
const SENDS_WORTH: u64 = 10;
const BYTES_WORTH: u64 = 512 << 10;
/// Short-lived connections in a row, within [`SHORT_LIVED_WITHIN_MS`] of the first, that make a place one with short-lived connections.
const SHORT_LIVED_IN_A_ROW: u64 = 16;
const SHORT_LIVED_WITHIN_MS: u64 = 1000;
/// Short-lived connections in a row that are enough for a place that had short-lived connections until lately.
const SHORT_LIVED_AGAIN: u64 = 2;

/// A file: device and inode.
pub(crate) type File = (u64, u64);

/// Destination of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Address(SocketAddr),
    /// Of AF_UNIX.
    File(File),
}

const UNTIL_BITS: u32 = 40;
const UNTIL: u64 = (1 << UNTIL_BITS) - 1;

/// Of an address's hash 20 bits, the power of two, and the time until which it is not to be tried in milliseconds.
static ENTRIES: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// Reason of each, as a [`KernelReason`], for reports only.
static REASONS: [AtomicU32; SLOTS] = [const { AtomicU32::new(0) }; SLOTS];

/// Count of short-lived connections to a place, less one, in the bits for the power; and the end of the first.
static SHORT_LIVED_COUNTS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

/// Short-lived connections, too, have twins.
static ALL: AtomicBool = AtomicBool::new(false);

/// Puts short-lived connections on the fabric, too.
pub(crate) fn want_all() {
    ALL.store(true, Ordering::Relaxed);
}

/// Returns the time of the clock by which entries expire.
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
    ENTRIES[slot].store(word(hash, power, now_ms() + (1 << power)), Ordering::Relaxed);
}

/// Returns why connections to `to` fall back now, if they do.
pub(crate) fn holds(to: impl Hash) -> Option<KernelReason> {
    let (slot, hash) = find(to);
    let reason = || KernelReason::from_raw(REASONS[slot].load(Ordering::Relaxed));
    is_in_force(entry(slot, hash)).then(|| reason().unwrap_or(KernelReason::Refused))
}

/// Returns power and end of a place's entry, if it has one.
fn entry(slot: usize, hash: u64) -> Option<(u64, u64)> {
    let (of, power, until) = parts(ENTRIES[slot].load(Ordering::Relaxed));
    (of == hash).then_some((power, until))
}

fn is_in_force(entry: Option<(u64, u64)>) -> bool {
    entry.is_some_and(|(_, until)| until > now_ms())
}

/// Returns the power of an entry with one of `powers` that is in force, or expired lately.
fn lately(entry: Option<(u64, u64)>, powers: &RangeInclusive<u64>) -> Option<u64> {
    let (power, until) = entry?;
    (powers.contains(&power) && now_ms() < until + 2 * (1 << power)).then_some(power)
}

/// Records that a connection to `to` was refused: perhaps its listener does not listen yet. A second refusal soon after counts longer.
pub(crate) fn refused(to: impl Hash, reason: KernelReason) {
    hold_longer(to, FIRST..=LAST, reason);
}

/// Records `to` for the first of `powers`, or for the next one if an entry expired lately.
fn hold_longer(to: impl Hash, powers: RangeInclusive<u64>, reason: KernelReason) {
    let (slot, hash) = find(to);
    let before = lately(entry(slot, hash), &powers);
    remember(slot, hash, before.map_or(*powers.start(), |power| (power + 1).min(*powers.end())), reason);
}

/// Records that the listener at `to` claimed no twin.
pub(crate) fn claimed_none(to: impl Hash) {
    let (slot, hash) = find(to);
    remember(slot, hash, CLAIMED_NONE, KernelReason::PeerSlow);
}

/// Records the end of a connection to `to` with the process's `sends` on it, and the `bytes` of both directions.
pub(crate) fn ended(to: Place, (sends, bytes): (u64, u64)) {
    if ALL.load(Ordering::Relaxed) {
        return;
    }
    let (place, hash) = find(to);
    let slot = &SHORT_LIVED_COUNTS[place];
    let (of, before, first) = parts(slot.load(Ordering::Relaxed));
    if sends >= SENDS_WORTH || bytes >= BYTES_WORTH {
        if of == hash {
            slot.store(0, Ordering::Relaxed);
        }
        return;
    }
    let now = now_ms() & UNTIL;
    let known = entry(place, hash);
    if is_in_force(known) {
        // Begun before the place was found to be one of these.
        return;
    }
    let was_one = lately(known, &(SHORT_LIVED..=SHORT_LIVED_LAST)).is_some();
    let enough = if was_one { SHORT_LIVED_AGAIN } else { SHORT_LIVED_IN_A_ROW };
    if of != hash || now.wrapping_sub(first) >= SHORT_LIVED_WITHIN_MS {
        slot.store(word(hash, 0, now), Ordering::Relaxed);
    } else if before + 2 < enough {
        slot.store(word(hash, before + 1, first), Ordering::Relaxed);
    } else {
        slot.store(0, Ordering::Relaxed);
        hold_longer(to, SHORT_LIVED..=SHORT_LIVED_LAST, KernelReason::ShortLived);
    }
}
