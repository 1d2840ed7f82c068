//! Frames of clients: read one at a time, carried out here, by a helper or by the conductor, and answered before the next.
use super::guest::{Phase, Waits};
use super::helpers::{receive, Job, NOBODY};
use super::messages::{FromDoor, Made};
use super::{token, Door, TOKEN_SOCKET};
use crate::calls::{may, Call};
use crate::ids::ClientId;
use crate::memory::{Amounts, ClientMemory, Exhausted, Region};
use crate::messages::{NewChannel, Violation, DRIVER};
use crate::peer::refuse_descriptors;
use pd_abi::limits::{CHANNELS_MAX, HUGEPAGE_BYTES, MESSAGE_BYTES_MAX, PAGE_BYTES, REGIONS_MAX};
use pd_abi::{Address, Frame, FrameKind, TwinOperation, TwinRequest, MAGIC, VERSION};
use pd_shm::ringer::WakeEnd;
use pd_shm::wake;
use rustix::event::{epoll, eventfd, EventfdFlags};
use rustix::io::Errno;
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use std::sync::Arc;

/// Returns the tokens of a payer ([`super::turns`]) that a frame costs: about the driver's microseconds.
fn cost(frame: &Frame) -> f64 {
    match frame.checked_kind() {
        Some(FrameKind::Hello) => 100.0,
        Some(FrameKind::Channel | FrameKind::Pipe) => 50.0,
        Some(FrameKind::SendRegion | FrameKind::WakePipe | FrameKind::FileSocket | FrameKind::Mapped) => 20.0,
        Some(FrameKind::PipeMapped | FrameKind::PipeWakeFd | FrameKind::PipeClose) => 20.0,
        Some(FrameKind::PipePeer) => 20.0,
        // The kernel looks for the socket of AF_UNIX among all of a namespace, and perhaps for a listener among all.
        Some(FrameKind::Twin) if is_long_look(&frame.twin()) => 50.0,
        Some(FrameKind::DirectRing | FrameKind::Twin) => 5.0,
        _ => 1.0,
    }
}

/// Tells whether a request has the driver look for a socket of AF_UNIX, or for a listener.
fn is_long_look(asked: &TwinRequest) -> bool {
    match TwinOperation::from_raw(asked.operation) {
        Some(TwinOperation::Listen) => true,
        Some(TwinOperation::Claim) => asked.local.family == Address::FILE.family,
        _ => false,
    }
}

impl Door {
    /// Reads and carries out the frame of the client that has its turn. Returns whether there was one.
    pub(super) fn serve_one(&mut self) -> bool {
        let Some(id) = self.turns.next(self.clock.now()) else { return false };
        let is_safe = self.is_safe;
        // Before the frame is taken off the socket.
        self.marks.mark_client(id);
        let guest = self.guests.here(id).filter(|guest| guest.waits == Waits::Turn);
        // Another client may have the number by now.
        let Some(guest) = guest else { return true };
        if !is_safe {
            // Receiving may take as long as the maker of the descriptors likes.
            guest.waits = Waits::Answer;
            let (payer, whose, job) =
                (guest.payer(), (id, guest.serial), Job::Receive(Arc::clone(&guest.socket)));
            self.helpers.give(payer, whose, job);
            return true;
        }
        let received = receive(&guest.socket);
        self.received(id, received);
        true
    }

    /// Takes the result of receiving from a guest that has its turn.
    pub(super) fn received(&mut self, id: ClientId, received: Result<Option<(Box<Frame>, bool)>, Errno>) {
        let Some(guest) = self.guests.here(id) else { return };
        guest.waits = Waits::Answer;
        match received {
            // No client has descriptors to give.
            Ok(Some((_, true))) => self.broke(id, Violation::Frame),
            Ok(Some((frame, false))) => {
                let payer = guest.payer();
                self.turns.pay(payer, cost(&frame));
                if let Err(violation) = self.take_frame(id, frame) {
                    self.broke(id, violation);
                }
            }
            Ok(None) | Err(Errno::CONNRESET) => self.left(id),
            Err(Errno::AGAIN) => self.await_message(id),
            Err(Errno::INTR) => self.answered(id),
            Err(_) => self.broke(id, Violation::Frame),
        }
    }

    /// Asks the kernel to tell of a guest's next message.
    pub(super) fn await_message(&mut self, id: ClientId) {
        let Some(guest) = self.guests.here(id) else { return };
        if guest.has_held() {
            // The guest's next message is read when the held frames are sent.
            guest.waits = Waits::Room;
            return;
        }
        guest.waits = Waits::Message;
        let events = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let watched = may(Call::Watch)
            .and_then(|()| epoll::modify(&self.epoll, &*guest.socket, token(TOKEN_SOCKET, id), events));
        if watched.is_err() {
            self.left(id);
        }
    }

    /// Has a guest's next frame, if there is one, read in its turn: the last one is answered.
    pub(super) fn answered(&mut self, id: ClientId) {
        let now = self.clock.now();
        let Some(guest) = self.guests.here(id).filter(|guest| guest.waits == Waits::Answer) else {
            return;
        };
        guest.waits = Waits::Turn;
        let payer = guest.payer();
        self.turns.enter(payer, id, now);
    }

    /// Takes the kernel's news of a guest: a message, room for one, or an end.
    pub(super) fn has_news(&mut self, id: ClientId, events: epoll::EventFlags) {
        let now = self.clock.now();
        let Some(guest) = self.guests.here(id) else { return };
        if guest.has_held() && events.contains(epoll::EventFlags::OUT) {
            return self.send_held(id);
        }
        match guest.waits {
            Waits::Message => {
                guest.waits = Waits::Turn;
                let payer = guest.payer();
                self.turns.enter(payer, id, now);
            }
            // The guest has hung up, of which the kernel tells in any case.
            Waits::Answer | Waits::Room
                if events.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) =>
            {
                self.left(id);
            }
            Waits::Answer | Waits::Room | Waits::Turn => {}
        }
    }

    fn take_frame(&mut self, id: ClientId, frame: Box<Frame>) -> Result<(), Violation> {
        let is_other = frame.magic == MAGIC && frame.version != VERSION;
        let unknown = if is_other { Violation::Version(frame.version) } else { Violation::Frame };
        let kind = frame.checked_kind().ok_or(unknown)?;
        let guest = self.guests.here(id).ok_or(Violation::Frame)?;
        match (&guest.phase, kind) {
            (Phase::Greeting, FrameKind::Hello) => self.greet(id),
            (Phase::Mapping, FrameKind::Mapped) if frame.id == Frame::REGION_CONTROL => {
                let memory = guest.memory.as_ref().ok_or(Violation::Frame)?;
                memory.check_control().map_err(|_| Violation::Frame)?;
                guest.phase = Phase::Attached;
                self.conductor.send(FromDoor::Attached { client: id });
                self.answer(id, Frame::new(FrameKind::Ready).with_id(frame.id), Vec::new());
            }
            (Phase::Attached, FrameKind::Channel) => self.add_channel(id),
            (Phase::Attached, FrameKind::SendRegion) => self.add_send_region(id, frame.bytes),
            (Phase::Attached, FrameKind::Mapped) => self.seal_send_region(id, frame.id)?,
            (Phase::Attached, FrameKind::WakePipe) => self.add_pipe(id, frame.id as usize)?,
            (Phase::Attached, FrameKind::FileSocket) => self.add_file_socket(id),
            (Phase::Attached, FrameKind::Pipe) => self.add_packet_pipe(id, &frame)?,
            (Phase::Attached, FrameKind::PipeMapped) => self.seal_packet_pipe(id, frame.id)?,
            (Phase::Attached, FrameKind::PipeWakeFd) => self.add_wake_fd(id, frame.id)?,
            (Phase::Attached, FrameKind::PipePeer) => self.find_pipe_peer(id, frame.id)?,
            (Phase::Attached, FrameKind::PipeClose) => self.close_packet_pipe(id, frame.id)?,
            (
                Phase::Attached,
                FrameKind::Twin
                | FrameKind::DirectRing
                | FrameKind::DirectMapped
                | FrameKind::PeerRing
                | FrameKind::RingEnds
                | FrameKind::Doorbell
                | FrameKind::PeerDoorbell,
            ) => self.conductor.send(FromDoor::Frame { client: id, frame }),
            _ => return Err(Violation::Frame),
        }
        Ok(())
    }

    fn greet(&mut self, id: ClientId) {
        let Some(guest) = self.guests.here(id) else { return };
        let lease = match guest.account().map(|account| account.lease(Amounts::LINES)).transpose() {
            Ok(lease) => lease,
            Err(exhausted) => return self.refuse_exhausted(id, exhausted),
        };
        let (memory, fds) = match ClientMemory::new(id.get().into(), self.pool.shelf()) {
            Ok((memory, fds)) => match guest.account() {
                Some(account) => (Arc::new(memory.rung_by(account)), fds),
                None => (Arc::new(memory), fds),
            },
            Err(errno) => {
                return self.refuse(id, errno, "no memory or descriptors left for the control region")
            }
        };
        lease.into_iter().for_each(|lease| memory.keep(lease));
        guest.memory = Some(Arc::clone(&memory));
        guest.phase = Phase::Mapping;
        self.conductor.send(FromDoor::Welcomed { client: id, memory });
        self.answer(id, Frame::new(FrameKind::Welcome).with_id(id.get().into()), fds.into());
    }

    fn add_channel(&mut self, id: ClientId) {
        let Some(guest) = self.guests.here(id) else { return };
        let index = guest.channels;
        if index >= CHANNELS_MAX {
            return self.refuse(id, Errno::NOSPC, "no channels left: share those there are");
        }
        let Some(memory) = guest.memory.clone() else { return };
        let lines = guest.account().map(|account| account.lease(Amounts::LINES_OF_CHANNEL)).transpose();
        match lines.and_then(|lines| guest.pay(Amounts::CHANNEL).map(|()| lines)) {
            Ok(lines) => lines.into_iter().for_each(|lease| memory.keep(lease)),
            Err(exhausted) => return self.refuse_exhausted(id, exhausted),
        }
        memory.place(guest.account().and_then(|account| account.near()));
        let made = memory.channel(index).and_then(|rings| {
            may(Call::EventFd)?;
            let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            may(Call::Duplicate)?;
            let theirs = rustix::io::fcntl_dupfd_cloexec(&doorbell, 0)?;
            Ok((rings, doorbell, theirs))
        });
        match made {
            Ok(((requests, events), doorbell, theirs)) => {
                guest.channels += 1;
                let new = NewChannel { client: id, channel: index, requests, events, doorbell };
                self.conductor.send(FromDoor::AddChannel(Box::new(new), theirs));
            }
            Err(errno) => self.refuse(id, errno, "no memory or descriptors for a channel"),
        }
    }

    fn add_send_region(&mut self, id: ClientId, wanted: u64) {
        let Some(guest) = self.guests.here(id) else { return };
        if wanted == 0 || wanted > MESSAGE_BYTES_MAX || guest.regions as usize >= REGIONS_MAX {
            return self.refuse(id, Errno::NOMEM, "a send region has 1 byte to 1 GiB; a client 4096 of them");
        }
        let bytes = wanted.next_multiple_of(PAGE_BYTES as u64);
        let bytes = self.pool.bytes_of(bytes, bytes >= HUGEPAGE_BYTES as u64);
        let (payer, whose) = (guest.payer(), (id, guest.serial));
        let Some(account) = guest.account() else { return };
        match account.lease(Amounts::region(bytes)) {
            Ok(lease) => self.helpers.give(payer, whose, Job::SendRegion(lease)),
            Err(exhausted) => self.refuse_exhausted(id, exhausted),
        }
    }

    pub(super) fn refuse_exhausted(&mut self, id: ClientId, exhausted: Exhausted) {
        let (errno, why) = (exhausted.errno(), exhausted.to_string());
        self.conductor.send(FromDoor::Refused { client: id, errno, exhausted: Some(exhausted) });
        let frame = Frame::new(FrameKind::Error).with_error(errno.raw_os_error() as u32, &why);
        self.answer(id, frame, Vec::new());
    }

    fn seal_send_region(&mut self, id: ClientId, number: u32) -> Result<(), Violation> {
        let guest = self.guests.here(id).ok_or(Violation::Frame)?;
        let (region, is_sealed) = guest.send_regions.get_mut(&number).ok_or(Violation::Frame)?;
        if std::mem::replace(is_sealed, true) {
            return Err(Violation::Frame);
        }
        let (fd, map) = (region.descriptor(), Arc::clone(&region.map));
        let (payer, whose) = (guest.payer(), (id, guest.serial));
        match fd {
            Ok(fd) => self.helpers.give(payer, whose, Job::Seal { number, fd, map }),
            Err(errno) => {
                // A region that cannot be sealed is none, as after a seal that fails.
                let region = guest.send_regions.remove(&number).map(|(region, _)| region);
                self.helpers.give(payer, NOBODY, Job::Drop(region.into_iter().collect()));
                self.refuse(id, errno, "no descriptors left in the driver");
            }
        }
        Ok(())
    }

    fn add_pipe(&mut self, id: ClientId, channel: usize) -> Result<(), Violation> {
        let guest = self.guests.here(id).ok_or(Violation::Frame)?;
        if channel >= guest.channels {
            return Err(Violation::Frame);
        }
        match may(Call::SocketPair).and_then(|()| wake::pair()) {
            Ok((theirs, pipe)) => {
                let pipe = WakeEnd::new(pipe, guest.account().and_then(|account| account.ringer()));
                self.conductor.send(FromDoor::AddPipe { client: id, channel, pipe, theirs })
            }
            Err(errno) => self.refuse(id, errno, "no descriptors left in the driver"),
        }
        Ok(())
    }

    fn add_file_socket(&mut self, id: ClientId) {
        let Some(guest) = self.guests.here(id) else { return };
        if guest.has_file_socket {
            return self.refuse(id, Errno::EXIST, "a client has one file socket");
        }
        let Some(account) = guest.account() else { return };
        let lease = match account.lease(Amounts::descriptor()) {
            Ok(lease) => lease,
            Err(exhausted) => return self.refuse_exhausted(id, exhausted),
        };
        // Descriptors may come to the driver's end, which is the default.
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        match may(Call::SocketPair).and_then(|()| pair()) {
            Ok((socket, theirs)) => {
                guest.has_file_socket = true;
                // Nothing is ever sent there. Linux before 6.16 cannot refuse descriptors.
                let _ = refuse_descriptors(&theirs);
                let socket = Box::new((socket, lease));
                self.conductor.send(FromDoor::AddFileSocket { client: id, socket, theirs });
            }
            Err(errno) => self.refuse(id, errno, "no descriptors left in the driver"),
        }
    }

    /// Takes a helper's result for a guest, which may have left.
    pub(super) fn made(&mut self, id: ClientId, serial: u64, made: Made) {
        let made = match made {
            Made::Held(regions) => return self.helpers.hold(regions),
            Made::StillLent(memory) => return self.helpers.hold_lent(memory),
            Made::Proved(proved) => return self.conductor.send(FromDoor::Proved(proved)),
            Made::Addresses(reading) => {
                self.conductor.send(FromDoor::Addresses(reading));
                // A guest that was admitted is served now.
                if self.guests.here(id).is_some_and(|guest| guest.serial == serial) {
                    self.answered(id);
                }
                return;
            }
            made => made,
        };
        let Some(guest) = self.guests.here(id).filter(|guest| guest.serial == serial) else {
            if let Made::SendRegion(Ok((region, _))) | Made::ReceiveRegion(Ok((region, _))) = made {
                self.helpers.give(DRIVER, NOBODY, Job::Drop(vec![region]));
            } else if let Made::Emptied(_, region) | Made::Filled(_, region, _) = made {
                self.helpers.give(DRIVER, NOBODY, Job::Drop(vec![*region]));
            } else if let Made::Pipe(Ok(new)) = made {
                // The pipe has no other holder: its offer goes with it.
                drop(new);
            }
            return;
        };
        match made {
            Made::Held(_) | Made::StillLent(_) | Made::Addresses(_) | Made::Proved(_) => {}
            Made::Pipe(Ok(new)) => self.pipe_made(id, *new),
            Made::Pipe(Err(exhausted)) => self.refuse_exhausted(id, exhausted),
            Made::PipeSealed(number, sealed) => self.pipe_sealed(id, number, sealed),
            Made::Received(received) => self.received(id, received),
            Made::Told(told) => self.told(id, told),
            Made::SendRegion(Ok((region, fd))) => {
                let number = guest.number_region();
                let frame = described(FrameKind::SendRegion, number, &region);
                guest.send_regions.insert(number, (region, false));
                self.answer(id, frame, vec![fd]);
            }
            Made::SendRegion(Err(exhausted)) => self.refuse_exhausted(id, exhausted),
            Made::ReceiveRegion(Ok((region, fd))) => {
                let number = guest.number_region();
                let frame = described(FrameKind::ReceiveRegion, number, &region);
                self.tell_of_region(id, frame, number, region, fd);
            }
            Made::ReceiveRegion(Err(exhausted)) => {
                self.conductor.send(FromDoor::NoReceiveRegion { client: id, exhausted });
            }
            Made::Emptied(number, region) => {
                self.conductor.send(FromDoor::Emptied { client: id, number, region });
            }
            Made::Filled(number, region, Ok(())) => {
                self.conductor.send(FromDoor::ReceiveRegion { client: id, number, region });
            }
            Made::Filled(number, region, Err(exhausted)) => {
                self.conductor.send(FromDoor::Emptied { client: id, number, region });
                self.conductor.send(FromDoor::NoReceiveRegion { client: id, exhausted });
            }
            Made::Sealed { number, sealed: Ok(map) } => {
                self.conductor.send(FromDoor::AddSendRegion { client: id, number, map });
            }
            // Only the client can have sealed the region against that.
            Made::Sealed { sealed: Err(Errno::PERM), .. } => self.broke(id, Violation::Frame),
            Made::Sealed { number, sealed: Err(errno) } => {
                let payer = guest.payer();
                let region = guest.send_regions.remove(&number).map(|(region, _)| region);
                self.helpers.give(payer, NOBODY, Job::Drop(region.into_iter().collect()));
                self.refuse(id, errno, "no memory for the pages of the send region");
            }
        }
    }

    /// Gives the helper of a client's payer a job with a receive region. The region is let go if the client has gone.
    pub(super) fn give_region_job(
        &mut self,
        id: ClientId,
        region: Box<Region>,
        job: impl FnOnce(Box<Region>) -> Job,
    ) {
        match self.guests.here(id).map(|guest| (guest.payer(), (id, guest.serial))) {
            Some((payer, whose)) => self.helpers.give(payer, whose, job(region)),
            None => self.helpers.give(DRIVER, NOBODY, Job::Drop(vec![*region])),
        }
    }

    pub(super) fn refuse(&mut self, id: ClientId, errno: Errno, reason: &str) {
        self.conductor.send(FromDoor::Refused { client: id, errno, exhausted: None });
        let frame = Frame::new(FrameKind::Error).with_error(errno.raw_os_error() as u32, reason);
        self.answer(id, frame, Vec::new());
    }

    /// Reports that a guest broke the protocol: the conductor ends it.
    fn broke(&mut self, id: ClientId, violation: Violation) {
        if let Some(guest) = self.guests.here(id) {
            // Nothing of the guest is read any more.
            guest.waits = Waits::Answer;
            self.conductor.send(FromDoor::Broke { client: id, violation });
        }
    }
}

fn described(kind: FrameKind, number: u32, region: &Region) -> Frame {
    Frame::new(kind).with_id(number).with_bytes(region.map.len() as u64, region.pages.bytes() as u64)
}
