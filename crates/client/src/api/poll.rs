//! `poll` for few streams, listeners and descriptors at a time; [`Epoll`](super::Epoll) is for many.
use super::epoll::{Event, Interest, Pollable};
use crate::epoll::ready;
use crate::error::Result;
use crate::poll::{self, Target};
use libc::{pollfd, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// A socket or descriptor for [`poll`](poll()), and the events found. Interests of edges and of one event are those of levels here.
#[derive(Debug)]
pub struct PollFd<'a> {
    target: Target,
    entry: pollfd,
    of: PhantomData<&'a ()>,
}

/// Bits of epoll and those of poll.
const BITS: [(u32, i16); 5] = [
    (ready::IN, POLLIN),
    (ready::OUT, POLLOUT),
    (ready::RDHUP, POLLRDHUP),
    (ready::ERR, POLLERR | POLLNVAL),
    (ready::HUP, POLLHUP),
];

impl<'a> PollFd<'a> {
    fn of(target: Target, fd: i32, interest: Interest) -> Self {
        let wanted =
            BITS.iter().filter(|(bit, _)| interest.0 & bit != 0).fold(0, |bits, (_, poll)| bits | poll);
        Self { target, entry: pollfd { fd, events: wanted, revents: 0 }, of: PhantomData }
    }

    /// A stream or a listener.
    pub fn socket(socket: &'a impl Pollable, interest: Interest) -> Self {
        Self::of(Target::Socket(socket.socket().clone()), -1, interest)
    }

    /// A descriptor of the kernel's.
    pub fn fd(fd: &'a impl AsFd, interest: Interest) -> Self {
        let fd = fd.as_fd().as_raw_fd();
        Self::of(Target::Descriptor(fd), fd, interest)
    }

    /// Events that the last [`poll`](poll()) found, with 0 for their data. None: nothing that was wanted, and no failure.
    pub fn event(&self) -> Option<Event> {
        let found = BITS.iter().filter(|(_, poll)| self.entry.revents & poll != 0);
        let bits = found.fold(0, |bits, (bit, _)| bits | bit);
        (bits != 0).then_some(Event { data: 0, bits })
    }
}

/// Waits until anything that is wanted holds, at most `timeout` (none: for ever), and returns of how many entries. 0: the time was over. Signals do
/// not interrupt it. Any thread may wait for the same sockets.
///
/// # Errors
/// As poll(2); `ENOMEM`, `EMFILE` where sockets and descriptors are waited for together.
pub fn poll(entries: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<usize> {
    let mut list: Vec<pollfd> = entries.iter().map(|entry| entry.entry).collect();
    let targets: Vec<_> = entries.iter().map(|entry| entry.target.clone()).collect();
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let count = loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match poll::poll(&mut list, &targets, left) {
            Err(error) if error.errno() == libc::EINTR => {}
            done => break done?,
        }
    };
    entries.iter_mut().zip(list).for_each(|(entry, found)| entry.entry.revents = found.revents);
    Ok(count)
}
