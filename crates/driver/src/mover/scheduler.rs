//! Scheduler of a mover: payers take turns, and in a turn the channels and flows of one payer do (deficit round robin on two levels).
//!
//! A payer ([`Payer`]) is the account of clients. Each turn gives it credit of [`TURN_BYTES`] times its weight. The payer is charged for
//! requests taken, looks at channels, flows served and bytes copied. A payer in debt after its turn begins the next one with less. Only a
//! payer that was interrupted keeps credit that is left. A payer without others has the step to itself and keeps no debt.
//!
//! Bytes stand for time. A turn that was measured is charged by its time ([`Price`]). The difference to its bytes is charged on top, or
//! added to the credit of the next turn. Requests that a conductor carries out in the mover's thread are measured likewise.
//!
//! Every operation takes the same time however many payers, channels and flows there are, except [`Scheduler::set_weight`] and
//! [`Scheduler::drop_channels`]. Nothing is allocated once the queues have grown. The scheduler never touches a flow or a ring.
use super::price::Price;
use crate::ids::{ClientId, FlowId, TenantId};
use crate::messages::{Payer, DRIVER};
use crate::policy::WEIGHT_DEFAULT;
use foldhash::{HashMap, HashMapExt};
use std::collections::VecDeque;
use std::time::Duration;

/// Credit of a payer of weight 1 for a turn: the bytes that one flow moves in its turn.
pub const TURN_BYTES: u64 = 256 << 10;
/// Bytes of all payers before a mover looks at its mailbox, full rings and completions again.
pub const STEP_BYTES: u64 = 4 << 20;
/// Charge for a request taken, a send put under way, a flow's turn, and a look at a channel without requests. Each takes a
/// mover about 100 ns, in which a core copies about as much from another's cache (5 GB/s).
pub const REQUEST_BYTES: u64 = 512;
/// Charge beside that for a request that a conductor carries out in the mover's thread: to bind, to connect. The shortest, a
/// bind that is refused, takes 700 ns, in which a core copies about as much from its own cache.
pub const CONTROL_BYTES: u64 = 8 << 10;
/// Charge of a turn from which on a payer without ready flows is measured in the next. Two looks at the clock would be a good part of a
/// shorter turn.
const TIMED_BYTES: u64 = 4 << 10;
/// Least number of requests for the conductor that are measured together.
const TIMED_CONTROLS: u64 = 8;
/// Most that one measurement adds to a charge. The machine may have stood still meanwhile.
const TIME_BYTES_MAX: u64 = 4 * STEP_BYTES;
/// Most credit that a payer has on top because its bytes take little time, in turns.
const REFUND_TURNS_MAX: i64 = 8;

/// All of a payer's weight; a power of two.
pub const WHOLE: u32 = 256;
/// Least part of its weight that a payer has with a mover.
const PART_MIN: u32 = WHOLE / 32;
/// Flows with a full receive ring that are looked at before each sleep; more than these ask their
/// receivers for a request at once.
const BLOCKED_POLLED_MAX: usize = 32;

/// Index of a payer, valid as long as the payer is held.
pub type PayerId = u32;
/// A channel of a client.
pub type Place = (ClientId, usize);
/// The payer of flows whose source is forgotten.
pub const NOBODY: PayerId = 0;

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    entries: Vec<Entry>,
    free: Vec<PayerId>,
    known: HashMap<Payer, PayerId>,
    /// Payers with active channels or ready flows, except the one that has its turn.
    order: VecDeque<PayerId>,
    /// Weights of tenants that have another than the usual one.
    weights: HashMap<TenantId, u32>,
    /// Number of ready flows of all payers.
    ready: usize,
    /// Bytes charged since the step began.
    spent: u64,
    /// Cost of the requests that are being taken, beside the taking. Not charged yet.
    owed: u64,
    /// Number of requests for the conductor among those that are being taken. Not charged yet.
    owed_controls: u64,
    /// Requests for the conductor in this step, by payer. Charged, and to be measured.
    controls: Vec<(PayerId, u64)>,
    /// Bytes charged since the turn began, except for requests for the conductor.
    charged: u64,
    /// Time of a byte.
    price: Price,
    /// Flows with a full receive ring, which are looked at again and again.
    blocked: Vec<FlowId>,
}

#[derive(Debug)]
struct Entry {
    payer: Payer,
    weight: u32,
    /// Part of the weight that is for this mover, in [`WHOLE`].
    part: u32,
    /// Number of clients and receive rings that hold the payer.
    holders: usize,
    /// Bytes that it may still spend in this turn; negative: owes.
    credit: i64,
    /// Credit that the next turn has on top: the last ones took less time than their bytes stand for.
    refund: i64,
    /// Set if it goes on with the credit of the turn in which it was interrupted.
    resumes: bool,
    /// Set if its last turn was long enough to be measured.
    is_busy: bool,
    /// Set while it is in `order`, or has its turn.
    is_present: bool,
    /// Channels that are looked at in its turns.
    channels: VecDeque<Place>,
    /// Flows with something to copy.
    flows: VecDeque<FlowId>,
}

impl Default for Scheduler {
    fn default() -> Self {
        let mut this = Self {
            entries: Vec::new(),
            free: Vec::new(),
            known: HashMap::new(),
            order: VecDeque::new(),
            weights: HashMap::new(),
            ready: 0,
            spent: 0,
            owed: 0,
            owed_controls: 0,
            controls: Vec::new(),
            charged: 0,
            price: Price::default(),
            blocked: Vec::new(),
        };
        let nobody = this.enter(DRIVER);
        debug_assert_eq!(nobody, NOBODY);
        this
    }
}

impl Scheduler {
    /// Adds a client of this payer, which attaches. Balanced by [`Self::let_go`].
    pub fn enter(&mut self, payer: Payer) -> PayerId {
        if let Some(&id) = self.known.get(&payer) {
            self.hold(id);
            return id;
        }
        let weight = self.weights.get(&payer.0).copied().unwrap_or(WEIGHT_DEFAULT);
        let (channels, flows) = Default::default();
        let entry = Entry {
            payer,
            weight,
            part: WHOLE,
            holders: 1,
            credit: 0,
            refund: 0,
            resumes: false,
            is_busy: false,
            is_present: false,
            channels,
            flows,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as PayerId
            }
        };
        self.known.insert(payer, id);
        id
    }

    /// Holds a payer once more.
    pub fn hold(&mut self, id: PayerId) {
        self.entries[id as usize].holders += 1;
    }

    /// Ends one hold of a payer.
    pub fn let_go(&mut self, id: PayerId) {
        self.entries[id as usize].holders -= 1;
        self.reclaim(id);
    }

    fn reclaim(&mut self, id: PayerId) {
        let entry = &mut self.entries[id as usize];
        if entry.holders == 0 && entry.is_present && entry.flows.is_empty() && entry.channels.is_empty() {
            // A turn would find nothing, and a mover without a thread has none. A payer in its own turn is not among those that wait.
            if let Some(at) = self.order.iter().position(|waiting| *waiting == id) {
                self.order.remove(at);
                entry.is_present = false;
            }
        }
        if entry.holders == 0 && !entry.is_present {
            self.known.remove(&entry.payer);
            self.free.push(id);
        }
    }

    /// Returns the number of payers that are held, with that of no clients.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn payers(&self) -> usize {
        self.known.len()
    }

    /// Sets the weight of a tenant's payers.
    pub fn set_weight(&mut self, tenant: TenantId, weight: u32) {
        self.weights.insert(tenant, weight);
        self.weights.retain(|_, weight| *weight != WEIGHT_DEFAULT);
        let of_tenant = self.entries.iter_mut().filter(|entry| entry.payer.0 == tenant);
        of_tenant.for_each(|entry| entry.weight = weight);
    }

    /// Sets the part of a payer's weight that is for this mover, in [`WHOLE`]. Other movers serve the payer, too.
    pub fn set_part(&mut self, payer: Payer, part: u32) {
        if let Some(&id) = self.known.get(&payer) {
            self.entries[id as usize].part = part.clamp(PART_MIN, WHOLE);
        }
    }

    /// Returns the payer's weight.
    pub fn weight(&self, id: PayerId) -> u64 {
        self.entries[id as usize].weight.into()
    }

    /// Adds a channel to those that are looked at in the payer's turns.
    pub fn add_channel(&mut self, id: PayerId, place: Place) {
        self.entries[id as usize].channels.push_back(place);
        self.appear(id);
    }

    /// Adds a flow of the payer that has something to copy.
    #[inline]
    pub fn add_flow(&mut self, id: PayerId, flow: FlowId) {
        self.entries[id as usize].flows.push_back(flow);
        self.ready += 1;
        self.appear(id);
    }

    #[inline]
    fn appear(&mut self, id: PayerId) {
        let entry = &mut self.entries[id as usize];
        if !entry.is_present {
            entry.is_present = true;
            self.order.push_back(id);
        }
    }

    /// Drops all channels of a client.
    pub fn drop_channels(&mut self, id: PayerId, client: ClientId) {
        self.entries[id as usize].channels.retain(|place| place.0 != client);
    }

    /// Drops a channel.
    pub fn drop_channel(&mut self, id: PayerId, place: Place) {
        self.entries[id as usize].channels.retain(|known| *known != place);
    }

    /// Drops a flow that goes to another mover. Looks at all ready flows.
    pub fn drop_flow(&mut self, flow: FlowId) {
        for entry in &mut self.entries {
            let before = entry.flows.len();
            entry.flows.retain(|known| *known != flow);
            self.ready -= before - entry.flows.len();
        }
        self.blocked.retain(|known| *known != flow);
    }

    /// Returns the payer of an index.
    pub fn payer(&self, id: PayerId) -> Payer {
        self.entries[id as usize].payer
    }

    /// Moves a client's channels to another payer's turns.
    pub fn move_channels(&mut self, from: PayerId, to: PayerId, client: ClientId) {
        let channels = &mut self.entries[from as usize].channels;
        let moved: Vec<Place> = channels.iter().copied().filter(|place| place.0 == client).collect();
        self.drop_channels(from, client);
        moved.into_iter().for_each(|place| self.add_channel(to, place));
    }

    /// Iterates over the channels that are looked at.
    pub fn channels(&self) -> impl Iterator<Item = Place> + '_ {
        self.order.iter().flat_map(|&id| self.entries[id as usize].channels.iter().copied())
    }

    /// Tells whether any flow has something to copy.
    pub fn has_flows(&self) -> bool {
        self.ready > 0
    }

    /// Begins a step. Returns the number of payers that may have a turn in it.
    pub fn begin_step(&mut self) -> usize {
        self.spent = 0;
        self.controls.clear();
        self.order.len()
    }

    /// Tells whether this step has done enough.
    pub fn is_step_over(&self) -> bool {
        self.spent >= STEP_BYTES
    }

    /// Begins the turn of the next payer.
    pub fn begin(&mut self) -> Option<Turn> {
        let payer = self.order.pop_front()?;
        let alone = self.order.is_empty();
        self.charged = 0;
        let entry = &mut self.entries[payer as usize];
        let resumes = std::mem::take(&mut entry.resumes);
        if alone {
            (entry.credit, entry.refund) = (STEP_BYTES as i64, 0);
        } else if !resumes {
            entry.credit += entry.turn_bytes() + std::mem::take(&mut entry.refund);
        }
        // Channels and flows do not hold each other up.
        let channels_to = if entry.flows.is_empty() { 0 } else { entry.credit / 2 };
        let is_timed = !alone && (entry.is_busy || !entry.flows.is_empty());
        Some(Turn { payer, alone, is_timed, channels_to })
    }

    /// Corrects the charge of a turn by its time. Called before the turn's end.
    pub fn settle(&mut self, turn: &Turn, took: Duration) {
        let charged = self.charged;
        if took.is_zero() {
            return;
        }
        let due = self.price.bytes_of(took);
        self.price.add(took, charged);
        self.correct(turn.payer, charged, due);
    }

    /// Tells whether this step has enough requests for the conductor to measure their time.
    pub fn has_controls(&self) -> bool {
        self.controls.iter().map(|(_, count)| count).sum::<u64>() >= TIMED_CONTROLS
    }

    /// Corrects the charge of these requests by the time in which the conductor has carried them out.
    pub fn settle_controls(&mut self, took: Duration) {
        let controls = std::mem::take(&mut self.controls);
        let all = controls.iter().map(|(_, count)| count).sum::<u64>();
        if !took.is_zero() && all > 0 {
            let each = self.price.bytes_of(took) / all;
            for &(payer, count) in &controls {
                self.correct(payer, count * CONTROL_BYTES, count.saturating_mul(each));
            }
        }
        self.controls = controls;
        self.controls.clear();
    }

    /// Replaces a charge by another.
    fn correct(&mut self, id: PayerId, charged: u64, due: u64) {
        if due > charged {
            self.charge(id, (due - charged).min(TIME_BYTES_MAX));
        } else {
            let entry = &mut self.entries[id as usize];
            entry.refund = (entry.refund + (charged - due) as i64).min(REFUND_TURNS_MAX * entry.turn_bytes());
        }
    }

    /// Returns a turn of a payer, to read its channels while no flow can be served. Payers in debt by a whole turn wait.
    pub fn waiting(&self, at: usize) -> Option<Turn> {
        let &payer = self.order.get(at)?;
        let channels_to = -self.entries[payer as usize].turn_bytes();
        Some(Turn { payer, alone: false, is_timed: false, channels_to })
    }

    /// Takes the next of the payer's channels. The caller adds it again if it is to be looked at in the next turn, too.
    pub fn next_channel(&mut self, turn: &Turn) -> Option<Place> {
        let over = self.is_step_over();
        let entry = &mut self.entries[turn.payer as usize];
        if over || entry.credit <= turn.channels_to {
            return None;
        }
        entry.channels.pop_front()
    }

    /// Returns the number of channels of the payer.
    pub fn channel_count(&self, id: PayerId) -> usize {
        self.entries[id as usize].channels.len()
    }

    /// Tells whether a channel that was taken out in this turn is the only thing there is to look at.
    pub fn is_lone_channel(&self, id: PayerId) -> bool {
        self.entries[id as usize].channels.is_empty() && !self.order.iter().any(|&other| other != id)
    }

    /// Returns the number of ready flows of the payer.
    pub fn flow_count(&self, id: PayerId) -> usize {
        self.entries[id as usize].flows.len()
    }

    /// Takes the next of the payer's flows, with the bytes that it may move. `None` without credit.
    #[inline]
    pub fn next_flow(&mut self, turn: &Turn) -> Option<(FlowId, u64)> {
        let over = self.is_step_over();
        let entry = &mut self.entries[turn.payer as usize];
        if over || entry.credit <= 0 {
            return None;
        }
        let flow = entry.flows.pop_front()?;
        self.ready -= 1;
        Some((flow, (entry.credit as u64).min(TURN_BYTES)))
    }

    /// Charges a payer for `bytes`.
    #[inline]
    pub fn charge(&mut self, id: PayerId, bytes: u64) {
        self.spent += bytes;
        self.charged += bytes;
        self.entries[id as usize].credit -= bytes as i64;
    }

    /// Charges a payer for work in another's turn, up to a debt of [`STEP_BYTES`]. A payer that is not served here owes no more.
    pub fn charge_beside(&mut self, payer: Payer, bytes: u64) {
        self.spent += bytes;
        // The payer that has its turn is not charged for this time.
        self.charged += bytes;
        if let Some(&id) = self.known.get(&payer) {
            let credit = &mut self.entries[id as usize].credit;
            *credit = (*credit - bytes as i64).max((*credit).min(-(STEP_BYTES as i64)));
        }
    }

    /// Adds to the cost of a request that is being taken.
    #[inline]
    pub fn owe(&mut self, bytes: u64) {
        self.owed += bytes;
    }

    /// Notes that a request that is being taken is for a conductor in the mover's thread.
    pub fn owe_control(&mut self) {
        self.owed_controls += 1;
    }

    /// Charges a payer for `taken` requests.
    #[inline]
    pub fn charge_requests(&mut self, id: PayerId, taken: u64) {
        let owed = std::mem::take(&mut self.owed);
        self.charge(id, taken * REQUEST_BYTES + owed);
        let controls = std::mem::take(&mut self.owed_controls);
        if controls > 0 {
            self.charge(id, controls * CONTROL_BYTES);
            self.charged -= controls * CONTROL_BYTES;
            match self.controls.last_mut() {
                Some((last, count)) if *last == id => *count += controls,
                _ => self.controls.push((id, controls)),
            }
        }
    }

    /// Adds a flow with a full receive ring to those that are looked at again and again. Returns false if there are too many.
    pub fn watch_blocked(&mut self, flow: FlowId) -> bool {
        let fits = self.blocked.len() < BLOCKED_POLLED_MAX;
        if fits {
            self.blocked.push(flow);
        }
        fits
    }

    /// Iterates over these flows.
    pub fn blocked(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.blocked.iter().copied()
    }

    /// Returns one of these flows.
    #[inline]
    pub fn blocked_at(&self, at: usize) -> Option<FlowId> {
        self.blocked.get(at).copied()
    }

    /// Drops one of these flows; another takes its place.
    pub fn drop_blocked(&mut self, at: usize) {
        self.blocked.swap_remove(at);
    }

    /// Ends a payer's turn. `interrupted`: the payer goes on before any other.
    pub fn end(&mut self, turn: &Turn, interrupted: bool) {
        let id = turn.payer;
        let over = self.is_step_over();
        let entry = &mut self.entries[id as usize];
        entry.is_busy = self.charged >= TIMED_BYTES;
        if entry.channels.is_empty() && entry.flows.is_empty() {
            entry.is_present = false;
            (entry.credit, entry.refund) = (entry.credit.min(0), 0);
            self.reclaim(id);
        } else if (interrupted || over) && entry.credit > 0 && !turn.alone {
            entry.resumes = true;
            self.order.push_front(id);
        } else {
            entry.credit = if turn.alone { 0 } else { entry.credit.min(0) };
            self.order.push_back(id);
        }
    }
}

impl Entry {
    fn turn_bytes(&self) -> i64 {
        i64::from(self.weight) * i64::from(self.part) * (TURN_BYTES / u64::from(WHOLE)) as i64
    }
}

/// A payer's turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub payer: PayerId,
    /// Set if there is no other payer.
    pub alone: bool,
    /// Set if the turn is to be measured ([`Scheduler::settle`]).
    pub is_timed: bool,
    /// Credit down to which channels are read.
    channels_to: i64,
}

#[cfg(test)]
mod tests;
