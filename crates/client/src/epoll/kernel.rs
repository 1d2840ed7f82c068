//! The descriptor of an epoll instance: a kernel epoll instance that holds the wake pipes of its
//! channels, doorbells, an eventfd for what happens inside the process, and the attach sockets.
use crate::error::{Error, Result};
use crate::kernel::HeldFd;
use crate::own::{self, OwnFd};
use rustix::event::{epoll, eventfd, EventfdFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

const SIGNAL: u64 = u64::MAX;
const ATTACH: u64 = u64::MAX - 1;
/// With the number of a doorbell.
const DOORBELL: u64 = 1 << 62;
/// With the serial of a socket.
const MEMBER: u64 = 1 << 61;

#[derive(Debug)]
pub(super) struct Kernel {
    epoll: OwnFd,
    signal: OwnFd,
    /// Waited for inside another instance: the pipes are used only while a thread sleeps.
    hosted: bool,
}

/// The findings of a poll.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Channels whose pipes are readable, by number.
    pub(super) pipes: Vec<u32>,
    /// Doorbells that rang, by number.
    pub(super) doorbells: Vec<u64>,
    /// Members that have news, by their sockets' serials.
    pub(super) members: Vec<u64>,
    /// An attach socket hung up.
    pub(super) hang_up: bool,
    /// Nothing came in time.
    pub(super) timed_out: bool,
}

impl Kernel {
    pub(super) fn new(hosted: bool) -> Result<Self> {
        let make = || -> rustix::io::Result<Self> {
            let epoll = own::make(|| epoll::create(epoll::CreateFlags::CLOEXEC))?;
            let signal = own::make(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
            epoll::add(&epoll, &signal, epoll::EventData::new_u64(SIGNAL), epoll::EventFlags::IN)?;
            Ok(Self { epoll: OwnFd::new(epoll), signal: OwnFd::new(signal), hosted })
        };
        make().map_err(|errno| Error::new(errno, format!("cannot make an epoll descriptor: {errno}")))
    }

    pub(super) fn raw_fd(&self) -> RawFd {
        self.epoll.as_fd().as_raw_fd()
    }

    pub(super) fn hosted(&self) -> bool {
        self.hosted
    }

    /// Adds the wake pipe of the channel of that number.
    pub(super) fn add_pipe(&self, channel: u32, pipe: impl AsFd) -> Result<()> {
        let data = epoll::EventData::new_u64(channel.into());
        self.add_fd(pipe, data, epoll::EventFlags::IN)
    }

    pub(super) fn remove_pipe(&self, pipe: impl AsFd) {
        let _ = epoll::delete(&self.epoll, pipe);
    }

    pub(super) fn add_attachment(&self, fd: impl AsFd) -> Result<()> {
        self.add_fd(fd, epoll::EventData::new_u64(ATTACH), epoll::EventFlags::RDHUP)
    }

    fn add_fd(&self, fd: impl AsFd, data: epoll::EventData, events: epoll::EventFlags) -> Result<()> {
        match epoll::add(&self.epoll, fd, data, events) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(Error::new(errno, format!("cannot watch a channel: {errno}"))),
        }
    }

    /// A doorbell is never read: each ring is an edge.
    pub(super) fn add_doorbell(&self, number: u64, doorbell: &OwnFd) -> Result<()> {
        let data = epoll::EventData::new_u64(DOORBELL | number);
        self.add_fd(doorbell, data, epoll::EventFlags::IN | epoll::EventFlags::ET)
    }

    pub(super) fn remove_doorbell(&self, doorbell: &OwnFd) {
        let _ = epoll::delete(&self.epoll, doorbell);
    }

    /// Each change of a kernel socket is an edge.
    pub(super) fn add_member(&self, serial: u64, fd: &HeldFd) -> Result<()> {
        let data = epoll::EventData::new_u64(MEMBER | serial);
        let all = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP;
        self.add_fd(fd, data, all | epoll::EventFlags::ET)
    }

    pub(super) fn remove_member(&self, fd: &HeldFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(super) fn remove_attachment(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(super) fn set_signal(&self) {
        let _ = rustix::io::write(&self.signal, &1u64.to_ne_bytes());
    }

    pub(super) fn clear_signal(&self) {
        let _ = rustix::io::read(&self.signal, &mut [0u8; 8]);
    }

    pub(super) fn poll(&self, timeout: Duration) -> Found {
        let limit = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; 16];
        // Interrupted by a signal: nothing found.
        let count = epoll::wait(&self.epoll, &mut events, Some(&limit)).unwrap_or_default();
        let mut found = Found { timed_out: count == 0 && !timeout.is_zero(), ..Found::default() };
        for event in &events[..count] {
            match event.data.u64() {
                SIGNAL => {}
                ATTACH => found.hang_up = true,
                doorbell if doorbell & DOORBELL != 0 => found.doorbells.push(doorbell & !DOORBELL),
                member if member & MEMBER != 0 => found.members.push(member & !MEMBER),
                channel => found.pipes.push(channel as u32),
            }
        }
        found
    }
}
