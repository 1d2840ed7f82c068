//! The tests of twins, with three movers: who descends from a process has the same one, and so may take its connections.
#[path = "twins.rs"]
mod twins;
