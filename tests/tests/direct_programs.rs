//! The tests of whole programs in containers of one tenant, so that their bytes go directly.
#[path = "programs/main.rs"]
mod programs;
