//! Movers that another driver has given, with their flows.
use crate::conductor::recovery::Doubts;
use crate::conductor::Conductor;
use crate::crash::marks::Marks;
use crate::ids::{ClientId, FlowId, MoverId, Side};
use crate::messages::{Endpoint, Ring};
use crate::mover::takeover::{FlowState, Known, KnownFlow, MoverState};
use crate::takeover::pack::{Unpacked, Wrong};
use pd_abi::limits::PAGE_BYTES;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

impl Conductor {
    /// Takes over movers that another driver has given, all of them into the first mover. `known`: facts of clients, `marks`: those of a
    /// driver that was killed. Returns the argument of [`Self::begin`], and what that driver may have changed after its state.
    ///
    /// # Errors
    /// The fault in it.
    pub fn take_movers(
        &mut self,
        states: Vec<MoverState>,
        mut known: HashMap<ClientId, Known>,
        fds: &mut Unpacked,
        marks: Option<&Marks>,
    ) -> Result<(Vec<u32>, Doubts), Wrong> {
        let of_killed = marks.map(|marks| marks.sleeps());
        let sleeps = states.iter().map(MoverState::sleeps).chain(of_killed).collect();
        let mut doubts = Doubts::default();
        let mut flows = Vec::new();
        for state in states {
            for client in state.clients {
                let id = client.client;
                let known = known.get_mut(&id);
                let known = known.ok_or_else(|| Wrong::of(format!("client {id} of a mover is not there")))?;
                let sockets = self.movers.own().take_client(client, known, fds, marks)?;
                doubts.sockets.extend(sockets.into_iter().map(|socket| (id, socket)));
            }
            flows.extend(state.flows);
        }
        let mut there = HashSet::new();
        for flow in flows {
            there.insert(flow.id);
            let known_flow = self.flow_of(&flow)?;
            let files = known.get(&known_flow.ends[0].client).map_or(&[][..], |client| &client.files);
            let id = flow.id.connection();
            if !self.movers.own().take_flow(flow, known_flow, files, marks)? {
                doubts.connections.insert(id);
            }
        }
        for (id, connection) in self.connections.iter() {
            for (side, life) in Side::BOTH.into_iter().zip(connection.life()) {
                Wrong::unless(life.has_flow() == there.contains(&id.flow(side)), || {
                    format!("connection {id} has a flow too many, or too few")
                })?;
            }
        }
        Ok((sleeps, doubts))
    }

    /// Returns the facts of a flow that another driver has given.
    fn flow_of(&mut self, flow: &FlowState) -> Result<KnownFlow, Wrong> {
        let id: FlowId = flow.id;
        let wrong = |what: &str| Wrong::of(format!("flow {id}: {what}"));
        let connection = self.connection(id.connection()).ok_or_else(|| wrong("of no connection"))?;
        let (serial, tenant, lasts) =
            (connection.serial, connection.tenants[id.side()], connection.twin.is_some());
        let sides = [id.side(), id.side().other()].map(|side| connection.owner(side));
        let mut ends = Vec::with_capacity(2);
        for (end, owner) in flow.ends.into_iter().zip(sides) {
            ends.push(match end {
                // The conductor may know of a socket that the flow has let go.
                None => self.twins_nobody(),
                Some((end, serial)) if owner.is_none() || owner == Some(end) => {
                    match self.endpoint(end.0, end.1).filter(|known| known.serial == serial) {
                        Some(known) => known,
                        // The client has gone, maybe for another of its number, and the flow has not ended yet.
                        None if owner.is_none() => self.twins_nobody(),
                        None => return Err(wrong("an end of nobody")),
                    }
                }
                Some(_) => return Err(wrong("an end of somebody else")),
            });
        }
        let ends: [Endpoint; 2] = ends.try_into().map_err(|_| wrong("its ends"))?;
        let ring = flow.moving.as_ref().and_then(|moving| moving.sink.ring);
        // A client that has gone takes its memory along, and a ring in it that nobody reads.
        let ring = ring.filter(|_| ends[1].client != ClientId::NOBODY);
        let ring =
            ring.map(|ring| self.take_receive_ring(ends[1].client, ring).ok_or_else(|| wrong("its ring")));
        Ok(KnownFlow { tenant, lasts, ends, ring: ring.transpose()?, serial })
    }

    fn twins_nobody(&self) -> Endpoint {
        self.twins.nobody(MoverId::default())
    }

    fn take_receive_ring(
        &mut self,
        id: ClientId,
        (number, page, pages, wished): (u16, u32, u32, u64),
    ) -> Option<Ring> {
        let client = self.clients.get_mut(id)?;
        let serial = client.serial;
        let (region, space) = client.regions.get_mut(&number.into())?;
        let unit = (region.pages.bytes() / PAGE_BYTES) as u32;
        let is_whole = pages.is_power_of_two() && pages % unit == 0 && page % pages == 0;
        if !is_whole || !space.claim(page / unit, pages / unit) {
            return None;
        }
        let map = Arc::clone(&region.map);
        Some(Ring { client: id, serial, region: number, page, pages, wished, is_first: false, map })
    }
}
