//! The ring against a model: honest use, and counters forged by either side.
//!
//! The oracle is `oracle/ring.rs`; `fuzz/fuzz_targets/ring.rs` runs the same one.
#[path = "oracle/ring.rs"]
mod oracle;

use oracle::Place;
use pd_shm::ring::{Broken, Consumer, Producer};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn behaves_like_a_queue(capacity in 0u8..7, program in honest(400)) {
        let mut bytes = vec![capacity];
        bytes.extend(program);
        oracle::run(&bytes);
    }

    #[test]
    fn survives_any_program(program in prop::collection::vec(any::<u8>(), 0..600)) {
        oracle::run(&program);
    }
}

/// Programs without forged counters, so that the order is checked to the end.
fn honest(steps: usize) -> impl Strategy<Value = Vec<u8>> {
    let step = prop_oneof![
        3 => (prop_oneof![Just(0u8), Just(2)], any::<u8>()).prop_map(|(operation, count)| vec![operation, count]),
        3 => prop_oneof![Just(1u8), Just(3), Just(6), Just(7)].prop_map(|operation| vec![operation]),
    ];
    prop::collection::vec(step, 1..steps).prop_map(|steps| steps.concat())
}

/// Every counter that cannot be is noticed at the first look.
#[test]
fn forged_counters_are_broken() {
    for capacity in [1u64, 2, 64] {
        for forged in [capacity + 1, capacity + 2, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX] {
            let place = oracle::Shared::new(capacity);
            let mut consumer = Consumer::new(place.consumer_cells());
            place.forge_producer(forged);
            assert_eq!(consumer.available(), Err(Broken), "producer {forged} of {capacity}");
            assert_eq!(consumer.read(), Err(Broken));
            assert_eq!(consumer.position(), 0);

            let mut producer = Producer::new(place.producer_cells());
            for number in 0..capacity {
                assert_eq!(producer.write(oracle::Shared::entry(number)), Ok(true));
            }
            place.forge_consumer(1);
            assert_eq!(producer.room(), Err(Broken), "given back before it was published");
            assert_eq!(producer.publish(), capacity);
            place.forge_consumer(forged);
            assert_eq!(producer.room(), Err(Broken), "consumer {forged} of {capacity}");
            assert_eq!(producer.write(oracle::Shared::entry(9)), Err(Broken));
            place.check_surroundings();
        }
    }
}

/// A consumer's counter that runs backwards is impossible as well.
#[test]
fn counters_never_run_backwards() {
    let place = oracle::Shared::new(4);
    let mut producer = Producer::new(place.producer_cells());
    let mut consumer = Consumer::new(place.consumer_cells());
    for number in 0..8 {
        assert_eq!(producer.write(oracle::Shared::entry(number)), Ok(true));
        producer.publish();
        assert!(consumer.read().is_ok_and(|entry| entry.is_some()));
        consumer.release();
    }
    place.forge_consumer(3);
    place.forge_producer(7);
    assert_eq!(consumer.available(), Err(Broken));
    for number in 8..16 {
        let got = producer.write(oracle::Shared::entry(number));
        if got.is_err() {
            return;
        }
        producer.publish();
    }
    panic!("a consumer's counter that ran backwards was believed");
}
