//! The tests of mirrors of connections, with several movers.
#[path = "mirrors.rs"]
mod mirrors;
