//! The suite that every engine passes: the driver relies on the behaviour that it checks.
//!
//! Instantiate it where the engine's tests are:
//!
//! ```
//! pd_engine::conformance_suite!(cpu, pd_engine::Cpu::new);
//! ```
//!
//! or call [`run`], or one of the functions, on an engine. Each takes queue pairs of its own, panics
//! at the first promise of [`Engine`] and [`QueuePair`] that is broken,
//! and depends on no other. Engines that are not synchronous get a minute for whatever is in flight.
//! No function measures time otherwise, so the suite holds on loaded machines; under Miri it takes fewer steps.

mod copies;
mod errors;
mod memory;
pub mod model;
mod pairs;
mod queue;

pub use copies::{every_size, odd_alignments, one_source_many_destinations};
pub use errors::{bad_commands, good_among_bad};
pub use model::random_against_model;
pub use pairs::{drop_in_flight, full_pair_blocks_no_other, threads};
pub use queue::{
    batches, capability, depth, depth_returns_one_by_one, layout_echo, nothing, order, wrap_around,
};

use crate::{Engine, QueuePair};
use pd_abi::Command;
use std::time::{Duration, Instant};

/// Makes a module `$suite` with one `#[test]` per function of this module; `$make` returns an engine.
#[macro_export]
macro_rules! conformance_suite {
    ($suite:ident, $make:expr) => {
        mod $suite {
            #[allow(unused_imports)]
            use super::*;
            $crate::conformance_suite!(@list test ($make));
        }
    };
    (@list $what:ident $with:tt) => {
        $crate::conformance_suite!(@$what $with
            capability layout_echo depth depth_returns_one_by_one wrap_around batches order nothing
            every_size odd_alignments one_source_many_destinations
            bad_commands good_among_bad
            full_pair_blocks_no_other threads drop_in_flight
            random_against_model);
    };
    (@test ($make:expr) $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                let make = $make;
                $crate::conformance::$name(&make());
            }
        )*
    };
    (@call ($engine:expr) $($name:ident)*) => {
        $( $crate::conformance::$name($engine); )*
    };
}

/// Runs the whole suite.
pub fn run(engine: &dyn Engine) {
    conformance_suite!(@list call (engine));
}

/// Reaps, `room` at a time, until nothing is in flight.
fn drain(engine: &dyn Engine, pair: &mut dyn QueuePair, room: usize) -> Vec<Command> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let synchronous = engine.capability().synchronous;
    let start = Instant::now();
    let mut all = Vec::new();
    let mut some = vec![Command::default(); room];
    while pair.in_flight() > 0 {
        let before = pair.in_flight();
        let reaped = pair.reap(&mut some);
        assert!(reaped <= room.min(before), "reap returned {reaped} of {before} into room for {room}");
        assert_eq!(pair.in_flight(), before - reaped, "in_flight goes down by what reap returns");
        if reaped == 0 {
            assert!(!synchronous, "a synchronous engine's reap makes progress");
            assert!(start.elapsed() < PATIENCE, "{before} commands in flight and no completion");
            std::thread::yield_now();
        }
        all.extend_from_slice(&some[..reaped]);
    }
    all
}

/// Submits commands, reaping whenever the queue is full, and returns all completions.
///
/// # Safety
///
/// As for [`QueuePair::submit`].
unsafe fn execute(engine: &dyn Engine, pair: &mut dyn QueuePair, commands: &[Command]) -> Vec<Command> {
    let mut completions = Vec::new();
    let mut rest = commands;
    while !rest.is_empty() {
        // SAFETY: the caller's promise.
        let accepted = unsafe { pair.submit(rest) };
        rest = &rest[accepted..];
        completions.extend(drain(engine, pair, 64));
    }
    completions
}

/// Returns `full` natively, and `less` under Miri, which is some thousand times slower.
const fn unless_miri(full: usize, less: usize) -> usize {
    if cfg!(miri) {
        less
    } else {
        full
    }
}
