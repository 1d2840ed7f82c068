//! The catalogue of benchmarks: schemes, where their ends live and run, and how they wait.
//!
//! Each is declared here once. A benchmark picks from the lists, and reports name its rows by them. Implementations are in
//! [`crate::scheme`] and [`crate::waiting`].

mod conditions;
mod lines;
mod scheme;

pub use conditions::{Conditions, Cores, Placement, Waiting};
pub use scheme::{Place, Scheme, LIMITS, PEERS};
