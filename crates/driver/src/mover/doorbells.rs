//! How a mover is rung: by clients, by its mailbox, and by whatever else its thread waits for.
use crate::calls::{may, Call};
use crate::ids::ClientId;
use rustix::event::epoll;
use rustix::time::Timespec;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const TOKEN_INBOX: u64 = u64::MAX;
const TOKEN_EXTRA: u64 = u64::MAX - 1;

/// Space for what one wait finds.
pub type Space = [MaybeUninit<epoll::Event>; 64];

/// See the module.
pub struct Doorbells {
    epoll: OwnedFd,
    watched: bool,
    sleeps: u32,
}

/// Who rang.
pub enum Rung {
    Channel(ClientId, usize),
    /// Something else, which is looked at anyway.
    Other,
}

impl Doorbells {
    /// With the descriptor of a mailbox.
    ///
    /// # Errors
    /// Those of `epoll`.
    pub fn new(inbox: impl AsFd) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, inbox, epoll::EventData::new_u64(TOKEN_INBOX), edge)?;
        Ok(Self { epoll, watched: false, sleeps: 0 })
    }

    /// Another descriptor: see [`Self::take_watched`].
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub fn watch(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(TOKEN_EXTRA), epoll::EventFlags::IN)
    }

    /// Whether that one has become readable since the last call.
    pub fn take_watched(&mut self) -> bool {
        std::mem::take(&mut self.watched)
    }

    /// A channel's doorbell.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub fn add(&self, client: ClientId, channel: usize, doorbell: impl AsFd) -> rustix::io::Result<()> {
        may(Call::Watch)?;
        let data = epoll::EventData::new_u64(u64::from(client.get()) << 32 | channel as u64);
        epoll::add(&self.epoll, doorbell, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    /// It is heard no more: the client's end may live on in another process.
    pub fn remove(&self, doorbell: impl AsFd) {
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    /// Waits in the kernel. Returns what has rung, for [`Self::hear`].
    pub fn wait<'a>(&self, space: &'a mut Space, timeout: Option<Duration>) -> &'a [epoll::Event] {
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        // An interrupted or failed wait is a wake-up like any other: everything is looked at.
        match epoll::wait(&self.epoll, space, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(_) => &[],
        }
    }

    /// Whether anybody has rung.
    #[cfg(any(test, fuzzing, feature = "hostile"))]
    pub fn is_rung(&self) -> bool {
        crate::simulation::kernel::is_readable(&self.epoll)
    }

    /// Who rang.
    pub fn hear(&mut self, event: &epoll::Event) -> Rung {
        match event.data.u64() {
            TOKEN_INBOX => Rung::Other,
            TOKEN_EXTRA => {
                self.watched = true;
                Rung::Other
            }
            token => Rung::Channel(ClientId::new((token >> 32) as u16), token as u32 as usize),
        }
    }

    /// Numbers of sleeps are beyond those of another mover from now on: one of its channels comes here, whose client may have
    /// rung for any of them.
    pub fn number_beyond(&mut self, other: &Self) {
        self.sleeps = self.sleeps.max(other.sleeps);
    }

    /// Sleeps that had numbers, and those of a driver that was taken over.
    pub fn sleeps(&self) -> u32 {
        self.sleeps
    }

    /// Numbers of sleeps are beyond these from now on.
    pub fn number_beyond_these(&mut self, sleeps: u32) {
        self.sleeps = self.sleeps.max(sleeps);
    }

    /// As if so many sleeps had had numbers.
    #[cfg(test)]
    pub fn pretend_slept(&mut self, times: u32) {
        self.sleeps = times;
    }

    /// A number for the sleep that begins, which clients ring for once: not 0, and not the last one.
    pub fn number_sleep(&mut self) -> u32 {
        self.sleeps = self.sleeps.wrapping_add(1).max(1);
        self.sleeps
    }
}
