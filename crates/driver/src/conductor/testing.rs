//! Access to a conductor that only the simulation has.
use super::client::{Client, SocketState};
use super::Conductor;
use crate::door::ToDoor;
use crate::ids::{ClientId, MoverId, Slot, TenantId};
use crate::memory::{Amounts, Resource, RingEnds};
use crate::messages::{Payer, ToConductor};
use crate::mover::Mover;
use crate::policy::Rate;
use pd_abi::layout::{path, socket_status};

impl Conductor {
    /// Returns the amounts that all accounts together hold, and may hold.
    pub fn held(&self) -> (Amounts, Amounts) {
        (self.pool.root().used(), self.pool.root().total())
    }

    /// Lists the payers that have caps of their own: a resource, the amount held, and the cap.
    pub fn holdings(&self) -> Vec<(Payer, Resource, u64, u64)> {
        let accounts = self.payers.accounts().flat_map(|(payer, account)| {
            Resource::ALL.map(|resource| (payer, resource, account.standing(resource)))
        });
        let capped = accounts.filter_map(|(payer, resource, standing)| {
            let most = self.tenants.caps(payer.0).of(resource).most?;
            Some((payer, resource, standing.used, most))
        });
        capped.collect()
    }

    /// Lists the tenants with a rate of bytes, and the bytes sent since the driver's start, as movers have counted.
    pub fn spending(&self) -> Vec<(TenantId, Rate, u64)> {
        self.tenants.spending(self.connections.iter(), self.metrics.region())
    }

    /// Returns the number of flows that wait for memory.
    pub fn flows_waiting(&self) -> usize {
        self.rings_waiting()
    }

    /// Describes all state that is left although there is no client.
    pub fn leftovers(&self) -> Vec<String> {
        let used = self.pool.root().used();
        let counts = [
            ("clients", self.clients.iter().count()),
            ("connections", self.connections.count()),
            ("flows that wait for memory", self.rings_waiting()),
            ("messages of the door", self.from_door.len()),
            ("names", self.names.leftovers()),
            ("requests that wait for addresses", self.deferred.leftovers()),
            ("direct rings", self.rings.leftovers()),
            ("namespaces that the gate is told of", self.gate.leftovers()),
            ("clients of families", self.families.clients()),
            ("registrations of listeners", self.twins.registrations()),
            ("amounts", usize::from(used != Amounts::default())),
        ];
        let left = counts.into_iter().filter(|(_, count)| *count > 0);
        left.map(|(what, count)| format!("{count} {what} ({used:?})")).collect()
    }
}

/// Movers, to which the simulation gives turns itself.
impl Conductor {
    /// Iterates over the movers that have turns, except the first.
    pub fn other_movers(&self) -> impl Iterator<Item = MoverId> + '_ {
        self.movers.working().filter(|id| id.index() > 0)
    }

    /// Returns a mover other than the first.
    pub fn other_mover(&mut self, id: MoverId) -> Option<&mut Mover> {
        self.movers.simulated(id)
    }

    /// Tells whether the mover's doorbell has been rung.
    pub fn is_mover_rung(&self, id: MoverId) -> bool {
        self.movers.is_rung(id)
    }

    /// Tells whether the doorbell of the mover of the same thread has been rung.
    pub fn is_own_mover_rung(&self) -> bool {
        self.movers.is_rung(MoverId::default())
    }

    /// Calls `change` with all movers.
    pub fn with_all_movers(&mut self, change: impl FnOnce(&mut [&mut Mover])) {
        self.movers.with_all(change);
    }
}

/// Faults of a driver with bugs.
impl Conductor {
    /// Duplicates the message by which a mover of another thread gives a ring back. Returns whether there was one.
    pub fn give_back_twice(&self) -> bool {
        self.inboxes.movers.tamper(|queue| {
            let again = queue.iter().find_map(|message| match message {
                ToConductor::FreeRing { ring } => Some(ToConductor::FreeRing { ring: ring.clone() }),
                _ => None,
            });
            let is_there = again.is_some();
            queue.extend(again);
            is_there
        })
    }

    /// Loses an answer that the door is to pass on. Returns whether there was one.
    pub fn lose_answer(&self) -> bool {
        self.door.tamper(|queue| {
            let lost = queue.iter().position(|message| matches!(message, ToDoor::Answer { .. }));
            lost.map(|at| queue.remove(at)).is_some()
        })
    }

    /// Takes one byte back from the count of received bytes that a socket was told. Returns whether a socket had any.
    pub fn take_byte_back(&self) -> bool {
        let sockets =
            self.connections.iter().flat_map(|(_, connection)| connection.owners().into_iter().flatten());
        let lines = sockets.filter_map(|(id, slot)| Some((self.client(id)?.memory()?, slot)));
        for (memory, slot) in lines {
            let known = memory.published(slot, socket_status::RECV_PRODUCER);
            if known > 0 {
                memory.publish_u64(slot, socket_status::RECV_PRODUCER, known - 1);
                return true;
            }
        }
        false
    }

    /// Clears the `LAST` bit in the path words of all sockets.
    pub fn forget_last(&self) {
        let sockets =
            self.connections.iter().flat_map(|(_, connection)| connection.owners().into_iter().flatten());
        for (memory, slot) in sockets.filter_map(|(id, slot)| Some((self.client(id)?.memory()?, slot))) {
            let known = (memory.published(slot, socket_status::PATH & !7) >> 32) as u32;
            memory.publish_u32(slot, socket_status::PATH, known & !path::LAST);
        }
    }

    /// Forgets the bytes that tenants with rates have sent.
    pub fn forget_spending(&self) {
        self.tenants.forget_spending();
    }

    /// Returns the slots of sockets whose ends other clients have taken.
    fn taken(&self) -> Vec<(ClientId, Slot)> {
        let of = |(id, client): (ClientId, &Client)| {
            let sockets = client.give_slots().1.into_iter();
            sockets.filter_map(move |(slot, socket)| match socket.state {
                SocketState::Taken(_) => Some((id, slot)),
                _ => None,
            })
        };
        self.clients.iter().flat_map(of).collect()
    }

    /// Makes all bytes count that previous owners have in rings, for them alone.
    pub fn unfix_ends(&mut self) {
        for (id, slot) in self.taken() {
            let socket = self.client_mut(id).and_then(|client| client.socket_mut(slot));
            if let Some(SocketState::Taken(Some(ends))) = socket.map(|socket| &mut socket.state) {
                *ends = RingEnds { sent: u64::MAX, received: u64::MAX };
            }
        }
    }

    /// Makes all bytes count that previous owners have read out of their receive rings, for them alone.
    pub fn count_all_received(&self) {
        for (id, slot) in self.taken() {
            if let Some(memory) = self.client(id).and_then(|client| client.memory()) {
                memory.publish_u64(slot, socket_status::SPACE_WAKE_AT, u64::MAX);
            }
        }
    }

    /// Leaks the lease of a descriptor.
    pub fn leak(&self) {
        if let Ok(lease) = self.pool.root().lease(Amounts::descriptor()) {
            std::mem::forget(lease);
        }
    }
}
