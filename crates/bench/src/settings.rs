//! Settings of a run.

use crate::catalogue::Scheme;
use crate::row::Params;
use pd_harness::measure::cores::Watch;

/// Settings of a benchmark.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Fewer parameters and shorter rounds.
    pub quick: bool,
    /// Rounds.
    pub rounds: usize,
    /// Seconds of one round, about.
    pub round_s: f64,
    /// Schemes; all of a benchmark if empty.
    pub schemes: Vec<Scheme>,
    /// Parameters that rows have to have, and their values, of which a name may have several; all rows if empty.
    pub only: Vec<(String, String)>,
    /// PipeDevice's engine.
    pub engine: String,
    /// Does each round once, on a machine that others may disturb: a test of the benchmark, with meaningless figures.
    pub smoke: bool,
}

impl Settings {
    /// Returns the watch over the machine during rounds, if disturbed ones do not count.
    pub fn watch(&self) -> Option<Watch> {
        (!self.smoke).then(Watch::default)
    }

    /// Returns whether rows with these parameters are wanted.
    pub fn wants(&self, params: &Params) -> bool {
        let has = |name: &str, value: &str| {
            // Texts as they are, anything else as in JSON.
            params
                .iter()
                .any(|(n, v)| *n == name && v.as_str().map_or_else(|| v.to_string(), str::to_owned) == value)
        };
        // Of several values of one name, any.
        self.only
            .iter()
            .all(|(name, _)| self.only.iter().any(|(other, value)| other == name && has(name, value)))
    }

    /// Returns the wanted ones of a benchmark's schemes.
    pub fn among(&self, all: &[Scheme]) -> Vec<Scheme> {
        all.iter().copied().filter(|s| self.schemes.is_empty() || self.schemes.contains(s)).collect()
    }

    /// Returns one of two lists.
    pub fn pick<T: Clone>(&self, quick: &[T], full: &[T]) -> Vec<T> {
        if self.quick {
            quick.to_vec()
        } else {
            full.to_vec()
        }
    }
}
