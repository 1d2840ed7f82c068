//! The addresses of network namespaces, read beside the thread that asks.
//!
//! How many there are is up to whoever may add them, and the kernel takes a microsecond and more for each. So a thread of its
//! own enters the namespace and reads. The first list is read by the helper of whoever pays for the namespace's first client, which is
//! admitted after that ([`list`]). Later ones are read when somebody asks ([`AddressReader`]).
use foldhash::HashMap;
use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::io::{Error, Result};
use std::net::IpAddr;
use std::sync::mpsc::{sync_channel, Receiver};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Addresses of a namespace that the driver takes; those that the kernel names after them are nobody's.
pub const ADDRESSES_MAX: usize = 4096;
/// A list of more addresses than that, which takes some 2 ms, is long.
const SHORT_MAX: usize = 1024;
/// After a long list nothing is read for so many times as long as it took: reading takes a tenth of a core at most.
const PAUSE_FACTOR: u32 = 9;
/// How long a list is waited for that is. A short one takes some 0.2 ms, and longer while somebody changes interfaces of whichever namespace.
const PATIENCE: Duration = Duration::from_millis(200);

/// Addresses, with the length of each one's prefix.
pub type Addresses = HashMap<IpAddr, u8>;

/// What one reading has found.
type Found = (Result<Addresses>, Duration);

/// Whether such a list is not to be waited for.
pub fn is_long(addresses: &Addresses) -> bool {
    addresses.len() > SHORT_MAX
}

/// The addresses that a network namespace holds. Takes as long as its owner likes.
///
/// # Errors
/// Those of starting a thread, `setns` and `getifaddrs`.
pub fn list(namespace: &Arc<OwnedFd>) -> Result<Addresses> {
    begin(namespace)?.recv().map_err(|_| panicked())?.0
}

/// Reads the addresses of one network namespace again.
#[derive(Debug)]
pub struct AddressReader {
    namespace: Arc<OwnedFd>,
    /// What is being read, and how long that took.
    reading: Option<Receiver<Found>>,
    /// The end of the pause after the last list, if that was long.
    resume_at: Option<Instant>,
}

impl AddressReader {
    /// For the namespace with this file.
    pub fn new(namespace: Arc<OwnedFd>) -> Self {
        Self { namespace, reading: None, resume_at: None }
    }

    /// The addresses that the namespace holds; nothing if there is nothing new yet. Waits for a moment if it `may_wait`, else not: then the
    /// list is there at a later question.
    ///
    /// # Errors
    /// Those of [`list`].
    pub fn read(&mut self, may_wait: bool) -> Result<Option<Addresses>> {
        let mut found = self.finished(Duration::ZERO);
        if self.reading.is_none() && self.resume_at.is_none_or(|at| Instant::now() >= at) {
            self.reading = Some(begin(&self.namespace)?);
            let wait = if may_wait { PATIENCE } else { Duration::ZERO };
            // What an earlier reading has found is better than nothing.
            found = self.finished(wait).or(found);
        }
        found.transpose()
    }

    fn finished(&mut self, within: Duration) -> Option<Result<Addresses>> {
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        let found = match self.reading.as_ref()?.recv_timeout(within) {
            Err(Timeout) => return None,
            Err(Disconnected) => Err(panicked()),
            Ok((found, took)) => {
                let is_long = found.as_ref().is_ok_and(is_long);
                self.resume_at = is_long.then(|| Instant::now() + took * PAUSE_FACTOR);
                found
            }
        };
        self.reading = None;
        Some(found)
    }
}

fn panicked() -> Error {
    Error::other("the address reader panicked")
}

fn begin(namespace: &Arc<OwnedFd>) -> Result<Receiver<Found>> {
    let namespace = Arc::clone(namespace);
    let (answer, reading) = sync_channel(1);
    std::thread::Builder::new().name("pd-addresses".into()).spawn(move || {
        let begun = Instant::now();
        let entered = move_into_link_name_space((*namespace).as_fd(), Some(LinkNameSpaceType::Network));
        let found = entered.map_err(Error::from).and_then(|()| interface_addresses());
        // Nobody waits for it if the namespace's last client has gone.
        let _ = answer.send((found, begun.elapsed()));
    })?;
    Ok(reading)
}

fn interface_addresses() -> Result<Addresses> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` is a valid place for the list's head.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Err(Error::last_os_error());
    }
    let mut found = Addresses::default();
    let mut at = head;
    while !at.is_null() && found.len() < ADDRESSES_MAX {
        // SAFETY: `at` is an entry of the list, which lives until `freeifaddrs`.
        let entry = unsafe { &*at };
        let address = socket_address(entry.ifa_addr);
        if let Some(address) = address {
            let prefix = match socket_address(entry.ifa_netmask) {
                Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
                Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
                None => 128,
            };
            found.insert(address, prefix as u8);
        }
        at = entry.ifa_next;
    }
    // SAFETY: the list that `getifaddrs` returned, freed once.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

fn socket_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: `getifaddrs` gives addresses of the size that their family says.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::V6(v6.sin6_addr.s6_addr.into()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::network_namespace;

    #[test]
    fn own_namespace_holds_loopback() {
        let (id, fd) = network_namespace(rustix::process::getpid()).unwrap();
        assert_eq!(network_namespace(rustix::process::getpid()).unwrap().0, id);
        let Ok(found) = list(&Arc::new(fd)) else { return }; // setns needs CAP_SYS_ADMIN
        assert_eq!(found.get(&IpAddr::from([127, 0, 0, 1])), Some(&8));
    }

    #[test]
    fn a_long_list_is_there_later_and_followed_by_a_pause() {
        let (_, fd) = network_namespace(rustix::process::getpid()).unwrap();
        let mut reader = AddressReader::new(Arc::new(fd));
        let (answer, reading) = sync_channel(1);
        reader.reading = Some(reading);
        assert!(reader.read(true).unwrap().is_none(), "nobody waits for what was begun before");
        let address = |n: u32| (IpAddr::from((n + 1).to_be_bytes()), 24);
        let long: Addresses = (0..=SHORT_MAX as u32).map(address).collect();
        answer.send((Ok(long), Duration::from_secs(1))).unwrap();
        let found = reader.read(true).unwrap();
        assert!(found.is_some_and(|found| is_long(&found)));
        assert!(reader.read(true).unwrap().is_none() && reader.reading.is_none(), "pauses");
    }
}
