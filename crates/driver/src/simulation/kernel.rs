//! The kernel of a run: failing calls, processes, and their network namespaces. It belongs to the simulating thread;
//! other threads have none.
mod sockets;

pub use sockets::{
    cookie, descriptor, diag, is_namespace, listener, parent, socket_inode, sockets, unix_socket, End,
};

use super::random::Random;
use crate::addresses::Addresses;
use crate::calls::Call;
use crate::identity::{Identity, NamespaceId};
use pd_shm::Mapping;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::{fcntl_dupfd_cloexec, Errno, Result};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static KERNEL: RefCell<Option<Kernel>> = const { RefCell::new(None) };
}

/// See the module.
#[derive(Debug)]
pub struct Kernel {
    random: Random,
    /// Failing calls in a million, by kind.
    pub faults: BTreeMap<u8, u64>,
    /// Processes, by the number at the end of their sockets' bound name.
    people: BTreeMap<u64, Person>,
    pub addresses: BTreeMap<NamespaceId, Addresses>,
    /// Time that reading addresses takes.
    pub slow: Duration,
    /// Memory that clients hold, by inode, with the number of holds.
    held: BTreeMap<u64, usize>,
    /// Files that could not be read from disk, by inode.
    broken_files: BTreeSet<u64>,
    /// Calls that have failed.
    pub failed: u64,
    /// Set after a direct ring was refused: its side wakes nobody, and looks again after a while.
    pub has_refused_ring: bool,
    idle: Duration,
    sockets: sockets::Sockets,
}

/// A process.
#[derive(Clone, Debug)]
pub struct Person {
    pub pid: u32,
    pub uid: u32,
    pub namespace: NamespaceId,
    /// Address of its namespace.
    pub address: [u8; 4],
    pub cgroup: Option<String>,
    /// Eventfd in place of a pidfd, readable when the process has died.
    pub life: Arc<OwnedFd>,
}

impl Kernel {
    /// Makes a kernel without faults.
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            faults: BTreeMap::new(),
            people: BTreeMap::new(),
            addresses: BTreeMap::new(),
            slow: Duration::ZERO,
            held: BTreeMap::new(),
            broken_files: BTreeSet::new(),
            failed: 0,
            has_refused_ring: false,
            idle: Duration::ZERO,
            sockets: sockets::Sockets::default(),
        }
    }

    /// Adds the process with this number.
    pub fn enter(&mut self, number: u64, person: Person) {
        self.people.insert(number, person);
    }
}

/// Sets or removes this thread's kernel.
pub fn install(kernel: Option<Kernel>) {
    KERNEL.set(kernel);
}

/// Calls `act` with the kernel, if there is one.
pub fn with<T>(act: impl FnOnce(&mut Kernel) -> T) -> Option<T> {
    KERNEL.with_borrow_mut(|kernel| kernel.as_mut().map(act))
}

/// Tells whether this thread simulates.
pub fn is_on() -> bool {
    KERNEL.with_borrow(Option::is_some)
}

fn errors(call: Call) -> &'static [Errno] {
    match call {
        Call::Accept => &[Errno::MFILE, Errno::NFILE, Errno::INTR, Errno::AGAIN, Errno::CONNABORTED],
        Call::Identify => &[Errno::MFILE, Errno::NFILE, Errno::SRCH, Errno::NOMEM],
        Call::Duplicate => &[Errno::MFILE],
        Call::Watch => &[Errno::NOMEM, Errno::NOSPC],
        Call::Receive => &[Errno::INTR, Errno::AGAIN],
        Call::Send => &[Errno::AGAIN, Errno::AGAIN, Errno::TOOMANYREFS, Errno::NOBUFS],
        Call::Diag | Call::EventFd | Call::SocketPair | Call::MakeMemory | Call::Reopen => {
            &[Errno::MFILE, Errno::NFILE, Errno::NOMEM]
        }
        Call::Map | Call::Populate => &[Errno::NOMEM],
        Call::Thread => &[Errno::AGAIN],
        Call::OpenFile => &[Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN],
        Call::ReadCached => &[Errno::AGAIN, Errno::AGAIN, Errno::AGAIN, Errno::IO],
        Call::ReadDisk => &[Errno::INTR, Errno::INTR, Errno::INTR, Errno::IO],
    }
}

/// Returns the most bytes of a file that one read returns, or the read's error. Reads are short at times.
pub fn readable(call: Call, fd: BorrowedFd<'_>, len: usize) -> Result<usize> {
    let failed = fault(call);
    let drawn = with(|kernel| {
        if call == Call::ReadCached && kernel.random.below(8) == 0 && failed.is_ok() {
            // The bytes are on a disk.
            return Err(Errno::AGAIN);
        }
        if failed == Err(Errno::IO) {
            kernel.broken_files.insert(inode(fd));
        }
        failed.map(|()| match kernel.random.below(4) {
            0 => 1 + kernel.random.below(len.max(1) as u64) as usize,
            _ => len,
        })
    });
    drawn.unwrap_or(Ok(len)).map(|drawn| drawn.min(len))
}

/// Tells whether reading a file from disk has failed.
pub fn is_broken(inode: u64) -> bool {
    with(|kernel| kernel.broken_files.contains(&inode)).unwrap_or(false)
}

/// Draws whether a call fails, and its error.
pub fn fault(call: Call) -> Result<()> {
    let failed = with(|kernel| {
        let often = *kernel.faults.get(&(call as u8))?;
        let fails = kernel.random.below(1_000_000) < often;
        fails.then(|| {
            kernel.failed += 1;
            kernel.random.pick(errors(call))
        })
    });
    failed.flatten().map_or(Ok(()), Err)
}

/// Returns the process at the other end of a socket.
fn person(socket: &OwnedFd) -> Option<Person> {
    let name = rustix::net::getpeername(socket).ok()??;
    let name = rustix::net::SocketAddrUnix::try_from(name).ok()?;
    let number = std::str::from_utf8(name.abstract_name()?).ok()?.rsplit('/').next()?.parse().ok()?;
    with(|kernel| kernel.people.get(&number).cloned())?
}

/// Returns the process id and user of the process at the other end.
pub fn credentials(socket: &OwnedFd) -> Option<(u32, u32)> {
    is_on().then(|| person(socket).map_or((1, 0), |person| (person.pid, person.uid)))
}

/// Returns the identity of the process at the other end.
pub fn identity(socket: &OwnedFd) -> Option<Result<Identity>> {
    is_on().then(|| {
        let Person { pid, uid, namespace, cgroup, life, .. } = person(socket).ok_or(Errno::SRCH)?;
        if is_readable(&life) {
            return Err(Errno::SRCH);
        }
        let pidfd = Arc::new(fcntl_dupfd_cloexec(&life, 0)?);
        let namespace_fd = sockets(|sockets| sockets.namespace_file(namespace))?;
        Ok(Identity { pid, uid, image: None, pidfd, namespace, namespace_fd, cgroup, container: None })
    })
}

/// Returns the addresses of a network namespace, and the time that reading them took.
pub fn addresses(id: NamespaceId) -> Option<(std::io::Result<Addresses>, Duration)> {
    let known = with(|kernel| (kernel.addresses.get(&id).cloned(), kernel.slow));
    known.map(|(found, slow)| match fault(Call::Thread) {
        Ok(()) => (found.ok_or_else(|| Errno::NOENT.into()), slow),
        Err(errno) => (Err(errno.into()), slow),
    })
}

/// Returns the idle time of the machine's processors. Each look adds a random amount, around the limit for idle processors.
pub fn idle_time() -> Option<Duration> {
    with(|kernel| {
        kernel.idle += Duration::from_millis(kernel.random.below(1000));
        kernel.idle
    })
}

/// Returns the inode of an open file.
pub fn inode(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).map_or(0, |file| file.st_ino)
}

/// Overwrites memory whose pages the driver takes back: a client that reads there has wrong bytes.
pub fn emptied(map: &Mapping) -> Option<()> {
    with(|_| ())?;
    (0..map.len()).step_by(size_of::<u64>()).for_each(|at| map.store_u64(at, u64::MAX, Ordering::Relaxed));
    Some(())
}

/// Tells whether nobody else holds a region. A process that another thread is starting may hold it for a moment.
pub fn is_let_go(fd: BorrowedFd<'_>) -> Option<bool> {
    let is_held = with(|kernel| kernel.held.contains_key(&inode(fd)))?;
    Some(
        !is_held && {
            let tries = (0..1000).take_while(|_| {
                let is_let_go = pd_shm::memfd::is_let_go(fd);
                if !is_let_go {
                    std::thread::sleep(Duration::from_millis(1));
                }
                !is_let_go
            });
            tries.count() < 1000
        },
    )
}

/// A client's hold on memory.
#[derive(Debug)]
pub struct Hold(u64);

impl Hold {
    pub fn new(fd: impl AsFd) -> Self {
        let inode = inode(fd.as_fd());
        with(|kernel| *kernel.held.entry(inode).or_default() += 1);
        Self(inode)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        with(|kernel| {
            if let Some(count) = kernel.held.get_mut(&self.0) {
                *count -= 1;
                if *count == 0 {
                    kernel.held.remove(&self.0);
                }
            }
        });
    }
}

/// Tells whether the other end of a socket is closed.
pub fn is_hung_up(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

/// Tells whether the descriptor is readable.
pub fn is_readable(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The last of the calls that can fail.
pub const LAST_CALL: u8 = Call::Thread as u8;
