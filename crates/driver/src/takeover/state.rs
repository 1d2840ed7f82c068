//! State that another driver goes on with.
use crate::conductor::ConductorState;
use crate::door::DoorState;
use crate::mover::takeover::MoverState;
use serde::{Deserialize, Serialize};

/// A state: JSON, with descriptors by their places.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The text of the policy in force.
    pub policy: Option<String>,
    pub conductor: ConductorState,
    pub movers: Vec<MoverState>,
    pub door: DoorState,
}
