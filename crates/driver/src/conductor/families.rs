//! Which mover a new client gets. A process and those that it forks or becomes have the same one: they may pass
//! connections on to each other, and a flow stays with its mover.
use crate::identity;
use crate::ids::MoverId;
use std::collections::{HashMap, VecDeque};

/// Generations between a client and the one that it descends from.
const GENERATIONS_MAX: usize = 8;
/// Processes that are remembered after they have left: what they were `exec`uted into may come only then.
const DEPARTED_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct Families {
    /// Mover and clients of each process.
    known: HashMap<u32, (MoverId, usize)>,
    departed: VecDeque<u32>,
    next: MoverId,
}

impl Families {
    /// The mover of a new client, one of `movers`.
    pub fn enter(&mut self, pid: u32, movers: usize) -> MoverId {
        if movers == 1 {
            return MoverId::default();
        }
        let ancestors = std::iter::successors(Some(pid), |&pid| identity::parent(pid));
        let mover = ancestors
            .take(GENERATIONS_MAX)
            .find_map(|pid| self.known.get(&pid).map(|&(mover, _)| mover))
            .unwrap_or_else(|| {
                let mover = self.next;
                self.next = MoverId::at((mover.index() + 1) % movers);
                mover
            });
        self.known.entry(pid).or_insert((mover, 0)).1 += 1;
        mover
    }

    /// Clients of all processes.
    #[cfg(any(test, fuzzing, feature = "hostile"))]
    pub fn clients(&self) -> usize {
        self.known.values().map(|(_, clients)| clients).sum()
    }

    /// A client has gone.
    pub fn leave(&mut self, pid: u32) {
        let Some((_, clients)) = self.known.get_mut(&pid) else { return };
        *clients -= 1;
        self.departed.push_back(pid);
        if self.departed.len() > DEPARTED_MAX {
            let oldest = self.departed.pop_front();
            // A later client may be the same process.
            let gone =
                oldest.filter(|oldest| self.known.get(oldest).is_some_and(|&(_, clients)| clients == 0));
            gone.and_then(|gone| self.known.remove(&gone));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_descends_from_a_client_shares_its_mover() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let descendant = child.id();
        let mut families = Families { next: MoverId::new(2), ..Families::default() };
        assert_eq!(
            (families.enter(own, 3), families.enter(descendant, 3)),
            (MoverId::new(2), MoverId::new(2))
        );
        assert_eq!(families.next, MoverId::new(0));
        families.leave(own);
        assert_eq!(families.enter(own, 3), MoverId::new(2), "it has become another program");
        families.leave(descendant);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Families::default().enter(own, 1), MoverId::new(0));
    }
}
