//! Twins as another driver goes on with them. The state of a connection includes its twin.
use super::listeners::ListeningState;
use super::twin::End;
use crate::conductor::client::Client;
use crate::conductor::Conductor;
use crate::identity::NamespaceId;
use crate::ids::{ConnectionId, Side, TenantId};
use crate::kernel_socket::SocketDiag;
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use crate::unix_socket::Counted;
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TwinsState {
    listeners: Vec<ListeningState>,
    parked: Vec<(ConnectionId, Side, bool)>,
    departed: Vec<(TenantId, Vec<End>)>,
    diags: Vec<(NamespaceId, Fd, Option<Fd>)>,
}

impl Conductor {
    /// Returns the state that another driver goes on with.
    ///
    /// # Errors
    /// The hindrance.
    pub(in crate::conductor) fn give_twins(&self, pack: &mut Pack) -> Result<TwinsState, Hindrance> {
        let diags = self.twins.kernel.iter().map(|(id, SocketDiag { diag, protocols, .. })| {
            Ok((id, pack.add(diag)?, protocols.as_ref().map(|file| pack.add(file)).transpose()?))
        });
        let departed = self.twins.departed.iter();
        Ok(TwinsState {
            diags: diags.collect::<Result<_, Hindrance>>()?,
            listeners: self.twins.give_listeners(),
            parked: self.twins.parked.give(),
            departed: departed.map(|(id, list)| (*id, list.iter().copied().collect())).collect(),
        })
    }

    /// Takes over state that another driver has given. Connections are there already.
    ///
    /// # Errors
    /// The fault in it.
    pub(in crate::conductor) fn take_twins(
        &mut self,
        state: TwinsState,
        fds: &mut Unpacked,
    ) -> Result<(), Wrong> {
        let TwinsState { listeners, parked, departed, diags } = state;
        for (id, diag, protocols) in diags {
            let protocols = protocols.map(|fd| fds.take(fd)).transpose()?;
            let diag = SocketDiag { diag: fds.take(diag)?, protocols, counted: Counted::default() };
            self.twins.kernel.insert(id, diag);
        }
        for (tenant, ends) in departed {
            Wrong::unless(self.tenants.is_known(tenant), || "a tenant that is not there".to_owned())?;
            self.twins.departed.entry(tenant).or_default().extend(ends.into_iter().take(super::DEPARTED_MAX));
        }
        let mut twins: Vec<_> =
            self.connections.iter().filter(|(_, connection)| connection.twin.is_some()).collect();
        twins.sort_unstable_by_key(|(_, connection)| connection.serial);
        let twins: Vec<_> = twins.into_iter().map(|(index, _)| index).collect();
        for index in twins {
            self.take_twin(index);
        }
        // Listeners come after the twins, so that clients are told of the twins that are there, and count them.
        let can_speak = self.resume_listeners(listeners);
        Wrong::unless(can_speak, || "a listening socket of nobody".to_owned())?;
        for (index, side, resets) in parked {
            let is_nobodys =
                self.connection(index).is_some_and(|it| it.twin.is_some() && it.owner(side).is_none());
            Wrong::unless(is_nobodys, || format!("connection {index} is parked, and somebody's"))?;
            self.look_after(index, side, resets);
        }
        Ok(())
    }

    fn take_twin(&mut self, index: ConnectionId) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        // A client that has gone counts by its tenant.
        let owner = connection.owner(Side::Connecting).and_then(|(id, _)| self.clients.get(id));
        let payer = owner.map_or((connection.tenants[Side::Connecting], None), Client::payer);
        let Some(twin) = &mut connection.twin else { return };
        // Clients with a registration of its place are told again, and count it.
        twin.take_told();
        if twin.is_withdrawn() {
            return;
        }
        let is_claimed = twin.is_claimed();
        for (side, held) in twin.sides().filter(|(side, _)| is_claimed || *side == Side::Connecting) {
            self.twins.ends.entry(held.end()).or_insert((index, side));
            self.twins.note_namespace(held);
        }
        if !is_claimed {
            self.twins.note_unclaimed(*twin.key(), twin.place(), index, payer);
        }
    }
}
