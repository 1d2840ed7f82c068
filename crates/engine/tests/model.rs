//! Property test: commands of any kind, in any batches, against the model of the conformance suite.

use pd_engine::conformance::model::{check, Copy, Step};
use pd_engine::{Cpu, Fault, FaultPlan};
use proptest::prelude::*;
use std::sync::Arc;

fn copy() -> impl Strategy<Value = Copy> {
    let place = || (0..64usize, 0..12_288usize);
    (place(), place(), prop_oneof![0..600usize, 0..12_288usize], 0..24u8)
        .prop_map(|(src, dst, len, kind)| Copy { src, dst, len, kind })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        prop::collection::vec(copy(), 0..40).prop_map(Step::Submit),
        (0..60usize).prop_map(Step::Reap),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn cpu(steps in steps()) {
        check(&Cpu::new(), &steps);
    }

    #[test]
    fn fault_late_and_out_of_order(steps in steps(), seed: u64, delay_reaps_max in 0..5u32, reorder: bool) {
        let plan = FaultPlan { seed, delay_reaps_max, reorder, ..Default::default() };
        check(&Fault::new(Arc::new(Cpu::new()), plan), &steps);
    }
}
