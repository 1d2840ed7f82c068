//! The tests of streams, of the C programs and of several movers, over the direct path.
#[path = "c_api.rs"]
mod c_api;
#[path = "several_movers.rs"]
mod several_movers;
#[path = "stream.rs"]
mod stream;
