//! A mover against a client that writes anything into its control region.
//!
//! The property tests in `crates/driver/src/testing` run the same oracle.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| pd_driver::testing::run(program));
