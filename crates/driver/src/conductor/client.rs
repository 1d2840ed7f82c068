//! What the conductor knows of one client.
use super::direct::Doorbells;
use super::families::Family;
use super::kernel::Counts;
use crate::identity::Identity;
use crate::ids::{ConnectionId, FlowId, MoverId, Side, Slot, TenantId};
use crate::memory::{Account, Amounts, ClientMemory, Exhausted, Region, Space};
use crate::messages::{payer, Payer};
use crate::standing::Place;
use pd_abi::layout::SOCKET_STRIDE;
use pd_abi::limits::{PAGE_BYTES, SOCKETS_MAX};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How far a client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The door has still to make its memory known.
    Arriving,
    /// Attached.
    Attached,
    /// Dead or cut off; waits for its mover to forget it.
    Leaving,
}

/// A flow that asks for a receive ring of `bytes_max` bytes at most.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub flow: FlowId,
    /// Of its connection: the flow may be over, and its number another's.
    pub serial: u64,
    pub bytes_max: u64,
}

#[derive(Debug)]
pub struct Client {
    /// A number that no other client has or will have.
    pub serial: u64,
    pub identity: Identity,
    /// Where it attached from.
    pub place: Place,
    pub tenant: TenantId,
    pub phase: Phase,
    pub memory: Option<Arc<ClientMemory>>,
    pub family: Family,
    /// Serves its channels, but for those that are away.
    pub mover: MoverId,
    /// Channels that other movers serve.
    away: Vec<(usize, MoverId)>,
    pub channels: usize,
    /// Its receive regions, by number, and what of them rings take.
    pub regions: BTreeMap<u32, (Region, Space)>,
    /// A receive region is being made, for a ring of so many bytes.
    pub growing: Option<u64>,
    /// Flows that wait for it, in the order in which they asked.
    pub asked: VecDeque<Asked>,
    /// Larger rings were not to be had the last time.
    pub ring_bytes_max: u64,
    /// Send regions of which not all movers have heard yet, each with how many those are.
    unheard: Vec<(u16, usize)>,
    /// Movers that have not forgotten it yet, once it leaves.
    pub remembered: usize,
    /// Stays with its family's mover: see [`super::balance`].
    pub is_bound: bool,
    /// Has got a file socket.
    pub passes_files: bool,
    /// Is not spread over movers again before this.
    pub bound_until: Duration,
    /// Who pays for its memory.
    pub account: Arc<Account>,
    /// Pages of its sockets' lines that were made.
    pub pages_of_lines: usize,
    /// Connections on the direct path.
    pub direct: usize,
    /// What it has said of connections on the kernel, and was counted.
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
    /// Explicitly bound, hence to be unbound.
    pub bound: Option<SocketAddr>,
    pub state: SocketState,
    pub send_ring_bytes: u64,
    pub receive_ring_bytes: u64,
    /// See [`pd_abi::SocketOption::ReceivesShared`]; of a listener: its connections.
    pub receives_shared: bool,
    /// Of an end that is another's by now: flows that have not let go of it.
    pub flows_left: u8,
}

/// Paper, section III-D.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub enum SocketState {
    Active,
    Listen(Listener),
    Connected(Connected),
    /// Closed by its client; flows still drain. With the connection, unless another client has its side now.
    Closing(Option<Connected>),
}

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Listener {
    pub backlog_max: usize,
    pub backlog: VecDeque<Slot>,
    /// Connections that ever entered the backlog.
    pub arrived: u64,
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Connected {
    pub connection: ConnectionId,
    /// 0: connected; 1: accepted.
    pub side: Side,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Client {
    /// Whether it is not leaving.
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
            growing: None,
            asked: VecDeque::new(),
            ring_bytes_max: u64::MAX,
            unheard: Vec::new(),
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

    /// Serves a channel, and the sockets whose home it is.
    pub fn mover_of(&self, channel: usize) -> MoverId {
        self.away.iter().find(|(away, _)| *away == channel).map_or(self.mover, |&(_, mover)| mover)
    }

    /// Serves a socket.
    pub fn mover_of_slot(&self, slot: Slot) -> MoverId {
        self.socket(slot).map_or(self.mover, |socket| self.mover_of(socket.channel))
    }

    /// Movers that know it, its own first.
    pub fn movers(&self) -> Vec<MoverId> {
        let mut movers = vec![self.mover];
        for &(_, mover) in &self.away {
            if !movers.contains(&mover) {
                movers.push(mover);
            }
        }
        movers
    }

    /// Whether several know it.
    pub fn is_spread(&self) -> bool {
        !self.away.is_empty()
    }

    /// Its channels, each with its mover.
    pub fn channels_with_movers(&self) -> impl Iterator<Item = (usize, MoverId)> + '_ {
        (0..self.channels).map(|channel| (channel, self.mover_of(channel)))
    }

    /// Channels have gone to another mover. Its own is one that serves a channel.
    pub fn set_mover_of(&mut self, channels: &[usize], mover: MoverId) {
        let moved = |channel| if channels.contains(&channel) { mover } else { self.mover_of(channel) };
        let movers: Vec<_> = (0..self.channels).map(moved).collect();
        if !movers.contains(&self.mover) {
            self.mover = mover;
        }
        let away = movers.into_iter().enumerate().filter(|(_, mover)| *mover != self.mover);
        self.away = away.collect();
    }

    /// Connections and sides of the connected sockets whose home is one of these channels.
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

    /// All movers that know it are told of a send region.
    pub fn tell_of_region(&mut self, region: u16) -> Vec<MoverId> {
        let movers = self.movers();
        self.unheard.push((region, movers.len()));
        movers
    }

    /// One more has heard of it. Says whether all have by now.
    pub fn has_heard(&mut self, region: u16) -> bool {
        let Some(at) = self.unheard.iter().position(|(unheard, _)| *unheard == region) else { return true };
        self.unheard[at].1 -= 1;
        let all = self.unheard[at].1 == 0;
        if all {
            self.unheard.swap_remove(at);
        }
        all
    }

    /// Pays for what it takes.
    pub fn payer(&self) -> Payer {
        payer(self.tenant, self.identity.uid)
    }

    /// Brings the page of a slot's lines into being, and pays for it, unless that was done: slots are taken in order.
    ///
    /// # Errors
    /// [`Exhausted`].
    pub fn make_lines(&mut self, slot: Slot) -> Result<(), Exhausted> {
        if slot.index() * SOCKET_STRIDE / PAGE_BYTES < self.pages_of_lines {
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

    /// Takes a slot for a socket. Returns it and its generation.
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

    /// Whether more than half of the slots are free.
    pub fn has_many_slots(&self) -> bool {
        self.slots.len() - self.free_slots.len() < SOCKETS_MAX / 2
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

    /// Generations of all slots, and the sockets in use: for another driver.
    pub fn give_slots(&self) -> (Vec<u16>, Vec<(Slot, Socket)>) {
        let sockets = self.slots.iter().enumerate();
        let sockets = sockets.filter_map(|(at, slot)| Some((Slot::at(at), slot.socket.clone()?)));
        (self.slots.iter().map(|slot| slot.generation).collect(), sockets.collect())
    }

    /// Goes on with the slots that another driver has given. Says whether there can be such slots.
    pub fn resume_slots(&mut self, generations: Vec<u16>, sockets: Vec<(Slot, Socket)>) -> bool {
        if generations.len() > SOCKETS_MAX {
            return false;
        }
        self.slots = generations.into_iter().map(|generation| SlotUse { generation, socket: None }).collect();
        for (slot, socket) in sockets {
            let is_served = socket.channel < self.channels && socket.flows_left == 0;
            match self.slots.get_mut(slot.index()) {
                Some(place) if is_served && place.generation != 0 && place.socket.is_none() => {
                    place.socket = Some(socket);
                }
                _ => return false,
            }
        }
        let free = self.slots.iter().enumerate().filter(|(_, slot)| slot.socket.is_none());
        self.free_slots = free.map(|(at, _)| Slot::at(at)).collect();
        self.slots.len() * SOCKET_STRIDE <= self.pages_of_lines * PAGE_BYTES
    }

    /// Tells whether nothing that it was given is on its way to movers.
    pub fn is_settled(&self) -> bool {
        self.unheard.is_empty() && self.growing.is_none()
    }

    /// Slots in use.
    pub fn slots(&self) -> Vec<Slot> {
        (0..self.slots.len()).map(Slot::at).filter(|&s| self.socket(s).is_some()).collect()
    }
}
