//! Patterns for paths of control groups: `*` is any text without a slash, `**` any text, `?` one character other than a slash.
//! A pattern also matches all paths below.

use super::is_below;

/// Longest pattern.
const LENGTH_MAX: usize = 1024;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: String,
    parts: Vec<Part>,
    /// Bytes of the text before the first star or question mark.
    plain: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Byte(u8),
    /// `?`.
    Any,
    /// `*`.
    Within,
    /// `**`.
    Across,
}

impl Glob {
    /// Reads a pattern.
    ///
    /// # Errors
    /// A sentence that names the fault and the remedy.
    pub fn parse(text: &str) -> Result<Self, String> {
        let usable =
            text.starts_with('/') && text.len() > 1 && !text.ends_with('/') && text.len() <= LENGTH_MAX;
        if !usable {
            return Err(format!(
                "cgroup \"{text}\" is not usable; write a path below the root of the hierarchy, as in \
                 /proc/PID/cgroup: \"/red.slice\", \"/system.slice/docker-*.scope\", \"/kubepods.slice/**\""
            ));
        }
        let mut parts = Vec::new();
        let mut bytes = text.bytes().peekable();
        while let Some(byte) = bytes.next() {
            parts.push(match byte {
                b'*' => {
                    let mut stars = 1;
                    while bytes.next_if_eq(&b'*').is_some() {
                        stars += 1;
                    }
                    if stars == 1 {
                        Part::Within
                    } else {
                        Part::Across
                    }
                }
                b'?' => Part::Any,
                byte => Part::Byte(byte),
            });
        }
        let plain = parts.iter().take_while(|part| matches!(part, Part::Byte(_))).count();
        Ok(Self { text: text.to_owned(), parts, plain })
    }

    /// Returns the pattern's text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Tells whether the pattern matches `path` or a path above it. Takes time of the product of both lengths at most.
    pub fn holds(&self, path: &str) -> bool {
        // Most patterns do not match, and are rejected here.
        if !path.as_bytes().starts_with(&self.text.as_bytes()[..self.plain]) {
            return false;
        }
        if self.plain == self.text.len() {
            return is_below(path, &self.text);
        }
        // Prefixes of the pattern that match the path as far as it was read.
        let mut reached = vec![false; self.parts.len() + 1];
        reached[0] = true;
        self.pass(&mut reached);
        for byte in path.bytes() {
            if byte == b'/' && reached[self.parts.len()] {
                return true;
            }
            let mut next = vec![false; self.parts.len() + 1];
            for (at, part) in self.parts.iter().enumerate().filter(|&(at, _)| reached[at]) {
                match *part {
                    Part::Byte(own) => next[at + 1] |= own == byte,
                    Part::Any => next[at + 1] |= byte != b'/',
                    Part::Within => next[at] |= byte != b'/',
                    Part::Across => next[at] = true,
                }
            }
            self.pass(&mut next);
            reached = next;
        }
        reached[self.parts.len()]
    }

    /// Marks the parts behind stars, which match the empty text, too.
    fn pass(&self, reached: &mut [bool]) {
        for (at, part) in self.parts.iter().enumerate() {
            if reached[at] && matches!(part, Part::Within | Part::Across) {
                reached[at + 1] = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_hold_for_paths_and_what_lies_below() {
        let holds = |pattern: &str, path: &str| Glob::parse(pattern).unwrap().holds(path);
        for (pattern, path) in [
            ("/a", "/a"),
            ("/a", "/a/b"),
            ("/a/*", "/a/b/c"),
            ("/a/*.scope", "/a/b.scope"),
            ("/**/x", "/a/b/c/x/y"),
            ("/a?", "/ab"),
            ("/**", "/anything/at/all"),
        ] {
            assert!(holds(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("/a", "/ab"),
            ("/a/*", "/a"),
            ("/*.scope", "/a/b.scope"),
            ("/a?", "/a/"),
            ("/a", "/"),
            ("/a", ""),
        ] {
            assert!(!holds(pattern, path), "{pattern} {path}");
        }
        for wrong in ["", "/", "a", "/a/", "*"] {
            assert!(Glob::parse(wrong).unwrap_err().contains("write a path"), "{wrong}");
        }
    }

    /// Matches by trying every cut.
    fn model(pattern: &[u8], path: &[u8]) -> bool {
        match pattern {
            [] => path.is_empty() || path[0] == b'/',
            [b'*', b'*', rest @ ..] => (0..=path.len()).any(|cut| model(rest, &path[cut..])),
            [b'*', rest @ ..] => {
                let most = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
                (0..=most).any(|cut| model(rest, &path[cut..]))
            }
            [b'?', rest @ ..] => path.first().is_some_and(|&byte| byte != b'/') && model(rest, &path[1..]),
            [own, rest @ ..] => path.first() == Some(own) && model(rest, &path[1..]),
        }
    }

    proptest! {
        #[test]
        fn a_pattern_holds_where_the_model_says(pattern in "/[ab/*?]{0,7}[ab?]", path in "(/[ab]{0,3}){0,4}") {
            // Three stars are two.
            prop_assume!(!pattern.contains("***"));
            prop_assert_eq!(Glob::parse(&pattern).unwrap().holds(&path), model(pattern.as_bytes(), path.as_bytes()));
        }
    }
}
