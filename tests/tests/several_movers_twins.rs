//! The tests of twins, with three movers: a child process has its parent's mover, and may thus take its connections.
#[path = "twins.rs"]
mod twins;
