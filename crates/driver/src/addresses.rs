//! The addresses of network namespaces, read beside the threads that serve.
//!
//! A user may add any number of addresses. The kernel takes a microsecond and more for each, after it has waited for its one lock of the
//! interfaces of all namespaces. The helper of the tenant that pays for the request reads the list ([`list`]), and the request waits.
use crate::hash::FastMap;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use pd_shm::procfs;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::fstat;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use std::io::{Error, Result};
use std::net::IpAddr;

/// Addresses of a namespace that the driver takes; further ones, in the kernel's order, are ignored.
pub const ADDRESSES_MAX: usize = 4096;
/// Longest list after which the helper makes no pause. A list of [`ADDRESSES_MAX`] takes some 2 ms.
const SHORT_MAX: usize = 1024;
/// Addresses, with the length of each one's prefix.
pub type Addresses = FastMap<IpAddr, u8>;

/// Tells whether a list is followed by a pause.
pub fn is_long(addresses: &Addresses) -> bool {
    addresses.len() > SHORT_MAX
}

/// Returns the addresses that a network namespace holds. Takes as long as the namespace's owner likes.
///
/// # Errors
/// Errors of starting a thread, `setns` and `getifaddrs`.
pub fn list(namespace: &OwnedFd) -> Result<Addresses> {
    let read = || {
        // A driver without rights may read its own namespace.
        if !is_own(namespace)? {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        }
        interface_addresses()
    };
    // In a thread of its own, which stays in that namespace.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("pd-addresses".into()).spawn_scoped(scope, read)?;
        thread.join().unwrap_or_else(|_| Err(Error::other("the address reader panicked")))
    })
}

fn is_own(namespace: &OwnedFd) -> Result<bool> {
    let (own, other) = (procfs::stat("thread-self/ns/net")?, fstat(namespace)?);
    Ok((own.st_dev, own.st_ino) == (other.st_dev, other.st_ino))
}

fn interface_addresses() -> Result<Addresses> {
    let mut found = Addresses::default();
    for interface in getifaddrs()? {
        if found.len() == ADDRESSES_MAX {
            break;
        }
        if let Some(address) = interface.address.and_then(ip) {
            let prefix = match interface.netmask.and_then(ip) {
                Some(IpAddr::V4(mask)) => mask.to_bits().count_ones(),
                Some(IpAddr::V6(mask)) => mask.to_bits().count_ones(),
                None => 128,
            };
            found.insert(address, prefix as u8);
        }
    }
    Ok(found)
}

fn ip(address: SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::network_namespace;

    #[test]
    fn own_namespace_holds_loopback() {
        let (id, fd) = network_namespace(rustix::process::getpid()).unwrap();
        assert_eq!(network_namespace(rustix::process::getpid()).unwrap().0, id);
        assert_eq!(list(&fd).unwrap().get(&IpAddr::from([127, 0, 0, 1])), Some(&8));
    }
}
