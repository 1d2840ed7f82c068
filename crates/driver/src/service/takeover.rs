//! Slots of services and proxies as another driver goes on with them.
use super::slots::{Chosen, Name, Slot, Slots, SLOTS};
use crate::takeover::pack::Wrong;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;

/// State of the slots.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotsState {
    slots: Vec<SlotState>,
    /// Keys of clients that keep a backend, each with the word for it.
    sticky: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlotState {
    number: u16,
    name: Name,
    /// Counts so far, for a driver that does not go on with the words.
    counts: Counts,
    /// Bytes there and back of open connections, which the words do not have yet.
    moved: [u64; 2],
}

/// Counts of a slot.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    made: u64,
    failed: u64,
    sent: u64,
    received: u64,
    bypassed: u64,
}

/// Numbers of the slots that another driver has given.
#[derive(Debug, Default)]
pub struct Known(HashSet<u16>);

impl Known {
    /// Fails unless the slots of a choice are there.
    ///
    /// # Errors
    /// The fault.
    pub fn check(&self, chosen: &Chosen) -> Result<(), Wrong> {
        let are_there = chosen.slots.iter().all(|number| self.0.contains(number));
        Wrong::unless(are_there, || format!("slots {:?} of a service", chosen.slots))
    }
}

impl Slots {
    /// Returns the state that another driver goes on with. `open`: open connections, each with its bytes there and back so far.
    pub fn give<'a>(&self, open: impl Iterator<Item = (&'a Chosen, [u64; 2])>) -> SlotsState {
        let mut moved: HashMap<u16, [u64; 2]> = HashMap::new();
        for (number, bytes) in open.flat_map(|(chosen, bytes)| chosen.slots.map(|number| (number, bytes))) {
            let sum = moved.entry(number).or_default();
            *sum = [sum[0].wrapping_add(bytes[0]), sum[1].wrapping_add(bytes[1])];
        }
        let numbers = self.numbers();
        let slots = numbers.iter().map(|(name, &number)| {
            let slot = self.slot(number);
            let counts = Counts {
                made: slot.made.load(Relaxed),
                failed: slot.failed.load(Relaxed),
                sent: slot.sent.load(Relaxed),
                received: slot.received.load(Relaxed),
                bypassed: slot.bypassed.load(Relaxed),
            };
            let moved = moved.get(&number).copied().unwrap_or_default();
            SlotState { number, name: name.clone(), counts, moved }
        });
        let slots: Vec<_> = slots.collect();
        // Without services nobody keeps a backend, and the table is not looked at.
        let sticky = if slots.is_empty() { Vec::new() } else { self.all_kept().collect() };
        SlotsState { slots, sticky }
    }

    /// Takes over the slots that another driver has given, with their numbers. No policy has assigned any. [`Self::resume_counts`] follows.
    ///
    /// # Errors
    /// The fault in them.
    pub fn resume(&self, state: &SlotsState) -> Result<Known, Wrong> {
        let (mut numbers, mut known) = (self.numbers(), HashSet::new());
        Wrong::unless(numbers.is_empty(), || "slots of services before those of the state".to_owned())?;
        for SlotState { number, name, .. } in &state.slots {
            let is_first = known.insert(*number) && numbers.insert(name.clone(), *number).is_none();
            Wrong::unless(is_first && usize::from(*number) < SLOTS, || {
                format!("slot {number} of a service")
            })?;
        }
        Wrong::unless(state.sticky.len() <= Self::KEPT_MAX, || "too many clients keep a backend".to_owned())?;
        Ok(Known(known))
    }

    /// Goes on with the counts, and with the backends that clients keep. `is_joined`: the words are those of the other driver.
    pub fn resume_counts(&self, state: SlotsState, is_joined: bool) {
        for SlotState { number, counts, moved: [there, back], .. } in state.slots {
            let slot = self.slot(number);
            slot.add(Counts { sent: there, received: back, ..Counts::default() });
            if !is_joined {
                slot.add(counts);
            }
        }
        if !is_joined {
            state.sticky.into_iter().for_each(|(key, word)| self.keep_again(key, word));
        }
    }
}

impl Slot {
    fn add(&self, counts: Counts) {
        let Counts { made, failed, sent, received, bypassed } = counts;
        for (word, count) in [
            (&self.made, made),
            (&self.failed, failed),
            (&self.sent, sent),
            (&self.received, received),
            (&self.bypassed, bypassed),
        ] {
            word.fetch_add(count, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    fn policy(backends: &[u8]) -> Policy {
        let list: Vec<_> = backends.iter().map(|n| format!("\"10.0.0.{n}:80\"")).collect();
        let text = format!("[[service]]\naddress = \"10.96.0.1:80\"\nbackends = [{}]", list.join(", "));
        Policy::parse(&text).unwrap()
    }

    #[test]
    fn counts_and_kept_backends_are_the_next_drivers() {
        let (old, policies) = (Slots::own().unwrap(), [policy(&[1, 2]), policy(&[2, 3])]);
        old.assign(&policies[0], &[]).unwrap();
        old.assign(&policies[1], &[]).unwrap();
        let service = policies[1].services[0].address;
        let number =
            |slots: &Slots, n: u8| slots.number(service, Some(format!("10.0.0.{n}:80").parse().unwrap()));
        let own = old.number(service, None).unwrap();
        let chosen = |n| Chosen {
            service: 0,
            backend: 0,
            slots: [own, number(&old, n).unwrap()],
            asked: service,
            reached: service,
            led: None,
        };
        old.slot(chosen(1).slots[1]).made.store(7, Relaxed);
        old.keep(own, 5, own, u64::MAX >> 16);
        let open = [(&chosen(1), [100, 20]), (&chosen(2), [3, 4])];
        let state = || old.give(open.iter().copied());
        for is_joined in [false, true] {
            let new = Slots::own().unwrap();
            let known = new.resume(&state()).unwrap();
            new.assign(&policies[1], &[]).unwrap();
            new.resume_counts(state(), is_joined);
            for n in [1, 2, 3] {
                assert_eq!(number(&new, n), number(&old, n));
            }
            // Words that are the other driver's have its counts already.
            let first = new.slot(number(&new, 1).unwrap());
            let made = if is_joined { 0 } else { 7 };
            assert_eq!((first.made.load(Relaxed), first.sent.load(Relaxed)), (made, 100));
            let all = new.slot(own);
            assert_eq!((all.sent.load(Relaxed), all.received.load(Relaxed)), (103, 24));
            assert_eq!(new.kept(own, 5, 0), (!is_joined).then_some(own));
            assert!(known.check(&chosen(1)).is_ok());
            assert!(known.check(&Chosen { slots: [own, 999], ..chosen(1) }).is_err());
            assert!(new.resume(&state()).is_err(), "slots are there");
        }
        let refused = |change: &dyn Fn(&mut SlotsState)| {
            let mut changed = state();
            change(&mut changed);
            assert!(Slots::own().unwrap().resume(&changed).is_err());
        };
        refused(&|changed| changed.slots.extend(state().slots));
        refused(&|changed| changed.slots[0].number = changed.slots[1].number);
        refused(&|changed| changed.slots[0].number = SLOTS as u16);
    }
}
