//! Clients and connections of a driver that was killed: those that are not proved to be as its last snapshot says are reset.
//!
//! The snapshot is in force by then, with all clients and connections that it has. A client goes on if no request, no frame and no event has
//! changed it since: the driver marks it before. A connection goes on if it was not changed, both its clients go on, and neither flow
//! has bytes of which nobody knows where they are.
use super::client::SocketState;
use super::Conductor;
use crate::crash::marks::Marks;
use crate::ids::{ClientId, ConnectionId, Slot};
use crate::policy::Policy;
use pd_abi::SocketId;
use std::collections::HashSet;
use std::sync::Arc;

/// Parts of a state that the driver which gave it may have changed since.
#[derive(Debug, Default)]
pub struct Doubts {
    /// Connections with a flow that is not as the state says, and whose bytes are not all accounted for.
    pub connections: HashSet<ConnectionId>,
    /// Sockets of which a request may have been carried out in part.
    pub sockets: Vec<(ClientId, SocketId)>,
}

impl Conductor {
    /// Resets what a driver that was killed may have changed since snapshot `epoch`. Then the policy is put in force, and all further changes
    /// are marked.
    pub fn begin_after_crash(&mut self, policy: Policy, doubts: Doubts, marks: &Arc<Marks>, epoch: u64) {
        let Doubts { connections: mut lost, sockets } = doubts;
        let of_sockets =
            sockets.into_iter().filter_map(|(id, socket)| self.connection_of(id, Slot::of(socket)));
        lost.extend(of_sockets);
        let is_changed = |id: ClientId| marks.is_client_changed(id, epoch);
        let gone: Vec<_> = self.clients.iter().map(|(id, _)| id).filter(|id| is_changed(*id)).collect();
        for (index, connection) in self.connections.iter() {
            let mut owners = connection.owners().into_iter().flatten();
            if marks.is_connection_changed(index, epoch) || owners.any(|(id, _)| is_changed(id)) {
                lost.insert(index);
            }
        }
        lost.retain(|index| self.connection(*index).is_some_and(|connection| !connection.is_cut()));
        let (clients, connections) = self.counts();
        tracing::info!(
            clients = clients - gone.len(),
            connections = connections - lost.len(),
            clients_reset = gone.len(),
            connections_reset = lost.len(),
            "this driver goes on where another has ended"
        );
        self.begin_to_mark(marks);
        lost.into_iter().for_each(|index| self.cut(index));
        gone.into_iter().for_each(|id| self.disconnect(id, None));
        // News that the other driver has stored and not told.
        self.movers.own().tell_all_again();
        self.begin_apply(policy, None);
    }

    /// Has movers mark changes. Their threads do not run yet.
    pub fn mark_at_movers(&mut self, marks: &Arc<Marks>) {
        self.movers.all().into_iter().for_each(|mover| mover.set_marks(marks));
    }

    /// Marks all changes from now on.
    pub fn begin_to_mark(&mut self, marks: &Arc<Marks>) {
        self.connections.set_marks(marks);
        self.marks.begin(marks);
    }

    fn connection_of(&self, id: ClientId, slot: Slot) -> Option<ConnectionId> {
        let socket = self.client(id)?.socket(slot)?;
        match &socket.state {
            SocketState::Connected(known) | SocketState::Closing(Some(known)) => Some(known.connection),
            _ => None,
        }
    }
}
