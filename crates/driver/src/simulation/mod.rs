//! The whole driver in one thread, under a clock, a kernel and clients that are made up: docs/design/simulation.md.
//!
//! A run follows from its seed to the instruction: which agent or client goes on next, what each client does, which calls of the
//! kernel fail, when time passes, when clients die, policies change and the driver starts anew. After each step the invariants of
//! [`World`] hold; at its end nothing fails any more, all honest streams come to theirs, and nothing is left of clients that have
//! gone.
//!
//! ```text
//! world ── next ──▶ agents: door, conductor, movers, helpers     (the product's, by their turns)
//!       ├─ next ──▶ honest clients ─▶ book: every byte that was sent
//!       ├─ next ──▶ hostile clients
//!       └─ draws ─▶ kernel: faults of calls, processes, addresses
//! ```
mod agents;
mod book;
mod honest;
mod hostile;
pub(crate) mod kernel;
mod link;
mod random;
#[cfg(test)]
mod tests;
mod world;

pub use world::Outcome;
use world::World;

/// What is broken on purpose, to see that runs find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "tests alone break things"))]
enum Mutation {
    /// A sleeper is not woken.
    LostWake,
    /// An answer to a frame goes astray between conductor and door.
    LostAnswer,
    /// A ring is given back twice.
    RingGivenTwice,
    /// A byte that was delivered is taken back.
    ByteTakenBack,
    /// A lease is never given back.
    Leak,
    /// What was held for a client that had no room is not sent.
    HeldForgotten,
    /// The end of a ring that its writer has left is not said.
    LastUnsaid,
    /// A read of a disk has no answer.
    ReadLost,
    /// What a tenant has sent does not count for its rate.
    RateForgotten,
}

/// Says how to repeat a run that fails, and takes its kernel away.
struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulation: seed {0} fails; again with: make simulate SEED={0}", self.0);
        }
        kernel::install(None);
    }
}

/// Runs a seed.
///
/// # Panics
/// If the driver does what it must not.
pub fn run(seed: u64) -> Outcome {
    run_with(seed, None)
}

fn run_with(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let _guard = Guard(seed);
    let mut world = World::new(seed, mutation);
    world.book.is_talking = std::env::var_os("TALK").is_some();
    world.run()
}
