//! Waking a thread of the peer that sleeps in epoll: by its doorbell, an eventfd that both have, else by the driver.
use super::{Direct, Half};
use crate::error::{Error, Result};
use crate::link::Link;
use crate::own::OwnFd;
use crate::turn::lock;
use pd_abi::layout::direct;
use pd_abi::{Frame, FrameKind};
use pd_shm::Theirs;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The most doorbells of its peer that a connection asks for. Each change of the peer's word could ask for another.
const ASKED_MAX: u32 = 4;

/// How often a connection begins to sleep on a doorbell: it does again whenever it is added to an instance.
const BEGUN_MAX: u32 = 16;

/// The doorbell that this side sleeps on, or did.
#[derive(Debug, Default)]
pub(super) struct OwnBell {
    bell: Option<(u64, u64, Arc<OwnFd>)>,
    begun: u32,
}

/// The doorbell that the peer sleeps on, as far as it is known here.
#[derive(Debug, Default)]
pub(super) struct PeerBell {
    number: u64,
    fd: Option<Arc<OwnFd>>,
    asked: u32,
}

impl Direct {
    /// There is news that the peer has asked an event for.
    #[cold]
    pub(crate) fn announce(&self, link: &Link, peer: &Half<Theirs>) {
        // SYNC POINT: direct-dekker (loaded after the word that asks for the event, and after the same fence)
        let number = peer.map.load_u64(direct::BELL, Ordering::Acquire);
        if number == 0 || !self.ring(link, number) {
            link.nudge();
        }
    }

    /// False: the driver has to.
    fn ring(&self, link: &Link, number: u64) -> bool {
        let mut bell = lock(&self.peer_bell);
        if bell.number != number && bell.asked < ASKED_MAX {
            bell.asked += 1;
            if let Ok((number, fd)) = ask(link, FrameKind::PeerBell, 0) {
                (bell.number, bell.fd) = (number, Some(link.attachment.bell_of(number, fd)));
            }
        }
        let fd = bell.fd.as_ref().filter(|_| bell.number == number);
        // Never blocks, unless the peer has made it so for itself and for this side.
        fd.is_some_and(|fd| rustix::io::write(&**fd, &1u64.to_ne_bytes()).is_ok())
    }

    /// The doorbell that this process is to sleep on with that epoll instance, and its number. Nothing before both rings are there.
    ///
    /// # Errors
    /// The driver has no more, or the connection has begun too often.
    pub(crate) fn bell(&self, link: &Link, instance: u64) -> Result<Option<(u64, Arc<OwnFd>)>> {
        if self.peer.get().is_none() {
            return Ok(None);
        }
        let mut own = lock(&self.own_bell);
        own.begun += 1;
        if own.begun > BEGUN_MAX {
            return Err(Error::new(
                Errno::NOBUFS,
                "the connection changes its epoll instances too often for bells",
            ));
        }
        if let Some((_, number, fd)) = own.bell.as_ref().filter(|bell| bell.0 == instance) {
            return Ok(Some((*number, fd.clone())));
        }
        let (number, fd) = ask(link, FrameKind::Bell, instance)?;
        let fd = link.attachment.bell_of(number, fd);
        own.bell = Some((instance, number, fd.clone()));
        Ok(Some((number, fd)))
    }

    /// Says which doorbell the peer is to ring; 0: none. Call before [`super::wait::AsymmetricFence::arm`], which makes the fence.
    pub(crate) fn sleep_on(&self, number: u64) {
        if let Some(own) = self.own.get() {
            own.map.store_u64(direct::BELL, number, Ordering::Release);
        }
    }
}

fn ask(link: &Link, kind: FrameKind, instance: u64) -> Result<(u64, std::os::fd::OwnedFd)> {
    let asked = Frame::new(kind).with_id(link.id.0).with_bytes(instance, 0);
    let (frame, mut fds) = link.attachment.exchange(&asked, kind)?;
    let fd = fds.pop().filter(|_| fds.is_empty() && frame.bytes != 0);
    Ok((
        frame.bytes,
        fd.ok_or_else(|| Error::new(Errno::PROTO, "the driver described a bell that cannot be"))?,
    ))
}
