//! `logmon`: watches lines of logs, and reports addresses that break rules too often, as fail2ban does.
//!
//! A stream is processed in large pieces. One search for the texts of filters covers all whole lines, and expressions match only lines
//! with one of the texts. Over a pipe of bytes the lines lie in the ring, and none is copied ([`Logmon::scan`]). Over packets a line that
//! is cut by their ends is put together ([`Logmon::feed`]).
//!
//! Lines are foreign: an expression takes time linear in a line, a line has a longest length, and addresses that are watched a largest
//! number.
mod watch;

pub use watch::{Report, Rules, ADDRESSES_MAX};

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use std::net::IpAddr;
use watch::Watch;

/// Filters that are there without a file of the user's.
pub const FILTERS: &str = include_str!("filters.txt");
/// Longest line; of a longer one nothing is looked at.
pub const LINE_BYTES_MAX: usize = 8192;
/// Most lines of filters.
pub const FILTERS_MAX: usize = 256;
/// Expression for `<HOST>`. Its match is checked to be an address later.
const HOST: &str = r"(?<host>[0-9A-Fa-f:.]{2,45})";

/// A set of filters.
#[derive(Debug)]
pub struct Filters {
    names: Vec<String>,
    /// Finds a text of any filter.
    texts: Regex,
    set: RegexSet,
    expressions: Vec<Regex>,
}

impl Filters {
    /// Reads filters: lines of a name, a text and an expression, with tabs between them.
    ///
    /// # Errors
    /// Error, with its line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut names, mut texts, mut patterns) = (Vec::new(), Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut parts = line.splitn(3, '\t');
            let (Some(name), Some(text), Some(pattern)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(format!("line {}: a filter is NAME, TEXT and EXPRESSION with tabs", number + 1));
            };
            if text.is_empty() || pattern.matches("<HOST>").count() != 1 {
                return Err(format!("line {}: a filter has a text, and <HOST> once", number + 1));
            }
            names.push(name.to_owned());
            texts.push(regex::escape(text));
            patterns.push(pattern.replace("<HOST>", HOST));
        }
        if names.is_empty() || names.len() > FILTERS_MAX {
            return Err(format!("there are 1 to {FILTERS_MAX} lines of filters"));
        }
        let wrong = |error: regex::Error| error.to_string();
        let expression = |text: &String| RegexBuilder::new(text).unicode(false).build().map_err(wrong);
        Ok(Self {
            texts: expression(&texts.join("|"))?,
            set: RegexSetBuilder::new(&patterns).unicode(false).build().map_err(wrong)?,
            expressions: patterns.iter().map(expression).collect::<Result<_, _>>()?,
            names,
        })
    }

    /// Returns the first filter that matches a line, and the address in it.
    pub fn find(&self, line: &[u8]) -> Option<(&str, IpAddr)> {
        self.set.matches(line).iter().find_map(|number| {
            let host = self.expressions[number].captures(line)?.name("host")?;
            let address = std::str::from_utf8(host.as_bytes()).ok()?.parse().ok()?;
            Some((&self.names[number][..], address))
        })
    }
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of lines.
    pub bytes: u64,
    /// Lines with a text that a filter asks for.
    pub candidates: u64,
    /// Lines that a filter matches.
    pub matches: u64,
    /// Lines longer than [`LINE_BYTES_MAX`], not looked at.
    pub long: u64,
}

/// The monitor.
#[derive(Debug)]
pub struct Logmon {
    filters: Filters,
    watch: Watch,
    /// Set while skipping the rest of a line that is too long.
    skipping: bool,
    /// Start of a line that continues in the next packet.
    begun: Vec<u8>,
    counts: Counts,
}

impl Logmon {
    /// Watches by `filters` and `rules`.
    pub fn new(filters: Filters, rules: Rules) -> Self {
        let watch = Watch::new(rules);
        Self { filters, watch, skipping: false, begun: Vec::new(), counts: Counts::default() }
    }

    /// Counters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Addresses that could not be watched, because there are too many.
    pub fn unwatched(&self) -> u64 {
        self.watch.unwatched()
    }

    /// Reports since the last call.
    pub fn take_reports(&mut self) -> Vec<Report> {
        self.watch.take_reports()
    }

    /// Processes the whole lines in `bytes`, at `now`, in seconds. Returns the number of bytes processed: the rest is the start of a line,
    /// and has to come again with its continuation.
    pub fn scan(&mut self, bytes: &[u8], now: u64) -> usize {
        let mut from = 0;
        if self.skipping {
            match bytes.iter().position(|&byte| byte == b'\n') {
                Some(end) => (from, self.skipping) = (end + 1, false),
                None => return self.look_at(bytes.len()),
            }
        }
        match bytes[from..].iter().rposition(|&byte| byte == b'\n') {
            Some(end) => {
                self.lines(&bytes[from..=from + end], now);
                from += end + 1;
            }
            None if bytes.len() - from > LINE_BYTES_MAX => {
                self.counts.long += 1;
                self.skipping = true;
                from = bytes.len();
            }
            None => {}
        }
        self.look_at(from)
    }

    fn look_at(&mut self, bytes: usize) -> usize {
        self.counts.bytes += bytes as u64;
        bytes
    }

    /// Looks at the next bytes of a stream, at `now`, in seconds. A line that is not whole is kept.
    pub fn feed(&mut self, mut bytes: &[u8], now: u64) {
        if !self.begun.is_empty() {
            let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
                return self.begin(bytes, now);
            };
            let mut line = std::mem::take(&mut self.begun);
            line.extend_from_slice(&bytes[..=end]);
            self.scan(&line, now);
            line.clear();
            self.begun = line;
            bytes = &bytes[end + 1..];
        }
        let done = self.scan(bytes, now);
        self.begin(&bytes[done..], now);
    }

    fn begin(&mut self, bytes: &[u8], now: u64) {
        self.begun.extend_from_slice(bytes);
        if self.begun.len() > LINE_BYTES_MAX {
            // The scan sees that it is too long, and takes it.
            let begun = std::mem::take(&mut self.begun);
            self.scan(&begun, now);
        }
    }

    /// Looks at whole lines.
    fn lines(&mut self, bytes: &[u8], now: u64) {
        let mut from = 0;
        while let Some(found) = self.filters.texts.find_at(bytes, from) {
            let start = bytes[..found.start()].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            let end = bytes[found.end()..]
                .iter()
                .position(|&byte| byte == b'\n')
                .map_or(bytes.len(), |at| found.end() + at);
            from = end;
            let line = bytes[start..end].strip_suffix(b"\r").unwrap_or(&bytes[start..end]);
            if line.len() > LINE_BYTES_MAX {
                self.counts.long += 1;
                continue;
            }
            self.counts.candidates += 1;
            if let Some((filter, address)) = self.filters.find(line) {
                self.counts.matches += 1;
                self.watch.see(address, filter, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::log_lines;
    use proptest::prelude::*;

    const SAMPLES: &str = include_str!("../../tests/logs/samples.txt");

    fn filters() -> Filters {
        Filters::parse(FILTERS).unwrap()
    }

    fn monitor(threshold: u32) -> Logmon {
        Logmon::new(filters(), Rules { threshold, window_s: 600 })
    }

    #[test]
    fn samples_are_matched_by_the_filter_and_with_the_address_that_they_say() {
        let (filters, mut app) = (filters(), monitor(1));
        let mut expected = 0;
        for sample in SAMPLES.lines() {
            let mut parts = sample.splitn(3, '\t');
            let (host, name, line) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
            let found = filters.find(line.as_bytes());
            let wanted = (host != "-").then(|| (name, host.parse().unwrap()));
            assert_eq!(found, wanted, "{line}");
            expected += u64::from(wanted.is_some());
            app.feed(line.as_bytes(), 0);
            app.feed(b"\r\n", 0);
        }
        // The search for texts finds them all.
        assert_eq!(app.counts().matches, expected);
        let mut seen: Vec<_> = filters.names.clone();
        seen.retain(|name| !SAMPLES.contains(&format!("\t{name}\t")));
        assert!(seen.is_empty(), "filters without a sample: {seen:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn pieces_of_any_size_have_the_same_reports_as_the_whole(cuts in prop::collection::vec(1usize..3000, 1..60), seed in any::<u64>()) {
            let text: Vec<u8> = log_lines(seed, 20).take(400).flatten().collect();
            let (mut whole, mut fed, mut scanned) = (monitor(3), monitor(3), monitor(3));
            prop_assert_eq!(whole.scan(&text, 5), text.len());
            let (mut at, mut unread) = (0, 0);
            for cut in cuts.iter().cycle() {
                let to = (at + cut).min(text.len());
                fed.feed(&text[at..to], 5);
                unread += scanned.scan(&text[unread..to], 5);
                at = to;
                if at == text.len() {
                    break;
                }
            }
            prop_assert_eq!(unread, text.len());
            prop_assert!(whole.counts().matches > 0);
            prop_assert_eq!(whole.counts(), fed.counts());
            prop_assert_eq!(whole.counts(), scanned.counts());
            let reports = whole.take_reports();
            prop_assert_eq!(&fed.take_reports(), &reports);
            prop_assert_eq!(&scanned.take_reports(), &reports);
        }

        #[test]
        fn any_bytes_are_looked_at_with_bounded_memory(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 0..12)) {
            let mut app = monitor(1);
            pieces.iter().for_each(|piece| app.feed(piece, 0));
            prop_assert!(app.begun.len() <= LINE_BYTES_MAX);
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_is_not() {
        let bad = b"Nov 26 06:12:01 h sshd[1]: Failed password for root from 203.0.113.7 port 51022 ssh2\n";
        for piece in [LINE_BYTES_MAX * 3, 1000] {
            let mut app = monitor(1);
            let long = [&b"Failed password "[..], &[b'x'; 2 * LINE_BYTES_MAX], b"\n"].concat();
            let text = [&long[..], bad].concat();
            text.chunks(piece).for_each(|part| app.feed(part, 0));
            assert_eq!((app.counts().long, app.counts().matches), (1, 1), "{piece}");
            assert_eq!(app.take_reports().len(), 1);
        }
    }

    #[test]
    fn filters_that_are_wrong_say_where() {
        for (text, line) in [
            ("a\tb", "line 1"),
            ("# x\na\tb\tno address", "line 2"),
            ("a\t\t<HOST>", "line 1"),
            ("", "1 to 256"),
            ("a\tb\t(<HOST>", "unclosed"),
        ] {
            let error = Filters::parse(text).unwrap_err();
            assert!(error.contains(line), "{error}");
        }
    }
}
