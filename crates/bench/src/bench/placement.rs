//! Where the two ends of a connection run.

use std::thread::available_parallelism;

use serde_json::json;

use crate::row::Params;
use crate::run::pair::Cores;
use crate::run::stand::Conditions;

/// Where the two ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the scheduler puts them.
    Free,
    /// On one core.
    One,
    /// On a core each.
    Two,
}

impl Placement {
    /// Placements that this machine has.
    pub fn all() -> Vec<Placement> {
        let placements = [Placement::Free, Placement::One, Placement::Two];
        placements[..if available_parallelism().is_ok_and(|cores| cores.get() > 1) { 3 } else { 1 }].to_vec()
    }

    /// The cores of the two ends.
    pub fn cores(self) -> Cores {
        match self {
            Placement::Free => Cores::default(),
            Placement::One => Cores { send: Some(0), recv: Some(0) },
            Placement::Two => Cores { send: Some(0), recv: Some(1) },
        }
    }

    /// Returns what rows say of it.
    pub fn params(self) -> Params {
        match self {
            Placement::Free => Vec::new(),
            Placement::One => vec![("cores_of_ends", json!(1))],
            Placement::Two => vec![("cores_of_ends", json!(2))],
        }
    }
}

/// Returns what rows say of conditions other than those of shipped programs on a machine with hugepages.
pub fn conditions(conditions: Conditions) -> Params {
    let waiting = conditions.waiting.name().map(|name| ("waiting", json!(name)));
    let hugepages = (!conditions.hugepages).then_some(("hugepages", json!(false)));
    waiting.into_iter().chain(hugepages).collect()
}
