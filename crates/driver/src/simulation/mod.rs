//! The whole driver in one thread, with a simulated clock, kernel and clients: docs/design/simulation.md.
//!
//! A run follows from its seed to the instruction: the order of agents and clients, each client's actions, failing calls of the
//! kernel, and time. So do deaths of clients, changes of the policy, restarts and take-overs of the driver. After each step the invariants of
//! [`World`] hold. At the end faults stop, all honest streams end, and nothing is left of clients that have gone.
//!
//! ```text
//! world ── next ──▶ agents: door, conductor, movers, helpers     (the product's, by their turns)
//!       ├─ next ──▶ honest clients ─▶ book: every byte that was sent
//!       ├─ next ──▶ hostile clients
//!       └─ draws ─▶ kernel: faults of calls, processes, addresses
//! ```
mod agents;
mod arriving;
mod book;
mod honest;
mod hostile;
pub(crate) mod kernel;
mod link;
mod random;
pub mod shaken;
#[cfg(test)]
mod tests;
mod world;

pub use world::Outcome;
use world::World;

/// A deliberate fault, to check that runs find it.
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
    /// Data held for a client without room is not sent.
    HeldForgotten,
    /// The end of a ring that its writer has left is not published.
    LastUnsaid,
    /// A read of a disk has no answer.
    ReadLost,
    /// A byte that a previous client has not read is not given to its successor.
    ByteNotMoved,
    /// A client is told too early that its peer has left for the kernel.
    ElsewhereTooEarly,
    /// A tenant's sends do not count for its rate.
    RateForgotten,
    /// Bytes that a process has claimed in a ring do not count when another one takes the end.
    ClaimIgnored,
    /// A previous owner is told that all its bytes in a ring count.
    EndsUnfixed,
    /// A previous owner is told that all bytes that it has read out of its receive ring count.
    ReceivedUnfixed,
}

impl Mutation {
    /// Tells whether the fault is about processes that use one end without a common lock.
    fn is_about_moves(self) -> bool {
        matches!(self, Self::ClaimIgnored | Self::EndsUnfixed | Self::ReceivedUnfixed)
    }
}

/// Prints how to repeat a run that fails, and removes its kernel.
struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulation: seed {0} fails; again with: make simulate SEED={0}", self.0);
        }
        kernel::install(None);
    }
}

/// Passes on the conductor of a driver that has served the clients of a seed for some steps.
#[cfg(test)]
pub(crate) fn with_conductor(seed: u64, act: impl FnOnce(&mut crate::conductor::Conductor)) {
    let _guard = Guard(seed);
    let mut world = World::new(seed, None);
    world.advance(1000);
    act(world.conductor());
}

/// Runs a seed.
///
/// # Panics
/// If the driver violates an invariant.
pub fn run(seed: u64) -> Outcome {
    run_with(seed, None)
}

fn run_with(seed: u64, mutation: Option<Mutation>) -> Outcome {
    let _guard = Guard(seed);
    let mut world = World::new(seed, mutation);
    world.book.is_talking = std::env::var_os("TALK").is_some();
    world.run()
}
