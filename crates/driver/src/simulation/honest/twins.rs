//! Twins of an honest client: the connections that unmodified programs make. The kernel connects and accepts, and the ends go from
//! process to process, as by `fork`, `execve` or in a message.
//!
//! Processes that hold an end know together which client uses it, and have a lock for it, as `preload/shared.rs` has. A client that
//! wants an end takes the lock, asks the driver for the end, and goes on where the previous one has given bytes back.
mod aside;
mod passing;
mod settling;

use super::*;
use crate::identity::NamespaceId;
use crate::simulation::book::TwinListening;
use crate::simulation::kernel::{cookie, sockets, End};
use pd_abi::layout::{header, path};
use pd_abi::{Address, TwinOperation, TwinRequest, TAKEN_ASIDE};
use std::net::Ipv4Addr;

/// Address of sockets that have none.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// Time after which a client withdraws a twin that nobody has claimed.
const SETTLED_WITHIN: Duration = Duration::from_millis(500);
/// Most listeners of a process.
const LISTENERS_MAX: usize = 2;

/// A client's twins.
#[derive(Debug, Default)]
pub(super) struct Twins {
    /// Actions with sockets of the kernel that the client will still begin.
    pub moves: u64,
    /// Listeners that the client has registered.
    said: Vec<u32>,
}

/// A socket's twin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Twin {
    pub inode: u32,
    /// Set when another client has the end.
    pub is_stale: bool,
    /// Time at which the twin is withdrawn, unless its other end is there.
    settle_at: Option<Duration>,
    /// Set while the withdrawal has no answer.
    pub is_settling: bool,
    is_unix: bool,
    /// Set when the side goes on in the kernel.
    pub has_left: bool,
    /// Set when the driver has refused that.
    stays: bool,
}

impl Twin {
    /// Tells whether the socket may not be closed yet. Without the kernel's socket nobody finds a twin of AF_UNIX: it is withdrawn first.
    pub fn must_settle(self) -> bool {
        self.is_settling || self.is_unix && self.settle_at.is_some()
    }
}

impl Honest {
    /// Makes the client use twins: `moves` is the number of actions that it begins with sockets of the kernel.
    pub fn use_twins(&mut self, moves: u64) {
        self.twins.moves = moves;
    }

    /// Ends what the client begins by itself.
    pub fn calm(&mut self) {
        (self.wishes, self.twins.moves) = (0, 0);
    }

    /// Tells whether this client does not have an end.
    pub(super) fn is_others(&self, inode: u32) -> bool {
        sockets(|all| all.end(inode)).is_none_or(|end| end.owner != Some(self.index))
    }

    /// Tells whether the threads of a socket wait for the lock of its end.
    pub(super) fn is_locked_out(&self, socket: &Socket) -> bool {
        !Self::is_unlocked(socket) && self.is_lock_others(socket)
    }

    /// Tells whether another client has the lock of a socket's end.
    pub(super) fn is_lock_others(&self, socket: &Socket) -> bool {
        let Some(twin) = socket.twin.filter(|twin| !twin.is_stale) else { return false };
        let lock = sockets(|all| all.end(twin.inode)).and_then(|end| end.lock);
        lock.is_some_and(|holder| holder != self.index)
    }

    /// Notes that this client does not have the end of a socket that is closed, unless another socket of its own has it. The client that has
    /// taken it may have died before it learned of that.
    pub(super) fn disown(&self, at: usize, inode: u32) {
        let has = |socket: &Socket| socket.twin.is_some_and(|twin| twin.inode == inode && !twin.is_stale);
        let others = self.sockets.iter().enumerate().filter(|(other, _)| *other != at);
        if !others.filter_map(|(_, socket)| socket.as_ref()).any(has) {
            sockets(|all| all.change(inode, |end| _ = end.owner.take_if(|owner| *owner == self.index)));
        }
    }

    /// Tells whether this client has the end of a socket, or is still to learn that it has not.
    fn has_part(&self, socket: &Socket) -> bool {
        let Some(twin) = socket.twin.filter(|twin| !twin.is_stale) else { return false };
        let end = sockets(|all| all.end(twin.inode));
        let has =
            |end: End| end.owner == Some(self.index) || end.users.contains(&Some((self.index, socket.id)));
        !Self::is_unlocked(socket) || end.is_some_and(has)
    }

    /// Notes that a socket's end is another client's, if so. Its threads do nothing more, or this direction's thread without a lock.
    pub(super) fn notices_move(&mut self, at: usize, direction: usize) -> bool {
        let (Some(link), Some(socket)) = (&self.link, &self.sockets[at]) else { return false };
        let Some(twin) = socket.twin else { return false };
        if Self::is_unlocked(socket) {
            let has_moved = calls::has_moved(link, socket, direction);
            self.set_twin(at, |twin| twin.is_stale |= has_moved);
            return has_moved;
        }
        let is_stale = twin.is_stale || self.is_others(twin.inode);
        self.set_twin(at, |twin| twin.is_stale = is_stale);
        is_stale
    }

    pub(super) fn set_twin(&mut self, at: usize, change: impl FnOnce(&mut Twin)) {
        self.set(at, |socket| {
            if let Some(twin) = &mut socket.twin {
                change(twin);
            }
        });
    }

    /// Keeps the progress of a socket's end where other processes find it.
    pub(super) fn keep(&self, at: usize) {
        let Some(Some(socket)) = self.sockets.get(at) else { return };
        if let Some(twin) = socket.twin.filter(|_| Self::is_unlocked(socket)) {
            return self.keep_turns(twin, socket);
        }
        let Some(twin) = socket.twin.filter(|twin| !twin.is_stale) else { return };
        sockets(|all| {
            all.change(twin.inode, |end| {
                if end.owner == Some(self.index) {
                    end.arriving = socket.arriving.at(socket.given_back);
                    (end.sent, end.total) = (socket.sent, socket.total);
                }
            });
        });
    }

    /// Frees the lock of a socket's end.
    pub(super) fn unlock(&self, at: usize, has_shut: bool) {
        let Some(twin) = self.sockets[at].as_ref().and_then(|socket| socket.twin) else { return };
        sockets(|all| {
            all.change(twin.inode, |end| {
                end.lock = None;
                end.has_shut |= has_shut;
            });
        });
    }

    pub(super) fn lock(&self, at: usize) {
        let Some(twin) = self.sockets[at].as_ref().and_then(|socket| socket.twin) else { return };
        sockets(|all| all.change(twin.inode, |end| end.lock = Some(self.index)));
    }

    /// Closes a descriptor of the kernel's, of whose end the client has no socket.
    pub(super) fn release(&mut self, inode: u32, book: &mut Book) {
        if let Some(end) = self.close_descriptor(inode, book) {
            book.over(&end);
        }
    }

    /// Closes a descriptor of the kernel's. Returns the end that no process holds any more.
    pub(super) fn close_descriptor(&mut self, inode: u32, book: &mut Book) -> Option<End> {
        book.say(|| format!("client {} closes {inode}", self.index));
        let last = sockets(|all| {
            all.change(inode, |end| {
                if end.owner == Some(self.index) {
                    end.owner = None;
                }
            });
            all.release(inode, self.person.pid)
        });
        self.twins.said.retain(|said| *said != inode);
        book.twin_listening.retain(|listening| sockets(|all| all.exists(listening.inode)));
        last
    }

    /// Keeps or closes descriptors of the kernel's when the client's attachment has ended. An image that `execve` made may use them.
    pub(super) fn lose_twins(&mut self, book: &mut Book) {
        for at in 0..self.sockets.len() {
            [calls::RECEIVES, calls::SENDS]
                .into_iter()
                .for_each(|direction| self.settle_call(at, direction, book));
            self.keep(at);
        }
        book.say(|| format!("client {} loses its driver: {}", self.index, self.describe()));
        let is_broken = self.link.as_ref().is_some_and(|link| kernel::is_hung_up(&link.socket));
        let own =
            self.sockets.iter().flatten().filter_map(|socket| socket.twin.filter(|_| self.has_part(socket)));
        for twin in own.filter(|_| is_broken) {
            if let Some(end) = sockets(|all| all.end(twin.inode)) {
                book.over(&end);
            }
            sockets(|all| all.change(twin.inode, |end| end.is_dead = true));
        }
        sockets(|all| all.forget_client(self.index));
        self.twins.said.clear();
        for inode in sockets(|all| all.connections(self.person.pid)) {
            let is_settled = sockets(|all| all.end(inode)).is_some_and(|end| end.is_settled);
            if !is_settled || self.random.chance(400) {
                self.release(inode, book);
            }
        }
    }

    /// Closes all descriptors of the kernel's.
    pub(super) fn release_all(&mut self, book: &mut Book) {
        for end in sockets(|all| all.exit(self.person.pid)) {
            book.over(&end);
        }
        book.twin_listening.retain(|listening| sockets(|all| all.exists(listening.inode)));
    }

    /// Closes what the client holds of connections, at the end of a run, if it is not attached.
    pub fn release_unused(&mut self, book: &mut Book) {
        if !self.is_up() && self.twins.moves == 0 {
            for inode in sockets(|all| all.connections(self.person.pid)) {
                self.release(inode, book);
            }
        }
    }

    /// Tells whether there is something to do about sockets of the kernel.
    pub(super) fn has_twin_chores(&self, now: Duration) -> bool {
        let pid = self.person.pid;
        self.sockets.iter().flatten().any(|socket| is_to_settle(socket, now))
            || sockets(|all| {
                all.can_accept(pid)
                    || all.listeners(pid).iter().any(|inode| !self.twins.said.contains(inode))
                    || self.twins.moves > 0 && !self.events.is_empty()
                    || all.ends(pid).iter().any(|(_, end)| self.is_to_let_go(end))
            })
    }

    /// Tells whether a client that begins nothing more closes its descriptor of an end.
    fn is_to_let_go(&self, end: &End) -> bool {
        (self.twins.moves == 0 || end.is_dead) && end.owner != Some(self.index) && end.lock.is_none()
    }

    /// Does something about sockets of the kernel. Returns a value for the trace.
    pub(super) fn twin_chore(&mut self, now: Duration, book: &mut Book) -> Option<u64> {
        let pid = self.person.pid;
        let due = |socket: &Option<Socket>| socket.as_ref().is_some_and(|socket| is_to_settle(socket, now));
        if let Some(at) = self.sockets.iter().position(due) {
            self.settle(at);
            return Some(200);
        }
        self.look_for_claims();
        if let Some(accepted) = sockets(|all| all.accept(pid)) {
            self.claim(accepted, book);
            return Some(201);
        }
        let listeners = sockets(|all| all.listeners(pid));
        if let Some(&inode) = listeners.iter().find(|inode| !self.twins.said.contains(inode)) {
            let names = sockets(|all| all.names(inode));
            if self.ask_twin(TwinOperation::Listen, inode, names, Asked::TwinListen(inode)) {
                self.twins.said.push(inode);
            }
            return Some(202);
        }
        let ends = sockets(|all| all.ends(pid));
        if let Some((inode, end)) = ends.iter().find(|(_, end)| self.is_to_let_go(end)) {
            if end.owner.is_some() || end.is_dead || self.random.chance(500) {
                self.release(*inode, book);
            } else {
                self.take(*inode);
            }
            return Some(203);
        }
        let often = if sockets(|all| all.unlocked) { 900 } else { 300 };
        if self.twins.moves > 0 && self.random.chance(often) {
            self.twins.moves -= 1;
            return Some(self.twin_wish(book));
        }
        None
    }

    /// Begins an action with sockets of the kernel.
    fn twin_wish(&mut self, book: &mut Book) -> u64 {
        let pid = self.person.pid;
        let ends = sockets(|all| all.ends(pid));
        let free: Vec<_> = ends.iter().filter(|(_, end)| end.lock.is_none() && !end.is_dead).collect();
        let live = self.sockets.iter().flatten().count();
        // Without a common lock ends move more often, into calls.
        let takes = sockets(|all| all.unlocked) && self.random.chance(400);
        match if takes { 6 } else { self.random.below(12) } {
            0 if sockets(|all| all.listeners(pid)).len() < LISTENERS_MAX => {
                let (inode, at) = self.listen();
                book.twin_listening.push(TwinListening {
                    inode,
                    namespace: self.person.namespace,
                    home: self.person.address,
                    at,
                });
                210
            }
            0..=2 if live < SOCKETS_MAX && !book.twin_listening.is_empty() => self.connect_twin(book),
            0..=5 => {
                // Another process gets a descriptor.
                let listeners = sockets(|all| all.listeners(pid)).into_iter();
                let settled = ends.iter().filter(|(_, end)| end.is_settled).map(|(inode, _)| *inode);
                let all: Vec<_> = match self.random.chance(100) {
                    true => listeners.collect(),
                    false => settled.collect(),
                };
                let family = book.people.get(self.index).map(|(_, family)| *family);
                let others = book.people.iter().filter(|(other, _)| *other != pid);
                let kin: Vec<u32> =
                    others.clone().filter(|(_, of)| Some(*of) == family).map(|(pid, _)| *pid).collect();
                let strangers: Vec<u32> = others.map(|(pid, _)| *pid).collect();
                let to = if kin.is_empty() || self.random.chance(100) { strangers } else { kin };
                if all.is_empty() || to.is_empty() {
                    return 211;
                }
                let (inode, to) = (self.random.pick(&all), self.random.pick(&to));
                book.say(|| format!("client {} gives {inode} to process {to}", self.index));
                sockets(|all| all.hold(inode, to));
                212
            }
            6..=10 => {
                let others: Vec<_> =
                    free.iter().filter(|(_, end)| end.owner != Some(self.index)).map(|(it, _)| *it).collect();
                if others.is_empty() || live >= SOCKETS_MAX {
                    return 213;
                }
                let inode = self.random.pick(&others);
                self.take(inode);
                214
            }
            _ => {
                let others = free.iter().filter(|(_, end)| end.owner.is_some_and(|it| it != self.index));
                let others: Vec<_> = others.map(|(inode, _)| *inode).collect();
                if !others.is_empty() {
                    let inode = self.random.pick(&others);
                    self.release(inode, book);
                }
                215
            }
        }
    }

    /// Asks the driver about a socket of the kernel. Returns whether it could.
    fn ask_twin(
        &mut self,
        operation: TwinOperation,
        inode: u32,
        (local, peer): (Address, Address),
        asked: Asked,
    ) -> bool {
        let Some(link) = &self.link else { return false };
        let channel = self.random.below(self.events.len() as u64) as u32;
        let request = TwinRequest {
            operation: operation as u32,
            tag: self.next_tag,
            descriptor: inode,
            cookie: cookie(inode),
            local,
            peer,
        };
        if link.send(&Frame::new(FrameKind::Twin).with_id(channel).with_twin(&request)).is_err() {
            return false;
        }
        self.pending.insert(self.next_tag, asked);
        self.next_tag += 1;
        true
    }

    /// Makes a listener of the kernel. Returns it with its address, unless it is bound to a file.
    fn listen(&mut self) -> (u32, Option<SocketAddr>) {
        let (pid, namespace) = (self.person.pid, self.person.namespace);
        if self.random.chance(350) {
            return (sockets(|all| all.listen_unix(pid, namespace)), None);
        }
        let ip = self.random.pick(&[[127, 0, 0, 1], self.person.address, [0; 4], [0; 4]]);
        let (inode, at) = sockets(|all| all.listen((pid, self.person.uid), namespace, (ip, 0).into()));
        (inode, Some(at))
    }

    fn connect_twin(&mut self, book: &mut Book) -> u64 {
        let TwinListening { inode: listener, namespace, home, at } = self.random.pick(&book.twin_listening);
        let Some(at) = at else {
            let inode = sockets(|all| all.make_unix(self.person.pid, self.person.namespace));
            let names = (Address::FILE, sockets(|all| all.names(listener)).0);
            let asked = Asked::TwinConnect { inode, listener, to: NOWHERE };
            if !self.ask_twin(TwinOperation::Connect, inode, names, asked) {
                self.release(inode, book);
            }
            return 222;
        };
        let is_near = namespace == self.person.namespace;
        let ip = match at.ip() {
            ip if ip.is_loopback() && !is_near => return 220,
            ip if !ip.is_unspecified() => ip,
            _ if is_near && self.random.chance(500) => Ipv4Addr::LOCALHOST.into(),
            _ => home.into(),
        };
        let to = SocketAddr::new(ip, at.port());
        let own = if ip.is_loopback() || is_near { ip } else { self.person.address.into() };
        let bind = |of: NamespaceId| sockets(|all| all.bind(self.person.pid, of, SocketAddr::new(own, 0)));
        let (inode, local) = bind(self.person.namespace);
        let asked = Asked::TwinConnect { inode, listener, to };
        if !self.ask_twin(TwinOperation::Connect, inode, (local.into(), to.into()), asked) {
            self.release(inode, book);
        }
        221
    }

    /// Asks for the twin of a connection that was accepted, if there may be one.
    fn claim(&mut self, inode: u32, book: &mut Book) {
        let names = sockets(|all| all.names(inode));
        let claimable = self.link.as_ref().map_or(0, |link| {
            let status = &link.shared().status;
            status.load_u32(header::CLAIMABLE, Ordering::Acquire)
        });
        if claimable == 0 || !self.ask_twin(TwinOperation::Claim, inode, names, Asked::Claim(inode)) {
            self.release(inode, book);
        }
    }

    /// Handles the answer to a question about a socket of the kernel.
    pub(super) fn twin_answered(&mut self, asked: Asked, event: &Event, channel: usize, book: &mut Book) {
        let (id, errno) = (SocketId(event.socket), event.errno);
        match (asked, errno) {
            (Asked::TwinListen(_), 0) => {}
            (Asked::TwinListen(inode), _) => {
                self.release(inode, book);
            }
            (Asked::TwinConnect { inode, listener, to }, 0) => {
                let number = book.open();
                let at = self.add_twin(id, channel, inode, End::new(number, (self.index, id), false), book);
                let settle_at = Some(self.now + SETTLED_WITHIN);
                self.set_twin(at, |twin| twin.settle_at = settle_at);
                // A listener that has ended refuses the connection, and the twin is withdrawn later.
                sockets(|all| all.connect(inode, listener, to));
            }
            (Asked::Claim(inode), 0) => {
                let number = book.open();
                if let Some(other) = sockets(|all| all.other_end(inode)) {
                    book.pair(number, other.number);
                }
                self.add_twin(id, channel, inode, End::new(number, (self.index, id), true), book);
            }
            (Asked::TwinConnect { inode, .. } | Asked::Claim(inode), _) => {
                self.release(inode, book);
            }
            (Asked::Take(inode), 0) => {
                self.taken(id, channel, inode, event.number() & TAKEN_ASIDE != 0, book);
            }
            (Asked::Take(inode), errno) => self.not_taken(inode, errno, book),
            (Asked::Withdraw(at), errno) => {
                self.unlock(at, false);
                match errno {
                    0 => self.withdrawn(at, book),
                    _ => self.settled(at),
                }
            }
            _ => unreachable!("a question about a twin"),
        }
    }

    /// Adds the socket of an end that the client now has.
    fn add_twin(&mut self, id: SocketId, channel: usize, inode: u32, end: End, book: &mut Book) -> usize {
        sockets(|all| all.set_end(inode, end));
        let at = self.add_socket(id, channel, Some(end.number));
        self.set(at, |socket| {
            let (is_stale, settle_at, is_settling, has_left, stays) = Default::default();
            let is_unix = sockets(|all| all.is_unix(inode));
            socket.twin = Some(Twin { inode, is_stale, settle_at, is_settling, is_unix, has_left, stays });
        });
        self.begin(at, book);
        self.keep(at);
        at
    }
}

/// Tells whether it is time to withdraw the socket's twin, unless its other end is there.
fn is_to_settle(socket: &Socket, now: Duration) -> bool {
    let Some(twin) = socket.twin.filter(|twin| !twin.is_settling) else { return false };
    let is_over = socket.receiver == Wait::Over && socket.sender == Wait::Over;
    twin.settle_at.is_some_and(|at| now >= at || twin.is_unix && is_over)
}
