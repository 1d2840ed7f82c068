//! Network namespaces as the kernel's programs know them: by a cookie. Also their addresses, and sockets that report changes and
//! connections.
use crate::addresses;
use crate::identity::NamespaceId;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{fstat, open, stat, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{bind, netlink, recv, socket_with, AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::io::{Error, Result};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// `SO_NETNS_COOKIE`.
const SO_NETNS_COOKIE: i32 = 71;
/// `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR`.
const ADDRESSES: u32 = 0x10 | 0x100;
/// Most control groups below one that are looked at.
const GROUPS_MAX: usize = 4096;
/// Pause after a namespace's addresses were read, as a multiple of the time that it took.
const PAUSE_FACTOR: u32 = 9;

/// A namespace that the driver has looked at.
#[derive(Debug)]
pub struct Seen {
    /// Open file, which holds the namespace.
    pub file: Arc<OwnedFd>,
    /// The kernel's name of the namespace for programs.
    pub cookie: u64,
    /// The namespace's number in entries.
    pub number: u32,
    /// Number of namespaces that were looked at before.
    pub before: u64,
    /// Asks about TCP sockets there (`sock_diag`).
    pub diag: OwnedFd,
    /// Socket that is readable when addresses have come or gone.
    news: OwnedFd,
    /// End of the pause after its addresses were read: reading takes a tenth of this thread's time at most.
    resume_at: Instant,
    pub addresses: Vec<IpAddr>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Spaces {
    seen: HashMap<NamespaceId, Seen>,
    looked_at: u64,
}

impl Spaces {
    /// Looks at a namespace, once.
    ///
    /// # Errors
    /// Errors of `setns` and of sockets.
    pub fn enter(&mut self, id: NamespaceId, file: &Arc<OwnedFd>) -> Result<&Seen> {
        match self.seen.entry(id) {
            Entry::Occupied(seen) => Ok(seen.into_mut()),
            Entry::Vacant(place) => {
                let (cookie, diag, news) = look(file)?;
                let (addresses, resume_at) = read(file)?;
                let before = self.looked_at;
                self.looked_at += 1;
                // The kernel numbers namespaces in 32 bits.
                let (file, number) = (Arc::clone(file), id.number() as u32);
                Ok(place.insert(Seen { file, cookie, number, before, diag, news, resume_at, addresses }))
            }
        }
    }

    /// Returns the namespace of this cookie.
    pub fn by_cookie(&self, cookie: u64) -> Option<&Seen> {
        self.seen.values().find(|seen| seen.cookie == cookie)
    }

    /// Returns the namespace of this number.
    pub fn by_number(&self, number: u32) -> Option<&Seen> {
        self.seen.values().find(|seen| seen.number == number)
    }

    /// Forgets a namespace.
    pub fn forget(&mut self, id: NamespaceId) {
        self.seen.remove(&id);
    }

    /// Forgets all namespaces that `known` does not accept.
    pub fn retain(&mut self, known: impl Fn(NamespaceId) -> bool) {
        self.seen.retain(|id, _| known(*id));
    }

    /// Returns the descriptors to wait for: news of the namespaces that are not in a pause.
    pub fn news(&self, now: Instant) -> impl Iterator<Item = PollFd<'_>> {
        let read = self.seen.values().filter(move |seen| seen.resume_at <= now);
        read.map(|seen| PollFd::new(&seen.news, PollFlags::IN))
    }

    /// Returns the time at which the next pause ends.
    pub fn wake_by(&self, now: Instant) -> Option<Instant> {
        self.seen.values().map(|seen| seen.resume_at).filter(|at| *at > now).min()
    }

    /// Reads the addresses of namespaces that have news. Returns the namespaces whose addresses have changed.
    pub fn refresh(&mut self, now: Instant) -> Vec<NamespaceId> {
        let mut changed = Vec::new();
        for (id, seen) in self.seen.iter_mut().filter(|(_, seen)| seen.resume_at <= now) {
            let (mut bytes, mut has_news) = ([0u8; 8192], false);
            // An overrun is news, too.
            while let Ok(_) | Err(Errno::NOBUFS) = recv(&seen.news, &mut bytes, RecvFlags::DONTWAIT) {
                has_news = true;
            }
            if let Some((found, resume_at)) = has_news.then(|| read(&seen.file)).and_then(Result::ok) {
                seen.resume_at = resume_at;
                if found != seen.addresses {
                    seen.addresses = found;
                    changed.push(*id);
                }
            }
        }
        changed
    }
}

/// Returns the addresses of a namespace, and the earliest time to read them again.
fn read(file: &OwnedFd) -> Result<(Vec<IpAddr>, Instant)> {
    let begun = Instant::now();
    let own = |ip: &IpAddr| !ip.is_loopback() && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let mut found: Vec<_> = addresses::list(file)?.into_keys().filter(own).collect();
    found.sort_unstable();
    let now = Instant::now();
    Ok((found, now + (now - begun) * PAUSE_FACTOR))
}

/// Returns the cookie of a namespace, and two sockets there.
fn look(file: &OwnedFd) -> Result<(u64, OwnedFd, OwnedFd)> {
    let run = || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = |protocol| socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol);
        // Protocol 0 is that of routes and addresses.
        let (diag, news) = (made(Some(netlink::SOCK_DIAG))?, made(None)?);
        bind(&news, &SocketAddrNetlink::new(0, ADDRESSES))?;
        Ok::<_, Error>((cookie(&diag)?, diag, news))
    };
    // In a thread of its own, which stays in that namespace.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("pd-space".into()).spawn_scoped(scope, run)?;
        thread.join().unwrap_or_else(|_| Err(Error::other("the thread panicked")))
    })
}

/// Returns the cookie of a socket's namespace.
fn cookie(socket: &OwnedFd) -> Result<u64> {
    let (mut value, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `len` bytes into `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut value).cast(),
            &mut len,
        )
    };
    if result == 0 {
        Ok(value)
    } else {
        Err(Error::last_os_error())
    }
}

/// Opens the namespace that a file stands for.
///
/// # Errors
/// Errors of opening it.
pub fn open_file(path: &Path) -> Result<(NamespaceId, Arc<OwnedFd>)> {
    namespace(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn namespace(file: OwnedFd) -> Result<(NamespaceId, Arc<OwnedFd>)> {
    Ok((NamespaceId::of(&fstat(&file)?), Arc::new(file)))
}

/// Returns the number of a control group, by its path in the hierarchy.
pub fn group(root: &Path, path: &str) -> Option<u64> {
    stat(root.join(path.trim_start_matches('/'))).ok().map(|found| found.st_ino)
}

/// Returns the network namespaces of the threads in a control group and in those below.
pub fn below(root: &Path, path: &str) -> HashMap<NamespaceId, Arc<OwnedFd>> {
    let (mut seen, mut spaces) = (0, HashMap::new());
    let mut folders = vec![root.join(path.trim_start_matches('/'))];
    while let Some(folder) = folders.pop().filter(|_| seen < GROUPS_MAX) {
        seen += 1;
        // Each thread of each process: the first may have gone into a namespace of its own.
        let threads = std::fs::read_to_string(folder.join("cgroup.threads")).unwrap_or_default();
        for thread in threads.lines() {
            let file = format!("{thread}/ns/net");
            let is_known = |found| spaces.contains_key(&NamespaceId::of(&found));
            if pd_shm::procfs::stat(&file).map_or(true, is_known) {
                continue;
            }
            let opened = pd_shm::procfs::open(&file, OFlags::RDONLY);
            if let Ok((id, file)) = opened.map_err(Into::into).and_then(namespace) {
                spaces.entry(id).or_insert(file);
            }
        }
        folders.extend(folders_in(&folder));
    }
    spaces
}

/// Returns the control groups that there are, by number, and what the nearest named one around each stands for. `named`: by number.
pub fn groups<T: Copy>(root: &Path, named: &HashMap<u64, T>) -> HashMap<u64, Option<T>> {
    let mut groups = HashMap::new();
    let mut folders = vec![(root.to_owned(), None)];
    while let Some((folder, around)) = folders.pop() {
        let Ok(found) = stat(&folder) else { continue };
        let whose = named.get(&found.st_ino).copied().or(around);
        groups.insert(found.st_ino, whose);
        folders.extend(folders_in(&folder).map(|inner| (inner, whose)));
    }
    groups
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}
