//! Bells: eventfds by which one client wakes another's thread that sleeps in epoll, without the driver.
//!
//! One bell is for one epoll instance of the sleeper and one peer: it stands for all their connections. Whoever holds it can wake that
//! instance in vain, as it could by sending, and only while the two have connections: then the sleeper takes it out. The
//! driver makes bells and never reads or writes one, so nothing that clients do to the shared description concerns it.
use super::Conductor;
use crate::calls::{may, Call};
use crate::ids::{ClientId, ConnectionId, Side};
use crate::memory::{Amounts, Lease};
use pd_abi::{Frame, FrameKind};
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Bells of one client, each a descriptor of the driver's; connections beyond them have the driver post events.
const BELLS_MAX: usize = 128;

/// An eventfd and its number, which no other bell has or will have.
#[derive(Debug)]
pub struct Bell {
    number: u64,
    fd: OwnedFd,
    /// For the descriptor.
    _lease: Lease,
}

/// Those that a client sleeps on: by its epoll instance, and by the peer with its serial. Connections keep them.
#[derive(Debug, Default)]
pub struct Bells(HashMap<(u64, ClientId, u64), Weak<Bell>>);

impl Bells {
    /// The bell of that name; made by `make` if there is none.
    fn get(
        &mut self,
        name: (u64, ClientId, u64),
        make: impl FnOnce() -> rustix::io::Result<Bell>,
    ) -> rustix::io::Result<Arc<Bell>> {
        if let Some(bell) = self.0.get(&name).and_then(Weak::upgrade) {
            return Ok(bell);
        }
        if self.0.len() >= BELLS_MAX {
            self.0.retain(|_, bell| bell.strong_count() > 0);
        }
        if self.0.len() >= BELLS_MAX {
            return Err(Errno::NOBUFS);
        }
        let bell = Arc::new(make()?);
        self.0.insert(name, Arc::downgrade(&bell));
        Ok(bell)
    }
}

impl Conductor {
    /// Answers `Bell`: the bell that the side's client sleeps on with its epoll instance `instance`.
    pub(super) fn own_bell(&mut self, id: ClientId, (index, side): (ConnectionId, Side), instance: u64) {
        let number = self.rings.bells + 1;
        let answer = self.bell_peer(index, side).and_then(|peer| {
            let client = self.client_mut(id).ok_or(Errno::NOTCONN)?;
            let account = &client.account;
            client.bells.get((instance, peer.0, peer.1), || {
                let lease = account.lease(Amounts::descriptor()).map_err(|exhausted| exhausted.errno())?;
                may(Call::EventFd)?;
                let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                Ok(Bell { number, fd, _lease: lease })
            })
        });
        if answer.as_ref().is_ok_and(|bell| bell.number == number) {
            self.rings.bells = number;
        }
        let sent = answer.and_then(|bell| Ok((dup(&bell)?, bell)));
        match (sent, self.direct_mut(index)) {
            (Ok((fd, bell)), Some(direct)) => {
                let number = bell.number;
                direct.bells[side] = Some(bell);
                self.tell_bell(id, FrameKind::Bell, number, fd);
            }
            (Err(errno), _) => self.refuse(id, errno, "no bell: the driver posts events"),
            (Ok(_), None) => self.refuse(id, Errno::NOTCONN, "the connection is over"),
        }
    }

    /// Answers `PeerBell`: the bell that the other side's client sleeps on.
    pub(super) fn peer_bell(&mut self, id: ClientId, (index, side): (ConnectionId, Side)) {
        let bell = self.direct_mut(index).and_then(|direct| direct.bells[side.other()].clone());
        match bell.ok_or(Errno::AGAIN).and_then(|bell| Ok((bell.number, dup(&bell)?))) {
            Ok((number, fd)) => self.tell_bell(id, FrameKind::PeerBell, number, fd),
            Err(errno) => self.refuse(id, errno, "the peer has no bell"),
        }
    }

    /// The peer of a connection that has rings in both directions.
    fn bell_peer(&self, index: ConnectionId, side: Side) -> rustix::io::Result<(ClientId, u64)> {
        let direct = self.connection(index).and_then(|connection| connection.direct.as_ref());
        let direct = direct.filter(|direct| direct.rings.iter().all(Option::is_some));
        direct.map(|direct| direct.clients[side.other()]).ok_or(Errno::AGAIN)
    }

    fn tell_bell(&self, id: ClientId, kind: FrameKind, number: u64, fd: OwnedFd) {
        self.tell_client(id, &Frame::new(kind).with_bytes(number, 0), Some(fd));
    }
}

fn dup(bell: &Bell) -> rustix::io::Result<OwnedFd> {
    may(Call::Duplicate)?;
    rustix::io::fcntl_dupfd_cloexec(&bell.fd, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HugepageUse, Pool};

    #[test]
    fn an_instance_and_a_peer_have_one_bell_while_connections_keep_it() {
        let mut bells = Bells::default();
        let pool = Pool::new(0, HugepageUse::Off);
        let mut made = 0;
        let mut get = |name| {
            bells.get(name, || {
                made += 1;
                let lease = pool.root().lease(Amounts::descriptor()).unwrap();
                Ok(Bell { number: made, fd: eventfd(0, EventfdFlags::CLOEXEC)?, _lease: lease })
            })
        };
        let number = |bell: &rustix::io::Result<Arc<Bell>>| bell.as_ref().map(|bell| bell.number).ok();
        let first = get((1, ClientId::new(7), 70));
        assert_eq!((number(&first), number(&get((1, ClientId::new(7), 70)))), (Some(1), Some(1)));
        assert_eq!(number(&get((2, ClientId::new(7), 70))), Some(2), "another instance");
        assert_eq!(number(&get((1, ClientId::new(7), 71))), Some(3), "the number of a client that has gone");
        drop(first);
        assert_eq!(number(&get((1, ClientId::new(7), 70))), Some(4), "no connection kept it");
        let kept: Vec<_> = (0..BELLS_MAX as u64).map(|n| get((n, ClientId::new(8), 80)).unwrap()).collect();
        assert_eq!(get((1, ClientId::new(9), 90)).err(), Some(Errno::NOBUFS));
        drop(kept);
        assert!(get((1, ClientId::new(9), 90)).is_ok());
    }
}
