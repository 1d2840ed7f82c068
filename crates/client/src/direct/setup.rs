//! Making, mapping and passing on direct rings, each once for a connection, by way of the attach socket.
use super::bell::{OwnBell, PeerBell};
use super::Half;
use crate::attachment::{sent_region, Attachment};
use crate::error::{Error, Result};
use crate::link::Link;
use crate::turn::lock;
use pd_abi::layout::direct;
use pd_abi::limits::RING_BYTES_MAX;
use pd_abi::{Frame, FrameKind, Operation, SocketId};
use pd_shm::memfd::Pages;
use pd_shm::{barrier, Own, Region, Theirs};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The rings of a connection, as far as they are there. The sides of the socket keep what they use of it.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    pub(super) own: OnceLock<Half<Own>>,
    pub(super) peer: OnceLock<Half<Theirs>>,
    making: Mutex<()>,
    broken: AtomicBool,
    pub(super) own_bell: Mutex<OwnBell>,
    pub(super) peer_bell: Mutex<PeerBell>,
}

impl Direct {
    /// The ring that this side writes, made when it is first wanted.
    pub(super) fn own(&self, link: &Link) -> Result<Half<Own>> {
        let _one = lock(&self.making);
        self.own_locked(link)
    }

    /// Returns whether there is one: the peer's is of no use without.
    #[inline]
    pub(super) fn has_own(&self) -> bool {
        self.own.get().is_some()
    }

    fn own_locked(&self, link: &Link) -> Result<Half<Own>> {
        if let Some(own) = self.own.get() {
            return Ok(own.clone());
        }
        let (fd, pages, bytes) = ask(&link.attachment, FrameKind::DirectRing, link.id)?;
        let len = pages.bytes() + bytes as usize;
        let map = Region::<Own>::new(fd, len).map_err(unmapped)?;
        if barrier::register() {
            map.store_u32(direct::BARRIERS, 1, Ordering::Relaxed);
        }
        let mapped = Frame::new(FrameKind::DirectMapped).with_id(link.id.0);
        link.attachment.exchange(&mapped, FrameKind::Ready)?;
        Ok(self.own.get_or_init(|| Half { map: Arc::new(map), ring_offset: pages.bytes(), bytes }).clone())
    }

    /// The rings of both sides, once the peer has made its own.
    pub(super) fn both(&self, link: &Link) -> Result<Option<(Half<Own>, Half<Theirs>)>> {
        if self.peer.get().is_none() && !link.peer_is_ready() {
            return Ok(None);
        }
        let _one = lock(&self.making);
        let Some(own) = unless_left(self.own_locked(link))? else { return Ok(None) };
        if let Some(peer) = self.peer.get() {
            return Ok(Some((own, peer.clone())));
        }
        let asked = unless_left(ask(&link.attachment, FrameKind::PeerRing, link.id))?;
        let Some((fd, pages, bytes)) = asked else { return Ok(None) };
        let map = Region::twice_behind(fd, pages.bytes(), bytes as usize, pages.bytes()).map_err(unmapped)?;
        let peer = self.peer.get_or_init(|| Half { map: Arc::new(map), ring_offset: pages.bytes(), bytes });
        Ok(Some((own, peer.clone())))
    }

    /// Returns whether the peer has broken the protocol.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// The peer's words cannot be: has the driver end the connection, which counts it.
    #[cold]
    pub(super) fn end(&self, link: &Link) -> Error {
        if !self.broken.swap(true, Ordering::Relaxed) {
            let _ = link.submit(link.request(Operation::Broken));
        }
        Error::new(Errno::CONNRESET, "the peer wrote impossible words into its direct ring")
    }
}

/// The end was another process's when the connection was on the direct path: here it has no rings.
fn unless_left<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.errno() == libc::ENOTCONN => Ok(None),
        other => other.map(Some),
    }
}

fn ask(attachment: &Attachment, kind: FrameKind, socket: SocketId) -> Result<(OwnedFd, Pages, u64)> {
    let (frame, fds) = attachment.exchange(&Frame::new(kind).with_id(socket.0), kind)?;
    let sent = sent_region(&frame, fds)?;
    match Pages::from_bytes(frame.page_bytes) {
        Some(pages) if frame.bytes.is_power_of_two() && frame.bytes <= RING_BYTES_MAX => {
            Ok((sent.fd, pages, frame.bytes))
        }
        _ => Err(Error::new(Errno::PROTO, "the driver described a direct ring that cannot be")),
    }
}

fn unmapped(errno: Errno) -> Error {
    Error::new(
        Errno::NOBUFS,
        format!("cannot map a direct ring: {errno}; close connections, or raise vm.max_map_count"),
    )
}
