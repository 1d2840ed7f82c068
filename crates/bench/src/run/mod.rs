//! Running of benchmarks: the peers, their streams, and the rounds.

pub mod attacker;
pub mod interleave;
pub mod pacing;
pub mod pair;
pub mod peer;
pub mod program;
pub mod share;
pub mod sidecar;
pub mod stand;
pub mod stream;
pub mod times;
pub mod undisturbed;
