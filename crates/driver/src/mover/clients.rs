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

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.0.iter_mut().flatten()
    }

    #[inline]
    pub fn channel(&mut self, id: ClientId, channel: usize) -> Option<&mut Channel> {
        self.get_mut(id)?.channel(channel)
    }

    /// The socket of this name, if it is the present one of its slot.
    #[inline]
    pub fn socket(&self, id: ClientId, socket: SocketId) -> Option<Socket> {
        let known = self.get(id)?.sockets.get(Slot::of(socket).index()).copied();
        known.filter(|s| s.generation != 0 && s.generation == socket.generation())
    }

    /// What is known of a slot; made now unless the client is being removed.
    pub fn socket_mut(&mut self, id: ClientId, slot: Slot) -> Option<&mut Socket> {
        let client = self.get_mut(id)?;
        if client.sockets.len() <= slot.index() {
            if client.removing {
                return None; // it was done with before
            }
            client.sockets.resize(slot.index() + 1, Socket::default());
        }
        Some(&mut client.sockets[slot.index()])
    }

    /// Each, with its number.
    pub fn with_ids(&mut self) -> impl Iterator<Item = (ClientId, &mut Client)> {
        let places = self.0.iter_mut().enumerate();
        places.filter_map(|(at, client)| Some((ClientId::at(at), client.as_mut()?)))
    }

    /// Takes one out.
    pub fn take(&mut self, id: ClientId) -> Option<Client> {
        self.0.get_mut(id.index())?.take()
    }

    /// Who pays for what a client sends.
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

/// What a mover knows of a client's slot.
#[derive(Clone, Copy, Default)]
pub struct Socket {
    /// 0: none.
    pub generation: u16,
    pub channel: u8,
    pub outgoing: Option<FlowId>,
    /// The flow that has sends of this socket's, also after it was closed.
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

    /// Is another payer's from now on. Returns the former.
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

    /// Its files, and what pays for them.
    /// Has its memory from now on lie on this node, if it matters.
    pub fn set_near(&self, node: Option<u32>) {
        self.account.set_near(node);
    }

    pub fn files_and_account(&mut self) -> (&mut Files, &Arc<Account>) {
        (&mut self.files, &self.account)
    }

    /// Its files, and where it is told of them.
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

    /// A channel, and where its reader is told of it.
    #[inline]
    pub fn channel_and_memory(&mut self, index: usize) -> Option<(&mut Channel, &ClientMemory)> {
        Some((self.channels.get_mut(index)?.as_mut()?, &self.memory))
    }

    /// Numbers of its channels are below this.
    pub fn channels_end(&self) -> usize {
        self.channels.len()
    }

    /// Its channels, which it has no more.
    pub fn take_channels(&mut self) -> impl Iterator<Item = Channel> + '_ {
        self.channels.drain(..).flatten()
    }

    /// The same client as another mover knows it, without sockets and channels of its own.
    pub fn copy(&self, payer: PayerId) -> Self {
        Self { regions: self.regions.clone(), ..Self::new(payer, &self.account, &self.memory) }
    }

    /// Whether it may be known to several movers, or go to another: it lives, and passes no files.
    pub fn is_mobile(&self) -> bool {
        !self.removing && !self.cut_off && !self.files.has_socket()
    }

    /// Numbers of its channels.
    pub fn channels(&self) -> impl Iterator<Item = usize> + '_ {
        self.channels.iter().enumerate().filter_map(|(at, channel)| channel.as_ref().map(|_| at))
    }

    /// Takes a channel out.
    pub fn take_channel(&mut self, index: usize) -> Option<Channel> {
        self.channels.get_mut(index)?.take()
    }

    /// What is known of its slots.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, &Socket)> {
        self.sockets.iter().enumerate().map(|(at, socket)| (Slot::at(at), socket))
    }

    pub fn add_region(&mut self, index: usize, map: Arc<Mapping>) {
        put(&mut self.regions, index, map);
    }

    /// A region of whose spans it may send.
    #[inline]
    pub fn region(&self, index: usize) -> Option<&Arc<Mapping>> {
        self.regions.get(index)?.as_ref()
    }

    /// What is known of a slot.
    #[inline]
    pub fn slot(&self, slot: Slot) -> Option<&Socket> {
        self.sockets.get(slot.index())
    }

    /// It is to be forgotten as soon as nothing needs it.
    pub fn begin_removal(&mut self) {
        self.removing = true;
    }

    pub fn is_removing(&self) -> bool {
        self.removing
    }

    /// The last of the slots that are not done with.
    pub fn last_slot(&self) -> Option<&Socket> {
        self.sockets.last()
    }

    /// That one is done with.
    pub fn pop_slot(&mut self) {
        self.sockets.pop();
    }

    /// It has broken the protocol. Says whether that was known.
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
