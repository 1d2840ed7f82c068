//! Sides of twins that belong to no client, while somebody still holds the kernel's socket.
use super::twin::Held;
use crate::conductor::ending::{Ending, Event};
use crate::conductor::{Conductor, GRACE};
use crate::ids::{ConnectionId, Side};
use std::time::Duration;

/// How soon it is looked whether somebody still holds a parked side's socket, and how often after that.
const PARKED_FIRST: Duration = Duration::from_millis(50);
const PARKED_AGAIN: Duration = Duration::from_millis(500);

impl Conductor {
    /// A side of a connection that is over for its client: says whether somebody else still holds the kernel's
    /// socket, and keeps it for whoever takes it.
    pub(in crate::conductor) fn park(&mut self, index: ConnectionId, side: Side) -> bool {
        if !self.is_held(index, side) {
            return false;
        }
        let Some(mover) = self.connection(index).map(|connection| connection.movers[side]) else {
            return false;
        };
        self.befall(index, side, Event::Left);
        self.move_side(index, side, self.twins.nobody(mover), None);
        self.look_after(index, side);
        true
    }

    /// Looks from now on whether a side that belongs to no client still has a socket of the kernel's.
    pub(in crate::conductor) fn look_after(&mut self, index: ConnectionId, side: Side) {
        if self.connection(index).is_some() {
            self.twins.parked.push((index, side));
            let at = self.clock.now() + PARKED_FIRST;
            self.twins.look_at = Some(self.twins.look_at.map_or(at, |other| other.min(at)));
        }
    }

    /// Ends parked sides whose sockets nobody holds any more.
    pub(in crate::conductor) fn look_after_parked(&mut self) {
        let now = self.clock.now();
        if self.twins.look_at.is_none_or(|at| now < at) {
            return;
        }
        for (index, side) in std::mem::take(&mut self.twins.parked) {
            if self.is_held(index, side) {
                self.twins.parked.push((index, side));
            } else if self.connection(index).is_some() {
                // What its last owner sent may not be delivered yet.
                self.end_side(index, side, Ending::Died(now + GRACE));
            }
        }
        self.twins.look_at = (!self.twins.parked.is_empty()).then(|| now + PARKED_AGAIN);
        self.drop_diags();
    }

    /// Whether a process holds the kernel's socket of a side, or (unclaimed) may still accept it.
    fn is_held(&self, index: ConnectionId, side: Side) -> bool {
        let Some(twin) = self.connection(index).and_then(|connection| connection.twin.as_ref()) else {
            return false;
        };
        if !twin.may_be_wanted(side) {
            return false;
        }
        let &Held { namespace, wanted, inode, unix } = twin.side(side);
        if unix {
            return inode != 0
                && self.twins.diags.get(&namespace).is_some_and(|diag| diag.unix(inode).is_ok());
        }
        let accepted = side == Side::Connecting || twin.is_claimed();
        let found = self.twins.diags.get(&namespace).map(|diag| diag.inode(&wanted));
        matches!(found, Some(Ok(inode)) if inode != 0 || !accepted)
    }

    /// Lets go of network namespaces that nobody is in any more.
    pub(in crate::conductor) fn drop_diags(&mut self) {
        let parked =
            self.twins.parked.iter().filter_map(|(index, side)| {
                Some(self.connections.get(*index)?.twin.as_ref()?.namespace(*side))
            });
        let parked: Vec<_> = parked.collect();
        self.twins.diags.retain(|id, _| self.names.knows(*id) || parked.contains(id));
    }
}
