//! Words of a command line.
use anyhow::{bail, Result};
use std::io::Write;
use std::str::FromStr;

/// Returns the words after the program's name. Prints `usage`, and ends the program, where one of them is `--help` or `-h`.
pub fn arguments(usage: &str) -> Vec<String> {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        let _ = writeln!(std::io::stdout(), "usage: {usage}");
        std::process::exit(0);
    }
    words
}

/// Reads the number that a usage calls `name`.
///
/// # Errors
/// A sentence that names both.
pub fn number<T: FromStr>(name: &str, word: &str) -> Result<T> {
    let Ok(number) = word.parse() else { bail!("{name} is a number that is not too large, not '{word}'") };
    Ok(number)
}
