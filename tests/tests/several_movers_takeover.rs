//! The tests of take-overs, with several movers, between which things go all the time.
#[path = "takeover.rs"]
mod takeover;
