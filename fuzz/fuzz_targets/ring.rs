//! Rings of one producer and one consumer, with counters forged by either side.
//!
//! The property test `crates/shm/tests/ring_model.rs` runs the same oracle.
#![no_main]

#[path = "../../crates/shm/tests/oracle/ring.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|program: &[u8]| oracle::run(program));
