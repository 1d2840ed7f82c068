//! Waiting in `poll` or `epoll`: the descriptor of a pipe, and eventfds of the direct path.
//!
//! The descriptor is an epoll instance of this process, so that it stays the same whoever wakes the program: the agent by a pair of sockets,
//! the other end of a link by a *wake-up eventfd*. That belongs to one offer and one side, and is made by the agent. The two ends share its
//! description: each can fill the counter, empty it, or make it block. So the side that sleeps never reads it and takes each signal as an edge; the
//! side that wakes never writes it ([`crate::signaller`]). A peer can withhold a wake-up, as it can withhold frames, or wake in vain
//! while it is the peer.
use crate::signaller::Signaller;
use pd_shm::wait::{SharedCells, WakerCells};
use pd_shm::{Own, Theirs};
use rustix::event::{epoll, Timespec};
use rustix::io::{fcntl_dupfd_cloexec, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Names in the epoll instance.
const AGENT: u64 = 0;
const PEER: u64 = 1;

/// The descriptor that a program waits on.
#[derive(Debug)]
pub(super) struct Wakes {
    epoll: Arc<OwnedFd>,
    /// Program's end of the agent's pair.
    wake_fd: OwnedFd,
}

/// An eventfd of this end in the epoll instance, until it is dropped.
#[derive(Debug)]
pub(super) struct OwnEventfd {
    epoll: Arc<OwnedFd>,
    eventfd: OwnedFd,
}

/// An eventfd of the other end.
#[derive(Debug)]
pub(super) struct PeerEventfd {
    eventfd: OwnedFd,
    signaller: Arc<Signaller>,
}

impl Wakes {
    /// Makes the descriptor over the program's end of the agent's pair.
    ///
    /// # Errors
    /// `EMFILE` and others of making an epoll instance.
    pub fn new(wake_fd: OwnedFd) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake_fd, epoll::EventData::new_u64(AGENT), epoll::EventFlags::IN)?;
        Ok(Self { epoll: Arc::new(epoll), wake_fd })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Takes note of all wake-ups so far: the descriptor becomes readable with the next one. Comes before the look at shared words.
    pub fn clear(&self) {
        let nothing =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(PEER) };
        let mut found = [nothing; 4];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.epoll, &mut found, Some(&at_once)).unwrap_or_default();
        if found[..count].iter().any(|event| event.data.u64() == AGENT) {
            let mut bytes = [0; 64];
            while rustix::io::read(&self.wake_fd, &mut bytes).is_ok_and(|len| len == bytes.len()) {}
        }
    }

    /// Has the descriptor tell of signals of an eventfd.
    ///
    /// # Errors
    /// `EMFILE`, and `ENOSPC` at the user's limit of epoll.
    pub fn add(&self, eventfd: impl AsFd) -> Result<OwnEventfd> {
        let eventfd = fcntl_dupfd_cloexec(eventfd, 0)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &eventfd, epoll::EventData::new_u64(PEER), edge)?;
        Ok(OwnEventfd { epoll: Arc::clone(&self.epoll), eventfd })
    }
}

impl Drop for OwnEventfd {
    fn drop(&mut self) {
        // The other end holds the description, too, which would keep it in the instance.
        let _ = epoll::delete(&self.epoll, &self.eventfd);
    }
}

impl PeerEventfd {
    /// Takes an eventfd of the other end.
    ///
    /// # Errors
    /// `EMFILE`; `EAGAIN` at `fs.aio-max-nr`, and `ENOSYS` on a kernel without asynchronous requests.
    pub fn new(eventfd: impl AsFd) -> Result<Self> {
        Ok(Self { eventfd: fcntl_dupfd_cloexec(eventfd, 0)?, signaller: Signaller::of_process()? })
    }
}

/// The words of the other end's sleep, and its eventfd.
pub(super) struct PeerCells<'a> {
    pub words: SharedCells<'a, Theirs, Own>,
    pub eventfd: Option<&'a PeerEventfd>,
}

impl WakerCells for PeerCells<'_> {
    fn load_wake_at(&self) -> u64 {
        self.words.load_wake_at()
    }
    fn fence(&self) {
        WakerCells::fence(&self.words);
    }
    fn ring(&self) {
        self.words.ring();
        if let Some(PeerEventfd { eventfd, signaller }) = self.eventfd {
            // SYNC POINT: link-eventfd (the sleeper takes note of signals before its look)
            let _ = signaller.signal(eventfd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags};
    use rustix::io::{read, write};

    fn is_readable(wakes: &Wakes) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&wakes.fd(), PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    fn stand() -> (Wakes, OwnedFd, OwnedFd) {
        let (theirs, own) = pd_shm::wake::pair().unwrap();
        (Wakes::new(theirs).unwrap(), own, eventfd(0, EventfdFlags::NONBLOCK).unwrap())
    }

    #[test]
    fn each_wake_up_of_either_is_told_until_it_is_taken_note_of() {
        let (wakes, agent, eventfd) = stand();
        let own = wakes.add(&eventfd).unwrap();
        let peer = PeerEventfd::new(&eventfd).unwrap();
        for _ in 0..300 {
            assert!(!is_readable(&wakes));
            peer.signaller.signal(&peer.eventfd).unwrap();
            assert!(is_readable(&wakes) && is_readable(&wakes));
            wakes.clear();
            assert!(!is_readable(&wakes));
            (0..100).for_each(|_| pd_shm::wake::wake(&agent));
            assert!(is_readable(&wakes));
            wakes.clear();
        }
        // A path that was left wakes no more, though the other end still has the eventfd.
        drop(own);
        peer.signaller.signal(&peer.eventfd).unwrap();
        assert!(!is_readable(&wakes));
        pd_shm::wake::wake(&agent);
        assert!(is_readable(&wakes));
    }

    /// Either end fills the counter and makes the description block.
    #[test]
    fn no_end_can_make_the_other_wait_or_miss_a_wake_up() {
        let (wakes, _agent, eventfd) = stand();
        let _own = wakes.add(&eventfd).unwrap();
        let peer = PeerEventfd::new(&eventfd).unwrap();
        rustix::fs::fcntl_setfl(&eventfd, rustix::fs::OFlags::empty()).unwrap();
        write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..1000 {
            wakes.clear();
            assert!(!is_readable(&wakes));
            peer.signaller.signal(&peer.eventfd).unwrap();
            assert!(is_readable(&wakes));
        }
        // Emptied: no wait of either, and the next signal is told.
        read(&eventfd, &mut [0; 8]).unwrap();
        wakes.clear();
        peer.signaller.signal(&peer.eventfd).unwrap();
        assert!(is_readable(&wakes));
    }
}
