//! Transfers: channels go from one mover to another, with the sockets whose home they are and the flows that start there.
//!
//! Nothing is in motion meanwhile. Whoever transfers has all movers in his hands ([`crate::conductor::Movers`]), and no command is on
//! its way from one to another ([`settle`]). So a transfer is a change of tables: it has no steps between which anybody could die, and
//! nothing to take back. It is all checked before anything is changed.
//!
//! What goes together: a flow, and all whose sends it carries, now or later. What does not go: flows with a copy under way, whose engine
//! is waited for a while; clients that pass files, since their openers and readers answer a mover.
use super::clients::{Client, Socket};
use super::scheduler::Place;
use super::{counting, flows, Mover};
use crate::ids::{ClientId, FlowId, MoverId, Slot};
use crate::messages::Endpoint;
use std::collections::HashSet;

/// Sockets of one transfer: movers stand still for about as many microseconds.
pub const SOCKETS_MAX: usize = 4096;
/// Times that completions are looked for before a transfer is given up.
const REAPS_MAX: usize = 10_000;

/// What goes where.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// From this mover...
    pub from: MoverId,
    /// ...to this one...
    pub to: MoverId,
    /// ...go these channels, which are all the former's.
    pub places: &'a [Place],
}

/// Why nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The engine has not ended its copies.
    UnderWay,
    /// A client, or one whose sends a flow carries as well, does not go.
    Bound,
    /// More than [`SOCKETS_MAX`].
    TooMany,
}

/// What a transfer is about.
struct Plan {
    sockets: Vec<(ClientId, Slot)>,
    flows: Vec<FlowId>,
    /// Clients of which nothing is left behind.
    leaving: Vec<ClientId>,
}

/// Has all movers carry out what they have been told, until nobody has told anybody anything. Says whether anybody had.
pub fn settle(movers: &mut [&mut Mover]) -> bool {
    let mut worked = false;
    while movers.iter_mut().fold(false, |any, mover| mover.carry_out_all() | any) {
        worked = true;
    }
    worked
}

/// Transfers. Returns the flows that went.
///
/// # Errors
/// [`Held`].
pub fn transfer(movers: &mut [&mut Mover], of: Transfer<'_>) -> Result<Vec<FlowId>, Held> {
    let Transfer { from, to, places } = of;
    let plan = movers[from.index()].plan(places)?;
    debug_assert_ne!(from, to);
    for client in clients_of(places) {
        let [old, new] = two(movers, from, to);
        new.know(old, client);
    }
    for &id in &plan.flows {
        let [old, new] = two(movers, from, to);
        new.receive_flow(old, id);
    }
    let went: HashSet<FlowId> = plan.flows.iter().copied().collect();
    for &(client, slot) in &plan.sockets {
        let [old, new] = two(movers, from, to);
        let socket = new.receive_socket(old, (client, slot), to);
        // Whose bytes it gets has news for another mover.
        let Some((mover, flow)) = socket.incoming else { continue };
        let mover = if went.contains(&flow) { to } else { mover };
        let is_known = movers[mover.index()].place_end(flow, (client, slot), to);
        if is_known {
            movers[to.index()].set_incoming((client, slot), flow, mover);
        }
    }
    for &flow in &plan.flows {
        let mut ends = Vec::new();
        movers[to.index()].flows.place(flow).each_end(|end| ends.push((end.mover, end.client, end.slot)));
        for (mover, client, slot) in ends.into_iter().filter(|(_, client, _)| *client != ClientId::NOBODY) {
            movers[mover.index()].set_incoming((client, slot), flow, to);
        }
    }
    for &place in places {
        let [old, new] = two(movers, from, to);
        new.receive_channel(old, place);
    }
    for &client in &plan.leaving {
        movers[from.index()].dismiss(client);
    }
    // Only now does everything lie where it belongs.
    plan.flows.iter().for_each(|&flow| movers[to.index()].begin_again(flow));
    Ok(plan.flows)
}

fn clients_of(places: &[Place]) -> Vec<ClientId> {
    let mut clients: Vec<_> = places.iter().map(|place| place.0).collect();
    clients.sort_unstable();
    clients.dedup();
    clients
}

fn two<'a>(movers: &'a mut [&mut Mover], from: MoverId, to: MoverId) -> [&'a mut Mover; 2] {
    let (first, second) = (from.index().min(to.index()), from.index().max(to.index()));
    let (before, after) = movers.split_at_mut(second);
    match from < to {
        true => [&mut *before[first], &mut *after[0]],
        false => [&mut *after[0], &mut *before[first]],
    }
}

impl Mover {
    /// Carries out what it has been told, and tells its clients what there is to tell. Says whether it had been told anything.
    fn carry_out_all(&mut self) -> bool {
        self.now = self.clock.now();
        let told = self.take_commands();
        self.reap();
        self.publish();
        self.flush_events();
        told
    }

    fn plan(&mut self, places: &[Place]) -> Result<Plan, Held> {
        let mut plan = Plan { sockets: Vec::new(), flows: Vec::new(), leaving: Vec::new() };
        let goes = |client, channel| places.contains(&(client, channel));
        for id in clients_of(places) {
            let client = self.clients.get(id).filter(|client| client.is_mobile()).ok_or(Held::Bound)?;
            let all = client.channels().all(|channel| goes(id, channel));
            if all {
                plan.leaving.push(id);
            }
            for (slot, socket) in client.slots() {
                let is_closed = socket.generation == 0;
                let is_known = !is_closed || socket.sends.is_some();
                if is_known && (all || !is_closed && goes(id, socket.channel.into())) {
                    plan.sockets.push((id, slot));
                    plan.flows.extend(socket.outgoing.into_iter().chain(socket.sends));
                }
            }
            if plan.sockets.len() > SOCKETS_MAX {
                return Err(Held::TooMany);
            }
        }
        plan.flows.sort_unstable();
        plan.flows.dedup();
        let sockets: HashSet<_> = plan.sockets.iter().copied().collect();
        let is_of = |end: &Endpoint| sockets.contains(&(end.client, end.slot));
        // The number of a flow that a socket had once may be another's by now.
        plan.flows.retain(|&flow| {
            let place = self.flows.place(flow);
            !matches!(place, flows::Place::Free) && !place.has_senders(|end| !is_of(end))
        });
        let is_gone = |end: &Endpoint| end.client == ClientId::NOBODY;
        if !plan
            .flows
            .iter()
            .all(|&flow| self.flows.place(flow).has_senders(|end| is_of(end) || is_gone(end)))
        {
            return Err(Held::Bound);
        }
        for _ in 0..REAPS_MAX {
            if plan.flows.iter().all(|&flow| self.flows.used(flow).is_none_or(|flow| flow.is_quiet())) {
                self.publish();
                self.flush_events();
                // A flow that has ended meanwhile stays what it is: nothing.
                plan.flows.retain(|&flow| !matches!(self.flows.place(flow), flows::Place::Free));
                return Ok(plan);
            }
            if !self.reap() {
                std::thread::yield_now();
            }
        }
        Err(Held::UnderWay)
    }

    /// Knows a client of another mover's from now on.
    fn know(&mut self, old: &Self, id: ClientId) {
        let Some(client) = old.clients.get(id).filter(|_| self.clients.get(id).is_none()) else { return };
        let payer = self.scheduler.enter(old.scheduler.payer(client.payer()));
        let client = client.copy(payer);
        client.set_near(self.node);
        self.clients.add(id, client);
    }

    fn receive_flow(&mut self, old: &mut Self, id: FlowId) {
        if let Some(flow) = old.flows.used(id) {
            flow.touched = false;
            if flow.has_ring() || flow.is_ring_asked() {
                let (former, source) = (flow.ring_payer(), flow.source().client);
                let payer = self.clients.payer(source);
                flow.set_ring_payer(payer);
                old.division.give(&mut old.scheduler, former);
                self.division.take(&mut self.scheduler, payer);
            }
        }
        old.outbox.drop_touched(id);
        old.scheduler.drop_flow(id);
        old.throttle.forget(id);
        self.mirrors.receive(&mut old.mirrors, id);
        *self.flows.place(id) = std::mem::take(old.flows.place(id));
    }

    fn receive_socket(&mut self, old: &mut Self, (client, slot): (ClientId, Slot), own: MoverId) -> Socket {
        let socket = old.clients.socket_mut(client, slot).map(std::mem::take).unwrap_or_default();
        // What is known of a closed socket is older than one that has its slot now.
        if let Some(place) = self.clients.socket_mut(client, slot).filter(|place| place.generation == 0) {
            *place = socket;
        }
        for flow in socket.outgoing.into_iter().chain(socket.sends) {
            self.place_end(flow, (client, slot), own);
        }
        socket
    }

    /// An end of a flow is the mover's from now on. Says whether it is one.
    fn place_end(&mut self, flow: FlowId, (client, slot): (ClientId, Slot), mover: MoverId) -> bool {
        let mut is_end = false;
        self.flows.place(flow).each_end(|end| {
            if (end.client, end.slot) == (client, slot) {
                (end.mover, is_end) = (mover, true);
            }
        });
        is_end
    }

    /// A flow that brings this socket bytes is the mover's from now on.
    fn set_incoming(&mut self, (client, slot): (ClientId, Slot), flow: FlowId, mover: MoverId) {
        let Some(socket) = self.clients.socket_mut(client, slot) else { return };
        if let Some(known) = socket.incoming.as_mut().filter(|(_, known)| *known == flow) {
            known.0 = mover;
        }
    }

    fn receive_channel(&mut self, old: &mut Self, place: Place) {
        let (client, index) = place;
        old.scheduler.drop_channel(old.clients.payer(client), place);
        old.outbox.drop_overflowing(place);
        let Some(mut channel) = old.clients.get_mut(client).and_then(|client| client.take_channel(index))
        else {
            return;
        };
        old.doorbells.remove(channel.doorbell());
        self.doorbells.number_beyond(&old.doorbells);
        if let Err(error) = self.doorbells.add(client, index, channel.doorbell()) {
            tracing::error!(%client, index, %error, "cannot watch a doorbell");
        }
        channel.leave();
        if channel.is_overflowing() {
            self.outbox.add_overflowing(place);
        }
        if let Some(state) = self.clients.get_mut(client) {
            state.add_channel(index, channel);
        }
        self.activate(client, index);
    }

    /// Forgets a client of which nothing is left here.
    fn dismiss(&mut self, client: ClientId) {
        if let Some(client) = self.clients.take(client) {
            self.scheduler.let_go(Client::payer(&client));
        }
    }

    /// A flow goes on here.
    fn begin_again(&mut self, id: FlowId) {
        let Some(flow) = self.flows.used(id) else { return };
        flow.schedule = Default::default();
        counting::open_clients(&self.metrics, self.outbox.own(), [flow.source(), flow.destination()]);
        if flow.has_remainder() {
            self.drains.add(id);
        }
        self.ticks.want();
        self.resume(id);
    }
}
