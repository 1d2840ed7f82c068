//! States as JSON, which names each field: for tests, which change them, and for people.
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

/// Returns the number of leaves: numbers, words, and the lengths of lists.
fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(leaves).sum::<usize>(),
        Value::Object(fields) => fields.values().map(leaves).sum(),
        _ => 1,
    }
}

/// Changes one leaf of a state, by its number, for tests of whoever takes it. `how` chooses from the values that the leaf may get.
pub fn change_leaf(value: &mut Value, leaf: usize, how: usize) {
    let count = leaves(value).max(1);
    let mut left = leaf % count;
    if let Some(leaf) = leaf_mut(value, &mut left) {
        change_value(leaf, how);
    }
}

fn leaf_mut<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    let is_leaf = !value.is_object();
    if is_leaf && *left == 0 {
        return Some(value);
    }
    *left -= usize::from(is_leaf);
    match value {
        Value::Array(list) => list.iter_mut().find_map(|value| leaf_mut(value, left)),
        Value::Object(fields) => fields.values_mut().find_map(|value| leaf_mut(value, left)),
        _ => None,
    }
}

fn change_value(value: &mut Value, how: usize) {
    match value {
        Value::Array(list) if list.is_empty() => *value = Value::Null,
        Value::Array(list) => match how % 3 {
            0 => drop(list.remove(how / 3 % list.len())),
            1 => list.push(list[how / 3 % list.len()].clone()),
            _ => list.clear(),
        },
        Value::Number(number) => {
            let was = number.as_u64().unwrap_or(0);
            let others = [
                0,
                1,
                was.saturating_add(1),
                was.saturating_sub(1),
                was.saturating_mul(2),
                was ^ 1 << (how / 11 % 64),
                1 << 16,
                1 << 31,
                u64::MAX >> 32,
                u64::MAX / 2,
                u64::MAX,
            ];
            *value = others[how % others.len()].into();
        }
        Value::Bool(is) => *is = !*is,
        Value::String(text) => *text = ["", "default", "127.0.0.1", "127.0.0.1:0"][how % 4].into(),
        other => *other = [Value::Null, 7.into(), Value::Array(Vec::new()), false.into()][how % 4].take(),
    }
}
