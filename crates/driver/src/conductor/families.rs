//! Assignment of movers to new clients. A process and the processes that it forks or executes have the same mover. They may pass
//! connections on to each other, and a flow stays with its mover.
use crate::hash::HashMap;
use crate::ids::MoverId;
use crate::process;
use std::collections::VecDeque;

/// Most generations between a client and an ancestor whose family it joins.
const GENERATIONS_MAX: usize = 8;
/// Processes that are remembered after they have left: a program that they execute may attach later.
const DEPARTED_MAX: usize = 1024;

/// Number of a family, valid as long as a process of it is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Family(u32);

/// See the module.
#[derive(Debug, Default)]
pub struct Families {
    /// Family and clients of each process.
    known: HashMap<u32, (Family, usize)>,
    /// Mover of each family, and the number of its processes that are remembered.
    movers: HashMap<Family, (MoverId, usize)>,
    departed: VecDeque<u32>,
    /// Number of families made so far.
    numbered: u32,
    /// Number of movers dealt out so far.
    dealt: usize,
}

impl Families {
    /// Adds a new client. Returns its family and mover. A new family gets one of `movers`, in turn.
    pub fn enter(&mut self, pid: u32, movers: &[MoverId]) -> (Family, MoverId) {
        let ancestors = std::iter::successors(Some(pid), |&pid| process::parent(pid));
        let known = ancestors.take(GENERATIONS_MAX).find_map(|pid| self.known.get(&pid));
        let family = known.map(|&(family, _)| family).unwrap_or_else(|| {
            let mover = movers.get(self.dealt % movers.len().max(1)).copied().unwrap_or_default();
            self.dealt += 1;
            // Two families become one if a number recurs.
            self.numbered = self.numbered.wrapping_add(1);
            self.movers.entry(Family(self.numbered)).or_insert((mover, 0));
            Family(self.numbered)
        });
        let Some((mover, processes)) = self.movers.get_mut(&family) else {
            return (family, MoverId::default());
        };
        let (_, clients) = self.known.entry(pid).or_insert_with(|| {
            *processes += 1;
            (family, 0)
        });
        *clients += 1;
        (family, *mover)
    }

    /// Returns the mover of a family.
    pub fn mover(&self, family: Family) -> MoverId {
        self.movers.get(&family).map_or(MoverId::default(), |&(mover, _)| mover)
    }

    /// Sets the mover of a family, all of which has gone there.
    pub fn set_mover(&mut self, family: Family, mover: MoverId) {
        if let Some((known, _)) = self.movers.get_mut(&family) {
            *known = mover;
        }
    }

    /// Returns the number of clients of all processes.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn clients(&self) -> usize {
        self.known.values().map(|(_, clients)| clients).sum()
    }

    /// Notes that a client has gone.
    pub fn leave(&mut self, pid: u32) {
        let Some((_, clients)) = self.known.get_mut(&pid) else { return };
        *clients -= 1;
        self.departed.push_back(pid);
        if self.departed.len() > DEPARTED_MAX {
            let oldest = self.departed.pop_front();
            // A later client may be the same process.
            let gone =
                oldest.filter(|oldest| self.known.get(oldest).is_some_and(|&(_, clients)| clients == 0));
            if let Some((family, _)) = gone.and_then(|gone| self.known.remove(&gone)) {
                self.forget_one(family);
            }
        }
    }

    fn forget_one(&mut self, family: Family) {
        if let Some((_, processes)) = self.movers.get_mut(&family) {
            *processes -= 1;
            if *processes == 0 {
                self.movers.remove(&family);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREE: [MoverId; 3] = [MoverId::new(0), MoverId::new(1), MoverId::new(2)];

    #[test]
    fn who_descends_from_a_client_shares_its_mover() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let descendant = child.id();
        let mut families = Families { dealt: 2, ..Families::default() };
        let first = families.enter(own, &THREE);
        assert_eq!((first.1, families.enter(descendant, &THREE)), (MoverId::new(2), first));
        families.leave(own);
        families.set_mover(first.0, MoverId::new(1));
        assert_eq!(families.enter(own, &THREE), (first.0, MoverId::new(1)), "it has become another program");
        families.leave(descendant);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Families::default().enter(own, &THREE[..1]).1, MoverId::new(0));
    }

    #[test]
    fn families_of_which_nobody_is_left_are_forgotten() {
        let mut families = Families::default();
        // Processes that do not exist, so that none is another's child.
        for at in 0..DEPARTED_MAX + 5 {
            let pid = 1 << 30 | at as u32;
            assert_eq!(families.enter(pid, &THREE).1, THREE[at % 3]);
            families.leave(pid);
        }
        assert_eq!((families.known.len(), families.movers.len()), (DEPARTED_MAX, DEPARTED_MAX));
    }
}
