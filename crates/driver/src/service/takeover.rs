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
    counts: Counts,
}

/// Counts of a slot, with those of open connections.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    made: u64,
    failed: u64,
    sent: u64,
    received: u64,
    bypassed: u64,
}

/// Slots of another driver, by their numbers there, with their numbers here.
#[derive(Debug, Default)]
pub struct Renumbered(HashMap<u16, u16>);

impl Renumbered {
    /// Returns the choice with the numbers that its slots have here.
    ///
    /// # Errors
    /// If a slot is not there.
    pub fn chosen(&self, chosen: Chosen) -> Result<Chosen, Wrong> {
        let number = |number: u16| {
            self.0.get(&number).copied().ok_or_else(|| Wrong::of(format!("slot {number} of a service")))
        };
        let [own, backend] = chosen.slots;
        Ok(Chosen { slots: [number(own)?, number(backend)?], ..chosen })
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
            let (slot, [sent, received]) =
                (self.slot(number), moved.get(&number).copied().unwrap_or_default());
            let counts = Counts {
                made: slot.made.load(Relaxed),
                failed: slot.failed.load(Relaxed),
                sent: slot.sent.load(Relaxed).wrapping_add(sent),
                received: slot.received.load(Relaxed).wrapping_add(received),
                bypassed: slot.bypassed.load(Relaxed),
            };
            SlotState { number, name: name.clone(), counts }
        });
        let slots: Vec<_> = slots.collect();
        // Without services nobody keeps a backend, and the table is not looked at.
        let sticky = if slots.is_empty() { Vec::new() } else { self.all_kept().collect() };
        SlotsState { slots, sticky }
    }

    /// Takes over the slots that another driver has given. Names that are not known here get slots of their own.
    ///
    /// # Errors
    /// The fault in them.
    pub fn resume(&self, state: SlotsState) -> Result<Renumbered, Wrong> {
        let SlotsState { slots, sticky } = state;
        let mut numbers = self.numbers();
        let mut taken: HashSet<u16> = numbers.values().copied().collect();
        let (mut next, mut renumbered, mut names) = (0..SLOTS as u16, HashMap::new(), HashSet::new());
        for SlotState { number, name, counts } in slots {
            let own = match numbers.get(&name) {
                Some(&own) => own,
                None => {
                    let free = next.find(|number| !taken.contains(number));
                    let free = free.ok_or_else(|| Wrong::of("too many backends of services"))?;
                    self.slot(free).clear();
                    taken.insert(free);
                    numbers.insert(name.clone(), free);
                    free
                }
            };
            let is_first = renumbered.insert(number, own).is_none() && names.insert(name);
            Wrong::unless(is_first, || format!("slot {number} of a service is there twice"))?;
            self.slot(own).add(counts);
        }
        drop(numbers);
        let is_same = |number: u16| renumbered.get(&number) == Some(&number);
        let mut kept = 0;
        for (key, word) in sticky {
            kept += 1;
            Wrong::unless(kept <= Self::KEPT_MAX, || "too many clients keep a backend".to_owned())?;
            // A client's key has the number of the service in it. With another number it is chosen for anew.
            if is_same(word as u16) {
                self.keep_again(key, word);
            }
        }
        Ok(Renumbered(renumbered))
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
        let (old, new, policies) =
            (Slots::own().unwrap(), Slots::own().unwrap(), [policy(&[1, 2]), policy(&[2, 3])]);
        old.assign(&policies[0], &[]).unwrap();
        old.assign(&policies[1], &[]).unwrap();
        new.assign(&policies[1], &[]).unwrap();
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
        let renumbered = new.resume(state()).unwrap();
        for n in [1, 2] {
            let there = renumbered.chosen(chosen(n)).unwrap();
            assert_eq!(there.slots, [new.number(service, None).unwrap(), number(&new, n).unwrap()]);
        }
        let first = new.slot(number(&new, 1).unwrap());
        assert_eq!((first.made.load(Relaxed), first.sent.load(Relaxed)), (7, 100));
        let all = new.slot(new.number(service, None).unwrap());
        assert_eq!((all.sent.load(Relaxed), all.received.load(Relaxed)), (103, 24));
        assert_eq!(new.kept(own, 5, 0), Some(own));
        let stranger = Chosen { slots: [own, 999], ..chosen(1) };
        assert!(renumbered.chosen(stranger).is_err());
        let mut twice = state();
        twice.slots.extend(state().slots);
        assert!(new.resume(twice).is_err());
    }
}
