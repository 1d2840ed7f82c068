//! Clients as they come by the door: arrivals, memory, frames and departures.
use super::client::{Client, Phase};
use super::Conductor;
use crate::admin::Ask;
use crate::door::{Asked, FromDoor, ToDoor};
use crate::identity::Identity;
use crate::ids::ClientId;
use crate::memory::{ClientMemory, Exhausted, Lease, Region};
use crate::messages::{payer, NewChannel, ToMover, Violation, DRIVER};
use crate::metrics::Metrics;
use crate::refusal::{Refusal, Refused};
use crate::standing::Place;
use pd_abi::{Frame, FrameKind};
use pd_shm::ringer::WakeEnd;
use pd_shm::Mapping;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Conductor {
    pub(super) fn take_door(&mut self, message: FromDoor) {
        match message {
            FromDoor::Arrived { client, identity, place, namespace } => {
                self.arrived(client, *identity, place, namespace)
            }
            FromDoor::Welcomed { client, memory } => self.welcomed(client, memory),
            FromDoor::Attached { client } => {
                let Some(client) = self.present(client) else { return };
                client.attach();
                Metrics::add(&self.metrics.clients_attached, 1);
            }
            FromDoor::AddChannel(new, theirs) => self.add_channel(new, theirs),
            FromDoor::AddPipe { client, channel, pipe, theirs } => {
                self.add_wake_pipe(client, channel, pipe, theirs)
            }
            FromDoor::AddFileSocket { client, socket, theirs } => {
                self.add_file_socket(client, socket, theirs)
            }
            FromDoor::AddSendRegion { client, number, map } => self.add_send_region(client, number, &map),
            FromDoor::Frame { client, frame } => self.take_frame(client, &frame),
            FromDoor::ReceiveRegion { client, number, region } => {
                self.add_receive_region(client, number, region)
            }
            FromDoor::Emptied { client, number, region } => self.emptied(client, number, region),
            FromDoor::NoReceiveRegion { client: id, exhausted } => {
                if let Some(client) = self.client_mut(id) {
                    client.growth.refused();
                }
                self.warn_exhausted(id, &exhausted);
                self.reclaim();
                self.grown(id);
            }
            FromDoor::Refused { client, errno, exhausted } => self.note_refused(client, errno, exhausted),
            FromDoor::Addresses(reading) => self.learn_addresses(*reading),
            FromDoor::Proved(proved) => self.take_proof(*proved),
            FromDoor::Left { client } => self.disconnect(client, None),
            FromDoor::Broke { client, violation } => self.disconnect(client, Some(violation)),
            FromDoor::TurnedAway { refused } => {
                Metrics::add(&self.metrics.clients_cut_off, 1);
                if let Some(refused) = refused {
                    self.kernel.refuse(*refused, self.clock.now());
                }
            }
            FromDoor::Paused { error } => {
                Metrics::add(&self.metrics.accepts_paused, 1);
                const WAIT: &str =
                    "clients have to wait: raise the driver's limit on open files (LimitNOFILE)";
                if self.log.may_say((WAIT, DRIVER), self.clock.now()) {
                    tracing::warn!(%error, "{WAIT}");
                }
            }
            FromDoor::Asked { asked, reply } => match *asked {
                Asked::Register(registering) => {
                    self.marks.mark_others();
                    self.take_registration(registering, reply);
                }
                Asked::Apply(policy) => self.begin_apply(policy, Some(reply)),
                asked @ (Asked::AddPort { .. }
                | Asked::AddTap(_)
                | Asked::Show { .. }
                | Asked::Plain(Ask::PortRemove { .. } | Ask::Pipes | Ask::MayUse { .. })) => {
                    self.hear_of_pipes(asked, reply);
                }
                asked => self.answer_administrator(asked, reply),
            },
            FromDoor::WatchedEnded => {
                self.marks.mark_others();
                self.forget_registered();
            }
            FromDoor::TakeOver { successor, early } => {
                self.end_listings();
                self.successor = Some((successor, early));
            }
            FromDoor::Early { reply } => {
                // The asker may have gone.
                let _ = reply.send(self.early_rings());
            }
        }
    }

    /// Gives a client with its memory to its mover.
    fn welcomed(&mut self, id: ClientId, memory: Arc<ClientMemory>) {
        memory.set_cores_scarce(self.cores_scarce);
        let Some(client) = self.present(id) else { return };
        client.welcome(Arc::clone(&memory));
        let (mover, payer) = (client.mover, client.payer());
        let account = Arc::clone(&client.account);
        self.movers.send(mover, ToMover::AddClient { client: id, payer, account, memory });
    }

    /// Gives the driver's end of a wake pipe to the mover of a channel, and the other end to the client.
    fn add_wake_pipe(&mut self, id: ClientId, channel: usize, pipe: Arc<WakeEnd>, theirs: OwnedFd) {
        let Some(client) = self.present(id) else { return };
        let mover = client.mover_of(channel);
        self.movers.send(mover, ToMover::AddPipe { client: id, channel, pipe: Some(pipe) });
        let frame = Frame::new(FrameKind::WakePipe).with_id(channel as u32);
        self.tell_client(id, &frame, Some(theirs));
    }

    /// Gives the driver's end of a file socket to the client's mover, and the other end to the client.
    fn add_file_socket(&mut self, id: ClientId, socket: Box<(OwnedFd, Lease)>, theirs: OwnedFd) {
        if self.present(id).is_none() {
            return;
        }
        if !self.keep_together(id) {
            // The client reads its files itself.
            return self.refuse(id, Errno::AGAIN, "files are not read while a copy does not end");
        }
        let Some(client) = self.present(id) else { return };
        client.passes_files = true;
        let (mover, payer) = (client.mover, client.payer());
        self.movers.send(mover, ToMover::AddFileSocket { client: id, payer, socket: Some(socket) });
        self.tell_client(id, &Frame::new(FrameKind::FileSocket), Some(theirs));
    }

    /// Tells the movers of a client of a send region.
    fn add_send_region(&mut self, id: ClientId, number: u32, map: &Arc<Mapping>) {
        let Some(client) = self.present(id) else { return };
        let region = number as u16;
        for mover in client.tell_of_region(region) {
            let map = Arc::clone(map);
            self.movers.send(mover, ToMover::AddRegion { client: id, region, map });
        }
    }

    /// Takes a receive region into use, or has it dropped if its client has gone.
    fn add_receive_region(&mut self, id: ClientId, number: u32, region: Box<Region>) {
        let Some(client) = self.client_mut(id) else {
            return self.door.send(ToDoor::DropReceiveRegion { region });
        };
        client.growth.made();
        client.add_region(number, *region);
        self.grown(id);
    }

    /// Records that the door has refused a request of a client.
    fn note_refused(&mut self, client: ClientId, errno: Errno, exhausted: Option<Exhausted>) {
        tracing::trace!(%client, "refused");
        if let Some(exhausted) = exhausted {
            self.note_short(client, &exhausted);
            self.reclaim();
            self.note_cap_of(client, exhausted);
        }
        Metrics::add(&self.metrics.requests_refused, 1);
        self.note_not_attached(client, errno);
    }

    /// Records that a new client was refused resources without which it cannot be attached.
    fn note_not_attached(&mut self, id: ClientId, errno: Errno) {
        let newcomer = self.client(id).filter(|client| client.phase() == Phase::Arriving);
        let Some((pid, uid)) = newcomer.map(|client| (client.identity.pid, client.identity.uid)) else {
            return;
        };
        let why = Refusal::NoMemory.text().to_owned();
        let refusal = Some(Refusal::NoMemory);
        self.kernel.refuse(Refused { pid, uid, errno, why, refusal }, self.clock.now());
    }

    /// Returns a client that is not leaving.
    fn present(&mut self, id: ClientId) -> Option<&mut Client> {
        self.client_mut(id).filter(|client| client.is_present())
    }

    fn arrived(&mut self, id: ClientId, identity: Identity, place: Place, fd: OwnedFd) {
        self.tenants.look();
        let tenant = self.tenant_of(&identity);
        if let Err(refusal) = self.may_attach(&identity, place, tenant) {
            self.say_refused(refusal, &identity, tenant);
            return self.turn_away(id, &identity, refusal, Errno::ACCESS, refusal.text().to_owned());
        }
        let (account, lease) = match self.open_account(payer(tenant, identity.uid)) {
            Ok(opened) => opened,
            Err(exhausted) => {
                let (errno, why) = (exhausted.errno(), exhausted.to_string());
                return self.turn_away(id, &identity, Refusal::Cap, errno, why);
            }
        };
        let namespace = identity.namespace;
        let fd = Arc::new(fd);
        let is_unread = self.names.enter(namespace, &fd);
        self.enter_network(&identity, place, tenant);
        let home = match self.movers.len() {
            1 => Default::default(),
            _ => self.families.enter(identity.pid, &self.movers.working().collect::<Vec<_>>()),
        };
        self.serial += 1;
        let client = Client::new(self.serial, (identity, place), tenant, Arc::clone(&account), home);
        self.marks.mark_client(id);
        self.clients.put(id, client);
        self.resident_came(namespace, tenant);
        self.door.send(ToDoor::Admit { client: id, tenant, account, lease, unread: is_unread.then_some(fd) });
    }

    /// Tells the clients, and this process, whether cores are scarce.
    pub(super) fn note_cores(&mut self, scarce: bool) {
        self.cores_scarce = scarce;
        pd_shm::set_cores_scarce(scarce);
        self.clients
            .iter()
            .filter_map(|(_, client)| client.memory())
            .for_each(|memory| memory.set_cores_scarce(scarce));
    }

    fn add_channel(&mut self, new: Box<NewChannel>, theirs: OwnedFd) {
        let (id, channel) = (new.client, new.channel);
        let Some(client) = self.present(id) else { return };
        client.channels += 1;
        let mover = client.mover_of(channel);
        self.movers.send(mover, ToMover::AddChannel(Some(new)));
        self.tell_client(id, &Frame::new(FrameKind::Channel).with_id(channel as u32), Some(theirs));
    }

    fn take_frame(&mut self, id: ClientId, frame: &Frame) {
        if self.present(id).is_none() {
            return;
        }
        let checked = match frame.checked_kind() {
            Some(FrameKind::Twin) => self.take_twin_request(id, frame.id as usize, frame.twin()),
            Some(kind) => self.direct_frame(id, kind, frame),
            None => Err(Violation::Frame),
        };
        if let Err(violation) = checked {
            self.disconnect(id, Some(violation));
        }
    }

    pub(super) fn refuse(&mut self, id: ClientId, errno: Errno, reason: &str) {
        Metrics::add(&self.metrics.requests_refused, 1);
        let frame = Frame::new(FrameKind::Error).with_error(errno.raw_os_error() as u32, reason);
        self.tell_client(id, &frame, None);
    }

    /// Answers a client's frame.
    pub(super) fn tell_client(&self, client: ClientId, frame: &Frame, fd: Option<OwnedFd>) {
        self.door.send(ToDoor::Answer { client, frame: Box::new(*frame), fd });
    }
}
