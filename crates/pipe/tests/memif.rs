//! Clients of memif: hostile ones, and those that sleep.
#![cfg(not(loom))]

#[path = "oracle/memif.rs"]
mod oracle;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_port_survives_any_client_of_memif(program in prop::collection::vec(any::<u8>(), 0..400)) {
        oracle::run(&program);
    }
}
