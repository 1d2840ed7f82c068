//! Making, mapping and passing on direct rings, each once for a connection, by way of the attach socket.
use super::doorbell::{OwnDoorbell, PeerDoorbell};
use crate::attachment::{sent_region, Attachment};
use crate::error::{Error, Result};
use crate::own::OwnFd;
use crate::turn::lock;
use pd_abi::layout::direct;
use pd_abi::limits::RING_BYTES_MAX;
use pd_abi::{Frame, FrameKind, SocketId};
use pd_shm::byte_ring::Ring;
use pd_shm::memfd::{self, Pages};
use pd_shm::{barrier, Own, Region, Theirs};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Connections of the process.
static CONNECTIONS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of the process's connections. After a fork those of the parent are among them.
#[inline]
pub(crate) fn connections() -> u32 {
    CONNECTIONS.load(Ordering::Relaxed)
}

/// The rings of a connection, as far as they are there. The sides of the socket keep what they use of it.
#[derive(Debug)]
pub(crate) struct Direct {
    own: OnceLock<Ring<Own>>,
    peer: OnceLock<Ring<Theirs>>,
    making: Mutex<()>,
    broken: AtomicBool,
    own_doorbell: Mutex<OwnDoorbell>,
    peer_doorbell: Mutex<PeerDoorbell>,
}

impl Default for Direct {
    fn default() -> Self {
        CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        Self {
            own: OnceLock::new(),
            peer: OnceLock::new(),
            making: Mutex::default(),
            broken: AtomicBool::new(false),
            own_doorbell: Mutex::default(),
            peer_doorbell: Mutex::default(),
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Direct {
    /// The ring that this side writes, made when it is first wanted.
    pub(crate) fn own(&self, attachment: &Attachment, id: SocketId) -> Result<Ring<Own>> {
        let _one = lock(&self.making);
        self.own_locked(attachment, id)
    }

    /// Returns whether there is one: the peer's is of no use without.
    #[inline]
    pub(crate) fn has_own(&self) -> bool {
        self.own.get().is_some()
    }

    fn own_locked(&self, attachment: &Attachment, id: SocketId) -> Result<Ring<Own>> {
        if let Some(own) = self.own.get() {
            return Ok(own.clone());
        }
        let (fd, pages, bytes) = ask(attachment, FrameKind::DirectRing, id)?;
        let len = pages.bytes() + bytes as usize;
        let map = Region::<Own>::new(&fd, len).map_err(unmapped)?;
        memfd::seal_against_all(fd).map_err(unmapped)?;
        if barrier::register() {
            map.store_u32(direct::BARRIERS, 1, Ordering::Relaxed);
        }
        let mapped = Frame::new(FrameKind::DirectMapped).with_id(id.0);
        attachment.exchange(&mapped, FrameKind::Ready)?;
        Ok(self.own.get_or_init(|| Ring::new(Arc::new(map), pages.bytes(), bytes)).clone())
    }

    /// The rings of both sides, once the peer has made its own, as `is_ready` tells.
    pub(crate) fn both(
        &self,
        attachment: &Attachment,
        id: SocketId,
        is_ready: impl FnOnce() -> bool,
    ) -> Result<Option<(Ring<Own>, Ring<Theirs>)>> {
        if self.peer.get().is_none() && !is_ready() {
            return Ok(None);
        }
        let _one = lock(&self.making);
        let Some(own) = unless_left(self.own_locked(attachment, id))? else { return Ok(None) };
        if let Some(peer) = self.peer.get() {
            return Ok(Some((own, peer.clone())));
        }
        let asked = unless_left(ask(attachment, FrameKind::PeerRing, id))?;
        let Some((fd, pages, bytes)) = asked else { return Ok(None) };
        let map = Region::<Theirs>::twice_behind(fd, pages.bytes(), bytes as usize, pages.bytes())
            .map_err(unmapped)?;
        let peer = self.peer.get_or_init(|| Ring::new(Arc::new(map), pages.bytes(), bytes));
        Ok(Some((own, peer.clone())))
    }

    /// Returns whether the peer has broken the protocol.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// The peer's words cannot be. Returns whether this is the first time, so that the driver is to be told.
    #[cold]
    pub(crate) fn set_broken(&self) -> bool {
        !self.broken.swap(true, Ordering::Relaxed)
    }

    /// There is news that the peer has asked an event for. False: the driver has to post it.
    #[cold]
    pub(crate) fn announce(&self, attachment: &Attachment, id: SocketId, peer: &Ring<Theirs>) -> bool {
        // SYNC POINT: byte-ring-dekker (loaded after the word that asks for the event, and after the same fence)
        let number = peer.map().load_u64(direct::EPOLL_DOORBELL, Ordering::Acquire);
        number != 0 && lock(&self.peer_doorbell).ring(attachment, id, number)
    }

    /// The doorbell that this process is to sleep on with that epoll instance, and its number. Nothing before both rings are there.
    ///
    /// # Errors
    /// The driver has no more, or the connection has begun too often.
    pub(crate) fn doorbell(
        &self,
        attachment: &Attachment,
        id: SocketId,
        instance: u64,
    ) -> Result<Option<(u64, Arc<OwnFd>)>> {
        if self.peer.get().is_none() {
            return Ok(None);
        }
        lock(&self.own_doorbell).begin(attachment, id, instance).map(Some)
    }

    /// Stores the number of the doorbell that the peer is to ring, or 0 for none. To be called before
    /// [`pd_shm::byte_ring::AsymmetricFence::arm`], which makes the fence.
    pub(crate) fn sleep_on(&self, number: u64) {
        if let Some(own) = self.own.get() {
            own.map().store_u64(direct::EPOLL_DOORBELL, number, Ordering::Release);
        }
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

/// Asks where the rings of a socket end: bytes that count of those written, and of those that the peer has written.
///
/// # Errors
/// `ENOTCONN`: the connection is over. The end of the driver.
pub(crate) fn ring_ends(attachment: &Attachment, socket: SocketId) -> Result<(u64, u64)> {
    let kind = FrameKind::RingEnds;
    let (frame, _) = attachment.exchange(&Frame::new(kind).with_id(socket.0), kind)?;
    Ok((frame.bytes, frame.page_bytes))
}

fn unmapped(errno: Errno) -> Error {
    Error::new(
        Errno::NOBUFS,
        format!("cannot map a direct ring: {errno}; close connections, or raise vm.max_map_count"),
    )
}
