//! Ports for connections that are about to be made: the driver is told of a twin before the kernel connects.
//!
//! The kernel would choose one, too (`bind` to port 0). But it looks through all ports until one is free of any connection
//! to anywhere, and those that ended in the last minute are not; where there are many it searches for longer than a connection
//! takes. Here only a few are tried. When those are taken, connections go without a twin for a moment, and their ports
//! are the kernel's to choose, which has to differ from connections to the same peer only.
use crate::call::errno;
use crate::{address, real};
use libc::{c_int, sockaddr_storage, socklen_t};
use std::net::{Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

/// Ports tried for a connection.
const TRIES: u32 = 8;
/// When all were taken, nobody tries again for so long.
const PAUSE_NS: u64 = 10_000_000;

/// The ports for connections, as they were at the first; none: the kernel is asked each time.
static PORTS: OnceLock<Option<RangeInclusive<u16>>> = OnceLock::new();
static NEXT: AtomicU32 = AtomicU32::new(0);
static PAUSED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

fn setting(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()
}

/// The ports for connections; none if some of them are not to be had.
fn range() -> Option<RangeInclusive<u16>> {
    if !setting("ip_local_reserved_ports")?.trim().is_empty() {
        return None;
    }
    let range = setting("ip_local_port_range")?;
    let mut words = range.split_whitespace().map_while(|word| word.parse().ok());
    let (first, last): (u16, u16) = (words.next()?, words.next()?);
    (first > 0 && last.checked_sub(first)? > 1).then_some(first..=last)
}

/// Every other one, as for `bind` to port 0: the kernel's `connect` prefers those between.
fn nth(ports: &RangeInclusive<u16>, number: u32) -> u16 {
    let count = (ports.end() - ports.start()).div_ceil(2);
    ports.start() + 1 + 2 * (number % u32::from(count)) as u16
}

fn bind(fd: c_int, v6: bool, port: u16) -> bool {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let any = if v6 { any } else { SocketAddr::from(([0; 4], port)) };
    // SAFETY: room for any address, and its size.
    unsafe {
        let mut storage: sockaddr_storage = std::mem::zeroed();
        let mut len = size_of::<sockaddr_storage>() as socklen_t;
        let at = (&raw mut storage).cast();
        address::write(any, v6, at, &mut len).is_ok() && real::bind(fd, at, len) == 0
    }
}

/// Binds an unbound socket to a free port. Says whether it has one now.
pub(crate) fn give(fd: c_int) -> bool {
    let Some((family, local)) = address::local(fd) else { return false };
    if local.port() != 0 {
        return true;
    }
    let v6 = family == libc::AF_INET6;
    match PORTS.get_or_init(range) {
        Some(ports) => try_some(fd, v6, ports),
        None => bind(fd, v6, 0),
    }
}

fn try_some(fd: c_int, v6: bool, ports: &RangeInclusive<u16>) -> bool {
    let now_ns = crate::fallback_cache::now_ns();
    if now_ns < PAUSED_UNTIL_NS.load(Ordering::Relaxed) {
        return false;
    }
    // Processes begin at different places.
    let begin = std::process::id().wrapping_mul(0x9E37_79B9) >> 8;
    for _ in 0..TRIES {
        if bind(fd, v6, nth(ports, begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))) {
            return true;
        }
        if ![libc::EADDRINUSE, libc::EACCES].contains(&errno()) {
            return false;
        }
    }
    PAUSED_UNTIL_NS.store(now_ns + PAUSE_NS, Ordering::Relaxed);
    false
}
