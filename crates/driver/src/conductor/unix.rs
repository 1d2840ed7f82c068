//! Twins of AF_UNIX connections. Such twins work like those of TCP ([`super::twins`]), with other names. A listener is the file that it is
//! bound to, a socket is its inode, and the kernel says which two sockets are one connection. Network namespaces of containers do not
//! matter: a process that sees the file may connect, unless the policy denies it.
use super::answer::Answer;
use super::client::Connected;
use super::twins::{Held, Key, NewTwin, Place};
use super::Conductor;
use crate::identity::NamespaceId;
use crate::ids::{ClientId, Side};
use crate::unix_socket::SOCKETS_MAX;
use crate::wanted::{UnixSocket, Wanted};
use pd_abi::TwinRequest;
use rustix::io::Errno;
use std::net::{Ipv4Addr, SocketAddr};

/// Most network namespaces in which an accepted socket is looked for.
const NAMESPACES_MAX: usize = 32;
/// Most AF_UNIX sockets in the network namespaces of a listener and of a process that connects to it: the rest is for those that are made until the
/// accepted socket is looked for.
const SOCKETS_CONNECTING_MAX: u64 = SOCKETS_MAX / 4 * 3;
/// Most unclaimed connections that are asked for their namespaces.
const UNCLAIMED_LOOKS: usize = 4096;

/// Placeholder for an address, which a file does not have.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Conductor {
    pub(super) fn unix_listen(&mut self, id: ClientId, asked: &TwinRequest) -> Answer {
        let (device, inode) = asked.local.to_file().ok_or(Errno::AFNOSUPPORT)?;
        let (namespace, inode_of_socket) = self.unix_inode(id, asked)?;
        let found = self.twins.kernel.diag(namespace).ok_or(Errno::OPNOTSUPP)?.unix(inode_of_socket)?;
        let device_of_kernel = libc::major(device) << 20 | libc::minor(device);
        if !found.listens || found.file != Some((device_of_kernel, inode as u32)) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        self.join_listener(id, Place::Unix(device, inode), NOWHERE.ip(), asked.cookie, 0)
    }

    pub(super) fn unix_connect(&mut self, id: ClientId, channel: usize, asked: &TwinRequest) -> Answer {
        let (device, inode) = asked.peer.to_file().ok_or(Errno::AFNOSUPPORT)?;
        let place = Place::Unix(device, inode);
        let registrants = self.twins.registrants_at(place, NOWHERE.ip(), None);
        let peer = *registrants.first().ok_or(Errno::CONNREFUSED)?;
        let held = self.unix_held(id, asked)?;
        let tenants = self.admit(id, peer, NOWHERE.into())?;
        self.check_room(peer)?;
        self.check_findable(held.namespace, self.namespace(peer)?)?;
        // The accepting side is proved when it is claimed.
        let sides = [held, Held { inode: 0, ..held }];
        let key = Key::Unix(held.inode);
        let reserved = self.connections.reserve();
        let connection = reserved.id();
        let connected = Connected { connection, side: Side::Connecting, local: NOWHERE, remote: NOWHERE };
        let reached = NOWHERE;
        self.new_twin(NewTwin {
            id,
            channel,
            reserved,
            key,
            place,
            registrants,
            sides,
            connected,
            tenants,
            reached,
            through: None,
            counted: true,
        })
    }

    /// Checks that the accepted socket of a connection will be found. A claim that is refused later leaves the accepting process waiting on the
    /// kernel for bytes that come there with a call of the process that has sent them.
    fn check_findable(&mut self, connecting: NamespaceId, accepting: NamespaceId) -> Result<(), Errno> {
        let now = self.clock.now();
        let mut sockets = self.twins.kernel.unix_sockets(connecting, now);
        if accepting != connecting {
            sockets += self.twins.kernel.unix_sockets(accepting, now);
        }
        if sockets > SOCKETS_CONNECTING_MAX {
            return Err(Errno::NOBUFS);
        }
        Ok(())
    }

    pub(super) fn unix_claim(&mut self, id: ClientId, channel: usize, asked: &TwinRequest) -> Answer {
        let held = self.unix_held(id, asked)?;
        let (namespace, found) = self.find_accepted(id, held).ok_or(Errno::NOENT)?;
        let key = Key::Unix(found.peer);
        let index = self.twins.first_unclaimed(&key).filter(|_| found.peer != 0).ok_or(Errno::NOENT)?;
        self.claim(id, channel, index, Held { namespace, ..held })
    }

    /// Returns the socket that a client holds.
    pub(super) fn unix_held(&mut self, id: ClientId, asked: &TwinRequest) -> Result<Held, Errno> {
        let (namespace, inode) = self.unix_inode(id, asked)?;
        let wanted = Wanted { local: NOWHERE, peer: NOWHERE, cookie: asked.cookie };
        Ok(Held { namespace, wanted, inode, unix: true })
    }

    fn unix_inode(&mut self, id: ClientId, asked: &TwinRequest) -> Result<(NamespaceId, u32), Errno> {
        let (namespace, inode) = (self.namespace(id)?, self.inode_asked(id, asked)?);
        self.open_diag(id, namespace)?;
        Ok((namespace, inode))
    }

    /// Finds the accepted socket that a client holds. The kernel lists it in the network namespace of the process that connected, which may
    /// be that of any unclaimed connection to the client's tenant.
    fn find_accepted(&self, id: ClientId, held: Held) -> Option<(NamespaceId, UnixSocket)> {
        let client = self.client(id)?;
        let (tenant, told) = (client.tenant, (id, client.serial));
        let (mut namespaces, mut others) = (vec![held.namespace], Vec::new());
        for index in self.twins.unclaimed_unix().take(UNCLAIMED_LOOKS) {
            let Some(connection) = self.connection(index) else { continue };
            let Some(twin) =
                connection.twin.as_ref().filter(|_| connection.tenants[Side::Accepting] == tenant)
            else {
                continue;
            };
            let namespace = twin.namespace(Side::Connecting);
            let list = if twin.is_told(told) { &mut namespaces } else { &mut others };
            if list.len() < NAMESPACES_MAX && !list.contains(&namespace) {
                list.push(namespace);
            }
        }
        // A tenant chooses the number of namespaces and of the sockets there: all looks together walk over as many as one look may.
        let mut sockets_left = SOCKETS_MAX;
        namespaces.extend(others);
        namespaces.truncate(NAMESPACES_MAX);
        let look = |namespace| {
            let found = self.twins.kernel.diag(namespace)?.unix_among(held.inode, &mut sockets_left).ok()?;
            Some((namespace, found))
        };
        namespaces.into_iter().find_map(look)
    }
}
