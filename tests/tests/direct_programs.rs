//! The tests of whole programs, whose containers are one tenant's, so that their bytes go directly.
#[path = "programs/main.rs"]
mod programs;
