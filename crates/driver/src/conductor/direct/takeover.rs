//! Direct connections as another driver goes on with them.
use super::doorbells::{Doorbell, Name};
use super::placing::Recall;
use super::{Direct, Plan};
use crate::conductor::Conductor;
use crate::ids::{ClientId, Payer, Side};
use crate::memory::{DirectRing, RingEnds, UnpaidRing};
use crate::takeover::early::Given;
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use pd_shm::memfd::Pages;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// Part of a connection's state that concerns the direct path.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectState {
    rings: [Option<RingState>; 2],
    second: Option<RingState>,
    clients: [(ClientId, u64); 2],
    reported: [(u64, u64); 2],
    left: [bool; 2],
    ends: [Option<RingEnds>; 2],
    plan: Plan,
    words: [u32; 2],
    doorbells: [Option<DoorbellState>; 2],
    recall: Option<Recall>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RingState {
    number: u64,
    payer: Payer,
    /// `None`: the ring went over before the state.
    late: Option<LateRing>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LateRing {
    file: Fd,
    page_bytes: u64,
    bytes: u64,
    sealed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DoorbellState {
    number: u64,
    /// Given only with the first connection that has the doorbell.
    fd: Option<Fd>,
    name: Option<Name>,
}

/// Numbers of doorbells that were given with a connection.
pub type DoorbellsGiven = HashMap<u64, ()>;
/// Doorbells that have come with a connection, by number.
pub type DoorbellsTaken = HashMap<u64, Arc<Doorbell>>;

impl RingState {
    fn of(ring: &DirectRing, pack: &mut Pack) -> Self {
        let (page_bytes, bytes, sealed) = (ring.page_bytes(), ring.bytes(), ring.is_sealed());
        let late = match pack.has(ring) {
            true => None,
            false => Some(LateRing { file: pack.share(ring.file()), page_bytes, bytes, sealed }),
        };
        Self { number: ring.number(), payer: ring.payer, late }
    }
}

impl Conductor {
    /// Returns the direct rings that another driver can have before everything stands still.
    pub fn early_rings(&self) -> Given {
        let mut given = Given::default();
        for direct in self.connections.iter().filter_map(|(_, connection)| connection.direct.as_ref()) {
            direct.rings.iter().chain([&direct.second]).flatten().for_each(|ring| given.add(ring));
        }
        given
    }

    /// Returns the state that another driver goes on with.
    ///
    /// # Errors
    /// The hindrance.
    pub(in crate::conductor) fn give_direct(
        &self,
        direct: &Direct,
        given: &mut DoorbellsGiven,
        pack: &mut Pack,
    ) -> Result<DirectState, Hindrance> {
        let mut ring = |ring: &Option<DirectRing>| ring.as_ref().map(|ring| RingState::of(ring, pack));
        let [first, other] = [ring(&direct.rings[0]), ring(&direct.rings[1])];
        let second = ring(&direct.second);
        let mut doorbells = [None, None];
        for side in Side::BOTH {
            let Some(doorbell) = &direct.doorbells[side] else { continue };
            let (client, serial) = direct.clients[side];
            let owner = self.client(client).filter(|client| client.serial == serial);
            let name = owner.and_then(|client| client.doorbells.name_of(doorbell));
            let number = doorbell.number();
            let fd = match given.insert(number, ()) {
                None => Some(pack.add(doorbell.fd())?),
                Some(()) => None,
            };
            doorbells[side] = Some(DoorbellState { number, fd, name });
        }
        let &Direct { clients, reported, left, ends, plan, words, recall, .. } = direct;
        Ok(DirectState {
            rings: [first, other],
            second,
            clients,
            reported,
            left,
            ends,
            plan,
            words,
            doorbells,
            recall,
        })
    }

    /// Takes over state that another driver has given.
    ///
    /// # Errors
    /// The fault in it.
    pub(in crate::conductor) fn take_direct(
        &mut self,
        state: DirectState,
        taken: &mut DoorbellsTaken,
        fds: &mut Unpacked,
    ) -> Result<Direct, Wrong> {
        let DirectState { rings, second, clients, reported, left, ends, plan, words, doorbells, recall } =
            state;
        let mut made = [None, None];
        let without = Side::BOTH.into_iter().find(|side| rings[*side].is_none());
        for (side, ring) in Side::BOTH.into_iter().zip(rings) {
            made[side] = ring.map(|ring| self.take_ring(ring, clients[side], fds)).transpose()?;
        }
        let second = match (second, without) {
            (Some(ring), Some(side)) => Some(self.take_ring(ring, clients[side], fds)?),
            (Some(_), None) => return Err(Wrong::of("a third direct ring")),
            (None, _) => None,
        };
        let mut resumed = [None, None];
        for (side, doorbell) in Side::BOTH.into_iter().zip(doorbells) {
            let Some(DoorbellState { number, fd, name }) = doorbell else { continue };
            let (id, serial) = clients[side];
            let owner = self.client_mut(id).filter(|client| client.serial == serial);
            resumed[side] = match (taken.get(&number), owner, fd) {
                (Some(known), _, None) => Some(Arc::clone(known)),
                (None, Some(owner), Some(fd)) => {
                    let doorbell = Doorbell::resume(number, fds.take(fd)?, &owner.account)?;
                    owner.doorbells.resume(name, &doorbell);
                    taken.insert(number, Arc::clone(&doorbell));
                    Some(doorbell)
                }
                // The owner has gone: nobody sleeps on the doorbell.
                (None, None, _) | (None, _, None) => None,
                (Some(_), _, Some(_)) => return Err(Wrong::of("a doorbell is there twice")),
            };
        }
        for (id, serial) in clients {
            if let Some(client) = self.client_mut(id).filter(|client| client.serial == serial) {
                client.enter_direct();
            }
        }
        let since = self.clock.now();
        Ok(Direct {
            rings: made,
            second,
            clients,
            reported,
            since,
            left,
            ends,
            plan,
            words,
            doorbells: resumed,
            recall,
        })
    }

    fn take_ring(
        &mut self,
        state: RingState,
        (maker, serial): (ClientId, u64),
        fds: &mut Unpacked,
    ) -> Result<DirectRing, Wrong> {
        let RingState { number, late, payer: (tenant, user) } = state;
        Wrong::unless(self.tenants.is_known(tenant), || "a tenant that is not there".to_owned())?;
        let maker = self.client(maker).filter(|client| client.serial == serial);
        let payer = (tenant, user);
        let account = match maker {
            Some(client) => Arc::clone(&client.account),
            None => Arc::clone(self.payers.account(payer, &self.tenants, &self.pool)),
        };
        let ring = match late {
            None => fds.take_early(number)?,
            Some(LateRing { file, page_bytes, bytes, sealed }) => {
                let pages =
                    Pages::from_bytes(page_bytes).ok_or_else(|| Wrong::of("pages of a direct ring"))?;
                UnpaidRing::new(fds.take(file)?, (pages, bytes, sealed))
                    .map_err(|errno| Wrong::of(format!("a direct ring of {bytes} bytes: {errno}")))?
            }
        };
        let bytes = ring.bytes();
        let ring = ring.pay(&account, payer);
        let ring =
            ring.map_err(|exhausted| Wrong::of(format!("a direct ring of {bytes} bytes: {exhausted}")))?;
        self.rings.enter(payer);
        Ok(ring)
    }
}
