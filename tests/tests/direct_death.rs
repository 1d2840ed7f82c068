//! The tests of dying clients, over the direct path.
#[path = "death.rs"]
mod death;
