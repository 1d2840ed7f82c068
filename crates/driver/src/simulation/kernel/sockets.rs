//! Sockets of the simulated kernel, TCP and AF_UNIX, the processes that hold them, and what those processes know together about each connection.
use super::{inode, with};
use crate::identity::NamespaceId;
use crate::simulation::arriving::{Arriving, Number};
use crate::wanted::{Listening, UnixSocket, Wanted, COOKIE_ANY};
use pd_abi::{Address, SocketId};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::io::{fcntl_dupfd_cloexec, Errno, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// First port of sockets that connect. Listeners have lower ones.
const CONNECTING_FROM: u16 = 20_000;
/// Device of all files that sockets are bound to.
const DEVICE: u64 = 1;
/// Address of sockets that have none.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Sockets by inode. A process's descriptor has the number of the socket's inode.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Number of sockets made so far.
    made: u32,
    all: BTreeMap<u32, Socket>,
    /// Set if processes use the ends of connections without a common lock.
    pub unlocked: bool,
    /// Parents of processes.
    pub parents: BTreeMap<u32, u32>,
    /// Files of network namespaces.
    namespaces: BTreeMap<NamespaceId, OwnedFd>,
}

#[derive(Debug)]
struct Socket {
    namespace: NamespaceId,
    /// User of the process that made it, of a listener.
    uid: u32,
    local: SocketAddr,
    peer: Option<SocketAddr>,
    /// Processes that hold it.
    holders: BTreeSet<u32>,
    /// Connections that a listener has not accepted.
    queue: Option<VecDeque<u32>>,
    end: Option<End>,
    unix: Option<Unix>,
}

/// Facts about a socket of AF_UNIX.
#[derive(Clone, Copy, Debug, Default)]
struct Unix {
    /// Inode of a listener's file, 0 for others.
    file: u64,
    /// Inode of the socket at the other end, 0 before it is connected.
    peer: u32,
}

/// Facts about an end of a connection that all its holders know, as in memory that a family of processes shares.
#[derive(Clone, Copy, Debug)]
pub struct End {
    pub number: Number,
    /// Client that uses it.
    pub owner: Option<usize>,
    /// Client that has the lock: only it uses, takes or shuts down the end. Without a common lock it alone takes or shuts it down.
    pub lock: Option<usize>,
    /// Without a common lock: sockets that know how far receiving and sending are.
    pub users: [Option<(usize, SocketId)>; 2],
    /// Bytes that were given back.
    pub arriving: Arriving,
    pub sent: u64,
    pub total: u64,
    pub has_shut: bool,
    /// Set when the other end is known to be there.
    pub is_settled: bool,
    /// Set when the driver has hung up on a process that used the end, and may have gone on for a while.
    pub is_dead: bool,
}

impl End {
    /// Makes an end of a client with this socket.
    pub fn new(number: Number, user: (usize, SocketId), is_settled: bool) -> Self {
        let (owner, lock, users, arriving) = (Some(user.0), None, [Some(user); 2], Arriving::default());
        let (sent, total, has_shut, is_dead) = Default::default();
        Self { number, owner, lock, users, arriving, sent, total, has_shut, is_settled, is_dead }
    }
}

/// Returns the `SO_COOKIE` of a socket.
pub fn cookie(inode: u32) -> u64 {
    u64::from(inode) << 20 | 7
}

/// Calls `act` with the sockets of this thread's kernel.
pub fn sockets<T>(act: impl FnOnce(&mut Sockets) -> T) -> T {
    with(|kernel| act(&mut kernel.sockets)).expect("a kernel")
}

impl Sockets {
    fn add(&mut self, socket: Socket) -> u32 {
        self.made += 1;
        self.all.insert(self.made, socket);
        self.made
    }

    /// Makes a listener with a port of its own. Returns it with its address.
    pub fn listen(
        &mut self,
        (pid, uid): (u32, u32),
        namespace: NamespaceId,
        mut local: SocketAddr,
    ) -> (u32, SocketAddr) {
        local.set_port(1000 + self.made as u16 % 10_000);
        let (holders, queue) = (BTreeSet::from([pid]), Some(VecDeque::new()));
        (self.add(Socket { namespace, local, peer: None, holders, queue, end: None, unix: None, uid }), local)
    }

    /// Makes a socket that is bound to a port of its own. Returns it with its address.
    pub fn bind(&mut self, pid: u32, namespace: NamespaceId, mut local: SocketAddr) -> (u32, SocketAddr) {
        local.set_port(CONNECTING_FROM + self.made as u16 % 40_000);
        let (holders, queue) = (BTreeSet::from([pid]), None);
        (
            self.add(Socket { namespace, local, peer: None, holders, queue, end: None, unix: None, uid: 0 }),
            local,
        )
    }

    /// Makes a listener of AF_UNIX with a file of its own.
    pub fn listen_unix(&mut self, pid: u32, namespace: NamespaceId) -> u32 {
        let inode = self.add_unix(pid, namespace, Unix { file: 10_000 + u64::from(self.made), peer: 0 });
        if let Some(socket) = self.all.get_mut(&inode) {
            socket.queue = Some(VecDeque::new());
        }
        inode
    }

    /// Makes a socket of AF_UNIX.
    pub fn make_unix(&mut self, pid: u32, namespace: NamespaceId) -> u32 {
        self.add_unix(pid, namespace, Unix::default())
    }

    fn add_unix(&mut self, pid: u32, namespace: NamespaceId, unix: Unix) -> u32 {
        let (holders, unix) = (BTreeSet::from([pid]), Some(unix));
        self.add(Socket {
            namespace,
            local: NOWHERE,
            peer: None,
            holders,
            queue: None,
            end: None,
            unix,
            uid: 0,
        })
    }

    pub fn is_unix(&self, inode: u32) -> bool {
        self.all.get(&inode).is_some_and(|socket| socket.unix.is_some())
    }

    /// Connects a bound socket to a listener, by the address `to`. Returns whether there still is one.
    pub fn connect(&mut self, inode: u32, listener: u32, to: SocketAddr) -> bool {
        let Some(&Socket { namespace, unix, .. }) = self.all.get(&listener) else { return false };
        let next = self.made + 1;
        let Some(own) = self.all.get_mut(&inode) else { return false };
        let (mut namespace, mut peer) = (namespace, Some(own.local));
        match &mut own.unix {
            // The kernel makes the accepted socket where the other one is.
            Some(unix) => (unix.peer, namespace, peer) = (next, own.namespace, None),
            None => own.peer = Some(to),
        }
        let (holders, unix) = (BTreeSet::new(), unix.map(|_| Unix { file: 0, peer: inode }));
        let accepted =
            self.add(Socket { namespace, local: to, peer, holders, queue: None, end: None, unix, uid: 0 });
        let queue = self.all.get_mut(&listener).and_then(|socket| socket.queue.as_mut());
        queue.expect("a listener").push_back(accepted);
        true
    }

    /// Tells whether a process could accept a connection.
    pub fn can_accept(&self, pid: u32) -> bool {
        self.held(pid).any(|(_, socket)| socket.queue.as_ref().is_some_and(|queue| !queue.is_empty()))
    }

    /// Accepts a connection.
    pub fn accept(&mut self, pid: u32) -> Option<u32> {
        let mut listeners = self.all.values_mut().filter(|socket| socket.holders.contains(&pid));
        let accepted = listeners.find_map(|socket| socket.queue.as_mut()?.pop_front())?;
        self.hold(accepted, pid);
        Some(accepted)
    }

    /// Gives a process a descriptor of a socket.
    pub fn hold(&mut self, inode: u32, pid: u32) {
        if let Some(socket) = self.all.get_mut(&inode) {
            socket.holders.insert(pid);
        }
    }

    /// Closes a process's descriptor. Returns the end that nobody holds any more.
    pub fn release(&mut self, inode: u32, pid: u32) -> Option<End> {
        let socket = self.all.get_mut(&inode)?;
        socket.holders.remove(&pid);
        if !socket.holders.is_empty() {
            return None;
        }
        let Socket { queue, end, .. } = self.all.remove(&inode)?;
        queue.into_iter().flatten().for_each(|waiting| {
            self.all.remove(&waiting);
        });
        end
    }

    /// Closes all descriptors of a process that has died. Returns the ends that nobody holds any more.
    pub fn exit(&mut self, pid: u32) -> Vec<End> {
        let held: Vec<u32> = self.held(pid).map(|(inode, _)| inode).collect();
        held.into_iter().filter_map(|inode| self.release(inode, pid)).collect()
    }

    fn held(&self, pid: u32) -> impl Iterator<Item = (u32, &Socket)> {
        self.all.iter().filter(move |(_, socket)| socket.holders.contains(&pid)).map(|(at, it)| (*at, it))
    }

    /// Returns the listeners that a process holds.
    pub fn listeners(&self, pid: u32) -> Vec<u32> {
        let listeners = self.held(pid).filter(|(_, socket)| socket.queue.is_some());
        listeners.map(|(inode, _)| inode).collect()
    }

    /// Returns the ends of connections that a process holds.
    pub fn ends(&self, pid: u32) -> Vec<(u32, End)> {
        self.held(pid).filter_map(|(inode, socket)| Some((inode, socket.end?))).collect()
    }

    /// Tells whether a process holds a connection.
    pub fn has_connections(&self, pid: u32) -> bool {
        self.held(pid).any(|(_, socket)| socket.queue.is_none())
    }

    /// Returns the connections that a process holds.
    pub fn connections(&self, pid: u32) -> Vec<u32> {
        self.held(pid).filter(|(_, socket)| socket.queue.is_none()).map(|(inode, _)| inode).collect()
    }

    pub fn exists(&self, inode: u32) -> bool {
        self.all.contains_key(&inode)
    }

    /// Returns the addresses of a socket, its own and its peer's, as a client names them.
    pub fn names(&self, inode: u32) -> (Address, Address) {
        let Some(socket) = self.all.get(&inode) else { return (NOWHERE.into(), Address::NONE) };
        match socket.unix {
            Some(Unix { file: 0, .. }) => (Address::FILE, Address::FILE),
            Some(Unix { file, .. }) => (Address::file(DEVICE, file), Address::FILE),
            None => (socket.local.into(), socket.peer.map_or(Address::NONE, Address::from)),
        }
    }

    pub fn end(&self, inode: u32) -> Option<End> {
        self.all.get(&inode)?.end
    }

    /// Returns what is known of the other end of a connection.
    pub fn other_end(&self, inode: u32) -> Option<End> {
        let socket = self.all.get(&inode)?;
        match socket.unix {
            Some(unix) => self.end(unix.peer),
            None => {
                let is_it =
                    |other: &&Socket| Some(other.local) == socket.peer && other.peer == Some(socket.local);
                self.all.values().find(is_it)?.end
            }
        }
    }

    pub fn set_end(&mut self, inode: u32, end: End) {
        if let Some(socket) = self.all.get_mut(&inode) {
            socket.end = Some(end);
        }
    }

    /// Changes what is known of an end, if there is one.
    pub fn change(&mut self, inode: u32, change: impl FnOnce(&mut End)) {
        if let Some(end) = self.all.get_mut(&inode).and_then(|socket| socket.end.as_mut()) {
            change(end);
        }
    }

    /// Frees the locks of a client that has died, and its ends.
    pub fn forget_client(&mut self, index: usize) {
        for end in self.all.values_mut().filter_map(|socket| socket.end.as_mut()) {
            if end.lock == Some(index) {
                // The driver may have given it the end.
                (end.owner, end.lock) = (None, None);
            }
            end.owner.take_if(|owner| *owner == index);
            end.users.iter_mut().for_each(|user| {
                user.take_if(|(client, _)| *client == index);
            });
        }
    }

    /// Returns the inode of a socket, as `SocketDiag::inode` does: 0 if nobody holds it. A listener is found if any cookie will do.
    fn find(&self, namespace: NamespaceId, wanted: &Wanted) -> Result<u32> {
        let is_there = |socket: &Socket| socket.namespace == namespace && socket.unix.is_none();
        let mut own = self.all.iter().filter(|(_, socket)| is_there(socket));
        let is_any = wanted.cookie == COOKIE_ANY;
        let named =
            |(_, socket): &(&u32, &Socket)| socket.local == wanted.local && socket.peer == Some(wanted.peer);
        let mut of_name = own.clone().filter(named);
        let found = of_name.clone().find(|(inode, _)| is_any || cookie(**inode) == wanted.cookie);
        if found.is_none() && of_name.next().is_some() {
            return Err(Errno::STALE);
        }
        let accepts = |local: SocketAddr| local.ip().is_unspecified() || local.ip() == wanted.local.ip();
        let found = found.or_else(|| {
            own.find(|(_, socket)| {
                let is_at = socket.local.port() == wanted.local.port() && accepts(socket.local);
                is_any && socket.queue.is_some() && is_at
            })
        });
        let (inode, socket) = found.ok_or(Errno::NOENT)?;
        Ok(if socket.holders.is_empty() { 0 } else { *inode })
    }

    /// Returns the listener that a connection to an address gets.
    fn listener_at(&self, namespace: NamespaceId, at: SocketAddr) -> Option<Listening> {
        let accepts = |local: SocketAddr| {
            local.port() == at.port() && (local.ip().is_unspecified() || local.ip() == at.ip())
        };
        let mut all =
            self.all.iter().filter(|(_, socket)| socket.namespace == namespace && socket.unix.is_none());
        let (&inode, socket) = all.find(|(_, it)| it.queue.is_some() && accepts(it.local))?;
        Some(Listening { local: socket.local, uid: socket.uid, inode, cookie: cookie(inode) })
    }

    /// Returns facts about the socket of AF_UNIX with this inode, as `sock_diag` does.
    fn find_unix(&self, namespace: NamespaceId, inode: u32) -> Result<UnixSocket> {
        let held = |inode: u32| self.all.get(&inode).filter(|socket| !socket.holders.is_empty());
        let socket = held(inode).filter(|socket| socket.namespace == namespace).ok_or(Errno::NOENT)?;
        let Unix { file, peer } = socket.unix.ok_or(Errno::NOENT)?;
        let (listens, file) = (socket.queue.is_some(), (file != 0).then_some((DEVICE as u32, file as u32)));
        Ok(UnixSocket { listens, file, peer: held(peer).map_or(0, |_| peer) })
    }

    /// Returns a descriptor of the file of a network namespace.
    pub fn namespace_file(&mut self, id: NamespaceId) -> Result<OwnedFd> {
        let make = || memfd_create("pd-namespace", MemfdFlags::CLOEXEC).expect("memory");
        fcntl_dupfd_cloexec(self.namespaces.entry(id).or_insert_with(make), 0)
    }

    /// Returns the network namespace that a place asks about.
    fn namespace_of(&self, diag: &OwnedFd) -> Result<NamespaceId> {
        let file = inode(diag.as_fd());
        let known = self.namespaces.iter().find(|(_, known)| inode(known.as_fd()) == file);
        known.map(|(id, _)| *id).ok_or(Errno::NOENT)
    }
}

/// Opens a place to ask about the sockets of a network namespace.
pub fn diag(namespace: &OwnedFd) -> Option<Result<OwnedFd>> {
    with(|_| ())?;
    Some(fcntl_dupfd_cloexec(namespace, 0))
}

/// Tells whether a file is this network namespace.
pub fn is_namespace(file: &OwnedFd, id: NamespaceId) -> Option<bool> {
    with(|kernel| kernel.sockets.namespace_of(file) == Ok(id))
}

/// Returns the inode of the socket that is asked for there.
pub fn socket_inode(diag: &OwnedFd, wanted: &Wanted) -> Option<Result<u32>> {
    with(|kernel| kernel.sockets.find(kernel.sockets.namespace_of(diag)?, wanted))
}

/// Returns the listener that a connection to an address gets there. Its user is that of the process that made it.
pub fn listener(diag: &OwnedFd, at: SocketAddr) -> Option<Result<Option<Listening>>> {
    with(|kernel| {
        let namespace = kernel.sockets.namespace_of(diag)?;
        Ok(kernel.sockets.listener_at(namespace, at))
    })
}

/// Returns facts about the socket of AF_UNIX that is asked for there.
pub fn unix_socket(diag: &OwnedFd, inode: u32) -> Option<Result<UnixSocket>> {
    with(|kernel| kernel.sockets.find_unix(kernel.sockets.namespace_of(diag)?, inode))
}

/// Returns the inode of the socket of a process's descriptor.
pub fn descriptor(pid: u32, descriptor: u32) -> Option<Result<u32>> {
    with(|kernel| {
        let socket = kernel.sockets.all.get(&descriptor).filter(|socket| socket.holders.contains(&pid));
        socket.map(|_| descriptor).ok_or(Errno::NOENT)
    })
}

/// Returns the parent of a process, if there is one.
pub fn parent(pid: u32) -> Option<Option<u32>> {
    with(|kernel| kernel.sockets.parents.get(&pid).copied())
}
