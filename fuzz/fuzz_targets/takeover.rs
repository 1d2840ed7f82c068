//! A driver that takes over a state which somebody has changed: bytes, fields and descriptors.
//!
//! The tests in `crates/driver/src/simulation` run the same oracle.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| {
    pd_driver::simulation::shaken::run(program);
});
