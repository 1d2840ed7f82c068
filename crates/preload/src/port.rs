//! Ports for connections that are about to be made: the driver is told of a twin before the kernel connects.
//!
//! The kernel would choose one, too (`bind` to port 0). But it looks through all ports until one is free of any connection
//! to anywhere, and those that ended in the last minute are not; where there are many it searches for longer than a connection
//! takes. Here only a few are tried, far apart: ports of connections that ended lie side by side. When those are taken, connections go without a
//! twin for a moment, and their ports are the kernel's to choose, which has to differ from connections to the same peer only.
use crate::call::errno;
use crate::{address, real};
use libc::{c_int, sockaddr_storage, socklen_t};
use std::net::{Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

/// Ports tried for a connection.
const TRIES: u32 = 8;
/// The golden ratio's fraction of 2 to the 32.
const GOLDEN: u64 = 0x9E37_79B9;
/// An odd number, so that each process has a begin of its own.
const BEGINS: u32 = 0x85EB_CA6B;
/// When all were taken, nobody tries again for so long.
const PAUSE_NS: u64 = 10_000_000;

/// The ports for connections, as they were at the first; none: the kernel is asked each time.
static PORTS: OnceLock<Option<Ports>> = OnceLock::new();
static NEXT: AtomicU32 = AtomicU32::new(0);
static PAUSED_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

fn setting(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()
}

/// The ports for connections; none if some of them are not to be had.
fn ports() -> Option<Ports> {
    if !setting("ip_local_reserved_ports")?.trim().is_empty() {
        return None;
    }
    let range = setting("ip_local_port_range")?;
    let mut words = range.split_whitespace().map_while(|word| word.parse().ok());
    let (first, last): (u16, u16) = (words.next()?, words.next()?);
    (first > 0 && last.checked_sub(first)? > 1).then(|| Ports::of(&(first..=last)))
}

/// The ports that are tried: every other one, as for `bind` to port 0. The kernel's `connect` prefers those between.
struct Ports {
    first: u16,
    count: u32,
    /// Distance of a try from the one before.
    stride: u32,
}

impl Ports {
    fn of(range: &RangeInclusive<u16>) -> Self {
        let count = u32::from((range.end() - range.start()).div_ceil(2));
        // By the golden ratio 8 in a row never lie all within one half of the ports. Without a common divisor all ports have their turn.
        let near = (u64::from(count) * GOLDEN) >> 32;
        let stride = (near as u32..).find(|&stride| are_coprime(stride, count)).unwrap_or(1);
        Self { first: range.start() + 1, count, stride }
    }

    fn nth(&self, number: u32) -> u16 {
        let place = u64::from(number) * u64::from(self.stride) % u64::from(self.count);
        self.first + 2 * place as u16
    }
}

fn are_coprime(a: u32, b: u32) -> bool {
    if b == 0 {
        a == 1
    } else {
        are_coprime(b, a % b)
    }
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

/// Learns the ports now. A forked child would wait for ever for another thread of the parent's that is about to.
pub(crate) fn prepare() {
    PORTS.get_or_init(ports);
}

/// Binds an unbound socket to a free port. Says whether it has one now.
pub(crate) fn give(fd: c_int) -> bool {
    let Some((family, local)) = address::local(fd) else { return false };
    if local.port() != 0 {
        return true;
    }
    let v6 = family == libc::AF_INET6;
    match PORTS.get_or_init(ports) {
        Some(ports) => try_some(fd, v6, ports),
        None => bind(fd, v6, 0),
    }
}

fn try_some(fd: c_int, v6: bool, ports: &Ports) -> bool {
    let now_ns = crate::fallback_cache::now_ns();
    if now_ns < PAUSED_UNTIL_NS.load(Ordering::Relaxed) {
        return false;
    }
    // Processes begin at different places.
    let begin = std::process::id().wrapping_mul(BEGINS);
    for _ in 0..TRIES {
        if bind(fd, v6, ports.nth(begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))) {
            return true;
        }
        if ![libc::EADDRINUSE, libc::EACCES].contains(&errno()) {
            return false;
        }
    }
    PAUSED_UNTIL_NS.store(now_ns + PAUSE_NS, Ordering::Relaxed);
    false
}
