//! Transfers: channels go from one mover to another, with the sockets whose home they are and the flows that start there.
//!
//! Nothing is in motion meanwhile. The caller holds all movers ([`crate::conductor::Movers`]), and no command is on its way from one to
//! another ([`settle`]). A transfer is thus a change of tables. A transfer has no steps between which a party could die, and nothing to
//! take back. Everything is checked before anything is changed.
//!
//! A flow goes together with all sockets of which it carries sends, now or later. A flow with a copy under way does not go: its engine is
//! waited for a while. Clients that pass files do not go, since their openers and readers answer a mover.
use super::clients::{Client, Socket};
use super::scheduler::Place;
use super::{counting, flows, Mover};
use crate::ids::{ClientId, FlowId, MoverId, Slot};
use crate::messages::Endpoint;
use std::collections::HashSet;

/// Most sockets of one transfer: movers stand still for about as many microseconds.
pub const SOCKETS_MAX: usize = 4096;
/// Times that completions are looked for before a transfer is given up.
const REAPS_MAX: usize = 10_000;

/// Channels that go from one mover to another.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Mover that gives the channels.
    pub from: MoverId,
    /// Mover that takes them.
    pub to: MoverId,
    /// Channels that go, all of which are the previous's.
    pub places: &'a [Place],
}

/// Reason why nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The engine has not ended its copies.
    UnderWay,
    /// A client does not go, or shares a flow with one that does not.
    Bound,
    /// More than [`SOCKETS_MAX`] sockets.
    TooMany,
}

/// Sockets, flows and clients of a transfer.
struct Plan {
    sockets: Vec<(ClientId, Slot)>,
    flows: Vec<FlowId>,
    /// Clients of which nothing is left behind.
    leaving: Vec<ClientId>,
}

/// Has all movers carry out their commands, until there are no more. Returns whether there were any.
pub fn settle(movers: &mut [&mut Mover]) -> bool {
    let mut worked = false;
    loop {
        let told = movers.iter_mut().fold(false, |any, mover| mover.apply_all() | any);
        worked |= told;
        // A mover that was told nothing has news all the same, and may have told one before it.
        if !told && !movers.iter().any(|mover| mover.inbox.is_filled()) {
            return worked;
        }
    }
}

/// Transfers channels. Returns the flows that went.
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
        // The flow that brings this socket bytes, at any mover, learns of the socket's new mover.
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
    // Everything lies where it belongs only now.
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
    /// Carries out its commands, and tells its clients all news. Returns whether there were any commands.
    fn apply_all(&mut self) -> bool {
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
            self.flows.known(flow).is_some_and(|place| !place.has_senders(|end| !is_of(end)))
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
                // A flow that has ended meanwhile does not go.
                plan.flows.retain(|&flow| !matches!(self.flows.place(flow), flows::Place::Free));
                return Ok(plan);
            }
            if !self.reap() {
                std::thread::yield_now();
            }
        }
        Err(Held::UnderWay)
    }

    /// Adds a client that another mover knows.
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
                let (previous, source) = (flow.ring_payer(), flow.source().client);
                let payer = self.clients.payer(source);
                flow.set_ring_payer(payer);
                old.division.give(&mut old.scheduler, previous);
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
        // The state of a closed socket is older than a socket that has its slot now.
        if let Some(place) = self.clients.socket_mut(client, slot).filter(|place| place.generation == 0) {
            *place = socket;
        }
        for flow in socket.outgoing.into_iter().chain(socket.sends) {
            self.place_end(flow, (client, slot), own);
        }
        socket
    }

    /// Sets the mover of an end of a flow. Returns whether the socket is an end.
    fn place_end(&mut self, flow: FlowId, (client, slot): (ClientId, Slot), mover: MoverId) -> bool {
        let mut is_end = false;
        if let Some(place) = self.flows.known(flow) {
            place.each_end(|end| {
                if (end.client, end.slot) == (client, slot) {
                    (end.mover, is_end) = (mover, true);
                }
            });
        }
        is_end
    }

    /// Sets the mover of a flow that brings this socket bytes.
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
        let watched = self.doorbells.add(client, index, channel.doorbell());
        if let Err(error) = watched {
            tracing::error!(%client, index, %error, "cannot watch a doorbell: its channel is looked at");
        }
        channel.set_watched(watched.is_ok());
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

    /// Goes on with a flow here.
    fn begin_again(&mut self, id: FlowId) {
        let Some(flow) = self.flows.used(id) else { return };
        flow.schedule = Default::default();
        counting::open_clients(&self.metrics, self.outbox.own(), [flow.source(), flow.destination()]);
        if flow.is_draining() {
            self.drains.add(id);
        }
        self.ticks.want();
        self.resume(id);
    }
}
