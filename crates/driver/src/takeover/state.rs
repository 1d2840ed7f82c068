//! State that another driver goes on with.
use super::pack::Wrong;
use crate::conductor::ConductorState;
use crate::door::DoorState;
use crate::mover::takeover::MoverState;
use crate::pipes::NicState;
use rustix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time since a fixed moment, which is the same one for all processes of the machine.
pub fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Stops of the giving driver.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stops {
    /// Begin of the present one, by [`now`].
    pub since: Duration,
    /// Number of stops, with the present one.
    pub attempts: u32,
    /// Time of those before.
    pub earlier: Duration,
}

/// A state, with descriptors by their places.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub stops: Stops,
    /// The text of the policy in force.
    pub policy: Option<String>,
    pub conductor: ConductorState,
    pub movers: Vec<MoverState>,
    pub door: DoorState,
    /// State of the agent of pipes, if it has started.
    pub nic: Option<NicState>,
}

impl State {
    /// Returns the state as bytes: each field in the order of its declaration, without names.
    ///
    /// # Errors
    /// A lack of memory.
    pub fn to_bytes(&self) -> std::io::Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(std::io::Error::other)
    }

    /// Reads a state. The bytes are hostile: lengths are bounded by the bytes that are there.
    ///
    /// # Errors
    /// If the bytes are not a state to their end.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Wrong> {
        let (state, rest) = postcard::take_from_bytes(bytes)
            .map_err(|error| Wrong::of(format!("the state cannot be read: {error}")))?;
        Wrong::unless(rest.is_empty(), || format!("{} bytes follow the state", rest.len()))?;
        Ok(state)
    }
}
