//! Pipes of guests: requests, and the memory, which stays here until no program holds it.
use super::guest::{Guest, GuestPipe};
use super::helpers::{Job, NOBODY};
use super::Door;
use crate::calls::{may, Call};
use crate::ids::ClientId;
use crate::memory::{Amounts, Lent};
use crate::messages::{Payer, Violation};
use crate::pipes::{NewPipe, Opening, PipeMemory, PipeName, ToNic};
use pd_abi::pipe::{peer_has, PipeDirection, PipeUnit};
use pd_abi::{Frame, FrameKind};
use pd_pipe::{Direction, Eventfds, Files, Offer, PeerOffer, Shape, Unit};
use pd_shm::ringer::WakeEnd;
use pd_shm::wake;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Most pipes of one client.
pub(super) const PIPES_MAX: usize = 256;

/// Returns what a client pays for a pipe.
pub(super) fn pipe_amounts(shape: Shape) -> Amounts {
    // A pair for wake-ups and an eventfd take one more descriptor each.
    let descriptors = Files::DESCRIPTORS + 2;
    Amounts { memory_bytes: shape.memory_bytes(), descriptors, ..Amounts::default() }
}

impl Door {
    /// Has a helper make the memory of a pipe.
    pub(super) fn add_packet_pipe(&mut self, id: ClientId, frame: &Frame) -> Result<(), Violation> {
        let request =
            frame.pipe_request().filter(|request| request.names().is_some()).ok_or(Violation::Frame)?;
        if !self.pipes.is_started() {
            self.refuse(id, Errno::NOENT, "the driver has no ports: pd port add makes one");
            return Ok(());
        }
        let direction = match request.direction {
            PipeDirection::Receive => Direction::Receive,
            PipeDirection::Send => Direction::Send,
            PipeDirection::Forward => Direction::Forward,
        };
        let unit = if request.unit == PipeUnit::Frames { Unit::Frames } else { Unit::Bytes };
        let Ok(shape) = Shape::new(direction, unit, frame.bytes) else {
            self.refuse(id, Errno::INVAL, "a pipe's ring is a power of two from 32 KiB to 64 MiB");
            return Ok(());
        };
        let guest = self.guests.here(id).ok_or(Violation::Frame)?;
        if guest.pipes.len() >= PIPES_MAX {
            self.refuse(id, Errno::MFILE, "a client has 256 pipes at most");
            return Ok(());
        }
        let (payer, whose) = (guest.payer(), (id, guest.serial));
        let Some(account) = guest.account() else { return Ok(()) };
        match account.lease(pipe_amounts(shape)) {
            Ok(lease) => self.helpers.give(payer, whose, Job::Pipe(Box::new((lease, shape, request)))),
            Err(exhausted) => self.refuse_exhausted(id, exhausted),
        }
        Ok(())
    }

    /// Has the agent open a pipe that is made.
    pub(super) fn pipe_made(&mut self, id: ClientId, new: NewPipe) {
        let NewPipe { request, made, offer, memory } = new;
        let Some(guest) = self.guests.here(id) else { return };
        let number = guest.number_pipe();
        guest
            .pipes
            .insert(number, GuestPipe { memory: Arc::new(memory), is_mapped: false, has_wake_fd: false });
        let (client, serial, payer) = (id, guest.serial, guest.payer());
        let opening = Opening { client, serial, payer, number, request, made, offer };
        self.pipes.send(ToNic::Open(Box::new(opening)));
    }

    /// Answers a guest when the agent has opened a pipe, or refused to.
    pub(super) fn pipe_opened(
        &mut self,
        id: ClientId,
        serial: u64,
        number: u32,
        opened: Result<Box<Offer>, (Errno, String)>,
    ) {
        let Some(guest) = self.guests.here(id).filter(|guest| guest.serial == serial) else { return };
        match opened {
            Ok(offer) => {
                let frame =
                    Frame::new(FrameKind::Pipe).with_id(number).with_bytes(offer.shape.ring_bytes(), 0);
                self.answer(id, frame, vec![offer.status, offer.control, offer.ring, offer.doorbell]);
            }
            Err((errno, why)) => {
                let memory = guest.pipes.remove(&number).map(|pipe| pipe.memory);
                self.let_go(id, memory);
                self.refuse(id, errno, &why);
            }
        }
    }

    fn pipe(&mut self, id: ClientId, number: u32) -> Result<(&mut GuestPipe, (ClientId, u64)), Violation> {
        let guest = self.guests.here(id).ok_or(Violation::Frame)?;
        let whose = (id, guest.serial);
        Ok((guest.pipes.get_mut(&number).ok_or(Violation::Frame)?, whose))
    }

    /// Has a helper seal the memory that the guest has mapped.
    pub(super) fn seal_packet_pipe(&mut self, id: ClientId, number: u32) -> Result<(), Violation> {
        let (pipe, whose) = self.pipe(id, number)?;
        if std::mem::replace(&mut pipe.is_mapped, true) {
            return Err(Violation::Frame);
        }
        let job = Job::SealPipe(number, Arc::clone(&pipe.memory));
        if let Some(payer) = self.guests.here(id).map(|guest| guest.payer()) {
            self.helpers.give(payer, whose, job);
        }
        Ok(())
    }

    /// Has the agent start a pipe if its memory is sealed and whole. Drops it if the guest has taken pages away.
    pub(super) fn pipe_sealed(&mut self, id: ClientId, number: u32, sealed: Result<(), pd_pipe::Violation>) {
        let Some(serial) = self.guests.here(id).map(|guest| guest.serial) else { return };
        match sealed {
            Ok(()) => self.pipes.send(ToNic::Start { client: id, serial, number }),
            Err(violation) => {
                self.pipe_started(id, serial, number, Err((Errno::PROTO, violation.to_string())));
            }
        }
    }

    /// Answers a guest when the agent has started a pipe. Drops the pipe if it cannot.
    pub(super) fn pipe_started(
        &mut self,
        id: ClientId,
        serial: u64,
        number: u32,
        started: Result<(), (Errno, String)>,
    ) {
        if self.guests.here(id).is_none_or(|guest| guest.serial != serial) {
            return;
        }
        match started {
            Ok(()) => self.answer(id, Frame::new(FrameKind::Ready).with_id(number), Vec::new()),
            Err((errno, why)) => {
                self.drop_pipe(id, number);
                self.refuse(id, errno, &why);
            }
        }
    }

    /// Gives a guest one end of a pair for its waits.
    pub(super) fn add_wake_fd(&mut self, id: ClientId, number: u32) -> Result<(), Violation> {
        let (pipe, _) = self.pipe(id, number)?;
        if std::mem::replace(&mut pipe.has_wake_fd, true) {
            self.refuse(id, Errno::EXIST, "a pipe has one descriptor for waits");
            return Ok(());
        }
        match may(Call::SocketPair).and_then(|()| wake::pair()) {
            Ok((theirs, wake_fd)) => {
                let ringer = self.guests.here(id).and_then(|guest| guest.account()?.ringer());
                let wake_fd = WakeEnd::new(wake_fd, ringer);
                self.pipes.send(ToNic::WakeFd { client: id, number, wake_fd });
                self.answer(id, Frame::new(FrameKind::PipeWakeFd).with_id(number), vec![theirs]);
            }
            Err(errno) => {
                let (pipe, _) = self.pipe(id, number)?;
                pipe.has_wake_fd = false;
                self.refuse(id, errno, "no descriptors left in the driver");
            }
        }
        Ok(())
    }

    /// Asks the agent for the pipe at the other end of a link.
    pub(super) fn find_pipe_peer(&mut self, id: ClientId, number: u32) -> Result<(), Violation> {
        let (_, (client, serial)) = self.pipe(id, number)?;
        self.pipes.send(ToNic::Peer { client, serial, number });
        Ok(())
    }

    /// Passes the memory of that pipe, if its guest has the same payer.
    pub(super) fn pipe_peer(&mut self, id: ClientId, serial: u64, peer: Option<(PipeName, Eventfds)>) {
        let Some(payer) =
            self.guests.here(id).filter(|guest| guest.serial == serial).map(|guest| guest.payer())
        else {
            return;
        };
        let memory = peer.and_then(|((client, serial, number), eventfds)| {
            let guest = self.guests.here(client)?;
            let is_same = guest.serial == serial && guest.payer() == payer;
            Some((Arc::clone(&guest.pipes.get(&number).filter(|_| is_same)?.memory), eventfds))
        });
        match memory.ok_or(Errno::AGAIN).and_then(|(memory, eventfds)| memory.peer(eventfds)) {
            Ok(PeerOffer { ring_bytes, control, ring, eventfds: Eventfds { own, peer } }) => {
                let bit = |fd: &Option<OwnedFd>, bit| if fd.is_some() { bit } else { 0 };
                let has = bit(&ring, peer_has::RING)
                    | bit(&own, peer_has::OWN_EVENTFD)
                    | bit(&peer, peer_has::PEER_EVENTFD);
                let fds = [Some(control), ring, own, peer].into_iter().flatten().collect();
                self.answer(id, Frame::new(FrameKind::PipePeer).with_bytes(ring_bytes, has), fds);
            }
            Err(errno) => self.refuse(id, errno, "no direct path is offered to the pipe"),
        }
    }

    /// Closes a pipe that a guest needs no more.
    pub(super) fn close_packet_pipe(&mut self, id: ClientId, number: u32) -> Result<(), Violation> {
        self.pipe(id, number)?;
        self.drop_pipe(id, number);
        self.answer(id, Frame::new(FrameKind::Ready).with_id(number), Vec::new());
        Ok(())
    }

    fn drop_pipe(&mut self, id: ClientId, number: u32) {
        let Some(pipe) = self.guests.here(id).and_then(|guest| guest.pipes.remove(&number)) else { return };
        self.pipes.send(ToNic::Close { client: id, number });
        self.let_go(id, [pipe.memory]);
    }

    /// Lets memory go by way of the agent, which has closed the pipes by then. The helper is the last that has the memory mapped.
    fn let_go(&mut self, id: ClientId, memory: impl IntoIterator<Item = Arc<PipeMemory>>) {
        let memory: Vec<Arc<dyn Lent>> = memory.into_iter().map(|memory| memory as Arc<dyn Lent>).collect();
        let payer = self.guests.get(id).map(|guest| guest.payer());
        if let Some(payer) = payer.filter(|_| !memory.is_empty()) {
            self.pipes.send(ToNic::LetGo { payer, memory });
        }
    }

    /// Has the helper let go of memory, of which the agent has closed the pipes.
    pub(super) fn pipes_closed(&mut self, payer: Payer, memory: Vec<Arc<dyn Lent>>) {
        self.helpers.give(payer, NOBODY, Job::LetGo(memory));
    }

    /// Ends the pipes of a guest that is leaving.
    pub(super) fn end_pipes(&mut self, id: ClientId) {
        let pipes = self.guests.get(id).map(Guest::take_pipes).unwrap_or_default();
        if !pipes.is_empty() {
            self.pipes.send(ToNic::Left { client: id });
            self.let_go(id, pipes);
        }
    }
}
