//! The clients of a mover, with their channels, sockets, send regions and files.
use super::channel::Channel;
use super::files::Files;
use super::scheduler::{PayerId, NOBODY};
use crate::ids::{ClientId, FlowId, MoverId, Slot};
use crate::memory::{Account, ClientMemory};
use pd_abi::SocketId;
use pd_shm::Mapping;
use std::sync::Arc;

/// See the module.
#[derive(Default)]
pub struct Clients(Vec<Option<Client>>);

impl Clients {
    pub fn add(&mut self, id: ClientId, client: Client) {
        put(&mut self.0, id.index(), client);
    }

    pub fn remove(&mut self, id: ClientId) {
        if let Some(place) = self.0.get_mut(id.index()) {
            *place = None;
        }
    }

    #[inline]
    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.0.get(id.index())?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.0.get_mut(id.index())?.as_mut()
    }

    #[inline]
    pub fn channel(&mut self, id: ClientId, channel: usize) -> Option<&mut Channel> {
        self.get_mut(id)?.channel(channel)
    }

    /// Returns the socket of this name, if it is the present one of its slot.
    #[inline]
    pub fn socket(&self, id: ClientId, socket: SocketId) -> Option<Socket> {
        let known = self.get(id)?.sockets.get(Slot::of(socket).index()).copied();
        known.filter(|s| s.generation != 0 && s.generation == socket.generation())
    }

    /// Returns the state of a slot. Makes it if there is none, unless the client is being removed.
    pub fn socket_mut(&mut self, id: ClientId, slot: Slot) -> Option<&mut Socket> {
        let client = self.get_mut(id)?;
        if client.sockets.len() <= slot.index() {
            if client.removing {
                return None; // the slot was done with before
            }
            client.sockets.resize(slot.index() + 1, Socket::default());
        }
        Some(&mut client.sockets[slot.index()])
    }

    /// Iterates over all clients, with their numbers.
    pub fn with_ids(&mut self) -> impl Iterator<Item = (ClientId, &mut Client)> {
        let places = self.0.iter_mut().enumerate();
        places.filter_map(|(at, client)| Some((ClientId::at(at), client.as_mut()?)))
    }

    /// Takes a client out.
    pub fn take(&mut self, id: ClientId) -> Option<Client> {
        self.0.get_mut(id.index())?.take()
    }

    /// Returns the payer of a client's sends.
    #[inline]
    pub fn payer(&self, id: ClientId) -> PayerId {
        self.get(id).map_or(NOBODY, |client| client.payer)
    }
}

/// A client.
pub struct Client {
    payer: PayerId,
    account: Arc<Account>,
    memory: Arc<ClientMemory>,
    files: Files,
    channels: Vec<Option<Channel>>,
    regions: Vec<Option<Arc<Mapping>>>,
    sockets: Vec<Socket>,
    removing: bool,
    cut_off: bool,
}

/// State of a client's slot at a mover.
#[derive(Clone, Copy, Default)]
pub struct Socket {
    /// Generation of the socket; 0 if there is none.
    pub generation: u16,
    pub channel: u8,
    pub outgoing: Option<FlowId>,
    /// Flow with sends of the socket, also after the socket was closed.
    pub sends: Option<FlowId>,
    pub incoming: Option<(MoverId, FlowId)>,
}

impl Client {
    pub fn new(payer: PayerId, account: &Arc<Account>, memory: &Arc<ClientMemory>) -> Self {
        Self {
            payer,
            account: Arc::clone(account),
            memory: Arc::clone(memory),
            files: Files::default(),
            channels: Vec::new(),
            regions: Vec::new(),
            sockets: Vec::new(),
            removing: false,
            cut_off: false,
        }
    }

    #[inline]
    pub fn payer(&self) -> PayerId {
        self.payer
    }

    /// Changes the payer. Returns the previous one.
    pub fn replace_payer(&mut self, payer: PayerId) -> PayerId {
        std::mem::replace(&mut self.payer, payer)
    }

    #[inline]
    pub fn memory(&self) -> &Arc<ClientMemory> {
        &self.memory
    }

    pub fn files(&mut self) -> &mut Files {
        &mut self.files
    }

    /// Sets its files, which another driver has given.
    pub fn set_files(&mut self, files: Files) {
        self.files = files;
    }

    /// Places further memory of the client on this node, if nodes matter.
    pub fn set_near(&self, node: Option<u32>) {
        self.account.set_near(node);
    }

    /// Returns its files, and the account that pays for them.
    pub fn files_and_account(&mut self) -> (&mut Files, &Arc<Account>) {
        (&mut self.files, &self.account)
    }

    /// Returns its files, and the memory in which it is told of them.
    pub fn files_and_memory(&mut self) -> (&mut Files, &Arc<ClientMemory>) {
        (&mut self.files, &self.memory)
    }

    pub fn add_channel(&mut self, index: usize, channel: Channel) {
        put(&mut self.channels, index, channel);
    }

    #[inline]
    pub fn channel(&mut self, index: usize) -> Option<&mut Channel> {
        self.channels.get_mut(index)?.as_mut()
    }

    /// Returns a channel, and the memory in which its reader is told of it.
    #[inline]
    pub fn channel_and_memory(&mut self, index: usize) -> Option<(&mut Channel, &ClientMemory)> {
        Some((self.channels.get_mut(index)?.as_mut()?, &self.memory))
    }

    /// Returns a number above those of all its channels.
    pub fn channels_end(&self) -> usize {
        self.channels.len()
    }

    /// Takes all its channels out.
    pub fn take_channels(&mut self) -> impl Iterator<Item = Channel> + '_ {
        self.channels.drain(..).flatten()
    }

    /// Returns the client as another mover knows it, without sockets and channels.
    pub fn copy(&self, payer: PayerId) -> Self {
        Self { regions: self.regions.clone(), ..Self::new(payer, &self.account, &self.memory) }
    }

    /// Tells whether several movers may know the client, or another may take it: the client lives, and passes no files.
    pub fn is_mobile(&self) -> bool {
        !self.removing && !self.cut_off && !self.files.has_socket()
    }

    /// Iterates over the numbers of its channels.
    pub fn channels(&self) -> impl Iterator<Item = usize> + '_ {
        self.channels.iter().enumerate().filter_map(|(at, channel)| channel.as_ref().map(|_| at))
    }

    /// Takes a channel out.
    pub fn take_channel(&mut self, index: usize) -> Option<Channel> {
        self.channels.get_mut(index)?.take()
    }

    /// Iterates over its slots.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, &Socket)> {
        self.sockets.iter().enumerate().map(|(at, socket)| (Slot::at(at), socket))
    }

    pub fn add_region(&mut self, index: usize, map: Arc<Mapping>) {
        put(&mut self.regions, index, map);
    }

    /// Returns a send region.
    #[inline]
    pub fn region(&self, index: usize) -> Option<&Arc<Mapping>> {
        self.regions.get(index)?.as_ref()
    }

    /// Returns the state of a slot.
    #[inline]
    pub fn slot(&self, slot: Slot) -> Option<&Socket> {
        self.sockets.get(slot.index())
    }

    /// Marks the client as to be forgotten as soon as nothing needs it.
    pub fn begin_removal(&mut self) {
        self.removing = true;
    }

    pub fn is_removing(&self) -> bool {
        self.removing
    }

    /// Returns the last of the slots that are not done with.
    pub fn last_slot(&self) -> Option<&Socket> {
        self.sockets.last()
    }

    /// Drops the last slot, which is done with.
    pub fn pop_slot(&mut self) {
        self.sockets.pop();
    }

    /// Records that the client has broken the protocol. Returns whether that was known.
    pub fn cut_off(&mut self) -> bool {
        std::mem::replace(&mut self.cut_off, true)
    }
}

fn put<T>(list: &mut Vec<Option<T>>, index: usize, item: T) {
    if list.len() <= index {
        list.resize_with(index + 1, || None);
    }
    list[index] = Some(item);
}
