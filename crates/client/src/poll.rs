//! `poll`: sockets and descriptors of the kernel's in one call.
use crate::epoll::other::Other;
use crate::epoll::{ready, Epoll};
use crate::error::{Error, Result};
use crate::socket::Socket;
use libc::{
    c_int, nfds_t, pollfd, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Object of an entry.
#[derive(Clone, Debug)]
pub enum Target {
    /// A socket.
    Socket(Arc<Socket>),
    /// An object that is none, and a descriptor that tells of its news.
    Other(Arc<Other>, Arc<OwnedFd>),
    /// A descriptor of the kernel's, or of an epoll instance.
    Descriptor(c_int),
    /// A number that names nothing.
    Unknown,
    /// A negative number.
    Nothing,
}

/// Events of epoll for those of poll, which has two names for IN and for OUT.
fn wanted(events: i16) -> u32 {
    let any = |bits: i16, ready: u32| if events & bits != 0 { ready } else { 0 };
    any(POLLIN | POLLRDNORM, ready::IN) | any(POLLOUT | POLLWRNORM, ready::OUT) | any(POLLRDHUP, ready::RDHUP)
}

fn found(ready: u32, events: i16) -> i16 {
    let all = [
        (ready::IN, POLLIN | POLLRDNORM),
        (ready::OUT, POLLOUT | POLLWRNORM),
        (ready::RDHUP, POLLRDHUP),
        (ready::ERR, POLLERR),
        (ready::HUP, POLLHUP),
    ];
    let bits = all.iter().filter(|(bit, _)| ready & bit != 0).fold(0, |bits, (_, poll)| bits | poll);
    bits & (events | POLLERR | POLLHUP)
}

/// State of a call.
struct Call<'a> {
    entries: &'a mut [pollfd],
    targets: &'a [Target],
    /// Part of the kernel: entries with descriptors, and at last that of `sleeper`, if there is one.
    kernel: Vec<pollfd>,
    sleeper: Option<Sleeper>,
}

/// An instance with the sockets of a call, which lives as long as it sleeps.
struct Sleeper(Arc<Epoll>);

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<'a> Call<'a> {
    fn new(entries: &'a mut [pollfd], targets: &'a [Target]) -> Self {
        let kernel = targets.iter().zip(entries.iter()).filter_map(|(target, entry)| match *target {
            Target::Descriptor(fd) => Some(pollfd { fd, events: entry.events, revents: 0 }),
            _ => None,
        });
        let kernel = kernel.collect();
        Self { entries, targets, kernel, sleeper: None }
    }

    /// Fills in what holds now. Returns of how many entries anything does.
    fn look(&mut self) -> Result<usize> {
        poll_kernel(&mut self.kernel, 0)?;
        let mut kernel = self.kernel.iter();
        let mut count = 0;
        for (entry, target) in self.entries.iter_mut().zip(self.targets) {
            entry.revents = match target {
                Target::Socket(socket) => found(socket.ready(wanted(entry.events)), entry.events),
                Target::Other(other, _) => found(other.ready(wanted(entry.events)), entry.events),
                Target::Descriptor(_) => kernel.next().map_or(0, |looked| looked.revents),
                Target::Unknown => POLLNVAL,
                Target::Nothing => 0,
            };
            count += usize::from(entry.revents != 0);
        }
        Ok(count)
    }

    /// Sleeps until an event may hold, for `milliseconds` at most (-1: for ever).
    fn sleep(&mut self, milliseconds: c_int) -> Result<()> {
        let is_ours = |target: &Target| matches!(target, Target::Socket(_) | Target::Other(..));
        if self.sleeper.is_none() && self.targets.iter().any(is_ours) {
            let sleeper = Sleeper(Epoll::new());
            for (index, (target, entry)) in self.targets.iter().zip(self.entries.iter()).enumerate() {
                match target {
                    Target::Socket(socket) => {
                        sleeper.0.add_as(socket, index as u64, wanted(entry.events), 0)?
                    }
                    Target::Other(other, fd) => {
                        let fd = fd.try_clone().map_err(|_| {
                            Error::with_errno(libc::EMFILE, "no descriptors left to wait for a pipe")
                        })?;
                        match sleeper.0.add_other(other, fd, wanted(entry.events), 0) {
                            // The descriptor is in the list twice: one look serves both entries.
                            Err(error) if error.errno() == libc::EEXIST => {
                                let all = ready::IN | ready::OUT | ready::RDHUP;
                                sleeper.0.modify_other(other, all, 0)?;
                            }
                            added => added?,
                        }
                    }
                    _ => {}
                }
            }
            if !self.kernel.is_empty() {
                self.kernel.push(pollfd { fd: sleeper.0.fd()?, events: POLLIN, revents: 0 });
            }
            self.sleeper = Some(sleeper);
        }
        match &self.sleeper {
            Some(sleeper) if self.kernel.is_empty() => {
                let timeout = u64::try_from(milliseconds).ok().map(Duration::from_millis);
                sleeper.0.wait(1, timeout, &mut |_, _| ()).map(drop)
            }
            _ => poll_kernel(&mut self.kernel, milliseconds),
        }
    }
}

fn poll_kernel(entries: &mut [pollfd], milliseconds: c_int) -> Result<()> {
    if entries.is_empty() && milliseconds == 0 {
        return Ok(());
    }
    // SAFETY: as many entries, which live through the call.
    match unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as nfds_t, milliseconds) } {
        0.. => Ok(()),
        _ => {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            Err(Error::with_errno(errno, "cannot poll the descriptors of the kernel's"))
        }
    }
}

/// Waits until something that an entry wants holds of its target, at most `timeout` (none: for ever). Fills in what holds, and returns of how
/// many entries anything does. There is a target for each entry.
///
/// # Errors
/// The errors of poll(2) and of epoll instances.
pub fn poll(entries: &mut [pollfd], targets: &[Target], timeout: Option<Duration>) -> Result<usize> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut call = Call::new(entries, targets);
    loop {
        let count = call.look()?;
        let left = match until {
            None => -1,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
            }
        };
        if count > 0 || left == 0 {
            return Ok(count);
        }
        call.sleep(left)?;
    }
}
