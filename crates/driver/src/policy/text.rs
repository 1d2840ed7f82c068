//! The text of a policy: read from a file, and faults in it told.
use super::file::PolicyError;
use rustix::fs::{open, Mode, OFlags};
use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest text of a policy.
pub const POLICY_BYTES_MAX: usize = 4 << 20;

/// Most characters of an error that a parser or a text of the operator's makes long.
const SAID_MAX: usize = 600;

/// Reads a policy file. Does not wait for one that is no ordinary file, and reads no more of it than a policy may have.
///
/// # Errors
/// The fault, its place and its remedy.
pub fn read_policy_file(path: &Path) -> Result<String, String> {
    let fd = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("{}; check the path", std::io::Error::from(error)))?;
    let file = File::from(fd);
    let what = file.metadata().map_err(|error| error.to_string())?;
    if !what.is_file() {
        return Err("it is no ordinary file; name the file that has the rules".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(POLICY_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    check_length(bytes.len())?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("line {line}: it is no UTF-8; save the file as UTF-8")
    })
}

/// Checks the length of a policy's text.
///
/// # Errors
/// The remedy.
pub fn check_length(bytes: usize) -> Result<(), String> {
    match bytes <= POLICY_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "it is longer than {} MiB; join rules: `from`, `to`, `address` and `port` take lists and ranges",
            POLICY_BYTES_MAX >> 20
        )),
    }
}

/// Tells what the parser does not take, with line and column, and with the line itself if that is short.
pub fn misread(error: &toml::de::Error, text: &str) -> PolicyError {
    let message = match number_out_of_range(error.message()) {
        Some(number) => {
            Cow::Owned(format!("{number} is no number for this key; write a smaller one, of 0 or more"))
        }
        None => Cow::Borrowed(error.message()),
    };
    let shown = error.to_string().replace(error.message(), &message);
    if error.span().is_some() && shown.chars().count() <= SAID_MAX {
        return PolicyError::of(shown);
    }
    let place = error.span().map(|span| {
        let before = &text[..span.start];
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("line {}, column {column}: ", before.matches('\n').count() + 1)
    });
    let why = match &*message {
        "recursion limit" => "tables or lists lie too deep in each other; take some levels out",
        message => message,
    };
    PolicyError::of(format!("{}{why}", place.unwrap_or_default()))
}

/// Returns the number, as words, that the parser's message calls wider than the type of its key, or negative. The message names types of
/// the program, and no remedy.
fn number_out_of_range(message: &str) -> Option<&str> {
    if matches!(message, "floating-point number overflowed" | "integer number overflowed") {
        return Some("this");
    }
    let is_wide = message.contains("` as i128,") || message.contains("` as u128,");
    let kind = if is_wide { "invalid type: integer `" } else { "invalid value: integer `" };
    Some(message.strip_prefix(kind)?.split_once('`')?.0)
}

/// Returns a text as errors show it: without what a terminal obeys, and of bounded length.
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    for (number, character) in text.chars().enumerate() {
        if number == SAID_MAX {
            shown += "...";
            break;
        }
        match character {
            '\n' => shown.push('\n'),
            c if c.is_control() => shown.extend(c.escape_default()),
            // Marks that change the direction of what follows.
            c @ ('\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                shown.extend(c.escape_default());
            }
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use rustix::fs::{mknodat, FileType, CWD};

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink(path("loop"), path("loop")).unwrap();
        std::fs::write(path("latin"), b"default = \"deny\"\n# \xe4\n").unwrap();
        File::create(path("long")).unwrap().set_len(POLICY_BYTES_MAX as u64 + 1).unwrap();
        for (name, part) in [
            (path("fifo"), "no ordinary file"),
            (folder.path().to_owned(), "no ordinary file"),
            ("/dev/zero".into(), "no ordinary file"),
            (path("loop"), "check the path"),
            (path("none"), "check the path"),
            (path("latin"), "line 2"),
            (path("long"), "longer than 4 MiB"),
        ] {
            let why = read_policy_file(&name).unwrap_err();
            assert!(why.contains(part), "{}: {why}", name.display());
        }
        std::fs::write(path("good"), "default = \"deny\"").unwrap();
        assert_eq!(read_policy_file(&path("good")).unwrap(), "default = \"deny\"");
    }

    #[test]
    fn numbers_out_of_range_are_told_with_a_remedy() {
        let nines = "9".repeat(60);
        for (key, number) in [
            ("connections_max", "99999999999999999999999"),
            ("connections_max", "-1"),
            ("connections_max", "-99999999999999999999999"),
            ("memory_bytes_max", "0xffffffffffffffffffffff"),
            ("memory_bytes_max", "1e400"),
            ("clients_max", &nines),
            ("weight", "18446744073709551615"),
            ("weight", "18446744073709551616"),
        ] {
            let error = Policy::parse(&format!("[[tenant]]\nname = \"a\"\n{key} = {number}")).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("line 3") && error.contains("write a smaller one"),
                "{key} = {number}: {error}"
            );
            for word in ["128", "u64", "i64", "invalid"] {
                assert!(!error.contains(word), "{key} = {number}: {error}");
            }
        }
        let error = Policy::parse("[[rule]]\naction = \"allow\"\nport = 99999999999999999999").unwrap_err();
        assert!(error.to_string().contains("write a smaller one"), "{error}");
    }

    #[test]
    fn errors_are_short_and_name_the_line() {
        let deep = format!("default = \"deny\"\na = {}", "[".repeat(100_000));
        let wide = format!("[[tenant]]\nname = \"{}\"", "x".repeat(1 << 20));
        let dotted = format!("{} = 1", vec!["a"; 100_000].join("."));
        let painted = "[[tenant]]\nname = \"a\\u001b[2J\\u202e\"";
        for (text, part) in [
            (&*deep, "line 2"),
            (&wide, "line 1"),
            (&dotted, "levels"),
            (painted, "\\u{1b}[2J\\u{202e}"),
            (&" ".repeat(POLICY_BYTES_MAX + 1), "longer than"),
        ] {
            let error = Policy::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(error.chars().count() <= SAID_MAX + 3 && !error.contains('\u{1b}'), "{error}");
        }
    }
}
