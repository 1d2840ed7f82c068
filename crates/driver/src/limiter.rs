//! Log lines that clients cause: of each kind and payer the first, and then every ten seconds how many there were.
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// How long a kind is silent after a line.
const SILENCE: Duration = Duration::from_secs(10);
/// Kinds that are told apart; what is said of others meanwhile is not said.
const KINDS_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub struct Limiter<K> {
    kinds: HashMap<K, Kind>,
    /// When the first silence ends.
    next: Option<Duration>,
}

#[derive(Debug)]
struct Kind {
    /// When its silence ends.
    until: Duration,
    unsaid: u64,
}

impl<K> Default for Limiter<K> {
    fn default() -> Self {
        Self { kinds: HashMap::new(), next: None }
    }
}

impl<K: Copy + Eq + Hash> Limiter<K> {
    /// Whether a line of this kind is to be written. Counts it if not.
    pub fn may_say(&mut self, kind: K, now: Duration) -> bool {
        if let Some(known) = self.kinds.get_mut(&kind) {
            known.unsaid += 1;
            return false;
        }
        if self.kinds.len() >= KINDS_MAX {
            return false;
        }
        self.kinds.insert(kind, Kind { until: now + SILENCE, unsaid: 0 });
        // No other one ends later.
        self.next.get_or_insert(now + SILENCE);
        true
    }

    /// Kinds whose silence is over, with the lines that were not written: silence begins again. Kinds of which there was nothing
    /// more are forgotten.
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

    /// When [`Self::take_unsaid`] has something to do. Takes no time, however many kinds there are.
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
        // The other had nothing more to say, and is said at once again.
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
