//! Rounds on a machine that others disturb: repeated, and discarded if that does not help.

use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use anyhow::Result;
use pd_harness::measure::cores::{Cores, Watch};
use pd_harness::measure::cpu::MachineTimes;

/// Most repeats of a round in which the machine was disturbed. The last one is discarded if time was stolen in it.
const REPEATS: u32 = 2;
/// The pause before a disturbed round is repeated.
const DISTURBANCE: Duration = Duration::from_millis(500);

/// The machine around a round.
#[derive(Debug)]
pub struct Around {
    /// Repeats of the round.
    pub repeats: u32,
    /// Two cores before and after it, if there are two.
    pub cores: Vec<Cores>,
}

/// Does the work of a round, again if the machine was disturbed. Returns no result if too much time was stolen each time. Without a watch
/// the work is done once, and kept.
pub fn undisturbed<T>(
    watch: &mut Option<Watch>,
    mut work: impl FnMut() -> Result<T>,
) -> Result<(Option<T>, Around)> {
    let Some(watch) = watch else {
        return Ok((Some(work()?), Around { repeats: 0, cores: Vec::new() }));
    };
    let count = available_parallelism().map_or(1, usize::from) as f64;
    let mut repeats = 0;
    loop {
        let before = Cores::measure();
        let (times, begun) = (MachineTimes::now()?, Instant::now());
        let done = work()?;
        let stolen = (MachineTimes::now()? - times).steal_s / (begun.elapsed().as_secs_f64() * count);
        let cores: Vec<Cores> = before.into_iter().chain(Cores::measure()).collect();
        let is_disturbed = watch.is_disturbed(&cores, stolen);
        if is_disturbed && repeats < REPEATS {
            repeats += 1;
            sleep(DISTURBANCE);
            continue;
        }
        let kept = (!is_disturbed || stolen <= Watch::STOLEN).then_some(done);
        return Ok((kept, Around { repeats, cores }));
    }
}
