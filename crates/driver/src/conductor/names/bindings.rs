//! Sockets bound in network namespaces, and the listeners that a connection reaches.
use super::{canonical, is_local, is_loopback, Names};
use crate::identity::NamespaceId;
use crate::ids::{ClientId, Slot};
use crate::messages::{Payer, DRIVER};
use pd_abi::limits::{EPHEMERAL_PORT_FIRST, EPHEMERAL_PORT_LAST};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Most bindings of one payer.
const BINDINGS_MAX: usize = 65_536;

/// A bound socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    pub ip: IpAddr,
    pub v6_only: bool,
    pub client: ClientId,
    pub slot: Slot,
    pub takes: Takes,
    /// The user whose other listeners of this kind may have the port, too.
    pub share: Option<u32>,
    pub payer: Payer,
}

/// Connections that a bound socket takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Takes {
    None,
    /// Connections that come by a map of the policy's, which the kernel cannot bring.
    OtherNetworks,
    All,
}

/// A socket that is to be bound.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Address to bind to; port 0 asks for any port.
    pub wanted: SocketAddr,
    pub v6_only: bool,
    pub owner: (ClientId, Slot),
    /// User whose other sockets may share the port, if they ask for that, too.
    pub share: Option<u32>,
    pub payer: Payer,
}

impl Names {
    /// Binds a socket. Port 0 asks for any free port. Returns the address bound.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the namespace does not hold the address, `EADDRINUSE` if the port is taken, `ENOBUFS` if the payer has too many
    /// bindings.
    pub fn bind(&mut self, id: NamespaceId, wish: &Wish) -> Result<SocketAddr, Errno> {
        let &Wish { wanted, v6_only, owner: (client, slot), share, payer } = wish;
        let ip = canonical(wanted.ip());
        if !ip.is_unspecified() && !self.holds(id, ip) {
            return Err(Errno::ADDRNOTAVAIL);
        }
        let mut binding = Binding { ip, v6_only, client, slot, takes: Takes::None, share, payer };
        if wanted.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            binding.ip = wanted.ip();
        }
        let paid = self.paid.get(&payer).copied().unwrap_or(0);
        if paid >= BINDINGS_MAX {
            return Err(Errno::NOBUFS);
        }
        let port = match wanted.port() {
            0 => self.free_port(id, &binding).ok_or(Errno::ADDRINUSE)?,
            port => port,
        };
        self.ports.entry(id).or_default().bind(port, binding)?;
        self.paid.insert(payer, paid + 1);
        Ok(SocketAddr::new(wanted.ip(), port))
    }

    /// Returns the next ephemeral port at which `binding` conflicts with no other.
    fn free_port(&mut self, id: NamespaceId, binding: &Binding) -> Option<u16> {
        let from = self.next_port(id);
        let port = match self.ports.get(&id) {
            Some(ports) => ports.free(binding, from)?,
            None => from,
        };
        if let Some(namespace) = self.namespaces.get_mut(&id) {
            namespace.next_port = following(port);
        }
        Some(port)
    }

    fn next_port(&mut self, id: NamespaceId) -> u16 {
        let Some(namespace) = self.namespaces.get_mut(&id) else { return EPHEMERAL_PORT_FIRST };
        let port = namespace.next_port;
        namespace.next_port = following(port);
        port
    }

    /// Sets the connections that a bound socket takes from now on.
    pub fn set_listening(&mut self, id: NamespaceId, port: u16, owner: (ClientId, Slot), takes: Takes) {
        if let Some(binding) = self.binding_mut(id, port, owner) {
            binding.takes = takes;
        }
    }

    #[cfg(test)]
    pub fn listen(&mut self, id: NamespaceId, port: u16, owner: (ClientId, Slot)) {
        self.set_listening(id, port, owner, Takes::All);
    }

    fn binding_mut(&mut self, id: NamespaceId, port: u16, owner: (ClientId, Slot)) -> Option<&mut Binding> {
        self.ports.get_mut(&id)?.at(port)?.iter_mut().find(|b| (b.client, b.slot) == owner)
    }

    /// Takes a binding back.
    pub fn unbind(&mut self, id: NamespaceId, port: u16, owner: (ClientId, Slot)) {
        let Some(ports) = self.ports.get_mut(&id) else { return };
        for binding in ports.unbind(port, |b| (b.client, b.slot) == owner) {
            if let Some(paid) = self.paid.get_mut(&binding.payer) {
                *paid -= 1;
                if *paid == 0 {
                    self.paid.remove(&binding.payer);
                }
            }
        }
        if ports.is_empty() {
            self.ports.remove(&id);
        }
    }

    /// Tells whether a connection from `id` to `to` reaches a listener.
    pub fn has_listener(&mut self, id: NamespaceId, to: SocketAddr) -> bool {
        self.listeners(id, to).is_ok()
    }

    /// Returns the listener that a connection from `id` to `to` reaches. Listeners that share a port take turns.
    ///
    /// # Errors
    /// `EHOSTUNREACH` if no container holds the address, `ECONNREFUSED` if nothing listens there.
    pub fn listener(&mut self, id: NamespaceId, to: SocketAddr) -> Result<(ClientId, Slot), Errno> {
        let (list, at) = self.listeners(id, to)?;
        let chosen = list[at];
        if chosen.share.is_some() {
            list[at..].rotate_left(1);
        }
        Ok((chosen.client, chosen.slot))
    }

    /// Returns the bindings of the port of `to`, and the index of the first that a connection from `id` reaches.
    fn listeners(&mut self, id: NamespaceId, to: SocketAddr) -> Result<(&mut Vec<Binding>, usize), Errno> {
        let ip = canonical(to.ip());
        let target = self.namespace_of(id, ip)?;
        let least = if self.is_mapped(id, ip) { Takes::OtherNetworks } else { Takes::All };
        let (_, ip) = self.place(id, ip);
        let list =
            self.ports.get_mut(&target).and_then(|ports| ports.at(to.port())).ok_or(Errno::CONNREFUSED)?;
        let fits = |b: &&Binding| (b.takes == Takes::All || b.takes == least) && b.accepts(ip);
        let exact = list.iter().filter(fits).any(|b| !b.ip.is_unspecified());
        let found = list.iter().position(|b| fits(&b) && b.ip.is_unspecified() != exact);
        found.map(|at| (list, at)).ok_or(Errno::CONNREFUSED)
    }

    /// Gives the port of a connection to it whose socket is not bound, so that no other gets it. Returns whether the connection has it
    /// alone. Two have one port where more than there are ports are connected.
    pub fn lend(&mut self, id: NamespaceId, port: u16) -> bool {
        self.ports.entry(id).or_default().lend(port)
    }

    /// Takes back what [`Self::lend`] has given to a connection.
    pub fn give_back(&mut self, id: NamespaceId, port: u16) {
        let Some(ports) = self.ports.get_mut(&id) else { return };
        ports.give_back(port);
        if ports.is_empty() {
            self.ports.remove(&id);
        }
    }

    /// Returns the address that a socket of `id` gets when it connects to `to` without being bound. The port is no bound socket's, and no
    /// other connection's.
    pub fn local_for(&mut self, id: NamespaceId, to: IpAddr) -> SocketAddr {
        let ip = self.address_for(id, to);
        let nobody = Binding {
            ip,
            v6_only: false,
            client: ClientId::NOBODY,
            slot: Slot::default(),
            takes: Takes::None,
            share: None,
            payer: DRIVER,
        };
        // Where all are bound, one serves that is.
        let port = self.free_port(id, &nobody).unwrap_or_else(|| self.next_port(id));
        SocketAddr::new(ip, port)
    }

    /// Returns the address from which a socket of `id` reaches `to`, unspecified if there is none.
    pub fn address_for(&mut self, id: NamespaceId, to: IpAddr) -> IpAddr {
        let ip = canonical(to);
        if is_loopback(ip) || ip.is_unspecified() || self.owner(id, ip) == Some(id) {
            return if ip.is_unspecified() { loopback(ip) } else { ip };
        }
        self.claim(id);
        let (owners, network, (there, _)) = (&self.owners, self.network(id), self.place(id, ip));
        let best = self.namespaces.get(&id).and_then(|namespace| {
            let usable = namespace.addresses.iter().filter(|(own, _)| {
                own.is_ipv4() == ip.is_ipv4()
                    && !is_local(**own)
                    && owners.get(&(network, **own)) == Some(&id)
                    && self.seen_in(there, id, **own).is_some()
            });
            usable.max_by_key(|(own, prefix)| (same_prefix(**own, ip, **prefix), **own)).map(|(own, _)| *own)
        });
        best.unwrap_or_else(|| unspecified(ip))
    }
}

impl Binding {
    /// Tells whether the two bindings conflict on one port: an address exists that both accept.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.accepts(other.ip)
            || other.accepts(self.ip)
            || (self.ip.is_unspecified()
                && other.ip.is_unspecified()
                && self.ip.is_ipv4() == other.ip.is_ipv4())
    }

    /// Tells whether a connection to `ip` may reach this binding.
    fn accepts(&self, ip: IpAddr) -> bool {
        match self.ip {
            IpAddr::V4(own) if own.is_unspecified() => ip.is_ipv4(),
            IpAddr::V6(own) if own.is_unspecified() => ip.is_ipv6() || !self.v6_only,
            own => own == ip,
        }
    }
}

/// Returns the ephemeral port to be tried after `port`.
fn following(port: u16) -> u16 {
    if port >= EPHEMERAL_PORT_LAST {
        EPHEMERAL_PORT_FIRST
    } else {
        port + 1
    }
}

fn loopback(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() {
        Ipv4Addr::LOCALHOST.into()
    } else {
        Ipv6Addr::LOCALHOST.into()
    }
}

fn unspecified(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    }
}

fn same_prefix(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let ((a, _), (b, _)) = (bits(a), bits(b));
    prefix == 0 || (a ^ b).leading_zeros() >= u32::from(prefix.min(128))
}
