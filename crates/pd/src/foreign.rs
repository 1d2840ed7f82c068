//! Text that others chose, such as arguments and paths of processes: shown without what a terminal obeys.

use anyhow::Result;
use comfy_table::Table;
use serde::Serialize;

/// Tells whether a character could move a terminal's cursor, or turn the direction of what follows.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Replaces by a blank what a terminal obeys.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { ' ' } else { c }).collect()
}

/// Adds a row whose cells are shown in one line each.
pub fn add_row<const N: usize>(table: &mut Table, cells: [String; N]) {
    table.add_row(cells.map(|cell| printable(&cell)));
}

/// Returns a value as JSON, in which what a terminal obeys is escaped.
///
/// # Errors
/// Errors of the value's serialization.
pub fn json(value: &impl Serialize) -> Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(value)?))
}

/// Returns a value as JSON in one line, in which what a terminal obeys is escaped.
///
/// # Errors
/// Errors of the value's serialization.
pub fn json_line(value: &impl Serialize) -> Result<String> {
    Ok(escaped(&serde_json::to_string(value)?))
}

fn escaped(json: &str) -> String {
    let mut text = String::new();
    for c in json.chars() {
        // The only ones outside of strings are line ends.
        match c {
            c if c == '\n' || !is_obeyed(c) => text.push(c),
            c => text.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use comfy_table::presets;

    pub(crate) const HOSTILE: &str = "a\u{1b}[2J\u{9b}31m\n\r\u{202e}b\u{7f}";

    #[test]
    fn no_character_is_obeyed() {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_header(["NAME"]);
        add_row(&mut table, [HOSTILE.to_owned()]);
        let shown = table.to_string();
        assert!(!shown.chars().any(|c| c != '\n' && is_obeyed(c)), "{shown:?}");
        assert_eq!(shown.lines().count(), 2, "{shown:?}");
    }

    #[test]
    fn json_says_the_same_in_other_words() {
        for text in [json(&[HOSTILE]).unwrap(), json_line(&[HOSTILE]).unwrap()] {
            assert!(!text.chars().any(|c| c != '\n' && is_obeyed(c)), "{text:?}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&text).unwrap(), [HOSTILE]);
        }
    }
}
