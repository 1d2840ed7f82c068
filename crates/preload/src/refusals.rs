//! Addresses that had no listener on the fabric when they were tried: for a while nobody tries them again.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Addresses remembered.
const SLOTS: usize = 64;
/// Powers of two of milliseconds: the first refusal counts so long, each after that twice as long as the one before.
const FIRST: u64 = 0;
const LAST: u64 = 9;
/// One whose listener is known to the driver but takes no twins: finding out is slow. Half a minute.
const UNCLAIMED: u64 = 15;

const UNTIL_BITS: u32 = 40;
const UNTIL: u64 = (1 << UNTIL_BITS) - 1;

/// Of an address's hash 20 bits, the power of two, and the time until which it is not to be tried in milliseconds.
static REFUSALS: [AtomicU64; SLOTS] = [const { AtomicU64::new(0) }; SLOTS];

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

fn find(to: impl Hash) -> (&'static AtomicU64, u64) {
    let mut hasher = DefaultHasher::new();
    to.hash(&mut hasher);
    let hash = hasher.finish();
    (&REFUSALS[hash as usize % SLOTS], hash >> (UNTIL_BITS + 4))
}

/// Takes a word apart: hash, power, end in milliseconds.
fn parts(word: u64) -> (u64, u64, u64) {
    (word >> (UNTIL_BITS + 4), word >> UNTIL_BITS & 15, word & UNTIL)
}

fn remember(slot: &AtomicU64, hash: u64, power: u64) {
    let until = (now_ms() + (1 << power)) & UNTIL;
    slot.store(hash << (UNTIL_BITS + 4) | power << UNTIL_BITS | until, Ordering::Relaxed);
}

/// Whether `to` is not to be tried now.
pub(crate) fn holds(to: impl Hash) -> bool {
    let (slot, hash) = find(to);
    let (of, _, until) = parts(slot.load(Ordering::Relaxed));
    of == hash && until > now_ms()
}

/// Nobody listened at `to` just now: perhaps not yet. Who is refused again soon waits longer.
pub(crate) fn refused(to: impl Hash) {
    let (slot, hash) = find(to);
    let (of, power, until) = parts(slot.load(Ordering::Relaxed));
    let again = of == hash && now_ms() < until + 2 * (1 << power);
    remember(slot, hash, if again { (power + 1).min(LAST) } else { FIRST });
}

/// At `to` somebody listens who took no twin.
pub(crate) fn unclaimed(to: impl Hash) {
    let (slot, hash) = find(to);
    remember(slot, hash, UNCLAIMED);
}
