//! Registering connections and listeners in instances.
use super::instances::instance;
use super::standing::{in_kernel_too, instance_of, move_back, name};
use super::EpollSet;
use crate::aside::leaving;
use crate::call::{lock, Failure, Outcome};
use crate::entry::{listener, Entry, State, Watcher};
use crate::short::begun;
use crate::{real, table};
use libc::{c_int, epoll_event};
use pd_client::core::{KernelReason, Socket};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Flags that mean nothing to the fabric: one socket is never in two processes' waits.
const NOT_OURS: u32 = (libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

/// `epoll_ctl` for a connection with a twin, `epoll` being one of the instance's numbers.
pub(super) fn control_of(
    epoll: c_int,
    instance: &Arc<Entry>,
    operation: c_int,
    fd: c_int,
    entry: &Arc<Entry>,
    event: Option<(u32, u64)>,
) -> Outcome<()> {
    let (twin, socket) = (entry.twin().ok_or(Failure::Plain)?, entry.socket().ok_or(Failure::Plain)?);
    let instance = EpollSet::activate(epoll, instance.clone());
    let set = instance.epoll().ok_or(Failure::Errno(libc::EINVAL))?;
    // The socket that had the number before may just have been closed.
    let known = lock(&set.members).get(&fd).is_some_and(|member| Arc::ptr_eq(member, entry));
    let event = event.map(|(flags, data)| (flags & !NOT_OURS, data));
    match (operation, known) {
        (libc::EPOLL_CTL_ADD, true) => return Err(Failure::Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => return Err(Failure::Errno(libc::ENOENT)),
        _ => {}
    }
    if operation == libc::EPOLL_CTL_DEL {
        if twin.stands().kernel_without.is_some() {
            in_kernel_too(epoll, operation, fd, 0);
        }
        let removed = twin.with(entry, |end| set.fabric.remove_as(end, name(fd)));
        lock(&set.members).remove(&fd);
        lock(&socket.watchers).retain(|watcher| !watcher.is(&instance, fd));
        return if removed.is_err_and(Failure::is_kernels) { Err(Failure::Plain) } else { Ok(()) };
    }
    let (flags, data) = event.ok_or(Failure::Errno(libc::EFAULT))?;
    if !set.is_of_this_thread() {
        // A thread that waits already would learn nothing of how the connecting ends.
        begun::settle(entry);
    }
    let stands = twin.stands();
    if let Some(without) = stands.kernel_without {
        in_kernel_too(epoll, operation, fd, flags & !without);
    }
    let own_flags = flags & !stands.fabric_without;
    if operation == libc::EPOLL_CTL_MOD {
        twin.with_begun(entry, |end| set.fabric.modify_as(end, name(fd), own_flags, data))?;
        for watcher in lock(&socket.watchers).iter_mut() {
            if watcher.is(&instance, fd) {
                watcher.event = (flags, data);
            }
        }
        set.expose_again();
        // The kernel has it by now, as it was.
        return if twin.is_abandoned() { Err(Failure::Plain) } else { Ok(()) };
    }
    twin.with_begun(entry, |end| set.fabric.add_as(end, name(fd), own_flags, data))?;
    twin.await_inherited();
    set.enroll(fd, entry);
    set.expose_again();
    lock(&socket.watchers).push(Watcher::new(&instance, fd, (flags, data)));
    if twin.is_abandoned() {
        move_back(entry);
    } else if set.sent.load(Ordering::Relaxed) {
        leave_sent(entry);
    }
    Ok(())
}

/// A listener's fabric part has come into being: it belongs into all instances that the kernel's is in. Says
/// whether it is.
pub(crate) fn watch_listener(entry: &Arc<Entry>, end: &Arc<Socket>) -> bool {
    let Some(socket) = entry.socket() else { return false };
    lock(&socket.watchers).iter_mut().all(|watcher| watch_end(entry, end, watcher).is_ok())
}

fn watch_end(entry: &Arc<Entry>, end: &Arc<Socket>, watcher: &mut Watcher) -> Outcome<()> {
    let Some((instance, epoll)) = instance_of(watcher) else { return Ok(()) };
    let instance = EpollSet::activate(epoll, instance);
    let set = instance.epoll().ok_or(Failure::Errno(libc::EINVAL))?;
    let (flags, data) = (watcher.event.0 & !NOT_OURS, watcher.event.1);
    if set.fabric.modify_as(end, name(watcher.fd), flags, data).is_err() {
        set.fabric.add_as(end, name(watcher.fd), flags, data)?;
    }
    set.enroll(watcher.fd, entry);
    watcher.instance = Arc::downgrade(&instance);
    Ok(())
}

/// The kernel has done `epoll_ctl` for a socket that is not connected: it may get a twin, which then is to be registered.
pub(crate) fn control_fresh(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    entry: &Arc<Entry>,
    event: Option<(u32, u64)>,
) {
    let Some(socket) = entry.socket() else { return };
    let Ok(instance) = instance(epoll) else { return socket.make_unfit(KernelReason::UnseenWait) };
    let mut watchers = lock(&socket.watchers);
    watchers.retain(|watcher| !watcher.is(&instance, fd));
    if let Some(event) = event.filter(|_| operation != libc::EPOLL_CTL_DEL) {
        watchers.push(Watcher::new(&instance, fd, event));
    }
}

/// The kernel has done `epoll_ctl` for a listener, which may have a part on the fabric.
pub(crate) fn control_listener(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    entry: &Arc<Entry>,
    event: Option<(u32, u64)>,
) {
    let (Some(socket), Ok(instance)) = (entry.socket(), instance(epoll)) else { return };
    let end = listener::listening(entry);
    let mut watchers = lock(&socket.watchers);
    watchers.retain(|watcher| !watcher.is(&instance, fd));
    if operation == libc::EPOLL_CTL_DEL {
        if let (Some(end), Some(set)) = (end, instance.epoll()) {
            let _ = set.fabric.remove_as(&end, name(fd));
            set.forget(fd, entry);
        }
        return;
    }
    let Some(event) = event else { return };
    let mut watcher = Watcher::new(&instance, fd, event);
    let fails = end.is_some_and(|end| watch_end(entry, &end, &mut watcher).is_err());
    watchers.push(watcher);
    drop(watchers);
    if let (true, Some(State::Listener(listener))) = (fails, socket.state()) {
        listener.short.bar();
    }
}

/// A socket that was in a kernel instance has got a twin.
fn move_over(entry: &Arc<Entry>, watcher: Watcher) {
    let Some((instance, epoll)) = instance_of(&watcher) else { return };
    let mut ignored = epoll_event { events: 0, u64: 0 };
    // SAFETY: a valid event.
    unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, watcher.fd, &mut ignored) };
    let _ = control_of(epoll, &instance, libc::EPOLL_CTL_ADD, watcher.fd, entry, Some(watcher.event));
}

/// Where a connection was waited for in the kernel it is from now on by its twin.
pub(crate) fn move_watchers(entry: &Arc<Entry>) {
    let Some(socket) = entry.socket() else { return };
    let watchers = std::mem::take(&mut *lock(&socket.watchers));
    for watcher in watchers {
        move_over(entry, watcher);
    }
}

/// The number went into a message: who has closed all numbers of an instance may get a new one.
///
/// Another process may wait for its members, which are not told to that: they go on in the kernel.
pub(crate) fn passed(fd: c_int) {
    let Some(instance) = table::epoll(fd) else { return };
    let Some(set) = instance.epoll() else { return };
    set.sent.store(true, Ordering::Relaxed);
    let members: Vec<_> = lock(&set.members).values().cloned().collect();
    members.iter().for_each(leave_sent);
}

/// A member of an instance that was sent in a message leaves the fabric.
fn leave_sent(member: &Arc<Entry>) {
    if let Some(twin) = member.twin() {
        leaving::leave(member, twin, KernelReason::UnseenWait);
    }
}
