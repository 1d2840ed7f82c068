//! Balance of movers: the choice of those that have threads, and of the work that goes from one to another.
//!
//! The conductor looks at the load of movers at intervals. All movers stand still while the costs of channels are collected. A stop comes
//! only when one has no time left, and at a rate that no client chooses. [`plan`] chooses the work that moves, and
//! [`crate::mover::transfer`] moves it.
//!
//! A channel moves as a whole, unless its client is *bound*. Then the client's family moves as a whole, with all channels. Connections of
//! twins pass between the processes of a family, and files are opened and read by a mover. A client whose threads hand sockets to each
//! other across movers is gathered at one mover, and stays there for a while.
mod plan;

use super::client::Client;
use super::families::Family;
use super::Conductor;
use crate::calls::simulated;
use crate::ids::{ClientId, FlowId, MoverId};
use crate::messages::Payer;
use crate::metrics::Metrics;
use crate::mover::load::{Load, WHOLE_WEIGHT};
use crate::mover::transfer::{transfer, Held, Transfer};
use crate::mover::Mover;
use plan::{Lags, Unit, View, SATURATED, SPARE};
use std::collections::BTreeMap;
use std::time::Duration;

/// Interval between looks at the load of movers.
const LOOK: Duration = Duration::from_millis(100);
/// Looks in a row that find a mover without time left, before movers are balanced.
const LOOKS_BUSY: u32 = 2;
/// Looks in a row that find one mover more than needed, before one is parked.
const LOOKS_IDLE: u32 = 50;
/// Highest mean load of the others then.
const BUSY_WITHOUT: f64 = 0.5;
/// Shortest interval between stops of movers for balance.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest interval between stops. The interval doubles as long as nothing moves.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// Age at which costs of channels are too old.
const COSTS_OLD: Duration = Duration::from_secs(5);
/// Most steps of a plan at a time.
const STEPS_MAX: usize = 4;
/// Time for which a client that was gathered at one mover stays there.
const TOGETHER: Duration = Duration::from_secs(10);
/// Idle part of the time between two looks from which on a processor can have a mover.
const CORE_IDLE: f64 = 0.8;

/// See the module.
#[derive(Default)]
pub struct Balance {
    next_look: Duration,
    looked_at: Duration,
    /// Idle time of each mover by then.
    idle: Vec<Duration>,
    looks_busy: u32,
    looks_idle: u32,
    next_round: Duration,
    pause: Duration,
    /// Time at which the costs of channels were last taken.
    costs_at: Option<Duration>,
    lags: Lags<Payer>,
    random: u64,
    /// Idle time of all processors at the last look that found a mover without time left.
    processors: Option<(Duration, Duration)>,
}

/// Channels that move as a whole.
struct Group {
    places: Vec<(ClientId, usize)>,
    family: Family,
    from: MoverId,
    is_movable: bool,
}

impl Conductor {
    /// Balances movers, if it is time. Returns whether anything was done.
    pub fn balance(&mut self) -> bool {
        if self.movers.len() == 1 {
            return false;
        }
        let now = self.movers.own().now();
        if now < self.balance.next_look {
            return false;
        }
        if let Some(pause) = self.settings.movers_shuffled {
            self.balance.next_look = now + pause;
            self.shuffle(now);
            return true;
        }
        self.balance.next_look = now + LOOK;
        let busy = self.look_at_movers(now);
        let working: Vec<f64> = self.movers.working().map(|id| busy[id.index()]).collect();
        let is_full = working.iter().any(|&busy| busy >= SATURATED);
        let balance = &mut self.balance;
        let one_fewer = working.len().saturating_sub(1) as f64;
        let is_ample = !is_full && working.iter().sum::<f64>() <= BUSY_WITHOUT * one_fewer;
        balance.looks_busy = if is_full { balance.looks_busy + 1 } else { 0 };
        balance.looks_idle = if is_ample && one_fewer > 0.0 { balance.looks_idle + 1 } else { 0 };
        self.set_gauges();
        if self.balance.looks_busy >= LOOKS_BUSY {
            let is_core_idle = self.settings.movers_auto && is_core_idle(&mut self.balance.processors, now);
            if now >= self.balance.next_round {
                return self.even_out(now, &busy, is_core_idle);
            }
        } else if self.settings.movers_auto && self.balance.looks_idle >= LOOKS_IDLE {
            self.balance.looks_idle = 0;
            return self.park_one(&busy);
        }
        false
    }

    /// Returns the load of each mover since the last look, from 0 to 1.
    fn look_at_movers(&mut self, now: Duration) -> Vec<f64> {
        let idle: Vec<_> = self.movers.ids().map(|id| self.movers.idle_time(id)).collect();
        let since = now.saturating_sub(std::mem::replace(&mut self.balance.looked_at, now)).as_secs_f64();
        let before = std::mem::replace(&mut self.balance.idle, idle);
        let ids = self.movers.ids();
        let of = ids.map(|id| {
            let before = before.get(id.index()).copied().unwrap_or_default();
            let idle = self.balance.idle[id.index()].saturating_sub(before).as_secs_f64();
            // A mover that sleeps has not counted that time yet.
            let is_idle = !self.movers.works(id) || self.movers.is_asleep(id);
            if is_idle || since <= 0.0 {
                0.0
            } else {
                (1.0 - idle / since).clamp(0.0, 1.0)
            }
        });
        of.collect()
    }

    /// Stops the movers, and moves work so that they are evened out.
    fn even_out(&mut self, now: Duration, busy: &[f64], is_core_idle: bool) -> bool {
        // A mover without a thread is as good as one with time left.
        let spare = self.movers.working().any(|id| busy[id.index()] < SPARE);
        let fresh = self.movers.ids().find(|&id| !self.movers.works(id)).filter(|_| is_core_idle && !spare);
        let groups = self.groups(now);
        let ids: Vec<MoverId> = self.movers.working().chain(fresh).collect();
        if ids.len() < 2 {
            return false;
        }
        let is_recent = self.balance.costs_at.is_some_and(|at| now.saturating_sub(at) <= COSTS_OLD);
        self.balance.costs_at = Some(now);
        let Self { movers, balance, .. } = self;
        let busy: Vec<f64> = ids.iter().map(|id| busy[id.index()]).collect();
        let went = movers.with_all(|all| {
            let mut loads = Vec::new();
            ids.iter().for_each(|id| all[id.index()].take_loads(&mut loads));
            if !is_recent {
                return None;
            }
            Some(decide(all, balance, &groups, &loads, &ids, busy))
        });
        let Some(went) = went.flatten() else { return true };
        if let Some(fresh) = fresh.filter(|fresh| went.iter().any(|went| went.to == *fresh)) {
            if let Err(error) = self.movers.start(fresh) {
                // No thread serves the mover: its channels go back.
                tracing::warn!(%error, "cannot start a thread for a mover");
                let back: Vec<_> =
                    went.iter().filter(|went| went.to == fresh).map(|went| (went.group, went.from)).collect();
                self.note_all(&groups, &went);
                for (group, from) in back {
                    let _ = self.carry(&groups[group].places, fresh, from, groups[group].family);
                }
                return true;
            }
        }
        self.balance.pause = match went.is_empty() {
            true => (self.balance.pause * 2).clamp(PAUSE, PAUSE_MAX),
            false => PAUSE,
        };
        self.balance.next_round = now + self.balance.pause;
        self.note_all(&groups, &went);
        true
    }

    /// Ends the thread of the least busy mover, whose clients go to another.
    fn park_one(&mut self, busy: &[f64]) -> bool {
        let by_busy = |a: &MoverId, b: &MoverId| busy[a.index()].total_cmp(&busy[b.index()]);
        let Some(from) = self.movers.working().filter(|id| id.index() > 0).min_by(by_busy) else {
            return false;
        };
        let Some(to) = self.movers.working().filter(|id| *id != from).min_by(by_busy) else { return false };
        let now = self.movers.own().now();
        for group in self.groups(now).into_iter().filter(|group| group.from == from) {
            if !group.is_movable || self.carry(&group.places, from, to, group.family).is_err() {
                return true;
            }
        }
        // No new client comes there meanwhile: only the conductor places clients. Clients that are leaving have to have left.
        if !self.clients.iter().any(|(_, client)| client.movers().contains(&from))
            && !self.connections.iter().any(|(_, connection)| connection.movers.contains(&from))
        {
            self.movers.park(from);
            let names: Vec<_> = self.clients.iter().map(|(_, client)| client.payer()).collect();
            self.movers.with_all(|all| {
                // A payer that one mover serves has all of its weight there.
                for mover in all {
                    names.iter().for_each(|name| mover.set_part(*name, WHOLE_WEIGHT));
                }
            });
        }
        true
    }

    /// Returns the time at which [`Self::balance`] is due although there is nothing to do.
    pub(super) fn shuffle_by(&self) -> Option<Duration> {
        self.settings.movers_shuffled.filter(|_| self.movers.len() > 1).map(|_| self.balance.next_look)
    }

    /// Moves any group to any mover, and starts and parks movers.
    fn shuffle(&mut self, now: Duration) {
        let mut next = |below: usize| {
            let random = &mut self.balance.random;
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*random >> 33) as usize % below.max(1)
        };
        let (to, which, parks) = (MoverId::at(next(self.movers.len())), next(1 << 16), next(8) == 0);
        if self.settings.movers_auto && parks {
            self.park_one(&vec![0.0; self.movers.len()]);
        }
        if !self.movers.works(to) && self.movers.start(to).is_err() {
            return;
        }
        let groups: Vec<_> = self.groups(now).into_iter().filter(|group| group.is_movable).collect();
        let Some(group) = groups.get(which % groups.len().max(1)).filter(|group| group.from != to) else {
            return;
        };
        let _ = self.carry(&group.places, group.from, to, group.family);
    }

    /// Returns all channels, in groups that move as a whole.
    fn groups(&self, now: Duration) -> Vec<Group> {
        let mut families: BTreeMap<Family, Vec<(ClientId, &Client)>> = BTreeMap::new();
        for (id, client) in self.clients.iter() {
            families.entry(client.family).or_default().push((id, client));
        }
        let mut groups = Vec::new();
        for (family, members) in families {
            let is_movable = members.iter().all(|(_, client)| {
                client.is_attached()
                    && client.channels > 0
                    && !client.passes_files
                    && !self.has_parked(client)
            });
            if let [(id, client)] = members[..] {
                if !client.is_bound && now >= client.bound_until {
                    let channels = client.channels_with_movers();
                    groups.extend(channels.map(|(channel, from)| Group {
                        places: vec![(id, channel)],
                        family,
                        from,
                        is_movable,
                    }));
                    continue;
                }
            }
            let mut places: BTreeMap<MoverId, Vec<_>> = BTreeMap::new();
            for (id, client) in members {
                for (channel, mover) in client.channels_with_movers() {
                    places.entry(mover).or_default().push((id, channel));
                }
            }
            // A family that is spread, and will be bound to its mover, makes a group at each mover: only the channels there go together.
            groups.extend(places.into_iter().map(|(from, places)| Group {
                places,
                family,
                from,
                is_movable,
            }));
        }
        groups
    }

    /// Tells whether a side of the client's tenant is parked. A client of the tenant may take that side, at its mover.
    fn has_parked(&self, client: &Client) -> bool {
        self.twins.parked().any(|(index, side)| {
            self.connection(index).is_some_and(|connection| connection.tenants[side] == client.tenant)
        })
    }

    /// Moves channels, all of which are at `from`, at once.
    fn carry(
        &mut self,
        places: &[(ClientId, usize)],
        from: MoverId,
        to: MoverId,
        family: Family,
    ) -> Result<(), Held> {
        let of = Transfer { from, to, places };
        let went = self.movers.with_all(|all| transfer(all, of)).unwrap_or(Err(Held::UnderWay));
        match went {
            Ok(flows) => {
                self.note(places, to, family, &flows);
                Ok(())
            }
            Err(held) => {
                Metrics::add(&self.metrics.moves_put_off, 1);
                Err(held)
            }
        }
    }

    fn note_all(&mut self, groups: &[Group], went: &[Went]) {
        for &Went { group, to, ref flows, .. } in went {
            self.note(&groups[group].places, to, groups[group].family, flows);
        }
    }

    /// Notes that channels have gone to `to`, with these flows.
    fn note(&mut self, places: &[(ClientId, usize)], to: MoverId, family: Family, flows: &[FlowId]) {
        Metrics::add(&self.metrics.channels_moved, places.len() as u64);
        let mut clients: Vec<_> = places.iter().map(|place| place.0).collect();
        clients.dedup();
        for id in clients {
            let channels: Vec<_> = places.iter().filter(|place| place.0 == id).map(|place| place.1).collect();
            let Some(client) = self.clients.get_mut(id) else { continue };
            client.set_mover_of(&channels, to);
            let home = client.mover;
            let sides: Vec<_> = client.connected_on(&channels).collect();
            self.families.set_mover(family, home);
            // A flow that has ended does not go: its number is used where the socket is served.
            for (connection, side) in sides {
                if let Some(connection) = self.connections.get_mut_unmarked(connection) {
                    connection.movers[side] = to;
                }
            }
        }
        for flow in flows {
            if let Some(connection) = self.connections.get_mut_unmarked(flow.connection()) {
                connection.movers[flow.side()] = to;
            }
        }
    }

    /// Gathers all channels of a client at its family's mover. Returns whether they are there.
    pub(super) fn gather(&mut self, id: ClientId) -> bool {
        let Some(client) = self.client(id) else { return false };
        let (family, to) = (client.family, self.families.mover(client.family));
        if !client.is_spread() && client.mover == to {
            return true;
        }
        for from in client.movers().into_iter().filter(|from| *from != to) {
            let Some(client) = self.client(id) else { return false };
            let there = client.channels_with_movers().filter(|(_, mover)| *mover == from);
            let places: Vec<_> = there.map(|(channel, _)| (id, channel)).collect();
            if self.carry(&places, from, to, family).is_err() {
                return false;
            }
        }
        let until = self.clock.now() + TOGETHER;
        if let Some(client) = self.clients.get_mut(id) {
            client.bound_until = until;
        }
        true
    }

    /// Gathers a client for good: it is bound from now on. See the module.
    pub(super) fn keep_together(&mut self, id: ClientId) -> bool {
        let is_together = self.gather(id);
        if let Some(client) = self.client_mut(id).filter(|_| is_together) {
            client.is_bound = true;
        }
        is_together
    }
}

/// A group that has moved.
struct Went {
    group: usize,
    from: MoverId,
    to: MoverId,
    flows: Vec<FlowId>,
}

/// Moves groups so that movers are evened out, and divides the weights of payers among the movers that serve them.
fn decide(
    all: &mut [&mut Mover],
    balance: &mut Balance,
    groups: &[Group],
    loads: &[Load],
    ids: &[MoverId],
    busy: Vec<f64>,
) -> Vec<Went> {
    let of_place: BTreeMap<_, _> = loads.iter().map(|load| (load.place, load)).collect();
    let (mut payers, mut names) = (Vec::new(), Vec::new());
    let (mut units, mut of_units) = (Vec::new(), Vec::new());
    for (at, group) in groups.iter().enumerate() {
        let Some(mover) = ids.iter().position(|id| *id == group.from) else { continue };
        let loads: Vec<_> = group.places.iter().filter_map(|place| of_place.get(place)).collect();
        let Some(first) = loads.first() else { continue };
        let payer = names.iter().position(|name| *name == first.payer).unwrap_or_else(|| {
            names.push(first.payer);
            payers.push(plan::Payer { weight: first.weight as f64, lag: 0.0 });
            names.len() - 1
        });
        let cost = loads.iter().map(|load| load.cost as f64).sum();
        if cost > 0.0 {
            units.push(Unit { mover, payer, cost, is_movable: group.is_movable });
            of_units.push(at);
        }
    }
    let mut view = View { busy, payers, units };
    balance.lags.update(&names, &mut view);
    let (mut went, mut steps) = (Vec::<Went>::new(), 0);
    while steps < STEPS_MAX {
        let before = view.clone();
        let Some(step) = view.step() else { break };
        steps += 1;
        for (unit, to) in step {
            let (from, to) = (ids[before.units[unit].mover], ids[to]);
            let group = of_units[unit];
            match transfer(all, Transfer { from, to, places: &groups[group].places }) {
                Ok(flows) => went.push(Went { group, from, to, flows }),
                Err(_) => {
                    // The group stays where it is, and the others are looked at without it.
                    view.units[unit] = Unit { is_movable: false, ..before.units[unit] };
                    view.busy.clone_from(&before.busy);
                }
            }
        }
    }
    for (payer, parts) in view.parts().into_iter().enumerate() {
        for (mover, part) in ids.iter().zip(parts) {
            let part = (part * f64::from(WHOLE_WEIGHT)).round() as u32;
            // A payer without a part there may come, and is whole then.
            all[mover.index()].set_part(names[payer], if part == 0 { WHOLE_WEIGHT } else { part });
        }
    }
    went
}

/// Tells whether processors were idle since the last call, if that was a moment ago.
fn is_core_idle(known: &mut Option<(Duration, Duration)>, now: Duration) -> bool {
    let Some(idle) = idle_time() else { return false };
    let Some((at, before)) = known.replace((now, idle)) else { return false };
    let since = now.saturating_sub(at);
    (LOOK / 2..LOOK * 5).contains(&since)
        && idle.saturating_sub(before).as_secs_f64() >= CORE_IDLE * since.as_secs_f64()
}

/// Returns the time for which the processors of this machine, all together, had nothing to do.
fn idle_time() -> Option<Duration> {
    if let Some(simulated) = simulated::idle_time() {
        return Some(simulated);
    }
    let text = pd_shm::procfs::read("stat").ok()?;
    // "cpu user nice system idle ...", in hundredths of a second.
    let ticks: u64 = text.lines().next()?.split_ascii_whitespace().nth(4)?.parse().ok()?;
    Some(Duration::from_millis(ticks * 10))
}
