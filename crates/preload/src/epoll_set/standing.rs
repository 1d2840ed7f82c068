//! Registrations of a connection that leaves the fabric, comes back, changes hands or ends. One that leaves is in the kernel's instance as
//! the kernel's socket, and in the shadow epoll set for what is still to be read there. The kernel tells of it with a token that holds
//! its number, for not all that makes its socket readable is the program's: the peer's mark is not ([`super::tokens`]).
use crate::call::lock;
use crate::entry::{Entry, Watcher};
use crate::real;
use crate::twin::{Stands, Twin};
use libc::{c_int, epoll_event};
use pd_client::core::Socket;
use std::sync::Arc;

/// The upper half of every token; the lower one is the connection's number.
pub(super) const TOKEN: u64 = 0xfdfa_b81d << 32;

/// Flags in a kernel's instance of a one-shot registration that has reported. The kernel reports errors of it once more.
pub(super) const SPENT: u32 = libc::EPOLLONESHOT as u32;

/// Returns the token of a connection with this number.
fn token(fd: c_int) -> u64 {
    TOKEN | u64::from(fd as u32)
}

/// Tells whether the kernel's user data is a token.
pub(super) fn is_token(data: u64) -> bool {
    data >> 32 == TOKEN >> 32
}

/// Name of a registration in the fabric's instance: a connection may be in there by several numbers.
pub(super) fn name(fd: c_int) -> u64 {
    fd as u64
}

/// The instance of a registration, with a number; none if it is closed.
pub(super) fn instance_of(watcher: &Watcher) -> Option<(Arc<Entry>, c_int)> {
    let instance = watcher.instance.upgrade()?;
    let epoll = instance.any_fd()?;
    Some((instance, epoll))
}

/// Registers in the kernel, too, what is registered of a connection that leaves the fabric.
pub(super) fn in_kernel_too(epoll: c_int, operation: c_int, fd: c_int, events: u32) -> bool {
    let mut event = epoll_event { events, u64: token(fd) };
    // SAFETY: a valid event.
    unsafe { real::epoll_ctl(epoll, operation, fd, &mut event) == 0 }
}

/// A connection leaves the fabric, or comes back: the kernel and the fabric tell of it, each of its part.
pub(crate) fn stand(entry: &Arc<Entry>, end: &Arc<Socket>, stands: Stands) {
    let Some(socket) = entry.socket() else { return };
    for watcher in lock(&socket.watchers).iter() {
        let Some((instance, epoll)) = instance_of(watcher) else { continue };
        let (flags, data) = watcher.event;
        let spent = instance.epoll().is_some_and(|set| set.fabric.is_spent(end, name(watcher.fd)));
        let in_kernel = |operation, without: u32| {
            let flags = if spent { SPENT } else { flags & !without };
            in_kernel_too(epoll, operation, watcher.fd, flags)
        };
        let _ = match stands.kernel_without {
            Some(without) => {
                in_kernel(libc::EPOLL_CTL_ADD, without) || in_kernel(libc::EPOLL_CTL_MOD, without)
            }
            None => in_kernel(libc::EPOLL_CTL_DEL, 0),
        };
        if let Some(set) = instance.epoll().filter(|_| !spent) {
            let own = flags & !stands.fabric_without;
            let _ = set.fabric.modify_as(end, name(watcher.fd), own, data);
            set.fabric.poke();
        }
    }
}

/// Gives a twin up by `give_up`, after which it is abandoned. Its registrations are the kernel's before that, and again after it: another
/// thread may have registered the twin meanwhile, and later ones find it abandoned.
pub(crate) fn move_back_around(entry: &Arc<Entry>, give_up: impl FnOnce()) {
    move_back(entry);
    give_up();
    move_back(entry);
}

/// Makes the registrations of a twin the kernel's.
pub(crate) fn move_back(entry: &Arc<Entry>) {
    let Some(socket) = entry.socket() else { return };
    let end = entry.twin().and_then(Twin::current);
    for watcher in std::mem::take(&mut *lock(&socket.watchers)) {
        let Some((instance, epoll)) = instance_of(&watcher) else { continue };
        let mut event = epoll_event { events: watcher.event.0, u64: watcher.event.1 };
        if let Some(set) = instance.epoll() {
            if let Some(end) = &end {
                if set.fabric.is_spent(end, name(watcher.fd)) {
                    // The program is told no more until it has changed the registration.
                    event = epoll_event { events: SPENT, u64: token(watcher.fd) };
                }
                let _ = set.fabric.remove_as(end, name(watcher.fd));
            }
            lock(&set.members).remove(&watcher.fd);
        }
        // The kernel's part is there already if the connection has left the fabric.
        for operation in [libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD] {
            // SAFETY: a valid event.
            if unsafe { real::epoll_ctl(epoll, operation, watcher.fd, &mut event) } == 0 {
                break;
            }
        }
    }
}

/// Returns the numbers by which one-shot registrations of an end have reported.
pub(crate) fn spent(entry: &Arc<Entry>, end: &Socket) -> Vec<c_int> {
    let Some(socket) = entry.socket() else { return Vec::new() };
    let watchers = lock(&socket.watchers);
    let is_spent = |watcher: &&Watcher| {
        let instance = watcher.instance.upgrade();
        let set = instance.as_ref().and_then(|instance| instance.epoll());
        set.is_some_and(|set| set.fabric.is_spent(end, name(watcher.fd)))
    };
    watchers.iter().filter(is_spent).map(|watcher| watcher.fd).collect()
}

/// Registers a connection again that this process has taken over: its registrations are of an earlier end, which is closed. `spent`:
/// those of the earlier end ([`spent`]).
pub(crate) fn register_again(entry: &Arc<Entry>, end: &Arc<Socket>, spent: &[c_int]) {
    let Some(socket) = entry.socket() else { return };
    if socket.is_watched() {
        end.await_inherited();
    }
    for watcher in lock(&socket.watchers).iter_mut() {
        let was_spent = std::mem::take(&mut watcher.spent);
        if let Some(set) = watcher.instance.upgrade().as_ref().and_then(|instance| instance.epoll()) {
            let (name, (flags, data)) = (name(watcher.fd), watcher.event);
            let _ = match was_spent || spent.contains(&watcher.fd) {
                true => set.fabric.add_spent_as(end, name, flags, data),
                false => set.fabric.add_as(end, name, flags, data),
            };
        }
    }
}

/// The last number of `entry` is about to be closed, or is: as in the kernel's instances, nothing is told of it any
/// more, which another thread might take for news of the next connection with that number.
pub(crate) fn leave_all(entry: &Arc<Entry>) {
    let Some(socket) = entry.socket() else { return };
    let watchers = std::mem::take(&mut *lock(&socket.watchers));
    let end = entry.twin().and_then(Twin::current);
    for watcher in watchers {
        let Some(instance) = watcher.instance.upgrade() else { continue };
        let Some(set) = instance.epoll() else { continue };
        if let Some(end) = &end {
            let _ = set.fabric.remove_as(end, name(watcher.fd));
        }
        set.forget(watcher.fd, entry);
    }
}
