//! Rate limit of log lines that clients cause. The first line of each kind and payer is written, and then a count every ten
//! seconds.
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// Silence of a kind after a line.
const SILENCE: Duration = Duration::from_secs(10);
/// Most kinds that are told apart; lines of further kinds are dropped meanwhile.
const KINDS_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub struct Limiter<K> {
    kinds: HashMap<K, Kind>,
    /// End of the first silence.
    next: Option<Duration>,
}

#[derive(Debug)]
struct Kind {
    /// End of the kind's silence.
    until: Duration,
    unsaid: u64,
}

impl<K> Default for Limiter<K> {
    fn default() -> Self {
        Self { kinds: HashMap::new(), next: None }
    }
}

impl<K: Copy + Eq + Hash> Limiter<K> {
    /// Tells whether a line of this kind may be written. Counts the line if not.
    pub fn may_say(&mut self, kind: K, now: Duration) -> bool {
        if let Some(known) = self.kinds.get_mut(&kind) {
            known.unsaid += 1;
            return false;
        }
        if self.kinds.len() >= KINDS_MAX {
            return false;
        }
        self.kinds.insert(kind, Kind { until: now + SILENCE, unsaid: 0 });
        // No earlier silence ends later.
        self.next.get_or_insert(now + SILENCE);
        true
    }

    /// Returns the kinds whose silence is over, with counts of unwritten lines. Their silence begins again. Kinds without
    /// unwritten lines are forgotten.
    pub fn take_unsaid(&mut self, now: Duration) -> Vec<(K, u64)> {
        let mut unsaid = Vec::new();
        self.kinds.retain(|&kind, known| {
            if known.until > now {
                return true;
            }
            if known.unsaid == 0 {
                return false;
            }
            unsaid.push((kind, std::mem::take(&mut known.unsaid)));
            known.until = now + SILENCE;
            true
        });
        self.next = self.kinds.values().map(|kind| kind.until).min();
        unsaid
    }

    /// Returns the time at which [`Self::take_unsaid`] has work. Constant time.
    pub fn wake_by(&self) -> Option<Duration> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_and_the_others_are_counted() {
        let mut limiter = Limiter::default();
        let at = Duration::from_secs;
        assert!(limiter.may_say("a", at(0)) && limiter.may_say("b", at(1)));
        assert!((0..1000).all(|_| !limiter.may_say("a", at(5))));
        assert_eq!((limiter.wake_by(), limiter.take_unsaid(at(9))), (Some(at(10)), vec![]));
        assert_eq!(limiter.take_unsaid(at(11)), [("a", 1000)]);
        // The other kind had no further lines, and may be written again at once.
        assert!(limiter.may_say("b", at(12)) && !limiter.may_say("a", at(12)));
        assert_eq!(limiter.take_unsaid(at(21)), [("a", 1)]);
        assert_eq!(limiter.take_unsaid(at(40)), []);
        assert_eq!(limiter.wake_by(), None);
    }

    #[test]
    fn kinds_are_bounded() {
        let mut limiter = Limiter::default();
        let said = (0..10 * KINDS_MAX).filter(|&kind| limiter.may_say(kind, Duration::ZERO)).count();
        assert_eq!(said, KINDS_MAX);
    }
}
