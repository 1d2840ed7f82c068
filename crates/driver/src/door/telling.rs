//! Frames to guests. A guest that does not read its attach socket, since it is stopped or hostile, is told later. At most one answer and
//! one receive region are held for it, whatever others do. Until the answer is sent no frame of the guest is read. Until the region is sent
//! the conductor has no other one made for it.
use super::guest::{Guest, Held, Waits};
use super::helpers::{send, Job};
use super::messages::FromDoor;
use super::{token, Door, TOKEN_SOCKET};
use crate::calls::{may, Call};
use crate::ids::ClientId;
use crate::memory::Region;
use crate::messages::{Payer, Violation};
use pd_abi::{Frame, FrameKind};
use pd_shm::attach;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Time of a send that is beyond what its frame has paid for.
const LONG: Duration = Duration::from_micros(200);

/// Result of sending a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    /// The guest has it, or is gone.
    Done,
    /// The guest has no room. The kernel tells when there is some.
    Full,
    /// A resource is short, and the kernel does not tell of it. Each sweep tries again.
    Later,
}

impl Door {
    /// Answers a frame.
    pub(super) fn answer(&mut self, id: ClientId, frame: Frame, fds: Vec<OwnedFd>) {
        self.tell(id, Held::Answer(Box::new(frame), fds));
    }

    /// Tells a guest of a receive region, and then the conductor.
    pub(super) fn tell_of_region(
        &mut self,
        id: ClientId,
        frame: Frame,
        number: u32,
        region: Region,
        fd: OwnedFd,
    ) {
        self.tell(id, Held::Region(Box::new(frame), number, Box::new(region), fd));
    }

    /// Sends a frame to a guest, or holds it.
    fn tell(&mut self, id: ClientId, new: Held) {
        let Some(guest) = self.guests.here(id) else { return };
        let is_first = !guest.has_held();
        guest.hold(new);
        // Frames that are held already come first.
        if is_first {
            self.send_held(id);
        }
    }

    /// Sends the frames that are held for a guest, in order, as far as there is room.
    pub(super) fn send_held(&mut self, id: ClientId) {
        while let Some(guest) = self.guests.here(id) {
            let (payer, whose) = (guest.payer(), (id, guest.serial));
            if let Some((frame, fds)) = guest.send_away() {
                let job = Job::Tell(Arc::clone(&guest.socket), frame, fds);
                return self.helpers.give(payer, whose, job);
            }
            let Some(held) = guest.held() else { break };
            let begun = self.clock.now();
            let sent = match held {
                Held::Away => return,
                Held::Answer(frame, fds) => send(&guest.socket, frame, fds),
                Held::Region(frame, _, _, fd) => send(&guest.socket, frame, std::slice::from_ref(fd)),
            };
            self.charge_since(begun, payer);
            if !self.is_told(id, sent) {
                return;
            }
        }
        if self.guests.here(id).is_some_and(|guest| guest.waits == Waits::Room) {
            self.await_message(id);
        }
    }

    /// Takes the result of sending the frame that is held longest. Returns whether the guest has it.
    fn is_told(&mut self, id: ClientId, sent: Result<(), Errno>) -> bool {
        let sent = Sent::of(sent);
        if sent != Sent::Done {
            self.await_room(id, sent);
            return false;
        }
        match self.guests.here(id).and_then(Guest::unhold) {
            Some(Held::Region(_, number, region, _)) => {
                self.conductor.send(FromDoor::ReceiveRegion { client: id, number, region });
            }
            Some(Held::Answer(..) | Held::Away) => self.answered(id),
            None => {}
        }
        true
    }

    /// Takes the result of a helper that has sent an answer.
    pub(super) fn told(&mut self, id: ClientId, told: Result<(), (Errno, Box<Frame>, Vec<OwnedFd>)>) {
        let sent = told.map_err(|(errno, frame, fds)| {
            if let Some(guest) = self.guests.here(id) {
                guest.take_back(frame, fds);
            }
            errno
        });
        if self.is_told(id, sent) {
            self.send_held(id);
        }
    }

    /// Charges a payer for the door's time since `begun`, if it was long. The kernel walks all waiters for a guest's socket when something
    /// is sent there, and when it is closed.
    pub(super) fn charge_since(&mut self, begun: Duration, payer: Payer) {
        let took = self.clock.now().saturating_sub(begun);
        if took > LONG {
            self.turns.pay(payer, took.as_micros() as f64);
        }
    }

    fn await_room(&mut self, id: ClientId, sent: Sent) {
        let Some(guest) = self.guests.here(id) else { return };
        if guest.waits == Waits::Message {
            guest.waits = Waits::Room;
        }
        let events = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
        let is_watched = sent == Sent::Full
            && may(Call::Watch)
                .and_then(|()| epoll::modify(&self.epoll, &*guest.socket, token(TOKEN_SOCKET, id), events))
                .is_ok();
        if !is_watched {
            self.untold.push((id, guest.serial));
        }
    }

    /// Sends held frames again, of which the kernel does not tell when it is time.
    pub(super) fn tell_untold(&mut self) {
        for (id, serial) in std::mem::take(&mut self.untold) {
            if self.guests.here(id).is_some_and(|guest| guest.serial == serial && guest.has_held()) {
                self.send_held(id);
            }
        }
    }

    /// Ends the guest's time here, after telling it the reason.
    pub(super) fn cut_off(&mut self, id: ClientId, violation: Option<Violation>) {
        let Some(guest) = self.guests.get(id) else { return };
        if let Some(violation) = violation {
            let errno = violation.errno().raw_os_error() as u32;
            let frame = Frame::new(FrameKind::Goodbye).with_error(errno, &violation.to_string());
            // A guest that does not read is not told.
            let _ = attach::send(&guest.socket, &frame, &[], SendFlags::DONTWAIT);
        }
        self.close(id);
    }
}

impl Sent {
    fn of(sent: Result<(), Errno>) -> Self {
        match sent {
            Err(Errno::AGAIN) => Self::Full,
            Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Self::Later,
            Ok(()) | Err(_) => Self::Done,
        }
    }
}
