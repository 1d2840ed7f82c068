//! Listening sockets of the kernel, the clients that speak for them, and what these may find there.
use super::{Twin, Twins};
use crate::conductor::names::canonical;
use crate::conductor::sockets::{done, Answer};
use crate::conductor::Conductor;
use crate::identity::NamespaceId;
use crate::memory::ClientMemory;
use crate::messages::ClientId;
use pd_abi::{SocketId, TwinRequest};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Listening sockets that one client may speak for.
const LISTENERS_PER_CLIENT_MAX: usize = 1024;

/// A listening socket of the kernel.
#[derive(Debug)]
pub(in crate::conductor) struct Listening {
    pub(in crate::conductor) ip: IpAddr,
    pub(in crate::conductor) cookie: u64,
    pub(in crate::conductor) holders: Vec<ClientId>,
}

/// A client that speaks for listening sockets.
#[derive(Debug)]
pub(super) struct Speaker {
    serial: u64,
    memory: Arc<ClientMemory>,
    listeners: usize,
    /// Twins that it may find when it accepts: see [`pd_abi::layout::header::CLAIMABLE`].
    claimable: u32,
}

/// What a listening socket is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::conductor) enum Place {
    /// Namespace and port.
    Tcp(NamespaceId, u16),
    /// Device and inode.
    Unix(u64, u64),
}

impl Twins {
    pub(in crate::conductor) fn speaks_for_fewer(&mut self, client: ClientId, fewer: usize) {
        if let Some(speaker) = self.speakers.get_mut(&client) {
            speaker.listeners -= fewer;
        }
    }

    /// A twin was made that these may find. Returns who they are.
    pub(super) fn tell_of_twin(&mut self, speakers: &[ClientId]) -> Vec<(ClientId, u64)> {
        let mut told = Vec::with_capacity(speakers.len());
        for client in speakers {
            if let Some(speaker) = self.speakers.get_mut(client) {
                speaker.may_claim(speaker.claimable + 1);
                told.push((*client, speaker.serial));
            }
        }
        told
    }

    /// Who was told of a twin may find it no more.
    pub(super) fn take_back_told(&mut self, twin: &mut Twin) {
        for (client, serial) in std::mem::take(&mut twin.told) {
            if let Some(speaker) = self.speakers.get_mut(&client).filter(|speaker| speaker.serial == serial) {
                speaker.may_claim(speaker.claimable - 1);
            }
        }
    }

    /// A client has gone.
    pub fn leave(&mut self, client: ClientId) {
        if self.speakers.remove(&client).is_none() {
            return;
        }
        self.unix.leave(client, None);
        self.listeners.retain(|_, list| {
            list.iter_mut().for_each(|listening| listening.holders.retain(|&holder| holder != client));
            list.retain(|listening| !listening.holders.is_empty());
            !list.is_empty()
        });
    }

    /// Who speaks for listening sockets that the kernel may choose for `to`.
    pub(super) fn speakers_at(&self, namespace: NamespaceId, to: SocketAddr) -> Vec<ClientId> {
        let ip = canonical(to.ip());
        let accepts = |listening: &&Listening| match canonical(listening.ip) {
            own if own.is_unspecified() => own.is_ipv6() || ip.is_ipv4(),
            own => own == ip,
        };
        let list = self.listeners.get(&(namespace, to.port()));
        all_speakers(list.into_iter().flatten().filter(accepts))
    }
}

/// Each of those who speak for some of these, once.
pub(in crate::conductor) fn all_speakers<'a>(
    listening: impl Iterator<Item = &'a Listening>,
) -> Vec<ClientId> {
    let mut all: Vec<ClientId> = listening.flat_map(|listening| listening.holders.iter().copied()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

impl Speaker {
    fn may_claim(&mut self, twins: u32) {
        self.claimable = twins;
        self.memory.set_claimable(twins);
    }
}

impl Conductor {
    pub(super) fn twin_listen(&mut self, id: ClientId, asked: &TwinRequest) -> Answer {
        let local = asked.local.to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
        let (namespace, now) = (self.namespace(id)?, self.clock.now());
        if !local.ip().is_unspecified() && !self.names.holds(namespace, canonical(local.ip()), now) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let list = self.twins.listeners.entry((namespace, local.port())).or_default();
        let known = list.iter().position(|l| (l.ip, l.cookie) == (local.ip(), asked.cookie));
        if known.is_some_and(|at| list[at].holders.contains(&id)) {
            return Ok(done(SocketId(0)));
        }
        self.speak_for(id, Place::Tcp(namespace, local.port()))?;
        let list = self.twins.listeners.entry((namespace, local.port())).or_default();
        match known {
            Some(at) => list[at].holders.push(id),
            None => list.push(Listening { ip: local.ip(), cookie: asked.cookie, holders: vec![id] }),
        }
        Ok(done(SocketId(0)))
    }

    pub(super) fn twin_unlisten(&mut self, id: ClientId, asked: &TwinRequest) -> Answer {
        let local = asked.local.to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
        let at = (self.namespace(id)?, local.port());
        let list = self.twins.listeners.get_mut(&at).ok_or(Errno::NOENT)?;
        let mut left = 0;
        for listening in list.iter_mut().filter(|listening| listening.cookie == asked.cookie) {
            let before = listening.holders.len();
            listening.holders.retain(|&holder| holder != id);
            left += before - listening.holders.len();
        }
        list.retain(|listening| !listening.holders.is_empty());
        if list.is_empty() {
            self.twins.listeners.remove(&at);
        }
        self.twins.speaks_for_fewer(id, left);
        Ok(done(SocketId(0)))
    }

    /// A client speaks for one more listening socket, and may find what was made towards it before.
    pub(in crate::conductor) fn speak_for(&mut self, id: ClientId, place: Place) -> Result<(), Errno> {
        let client = self.client(id).ok_or(Errno::BADF)?;
        let (serial, memory) = (client.serial, client.memory.clone().ok_or(Errno::BADF)?);
        let fresh = || Speaker { serial, memory, listeners: 0, claimable: 0 };
        let speaker = self.twins.speakers.entry(id).or_insert_with(fresh);
        if speaker.listeners == LISTENERS_PER_CLIENT_MAX {
            return Err(Errno::NOBUFS);
        }
        speaker.listeners += 1;
        let mut claimable = speaker.claimable;
        for index in self.twins.unclaimed.values().flatten() {
            let Some(Some(connection)) = self.connections.get_mut(*index as usize) else { continue };
            let here = connection.twin.as_mut().filter(|twin| twin.place == place);
            if let Some(twin) = here.filter(|twin| !twin.told.contains(&(id, serial))) {
                twin.told.push((id, serial));
                claimable += 1;
            }
        }
        speaker.may_claim(claimable);
        Ok(())
    }
}
