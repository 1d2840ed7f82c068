//! The connection table.
use super::direct::Direct;
use super::ending::{Event, Life};
use super::table::Table;
use super::tenants::{Reached, Traffic};
use super::twins::Twin;
use crate::crash::marks::{Marker, Marks};
use crate::identity::NamespaceId;
use crate::ids::{ClientId, ConnectionId, MoverId, Side, Slot, TenantId};
use crate::mirror::Subject;
use crate::service::Chosen;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Default)]
pub struct Connections {
    table: Table<ConnectionId, Connection>,
    free: Free,
    /// Notes for the driver after a crash.
    marks: Marker,
}

/// Free numbers. A reservation that is dropped returns its number here.
#[derive(Clone, Debug, Default)]
struct Free(Arc<Mutex<Vec<ConnectionId>>>);

/// Number for a connection that is about to begin. Dropping the reservation frees the number.
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    id: ConnectionId,
    /// `None` once the connection has begun.
    free: Option<Free>,
}

impl Free {
    fn lock(&self) -> MutexGuard<'_, Vec<ConnectionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// Returns the number.
    pub fn id(&self) -> ConnectionId {
        self.id
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(free) = &self.free {
            free.lock().push(self.id);
        }
    }
}

/// A connection. Pairs are indexed by side.
pub struct Connection {
    /// Sockets at the two sides.
    sides: [Option<(ClientId, Slot)>; 2],
    pub movers: [MoverId; 2],
    /// Life of each side.
    life: [Life; 2],
    /// Serial number, which is never reused.
    pub serial: u64,
    /// Tenants of the sides.
    pub tenants: [TenantId; 2],
    /// Traffic that is on the tenants' accounts already.
    settled: [Traffic; 2],
    /// Set when the driver has ended the connection with `ECONNRESET`.
    cut: bool,
    /// Set if it counts among its tenant's connections here. The kernel counts a twin's where it holds the policy, too.
    pub counted: bool,
    /// The listener's address.
    pub reached: SocketAddr,
    /// Addresses by which the ends know each other, if they are in two networks.
    pub mapped: Option<Mapped>,
    /// Port of the connecting side that no other connection of its network namespace has.
    pub lent: Option<(NamespaceId, u16)>,
    /// Service through which the listener was reached.
    pub through: Option<Chosen>,
    /// State of the twin, if it belongs to a connection of the kernel.
    pub twin: Option<Box<Twin>>,
    /// State of the direct path.
    pub direct: Option<Box<Direct>>,
    /// Moves to another client since nothing was under way for a previous one. Indexed by side, then 0 for the flow that the side receives,
    /// and 1 for the flow that it sends.
    undrained: [[u32; 2]; 2],
    /// Set for a side that has shut receiving.
    pub receives_no_more: [bool; 2],
    /// Set for a side that has shut sending.
    pub sends_no_more: [bool; 2],
    /// The connection as mirrors show it, since the first did.
    pub subject: Option<Arc<Subject>>,
}

/// Addresses by which the ends of a connection between two networks know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mapped {
    /// Address of the accepting side in the connecting side's network.
    pub name: IpAddr,
    /// Address of the connecting side in its own network.
    pub own: IpAddr,
    /// Address of the connecting side in the accepting side's network.
    pub seen: IpAddr,
}

/// Initial state of a connection.
pub struct NewConnection {
    pub sides: [Option<(ClientId, Slot)>; 2],
    pub movers: [MoverId; 2],
    pub serial: u64,
    pub tenants: [TenantId; 2],
    pub reached: SocketAddr,
    pub mapped: Option<Mapped>,
    pub lent: Option<(NamespaceId, u16)>,
    pub through: Option<Chosen>,
    pub twin: Option<Box<Twin>>,
    pub direct: Option<Box<Direct>>,
    pub counted: bool,
}

impl Connections {
    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.table.get(id)
    }

    /// Returns a connection to be changed.
    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.mark(id);
        self.table.get_mut(id)
    }

    /// Returns a connection of which nothing is to be changed that the driver after a crash needs: counts, movers.
    pub fn get_mut_unmarked(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.table.get_mut(id)
    }

    /// Marks what changes from now on.
    pub fn set_marks(&mut self, marks: &Arc<Marks>) {
        self.marks.begin(marks);
    }

    /// Marks a change of a connection.
    pub fn mark(&self, id: ConnectionId) {
        self.marks.mark_connection(id);
    }

    /// Returns the number of places in the table, free ones included.
    pub fn places(&self) -> usize {
        self.table.len()
    }

    /// Iterates over all numbers, free ones as well.
    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        self.table.ids()
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.table.iter()
    }

    /// Iterates over connections, as [`Self::get_mut_unmarked`] returns them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut Connection)> {
        self.table.iter_mut()
    }

    /// Returns the number of connections and reservations.
    pub fn count(&self) -> usize {
        self.table.len() - self.free.lock().len()
    }

    /// Reserves a number for a connection that is about to begin.
    pub fn reserve(&mut self) -> Reservation {
        let id = self.free.lock().pop();
        Reservation { id: id.unwrap_or_else(|| self.table.add()), free: Some(self.free.clone()) }
    }

    /// Begins a connection under a reserved number.
    pub fn begin(&mut self, mut reserved: Reservation, new: NewConnection) {
        reserved.free = None;
        let id = reserved.id;
        self.mark(id);
        if let Some(marks) = self.marks.get() {
            Side::BOTH.into_iter().for_each(|side| marks.set_sends(id.flow(side), 0));
        }
        // Only the accepting side of a twin has no client.
        let life = new.sides.map(|side| if side.is_some() { Life::OPEN } else { Life::UNCLAIMED });
        self.table.put(id, Connection::new(new, life, false));
    }

    /// Takes over connections that another driver has given. Returns whether their numbers are distinct.
    pub fn resume(&mut self, given: Vec<(ConnectionId, Connection)>) -> bool {
        for (id, connection) in given {
            if self.table.get(id).is_some() {
                return false;
            }
            self.table.put(id, connection);
        }
        *self.free.lock() = self.table.ids().filter(|id| self.table.get(*id).is_none()).collect();
        true
    }

    /// Removes a connection that is over, and frees its number.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.mark(id);
        let connection = self.table.remove(id)?;
        self.free.lock().push(id);
        Some(connection)
    }
}

impl Connection {
    /// Makes a connection whose sides are in the given states.
    pub fn new(new: NewConnection, life: [Life; 2], cut: bool) -> Self {
        let NewConnection {
            sides,
            movers,
            serial,
            tenants,
            reached,
            mapped,
            lent,
            through,
            twin,
            direct,
            counted,
        } = new;
        let settled = Default::default();
        Self {
            sides,
            movers,
            life,
            serial,
            tenants,
            settled,
            cut,
            counted,
            reached,
            mapped,
            lent,
            through,
            twin,
            direct,
            undrained: Default::default(),
            receives_no_more: [false; 2],
            sends_no_more: [false; 2],
            subject: None,
        }
    }

    /// Returns the client and the socket at a side, if a client has it.
    pub fn owner(&self, side: Side) -> Option<(ClientId, Slot)> {
        self.sides[side]
    }

    /// Returns the same of both sides.
    pub fn owners(&self) -> [Option<(ClientId, Slot)>; 2] {
        self.sides
    }

    /// Gives a side to a socket, or to none. Returns the previous owner.
    pub fn set_owner(&mut self, side: Side, owner: Option<(ClientId, Slot)>) -> Option<(ClientId, Slot)> {
        std::mem::replace(&mut self.sides[side], owner)
    }

    /// Takes a side from a socket, unless another one has it by now.
    pub fn let_go(&mut self, side: Side, owner: (ClientId, Slot)) {
        self.sides[side].take_if(|now| *now == owner);
    }

    /// Gives the accepting side of a twin to its first owner.
    pub fn claim(&mut self, owner: (ClientId, Slot), mover: MoverId) {
        (self.sides[Side::Accepting], self.movers[Side::Accepting]) = (Some(owner), mover);
        self.befall(Side::Accepting, Event::Claimed);
    }

    /// Tells whether the driver has ended it with `ECONNRESET`.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Notes that the driver ends it with `ECONNRESET`.
    pub fn cut(&mut self) {
        self.cut = true;
    }

    /// Returns the state of each side.
    pub fn life(&self) -> [Life; 2] {
        self.life
    }

    /// Returns its destination, as rules see it.
    pub fn led(&self) -> Reached {
        Reached { at: self.reached, asked: self.through.map(|chosen| chosen.asked) }
    }

    /// Takes the traffic that a side has sent by now. Returns the part since the last call.
    pub fn settle(&mut self, side: Side, now: Traffic) -> Traffic {
        now.since(std::mem::replace(&mut self.settled[side], now))
    }

    /// Returns the bytes moved in each direction, as far as they have been settled.
    pub fn moved(&self) -> [u64; 2] {
        Side::BOTH.map(|side| self.settled[side].bytes())
    }

    /// Tells whether a side has bytes in the peer's direct ring that it has not given back, as both say.
    pub fn has_unread(&self, side: Side) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.has_unread(side))
    }

    /// Tells whether its bytes go by rings of the two clients.
    pub fn is_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.is_in_use())
    }

    /// Applies an event to a side.
    pub fn befall(&mut self, side: Side, event: Event) {
        self.life[side] = self.life[side].after(event);
        if event == Event::FlowOver {
            self.undrained[side][1] = 0;
            self.undrained[side.other()][0] = 0;
        }
    }

    /// Counts a move of a side to another client. The movers of its flows report when nothing is under way for the previous client.
    pub fn count_move(&mut self, side: Side) {
        self.undrained[side][0] += u32::from(self.life[side.other()].has_flow());
        self.undrained[side][1] += u32::from(self.life[side].has_flow());
    }

    /// Notes that nothing is under way any more after `moves` moves, of the flow that a side receives (`what` is 0) or sends. Returns
    /// whether something was under way before, and whether nothing is by now.
    pub fn count_drained(&mut self, side: Side, what: usize, moves: u32) -> (bool, bool) {
        let open = &mut self.undrained[side][what];
        let was_open = *open > 0;
        *open = open.saturating_sub(moves);
        (was_open, *open == 0)
    }

    /// Tells whether something is under way for previous clients of a side: of what it receives, and of what it sends.
    pub fn has_undrained(&self, side: Side) -> [bool; 2] {
        self.undrained[side].map(|moves| moves > 0)
    }

    /// Tells whether nothing is under way for previous clients of either side.
    pub fn is_drained(&self) -> bool {
        self.undrained == [[0; 2]; 2]
    }

    /// Tells whether both sides are over.
    pub fn is_over(&self) -> bool {
        self.life.into_iter().all(Life::is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_used_is_given_back() {
        let mut connections = Connections::default();
        let kept = connections.reserve();
        let dropped = connections.reserve();
        let number = dropped.id();
        assert_eq!(connections.count(), 2);
        drop(dropped);
        assert_eq!(connections.count(), 1);
        let again = connections.reserve();
        assert_eq!((again.id(), connections.count()), (number, 2));
        let new = NewConnection {
            sides: [None; 2],
            movers: [MoverId::default(); 2],
            serial: 1,
            tenants: [TenantId::default(); 2],
            reached: ([0; 4], 0).into(),
            mapped: None,
            lent: None,
            through: None,
            twin: None,
            direct: None,
            counted: true,
        };
        connections.begin(again, new);
        drop(kept);
        assert_eq!(connections.count(), 1, "one that has begun");
        assert!(connections.remove(number).is_some());
        assert_eq!(connections.count(), 0);
    }
}
