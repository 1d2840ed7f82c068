//! The conformance suite for the simulated hardware. Without Verilator there is none: `make test` installs it; elsewhere
//! each test says on standard error that it was left out, unless PD_RTL_REQUIRED is set.

use pd_engine::{conformance, Engine};
use pd_engine_rtl::{Counts, Rtl};

fn engine() -> Option<Rtl> {
    match Rtl::new(None) {
        Ok(engine) => Some(engine),
        Err(error) if std::env::var_os("PD_RTL_REQUIRED").is_none() => {
            eprintln!("left out: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Runs one function of the suite, and looks at what went over the slot.
fn check(function: fn(&dyn Engine)) {
    let Some(engine) = engine() else { return };
    function(&engine);
    let Counts { refused, malformed, .. } = engine.counts();
    assert_eq!((refused, malformed), (0, 0), "the card touched what no command names, or broke a rule of PCIe");
}

macro_rules! suite {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(conformance::$name);
            }
        )*
    };
}

suite!(capability layout_echo depth depth_returns_one_by_one wrap_around batches order nothing
    every_size odd_alignments one_source_many_destinations
    bad_commands good_among_bad
    full_pair_blocks_no_other threads drop_in_flight
    random_against_model);
