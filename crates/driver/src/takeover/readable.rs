//! States as JSON, which names each field: for tests, and for people.
use super::state::State;
use serde_json::Value;

/// Returns a state that one driver sends to another as JSON.
///
/// # Errors
/// The fault in it.
pub fn from_bytes(bytes: &[u8]) -> Result<Value, String> {
    let state = State::from_bytes(bytes).map_err(|wrong| wrong.to_string())?;
    serde_json::to_value(state).map_err(|error| error.to_string())
}

/// Returns the bytes by which a driver sends such a state to another one.
///
/// # Errors
/// The fault in it.
pub fn to_bytes(state: Value) -> Result<Vec<u8>, String> {
    let state: State = serde_json::from_value(state).map_err(|error| error.to_string())?;
    state.to_bytes().map_err(|error| error.to_string())
}
