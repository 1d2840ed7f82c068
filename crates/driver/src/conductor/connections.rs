//! The connection table.
use super::direct::Direct;
use super::ending::{Event, Life};
use super::table::Table;
use super::tenants::{Reached, Traffic};
use super::twins::Twin;
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
}

/// Numbers of no connection, which reservations give back.
#[derive(Clone, Debug, Default)]
struct Free(Arc<Mutex<Vec<ConnectionId>>>);

/// A number for a connection that is about to begin. It is free again when the reservation is dropped.
#[derive(Debug)]
#[must_use]
pub struct Reservation {
    id: ConnectionId,
    /// None once the connection has begun.
    free: Option<Free>,
}

impl Free {
    fn lock(&self) -> MutexGuard<'_, Vec<ConnectionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
    /// The number.
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

/// A connection. What there are two of is by side.
pub struct Connection {
    /// Whose sockets the sides are.
    pub sides: [Option<(ClientId, Slot)>; 2],
    pub movers: [MoverId; 2],
    /// How far they are.
    life: [Life; 2],
    /// A number that no other connection has or will have.
    pub serial: u64,
    /// Whose the sides are, and what of the counters is on their accounts already.
    pub tenants: [TenantId; 2],
    pub settled: [Traffic; 2],
    /// A policy ended it.
    pub cut: bool,
    /// Whether it counts among its tenant's connections here: where the kernel holds the policy, too, it counts a twin's.
    pub counted: bool,
    /// The listener's address.
    pub reached: SocketAddr,
    /// Names of its ends, if these are in two networks.
    pub mapped: Option<Mapped>,
    /// The service through which it came there.
    pub through: Option<Chosen>,
    /// If it belongs to a connection of the kernel.
    pub twin: Option<Box<Twin>>,
    /// On the direct path.
    pub direct: Option<Box<Direct>>,
    /// By side, for what it receives and what it sends: how often it has gone to another client since nothing was under way for a
    /// former one.
    pub undrained: [[u32; 2]; 2],
    /// As mirrors show it, since the first did.
    pub subject: Option<Arc<Subject>>,
}

/// Addresses by which the ends of a connection between two networks know each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mapped {
    /// That of the accepting side in the connecting side's network.
    pub name: IpAddr,
    /// That of the connecting side in its own network.
    pub own: IpAddr,
    /// The same in the accepting side's network.
    pub seen: IpAddr,
}

/// A connection as it begins.
pub struct NewConnection {
    pub sides: [Option<(ClientId, Slot)>; 2],
    pub movers: [MoverId; 2],
    pub serial: u64,
    pub tenants: [TenantId; 2],
    pub reached: SocketAddr,
    pub mapped: Option<Mapped>,
    pub through: Option<Chosen>,
    pub twin: Option<Box<Twin>>,
    pub direct: Option<Box<Direct>>,
    pub counted: bool,
}

impl Connections {
    pub fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.table.get(id)
    }

    pub fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.table.get_mut(id)
    }

    /// All numbers that there may be.
    pub fn ids(&self) -> impl Iterator<Item = ConnectionId> {
        self.table.ids()
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        self.table.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut Connection)> {
        self.table.iter_mut()
    }

    /// How many there are, and numbers that are kept for more.
    pub fn count(&self) -> usize {
        self.table.len() - self.free.lock().len()
    }

    /// A number for a connection that is about to begin.
    pub fn reserve(&mut self) -> Reservation {
        let id = self.free.lock().pop();
        Reservation { id: id.unwrap_or_else(|| self.table.add()), free: Some(self.free.clone()) }
    }

    /// Has it begin.
    pub fn begin(&mut self, mut reserved: Reservation, new: NewConnection) {
        reserved.free = None;
        let id = reserved.id;
        // Only the accepting side of a twin has nobody.
        let life = new.sides.map(|side| if side.is_some() { Life::OPEN } else { Life::UNCLAIMED });
        self.table.put(id, Connection::new(new, life, false));
    }

    /// Goes on with the connections that another driver has given. Says whether each has a number of its own.
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

    /// It is over, and its number free.
    pub fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        let connection = self.table.remove(id)?;
        self.free.lock().push(id);
        Some(connection)
    }
}

impl Connection {
    /// A connection whose sides are as far as that.
    pub fn new(new: NewConnection, life: [Life; 2], cut: bool) -> Self {
        let NewConnection { sides, movers, serial, tenants, reached, mapped, through, twin, direct, counted } =
            new;
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
            through,
            twin,
            direct,
            undrained: Default::default(),
            subject: None,
        }
    }

    /// How far its sides are.
    pub fn life(&self) -> [Life; 2] {
        self.life
    }

    /// Where it leads, as rules see it.
    pub fn led(&self) -> Reached {
        Reached { at: self.reached, asked: self.through.map(|chosen| chosen.asked) }
    }

    /// Bytes that were moved, there and back, as far as that is known.
    pub fn moved(&self) -> [u64; 2] {
        Side::BOTH.map(|side| self.settled[side].bytes())
    }

    /// Whether its bytes go by rings of the two clients.
    pub fn is_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.is_in_use())
    }

    /// Something befalls a side.
    pub fn befall(&mut self, side: Side, event: Event) {
        self.life[side] = self.life[side].after(event);
        if event == Event::FlowOver {
            self.undrained[side][1] = 0;
            self.undrained[side.other()][0] = 0;
        }
    }

    /// A side goes to another client. The movers of its flows tell when nothing is under way for the former one.
    pub fn count_move(&mut self, side: Side) {
        self.undrained[side][0] += u32::from(self.life[side.other()].has_flow());
        self.undrained[side][1] += u32::from(self.life[side].has_flow());
    }

    /// Whether both sides are over.
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
