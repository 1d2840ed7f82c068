//! Waking a thread of the peer that sleeps in epoll: by its doorbell, an eventfd that both have, else by the driver.
use crate::attachment::Attachment;
use crate::error::{Error, Result};
use crate::own::OwnFd;
use pd_abi::{Frame, FrameKind, SocketId};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The most doorbells of its peer that a connection asks for. Each change of the peer's word could ask for another.
const ASKED_MAX: u32 = 4;

/// Times that a connection begins to sleep on a doorbell. Each addition to an instance is one. Later attempts fail.
const BEGUN_MAX: u32 = 16;

/// The doorbell that this side sleeps on, or did.
#[derive(Debug, Default)]
pub(super) struct OwnDoorbell {
    doorbell: Option<(u64, u64, Arc<OwnFd>)>,
    begun: u32,
}

/// The doorbell that the peer sleeps on, as far as it is known here.
#[derive(Debug, Default)]
pub(super) struct PeerDoorbell {
    number: u64,
    fd: Option<Arc<OwnFd>>,
    asked: u32,
}

impl PeerDoorbell {
    /// Rings the doorbell of that number. False: the driver has to.
    pub(super) fn ring(&mut self, attachment: &Attachment, id: SocketId, number: u64) -> bool {
        if self.number != number && self.asked < ASKED_MAX {
            self.asked += 1;
            if let Ok((number, fd)) = ask(attachment, id, FrameKind::PeerDoorbell, 0) {
                (self.number, self.fd) = (number, Some(attachment.doorbell_of(number, fd)));
            }
        }
        let fd = self.fd.as_ref().filter(|_| self.number == number);
        // Never blocks, unless the peer has made it so for itself and for this side.
        fd.is_some_and(|fd| rustix::io::write(&**fd, &1u64.to_ne_bytes()).is_ok())
    }
}

impl OwnDoorbell {
    /// Begins to sleep on the doorbell of an epoll instance. Returns it and its number.
    ///
    /// # Errors
    /// The driver has no more, or the connection has begun too often.
    pub(super) fn begin(
        &mut self,
        attachment: &Attachment,
        id: SocketId,
        instance: u64,
    ) -> Result<(u64, Arc<OwnFd>)> {
        self.begun += 1;
        if self.begun > BEGUN_MAX {
            return Err(Error::new(
                Errno::NOBUFS,
                "the connection changes its epoll instances too often for doorbells",
            ));
        }
        if let Some((_, number, fd)) = self.doorbell.as_ref().filter(|doorbell| doorbell.0 == instance) {
            return Ok((*number, fd.clone()));
        }
        let (number, fd) = ask(attachment, id, FrameKind::Doorbell, instance)?;
        let fd = attachment.doorbell_of(number, fd);
        self.doorbell = Some((instance, number, fd.clone()));
        Ok((number, fd))
    }
}

fn ask(attachment: &Attachment, id: SocketId, kind: FrameKind, instance: u64) -> Result<(u64, OwnedFd)> {
    let asked = Frame::new(kind).with_id(id.0).with_bytes(instance, 0);
    let (frame, mut fds) = attachment.exchange(&asked, kind)?;
    let fd = fds.pop().filter(|_| fds.is_empty() && frame.bytes != 0);
    Ok((
        frame.bytes,
        fd.ok_or_else(|| Error::new(Errno::PROTO, "the driver described a doorbell that cannot be"))?,
    ))
}
