//! Memory of the driver's clients: the budgeted pool, the regions it makes, the lines and rings in them.
mod account;
mod direct;
mod lines;
mod pool;
mod space;

pub use account::{Account, Amounts, Cap, Caps, Lease, Resource, Standing, Whose};
pub use direct::{DirectRing, Remainder};
pub use lines::{ClientMemory, Events, Requests};
pub use pool::{Exhausted, HugepageUse, Pool, Region};
pub use space::Space;
