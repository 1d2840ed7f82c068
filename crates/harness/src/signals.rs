//! Signals as something to read: a descriptor that is polled beside others, so that nothing runs in
//! a signal handler and clean-up is ordinary code.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// Number of the signal.
    pub signal: i32,
    /// Tells whether the terminal sent it, in which case every process of the foreground group has it.
    pub from_terminal: bool,
}

/// Reason for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The descriptor is readable, or its other end is closed.
    Ready,
    /// A signal arrived first.
    Signal(Caught),
    /// The time is over.
    TimedOut,
}

/// The signals that ask a program to end, blocked from their default action while this exists.
pub struct Signals {
    fd: SignalFd,
}

const WATCHED: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];
const SI_KERNEL: i32 = 0x80;

impl Signals {
    /// Starts watching. To be called before the first thread is started.
    pub fn watch() -> Result<Signals> {
        let fd = crate::sys::signal_fd(&WATCHED).context("cannot open a signalfd")?;
        Ok(Signals { fd })
    }

    /// Returns the next signal, if one has arrived.
    pub fn next(&self) -> Option<Caught> {
        let record = self.fd.read_signal().ok()??;
        Some(Caught { signal: record.ssi_signo as i32, from_terminal: record.ssi_code == SI_KERNEL })
    }

    /// Fails if a signal has arrived: for long work to call now and then.
    pub fn check(&self) -> Result<()> {
        match self.next() {
            Some(caught) => Err(interrupted(caught)),
            None => Ok(()),
        }
    }

    /// Waits until `fd` is readable or hung up, a signal arrives, or `timeout` is over.
    pub fn wait(&self, fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<Wake> {
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        loop {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN), PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Ok(Wake::TimedOut),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e).context("poll failed"),
            }
            if !fds[0].revents().is_empty() {
                return Ok(Wake::Ready);
            }
            if let Some(caught) = self.next() {
                return Ok(Wake::Signal(caught));
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Work was ended by a signal, not by an error of its own.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted(Caught);

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "interrupted by signal {}", self.0.signal)
    }
}

impl std::error::Error for Interrupted {}

/// Returns the error of work that a signal ended; [`Interrupted`] is found in its chain.
pub fn interrupted(caught: Caught) -> anyhow::Error {
    Interrupted(caught).into()
}
