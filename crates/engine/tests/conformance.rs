//! The conformance suite for the engines of this crate.

use pd_engine::{by_name, conformance_suite, Cpu, Fault, FaultPlan};
use std::sync::Arc;

conformance_suite!(cpu, Cpu::new);
conformance_suite!(fault, || by_name("fault").expect("a known engine"));
conformance_suite!(fault_that_delays, || late(false));
conformance_suite!(fault_that_reorders, || late(true));

fn late(reorder: bool) -> Fault {
    Fault::new(Arc::new(Cpu::new()), FaultPlan { seed: 3, delay_reaps_max: 9, reorder, ..Default::default() })
}
