//! Network namespaces in which the kernel takes long to find a TCP socket. It walks over all listeners of a port, of which a process makes a
//! hundred thousand that no look-up means. Looks in all such namespaces together have a bounded part of the conductor's time.
use crate::hash::HashMap;
use crate::identity::NamespaceId;
use std::time::Duration;

/// Processor time from which on a look is long. Usual ones take some microseconds.
const LONG: Duration = Duration::from_micros(500);
/// Long looks in a row after which a namespace is slow. A single one may have been interrupted.
const LONG_LOOKS: u8 = 2;
/// Pause after a long look, in multiples of the time that it took.
pub const PAUSE: u32 = 50;
/// Most namespaces that are remembered.
const NAMESPACES_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Slow {
    /// Number of the last looks that were long.
    namespaces: HashMap<NamespaceId, u8>,
    /// Time of the next look in any slow namespace.
    next: Duration,
}

impl Slow {
    /// Tells whether the kernel may be asked about a namespace now.
    pub fn may_look(&self, namespace: NamespaceId, now: Duration) -> bool {
        now >= self.next || self.namespaces.get(&namespace).is_none_or(|looks| *looks < LONG_LOOKS)
    }

    /// Notes the processor time of a look.
    pub fn note(&mut self, namespace: NamespaceId, now: Duration, took: Duration) {
        if took < LONG {
            self.namespaces.remove(&namespace);
            return;
        }
        if self.namespaces.len() >= NAMESPACES_MAX && !self.namespaces.contains_key(&namespace) {
            self.namespaces.clear();
        }
        let looks = self.namespaces.entry(namespace).or_default();
        *looks = looks.saturating_add(1);
        self.next = now + PAUSE * took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_namespaces_have_a_fiftieth_of_the_time_and_others_do_not_wait() {
        let mut slow = Slow::default();
        let (quick, long) = (NamespaceId::for_test(1), [2, 3].map(NamespaceId::for_test));
        let (mut now, mut spent) = (Duration::ZERO, Duration::ZERO);
        let end = Duration::from_secs(60);
        while now < end {
            assert!(slow.may_look(quick, now));
            slow.note(quick, now, LONG / 2);
            for namespace in long {
                if slow.may_look(namespace, now) {
                    spent += 8 * LONG;
                    now += 8 * LONG;
                    slow.note(namespace, now, 8 * LONG);
                }
            }
            now += LONG;
        }
        assert!(spent > end / 100 && spent < end / 45, "{spent:?}");
        // A look that is quick again ends it.
        now += end;
        assert!(slow.may_look(long[0], now));
        slow.note(long[0], now, LONG / 2);
        slow.note(long[1], now, 8 * LONG);
        assert!(slow.may_look(long[0], now) && !slow.may_look(long[1], now));
    }

    #[test]
    fn a_single_long_look_holds_up_nothing() {
        let (mut slow, namespace) = (Slow::default(), NamespaceId::for_test(1));
        for _ in 0..10 {
            slow.note(namespace, Duration::ZERO, LONG);
            assert!(slow.may_look(namespace, Duration::ZERO));
            slow.note(namespace, Duration::ZERO, Duration::ZERO);
        }
    }
}
