//! `memif`: frames of another program by shared memory, as in DPDK and VPP (memif, version 2, Ethernet).
//!
//! The port is the server. A client connects to its socket, brings a region of its own memory, and lays a ring for each direction in
//! it. The client is hostile. Its words are loaded once and bounded ([`rings`]). Its messages are of a fixed size ([`message`]), one in
//! a turn. Its descriptors are checked before any use. No program of a pipe sees its memory: each frame is copied out of the region,
//! and only the copy is inspected.
//!
//! There is one client at a time; another waits in the socket's queue. A frame for which the client has no buffer is lost. The agent
//! writes to no eventfd of a client: a thread ([`waker`]) wakes a client that sleeps, by a call that never blocks ([`crate::signaller`]).
mod message;
mod rings;
mod waker;

use self::message::{ack, connected, disconnect, hello, Message, Refused, MESSAGE_BYTES};
use self::rings::{Got, Ring, Shared};
use self::waker::Waker;
use super::device::{Device, Taken};
use crate::memory::is_eventfd;
use pd_abi::pipe::FRAME_BYTES_MAX;
use rustix::event::epoll;
use rustix::io::{Errno, Result};
use rustix::net::{
    accept_with, recvmsg, send, shutdown, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags,
    Shutdown, SocketFlags,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{sync_channel, SyncSender, TrySendError};
use std::time::{Duration, Instant};

/// Turns between two looks at the socket while frames come or go.
const LOOK_TURNS: u32 = 8;
/// Longest time for a client to connect.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Most frames in a row that are skipped because no pipe can carry them.
const SKIPPED_MAX: usize = 16;
/// Most clients, and lots of descriptors, that wait to be dropped.
const CLOSING_MAX: usize = 8;
/// Most unused descriptors of a client.
const UNUSED_MAX: usize = 4;
/// Most descriptors that the kernel passes with a message (`SCM_MAX_FD`). It closes what a smaller buffer has no room for, in the
/// receiving thread.
const FDS_MAX: usize = 253;

/// A client. Dropping it may take as long as it likes: a socket that lingers, also one that lies unread in its own socket; a file system of
/// its own, also behind an epoll set that has its eventfd; many pages.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// Descriptors that came and are not used, and for which the thread has no room. One may be the client's own end of `socket`.
    unused: Vec<OwnedFd>,
    since: Instant,
    greeted: bool,
    memory: Option<Shared>,
    /// Rings from the client, and to the client.
    rings: [Option<Ring>; 2],
    /// Eventfd whose edges mean that frames have arrived.
    doorbell: Option<OwnedFd>,
    /// Wakes the client when frames are in its receive ring.
    waker: Option<Waker>,
    is_connected: bool,
    /// Set while the client's transmit ring says that this side polls.
    is_polled: bool,
}

/// Client or descriptors that the thread drops.
#[derive(Debug)]
enum Gone {
    Client(Box<Client>),
    /// Descriptors of a client that goes on.
    Unused(Vec<OwnedFd>),
}

/// The socket, and its client.
#[derive(Debug)]
pub struct Memif {
    listener: OwnedFd,
    id: u32,
    /// Epoll set of listener, client and doorbell, which the agent's own sleep watches.
    watched: OwnedFd,
    client: Option<Box<Client>>,
    frame: Box<[u8]>,
    len: Option<usize>,
    turns: u32,
    /// Set if frames were received or sent in this turn.
    is_busy: bool,
    /// Set if frames were skipped in this turn, and more may lie behind them.
    has_skipped: bool,
    missed: u64,
    /// Drops what is no longer used, in a thread.
    closer: SyncSender<Gone>,
    /// A client for which `closer` has no room. Until it has, no other is served.
    left: Option<Box<Client>>,
}

impl Memif {
    /// Serves interface `id` on a listening socket (`SOCK_SEQPACKET`). Starts a thread that drops clients.
    ///
    /// # Errors
    /// Errors of making an epoll set, a descriptor and a thread.
    pub fn new(listener: OwnedFd, id: u32) -> Result<Self> {
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (closer, closing) = sync_channel(CLOSING_MAX);
        // The thread closes the socket last: clients that nobody has accepted may have sent descriptors.
        let last = listener.try_clone().map_err(|_| Errno::MFILE)?;
        let run = move || {
            closing.into_iter().for_each(drop::<Gone>);
            drop(last);
        };
        std::thread::Builder::new().name("pd-close".into()).spawn(run).map_err(|_| Errno::AGAIN)?;
        let this = Self {
            listener,
            id,
            watched,
            client: None,
            frame: vec![0; FRAME_BYTES_MAX.into()].into(),
            len: None,
            turns: 0,
            is_busy: false,
            has_skipped: false,
            missed: 0,
            closer,
            left: None,
        };
        this.watch(&this.listener)?;
        Ok(this)
    }

    fn watch(&self, fd: impl AsFd) -> Result<()> {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.watched, fd, epoll::EventData::new_u64(0), edge)
    }

    /// Has the thread drop a client, or keeps it until there is room.
    fn dismiss(&mut self, client: Box<Client>) {
        if let Some(Gone::Client(left)) = self.close(Gone::Client(client)) {
            self.left = Some(left);
        }
    }

    /// Has the thread drop something. Returns it if there is no room.
    fn close(&self, gone: Gone) -> Option<Gone> {
        match self.closer.try_send(gone) {
            Ok(()) => None,
            Err(TrySendError::Full(left) | TrySendError::Disconnected(left)) => Some(left),
        }
    }

    /// Has the thread close descriptors that the client has sent and nobody uses. The socket tells of no end as long as one of them is its
    /// other end.
    fn close_unused(&mut self) {
        let Some(client) = self.client.as_mut().filter(|client| !client.unused.is_empty()) else { return };
        let unused = std::mem::take(&mut client.unused);
        if let (Some(Gone::Unused(left)), Some(client)) = (self.close(Gone::Unused(unused)), &mut self.client)
        {
            client.unused = left;
        }
    }

    /// Looks for a client, or for its messages. Returns whether there was work.
    fn look(&mut self) -> bool {
        if let Some(client) = self.left.take() {
            self.dismiss(client);
            if self.left.is_some() {
                return false;
            }
        }
        if self.client.is_none() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else { return false };
            let is_told = self.watch(&socket).is_ok() && say(&socket, &hello());
            self.client = Some(Box::new(Client {
                socket,
                unused: Vec::new(),
                since: Instant::now(),
                greeted: false,
                memory: None,
                rings: [None, None],
                doorbell: None,
                waker: None,
                is_connected: false,
                is_polled: false,
            }));
            if !is_told {
                self.forget();
                return true;
            }
        }
        let Some(client) = &mut self.client else { return false };
        match hear(&client.socket) {
            Heard::Nothing => {
                if !client.is_connected && client.since.elapsed() > CONNECT_TIME {
                    self.refuse(Refused("a client connects within five seconds"));
                }
                return false;
            }
            Heard::End(fds) => {
                client.unused.extend(fds);
                self.forget();
            }
            Heard::Message(bytes, mut fds) => {
                let mut fd = fds.pop();
                client.unused.extend(fds);
                let message = Message::read(&bytes);
                let answer = message.and_then(|message| self.understand(message, &mut fd));
                if let Some(client) = &mut self.client {
                    client.unused.extend(fd);
                }
                let is_full = |client: &Client| client.unused.len() > UNUSED_MAX;
                match answer {
                    _ if self.client.as_deref().is_some_and(is_full) => {
                        self.refuse(Refused("a descriptor comes with a region or a ring"));
                    }
                    Ok(Some(answer)) => {
                        let said = self.client.as_ref().is_some_and(|client| say(&client.socket, &answer));
                        if !said {
                            self.forget();
                        }
                    }
                    Ok(None) if message == Ok(Message::Disconnect) => self.forget(),
                    Ok(None) => {}
                    Err(why) => self.refuse(why),
                }
                self.close_unused();
            }
        }
        true
    }

    /// Carries out a client's message. Takes its descriptor, if it is kept. Returns the answer.
    fn understand(
        &mut self,
        message: Message,
        fd: &mut Option<OwnedFd>,
    ) -> std::result::Result<Option<[u8; MESSAGE_BYTES]>, Refused> {
        let Some(client) = &mut self.client else { return Ok(None) };
        if client.is_connected && !matches!(message, Message::Ack | Message::Disconnect) {
            return Err(Refused("nothing changes once frames flow"));
        }
        if !client.greeted && !matches!(message, Message::Init { .. } | Message::Disconnect) {
            return Err(Refused("a client begins with its version"));
        }
        match message {
            Message::Ack | Message::Disconnect => return Ok(None),
            Message::Init { id } if id == self.id && !client.greeted => client.greeted = true,
            Message::Init { .. } => return Err(Refused("an interface of another number")),
            Message::AddRegion { index, bytes } => {
                if index != 0 || client.memory.is_some() {
                    return Err(Refused("one region, of number 0"));
                }
                let memory = fd.as_ref().ok_or(Refused("a region comes with a descriptor"))?;
                client.memory = Some(Shared::map(memory, bytes)?);
            }
            Message::AddRing { is_ours_to_read, index, region, offset, log } => {
                let place = &mut client.rings[usize::from(!is_ours_to_read)];
                if index != 0 || region != 0 || place.is_some() {
                    return Err(Refused("a ring for each direction, of number 0, in region 0"));
                }
                let memory = client.memory.as_ref().ok_or(Refused("a region comes before its rings"))?;
                *place = Some(Ring::new(memory, offset, log)?);
                let doorbell = fd.take_if(|fd| is_eventfd(fd));
                if is_ours_to_read {
                    client.doorbell = doorbell;
                    if let Some(doorbell) = &client.doorbell {
                        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
                        let watched = epoll::add(&self.watched, doorbell, epoll::EventData::new_u64(0), edge);
                        watched.map_err(|_| Refused("its eventfd cannot be watched"))?;
                    }
                } else {
                    client.waker = doorbell.map(Waker::new);
                }
            }
            Message::Connect => {
                if client.rings.iter().any(Option::is_none) {
                    return Err(Refused("a ring for each direction"));
                }
                client.is_connected = true;
                return Ok(Some(connected()));
            }
        }
        Ok(Some(ack()))
    }

    /// Sends a client the reason, and hangs up.
    fn refuse(&mut self, why: Refused) {
        if let Some(client) = &self.client {
            say(&client.socket, &disconnect(why));
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.len = None;
        if let Some(client) = self.client.take() {
            // The client's own descriptors would keep them in the set.
            let _ = epoll::delete(&self.watched, &client.socket);
            if let Some(doorbell) = &client.doorbell {
                let _ = epoll::delete(&self.watched, doorbell);
            }
            // The client sees its end now, and can send no more descriptors.
            let _ = shutdown(&client.socket, Shutdown::Both);
            self.dismiss(client);
        }
    }

    /// Tells the client in its transmit ring whether this side polls it. Returns whether that has changed.
    fn set_polled(&mut self, is_polled: bool) -> bool {
        let Some(client) = self.client.as_mut().filter(|client| client.is_connected) else { return false };
        let (Some(memory), [Some(ring), _]) = (&client.memory, &client.rings) else { return false };
        if client.is_polled == is_polled {
            return false;
        }
        client.is_polled = is_polled;
        ring.set_polled(memory, is_polled);
        true
    }

    /// Returns the memory and a ring of a connected client.
    fn ring(&mut self, to_client: bool) -> Option<(&Shared, &mut Ring)> {
        let client = self.client.as_mut().filter(|client| client.is_connected)?;
        Some((client.memory.as_ref()?, client.rings[usize::from(to_client)].as_mut()?))
    }
}

/// Sends a message whole, or not at all. Returns whether it was sent.
fn say(socket: &OwnedFd, message: &[u8; MESSAGE_BYTES]) -> bool {
    send(socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
}

enum Heard {
    Nothing,
    Message([u8; MESSAGE_BYTES], Vec<OwnedFd>),
    /// The client has gone, or has sent an empty message, which may have descriptors.
    End(Vec<OwnedFd>),
}

fn hear(socket: &OwnedFd) -> Heard {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
        Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
        Err(_) => Heard::End(Vec::new()),
        Ok(got) => {
            let mut fds = Vec::new();
            for item in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(received) = item {
                    fds.extend(received);
                }
            }
            match got.bytes {
                0 => Heard::End(fds),
                // A shorter message is padded with zeros.
                _ => Heard::Message(bytes, fds),
            }
        }
    }
}

impl Device for Memif {
    fn peek(&mut self) -> Option<&[u8]> {
        for _ in 0..SKIPPED_MAX {
            if self.len.is_some() {
                break;
            }
            let mut frame = std::mem::take(&mut self.frame);
            let got = self.ring(false).map(|(memory, ring)| ring.take(memory, &mut frame));
            self.frame = frame;
            match got? {
                Ok(Got::Frame(len)) => (self.len, self.is_busy) = (Some(len), true),
                Ok(Got::Skipped) => {
                    self.missed += 1;
                    (self.is_busy, self.has_skipped) = (true, true);
                }
                Ok(Got::Nothing) => return None,
                Err(why) => {
                    self.refuse(why);
                    return None;
                }
            }
        }
        self.len.map(|len| &self.frame[..len])
    }

    fn advance(&mut self) {
        self.len = None;
    }

    fn send(&mut self, frame: &[u8]) -> Taken {
        match self.ring(true).map(|(memory, ring)| ring.put(memory, frame)) {
            Some(Ok(true)) => {
                self.is_busy = true;
                Taken::Done
            }
            Some(Ok(false)) | None => Taken::Lost,
            Some(Err(why)) => {
                self.refuse(why);
                Taken::Lost
            }
        }
    }

    fn flush(&mut self) -> bool {
        if let Some((memory, ring)) = self.ring(false) {
            ring.publish(memory);
        }
        let is_asleep =
            self.ring(true).is_some_and(|(memory, ring)| ring.publish(memory) && ring.wants_wakeup(memory));
        let waker = self.client.as_mut().and_then(|client| client.waker.as_mut());
        if let Some(Err(why)) = waker.filter(|_| is_asleep).map(Waker::wake) {
            self.refuse(why);
        }
        self.turns = self.turns.wrapping_add(1);
        let is_busy = std::mem::take(&mut self.is_busy);
        if is_busy {
            // The flag stays off while nothing comes, so that it is cleared once for many sleeps.
            self.set_polled(true);
        }
        let is_due = std::mem::take(&mut self.has_skipped);
        (!is_busy || self.turns % LOOK_TURNS == 0) && self.look() || is_due
    }

    fn rest(&mut self) -> bool {
        // Clients store the head and read the flag without a fence between: one may read the old flag. The client's store of the
        // head arrives soon.
        self.set_polled(false)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.watched.as_fd()]
    }

    fn missed(&self) -> u64 {
        self.missed
    }
}

impl Drop for Memif {
    fn drop(&mut self) {
        self.refuse(Refused("the port was removed"));
        // Connects fail from now on, however long the thread has the socket open.
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(client) = self.left.take() {
            // Without a thread it is dropped here, with the closure.
            let _ = std::thread::Builder::new().name("pd-close".into()).spawn(move || drop(client));
        }
    }
}
