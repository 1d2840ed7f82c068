//! Receive rings: carved from a client's receive regions on first use, given back when idle.
use super::client::Client;
use super::growth::Asked;
use super::queues::Queues;
use super::Conductor;
use crate::door::ToDoor;
use crate::ids::{ClientId, FlowId};
use crate::memory::{Amounts, Exhausted, Region, Resource, Whose};
use crate::messages::{Payer, Ring, ToMover, DRIVER};
use crate::metrics::Metrics;
use pd_abi::limits::{HUGEPAGE_BYTES, PAGE_BYTES};
use rustix::io::Errno;
use std::collections::btree_map::Entry;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Smallest and largest region for rings that are smaller than a hugepage: making one takes milliseconds.
const SMALL_REGION_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=8 << 20;

/// Flows that are answered, or ask again, in one turn. An event may concern any number of flows.
const WAITING_PER_TURN: usize = 16;
/// Interval at which flows that wait for memory are tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Shortest interval between requests to movers to give rings back.
const RECLAIM_EVERY: Duration = Duration::from_millis(5);
/// Clients whose regions are looked at in one search for idle ones.
const EMPTIED_LOOKS: usize = 256;

/// Flows that wait for memory, and the times at which they are tried again.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Flows that were denied a ring.
    denied: Queues<FlowId>,
    /// Denied flows that ask again in the next turns.
    retried: Queues<FlowId>,
    /// Set if the flows in `denied` are to ask again after those in `retried`.
    retry_wanted: bool,
    /// Clients whose waiting flows are to be answered: a region has been made, or is not to be had.
    grown: Queues<ClientId>,
    next_retry: Duration,
    next_reclaim: Duration,
    reclaim_wanted: bool,
    /// Payers that were refused memory since the last search for idle regions. `None` among them: the pool refused.
    short: BTreeSet<Option<Payer>>,
    /// Place of the client with which the next search begins.
    next_looked_at: usize,
    /// Time at which an idle region was found last.
    found_idle: Option<Duration>,
}

impl Waiting {
    /// Returns the number of flows that were denied a ring.
    fn len(&self) -> usize {
        self.denied.len() + self.retried.len()
    }

    /// Returns the time of the next attempt without any news. `None`: no flow waits.
    fn next(&self) -> Option<Duration> {
        let next = if self.reclaim_wanted { self.next_reclaim.min(self.next_retry) } else { self.next_retry };
        (self.len() > 0).then_some(next)
    }
}

impl Conductor {
    /// Finds a ring for a flow that has bytes to deliver. The mover asks for at most `bytes_max` bytes.
    pub(super) fn need_ring(&mut self, flow: FlowId, bytes_max: u64) {
        self.give_or_await(flow, bytes_max, false);
    }

    /// Gives a flow a ring, or lets it wait. `is_first`: it was the first of the flows that wait for its client's region. Others wait
    /// behind them.
    fn give_or_await(&mut self, flow: FlowId, bytes_max: u64, is_first: bool) {
        let Some(mover) = self.source_mover(flow) else { return };
        let Some((client, slot)) = self.destination(flow) else {
            // An unclaimed twin has no receiver yet. The mover asks again after the claim.
            return self.movers.send(mover, ToMover::Ring { flow, ring: None });
        };
        let Some(state) = self.client(client) else { return };
        let Some(wished) = state.socket(slot).map(|socket| socket.receive_ring_bytes) else { return };
        if state.growth.holds_up(is_first) {
            return self.await_region(client, flow, bytes_max);
        }
        let ring = self.allocate_ring(client, wished.min(bytes_max)).map(|ring| Ring { wished, ..ring });
        if ring.is_none() {
            if self.client(client).is_some_and(|client| client.growth.is_making()) {
                return self.await_region(client, flow, bytes_max);
            }
            Metrics::add(&self.metrics.rings_denied, 1);
            let payer = self.payer_of_flow(flow);
            if !self.waiting.retried.holds(flow) {
                self.waiting.denied.push(payer, flow);
            }
            self.reclaim();
        }
        self.movers.send(mover, ToMover::Ring { flow, ring });
    }

    fn await_region(&mut self, id: ClientId, flow: FlowId, bytes_max: u64) {
        let Some(serial) = self.connection(flow.connection()).map(|connection| connection.serial) else {
            return;
        };
        if let Some(client) = self.client_mut(id) {
            client.growth.wait(Asked { flow, serial, bytes_max });
        }
    }

    /// Returns the payer of the client that sends into a flow.
    fn payer_of_flow(&self, flow: FlowId) -> Payer {
        let source = self.connection(flow.connection()).and_then(|connection| connection.owner(flow.side()));
        source.and_then(|(id, _)| self.client(id)).map_or(DRIVER, Client::payer)
    }

    /// Schedules answers to the flows that wait for a client's region. The region has been made, or is not to be had.
    /// [`Self::serve_waiting`] answers.
    pub(super) fn grown(&mut self, id: ClientId) {
        let Some(client) = self.client_mut(id) else { return };
        let payer = client.payer();
        if client.growth.waiting() > 0 {
            self.waiting.grown.push(payer, id);
        }
        self.retry_rings();
    }

    /// Answers the first flow that waits for a client's region. Schedules the next one, unless the first has to wait for another region.
    fn answer_asked(&mut self, payer: Payer, id: ClientId) {
        let Some(client) = self.client_mut(id) else { return };
        let Some(asked) = client.growth.next() else { return };
        let before = client.growth.waiting();
        self.ask_again(asked);
        let Some(client) = self.client_mut(id) else { return };
        if !client.growth.put_back(before) && before > 0 {
            self.waiting.grown.push(payer, id);
        }
    }

    /// Gives some flows rings, or has them ask again. Payers take turns. Returns whether there were any flows.
    pub(super) fn serve_waiting(&mut self) -> bool {
        if self.retry_at().is_some_and(|at| self.clock.now() >= at) {
            if self.waiting.reclaim_wanted {
                self.reclaim();
            }
            self.retry_rings();
        }
        let mut served = 0;
        while served < WAITING_PER_TURN {
            let Some((payer, client)) = self.waiting.grown.pop() else { break };
            self.answer_asked(payer, client);
            served += 1;
        }
        while served < WAITING_PER_TURN {
            if self.waiting.retried.is_empty() && std::mem::take(&mut self.waiting.retry_wanted) {
                // Flows that are denied again wait in the same order.
                std::mem::swap(&mut self.waiting.retried, &mut self.waiting.denied);
            }
            let Some((_, flow)) = self.waiting.retried.pop() else { break };
            if let Some(mover) = self.source_mover(flow) {
                self.movers.send(mover, ToMover::Resume { flow });
            }
            served += 1;
        }
        served > 0
    }

    /// Forgets the region that was being made for a client that has gone. Flows that waited for it ask again for the present owners of
    /// their ends.
    pub(super) fn stop_growing(&mut self, id: ClientId) {
        let Some(client) = self.client_mut(id) else { return };
        client.growth.stop().into_iter().for_each(|asked| self.ask_again(asked));
    }

    fn ask_again(&mut self, asked: Asked) {
        if self
            .connection(asked.flow.connection())
            .is_some_and(|connection| connection.serial == asked.serial)
        {
            self.give_or_await(asked.flow, asked.bytes_max, true);
        }
    }

    /// Takes a ring of at most `wanted` bytes. `None` if there is no memory, or a region is being made first.
    fn allocate_ring(&mut self, id: ClientId, wanted: u64) -> Option<Ring> {
        let most = self.fair_ring_bytes(id).min(self.client(id)?.growth.bytes_max());
        let mut bytes = wanted.min(most).next_power_of_two().max(PAGE_BYTES as u64);
        while bytes >= PAGE_BYTES as u64 {
            let client = self.client_mut(id)?;
            if let Some(ring) = client.carve(id, bytes) {
                return Some(ring);
            }
            match self.grow(id, bytes) {
                Ok(()) => return None,
                Err(exhausted) => {
                    self.warn_exhausted(id, &exhausted);
                    bytes /= 2;
                }
            }
        }
        None
    }

    /// Returns the bytes of the largest ring that leaves room for others: a sixteenth of the free memory. Rings shrink as memory gets
    /// short, so that late connections are slow rather than stuck.
    pub(super) fn fair_ring_bytes(&self, id: ClientId) -> u64 {
        let free = self.client(id).map_or(0, |client| client.account.free());
        let carved: u64 = self.client(id).map_or(0, Client::free_ring_bytes);
        let share = (free + carved) / 16;
        if share.is_power_of_two() {
            share
        } else {
            share.next_power_of_two() / 2
        }
    }

    /// Asks movers to take back rings that are empty right now. Waits [`RECLAIM_EVERY`] before the next time, because movers look at all of
    /// their flows.
    pub(super) fn reclaim(&mut self) {
        let now = self.clock.now();
        self.waiting.reclaim_wanted = now < self.waiting.next_reclaim;
        if self.waiting.reclaim_wanted {
            return;
        }
        self.waiting.next_reclaim = now + RECLAIM_EVERY;
        self.movers.working().for_each(|mover| self.movers.send(mover, ToMover::Reclaim));
        self.empty_idle_regions();
    }

    /// Notes that a client was refused memory because of an account.
    pub(super) fn note_short(&mut self, id: ClientId, exhausted: &Exhausted) {
        let Exhausted::Budget { resource: Resource::Memory, whose, .. } = exhausted else { return };
        let payer = self.client(id).map(Client::payer).filter(|_| *whose != Whose::Pool);
        self.waiting.short.insert(payer);
    }

    /// Takes the pages of idle receive regions back, because the pool has no memory for one more connection. Returns whether there are such
    /// regions, or were a moment ago.
    pub(super) fn make_room(&mut self) -> bool {
        self.waiting.short.insert(None);
        self.empty_idle_regions();
        self.waiting.found_idle.is_some_and(|at| self.clock.now() < at + RECLAIM_EVERY)
    }

    /// Has the pages of receive regions without rings taken back, if a payer needs their memory: its own, and those of all if the pool has
    /// too little.
    fn empty_idle_regions(&mut self) {
        let short = std::mem::take(&mut self.waiting.short);
        if short.is_empty() {
            return;
        }
        let (places, first) = (self.clients.len(), self.waiting.next_looked_at);
        for at in 0..places.min(EMPTIED_LOOKS) {
            let id = ClientId::at((first + at) % places);
            let Some(client) = self.clients.get_mut(id) else { continue };
            if !client.is_attached() || !short.contains(&None) && !short.contains(&Some(client.payer())) {
                continue;
            }
            let idle = client.regions.iter();
            let idle = idle.filter(|(_, (region, space))| space.taken() == 0 && region.is_emptiable());
            for number in idle.map(|(&number, _)| number).collect::<Vec<_>>() {
                let Some((region, _)) = client.regions.remove(&number) else { continue };
                let region = Box::new(region);
                self.waiting.found_idle = Some(self.clock.now());
                self.door.send(ToDoor::EmptyReceiveRegion { client: id, number, region });
            }
        }
        self.waiting.next_looked_at = (first + EMPTIED_LOOKS) % places.max(1);
    }

    /// Keeps a region that has no pages by now. Flows that wait for memory ask again.
    pub(super) fn emptied(&mut self, id: ClientId, number: u32, region: Box<Region>) {
        match self.client_mut(id) {
            Some(client) if region.is_empty() => {
                client.emptied.insert(number, *region);
                Metrics::add(&self.metrics.regions_emptied, 1);
            }
            Some(client) => client.add_region(number, *region),
            None => self.door.send(ToDoor::DropReceiveRegion { region }),
        }
        self.retry_rings();
    }

    /// Has the door make a receive region with room for a ring of `bytes` bytes.
    fn grow(&mut self, id: ClientId, bytes: u64) -> Result<(), Exhausted> {
        let Some(client) = self.clients.get_mut(id) else {
            return Err(Exhausted::Memory(Errno::NOTCONN));
        };
        let is_first = !client.growth.is_limited();
        let generous = if bytes >= HUGEPAGE_BYTES as u64 || !is_first {
            bytes
        } else {
            // Half as much again as there is, so that regions stay few.
            (client.account.used().memory_bytes / 2)
                .clamp(*SMALL_REGION_BYTES.start(), *SMALL_REGION_BYTES.end())
                .next_multiple_of(bytes)
        };
        let suits =
            |region: &Region| region.map.len() as u64 >= bytes && bytes % region.pages.bytes() as u64 == 0;
        let suiting = client.emptied.iter().filter(|(_, region)| suits(region));
        let smallest = suiting.min_by_key(|(_, region)| region.map.len()).map(|(&number, _)| number);
        if let Some(Entry::Occupied(mut emptied)) = smallest.map(|number| client.emptied.entry(number)) {
            if emptied.get_mut().reserve().is_ok() {
                let (number, region) = emptied.remove_entry();
                client.growth.begin(bytes);
                let region = Box::new(region);
                self.door.send(ToDoor::FillReceiveRegion { client: id, number, region });
                return Ok(());
            }
        }
        let lease = |region: u64| {
            let region = self.pool.bytes_of(region, bytes >= HUGEPAGE_BYTES as u64);
            client.account.lease_ring(Amounts::region(region))
        };
        let lease = lease(generous).or_else(|_| lease(bytes))?;
        client.growth.begin(bytes);
        self.door.send(ToDoor::MakeReceiveRegion { client: id, lease, ring_bytes: bytes });
        Ok(())
    }

    /// Takes back the ring of a flow.
    pub(super) fn free_ring(&mut self, ring: &Ring) {
        let Some(client) = self.client_mut(ring.client).filter(|c| c.serial == ring.serial) else { return };
        if let Some((region, space)) = client.regions.get_mut(&ring.region.into()) {
            let unit = units(region);
            space.give(ring.page / unit, ring.pages / unit);
        }
        self.retry_rings();
    }

    /// Returns the number of flows that wait for memory.
    pub(super) fn rings_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Has each flow that waits for a ring ask again in its turn ([`Self::serve_waiting`]): there may be memory.
    pub(super) fn retry_rings(&mut self) {
        self.waiting.retry_wanted = !self.waiting.denied.is_empty();
        if self.waiting.retry_wanted {
            self.waiting.next_retry = self.clock.now() + RETRY;
        }
    }

    /// Returns the time at which flows that wait for memory are tried again without any news.
    pub fn retry_at(&self) -> Option<Duration> {
        self.waiting.next()
    }
}

impl Client {
    /// Returns the bytes of its receive regions that no ring takes.
    pub(super) fn free_ring_bytes(&self) -> u64 {
        let free = self.regions.values();
        let free =
            free.map(|(region, space)| region.map.len() - space.taken() as usize * region.pages.bytes());
        free.sum::<usize>() as u64
    }

    fn carve(&mut self, client: ClientId, bytes: u64) -> Option<Ring> {
        let pages = (bytes / PAGE_BYTES as u64) as u32;
        self.regions.iter_mut().find_map(|(&number, (region, space))| {
            let unit = units(region);
            if pages % unit != 0 {
                return None;
            }
            let page = space.take(pages / unit)? * unit;
            let map = Arc::clone(&region.map);
            let serial = self.serial;
            Some(Ring { client, serial, region: number as u16, page, pages, wished: bytes, map })
        })
    }
}

/// Returns the number of ordinary pages per page of the region.
fn units(region: &Region) -> u32 {
    (region.pages.bytes() / PAGE_BYTES) as u32
}
