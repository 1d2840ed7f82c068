//! The candidates: every way to copy that was considered for the `cpu` engine.

/// Copies `len` bytes.
///
/// # Safety
///
/// As [`std::ptr::copy_nonoverlapping`].
pub type Kernel = unsafe fn(dst: *mut u8, src: *const u8, len: usize);

/// Returns the candidates that this machine can run: the engine's own; `ptr::copy_nonoverlapping`; `rep
/// movsb`; loops over four vectors of 256 or 512 bits. Variants of loops: plain, asking for ownership of the
/// destination 1 KB ahead (`+w`), also prefetching the source (`+rw`), with non-temporal stores (`nt`).
pub fn candidates() -> Vec<(&'static str, Kernel)> {
    let mut all: Vec<(&'static str, Kernel)> = vec![("engine", pd_shm::copy::copy), ("memcpy", memcpy)];
    #[cfg(target_arch = "x86_64")]
    {
        all.push(("movsb", x86::rep_movsb));
        if is_x86_feature_detected!("avx2") {
            all.push(("256", x86::avx2));
        }
        if is_x86_feature_detected!("avx512f") {
            all.push(("512", x86::avx512));
            all.push(("512+w", x86::avx512_own));
            all.push(("512+rw", x86::avx512_own_read));
            all.push(("512nt", x86::avx512_nontemporal));
        }
    }
    all
}

unsafe fn memcpy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    pub unsafe fn rep_movsb(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: reads `len` bytes at `src` and writes as many at `dst`, which the caller promises are
        // there and disjoint; the direction flag is clear by the calling convention.
        unsafe {
            asm!("rep movsb", inout("rdi") dst => _, inout("rsi") src => _, inout("rcx") len => _,
                 options(nostack, preserves_flags))
        }
    }

    /// A loop over four vectors. It copies an unaligned first vector, then stores aligned to `$width`, then
    /// the last four vectors again, unaligned and overlapping the loop's bytes.
    macro_rules! vector_loop {
        ($name:ident, $width:literal, $reg:literal, $load:literal, $store:literal, [$($ahead:literal),*], $end:literal) => {
            pub unsafe fn $name(dst: *mut u8, src: *const u8, len: usize) {
                const BLOCK: usize = 4 * $width;
                if len < 2 * BLOCK {
                    // SAFETY: the caller's promise.
                    return unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
                }
                // SAFETY: every access is in `src .. src + len` or `dst .. dst + len` because `len` is at
                // least two blocks; prefetches do not fault; the candidate list checked the features.
                unsafe {
                    let skip = $width - dst as usize % $width;
                    let blocks = (len - skip) / BLOCK;
                    asm!(
                        concat!($load, " ", $reg, "0, [{s}]"),
                        concat!($load, " ", $reg, "1, [{tail_s}]"),
                        concat!($load, " ", $reg, "2, [{tail_s} + ", $width, "]"),
                        concat!($load, " ", $reg, "3, [{tail_s} + 2*", $width, "]"),
                        concat!($load, " ", $reg, "4, [{tail_s} + 3*", $width, "]"),
                        concat!($load, " [{d}], ", $reg, "0"),
                        concat!($load, " [{tail_d}], ", $reg, "1"),
                        concat!($load, " [{tail_d} + ", $width, "], ", $reg, "2"),
                        concat!($load, " [{tail_d} + 2*", $width, "], ", $reg, "3"),
                        concat!($load, " [{tail_d} + 3*", $width, "], ", $reg, "4"),
                        "add {s}, {skip}",
                        "add {d}, {skip}",
                        ".p2align 5",
                        "2:",
                        $($ahead,)*
                        concat!($load, " ", $reg, "0, [{s}]"),
                        concat!($load, " ", $reg, "1, [{s} + ", $width, "]"),
                        concat!($load, " ", $reg, "2, [{s} + 2*", $width, "]"),
                        concat!($load, " ", $reg, "3, [{s} + 3*", $width, "]"),
                        concat!($store, " [{d}], ", $reg, "0"),
                        concat!($store, " [{d} + ", $width, "], ", $reg, "1"),
                        concat!($store, " [{d} + 2*", $width, "], ", $reg, "2"),
                        concat!($store, " [{d} + 3*", $width, "], ", $reg, "3"),
                        concat!("add {s}, 4*", $width),
                        concat!("add {d}, 4*", $width),
                        "dec {blocks}",
                        "jnz 2b",
                        $end,
                        "vzeroupper",
                        s = inout(reg) src => _,
                        d = inout(reg) dst => _,
                        skip = in(reg) skip,
                        blocks = inout(reg) blocks => _,
                        tail_s = in(reg) src.add(len - BLOCK),
                        tail_d = in(reg) dst.add(len - BLOCK),
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _,
                        options(nostack),
                    );
                }
            }
        };
    }

    vector_loop!(avx2, 32, "ymm", "vmovdqu", "vmovdqa", [], "");
    vector_loop!(avx512, 64, "zmm", "vmovdqu64", "vmovdqa64", [], "");
    vector_loop!(
        avx512_own,
        64,
        "zmm",
        "vmovdqu64",
        "vmovdqa64",
        [
            "prefetchw [{d} + 1024]",
            "prefetchw [{d} + 1088]",
            "prefetchw [{d} + 1152]",
            "prefetchw [{d} + 1216]"
        ],
        ""
    );
    vector_loop!(
        avx512_own_read,
        64,
        "zmm",
        "vmovdqu64",
        "vmovdqa64",
        [
            "prefetcht0 [{s} + 1024]",
            "prefetcht0 [{s} + 1088]",
            "prefetcht0 [{s} + 1152]",
            "prefetcht0 [{s} + 1216]",
            "prefetchw [{d} + 1024]",
            "prefetchw [{d} + 1088]",
            "prefetchw [{d} + 1152]",
            "prefetchw [{d} + 1216]"
        ],
        ""
    );
    vector_loop!(avx512_nontemporal, 64, "zmm", "vmovdqu64", "vmovntdq", [], "sfence");
}
