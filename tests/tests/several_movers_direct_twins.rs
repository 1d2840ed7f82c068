//! The tests of twins on the direct path, with three movers.
#[path = "direct_twins.rs"]
mod direct_twins;
