//! A client of memif that says and writes anything, and an honest one after it.
//!
//! The property test `crates/pipe/tests/memif.rs` runs the same oracle.
#![no_main]

#[path = "../../crates/pipe/tests/oracle/memif.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|program: &[u8]| oracle::run(program));
