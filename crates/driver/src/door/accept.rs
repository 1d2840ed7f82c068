//! Newcomers: accepted one at a time, paid for by their user, and only then looked at.
use super::bucket::{Bucket, Flow};
use super::guest::Phase;
use super::messages::FromDoor;
use super::{token, Door, TOKEN_ADMIN, TOKEN_LISTENER, TOKEN_PIDFD, TOKEN_SOCKET};
use crate::calls::{may, Call};
use crate::identity::Identity;
use crate::ids::ClientId;
use crate::peer;
use crate::refusal::{Refusal, Refused};
use pd_abi::{Frame, FrameKind};
use pd_shm::attach;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{accept_with, sockopt, RecvFlags, SendFlags, SocketFlags};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Attachments of one user. Looking at a newcomer takes the door some 50 µs.
const CONNECTS: Flow = Flow { rate: 500.0, burst: 1000.0 };
/// Newcomers of all users. A newcomer that is turned away costs an `accept`, too.
const ACCEPTS: Flow = Flow { rate: 4000.0, burst: 4000.0 };
/// Most newcomers of one user that wait for tokens. Others are turned away.
const WAITING_MAX: usize = 64;
/// Most clients of one network namespace, so that one container cannot keep others out.
const CLIENTS_PER_NAMESPACE_MAX: usize = 1024;
/// Most newcomers beyond the limit on clients, which wait to be told so.
const ARRIVING_MAX: usize = 64;
/// Time for which nobody is accepted when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);
/// Memory for frames that a client has not read: some 50, since the kernel doubles it. Their descriptors are on no account, and the kernel
/// counts them for the driver's user.
const FRAMES_UNREAD_BYTES: usize = 20 << 10;

/// Users, each with the processes that wait to be looked at.
#[derive(Debug)]
pub struct Newcomers {
    users: HashMap<u32, User>,
    /// Users with a process that waits.
    order: VecDeque<u32>,
    all: Bucket,
    /// Time until which nobody is accepted.
    paused: Option<Duration>,
    /// Process that was accepted with the last descriptor, and not looked at yet.
    held: Option<OwnedFd>,
    is_watched: bool,
}

#[derive(Debug)]
struct User {
    bucket: Bucket,
    waiting: VecDeque<OwnedFd>,
}

impl Newcomers {
    /// Makes an empty list.
    pub fn new(now: Duration) -> Self {
        Self {
            users: HashMap::new(),
            order: VecDeque::new(),
            all: Bucket::new(ACCEPTS, now),
            paused: None,
            held: None,
            is_watched: true,
        }
    }

    /// Takes a newcomer that can be looked at now. Users take turns.
    fn next(&mut self, now: Duration) -> Option<OwnedFd> {
        for _ in 0..self.order.len() {
            let uid = self.order.pop_front()?;
            let user = self.users.get_mut(&uid)?;
            let next = if user.bucket.has(CONNECTS, now) { user.waiting.pop_front() } else { None };
            if next.is_some() {
                user.bucket.take(1.0);
            }
            if !user.waiting.is_empty() {
                self.order.push_back(uid);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Lets a newcomer wait. Gives it back if too many of its user wait.
    fn queue(&mut self, uid: u32, socket: OwnedFd, now: Duration) -> Result<(), OwnedFd> {
        let fresh = || User { bucket: Bucket::new(CONNECTS, now), waiting: VecDeque::new() };
        let user = self.users.entry(uid).or_insert_with(fresh);
        if user.waiting.len() >= WAITING_MAX {
            return Err(socket);
        }
        if user.waiting.is_empty() {
            self.order.push_back(uid);
        }
        user.waiting.push_back(socket);
        Ok(())
    }

    /// Iterates over the newcomers that were accepted and not looked at yet.
    pub fn waiting(&self) -> impl Iterator<Item = &OwnedFd> {
        self.users.values().flat_map(|user| &user.waiting).chain(&self.held)
    }

    /// Returns the time of the next work that no event announces.
    pub fn wake_by(&self) -> Option<Duration> {
        let users = self.order.iter().filter_map(|uid| Some(self.users.get(uid)?.bucket.ready_at(CONNECTS)));
        let all = (!self.is_watched && self.paused.is_none()).then(|| self.all.ready_at(ACCEPTS));
        match self.paused {
            Some(at) => Some(at),
            None => users.chain(all).min(),
        }
    }

    /// Forgets users that owe nothing.
    pub fn sweep(&mut self, now: Duration) {
        self.users.retain(|_, user| !user.waiting.is_empty() || !user.bucket.is_full(CONNECTS, now));
    }
}

impl Door {
    /// Accepts one process, if one waits, and looks at one newcomer.
    pub(super) fn welcome_one(&mut self, somebody_knocks: bool) -> bool {
        let now = self.clock.now();
        if let Some(at) = self.newcomers.paused {
            if now < at {
                return false;
            }
            self.newcomers.paused = None;
            self.learn_of(&self.admin, TOKEN_ADMIN, true);
        }
        let may_accept = self.newcomers.all.has(ACCEPTS, now);
        if may_accept != self.newcomers.is_watched {
            self.watch_listener(may_accept);
        }
        if let Some(held) = self.newcomers.held.take() {
            self.look_at(held);
            return true;
        }
        if somebody_knocks && may_accept {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match may(Call::Accept).and_then(|()| accept_with(&self.listener, flags)) {
                Ok(socket) => self.knock(socket, now),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    if !self.pause(error) {
                        tracing::warn!(%error, "cannot accept a client");
                    }
                    return false;
                }
            }
        }
        let Some(next) = self.newcomers.next(now) else { return false };
        self.look_at(next);
        true
    }

    pub(super) fn knock(&mut self, socket: OwnedFd, now: Duration) {
        self.newcomers.all.take(1.0);
        let Ok((pid, uid)) = peer::credentials(&socket) else { return };
        if let Err(socket) = self.newcomers.queue(uid, socket, now) {
            self.turn_away(&socket, (pid, uid), Errno::AGAIN, Refusal::Rate);
        }
    }

    fn watch_listener(&mut self, watch: bool) {
        self.newcomers.is_watched = watch;
        self.learn_of(&self.listener, TOKEN_LISTENER, watch);
    }

    pub(super) fn learn_of(&self, listener: &OwnedFd, kind: u64, watch: bool) {
        let events = if watch { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        if let Err(error) = epoll::modify(&self.epoll, listener, token(kind, ClientId::default()), events) {
            tracing::error!(%error, "cannot watch a listener");
        }
    }

    /// Accepts nobody for a while if `error` is a lack of descriptors. Newcomers wait meanwhile, and clients are served. Returns whether it
    /// does.
    pub(super) fn pause(&mut self, error: Errno) -> bool {
        if !matches!(error, Errno::MFILE | Errno::NFILE) {
            return false;
        }
        self.conductor.send(FromDoor::Paused { error });
        self.newcomers.paused = Some(self.clock.now() + PAUSE);
        self.watch_listener(false);
        self.learn_of(&self.admin, TOKEN_ADMIN, false);
        true
    }

    fn look_at(&mut self, socket: OwnedFd) {
        let identified = peer::identify(&socket).and_then(|identity| {
            may(Call::Duplicate)?;
            let fd = rustix::io::fcntl_dupfd_cloexec(&identity.namespace_fd, 0)?;
            Ok((identity, fd))
        });
        match identified {
            Ok((identity, namespace)) => self.enter(socket, identity, namespace),
            Err(error) => {
                if self.pause(error) {
                    self.newcomers.held = Some(socket);
                } else if matches!(error, Errno::SRCH | Errno::NOENT) {
                    tracing::debug!(%error, "a client left before it was identified");
                } else if let Ok(process) = peer::credentials(&socket) {
                    self.turn_away(&socket, process, error, Refusal::Unidentified);
                }
            }
        }
    }

    fn enter(&mut self, socket: OwnedFd, identity: Identity, namespace: OwnedFd) {
        // The conductor counts newcomers, because it knows their tenants, and refuses them before this limit.
        let full = self.guests.count() >= self.clients_max + ARRIVING_MAX
            || self.guests.count_in(identity.namespace) >= CLIENTS_PER_NAMESPACE_MAX;
        if full {
            let process = (identity.pid, identity.uid);
            return self.turn_away(&socket, process, Errno::USERS, Refusal::Full);
        }
        let place = self.host.place(&socket, &identity);
        let _ = sockopt::set_socket_send_buffer_size(&socket, FRAMES_UNREAD_BYTES);
        let pidfd = std::sync::Arc::clone(&identity.pidfd);
        let id = self.guests.enter(socket, pidfd, identity.namespace, identity.uid);
        if let Err(error) = self.watch(id) {
            tracing::warn!(%error, "cannot watch a client");
            self.guests.forget(id);
            return;
        }
        self.conductor.send(FromDoor::Arrived { client: id, identity: Box::new(identity), place, namespace });
    }

    /// Watches a newcomer for its death, and for its first message once it is admitted.
    fn watch(&mut self, id: ClientId) -> rustix::io::Result<()> {
        let Some(guest) = self.guests.get(id) else { return Ok(()) };
        debug_assert!(matches!(guest.phase, Phase::Arriving));
        may(Call::Watch)?;
        epoll::add(&self.epoll, &*guest.socket, token(TOKEN_SOCKET, id), epoll::EventFlags::empty())?;
        epoll::add(&self.epoll, &*guest.pidfd, token(TOKEN_PIDFD, id), epoll::EventFlags::IN)
    }

    fn turn_away(&self, socket: &OwnedFd, (pid, uid): (u32, u32), errno: Errno, refusal: Refusal) {
        let why = refusal.text();
        let refused = Refused { pid, uid, errno, why: why.to_owned(), refusal: Some(refusal) };
        self.conductor.send(FromDoor::TurnedAway { refused: Some(Box::new(refused)) });
        self.say_refused(socket, errno, why);
    }

    /// Tells a newcomer the reason why it is not let in.
    pub(super) fn say_refused(&self, socket: &OwnedFd, errno: Errno, why: &str) {
        let frame = Frame::new(FrameKind::Error).with_error(errno.raw_os_error() as u32, why);
        let _ = attach::send(socket, &frame, &[], SendFlags::DONTWAIT);
        if self.is_safe {
            // Closing with its greeting unread would tell the client of a reset instead.
            let _ = attach::receive(socket, RecvFlags::DONTWAIT);
        }
    }
}
