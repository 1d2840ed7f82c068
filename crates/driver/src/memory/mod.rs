//! Memory of the driver's clients: the budgeted pool, the regions it makes, the lines and rings in them.
mod account;
mod direct;
mod lines;
mod pool;
mod space;
mod takeover;

/// Memory that clients may still hold when the driver no longer needs it.
pub trait Lent: std::fmt::Debug + Send + Sync {
    /// Returns whether no client holds it any more. A dead client's memory may have gone to another process.
    fn is_let_go(&self) -> bool;
}

pub use account::{Account, Amounts, Cap, Caps, Lease, Resource, Standing, Whose};
pub use direct::{DirectRing, RingEnds, UndrainedRing, UnpaidRing};
pub use lines::{ClientMemory, Events, Requests};
pub use pool::{Cold, Exhausted, HugepageUse, Pool, Region, Shelves};
pub use space::Space;
pub use takeover::RegionState;
