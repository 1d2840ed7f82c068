//! Addresses that break rules, and how often within a time.
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Most addresses watched at a time.
pub const ADDRESSES_MAX: usize = 65_536;

/// When an address is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Lines of a filter that name the address, within the window.
    pub threshold: u32,
    /// Length of the window, in seconds.
    pub window_s: u64,
}

/// An address that has reached the threshold of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The address.
    pub address: IpAddr,
    /// The filter.
    pub filter: String,
    /// Lines within the window.
    pub lines: u32,
    /// When it reached it, in seconds.
    pub at_s: u64,
}

/// Lines of an address within a window, as seconds and counts: no more pairs than the threshold.
#[derive(Debug, Default)]
struct Seen {
    lines: VecDeque<(u64, u32)>,
    /// When it was reported last.
    reported: Option<u64>,
}

/// All addresses that are watched.
#[derive(Debug)]
pub struct Watch {
    rules: Rules,
    seen: HashMap<(IpAddr, String), Seen>,
    reports: Vec<Report>,
    unwatched: u64,
    swept: u64,
}

impl Watch {
    /// Watches by `rules`.
    pub fn new(rules: Rules) -> Self {
        let rules = Rules { threshold: rules.threshold.max(1), ..rules };
        Self { rules, seen: HashMap::new(), reports: Vec::new(), unwatched: 0, swept: 0 }
    }

    /// Returns the number of lines whose address could not be watched.
    pub fn unwatched(&self) -> u64 {
        self.unwatched
    }

    /// Reports since the last call.
    pub fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// Counts a line of `filter` with `address` at `now`. An address is reported once in a window.
    pub fn see(&mut self, address: IpAddr, filter: &str, now: u64) {
        let Rules { threshold, window_s } = self.rules;
        let key = (address, filter.to_owned());
        if self.seen.len() >= ADDRESSES_MAX && !self.seen.contains_key(&key) {
            // Once a second at most, for it looks at all of them.
            if self.swept != now {
                self.swept = now;
                let fresh = |at: u64| now.saturating_sub(at) < window_s;
                self.seen.retain(|_, seen| {
                    seen.lines.back().is_some_and(|&(at, _)| fresh(at)) || seen.reported.is_some_and(fresh)
                });
            }
            if self.seen.len() >= ADDRESSES_MAX {
                self.unwatched += 1;
                return;
            }
        }
        let seen = self.seen.entry(key).or_default();
        while seen.lines.front().is_some_and(|&(at, _)| now.saturating_sub(at) >= window_s) {
            seen.lines.pop_front();
        }
        match seen.lines.back_mut() {
            Some((at, count)) if *at == now => *count = count.saturating_add(1),
            _ => seen.lines.push_back((now, 1)),
        }
        if seen.lines.len() > threshold as usize {
            seen.lines.pop_front();
        }
        let lines: u32 = seen.lines.iter().map(|&(_, count)| count).sum();
        if lines >= threshold && seen.reported.is_none_or(|at| now.saturating_sub(at) >= window_s) {
            seen.reported = Some(now);
            self.reports.push(Report { address, filter: filter.to_owned(), lines, at_s: now });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from((0xcb00_0000 + number).to_be_bytes())
    }

    proptest! {
        #[test]
        fn an_address_is_reported_when_and_only_when_a_window_has_enough_lines(
            steps in prop::collection::vec((0u64..40, 0u32..3), 1..200),
            threshold in 1u32..6,
        ) {
            let mut watch = Watch::new(Rules { threshold, window_s: 60 });
            let (mut now, mut lines, mut reported) = (0, Vec::new(), HashMap::new());
            for (step, number) in steps {
                now += step;
                lines.push((now, number));
                watch.see(address(number), "f", now);
                let within = lines.iter().filter(|&&(at, other)| other == number && now - at < 60).count();
                let quiet = reported.get(&number).is_none_or(|at| now - at >= 60);
                let due = within >= threshold as usize && quiet;
                if due {
                    reported.insert(number, now);
                }
                prop_assert_eq!(watch.take_reports().len(), usize::from(due));
            }
        }
    }

    #[test]
    fn addresses_have_a_bound_and_old_ones_make_room() {
        let mut watch = Watch::new(Rules { threshold: 2, window_s: 10 });
        (0..ADDRESSES_MAX as u32 + 5).for_each(|number| watch.see(address(number), "f", 100));
        assert_eq!((watch.seen.len(), watch.unwatched()), (ADDRESSES_MAX, 5));
        watch.see(address(1 << 20), "f", 111);
        assert_eq!((watch.seen.len(), watch.unwatched()), (1, 5));
    }
}
