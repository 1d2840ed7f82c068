//! The gate: the kernel's half of the policy.
//!
//! Connections that stay on the kernel pass two programs at the root of the control groups (`gate.bpf.c`). One decides on each `connect`,
//! one counts connections. A third drops packets that a tenant sends beyond its rate. They look up entries that the [`Keeper`] has put
//! into their maps: owners of network namespaces, control groups and addresses, and the verdicts of the policy.
//!
//! - [`plan`] compiles a policy into these entries, and does nothing else.
//! - [`services`] puts service addresses and their backends there, too, and [`sidecars`] the proxies of rules.
//! - [`health`] finds out which backends are up.
//! - [`program`] loads the programs before the driver is confined, and attaches them while a policy needs them. [`lasting`] has the maps
//!   that go to the next driver.
//! - [`words`] is the memory that the kernel and the driver share: counts, limits, and the generation in force.
//! - [`spaces`] knows the network namespaces, [`sweep`] ends open connections that a new policy denies.
//! - [`scene`] has everything that a policy can name, and [`known`] derives the effects of a change. [`generation`] has the
//!   entries.
//! - [`keeper`] is the thread that drives the others.
//!
//! A policy is *staged* first: its entries are added under a new generation, where nothing finds them. Then the conductor puts its own
//! half and this one in force by one store ([`Words::flip`]), or discards the entries. Namespaces and groups that come and go under a
//! policy in force add and remove their own entries. The programs and their maps belong to the kernel. They stay in force when the driver
//! dies, until the next driver replaces them.
mod generation;
mod health;
mod keeper;
mod known;
mod lasting;
mod outcome;
mod plan;
mod program;
mod scene;
mod services;
mod sidecars;
mod spaces;
mod sweep;
mod table;
mod words;

pub(crate) use keeper::{Gate, InForce, Keeper, Sealed, ToGate};
pub(crate) use lasting::Lasting;
pub(crate) use outcome::Outcome;
pub(crate) use plan::binds;
pub use plan::unbound;
pub use program::unavailable;
pub(crate) use program::HOST_CGROUP;
pub(crate) use scene::{Changes, Space, World};
pub(crate) use words::{Staged, TenantWords, Words, RULES};
