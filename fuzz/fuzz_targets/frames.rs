//! Any bytes as frames, requests, events and commands.
//!
//! The property test `crates/shm/tests/frames.rs` runs the same oracle.
#![no_main]

#[path = "../../crates/shm/tests/oracle/frames.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oracle::run(bytes));
