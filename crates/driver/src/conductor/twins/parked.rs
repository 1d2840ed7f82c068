//! Sides of twins that belong to no client, while a process still holds the kernel's socket.
use super::slow::PAUSE;
use super::twin::Held;
use crate::conductor::ending::{Ending, Event};
use crate::conductor::{Conductor, GRACE};
use crate::identity::NamespaceId;
use crate::ids::{ConnectionId, Side};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time until the first look whether a parked side's socket is held. The sockets of a process that ends are closed within microseconds of
/// each other, in any order.
const LOOK_FIRST: Duration = Duration::from_micros(200);
/// Longest time to the next look. The time doubles with each look.
const LOOK_LAST: Duration = Duration::from_millis(500);
/// Longest time to the next look for each parked side, if that is longer: looks cost the same however many there are.
const LOOK_LAST_OF_EACH: Duration = Duration::from_millis(1);
/// Most looks of one turn.
const LOOKS_MAX: usize = 16;

type Place = (ConnectionId, Side);

/// Sides that belong to no client, with the time of the next look at each.
#[derive(Debug, Default)]
pub struct Parked {
    sides: BTreeMap<Place, Look>,
    looks: BTreeSet<(Duration, Place)>,
    /// Time from which on a look may take long.
    long_look_at: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    at: Duration,
    pause: Duration,
    /// Set if the last owner would have reset the connection by its close.
    resets: bool,
}

impl Parked {
    /// Iterates over all parked sides.
    pub fn iter(&self) -> impl Iterator<Item = Place> + '_ {
        self.sides.keys().copied()
    }

    /// Returns all parked sides, each with whether its end is a reset.
    pub fn give(&self) -> Vec<(ConnectionId, Side, bool)> {
        self.sides.iter().map(|(&(index, side), look)| (index, side, look.resets)).collect()
    }

    /// Returns the time of the next look.
    pub fn next_look(&self) -> Option<Duration> {
        self.looks.first().map(|(at, _)| *at)
    }

    fn put(&mut self, place: Place, look: Look) {
        self.remove(place);
        self.sides.insert(place, look);
        self.looks.insert((look.at, place));
    }

    fn add(&mut self, place: Place, now: Duration, resets: bool) {
        self.put(place, Look { at: now + LOOK_FIRST, pause: LOOK_FIRST, resets });
    }

    /// Removes a side that has an owner again, or whose connection is over. Returns whether its end would have been a reset.
    pub fn remove(&mut self, place: Place) -> bool {
        let Some(Look { at, resets, .. }) = self.sides.remove(&place) else { return false };
        self.looks.remove(&(at, place));
        resets
    }

    /// Returns a side that is due, with its next look put off.
    fn take_due(&mut self, now: Duration) -> Option<Place> {
        let &(at, place) = self.looks.first()?;
        if at > now {
            return None;
        }
        let last = LOOK_LAST.max(LOOK_LAST_OF_EACH * self.sides.len() as u32);
        let look = self.sides.get(&place)?;
        let pause = (look.pause * 2).min(last);
        self.put(place, Look { at: now + pause, pause, ..*look });
        Some(place)
    }
}

impl Conductor {
    /// Parks a side that is over for its client, if another process still holds the kernel's socket. The side is kept for a process that
    /// takes it. Returns whether it is parked.
    pub(in crate::conductor) fn park(&mut self, index: ConnectionId, side: Side, ending: Ending) -> bool {
        if !self.is_held(index, side) {
            return false;
        }
        let Some(mover) = self.connection(index).map(|connection| connection.movers[side]) else {
            return false;
        };
        self.befall(index, side, Event::Left);
        let _ = self.move_side(index, side, self.twins.nobody(mover), None);
        self.look_after(index, side, ending.farewell().is_reset);
        true
    }

    /// Looks from now on whether a side that belongs to no client still has a socket of the kernel. With `resets` its end is a reset.
    pub(in crate::conductor) fn look_after(&mut self, index: ConnectionId, side: Side, resets: bool) {
        if self.connection(index).is_some() {
            self.twins.parked.add((index, side), self.clock.now(), resets);
        }
    }

    /// Ends parked sides whose sockets have no holder any more.
    pub(in crate::conductor) fn look_after_parked(&mut self) {
        let now = self.clock.now();
        let mut has_ended = false;
        for _ in 0..LOOKS_MAX {
            let Some(place) = self.twins.parked.take_due(now) else { break };
            has_ended |= self.end_unless_held(place, now);
        }
        if has_ended {
            self.drop_diags();
        }
    }

    /// Looks at once whether a side has a holder, if the side is parked: a client has learned that it has none.
    pub(in crate::conductor) fn look_now(&mut self, place: (ConnectionId, Side)) {
        let now = self.clock.now();
        if self.twins.parked.sides.contains_key(&place) && self.end_unless_held(place, now) {
            self.drop_diags();
        }
    }

    /// Ends a parked side whose socket has no holder any more. Returns whether that was so.
    fn end_unless_held(&mut self, (index, side): (ConnectionId, Side), now: Duration) -> bool {
        if self.is_held(index, side) {
            return false;
        }
        let resets = self.twins.parked.remove((index, side));
        if self.connection(index).is_some() {
            // Bytes that the last owner sent may not be delivered yet.
            self.end_side(index, side, Ending::Died { deadline: now + GRACE, resets });
        }
        true
    }

    /// Tells whether a process holds the kernel's socket of a side, or may still accept an unclaimed one.
    fn is_held(&mut self, index: ConnectionId, side: Side) -> bool {
        let Some(twin) = self.connection(index).and_then(|connection| connection.twin.as_ref()) else {
            return false;
        };
        if !twin.may_be_wanted(side) {
            return false;
        }
        let &Held { namespace, wanted, inode, unix } = twin.side(side);
        if unix {
            return inode != 0 && self.is_unix_held(namespace, inode);
        }
        let accepted = side == Side::Connecting || twin.is_claimed();
        match self.twins.kernel.inode(&*self.clock, namespace, &wanted) {
            Ok(inode) => inode != 0 || !accepted,
            // Another look will tell.
            Err(errno) => errno == Errno::NOBUFS,
        }
    }

    /// Tells whether a process holds this socket of AF_UNIX. Where the kernel would take long to say, it is asked seldom, and the socket
    /// counts as held meanwhile.
    fn is_unix_held(&mut self, namespace: NamespaceId, inode: u32) -> bool {
        let Some(diag) = self.twins.kernel.diag(namespace) else { return false };
        let found = match diag.unix(inode) {
            Err(Errno::NOBUFS) if self.clock.now() < self.twins.parked.long_look_at => return true,
            Err(Errno::NOBUFS) => {
                let began = self.clock.now();
                let found = diag.unix_of_many(inode);
                let now = self.clock.now();
                self.twins.parked.long_look_at = now + PAUSE * (now.saturating_sub(began));
                found
            }
            found => found,
        };
        found.is_ok()
    }

    /// Tells whether the kernel says that no process holds a TCP side's socket any more. A mark there would be answered with a reset.
    pub(in crate::conductor) fn is_let_go(&self, index: ConnectionId, side: Side) -> bool {
        let twin = self.connection(index).and_then(|connection| connection.twin.as_ref());
        let Some(&Held { namespace, wanted, unix: false, .. }) = twin.map(|twin| twin.side(side)) else {
            return false;
        };
        matches!(self.twins.kernel.inode(&*self.clock, namespace, &wanted), Err(Errno::NOENT | Errno::STALE))
    }

    /// Closes the diagnostic sockets of network namespaces that have neither clients nor parked sides any more.
    pub(in crate::conductor) fn drop_diags(&mut self) {
        let parked =
            self.twins.parked.iter().filter_map(|(index, side)| {
                Some(self.connections.get(index)?.twin.as_ref()?.namespace(side))
            });
        let parked: Vec<_> = parked.collect();
        self.twins.kernel.retain(|id| self.names.knows(id) || parked.contains(&id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rare_and_cost_the_same_however_many_sides_there_are() {
        let mut parked = Parked::default();
        let place = |number| (ConnectionId::new(number), Side::Accepting);
        (0..2_000).for_each(|number| parked.add(place(number), Duration::ZERO, number % 2 == 0));
        let mut looks = BTreeMap::<_, Vec<_>>::new();
        let end = Duration::from_secs(60);
        while let Some(now) = parked.next_look().filter(|at| *at < end) {
            while let Some(place) = parked.take_due(now) {
                looks.entry(place).or_default().push(now);
            }
        }
        for times in looks.values() {
            assert_eq!(times[..3], [200, 600, 1_400].map(Duration::from_micros));
        }
        let late = looks.values().flatten().filter(|at| **at >= end / 2).count();
        assert!((29_000..=32_000).contains(&late), "{late} looks in half a minute");
        (0..2_000).for_each(|number| assert_eq!(parked.remove(place(number)), number % 2 == 0));
        assert_eq!((parked.next_look(), parked.iter().count()), (None, 0));
    }
}
