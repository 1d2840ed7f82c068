//! Wake-ups of an agent by programs: an eventfd for each pipe, all in one epoll set.
//!
//! A program shares only the description of its own eventfd. A program may fill it, empty it, or make it blocking: the agent neither
//! writes nor reads it, and is woken by edges.
use rustix::event::{epoll, Timespec};
use rustix::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The doorbells of an agent.
#[derive(Debug)]
pub(super) struct Doorbells {
    epoll: OwnedFd,
}

impl Doorbells {
    /// Makes a set without doorbells.
    pub fn new() -> Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds a doorbell, to be removed again, or another descriptor that ends a sleep.
    pub fn add(&self, doorbell: impl AsFd) -> Result<()> {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, doorbell, epoll::EventData::new_u64(0), edge)
    }

    /// Removes a doorbell. The program's descriptor would keep it in the set.
    pub fn remove(&self, own: impl AsFd) {
        let _ = epoll::delete(&self.epoll, own);
    }

    /// Sleeps until one is rung, at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut space = [MaybeUninit::uninit(); 64];
        // After any wake-up, the next turn looks at all pipes.
        let _ = epoll::wait(&self.epoll, &mut space, Some(&timeout));
    }
}
