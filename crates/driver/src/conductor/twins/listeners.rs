//! Listening sockets of the kernel, the clients that have registered them, and the twins that these may find there.
use super::twin::{is_unix, Place, Twin};
use super::Twins;
use crate::conductor::answer::{done, Answer};
use crate::conductor::client::Client;
use crate::conductor::names::canonical;
use crate::conductor::Conductor;
use crate::door::{Claim, Proved, ToDoor};
use crate::ids::ClientId;
use crate::memory::ClientMemory;
use crate::messages::DRIVER;
use crate::metrics::Metrics;
use pd_abi::{SocketId, TwinRequest};
use rustix::io::Errno;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Most listening sockets that one client may register.
const LISTENERS_PER_CLIENT_MAX: usize = 1024;

/// A listening socket of the kernel.
#[derive(Debug)]
pub(super) struct Registered {
    /// Address of the socket. Unspecified for a file, too.
    ip: IpAddr,
    cookie: u64,
    /// The user who made it; 0 for a file.
    user: u32,
    holders: Vec<ClientId>,
}

/// A client that has registered listening sockets.
#[derive(Debug)]
pub(super) struct Registrant {
    serial: u64,
    memory: Arc<ClientMemory>,
    listeners: usize,
    /// Number of twins that it may find when it accepts: see [`pd_abi::layout::header::CLAIMABLE`].
    claimable: u32,
}

impl Twins {
    /// Lets these clients find a new twin. Returns them with their serials.
    pub(super) fn tell_of_twin(&mut self, registrants: &[ClientId]) -> Vec<(ClientId, u64)> {
        let mut told = Vec::with_capacity(registrants.len());
        for client in registrants {
            if let Some(registrant) = self.registrants.get_mut(client) {
                registrant.may_claim(registrant.claimable + 1);
                told.push((*client, registrant.serial));
            }
        }
        told
    }

    /// Hides a twin from the clients that were told of it.
    pub(super) fn take_back_told(&mut self, twin: &mut Twin) {
        for (client, serial) in twin.take_told() {
            if let Some(registrant) =
                self.registrants.get_mut(&client).filter(|registrant| registrant.serial == serial)
            {
                registrant.may_claim(registrant.claimable - 1);
            }
        }
    }

    /// Forgets a client that has gone.
    pub fn leave(&mut self, client: ClientId) {
        if self.registrants.remove(&client).is_some() {
            self.listeners.retain(|_, list| {
                silence(list, client, None);
                !list.is_empty()
            });
        }
    }

    /// Returns the number of registrations of clients and of listening sockets.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn registrations(&self) -> usize {
        self.registrants.len() + self.listeners.values().map(Vec::len).sum::<usize>()
    }

    /// Ends the registration of a listening socket of AF_UNIX, whose file the client may not know any longer. Returns for how many
    /// fewer it has registered.
    fn leave_unix(&mut self, client: ClientId, cookie: u64) -> usize {
        let mut left = 0;
        self.listeners.retain(|place, list| {
            if matches!(place, Place::Unix(..)) {
                left += silence(list, client, Some(cookie));
            }
            !list.is_empty()
        });
        left
    }

    /// Returns the clients that have registered listening sockets at `place` that the kernel may choose for `ip`, of any user or of `user`. For a
    /// file `ip` is unspecified.
    pub(in crate::conductor) fn registrants_at(
        &self,
        place: Place,
        ip: IpAddr,
        user: Option<u32>,
    ) -> Vec<ClientId> {
        let ip = canonical(ip);
        let accepts = |listening: &&Registered| match canonical(listening.ip) {
            own if own.is_unspecified() => own.is_ipv6() || ip.is_ipv4(),
            own => own == ip,
        };
        let is_users = |listening: &&Registered| user.is_none_or(|user| user == listening.user);
        let list = self.listeners.get(&place).into_iter().flatten().filter(accepts).filter(is_users);
        let mut all: Vec<ClientId> = list.flat_map(|listening| listening.holders.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Ends the registrations of these listening sockets, or only for the one with this cookie. Returns for how many fewer it has registered.
fn silence(list: &mut Vec<Registered>, client: ClientId, cookie: Option<u64>) -> usize {
    let mut fewer = 0;
    for listening in list.iter_mut().filter(|l| cookie.is_none_or(|cookie| l.cookie == cookie)) {
        let before = listening.holders.len();
        listening.holders.retain(|&holder| holder != client);
        fewer += before - listening.holders.len();
    }
    list.retain(|listening| !listening.holders.is_empty());
    fewer
}

/// A listening socket, as another driver goes on with it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListeningState {
    place: Place,
    ip: IpAddr,
    cookie: u64,
    user: u32,
    holders: Vec<ClientId>,
}

impl Twins {
    /// Returns the listening sockets, for another driver.
    pub(super) fn give_listeners(&self) -> Vec<ListeningState> {
        let all = self.listeners.iter().flat_map(|(place, list)| list.iter().map(move |one| (*place, one)));
        all.map(|(place, Registered { ip, cookie, user, holders })| ListeningState {
            place,
            ip: *ip,
            cookie: *cookie,
            user: *user,
            holders: holders.clone(),
        })
        .collect()
    }
}

impl Conductor {
    /// Takes over the listening sockets that another driver has given. Clients may find the unclaimed twins, which are counted here and
    /// published by [`Twins::say_claimable`]. Returns whether clients can register the sockets.
    pub(super) fn resume_listeners(&mut self, given: Vec<ListeningState>) -> bool {
        for ListeningState { place, ip, cookie, user, holders } in given {
            for &id in &holders {
                let Some(client) = self.client(id) else { return false };
                let (serial, Some(memory)) = (client.serial, client.memory().cloned()) else { return false };
                let fresh = || Registrant { serial, memory, listeners: 0, claimable: 0 };
                let registrant = self.twins.registrants.entry(id).or_insert_with(fresh);
                registrant.listeners += 1;
                if registrant.listeners > LISTENERS_PER_CLIENT_MAX {
                    return false;
                }
                for index in self.twins.unclaimed.values().flatten() {
                    let twin = self.connections.get_mut(*index).and_then(|it| it.twin.as_mut());
                    if twin.is_some_and(|twin| twin.tell(place, (id, serial))) {
                        registrant.claimable += 1;
                    }
                }
            }
            self.twins.listeners.entry(place).or_default().push(Registered { ip, cookie, user, holders });
        }
        true
    }
}

impl Twins {
    /// Tells whether helpers prove that clients listen.
    pub(in crate::conductor) fn is_proving(&self) -> bool {
        self.proving > 0
    }

    /// Publishes to clients how many twins they may find.
    pub(in crate::conductor) fn say_claimable(&self) {
        self.registrants
            .values()
            .for_each(|registrant| registrant.memory.set_claimable(registrant.claimable));
    }
}

impl Registrant {
    fn may_claim(&mut self, twins: u32) {
        self.claimable = twins;
        self.memory.set_claimable(twins);
    }
}

impl Conductor {
    /// Begins to prove that a client listens. Returns an answer if there is nothing to prove.
    pub(super) fn twin_listen(
        &mut self,
        id: ClientId,
        channel: usize,
        asked: &TwinRequest,
    ) -> Option<Answer> {
        match self.claim_to_listen(id, channel, asked) {
            Ok(Some(claim)) => {
                self.twins.proving += 1;
                let payer = self.client(id).map_or(DRIVER, Client::payer);
                self.door.send(ToDoor::Prove { payer, claim });
                None
            }
            Ok(None) => Some(self.listens(id)),
            Err(errno) => Some(Err(errno)),
        }
    }

    /// Returns what is to be proved; none if the client has registered the socket already.
    fn claim_to_listen(
        &mut self,
        id: ClientId,
        channel: usize,
        asked: &TwinRequest,
    ) -> Result<Option<Box<Claim>>, Errno> {
        let local = asked.local.to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
        let namespace = self.namespace(id)?;
        if !local.ip().is_unspecified() && !self.names.holds(namespace, canonical(local.ip())) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let client = self.client(id).ok_or(Errno::BADF)?;
        let identity = &client.identity;
        let list = self.twins.listeners.get(&Place::Tcp(identity.namespace, local.port()));
        let is_it = |one: &&Registered| (one.ip, one.cookie) == (local.ip(), asked.cookie);
        if list.into_iter().flatten().find(is_it).is_some_and(|known| known.holders.contains(&id)) {
            return Ok(None);
        }
        let namespace = self.names.file(identity.namespace).ok_or(Errno::BADF)?;
        Ok(Some(Box::new(Claim {
            client: id,
            serial: client.serial,
            channel,
            asked: *asked,
            pid: identity.pid,
            uid: identity.uid,
            image: identity.image,
            pidfd: Arc::clone(&identity.pidfd),
            namespace: Arc::clone(namespace),
        })))
    }

    /// Registers a client's listening socket if a helper has proved that there is one and that the client holds it.
    pub(in crate::conductor) fn take_proof(&mut self, proved: Proved) {
        let Proved { claim, user } = proved;
        self.twins.proving -= 1;
        let (id, asked) = (claim.client, claim.asked);
        // Nothing ends the registrations of a client that is leaving.
        if !self.client(id).is_some_and(|client| client.serial == claim.serial && client.is_present()) {
            return;
        }
        let joined = user.inspect_err(|errno| self.note_unproved(id, &asked, *errno)).and_then(|user| {
            let local = asked.local.to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
            let place = Place::Tcp(self.namespace(id)?, local.port());
            self.join_listener(id, place, local.ip(), asked.cookie, user)?;
            self.listens(id)
        });
        self.answer((id, claim.channel), SocketId(0), asked.tag, joined);
        self.door.send(ToDoor::Done { client: id });
    }

    /// Returns the answer to a client that listens.
    fn listens(&self, id: ClientId) -> Answer {
        let namespace = self.namespace(id)?;
        Ok(done(SocketId(0)).with_number(self.names.is_in_a_network(namespace).into()))
    }

    fn note_unproved(&mut self, id: ClientId, asked: &TwinRequest, errno: Errno) {
        const UNPROVED: &str =
            "a process says that it listens where it does not: its connections stay on the kernel";
        Metrics::add(&self.metrics.listeners_refused, 1);
        if self.may_say(UNPROVED, id) {
            let pid = self.client(id).map_or(0, |client| client.identity.pid);
            let why = match errno {
                Errno::ADDRNOTAVAIL => "no listener of its network namespace has this address and cookie",
                Errno::ACCESS => "it does not hold the listener that has this address",
                _ => "the kernel cannot be asked",
            };
            tracing::warn!(pid, local = ?asked.local.to_socket_addr(), why, "{UNPROVED}");
        }
    }

    /// Tells whether the kernel brings connections to an address to another user's listener than this client's, which may not take them on
    /// the fabric, either. A client has listeners of its user, and those that it has proved to hold; root has any.
    pub(in crate::conductor) fn is_anothers(&mut self, id: ClientId, at: SocketAddr) -> bool {
        let Some(client) = self.client(id) else { return false };
        let (own, namespace) = (client.identity.uid, client.identity.namespace);
        if own == 0 || self.open_diag(id, namespace).is_err() {
            return false;
        }
        let user = match self.twins.kernel.listener(&*self.clock, namespace, at) {
            Ok(found) => found.map(|found| found.uid),
            // The kernel takes too long to say it.
            Err(Errno::NOBUFS) => return true,
            Err(_) => None,
        };
        let proved = |user| {
            let list = self.twins.listeners.get(&Place::Tcp(namespace, at.port()));
            list.into_iter().flatten().any(|one| one.user == user && one.holders.contains(&id))
        };
        user.is_some_and(|user| user != own && !proved(user))
    }

    pub(super) fn unlisten(&mut self, id: ClientId, asked: &TwinRequest) -> Answer {
        let fewer = if is_unix(asked) {
            self.twins.leave_unix(id, asked.cookie)
        } else {
            let local = asked.local.to_socket_addr().ok_or(Errno::AFNOSUPPORT)?;
            let place = Place::Tcp(self.namespace(id)?, local.port());
            let list = self.twins.listeners.get_mut(&place).ok_or(Errno::NOENT)?;
            let fewer = silence(list, id, Some(asked.cookie));
            if list.is_empty() {
                self.twins.listeners.remove(&place);
            }
            fewer
        };
        if fewer == 0 {
            return Err(Errno::NOENT);
        }
        if let Some(registrant) = self.twins.registrants.get_mut(&id) {
            registrant.listeners -= fewer;
        }
        Ok(done(SocketId(0)))
    }

    /// Registers a listening socket for a client. `user`: who made it.
    pub(in crate::conductor) fn join_listener(
        &mut self,
        id: ClientId,
        place: Place,
        ip: IpAddr,
        cookie: u64,
        user: u32,
    ) -> Answer {
        let is_it = |listening: &Registered| (listening.ip, listening.cookie) == (ip, cookie);
        let known = self.twins.listeners.get(&place).and_then(|list| list.iter().find(|one| is_it(one)));
        if known.is_none_or(|known| !known.holders.contains(&id)) {
            self.speak_for(id, place)?;
            let list = self.twins.listeners.entry(place).or_default();
            match list.iter_mut().find(|one| is_it(one)) {
                Some(known) => known.holders.push(id),
                None => list.push(Registered { ip, cookie, user, holders: vec![id] }),
            }
        }
        Ok(done(SocketId(0)))
    }

    /// Registers one more listening socket for a client. The client may find twins that were made towards it before.
    fn speak_for(&mut self, id: ClientId, place: Place) -> Result<(), Errno> {
        let client = self.client(id).ok_or(Errno::BADF)?;
        let (serial, memory) = (client.serial, client.memory().cloned().ok_or(Errno::BADF)?);
        let fresh = || Registrant { serial, memory, listeners: 0, claimable: 0 };
        let registrant = self.twins.registrants.entry(id).or_insert_with(fresh);
        if registrant.listeners == LISTENERS_PER_CLIENT_MAX {
            return Err(Errno::NOBUFS);
        }
        registrant.listeners += 1;
        let mut claimable = registrant.claimable;
        for (index, _) in self.twins.unclaimed_towards.get(&place).into_iter().flatten() {
            let Some(connection) = self.connections.get_mut(*index) else { continue };
            if connection.twin.as_mut().is_some_and(|twin| twin.tell(place, (id, serial))) {
                claimable += 1;
            }
        }
        registrant.may_claim(claimable);
        Ok(())
    }
}
