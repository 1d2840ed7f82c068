//! Pointers of the program's that lead nowhere. The kernel answers `EFAULT` where a load or a store of the library's would end the
//! program. For a connection of the kernel's the library reads nothing before the kernel has. For one on the fabric it
//! looks at the pointers first:
//!
//! - [`may_be`] compares, in every call: none is null, in the lowest page, or beyond what a process has.
//! - [`is_readable`] asks the kernel, in calls that carry no bytes, unless the pointer is to a variable of the functions that call:
//!   that is nearly always, and needs no system call.
//!
//! A pointer into a hole of the address space is found out by the second alone. Pages that the kernel has read are remembered, so
//! that a program which passes the same ones again makes no call: a hole that was memory then is not found out.
use crate::call::{Failure, Outcome};
use crate::real;
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Nothing is mapped below.
const FIRST: usize = 4096;
/// Addresses above are not the program's, or rare: the kernel is asked.
const USUAL_END: usize = 1 << 47;
/// From a variable of this library's on, so many bytes are frames of the functions that call it, or, at the start of a stack, what the
/// C library and the kernel keep above it.
const FRAMES_BYTES: usize = 4096;
/// Most bytes that one call moves.
pub(crate) const MOVED_MAX: usize = 0x7fff_f000;

/// Tells whether so many bytes may lie at an address, as far as comparing tells.
#[inline]
pub(crate) fn may_be<T>(at: *const T, bytes: usize) -> bool {
    let at = at.addr();
    let usual = at >= FIRST && bytes < USUAL_END && at < USUAL_END - bytes;
    usual || bytes == 0 || is_unusual_readable(at, bytes)
}

/// Fails with `EFAULT` unless `bytes` bytes may lie at an address, by [`may_be`].
#[inline]
pub(crate) fn checked<T>(at: *const T, bytes: usize) -> Outcome<()> {
    match may_be(at, bytes) {
        true => Ok(()),
        false => Err(Failure::Errno(libc::EFAULT)),
    }
}

#[cold]
fn is_unusual_readable(at: usize, bytes: usize) -> bool {
    at >= FIRST && at.checked_add(bytes).is_some() && kernel_reads(at, bytes)
}

/// Tells whether so many bytes at an address can be read. For few bytes, and calls that carry none: it asks the kernel.
#[inline]
pub(crate) fn is_readable<T>(at: *const T, bytes: usize) -> bool {
    may_be(at, bytes) && (bytes == 0 || is_in_frames(at.addr(), bytes) || kernel_reads(at.addr(), bytes))
}

/// Tells whether bytes lie in the frames of the functions that have called.
#[inline]
fn is_in_frames(at: usize, bytes: usize) -> bool {
    let variable = 0u8;
    let above = at.wrapping_sub((&raw const variable).addr());
    above < FRAMES_BYTES && bytes <= FRAMES_BYTES - above
}

/// Has the kernel read the pages of a range, as the library is about to. A checker of memory takes no offence at that. A kernel older
/// than 5.14 cannot, and all is taken for readable.
#[cold]
fn kernel_reads(at: usize, bytes: usize) -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static CAN: AtomicU8 = AtomicU8::new(UNKNOWN);
    if CAN.load(Ordering::Relaxed) == UNKNOWN {
        let can = populate((&raw const CAN).addr(), 1) == 0;
        CAN.store(if can { YES } else { NO }, Ordering::Relaxed);
    }
    if CAN.load(Ordering::Relaxed) == NO {
        return true;
    }
    let page_bytes = page_bytes();
    let (first, last) = (at / page_bytes, (at + bytes - 1) / page_bytes);
    let known = &SEEN[first % SEEN.len()];
    if first == last && known.load(Ordering::Relaxed) == first {
        return true;
    }
    let refused = [libc::ENOMEM, libc::EFAULT, libc::EINVAL].contains(&populate(at, bytes));
    if !refused {
        known.store(first, Ordering::Relaxed);
    }
    !refused
}

/// Numbers of pages that the kernel has read.
static SEEN: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

fn page_bytes() -> usize {
    // SAFETY: only asks, without a system call.
    unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
}

/// The errno of `MADV_POPULATE_READ`.
fn populate(at: usize, bytes: usize) -> c_int {
    let first = at & !(page_bytes() - 1);
    let arguments = [first, at + bytes - first, libc::MADV_POPULATE_READ as usize, 0, 0, 0];
    // SAFETY: changes no memory.
    -unsafe { real::system_call(libc::SYS_madvise, arguments) } as c_int
}

/// The number at an address; 0 if there is none.
///
/// # Safety
/// `at` is aligned or not, and nobody takes the memory away meanwhile.
pub(crate) unsafe fn number(at: *const c_void) -> c_int {
    match is_readable(at, size_of::<c_int>()) {
        // SAFETY: it was read just now.
        true => unsafe { at.cast::<c_int>().read_unaligned() },
        false => 0,
    }
}
