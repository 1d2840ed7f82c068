//! The copy of the data path: of the `cpu` engine, and of calls that copy into and out of rings.
//!
//! The case it is made for: a message in a 4 MB ring, written moments ago by one core, copied by a
//! second, read soon by a third. What decides there is not how the bytes are moved but that the lines of
//! the destination are still in the reader's cache from the last time around: a plain copy waits
//! for each of them. `vector_loop` asks for their ownership (`prefetchw`) 1 KB before it stores.
//!
//! `cargo run --release -p pd-bench --example copy` measures the candidates, and `docs/results/copy.md` has their figures.
//! Consequences of those:
//!
//! - The prefetch of the destination takes time off the copier against glibc. The consumer reads slower in return, as it finds the bytes
//!   in the copier's cache and not in the L3 cache. The three together gain most with messages of some KB, and lose a little with the largest.
//! - 512-bit vectors gain nothing over 256-bit ones once the destination is prefetched. (At 256 B theirs are
//!   `copy_nonoverlapping`: their loop starts at 512 B.)
//! - Prefetching the source gains little, and would fetch lines that the producer is still writing.
//! - `rep movsb`, which glibc takes for long copies (before 2.39), is far slower on AMD's Zen 3 and Zen 4 where the
//!   destination lies 1 to 63 bytes behind the source modulo 4 KB. A stream's place in its ring
//!   and a program's buffer decide that by chance. The loop knows no such case.
//! - Non-temporal stores lose: the consumer fetches from memory.
//! - One thread alone, as memcpy is usually measured, tells them apart the other way round.
//! - Below 256 B the loop has nothing to do, and `copy_nonoverlapping` is right.
//! - [`prefetch`] fetches the beginnings of the fourth command ahead. It gains in batches in no order, as from many connections. Where messages
//!   follow each other in one ring, those of 1 KB lose by it.

/// Copies `len` bytes.
///
/// # Safety
///
/// `len` bytes at `src` are readable, as many at `dst` writable, and the two are disjoint.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= x86::LOOP_BYTES_MIN && is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise; the length and the feature have just been checked.
        return unsafe { x86::vector_loop(dst, src, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

/// Starts to fetch the beginnings of a copy that is about to be made. Addresses may be anything.
#[inline]
pub fn prefetch(dst: u64, src: u64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    x86::prefetch(dst, src);
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (dst, src);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::asm;

    const VECTOR: usize = 32;
    const BLOCK: usize = 4 * VECTOR;
    pub const LOOP_BYTES_MIN: usize = 2 * BLOCK;

    /// A loop over blocks of four vectors with stores aligned to the destination, which asks for
    /// ownership of the destination 1 KB ahead.
    ///
    /// The first vector and the last block are stored unaligned and overlap what the loop stores. In
    /// assembly because another process may write the source meanwhile, which the compiler must not
    /// reason about.
    ///
    /// # Safety
    ///
    /// As [`super::copy`]; `len` is at least [`LOOP_BYTES_MIN`] and the CPU has AVX2.
    pub unsafe fn vector_loop(dst: *mut u8, src: *const u8, len: usize) {
        let skip = VECTOR - dst as usize % VECTOR;
        let blocks = (len - skip) / BLOCK;
        // SAFETY: `skip <= VECTOR`, `skip + blocks * BLOCK <= len` and `BLOCK <= len`, so that every load is in
        // `src .. src + len` and every store in `dst .. dst + len`; `blocks` is at least 1; prefetches
        // beyond the end neither fault nor change anything.
        unsafe {
            asm!(
                "vmovdqu ymm0, [{s}]",
                "vmovdqu ymm1, [{src_last}]",
                "vmovdqu ymm2, [{src_last} + 32]",
                "vmovdqu ymm3, [{src_last} + 64]",
                "vmovdqu ymm4, [{src_last} + 96]",
                "vmovdqu [{d}], ymm0",
                "vmovdqu [{dst_last}], ymm1",
                "vmovdqu [{dst_last} + 32], ymm2",
                "vmovdqu [{dst_last} + 64], ymm3",
                "vmovdqu [{dst_last} + 96], ymm4",
                "add {s}, {skip}",
                "add {d}, {skip}",
                ".p2align 5",
                "2:",
                "prefetchw [{d} + 1024]",
                "prefetchw [{d} + 1088]",
                "vmovdqu ymm0, [{s}]",
                "vmovdqu ymm1, [{s} + 32]",
                "vmovdqu ymm2, [{s} + 64]",
                "vmovdqu ymm3, [{s} + 96]",
                "vmovdqa [{d}], ymm0",
                "vmovdqa [{d} + 32], ymm1",
                "vmovdqa [{d} + 64], ymm2",
                "vmovdqa [{d} + 96], ymm3",
                "add {s}, 128",
                "add {d}, 128",
                "dec {blocks}",
                "jnz 2b",
                "vzeroupper",
                s = inout(reg) src => _,
                d = inout(reg) dst => _,
                skip = in(reg) skip,
                blocks = inout(reg) blocks => _,
                src_last = in(reg) src.add(len - BLOCK),
                dst_last = in(reg) dst.add(len - BLOCK),
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                options(nostack),
            );
        }
    }

    #[inline]
    pub fn prefetch(dst: u64, src: u64) {
        // SAFETY: prefetches neither fault nor change anything, whatever the addresses.
        unsafe {
            asm!("prefetcht0 [{s}]", "prefetchw [{d}]", s = in(reg) src, d = in(reg) dst,
                 options(nostack, preserves_flags, readonly));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn a_copy_changes_its_destination_alone() {
        let from: Vec<u8> = (0..2048_u32).map(|n| ((n * 7) >> 2) as u8).collect();
        for len in (0..520).chain([1023, 1024, 1500]) {
            for (skip_from, skip_to) in [(0, 0), (0, 1), (1, 0), (31, 33), (64, 63), (13, 127)] {
                let mut to = vec![0xa5_u8; 2048];
                // SAFETY: both lie within their vectors, which are distinct.
                unsafe { copy(to.as_mut_ptr().add(skip_to), from.as_ptr().add(skip_from), len) };
                assert_eq!(&to[skip_to..skip_to + len], &from[skip_from..skip_from + len], "{len} bytes");
                assert!(
                    to[..skip_to].iter().chain(&to[skip_to + len..]).all(|&byte| byte == 0xa5),
                    "{len} bytes"
                );
            }
        }
    }
}
