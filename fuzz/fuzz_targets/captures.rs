//! Captures of any bytes, as a port and `pd gen` read them.
//!
//! The test `crates/pipe/tests/corpus.rs` runs the same oracle.
#![no_main]

#[path = "../../crates/pipe/tests/oracle/captures.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|program: &[u8]| oracle::run(program));
