//! A program that writes anything into the memory of its pipe, beside two honest ones.
//!
//! The property test `crates/pipe/tests/hostile.rs` runs the same oracle.
#![no_main]

#[path = "../../crates/pipe/tests/oracle/hostile.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|program: &[u8]| oracle::run(program));
