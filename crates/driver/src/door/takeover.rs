//! State that the door gives to another driver, and goes on with in its place.
use super::guest::{GuestPipe, Phase, Waits};
use super::pipes::{pipe_amounts, PIPES_MAX};
use super::{token, Door, TOKEN_PIDFD, TOKEN_SOCKET};
use crate::ids::ClientId;
use crate::memory::{Amounts, Cold, Lease, Region, RegionState};
use crate::messages::payer;
use crate::peer;
use crate::pipes::{PipeCame, PipeMemory, PipesCame};
use crate::takeover::arrivals::Arrivals;
use crate::takeover::pack::{Fd, Hindrance, Pack, Unpacked, Wrong};
use pd_abi::limits::REGIONS_MAX;
use pd_pipe::Shape;
use pd_shm::Mapping;
use rustix::event::epoll;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

/// State of the door.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoorState {
    serial: u64,
    guests: Vec<GuestState>,
    /// Processes that were accepted and not looked at yet.
    knocking: Vec<Fd>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestState {
    id: ClientId,
    serial: u64,
    socket: Fd,
    regions: u32,
    has_file_socket: bool,
    /// Send regions, and whether they are sealed.
    send_regions: Vec<(RegionState, bool)>,
    /// Number of the last pipe.
    pipes_made: u32,
    pipes: Vec<PipeFiles>,
}

/// Memory of a pipe, which may have ended.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PipeFiles {
    number: u32,
    shape: Shape,
    files: [Fd; 3],
    is_mapped: bool,
    has_wake_fd: bool,
}

impl DoorState {
    /// Forgets processes that were accepted and not looked at. After a crash they may have attached long since.
    pub fn forget_knocking(&mut self) {
        self.knocking.clear();
    }
}

/// Sealed send regions of clients, by number.
pub type Mapped = HashMap<ClientId, HashMap<u16, Arc<Mapping>>>;

impl Door {
    /// Returns the state that another driver goes on with. The door goes on itself if this fails, or no driver takes the state.
    ///
    /// # Errors
    /// The hindrance.
    pub fn give(&self, pack: &mut Pack) -> Result<DoorState, Hindrance> {
        if !self.helpers.are_idle() || self.inbox.is_filled() {
            return Err(Hindrance::passing("memory is being made for a client"));
        }
        let mut guests = Vec::new();
        for (id, guest) in self.guests.iter() {
            let is_quiet = matches!(guest.waits, Waits::Message | Waits::Turn) && !guest.has_held();
            let why = match guest.phase {
                Phase::Attached if is_quiet => "",
                Phase::Attached => {
                    "it does not read what it is told on its attach socket, or waits for an answer"
                }
                Phase::Leaving => "it has left, and is being forgotten",
                _ => "it is attaching",
            };
            if !why.is_empty() {
                return Err(Hindrance::passing(format!("client {id}: {why}")));
            }
            let mut send_regions = Vec::with_capacity(guest.send_regions.len());
            for (&number, (region, is_sealed)) in &guest.send_regions {
                send_regions.push((RegionState::of(number, region, pack)?, *is_sealed));
            }
            let mut pipes = Vec::with_capacity(guest.pipes.len());
            for (&number, GuestPipe { memory, is_mapped, has_wake_fd }) in &guest.pipes {
                let [status, control, ring] = memory.files().all();
                let files = [pack.add(status)?, pack.add(control)?, pack.add(ring)?];
                let (is_mapped, has_wake_fd) = (*is_mapped, *has_wake_fd);
                pipes.push(PipeFiles {
                    number,
                    shape: memory.files().shape(),
                    files,
                    is_mapped,
                    has_wake_fd,
                });
            }
            let pipes_made = guest.pipes_made();
            let socket = pack.add(&*guest.socket)?;
            let (serial, regions, has_file_socket) = (guest.serial, guest.regions, guest.has_file_socket);
            guests.push(GuestState {
                id,
                serial,
                socket,
                regions,
                has_file_socket,
                send_regions,
                pipes_made,
                pipes,
            });
        }
        let knocking = self.newcomers.waiting().map(|socket| pack.add(socket)).collect::<Result<_, _>>()?;
        Ok(DoorState { serial: self.guests.last_serial(), guests, knocking })
    }

    /// Takes over state that another driver has given. `came` are its clients. Returns regions and pipes of clients.
    ///
    /// # Errors
    /// The fault in it.
    pub fn take(
        &mut self,
        state: DoorState,
        mut came: Arrivals,
        fds: &mut Unpacked,
    ) -> Result<(Mapped, PipesCame), Wrong> {
        let DoorState { serial, guests, knocking } = state;
        Wrong::unless(serial <= u64::MAX / 2, || "serials of the door".to_owned())?;
        self.guests.number_from(serial);
        let (mut mapped, mut came_pipes) = (Mapped::with_capacity(guests.len()), PipesCame::new());
        for state in guests {
            let GuestState { id, serial: own, socket, regions, has_file_socket, send_regions, .. } = state;
            let (pipes_made, pipes) = (state.pipes_made, state.pipes);
            let wrong = |what: &str| Wrong::of(format!("client {id}: {what}"));
            let client = came.remove(&id).ok_or_else(|| wrong("it is at the door alone"))?;
            if own > serial || regions as usize > REGIONS_MAX {
                return Err(wrong("its numbers"));
            }
            let socket = fds.take(socket)?;
            if peer::credentials(&socket) != Ok((client.pid, client.uid)) {
                return Err(wrong("its attach socket is another process's"));
            }
            let pays = |amounts: Amounts| -> Result<Lease, Wrong> {
                client.account.lease(amounts).map_err(|exhausted| wrong(&exhausted.to_string()))
            };
            let channels = std::iter::repeat_n(Amounts::CHANNEL, client.channels);
            let leases = channels.map(pays).collect::<Result<Vec<_>, _>>()?;
            let (mut own_regions, mut sealed) = (Vec::new(), HashMap::new());
            for (region, is_sealed) in send_regions {
                let number = region.number;
                let resume = |fd, lease, pages| Region::resume_send(fd, lease, pages, is_sealed);
                let region = region.take(&client.account, fds, resume)?;
                if number >= regions {
                    return Err(wrong("a region without a number"));
                }
                if is_sealed {
                    sealed.insert(number as u16, Arc::clone(&region.map));
                }
                own_regions.push((number, (region, is_sealed)));
            }
            let payer = payer(client.tenant, client.uid);
            let mut own_pipes = HashMap::with_capacity(pipes.len());
            Wrong::unless(pipes.len() <= PIPES_MAX, || format!("client {id}: its pipes"))?;
            for pipe in pipes {
                let PipeFiles { number, shape, files, is_mapped, has_wake_fd } = pipe;
                let lease = pays(pipe_amounts(shape))?;
                let ringer = client.account.ringer();
                let [status, control, ring] = files;
                let files = [fds.take(status)?, fds.take(control)?, fds.take(ring)?];
                let (memory, resumed) = PipeMemory::resume(lease, shape, files, is_mapped)
                    .map_err(|errno| wrong(&format!("pipe {number}: {errno}")))?;
                let memory = Arc::new(memory);
                let previous = own_pipes.insert(number, GuestPipe { memory, is_mapped, has_wake_fd });
                if number == 0 || number > pipes_made || previous.is_some() {
                    return Err(wrong("the number of a pipe"));
                }
                came_pipes.insert((id, number), PipeCame { serial: own, payer, ringer, resumed });
            }
            if !self.guests.resume(id, own, socket, client, leases) {
                return Err(wrong("it is there twice"));
            }
            if let Some(guest) = self.guests.get(id) {
                (guest.regions, guest.has_file_socket) = (regions, has_file_socket);
                guest.send_regions.extend(own_regions);
                guest.resume_pipes(own_pipes, pipes_made);
            }
            mapped.insert(id, sealed);
        }
        Wrong::unless(came.is_empty(), || "a client has no attach socket".to_owned())?;
        let now = self.clock.now();
        for socket in knocking {
            let socket = fds.take(socket)?;
            self.knock(socket, now);
        }
        Ok((mapped, came_pipes))
    }

    /// Returns the send regions, in the state in which they came.
    pub fn cold_regions(&mut self) -> impl Iterator<Item = Cold> + '_ {
        self.guests
            .iter_mut()
            .flat_map(|guest| guest.send_regions.values_mut().map(|(region, _)| region.make_cold()))
    }

    /// Begins to serve clients, with all state there.
    pub fn begin(&mut self) {
        let ids: Vec<_> = self.guests.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Some(guest) = self.guests.here(id) else { continue };
            let watched =
                epoll::add(&self.epoll, &*guest.socket, token(TOKEN_SOCKET, id), epoll::EventFlags::empty())
                    .and_then(|()| {
                        epoll::add(&self.epoll, &*guest.pidfd, token(TOKEN_PIDFD, id), epoll::EventFlags::IN)
                    });
            match watched {
                Ok(()) => self.await_message(id),
                Err(error) => {
                    tracing::warn!(%error, "cannot watch a client");
                    self.left(id);
                }
            }
        }
    }
}
