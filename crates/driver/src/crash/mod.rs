//! Recovery: a driver goes on where one that was killed has ended. See `docs/design/crash.md`.
//!
//! A running driver leaves two things with the service manager, which passes them to the next driver:
//! - a *snapshot*: the state of a take-over ([`crate::takeover`]) with all its descriptors, taken whenever something but bytes has changed;
//! - the *marks*: words beside it that say what has changed since, and how far each flow and request ring is.
//!
//! The next driver takes the snapshot as it would take the state of a running driver, with the same checks. What the marks do not prove to be
//! as the snapshot says is reset.
//!
//! - [`marks`] has these words.
//! - [`store`] speaks with the service manager.
//! - [`keeping`] takes snapshots.
//! - [`kept`] finds what a driver has left.
pub mod keeping;
pub mod kept;
pub mod marks;
pub mod store;
