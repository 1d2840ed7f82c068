use super::listener::Listener;
use super::stream::Stream;
use crate::epoll::{ready, Epoll as Core};
use crate::error::Result;
use crate::socket::Socket;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// Waits for many streams and listeners at once.
#[derive(Debug)]
pub struct Epoll {
    core: Arc<Core>,
}

/// Readiness that a program asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(pub(super) u32);

impl Interest {
    /// Readable, ended, or a connection to accept.
    pub const READ: Self = Self(ready::IN | ready::RDHUP);
    /// Writable.
    pub const WRITE: Self = Self(ready::OUT);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Report what happens instead of what is there.
    #[must_use]
    pub const fn edge(self) -> Self {
        Self(self.0 | ready::EDGE)
    }

    /// Report once, then not until [`Epoll::modify`].
    #[must_use]
    pub const fn one_shot(self) -> Self {
        Self(self.0 | ready::ONESHOT)
    }
}

/// Readiness of a socket, as [`Epoll::wait`] reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number given with the socket.
    pub data: u64,
    pub(super) bits: u32,
}

impl Event {
    /// Something to receive or accept, or the stream has ended.
    pub fn readable(&self) -> bool {
        self.bits & ready::IN != 0
    }

    /// Room to send.
    pub fn writable(&self) -> bool {
        self.bits & ready::OUT != 0
    }

    /// The peer has ended its stream.
    pub fn read_closed(&self) -> bool {
        self.bits & (ready::RDHUP | ready::HUP) != 0
    }

    /// The connection has failed.
    pub fn failed(&self) -> bool {
        self.bits & ready::ERR != 0
    }
}

/// A member of an [`Epoll`]: a [`Stream`] or a [`Listener`].
pub trait Pollable: private::Sealed {}

pub(super) mod private {
    pub trait Sealed {
        fn socket(&self) -> &super::Arc<super::Socket>;
    }
}

impl private::Sealed for Stream {
    fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }
}

impl private::Sealed for Listener {
    fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }
}

impl Pollable for Stream {}
impl Pollable for Listener {}

impl Epoll {
    /// Without sockets.
    pub fn new() -> Self {
        Self { core: Core::new() }
    }

    /// Adds a socket; `data` comes back with its events. Dropping the socket takes it out.
    ///
    /// # Errors
    /// `EEXIST`.
    pub fn add(&self, socket: &impl Pollable, interest: Interest, data: u64) -> Result<()> {
        self.core.add(socket.socket(), interest.0, data)
    }

    /// Changes what is wanted; enables a one-shot interest again.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn modify(&self, socket: &impl Pollable, interest: Interest, data: u64) -> Result<()> {
        self.core.modify(socket.socket(), interest.0, data)
    }

    /// Takes a socket out.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn remove(&self, socket: &impl Pollable) -> Result<()> {
        self.core.remove(socket.socket())
    }

    /// Waits for at least one event, at most `timeout` (none: for ever), and replaces the contents of
    /// `events` by at most `max`. Empty: the time was over.
    ///
    /// # Errors
    /// `EINVAL` if `max` is 0.
    pub fn wait(&self, events: &mut Vec<Event>, max: usize, timeout: Option<Duration>) -> Result<()> {
        events.clear();
        self.core.wait(max, timeout, &mut |bits, data| events.push(Event { data, bits }))?;
        Ok(())
    }

    /// A descriptor that is readable whenever [`Self::wait`] may have something to report. It belongs
    /// to the instance: never read from it and never close it.
    ///
    /// # Errors
    /// `EMFILE`; those of asking the driver.
    pub fn fd(&self) -> Result<RawFd> {
        self.core.fd()
    }
}

impl Default for Epoll {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        self.core.close();
    }
}
