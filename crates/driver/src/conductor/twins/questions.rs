//! Questions to the kernel about the sockets of network namespaces. Those that walk over listeners have a bounded part of the conductor's
//! time ([`Slow`]).
use super::slow::Slow;
use crate::clock::Clock;
use crate::hash::FastMap as HashMap;
use crate::identity::NamespaceId;
use crate::kernel_socket::SocketDiag;
use crate::wanted::{Listening, Wanted};
use rustix::io::Errno;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

/// Time for which a number of AF_UNIX sockets is good enough. The kernel takes some 20 µs to tell it, and a process about 1 µs to make a
/// socket.
const COUNT_LASTS: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Questions {
    diags: HashMap<NamespaceId, SocketDiag>,
    /// Numbers of AF_UNIX sockets, each with the time until which it is good enough.
    unix_sockets: HashMap<NamespaceId, (Duration, u64)>,
    slow: RefCell<Slow>,
}

impl Questions {
    /// Has `diag` answer questions about a namespace.
    pub fn insert(&mut self, namespace: NamespaceId, diag: SocketDiag) {
        self.diags.insert(namespace, diag);
    }

    /// Keeps what answers questions about namespaces of which `is_known` is true.
    pub fn retain(&mut self, is_known: impl Fn(NamespaceId) -> bool) {
        self.diags.retain(|id, _| is_known(*id));
        self.unix_sockets.retain(|id, _| is_known(*id));
    }

    /// Iterates over the namespaces about which questions can be asked.
    pub fn iter(&self) -> impl Iterator<Item = (NamespaceId, &SocketDiag)> {
        self.diags.iter().map(|(id, diag)| (*id, diag))
    }

    /// Returns what answers questions about a namespace.
    pub fn diag(&self, namespace: NamespaceId) -> Option<&SocketDiag> {
        self.diags.get(&namespace)
    }

    /// Returns the number of AF_UNIX sockets of a namespace, as it was [`COUNT_LASTS`] ago at most.
    pub fn unix_sockets(&mut self, namespace: NamespaceId, now: Duration) -> u64 {
        let known = self.unix_sockets.get(&namespace).filter(|(until, _)| now < *until);
        if let Some((_, count)) = known {
            return *count;
        }
        let count = self.diags.get(&namespace).map_or(0, SocketDiag::unix_sockets);
        self.unix_sockets.insert(namespace, (now + COUNT_LASTS, count));
        count
    }

    /// Asks for the inode of a TCP socket, as [`SocketDiag::inode`] does.
    ///
    /// # Errors
    /// Errors of [`SocketDiag::inode`]; `EOPNOTSUPP` if nothing asks in that namespace; `ENOBUFS` if looks there take long, and others have
    /// just taken place.
    pub fn inode(&self, clock: &dyn Clock, namespace: NamespaceId, wanted: &Wanted) -> Result<u32, Errno> {
        self.look(clock, namespace, |diag| diag.inode(wanted))
    }

    /// Asks for the listener that a connection to an address of a namespace gets.
    ///
    /// # Errors
    /// As [`Self::inode`].
    pub fn listener(
        &self,
        clock: &dyn Clock,
        namespace: NamespaceId,
        at: SocketAddr,
    ) -> Result<Option<Listening>, Errno> {
        self.look(clock, namespace, |diag| diag.listener(at))
    }

    fn look<T>(
        &self,
        clock: &dyn Clock,
        namespace: NamespaceId,
        look: impl FnOnce(&SocketDiag) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let diag = self.diags.get(&namespace).ok_or(Errno::OPNOTSUPP)?;
        let mut slow = self.slow.borrow_mut();
        if !slow.may_look(namespace, clock.now()) {
            return Err(Errno::NOBUFS);
        }
        let began = clock.thread_time();
        let found = look(diag);
        slow.note(namespace, clock.now(), clock.thread_time().saturating_sub(began));
        found
    }
}
