//! What the simulation asks of a conductor beside what everybody may.
use super::Conductor;
use crate::door::ToDoor;
use crate::ids::{MoverId, TenantId};
use crate::memory::{Amounts, Resource};
use crate::messages::{Payer, ToConductor};
use crate::mover::Mover;
use crate::policy::Rate;
use pd_abi::layout::{path, socket_status};

impl Conductor {
    /// What all accounts together hold, and may hold.
    pub fn held(&self) -> (Amounts, Amounts) {
        (self.pool.root().used(), self.pool.root().total())
    }

    /// What each payer with caps of its own holds of a resource, and may hold.
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

    /// Tenants with a rate of bytes, and what they have sent since the driver's start, as movers have counted.
    pub fn spending(&self) -> Vec<(TenantId, Rate, u64)> {
        self.tenants.spending(self.connections.iter(), self.metrics.region())
    }

    /// Flows that wait for memory.
    pub fn flows_waiting(&self) -> usize {
        self.rings_waiting()
    }

    /// What is left although there is no client.
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
            ("amounts", usize::from(used != Amounts::default())),
        ];
        let left = counts.into_iter().filter(|(_, count)| *count > 0);
        left.map(|(what, count)| format!("{count} {what} ({used:?})")).collect()
    }
}

/// Movers, which the simulation gives turns itself.
impl Conductor {
    /// Those that have turns, but for the first.
    pub fn other_movers(&self) -> impl Iterator<Item = MoverId> + '_ {
        self.movers.working().filter(|id| id.index() > 0)
    }

    /// One of them.
    pub fn other_mover(&mut self, id: MoverId) -> Option<&mut Mover> {
        self.movers.simulated(id)
    }

    /// Whether anybody has rung for it.
    pub fn is_mover_rung(&self, id: MoverId) -> bool {
        self.movers.is_rung(id)
    }

    /// Whether anybody has rung for the mover of the same thread.
    pub fn is_own_mover_rung(&self) -> bool {
        self.movers.is_rung(MoverId::default())
    }

    /// Does something with all movers.
    pub fn with_all_movers(&mut self, change: impl FnOnce(&mut [&mut Mover])) {
        self.movers.with_all(change);
    }
}

/// What a driver with bugs would do.
impl Conductor {
    /// Has a ring that a mover of another thread gives back be given back twice. Says whether there was one.
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

    /// Loses an answer that the door is to pass on. Says whether there was one.
    pub fn lose_answer(&self) -> bool {
        self.door.tamper(|queue| {
            let lost = queue.iter().position(|message| matches!(message, ToDoor::Answer { .. }));
            lost.map(|at| queue.remove(at)).is_some()
        })
    }

    /// Takes back a byte that a socket was told of. Says whether there was one.
    pub fn take_byte_back(&self) -> bool {
        let sockets =
            self.connections.iter().flat_map(|(_, connection)| connection.sides.into_iter().flatten());
        let lines = sockets.filter_map(|(id, slot)| Some((self.client(id)?.memory.as_ref()?, slot)));
        for (memory, slot) in lines {
            let known = memory.published(slot, socket_status::RECV_PRODUCER);
            if known > 0 {
                memory.publish_u64(slot, socket_status::RECV_PRODUCER, known - 1);
                return true;
            }
        }
        false
    }

    /// Takes back what receivers know of the ends of rings.
    pub fn forget_last(&self) {
        let sockets =
            self.connections.iter().flat_map(|(_, connection)| connection.sides.into_iter().flatten());
        for (memory, slot) in sockets.filter_map(|(id, slot)| Some((self.client(id)?.memory.as_ref()?, slot)))
        {
            let known = (memory.published(slot, socket_status::PATH & !7) >> 32) as u32;
            memory.publish_u32(slot, socket_status::PATH, known & !path::LAST);
        }
    }

    /// Forgets what tenants with rates have sent.
    pub fn forget_spending(&self) {
        self.tenants.forget_spending();
    }

    /// Forgets that a descriptor was given back.
    pub fn leak(&self) {
        if let Ok(lease) = self.pool.root().lease(Amounts::descriptor()) {
            std::mem::forget(lease);
        }
    }
}
