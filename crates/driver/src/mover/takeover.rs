//! State that a mover gives to another driver, and goes on with in its place.
use super::channel::{Channel, ChannelState};
use super::clients::{Client, Socket};
use super::files::{Files, FilesState, GivenFiles};
use super::flow::Flow;
pub use super::flow::FlowState;
use super::flows::Place;
use super::recovery::catch_up;
use super::{counting, Mover};
use crate::crash::marks::Marks;
use crate::ids::{ClientId, FlowId, MoverId, Slot, TenantId};
use crate::memory::{Account, ClientMemory};
use crate::messages::{Endpoint, NewFlow, Payer, Ring};
use crate::reader::{OpenFile, Readers};
use crate::takeover::pack::{Hindrance, Pack, Unpacked, Wrong};
use pd_abi::limits::{CHANNELS_MAX, REGIONS_MAX, SOCKETS_MAX};
use pd_abi::SocketId;
use pd_shm::Mapping;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// Times that completions are looked for before the copies under way are a hindrance.
const REAPS_MAX: usize = 10_000;

/// State of a mover.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoverState {
    /// Highest number of a sleep.
    sleeps: u32,
    /// Clients of the mover.
    pub clients: Vec<ClientState>,
    /// Flows that start at their sockets.
    pub flows: Vec<FlowState>,
}

/// State of a client at a mover.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientState {
    /// Number of the client.
    pub client: ClientId,
    channels: Vec<(usize, ChannelState)>,
    regions: Vec<u16>,
    sockets: Vec<SocketState>,
    files: FilesState,
}

/// State of a client's socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SocketState {
    slot: Slot,
    generation: u16,
    channel: u8,
    outgoing: Option<FlowId>,
    sends: Option<FlowId>,
    incoming: Option<FlowId>,
}

/// Facts that the conductor and the door have of a client.
#[derive(Debug)]
pub struct Known {
    pub payer: Payer,
    pub account: Arc<Account>,
    pub memory: Arc<ClientMemory>,
    pub channels: usize,
    /// Sealed send regions, by number.
    pub regions: HashMap<u16, Arc<Mapping>>,
    /// Open files, in the order in which a mover had them.
    pub files: Vec<Arc<OpenFile>>,
}

/// Facts that the conductor has of a flow.
#[derive(Debug)]
pub struct KnownFlow {
    pub tenant: TenantId,
    /// Set for a twin's.
    pub lasts: bool,
    /// Source and destination.
    pub ends: [Endpoint; 2],
    pub ring: Option<Ring>,
    /// Serial number of its connection.
    pub serial: u64,
}

impl Mover {
    /// Returns the state that another driver goes on with. Nothing is on its way to the mover, which goes on itself if this fails.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&mut self, pack: &mut Pack) -> Result<MoverState, Hindrance> {
        self.await_copies()?;
        let now = self.clock.now();
        let mut files: HashMap<ClientId, GivenFiles> = HashMap::new();
        let mut clients = Vec::new();
        for (id, client) in self.clients.with_ids() {
            let (given, of_client) = client.give(id, &self.readers, pack)?;
            clients.push(given);
            files.insert(id, of_client);
        }
        let (flows, clients_of) = (&mut self.flows, &self.clients);
        let mut given = Vec::new();
        for id in flows.ids() {
            match flows.place(id) {
                Place::Free => {}
                Place::Fresh(new) => given.push(FlowState {
                    id,
                    tenant: new.tenant,
                    ends: [&new.source, &new.destination].map(end_of),
                    send_ring_bytes: new.send_ring_bytes,
                    moving: None,
                }),
                Place::Flow(flow) => {
                    let ends = [flow.source(), flow.destination()].map(end_of);
                    let source = ends[0].map(|((client, _), _)| client);
                    let client = source.and_then(|client| clients_of.get(client));
                    let mut files = source.and_then(|client| files.get_mut(&client));
                    let moving = flow.give(
                        now,
                        |address, len| client?.place(address, len),
                        |file| files.as_mut().map(|files| files.add(file, pack)),
                    )?;
                    let (tenant, moving) = (flow.tenant, Some(Box::new(moving)));
                    given.push(FlowState { id, tenant, ends, send_ring_bytes: 0, moving });
                }
            }
        }
        for client in &mut clients {
            client.files = files.remove(&client.client).unwrap_or_default().into_state();
        }
        Ok(MoverState { sleeps: self.doorbells.sleeps(), clients, flows: given })
    }

    fn await_copies(&mut self) -> Result<(), Hindrance> {
        self.now = self.clock.now();
        for _ in 0..REAPS_MAX {
            if self.engines.in_flight() == 0 {
                self.publish();
                self.flush_events();
                return Ok(());
            }
            if !self.reap() {
                std::thread::yield_now();
            }
        }
        Err(Hindrance::passing("an engine has not ended its copies"))
    }

    /// Takes over a client that another driver has given. The client may be known here already, from another mover of that driver. Returns
    /// sockets of which a driver that was killed, and has left these `marks`, may have carried out a request in part.
    ///
    /// # Errors
    /// The fault in it.
    pub fn take_client(
        &mut self,
        state: ClientState,
        known: &mut Known,
        fds: &mut Unpacked,
        marks: Option<&Marks>,
    ) -> Result<Vec<SocketId>, Wrong> {
        let id = state.client;
        let mut doubts = Vec::new();
        let wrong = |what: &str| Wrong::of(format!("client {id}: {what}"));
        if self.clients.get(id).is_none() {
            let payer = self.scheduler.enter(known.payer);
            self.clients.add(id, Client::new(payer, &known.account, &known.memory));
        }
        for region in state.regions {
            let map = known.regions.get(&region).ok_or_else(|| wrong("a send region that is not sealed"))?;
            let client = self.clients.get_mut(id).ok_or_else(|| wrong("it is not there"))?;
            client.add_region(region.into(), Arc::clone(map));
        }
        for SocketState { slot, generation, channel, outgoing, sends, incoming } in state.sockets {
            if slot.index() >= SOCKETS_MAX || usize::from(channel) >= known.channels {
                return Err(wrong("a socket of a channel that is not there"));
            }
            let place = self.clients.socket_mut(id, slot).ok_or_else(|| wrong("a socket"))?;
            if place.generation != 0 {
                return Err(wrong("two sockets in a slot"));
            }
            let incoming = incoming.map(|flow| (MoverId::default(), flow));
            *place = Socket { generation, channel, outgoing, sends, incoming };
        }
        for (index, channel) in state.channels {
            if index >= known.channels.min(CHANNELS_MAX) || self.clients.channel(id, index).is_some() {
                return Err(wrong("a channel that is not there, or twice"));
            }
            let mut channel = channel;
            if let Some(marks) = marks {
                doubts.extend(channel.catch_up(index, &known.memory, marks.progress(id, index)));
            }
            let mut channel = Channel::resume(channel, index, &known.memory, fds)?;
            if marks.is_some() {
                channel.release();
            }
            let watched = self.doorbells.add(id, index, channel.doorbell());
            channel.set_watched(watched.is_ok());
            if channel.is_overflowing() {
                self.outbox.add_overflowing((id, index));
            }
            if let Some(client) = self.clients.get_mut(id) {
                client.add_channel(index, channel);
            }
        }
        if state.files.is_empty() {
            return Ok(doubts);
        }
        let payer = (&known.account, known.payer);
        let (files, open) = Files::resume(state.files, payer, &self.readers, self.clock.now(), fds)?;
        let client = self.clients.get_mut(id).ok_or_else(|| wrong("it is not there"))?;
        // A client that passes files has one mover.
        if client.files().has_socket() || !known.files.is_empty() {
            return Err(wrong("files of two movers"));
        }
        client.set_files(files);
        known.files = open;
        self.ticks.want();
        Ok(doubts)
    }

    /// Takes over a flow that another driver has given, to be served from [`Self::begin`] on. `files`: open files of its source. Returns false
    /// if a driver that was killed, and has left these `marks`, may have lost bytes of it.
    ///
    /// # Errors
    /// The fault in it.
    pub fn take_flow(
        &mut self,
        state: FlowState,
        known: KnownFlow,
        files: &[Arc<OpenFile>],
        marks: Option<&Marks>,
    ) -> Result<bool, Wrong> {
        let FlowState { id, ends: _, tenant: _, send_ring_bytes, mut moving } = state;
        let KnownFlow { tenant, lasts, ends, ring, serial } = known;
        let is_proved = marks.is_none_or(|marks| {
            catch_up(&mut moving, send_ring_bytes, &ends, ring.as_ref(), marks.sends(id))
        });
        if !matches!(self.flows.place(id), Place::Free) {
            return Err(Wrong::of(format!("flow {id} is there twice")));
        }
        counting::open_flow(&self.metrics, id, serial);
        counting::open_clients(&self.metrics, self.outbox.own(), [&ends[0], &ends[1]]);
        let Some(moving) = moving else {
            let [source, destination] = ends;
            self.flows.add(Box::new(NewFlow {
                id,
                tenant,
                lasts,
                source,
                destination,
                send_ring_bytes,
                serial,
            }));
            return Ok(is_proved);
        };
        let (client, has_ring, now) = (ends[0].client, ring.is_some(), self.clock.now());
        let of = self.clients.get(client);
        let address = |region: u16, offset: u64, len: u64| {
            let map = of?.region(region.into())?;
            let end = offset.checked_add(len).filter(|end| len > 0 && *end <= map.len() as u64);
            end.map(|_| map.address(offset as usize, len as usize).as_ptr() as u64)
        };
        let file = |place: u32| files.get(place as usize).cloned();
        let mut flow = Flow::resume((id, tenant, lasts), ends, ring, *moving, now, (address, file))?;
        if has_ring {
            let payer = self.clients.payer(client);
            flow.set_ring_payer(payer);
            self.division.take(&mut self.scheduler, payer);
        }
        *self.flows.place(id) = Place::Flow(Box::new(flow));
        Ok(is_proved)
    }

    /// Begins to look at channels and flows, with all state there. `states`: the highest numbers of sleeps of the previous movers.
    pub fn begin(&mut self, states: &[u32]) {
        states.iter().for_each(|&sleeps| self.doorbells.number_beyond_these(sleeps));
        let places: Vec<_> = self
            .clients
            .with_ids()
            .flat_map(|(id, client)| client.channels().map(move |at| (id, at)).collect::<Vec<_>>())
            .collect();
        places.into_iter().for_each(|(client, index)| self.activate(client, index));
        for id in self.flows.ids() {
            if self.flows.used(id).is_some() {
                self.ticks.want();
                self.resume(id);
            }
        }
    }
}

impl MoverState {
    /// Returns the highest number of a sleep.
    pub fn sleeps(&self) -> u32 {
        self.sleeps
    }
}

fn end_of(end: &Endpoint) -> Option<((ClientId, Slot), u64)> {
    (end.client != ClientId::NOBODY).then_some(((end.client, end.slot), end.serial))
}

impl Client {
    /// Returns its state, and its files, which come last.
    fn give(
        &mut self,
        id: ClientId,
        readers: &Readers,
        pack: &mut Pack,
    ) -> Result<(ClientState, GivenFiles), Hindrance> {
        if self.is_removing() {
            return Err(Hindrance::passing("a process that has left is being forgotten"));
        }
        let files = self.files().give(readers, pack)?;
        let channels: Vec<_> = self.channels().collect();
        let mut given = Vec::new();
        for index in channels {
            let Some(channel) = self.channel(index) else { continue };
            given.push((index, channel.give(pack)?));
        }
        let sockets = self.slots().filter(|(_, s)| s.generation != 0 || s.sends.is_some());
        let sockets = sockets.map(|(slot, socket)| {
            let &Socket { generation, channel, outgoing, sends, incoming } = socket;
            SocketState {
                slot,
                generation,
                channel,
                outgoing,
                sends,
                incoming: incoming.map(|known| known.1),
            }
        });
        let regions = (0..REGIONS_MAX).filter(|&at| self.region(at).is_some()).map(|at| at as u16);
        let state = ClientState {
            client: id,
            channels: given,
            regions: regions.collect(),
            sockets: sockets.collect(),
            files: FilesState::default(),
        };
        Ok((state, files))
    }

    /// Returns region and offset of bytes at an address in its send regions.
    fn place(&self, address: u64, len: u64) -> Option<(u16, u64)> {
        (0..REGIONS_MAX).find_map(|at| {
            let map = self.region(at)?;
            let base = map.address(0, map.len()).as_ptr() as u64;
            let offset = address.checked_sub(base)?;
            let is_within = offset.checked_add(len).is_some_and(|end| end <= map.len() as u64);
            is_within.then_some((at as u16, offset))
        })
    }
}
