//! Any bytes as frames, requests, events and commands.
//!
//! The oracle is `oracle/frames.rs`; `fuzz/fuzz_targets/frames.rs` runs the same one.
#[path = "oracle/frames.rs"]
mod oracle;

use pd_abi::{Frame, MAGIC, VERSION};
use pd_shm::Pod;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        oracle::run(&bytes);
    }

    #[test]
    fn any_entry(bytes in any::<[u8; 32]>()) {
        oracle::run(&bytes);
    }

    #[test]
    fn any_frame(kind in 0u32..12, id in any::<u32>(), text in prop::collection::vec(any::<u8>(), 88)) {
        let mut frame = Frame { magic: MAGIC, version: VERSION, kind, id, errno: 0, bytes: 0, page_bytes: 0, text: [0; 88] };
        frame.text.copy_from_slice(&text);
        oracle::run(frame.as_bytes());
    }

    #[test]
    fn any_reason(kind in 0u32..12, text in "\\PC{0,88}") {
        let mut frame = Frame { magic: MAGIC, version: VERSION, kind, id: 0, errno: 1, bytes: 0, page_bytes: 0, text: [0; 88] };
        let len = text.len().min(88);
        frame.text[..len].copy_from_slice(&text.as_bytes()[..len]);
        oracle::run(frame.as_bytes());
    }
}
