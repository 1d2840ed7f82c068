//! The processor: whether it runs this program, and work that gains by instructions that not every one has.
#![allow(unsafe_code)]

use twox_hash::XxHash3_64;

/// Returns the features that the processor lacks and that this program was built for (x86-64-v2), as a sentence. To be called
/// first of all, by code that needs none of them.
#[inline(never)]
pub fn complaint() -> Option<String> {
    let missing = missing();
    (!missing.is_empty()).then(|| {
        format!(
            "this processor lacks {}; PipeDevice needs x86-64-v2, which is SSE4.2 and POPCNT",
            missing.join(", ")
        )
    })
}

#[cfg(target_arch = "x86_64")]
fn missing() -> Vec<&'static str> {
    use std::arch::x86_64::__cpuid;
    const LEVEL_2: [(&str, u32); 6] =
        [("SSE3", 0), ("SSSE3", 9), ("CMPXCHG16B", 13), ("SSE4.1", 19), ("SSE4.2", 20), ("POPCNT", 23)];
    #[allow(unused_unsafe)] // Newer compilers know that it is safe.
    // SAFETY: every x86-64 processor has the instruction, and these two leaves. (`is_x86_feature_detected` would not
    // look: what the compiler may use it takes for given.)
    let (features, more) = unsafe { (__cpuid(1).ecx, __cpuid(0x8000_0001).ecx) };
    let lacks = LEVEL_2.into_iter().filter(|(_, bit)| features >> bit & 1 == 0).map(|(name, _)| name);
    lacks.chain((more & 1 == 0).then_some("LAHF")).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn missing() -> Vec<&'static str> {
    Vec::new()
}

/// Returns XXH3 of `bytes`. The crate also chooses by itself, but again for each 64 bytes if the rest is built for less.
pub fn xxh3(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature has just been found.
        return unsafe { xxh3_avx2(bytes) };
    }
    XxHash3_64::oneshot(bytes)
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn xxh3_avx2(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Changes every byte by `key`, 64-bit word by word.
pub(crate) fn change_words(bytes: &mut [u8], key: u64) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the feature has just been found.
        return unsafe { change_words_avx2(bytes, key) };
    }
    change(bytes, key);
}

/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn change_words_avx2(bytes: &mut [u8], key: u64) {
    change(bytes, key);
}

#[inline(always)]
fn change(bytes: &mut [u8], key: u64) {
    let mut words = bytes.chunks_exact_mut(8);
    for word in &mut words {
        let value = u64::from_ne_bytes((&*word).try_into().expect("eight bytes"));
        word.copy_from_slice(&(value ^ key).to_ne_bytes());
    }
    for byte in words.into_remainder() {
        *byte ^= key as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_suffices() {
        assert_eq!(complaint(), None);
    }

    #[test]
    fn wide_and_narrow_registers_do_the_same() {
        let bytes: Vec<u8> = (0..1003u32).map(|n| n as u8).collect();
        let (mut chosen, mut narrow) = (bytes.clone(), bytes);
        change_words(&mut chosen, 0x0102_0304_0506_0708);
        change(&mut narrow, 0x0102_0304_0506_0708);
        assert_eq!(chosen, narrow);
    }
}
