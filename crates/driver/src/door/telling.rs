//! Frames to guests. A guest that does not read its attach socket, since it is stopped or hostile, is told later. At most one answer and
//! one receive region are held for it, whatever others do. Until the answer is sent no frame of the guest is read. Until the region is sent
//! the conductor has no other one made for it.
use super::guest::{Guest, Held, Waits};
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
use std::os::fd::{AsFd, OwnedFd};
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
            let Some(held) = guest.held() else { break };
            let (begun, payer) = (self.clock.now(), guest.payer());
            let sent = send(guest, held);
            self.charge_since(begun, payer);
            let Some(guest) = self.guests.here(id) else { break };
            match sent {
                Sent::Done => {}
                sent => return self.await_room(id, sent),
            }
            match guest.unhold() {
                Some(Held::Region(_, number, region, _)) => {
                    self.conductor.send(FromDoor::ReceiveRegion { client: id, number, region });
                }
                Some(Held::Answer(..)) => self.answered(id),
                None => {}
            }
        }
        if self.guests.here(id).is_some_and(|guest| guest.waits == Waits::Room) {
            self.await_message(id);
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

fn send(guest: &Guest, held: &Held) -> Sent {
    let (frame, fds) = match held {
        Held::Answer(frame, fds) => (frame, fds.as_slice()),
        Held::Region(frame, _, _, fd) => (frame, std::slice::from_ref(fd)),
    };
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    match may(Call::Send).and_then(|()| attach::send(&guest.socket, frame, &fds, SendFlags::DONTWAIT)) {
        Err(Errno::AGAIN) => Sent::Full,
        Err(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Sent::Later,
        Ok(()) | Err(_) => Sent::Done,
    }
}
