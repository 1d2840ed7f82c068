//! `pd_poll`: sockets, epoll instances and descriptors of the kernel's in one call.
use crate::guard::guard;
use libc::{
    c_int, nfds_t, pollfd, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM,
};
use pd_client::core::{ready, with, Epoll, Named, Socket, FIRST_SID};
use pd_client::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Object of an entry.
enum Target {
    Socket(Arc<Socket>),
    /// A descriptor of the kernel's, or of an epoll instance.
    Descriptor(c_int),
    /// A number that names nothing.
    Unknown,
    /// A negative number.
    Nothing,
}

fn target(number: c_int) -> Result<Target> {
    if number < FIRST_SID {
        return Ok(if number < 0 { Target::Nothing } else { Target::Descriptor(number) });
    }
    let named = with(number, |named| match named {
        Named::Socket(socket) => Ok(Target::Socket(socket.clone())),
        Named::Epoll(epoll) => Ok(Target::Descriptor(epoll.fd()?)),
    });
    match named {
        Err(error) if error.errno() == libc::EBADF => Ok(Target::Unknown),
        named => named,
    }
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

/// One call.
struct Call<'a> {
    entries: &'a mut [pollfd],
    targets: Vec<Target>,
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
    fn new(entries: &'a mut [pollfd]) -> Result<Self> {
        let targets = entries.iter().map(|entry| target(entry.fd)).collect::<Result<Vec<_>>>()?;
        let kernel = targets.iter().zip(entries.iter()).filter_map(|(target, entry)| match *target {
            Target::Descriptor(fd) => Some(pollfd { fd, events: entry.events, revents: 0 }),
            _ => None,
        });
        let kernel = kernel.collect();
        Ok(Self { entries, targets, kernel, sleeper: None })
    }

    /// Fills in what holds now. Returns of how many entries anything does.
    fn look(&mut self) -> Result<c_int> {
        poll(&mut self.kernel, 0)?;
        let mut kernel = self.kernel.iter();
        let mut count = 0;
        for (entry, target) in self.entries.iter_mut().zip(&self.targets) {
            entry.revents = match target {
                Target::Socket(socket) => found(socket.ready(wanted(entry.events)), entry.events),
                Target::Descriptor(_) => kernel.next().map_or(0, |looked| looked.revents),
                Target::Unknown => POLLNVAL,
                Target::Nothing => 0,
            };
            count += c_int::from(entry.revents != 0);
        }
        Ok(count)
    }

    /// Sleeps until something may hold, at most so many milliseconds (-1: for ever).
    fn sleep(&mut self, milliseconds: c_int) -> Result<()> {
        let sockets = || {
            self.targets.iter().enumerate().filter_map(|(index, target)| match target {
                Target::Socket(socket) => Some((index, socket)),
                _ => None,
            })
        };
        if self.sleeper.is_none() && sockets().next().is_some() {
            let sleeper = Sleeper(Epoll::new());
            for (index, socket) in sockets() {
                sleeper.0.add_as(socket, index as u64, wanted(self.entries[index].events), 0)?;
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
            _ => poll(&mut self.kernel, milliseconds),
        }
    }
}

fn poll(entries: &mut [pollfd], milliseconds: c_int) -> Result<()> {
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

/// See `pd_poll(3)`.
///
/// # Safety
/// `fds` points to `count` entries.
#[no_mangle]
pub unsafe extern "C" fn pd_poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    guard(-1, || {
        if fds.is_null() && count > 0 {
            return Err(Error::with_errno(libc::EFAULT, "the list of entries is NULL"));
        }
        let entries: &mut [pollfd] = match count {
            0 => &mut [],
            // SAFETY: not null, and `count` entries, the caller says.
            count => unsafe { std::slice::from_raw_parts_mut(fds, count as usize) },
        };
        let until = u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        let mut call = Call::new(entries)?;
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
    })
}
