//! Commands of the conductor to the door.
use super::helpers::{Job, NOBODY};
use super::{token, Door, FromDoor, ToDoor, TOKEN_WATCHED};
use crate::calls::{may, Call};
use crate::ids::{ClientId, TenantId};
use crate::memory::{Account, Exhausted, Lease, Lent, Region};
use crate::messages::DRIVER;
use crate::pipes::ToNic;
use pd_abi::limits::REGIONS_MAX;
use rustix::event::epoll;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Door {
    /// Carries out commands. Returns whether there were any.
    pub fn take_commands(&mut self) -> bool {
        let mut commands = std::mem::take(&mut self.commands);
        self.inbox.drain(&mut commands);
        let worked = !commands.is_empty();
        commands.drain(..).for_each(|command| self.apply_command(command));
        self.commands = commands;
        worked
    }

    fn apply_command(&mut self, command: ToDoor) {
        match command {
            ToDoor::Admit { client, tenant, account, lease, unread } => {
                self.admit(client, tenant, account, lease, unread);
            }
            ToDoor::TurnAway { client, errno, why } => self.send_away(client, errno, &why),
            ToDoor::SetTenant { client, tenant } => self.set_tenant(client, tenant),
            ToDoor::Answer { client, frame, fd } => self.answer(client, *frame, fd.into_iter().collect()),
            ToDoor::Done { client } => self.answered(client),
            ToDoor::CutOff { client, violation } => self.cut_off(client, violation),
            ToDoor::Forget { client, regions } => self.forget(client, regions),
            ToDoor::MakeReceiveRegion { client, lease, ring_bytes } => {
                self.make_receive_region(client, lease, ring_bytes);
            }
            ToDoor::EmptyReceiveRegion { client, number, region } => {
                self.give_region_job(client, region, |region| Job::Empty(number, region));
            }
            ToDoor::FillReceiveRegion { client, number, region } => {
                self.give_region_job(client, region, |region| Job::Fill(number, region));
            }
            ToDoor::DropReceiveRegion { region } => {
                self.helpers.give(DRIVER, NOBODY, Job::Drop(vec![*region]));
            }
            ToDoor::ReadAddresses { payer, id, namespace } => {
                self.helpers.give(payer, NOBODY, Job::Addresses(payer, id, namespace));
            }
            ToDoor::Prove { payer, claim } => self.helpers.give(payer, NOBODY, Job::Prove(claim)),
            ToDoor::Watch { pidfd } => self.watch_process(pidfd),
            ToDoor::PipeOpened { client, serial, number, opened } => {
                self.pipe_opened(client, serial, number, opened);
            }
            ToDoor::PipeStarted { client, serial, number, started } => {
                self.pipe_started(client, serial, number, started);
            }
            ToDoor::PipePeer { client, serial, peer } => self.pipe_peer(client, serial, peer),
            ToDoor::PipesClosed { payer, memory } => self.pipes_closed(payer, memory),
            ToDoor::Made { client, serial, made } => self.made(client, serial, made),
            ToDoor::Lend(loan) => self.loan = Some(loan),
        }
    }

    /// Admits a guest, and answers it once the addresses of its namespace are known: `unread` if they are not.
    fn admit(
        &mut self,
        client: ClientId,
        tenant: TenantId,
        account: Arc<Account>,
        lease: Lease,
        unread: Option<Arc<OwnedFd>>,
    ) {
        let Some(guest) = self.guests.get(client) else { return };
        guest.admit(tenant, account, lease);
        let (payer, whose) = (guest.payer(), (client, guest.serial));
        match unread {
            Some(namespace) => {
                let job = Job::Addresses(payer, guest.namespace, namespace);
                self.helpers.give(payer, whose, job);
            }
            None => self.answered(client),
        }
    }

    fn send_away(&mut self, client: ClientId, errno: Errno, why: &str) {
        if let Some(socket) = self.guests.here(client).map(|guest| Arc::clone(&guest.socket)) {
            self.say_refused(&socket, errno, why);
        }
        self.close(client);
        self.guests.forget(client);
    }

    fn set_tenant(&mut self, client: ClientId, tenant: TenantId) {
        if let Some(guest) = self.guests.get(client) {
            let left = guest.payer();
            guest.set_tenant(tenant);
            let payer = guest.payer();
            self.pipes.send(ToNic::SetPayer { client, left, payer });
        }
    }

    /// Forgets a guest that the conductor has ended, and lets go of its memory and of `regions`.
    fn forget(&mut self, client: ClientId, mut regions: Vec<Region>) {
        self.close(client);
        let mut payer = DRIVER;
        if let Some(mut guest) = self.guests.forget(client) {
            payer = guest.payer();
            if let Some(lines) = guest.memory.take().filter(|lines| !lines.is_let_go()) {
                self.helpers.hold_lent(vec![lines]);
            }
            regions.extend(guest.into_regions());
        }
        if !regions.is_empty() {
            self.helpers.give(payer, NOBODY, Job::Drop(regions));
        }
    }

    fn make_receive_region(&mut self, client: ClientId, lease: Lease, ring_bytes: u64) {
        let Some(guest) = self.guests.here(client) else { return };
        if guest.regions as usize >= REGIONS_MAX {
            let exhausted = Exhausted::Memory(Errno::NOSPC);
            self.conductor.send(FromDoor::NoReceiveRegion { client, exhausted });
        } else {
            let (payer, whose) = (guest.payer(), (client, guest.serial));
            self.helpers.give(payer, whose, Job::ReceiveRegion(lease, ring_bytes));
        }
    }

    /// Watches a process, the end of which the conductor waits for.
    fn watch_process(&mut self, pidfd: Arc<OwnedFd>) {
        let token = token(TOKEN_WATCHED, ClientId::default());
        let added =
            may(Call::Watch).and_then(|()| epoll::add(&self.epoll, &*pidfd, token, epoll::EventFlags::IN));
        match added {
            Ok(()) => self.watched.push(pidfd),
            Err(error) => tracing::error!(%error, "cannot watch a container"),
        }
    }
}
