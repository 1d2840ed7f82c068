//! Doorbells of a mover: those of clients, of its mailbox, and of other descriptors that its thread waits for.
use super::channel::Channel;
use crate::calls::{may, Call};
use crate::ids::ClientId;
use rustix::event::epoll;
use rustix::time::Timespec;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const TOKEN_INBOX: u64 = u64::MAX;
const TOKEN_EXTRA: u64 = u64::MAX - 1;

/// Space for the events of one wait.
pub type Space = [MaybeUninit<epoll::Event>; 64];

/// See the module.
pub struct Doorbells {
    epoll: OwnedFd,
    watched: bool,
    sleeps: u32,
}

/// Doorbell that rang.
pub enum Rung {
    Channel(ClientId, usize),
    /// Another descriptor, which is looked at anyway.
    Other,
}

impl Doorbells {
    /// Makes the doorbells, with the descriptor of a mailbox.
    ///
    /// # Errors
    /// Errors of `epoll`.
    pub fn new(inbox: impl AsFd) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, inbox, epoll::EventData::new_u64(TOKEN_INBOX), edge)?;
        Ok(Self { epoll, watched: false, sleeps: 0 })
    }

    /// Watches another descriptor: see [`Self::take_watched`].
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn watch(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(TOKEN_EXTRA), epoll::EventFlags::IN)
    }

    /// Tells whether that descriptor has become readable since the last call.
    pub fn take_watched(&mut self) -> bool {
        std::mem::take(&mut self.watched)
    }

    /// Adds a channel's doorbell.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`.
    pub fn add(&self, client: ClientId, channel: usize, doorbell: impl AsFd) -> rustix::io::Result<()> {
        may(Call::Watch)?;
        let data = epoll::EventData::new_u64(u64::from(client.get()) << 32 | channel as u64);
        epoll::add(&self.epoll, doorbell, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// Watches a channel's doorbell, if that could not be done before. Returns whether it is watched.
    pub fn take_channel(&self, client: ClientId, index: usize, channel: &mut Channel) -> bool {
        if !channel.is_watched() {
            channel.set_watched(self.add(client, index, channel.doorbell()).is_ok());
        }
        channel.is_watched()
    }

    /// Removes a doorbell: the client's end may live on in another process.
    pub fn remove(&self, doorbell: impl AsFd) {
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    /// Waits in the kernel. Returns the events, for [`Self::take`].
    pub fn wait<'a>(&self, space: &'a mut Space, timeout: Option<Duration>) -> &'a [epoll::Event] {
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        // An interrupted or failed wait is a wake-up like any other: everything is looked at.
        match epoll::wait(&self.epoll, space, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(_) => &[],
        }
    }

    /// Tells whether a doorbell has rung.
    #[cfg(any(test, fuzzing, feature = "testing"))]
    pub fn is_rung(&self) -> bool {
        crate::simulation::kernel::is_readable(&self.epoll)
    }

    /// Returns the doorbell that rang.
    pub fn take(&mut self, event: &epoll::Event) -> Rung {
        match event.data.u64() {
            TOKEN_INBOX => Rung::Other,
            TOKEN_EXTRA => {
                self.watched = true;
                Rung::Other
            }
            token => Rung::Channel(ClientId::new((token >> 32) as u16), token as u32 as usize),
        }
    }

    /// Numbers further sleeps beyond those of another mover. One of its channels comes here, and the client may have rung for any of them.
    pub fn number_beyond(&mut self, other: &Self) {
        self.sleeps = self.sleeps.max(other.sleeps);
    }

    /// Returns the highest number of a sleep, also of a driver that was taken over.
    pub fn sleeps(&self) -> u32 {
        self.sleeps
    }

    /// Numbers further sleeps beyond these.
    pub fn number_beyond_these(&mut self, sleeps: u32) {
        self.sleeps = self.sleeps.max(sleeps);
    }

    /// Pretends that sleeps have had numbers up to `times`.
    #[cfg(test)]
    pub fn pretend_slept(&mut self, times: u32) {
        self.sleeps = times;
    }

    /// Returns a number for the sleep that begins, for which clients ring once. The number is not 0, and not the last one.
    pub fn number_sleep(&mut self) -> u32 {
        self.sleeps = self.sleeps.wrapping_add(1).max(1);
        self.sleeps
    }
}
