//! Conditions of a measurement, and their parameters in rows.

use std::thread::available_parallelism;

use clap::ValueEnum;
use pd_harness::config::Movers;
use serde_json::json;

use crate::row::Params;

/// A way to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Waiting {
    /// The scheme's own way: kernel sockets sleep at once, PipeDevice spins for up to 50 us.
    #[default]
    Shipped,
    /// Every wait sleeps at once.
    Blocks,
    /// Every wait spins like PipeDevice before it sleeps, by [`pd_shm::Spin`].
    Spins,
}

impl Waiting {
    /// Returns the name in rows; none for the shipped way.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Waiting::Shipped => None,
            Waiting::Blocks => Some("blocks"),
            Waiting::Spins => Some("spins"),
        }
    }
}

/// The cores that sender and receiver stay on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cores {
    /// The sender's.
    pub send: Option<usize>,
    /// The receiver's.
    pub recv: Option<usize>,
}

/// Cores of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Wherever the scheduler puts them.
    Free,
    /// On one core.
    One,
    /// On a core each.
    Two,
    /// On one core, with the driver.
    All,
}

impl Placement {
    /// Placements of the two ends that this machine has.
    pub fn of_ends() -> Vec<Placement> {
        let placements = [Placement::Free, Placement::One, Placement::Two];
        placements[..if available_parallelism().is_ok_and(|cores| cores.get() > 1) { 3 } else { 1 }].to_vec()
    }

    /// Returns the cores of the two ends.
    pub fn cores(self) -> Cores {
        match self {
            Placement::Free => Cores::default(),
            Placement::One | Placement::All => Cores { send: Some(0), recv: Some(0) },
            Placement::Two => Cores { send: Some(0), recv: Some(1) },
        }
    }

    /// Returns the parameters of rows.
    pub fn params(self) -> Params {
        match self {
            Placement::Free => Vec::new(),
            Placement::One => vec![("cores_of_ends", json!(1))],
            Placement::Two => vec![("cores_of_ends", json!(2))],
            Placement::All => vec![("cores_of_all", json!(1))],
        }
    }

    /// Returns the core that the driver stays on; any if there is none.
    pub fn driver_core(self) -> Option<usize> {
        (self == Placement::All).then_some(0)
    }
}

/// Conditions that are alike for all schemes of a run.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Way of waiting.
    pub waiting: Waiting,
    /// Tells whether the machine has hugepages and the driver takes them.
    pub hugepages: bool,
    /// Movers of the driver.
    pub movers: Movers,
    /// Bytes of the memory that senders send from in turn; the scheme's own choice if there are none.
    pub window_bytes: Option<usize>,
    /// The beginning of the names of containers.
    pub prefix: &'static str,
}

impl Default for Conditions {
    fn default() -> Self {
        Conditions {
            waiting: Waiting::Shipped,
            hugepages: true,
            movers: Movers::default(),
            window_bytes: None,
            prefix: "bench",
        }
    }
}

impl Conditions {
    /// Returns parameters of rows. Empty for shipped programs on a machine with hugepages.
    pub fn params(self) -> Params {
        let waiting = self.waiting.name().map(|name| ("waiting", json!(name)));
        let hugepages = (!self.hugepages).then_some(("hugepages", json!(false)));
        waiting.into_iter().chain(hugepages).collect()
    }
}
