//! A client as the conductor knows it.
use super::direct::Doorbells;
use super::families::Family;
use super::growth::Growth;
use super::kernel::Counts;
use crate::identity::Identity;
use crate::ids::{ConnectionId, MoverId, Side, Slot, TenantId};
use crate::memory::{Account, Amounts, ClientMemory, Exhausted, Region, RingEnds, Space};
use crate::messages::{payer, Payer};
use crate::standing::Place;
use pd_abi::layout::SOCKET_STRIDE;
use pd_abi::limits::{DIRECT_CONNECTIONS_MAX, PAGE_BYTES, SOCKETS_MAX};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Stage of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The door has not announced the client's memory yet.
    Arriving,
    /// Attached.
    Attached,
    /// Dead or cut off; movers have still to forget the client.
    Leaving,
}

#[derive(Debug)]
pub struct Client {
    /// Serial number, which is never reused.
    pub serial: u64,
    pub identity: Identity,
    /// Place that it attached from.
    pub place: Place,
    pub tenant: TenantId,
    phase: Phase,
    memory: Option<Arc<ClientMemory>>,
    pub family: Family,
    /// Mover of its channels, except those in `away`.
    pub mover: MoverId,
    /// Channels that other movers serve.
    away: Vec<(usize, MoverId)>,
    pub channels: usize,
    /// Receive regions by number, each with the space that rings take.
    pub regions: BTreeMap<u32, (Region, Space)>,
    /// Receive regions without pages, by number: they were idle when memory was short.
    pub emptied: BTreeMap<u32, Region>,
    pub growth: Growth,
    /// Send regions that some movers have not learned of, each with the number of these movers.
    unannounced: Vec<(u16, usize)>,
    /// Number of movers that have still to forget the client, once it leaves.
    remembered: usize,
    /// Stays with its family's mover: see [`super::balance`].
    pub is_bound: bool,
    /// Has got a file socket.
    pub passes_files: bool,
    /// Earliest time at which it may be spread over movers again.
    pub bound_until: Duration,
    /// Account that pays for its memory.
    pub account: Arc<Account>,
    /// Number of pages made for the lines of its sockets.
    pub pages_of_lines: usize,
    /// Number of connections on the direct path.
    direct: usize,
    /// Counts of connections on the kernel that it has reported, as last taken.
    pub kernel: Counts,
    /// See [`Doorbells`].
    pub doorbells: Doorbells,
    slots: Vec<SlotUse>,
    free_slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct SlotUse {
    generation: u16,
    socket: Option<Socket>,
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Socket {
    pub v6: bool,
    pub v6_only: bool,
    pub channel: usize,
    /// Address of an explicit bind, to be undone.
    pub bound: Option<SocketAddr>,
    pub state: SocketState,
    pub send_ring_bytes: u64,
    pub receive_ring_bytes: u64,
    /// See [`pd_abi::SocketOption::ReceivesShared`]. Connections inherit a listener's value.
    pub receives_shared: bool,
    /// Flows that have not let go of an end that another client has taken.
    pub flows_left: u8,
}

/// State of a socket (paper, section III-D).
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub enum SocketState {
    Active,
    Listen(Listener),
    Connected(Connected),
    /// Closed by its client while flows still drain. Holds the connection, unless another client has its side.
    Closing(Option<Connected>),
    /// Another client has its side. The client has not closed the socket, and may still look at its line. With the ends of the rings, if
    /// there were any.
    Taken(Option<RingEnds>),
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Listener {
    pub backlog_max: usize,
    pub backlog: VecDeque<Slot>,
    /// Number of connections that ever entered the backlog.
    pub arrived: u64,
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Connected {
    pub connection: ConnectionId,
    pub side: Side,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Client {
    /// Returns the stage.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Tells whether the client is attached.
    pub fn is_attached(&self) -> bool {
        self.phase == Phase::Attached
    }

    /// Takes the memory that the door has made. The client maps it before it is attached.
    pub fn welcome(&mut self, memory: Arc<ClientMemory>) {
        self.memory = Some(memory);
    }

    /// Returns the memory, once the door has made it.
    pub fn memory(&self) -> Option<&Arc<ClientMemory>> {
        self.memory.as_ref()
    }

    /// Adds to `all` what its counts of connections on the kernel have grown by.
    pub fn report_kernel_counts(&mut self, all: &mut Counts) {
        // The control region is not sealed before the client has a channel.
        if let Some(memory) = self.memory.as_ref().filter(|_| self.channels > 0) {
            all.take(&mut self.kernel, memory);
        }
    }

    /// Ends the arrival of a client that has its memory.
    pub fn attach(&mut self) {
        debug_assert!(self.phase == Phase::Arriving && self.memory.is_some());
        self.phase = Phase::Attached;
    }

    /// Tells whether the client is not leaving.
    pub fn is_present(&self) -> bool {
        self.phase != Phase::Leaving
    }

    pub fn new(
        serial: u64,
        (identity, place): (Identity, Place),
        tenant: TenantId,
        account: Arc<Account>,
        (family, mover): (Family, MoverId),
    ) -> Self {
        Self {
            serial,
            identity,
            place,
            tenant,
            phase: Phase::Arriving,
            memory: None,
            family,
            mover,
            away: Vec::new(),
            channels: 0,
            regions: BTreeMap::new(),
            emptied: BTreeMap::new(),
            growth: Growth::default(),
            unannounced: Vec::new(),
            remembered: 0,
            is_bound: false,
            passes_files: false,
            bound_until: Duration::ZERO,
            account,
            pages_of_lines: 0,
            direct: 0,
            kernel: Counts::default(),
            doorbells: Doorbells::default(),
            slots: Vec::new(),
            free_slots: Vec::new(),
        }
    }

    /// Begins to leave. Returns the movers that have still to forget the client.
    pub fn leave(&mut self) -> Vec<MoverId> {
        let movers = self.movers();
        (self.phase, self.remembered) = (Phase::Leaving, movers.len());
        movers
    }

    /// Notes that one more mover has forgotten the client, which leaves. Returns whether all have.
    pub fn is_forgotten_by_one_more(&mut self) -> bool {
        self.remembered = self.remembered.saturating_sub(1);
        self.remembered == 0
    }

    /// Tells whether it may have one more connection on the direct path.
    pub fn may_enter_direct(&self) -> bool {
        self.direct < DIRECT_CONNECTIONS_MAX
    }

    /// Counts one more connection on the direct path.
    pub fn enter_direct(&mut self) {
        self.direct += 1;
    }

    /// Counts one connection less there.
    pub fn exit_direct(&mut self) {
        self.direct -= 1;
    }

    /// Returns the mover that serves a channel, and the sockets whose home it is.
    pub fn mover_of(&self, channel: usize) -> MoverId {
        self.away.iter().find(|(away, _)| *away == channel).map_or(self.mover, |&(_, mover)| mover)
    }

    /// Returns the mover that serves a socket.
    pub fn mover_of_slot(&self, slot: Slot) -> MoverId {
        self.socket(slot).map_or(self.mover, |socket| self.mover_of(socket.channel))
    }

    /// Returns the movers that know the client, its own first.
    pub fn movers(&self) -> Vec<MoverId> {
        let mut movers = vec![self.mover];
        for &(_, mover) in &self.away {
            if !movers.contains(&mover) {
                movers.push(mover);
            }
        }
        movers
    }

    /// Tells whether several movers know the client.
    pub fn is_spread(&self) -> bool {
        !self.away.is_empty()
    }

    /// Iterates over the channels, each with its mover.
    pub fn channels_with_movers(&self) -> impl Iterator<Item = (usize, MoverId)> + '_ {
        (0..self.channels).map(|channel| (channel, self.mover_of(channel)))
    }

    /// Notes that channels have gone to `mover`. The client's own mover remains one that serves a channel.
    pub fn set_mover_of(&mut self, channels: &[usize], mover: MoverId) {
        let moved = |channel| if channels.contains(&channel) { mover } else { self.mover_of(channel) };
        let movers: Vec<_> = (0..self.channels).map(moved).collect();
        if !movers.contains(&self.mover) {
            self.mover = mover;
        }
        let away = movers.into_iter().enumerate().filter(|(_, mover)| *mover != self.mover);
        self.away = away.collect();
    }

    /// Iterates over connections and sides of the connected sockets whose home is one of `channels`.
    pub fn connected_on<'a>(
        &'a self,
        channels: &'a [usize],
    ) -> impl Iterator<Item = (ConnectionId, Side)> + 'a {
        self.slots.iter().filter_map(|slot| slot.socket.as_ref()).filter_map(|socket| match socket.state {
            SocketState::Connected(Connected { connection, side, .. })
                if channels.contains(&socket.channel) =>
            {
                Some((connection, side))
            }
            _ => None,
        })
    }

    /// Notes that all movers of the client are to learn of a send region. Returns these movers.
    pub fn tell_of_region(&mut self, region: u16) -> Vec<MoverId> {
        let movers = self.movers();
        self.unannounced.push((region, movers.len()));
        movers
    }

    /// Notes that one more mover has learned of a send region. Returns whether all have.
    pub fn note_known(&mut self, region: u16) -> bool {
        let Some(at) = self.unannounced.iter().position(|(unannounced, _)| *unannounced == region) else {
            return true;
        };
        self.unannounced[at].1 -= 1;
        let all = self.unannounced[at].1 == 0;
        if all {
            self.unannounced.swap_remove(at);
        }
        all
    }

    /// Returns the payer of its resources.
    pub fn payer(&self) -> Payer {
        payer(self.tenant, self.identity.uid)
    }

    /// Tells whether the page of a slot's lines is made.
    fn has_lines(&self, slot: Slot) -> bool {
        slot.index() * SOCKET_STRIDE / PAGE_BYTES < self.pages_of_lines
    }

    /// Makes the page of a slot's lines, and pays for it, unless that was done. Slots are taken in order.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn make_lines(&mut self, slot: Slot) -> Result<(), Exhausted> {
        if self.has_lines(slot) {
            return Ok(());
        }
        let page = self.account.lease(Amounts::PAGE_OF_LINES)?;
        if let Some(memory) = &self.memory {
            memory.populate_slot(slot).map_err(Exhausted::Memory)?;
            memory.keep(page);
        }
        self.pages_of_lines += 1;
        Ok(())
    }

    /// Takes a slot for a socket. Returns the slot and its generation; `None` if all slots are in use.
    pub fn open(&mut self, socket: Socket) -> Option<(Slot, u16)> {
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None if self.slots.len() < SOCKETS_MAX => {
                self.slots.push(SlotUse::default());
                Slot::at(self.slots.len() - 1)
            }
            None => return None,
        };
        let entry = &mut self.slots[slot.index()];
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.socket = Some(socket);
        Some((slot, entry.generation))
    }

    /// Returns the number of sockets.
    pub fn sockets_open(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// Returns the number of places of sockets, free ones included.
    pub fn places(&self) -> usize {
        self.slots.len()
    }

    /// Tells whether more than half of the slots are free.
    pub fn has_many_slots(&self) -> bool {
        self.sockets_open() < SOCKETS_MAX / 2
    }

    pub fn close(&mut self, slot: Slot) -> Option<Socket> {
        let socket = self.slots.get_mut(slot.index())?.socket.take()?;
        self.free_slots.push(slot);
        Some(socket)
    }

    pub fn generation(&self, slot: Slot) -> u16 {
        self.slots.get(slot.index()).map_or(0, |s| s.generation)
    }

    pub fn socket(&self, slot: Slot) -> Option<&Socket> {
        self.slots.get(slot.index())?.socket.as_ref()
    }

    pub fn socket_mut(&mut self, slot: Slot) -> Option<&mut Socket> {
        self.slots.get_mut(slot.index())?.socket.as_mut()
    }

    /// Returns the generations of all slots, and the sockets in use, for another driver.
    pub fn give_slots(&self) -> (Vec<u16>, Vec<(Slot, Socket)>) {
        let sockets = self.slots.iter().enumerate();
        let sockets = sockets.filter_map(|(at, slot)| Some((Slot::at(at), slot.socket.clone()?)));
        (self.slots.iter().map(|slot| slot.generation).collect(), sockets.collect())
    }

    /// Takes over slots that another driver has given. Returns whether they are valid.
    pub fn resume_slots(&mut self, generations: Vec<u16>, sockets: Vec<(Slot, Socket)>) -> bool {
        if generations.len() > SOCKETS_MAX {
            return false;
        }
        self.slots = generations.into_iter().map(|generation| SlotUse { generation, socket: None }).collect();
        for (slot, socket) in sockets {
            let is_served = socket.channel < self.channels && socket.flows_left == 0 && self.has_lines(slot);
            match self.slots.get_mut(slot.index()) {
                Some(place) if is_served && place.generation != 0 && place.socket.is_none() => {
                    place.socket = Some(socket);
                }
                _ => return false,
            }
        }
        let free = self.slots.iter().enumerate().filter(|(_, slot)| slot.socket.is_none());
        self.free_slots = free.map(|(at, _)| Slot::at(at)).collect();
        // Of the last slots the page may not have been made for want of memory.
        self.slots.len() * SOCKET_STRIDE <= (self.pages_of_lines + 1) * PAGE_BYTES
    }

    /// Adds a receive region without rings.
    pub fn add_region(&mut self, number: u32, region: Region) {
        let pages = region.map.len() / region.pages.bytes();
        self.regions.insert(number, (region, Space::new(pages as u32)));
    }

    /// Tells whether no region is being made for the client, and no mover has still to learn of one.
    pub fn is_settled(&self) -> bool {
        self.unannounced.is_empty() && !self.growth.is_making()
    }

    /// Returns the slots in use.
    pub fn slots(&self) -> Vec<Slot> {
        (0..self.slots.len()).map(Slot::at).filter(|&s| self.socket(s).is_some()).collect()
    }
}
