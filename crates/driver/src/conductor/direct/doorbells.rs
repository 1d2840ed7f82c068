//! Doorbells: eventfds by which one client wakes another's thread that sleeps in epoll, without the driver.
//!
//! A doorbell is for one epoll instance of the sleeper and one peer, and stands for all their connections. The peer can wake that instance
//! in vain, as it could by sending, but only while the two have connections. After that the sleeper removes the doorbell. The driver makes
//! doorbells and never reads or writes one, so nothing that clients do to the shared description concerns it.
use super::Conductor;
use crate::calls::{may, Call};
use crate::ids::{ClientId, ConnectionId, Side};
use crate::memory::{Account, Amounts, Lease};
use crate::takeover::pack::Wrong;
use pd_abi::{Frame, FrameKind};
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Most doorbells of one client, each a descriptor of the driver. The driver posts events for further connections.
const DOORBELLS_MAX: usize = 128;

/// An eventfd and its number, which is never reused.
#[derive(Debug)]
pub struct Doorbell {
    number: u64,
    fd: OwnedFd,
    /// Lease of the descriptor.
    _lease: Lease,
}

/// Name of a doorbell: the epoll instance that sleeps on it, and the peer with its serial.
pub type Name = (u64, ClientId, u64);

/// Doorbells that a client sleeps on, by name. Connections keep them.
#[derive(Debug, Default)]
pub struct Doorbells(HashMap<Name, Weak<Doorbell>>);

impl Doorbell {
    /// Takes over a doorbell that another driver has given.
    ///
    /// # Errors
    /// The owner may not hold the descriptor.
    pub fn resume(number: u64, fd: OwnedFd, account: &Arc<Account>) -> Result<Arc<Self>, Wrong> {
        let lease = account.lease(Amounts::descriptor());
        let lease = lease.map_err(|exhausted| Wrong::of(format!("a doorbell: {exhausted}")))?;
        Ok(Arc::new(Self { number, fd, _lease: lease }))
    }

    /// Returns its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns its descriptor.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

impl Doorbells {
    /// Returns the name of a doorbell, if it is one of these.
    pub fn name_of(&self, doorbell: &Arc<Doorbell>) -> Option<Name> {
        let is_it =
            |(_, known): &(&Name, &Weak<Doorbell>)| std::ptr::eq(known.as_ptr(), Arc::as_ptr(doorbell));
        self.0.iter().find(is_it).map(|(name, _)| *name)
    }

    /// Takes over a doorbell that another driver has given.
    pub fn resume(&mut self, name: Option<Name>, doorbell: &Arc<Doorbell>) {
        if let Some(name) = name {
            self.0.insert(name, Arc::downgrade(doorbell));
        }
    }

    /// Returns the doorbell of that name. Makes one by `make` if there is none.
    fn get(
        &mut self,
        name: Name,
        make: impl FnOnce() -> rustix::io::Result<Doorbell>,
    ) -> rustix::io::Result<Arc<Doorbell>> {
        if let Some(doorbell) = self.0.get(&name).and_then(Weak::upgrade) {
            return Ok(doorbell);
        }
        if self.0.len() >= DOORBELLS_MAX {
            self.0.retain(|_, doorbell| doorbell.strong_count() > 0);
        }
        if self.0.len() >= DOORBELLS_MAX {
            return Err(Errno::NOBUFS);
        }
        let doorbell = Arc::new(make()?);
        self.0.insert(name, Arc::downgrade(&doorbell));
        Ok(doorbell)
    }
}

impl Conductor {
    /// Answers `Doorbell` with the doorbell that the side's client sleeps on in its epoll instance `instance`.
    pub(super) fn own_doorbell(&mut self, id: ClientId, (index, side): (ConnectionId, Side), instance: u64) {
        let number = self.rings.doorbells + 1;
        let answer = self.doorbell_peer(index, side).and_then(|peer| {
            let client = self.client_mut(id).ok_or(Errno::NOTCONN)?;
            let account = &client.account;
            client.doorbells.get((instance, peer.0, peer.1), || {
                let lease = account.lease(Amounts::descriptor()).map_err(|exhausted| exhausted.errno())?;
                may(Call::EventFd)?;
                let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                Ok(Doorbell { number, fd, _lease: lease })
            })
        });
        if answer.as_ref().is_ok_and(|doorbell| doorbell.number == number) {
            self.rings.doorbells = number;
        }
        let sent = answer.and_then(|doorbell| Ok((dup(&doorbell)?, doorbell)));
        match (sent, self.direct_mut(index)) {
            (Ok((fd, doorbell)), Some(direct)) => {
                let number = doorbell.number;
                direct.doorbells[side] = Some(doorbell);
                self.tell_doorbell(id, FrameKind::Doorbell, number, fd);
            }
            (Err(errno), _) => self.refuse(id, errno, "no doorbell: the driver posts events"),
            (Ok(_), None) => self.refuse(id, Errno::NOTCONN, "the connection is over"),
        }
    }

    /// Answers `PeerDoorbell` with the doorbell that the other side's client sleeps on.
    pub(super) fn peer_doorbell(&mut self, id: ClientId, (index, side): (ConnectionId, Side)) {
        let doorbell = self.direct_mut(index).and_then(|direct| direct.doorbells[side.other()].clone());
        match doorbell.ok_or(Errno::AGAIN).and_then(|doorbell| Ok((doorbell.number, dup(&doorbell)?))) {
            Ok((number, fd)) => self.tell_doorbell(id, FrameKind::PeerDoorbell, number, fd),
            Err(errno) => self.refuse(id, errno, "the peer has no doorbell"),
        }
    }

    /// Returns the peer of a connection that has rings in both directions.
    fn doorbell_peer(&self, index: ConnectionId, side: Side) -> rustix::io::Result<(ClientId, u64)> {
        let direct = self.connection(index).and_then(|connection| connection.direct.as_ref());
        let direct = direct.filter(|direct| direct.rings.iter().all(Option::is_some));
        direct.map(|direct| direct.clients[side.other()]).ok_or(Errno::AGAIN)
    }

    fn tell_doorbell(&self, id: ClientId, kind: FrameKind, number: u64, fd: OwnedFd) {
        self.tell_client(id, &Frame::new(kind).with_bytes(number, 0), Some(fd));
    }
}

fn dup(doorbell: &Doorbell) -> rustix::io::Result<OwnedFd> {
    may(Call::Duplicate)?;
    rustix::io::fcntl_dupfd_cloexec(&doorbell.fd, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HugepageUse, Pool};

    #[test]
    fn an_instance_and_a_peer_have_one_doorbell_while_connections_keep_it() {
        let mut doorbells = Doorbells::default();
        let pool = Pool::new(0, HugepageUse::Off);
        let mut made = 0;
        let mut get = |name| {
            doorbells.get(name, || {
                made += 1;
                let lease = pool.root().lease(Amounts::descriptor()).unwrap();
                Ok(Doorbell { number: made, fd: eventfd(0, EventfdFlags::CLOEXEC)?, _lease: lease })
            })
        };
        let number = |doorbell: &rustix::io::Result<Arc<Doorbell>>| {
            doorbell.as_ref().map(|doorbell| doorbell.number).ok()
        };
        let first = get((1, ClientId::new(7), 70));
        assert_eq!((number(&first), number(&get((1, ClientId::new(7), 70)))), (Some(1), Some(1)));
        assert_eq!(number(&get((2, ClientId::new(7), 70))), Some(2), "another instance");
        assert_eq!(number(&get((1, ClientId::new(7), 71))), Some(3), "the number of a client that has gone");
        drop(first);
        assert_eq!(number(&get((1, ClientId::new(7), 70))), Some(4), "no connection kept it");
        let kept: Vec<_> =
            (0..DOORBELLS_MAX as u64).map(|n| get((n, ClientId::new(8), 80)).unwrap()).collect();
        assert_eq!(get((1, ClientId::new(9), 90)).err(), Some(Errno::NOBUFS));
        drop(kept);
        assert!(get((1, ClientId::new(9), 90)).is_ok());
    }
}
