//! Registrations of connections that leave the fabric. Such a connection is in the kernel's instance as the kernel's socket, and in
//! the shadow epoll set for what is still to be read there. The kernel tells of it with a token that holds its number, for not all that makes
//! its socket readable is the program's: the peer's mark is not ([`receiving::told_by_kernel`]).
use super::{instance_of, name, EpollSet, Events};
use crate::aside::leaving::leave;
use crate::aside::receiving;
use crate::call::lock;
use crate::entry::Entry;
use crate::real;
use crate::twin::{Stands, Twin};
use libc::{c_int, epoll_event};
use pd_client::core::{KernelReason, Socket, ASIDE};
use std::sync::Arc;

/// The upper half of every token; the lower one is the connection's number.
const TOKEN: u64 = 0xfdfa_b81d << 32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// Tells whether the kernel's user data is a token.
pub(super) fn is_token(data: u64) -> bool {
    data >> 32 == TOKEN >> 32
}

/// What an event of the kernel's is.
pub(super) enum Told {
    /// The program's.
    Program(epoll_event),
    Nothing,
    /// Another process's.
    Other,
}

/// What a connection that leaves the fabric has registered in an instance.
fn registered(instance: &Arc<Entry>, fd: c_int) -> Option<(Arc<Entry>, (u32, u64))> {
    let entry = lock(&instance.epoll()?.members).get(&fd)?.clone();
    let event = lock(&entry.socket()?.watchers).iter().find(|it| it.is(instance, fd))?.event;
    Some((entry, event))
}

/// Translates an event of the kernel's.
pub(super) fn told(instance: Option<&Arc<Entry>>, event: epoll_event) -> Told {
    if !is_token(event.u64) {
        return Told::Program(event);
    }
    let fd = event.u64 as u32 as c_int;
    let Some((instance, (entry, (wanted, data)))) = instance.and_then(|it| Some((it, registered(it, fd)?)))
    else {
        return Told::Other;
    };
    let told =
        entry.twin().map_or(event.events, |twin| receiving::told_by_kernel(&entry, twin, fd, event.events));
    if told != 0 {
        return Told::Program(epoll_event { events: told, u64: data });
    }
    if wanted & ONCE != 0 {
        // It has told nothing yet.
        if let Some(epoll) = instance.any_fd() {
            in_kernel_too(epoll, libc::EPOLL_CTL_MOD, fd, wanted);
        }
    }
    Told::Nothing
}

impl EpollSet {
    /// Members go on in the kernel, and follow. The program is told that those which cannot are ready, and hears why.
    pub(super) fn follow(&self, events: &mut Events<'_>) {
        let members: Vec<_> = lock(&self.members).iter().map(|(&fd, entry)| (fd, entry.clone())).collect();
        for (fd, entry) in members {
            let Some(twin) = entry.twin() else { continue };
            let strays = twin.current().is_some_and(|end| end.ready(0) & ASIDE != 0);
            if !strays || leave(&entry, twin, KernelReason::PeerLeft) || events.room() == 0 {
                continue;
            }
            if let Some((_, (wanted, data))) = registered(events.instance, fd) {
                events.push((libc::EPOLLIN as u32) | (wanted & libc::EPOLLOUT as u32), data);
            }
        }
    }
}

/// What is registered of a connection that leaves the fabric is, too, of the kernel's.
pub(super) fn in_kernel_too(epoll: c_int, operation: c_int, fd: c_int, events: u32) -> bool {
    let mut event = epoll_event { events, u64: TOKEN | u64::from(fd as u32) };
    // SAFETY: a valid event.
    unsafe { real::epoll_ctl(epoll, operation, fd, &mut event) == 0 }
}

/// A connection leaves the fabric, or comes back: the kernel and the fabric tell of it, each of its part.
pub(crate) fn stand(entry: &Arc<Entry>, end: &Arc<Socket>, stands: Stands) {
    let Some(socket) = entry.socket() else { return };
    for watcher in lock(&socket.watchers).iter() {
        let Some((instance, epoll)) = instance_of(watcher) else { continue };
        let (flags, data) = watcher.event;
        let in_kernel =
            |operation, without: u32| in_kernel_too(epoll, operation, watcher.fd, flags & !without);
        let _ = match stands.kernel_without {
            Some(without) => {
                in_kernel(libc::EPOLL_CTL_ADD, without) || in_kernel(libc::EPOLL_CTL_MOD, without)
            }
            None => in_kernel(libc::EPOLL_CTL_DEL, 0),
        };
        if let Some(set) = instance.epoll() {
            let own = flags & !stands.fabric_without;
            let _ = set.fabric.modify_as(end, name(watcher.fd), own, data);
            set.fabric.poke();
        }
    }
}

/// A twin is the kernel's after all: so are its registrations.
pub(crate) fn move_back(entry: &Arc<Entry>) {
    let (Some(socket), Some(end)) = (entry.socket(), entry.twin().and_then(Twin::current)) else { return };
    for watcher in std::mem::take(&mut *lock(&socket.watchers)) {
        let Some((instance, epoll)) = instance_of(&watcher) else { continue };
        if let Some(set) = instance.epoll() {
            let _ = set.fabric.remove_as(&end, name(watcher.fd));
            lock(&set.members).remove(&watcher.fd);
        }
        let mut event = epoll_event { events: watcher.event.0, u64: watcher.event.1 };
        // It is there already if the connection has left the fabric.
        for operation in [libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD] {
            // SAFETY: a valid event.
            if unsafe { real::epoll_ctl(epoll, operation, watcher.fd, &mut event) } == 0 {
                break;
            }
        }
    }
}
