//! Receive rings: carved from a client's receive regions on first use, given back when idle.
use super::client::Client;
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
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Smallest and largest region for rings that are smaller than a hugepage: making one takes milliseconds.
const SMALL_REGION_BYTES: std::ops::RangeInclusive<u64> = FIRST_UNIX_RING_BYTES..=8 << 20;

/// Size of the first ring of a flow of AF_UNIX. Many such connections carry little, and a ring of a flow's share takes longer to make than a
/// process takes to start. The kernel's own buffers have less.
const FIRST_UNIX_RING_BYTES: u64 = 128 << 10;

/// Flows that are answered in one turn. An event may concern any number of flows.
const WAITING_PER_TURN: usize = 16;
/// Interval at which flows that wait for memory are tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Shortest interval between requests to movers to give rings back.
const RECLAIM_EVERY: Duration = Duration::from_millis(5);
/// Clients whose regions are looked at in one search for idle ones.
const EMPTIED_LOOKS: usize = 256;

/// A flow that waits for a receive ring.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// Client that is to receive by the ring.
    client: ClientId,
    /// Size of the largest ring that the mover takes, in bytes.
    bytes_max: u64,
}

/// Flows that wait for memory, and the times at which they are tried again.
///
/// The flows towards a client wait in one queue. The first gets the memory that comes back, and no flow overtakes it: a program that reads
/// its connections in the order in which bytes were sent never waits for a later one. Payers of the senders take turns in the queue. A
/// client whose queue is not empty has a region made for it, is in `due`, or is in `denied`.
#[derive(Debug, Default)]
pub struct Waiting {
    asked: HashMap<FlowId, Asked>,
    queues: HashMap<ClientId, Queues<FlowId>>,
    /// Clients whose first flow is to be answered in the next turns.
    due: Queues<ClientId>,
    /// Clients whose first flow was denied a ring.
    denied: Queues<ClientId>,
    /// Set if the clients in `denied` are due after those in `due`.
    retry_wanted: bool,
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
    /// Puts a flow at the end of the queue of its receiver.
    fn push(&mut self, payer: Payer, flow: FlowId, asked: Asked) {
        self.remove(flow);
        self.asked.insert(flow, asked);
        self.queues.entry(asked.client).or_default().push(payer, flow);
    }

    /// Takes a flow out of its queue. Returns what it asked for, if it waited.
    fn remove(&mut self, flow: FlowId) -> Option<Asked> {
        let asked = self.asked.remove(&flow)?;
        self.queues.get_mut(&asked.client)?.remove(flow);
        self.drop_empty(asked.client);
        Some(asked)
    }

    /// Takes the flow that waits first for a ring of the client.
    fn pop(&mut self, client: ClientId) -> Option<(FlowId, Asked)> {
        let (_, flow) = self.queues.get_mut(&client)?.pop()?;
        self.drop_empty(client);
        Some((flow, self.asked.remove(&flow)?))
    }

    fn drop_empty(&mut self, client: ClientId) {
        if self.queues.get(&client).is_some_and(Queues::is_empty) {
            self.queues.remove(&client);
        }
    }

    /// Returns the flow that waits first for a ring of the client.
    fn first(&self, client: ClientId) -> Option<FlowId> {
        self.queues.get(&client)?.first()
    }

    /// Returns the time of the next attempt without any news. `None`: no flow waits.
    fn next(&self) -> Option<Duration> {
        let next = if self.reclaim_wanted { self.next_reclaim.min(self.next_retry) } else { self.next_retry };
        (!self.denied.is_empty()).then_some(next)
    }
}

impl Conductor {
    /// Finds a ring for a flow that has bytes to deliver, or lets it wait. The mover takes at most `bytes_max` bytes, and does not ask again.
    pub(super) fn need_ring(&mut self, flow: FlowId, bytes_max: u64) {
        let Some(mover) = self.source_mover(flow) else { return };
        let Some((id, _)) = self.destination(flow) else {
            // An unclaimed twin has no receiver yet. The mover asks again after the claim.
            return self.movers.send(mover, ToMover::Ring { flow, ring: None });
        };
        let Some(client) = self.client(id) else { return };
        let (payer, is_making) = (client.payer(), client.growth.is_making());
        let is_first = self.waiting.first(id).is_none() && !is_making;
        if is_first && self.give_ring(flow, id, bytes_max) {
            return;
        }
        self.waiting.push(self.payer_of_flow(flow), flow, Asked { client: id, bytes_max });
        if is_first {
            self.note_denied(payer, id);
        } else if self.waiting.denied.holds(id) {
            Metrics::add(&self.metrics.rings_denied, 1);
        }
    }

    /// Gives the flow that waits first for a client's memory a ring, and schedules the next flow. A flow that is denied a ring stays the
    /// first.
    fn answer_first(&mut self, payer: Payer, id: ClientId) {
        let Some(flow) = self.waiting.first(id) else { return };
        let Some(asked) = self.waiting.asked.get(&flow).copied() else { return };
        if !self.give_ring(flow, id, asked.bytes_max) {
            return self.note_denied(payer, id);
        }
        self.waiting.pop(id);
        self.resume_syncs(id);
        if self.waiting.first(id).is_some() {
            self.waiting.due.push(payer, id);
        }
    }

    /// Gives a flow towards a client a ring. Returns false if it has to wait: there is no memory, or a region is being made first.
    fn give_ring(&mut self, flow: FlowId, id: ClientId, bytes_max: u64) -> bool {
        let receiver = self.destination(flow).filter(|(client, _)| *client == id);
        let socket = receiver.and_then(|(_, slot)| self.client(id)?.socket(slot));
        // A flow to a closed socket needs no ring: its mover learns of the end.
        let Some(wished) = socket.map(|socket| socket.receive_ring_bytes) else { return true };
        let bytes_max = wished.min(bytes_max);
        let begins = self.is_first_of_unix(flow);
        let is_first = begins && bytes_max > FIRST_UNIX_RING_BYTES;
        let bytes = if is_first { FIRST_UNIX_RING_BYTES } else { bytes_max };
        let Some(ring) = self.allocate_ring(id, bytes) else { return false };
        if begins {
            let twin = self.connections.get_mut(flow.connection()).and_then(|entry| entry.twin.as_mut());
            twin.into_iter().for_each(|twin| twin.has_had_ring[flow.side()] = true);
        }
        // The space of a client's regions is that of its connections' rings.
        self.connections.mark(flow.connection());
        if let Some(mover) = self.source_mover(flow) {
            self.movers.send(mover, ToMover::Ring { flow, ring: Some(Ring { wished, is_first, ..ring }) });
        }
        true
    }

    /// Tells whether a flow of AF_UNIX asks for its first ring.
    fn is_first_of_unix(&self, flow: FlowId) -> bool {
        let twin = self.connection(flow.connection()).and_then(|connection| connection.twin.as_ref());
        twin.is_some_and(|twin| twin.is_unix() && !twin.has_had_ring[flow.side()])
    }

    /// Tells whether a flow waits for a region that is being made for its receiver.
    pub(super) fn awaits_region(&self, id: ClientId, flow: FlowId) -> bool {
        self.waiting.asked.contains_key(&flow)
            && self.client(id).is_some_and(|client| client.growth.is_making())
    }

    /// Has the first flow of a client tried again when there may be memory, unless a region is being made for it.
    fn note_denied(&mut self, payer: Payer, id: ClientId) {
        if self.client(id).is_none_or(|client| client.growth.is_making()) {
            return;
        }
        Metrics::add(&self.metrics.rings_denied, 1);
        self.waiting.denied.push(payer, id);
        self.reclaim();
    }

    /// Returns the payer of the client that sends into a flow.
    fn payer_of_flow(&self, flow: FlowId) -> Payer {
        let source = self.connection(flow.connection()).and_then(|connection| connection.owner(flow.side()));
        source.and_then(|(id, _)| self.client(id)).map_or(DRIVER, Client::payer)
    }

    /// Schedules an answer to the flow that waits first for a client's region. The region has been made, or is not to be had.
    /// [`Self::serve_waiting`] answers.
    pub(super) fn grown(&mut self, id: ClientId) {
        let Some(client) = self.client(id) else { return };
        let payer = client.payer();
        if self.waiting.first(id).is_some() {
            self.waiting.due.push(payer, id);
        }
        self.retry_rings();
    }

    /// Gives some flows rings that wait for them. Payers of their receivers take turns. Returns whether there were any clients to look at.
    pub(super) fn serve_waiting(&mut self) -> bool {
        if self.retry_at().is_some_and(|at| self.clock.now() >= at) {
            if self.waiting.reclaim_wanted {
                self.reclaim();
            }
            self.retry_rings();
        }
        let mut served = 0;
        while served < WAITING_PER_TURN {
            if self.waiting.due.is_empty() && std::mem::take(&mut self.waiting.retry_wanted) {
                // Clients that are denied again wait in the same order.
                std::mem::swap(&mut self.waiting.due, &mut self.waiting.denied);
            }
            let Some((payer, client)) = self.waiting.due.pop() else { break };
            if self.client(client).is_some_and(|client| !client.growth.is_making()) {
                self.answer_first(payer, client);
            }
            served += 1;
        }
        served > 0
    }

    /// Has a flow that waits for a ring ask again, for the present owner of its end.
    pub(super) fn ask_again(&mut self, flow: FlowId) {
        if let Some(asked) = self.waiting.remove(flow) {
            self.need_ring(flow, asked.bytes_max);
        }
    }

    /// Forgets a flow that may wait for a ring: it is over.
    pub(super) fn stop_waiting(&mut self, flow: FlowId) {
        self.waiting.remove(flow);
    }

    /// Forgets the region that was being made for a client that has gone. Flows that waited for its memory ask again for the present owners
    /// of their ends.
    pub(super) fn stop_growing(&mut self, id: ClientId) {
        let Some(client) = self.client_mut(id) else { return };
        client.growth.stop();
        let waiting: Vec<_> = std::iter::from_fn(|| self.waiting.pop(id)).collect();
        waiting.into_iter().for_each(|(flow, asked)| self.need_ring(flow, asked.bytes_max));
    }

    /// Takes a ring of at most `wanted` bytes. `None` if there is no memory, or a region is being made first.
    fn allocate_ring(&mut self, id: ClientId, wanted: u64) -> Option<Ring> {
        let most = self.fair_ring_bytes(id).min(self.client(id)?.growth.bytes_max());
        let mut bytes = wanted.min(most).next_power_of_two().max(PAGE_BYTES as u64);
        while bytes >= PAGE_BYTES as u64 {
            let client = self.clients.get_mut(id)?;
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
                self.marks.mark_client(id);
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
        self.marks.mark_client(id);
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
        let client = self.clients.get_mut(ring.client).filter(|client| client.serial == ring.serial);
        let Some(client) = client else { return };
        if let Some((region, space)) = client.regions.get_mut(&ring.region.into()) {
            let unit = units(region);
            space.give(ring.page / unit, ring.pages / unit);
        }
        self.retry_rings();
    }

    /// Returns the number of flows that wait for memory.
    pub(super) fn rings_waiting(&self) -> usize {
        self.waiting.asked.len()
    }

    /// Has the first flow of each client that was denied a ring tried again in its turn ([`Self::serve_waiting`]): there may be memory.
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
            Some(Ring {
                client,
                serial,
                region: number as u16,
                page,
                pages,
                wished: bytes,
                is_first: false,
                map,
            })
        })
    }
}

/// Returns the number of ordinary pages per page of the region.
fn units(region: &Region) -> u32 {
    (region.pages.bytes() / PAGE_BYTES) as u32
}
