//! Members that an instance has from a parent process or the image before: leaves them for the next one, and takes them over when the
//! instance is used.
use super::instances::{any_active, hosted_behind, instance, is_instance};
use super::registering::{control_fresh, control_listener, control_of};
use super::standing::{self, in_kernel_too, name, SPENT};
use super::{is_token, EpollSet};
use crate::call::{lock, Failure, Outcome};
use crate::carried::{self, Record};
use crate::entry::{Entry, State, Watcher};
use crate::twin::Twin;
use crate::{lookup, real, table};
use libc::{c_int, epoll_event};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// `epoll_ctl` for a connection with a twin.
pub(crate) fn control(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    entry: &Arc<Entry>,
    event: Option<(u32, u64)>,
) -> Outcome<()> {
    if ![libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL].contains(&operation) {
        return Err(Failure::Plain);
    }
    let known = instance(epoll)?;
    known.epoll().inspect(|set| set.take_carried(&known, fd));
    if operation != libc::EPOLL_CTL_ADD && !known.epoll().is_some_and(EpollSet::is_active) {
        return Err(Failure::Errno(libc::ENOENT));
    }
    control_of(epoll, &known, operation, fd, entry, event)
}

/// The instance's own descriptor is waited for somewhere.
pub(crate) fn expose(instance: &Arc<Entry>) {
    if let Some(set) = instance.epoll() {
        set.take_members(instance);
        set.expose();
    }
}

impl EpollSet {
    /// Takes members over from the parent process, or the image before, if that is still to be done.
    pub(super) fn take_members(&self, instance: &Arc<Entry>) {
        if self.inherited.load(Ordering::Relaxed) && self.inherited.swap(false, Ordering::AcqRel) {
            let members: Vec<_> = lock(&self.members).values().cloned().collect();
            for entry in members {
                // The process that takes the end registers it again.
                let _ = entry.twin().map(|twin| twin.with_present(&entry, |_| Ok(())));
            }
            let carried = std::mem::take(&mut *lock(&self.carried));
            carried.into_iter().for_each(|record| take_member(instance, record));
        }
    }

    /// Takes over one member, which is about to be changed, from the image before.
    fn take_carried(&self, instance: &Arc<Entry>, fd: c_int) {
        if self.inherited.load(Ordering::Relaxed) {
            let taken = {
                let mut carried = lock(&self.carried);
                let (taken, left): (Vec<_>, Vec<_>) = carried.drain(..).partition(|record| record.fd == fd);
                *carried = left;
                taken
            };
            taken.into_iter().for_each(|record| take_member(instance, record));
        }
    }
}

/// Registers what the image before had registered.
#[cold]
fn take_member(instance: &Arc<Entry>, record: Record) {
    let (fd, event) = (record.fd, record.event);
    let Some(epoll) = instance.any_fd() else { return };
    if carried::inode(fd) != Some(record.inode) {
        return;
    }
    let Ok(entry) = lookup::find_for_certain(fd) else {
        // The next wait tries again.
        if let Some(set) = instance.epoll() {
            lock(&set.carried).push(record);
            set.inherited.store(true, Ordering::Release);
        }
        return;
    };
    if let Some(entry) = entry.as_ref().filter(|entry| entry.twin().is_some()) {
        // Of one that was about to leave the kernel tells by a token of the image before.
        in_kernel_too(epoll, libc::EPOLL_CTL_DEL, fd, 0);
        let _ = control_of(epoll, instance, libc::EPOLL_CTL_ADD, fd, entry, Some(event));
        return;
    }
    if !record.in_kernel {
        let mut event = epoll_event { events: event.0, u64: event.1 };
        for operation in [libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_ADD] {
            // SAFETY: a valid event.
            if unsafe { real::epoll_ctl(epoll, operation, fd, &mut event) } == 0 {
                break;
            }
        }
    }
    let Some(entry) = entry else { return };
    match entry.socket().and_then(|socket| socket.state()) {
        Some(State::Listener(_)) => control_listener(epoll, libc::EPOLL_CTL_ADD, fd, &entry, Some(event)),
        _ => control_fresh(epoll, libc::EPOLL_CTL_ADD, fd, &entry, Some(event)),
    }
}

/// Another image may get the program's descriptors: leaves what is registered in the instances among them for it.
pub(crate) fn carry() {
    if !any_active() {
        return;
    }
    let borrowed = table::is_borrowed();
    let mut records = Vec::new();
    for epoll in carried_numbers(borrowed) {
        // The number may be another's in a child.
        let instance = if borrowed { hosted_behind(epoll) } else { table::epoll(epoll) };
        let Some(set) = instance.as_ref().and_then(|instance| instance.epoll()) else { continue };
        let members: Vec<_> = lock(&set.members).iter().map(|(&fd, entry)| (fd, entry.clone())).collect();
        for (fd, entry) in members {
            let (Some(inode), Some(instance)) =
                (carried::inode(fd).filter(|_| carried::is_kept(fd)), &instance)
            else {
                continue;
            };
            let Some((mut event, was_spent)) = registered_as(instance, fd, &entry) else { continue };
            let end = entry.twin().and_then(Twin::current);
            if was_spent || end.is_some_and(|end| set.fabric.is_spent(&end, name(fd))) {
                event.0 = SPENT;
            }
            records.push(Record { epoll, fd, inode, event, in_kernel: false });
        }
        records.extend(lock(&set.carried).iter().map(|record| Record { epoll, ..*record }));
    }
    carried::leave(&records, !borrowed);
}

/// Registration of a member, and whether it had reported when this process was forked.
fn registered_as(instance: &Arc<Entry>, fd: c_int, entry: &Entry) -> Option<((u32, u64), bool)> {
    lock(&entry.socket()?.watchers)
        .iter()
        .find(|watcher| watcher.is(instance, fd))
        .map(|watcher| (watcher.event, watcher.spent))
}

/// Numbers of instances that another image gets.
fn carried_numbers(borrowed: bool) -> Vec<c_int> {
    let is_active = |&fd: &c_int| table::look(fd) == table::EPOLL;
    if borrowed && table::has_copied() {
        let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
        let numbers = all.flatten().filter_map(|fd| fd.file_name().to_str()?.parse().ok());
        return numbers.filter(|&fd| is_instance(fd) && carried::is_kept(fd)).collect();
    }
    (0..table::end()).filter(is_active).filter(|&fd| carried::is_kept(fd)).collect()
}

/// In another image: what the image before had registered in its instances.
pub(crate) fn inherited(records: Vec<Record>) {
    for record in records {
        let Some(instance) = table::epoll(record.epoll) else { continue };
        let Some(set) = instance.epoll() else { continue };
        let is_own = is_token(record.event.1) || standing::is_token(record.event.1);
        if !is_own && carried::inode(record.fd) == Some(record.inode) {
            lock(&set.carried).push(record);
            set.inherited.store(true, Ordering::Release);
            set.mark_active(&instance);
        }
    }
}

/// In a forked child: what of `old` was in instances is in the same ones' entries here, by `new_of`. The connections are
/// taken over by the first wait.
pub(crate) fn inherit(old: &Entry, new: &Arc<Entry>, new_of: impl Fn(*const Entry) -> Option<Arc<Entry>>) {
    let (Some(was), Some(is)) = (old.socket(), new.socket()) else { return };
    // A thread of the parent's that holds the lock is changing it.
    let Ok(watchers) = was.watchers.try_lock() else { return };
    if matches!(is.state(), Some(State::Listener(_))) {
        return;
    }
    for watcher in watchers.iter() {
        let Some(instance) = new_of(watcher.instance.as_ptr()) else { continue };
        let spent = watcher.spent || was_spent(watcher, old);
        lock(&is.watchers).push(Watcher { spent, ..Watcher::new(&instance, watcher.fd, watcher.event) });
        if let (Some(set), Some(_)) = (instance.epoll(), new.twin()) {
            lock(&set.members).insert(watcher.fd, new.clone());
            set.inherited.store(true, Ordering::Release);
            set.mark_active(&instance);
        }
    }
}

/// In a forked child: tells whether a one-shot registration of the parent's has reported.
fn was_spent(watcher: &Watcher, old: &Entry) -> bool {
    let (Some(instance), Some(end)) = (watcher.instance.upgrade(), old.twin().and_then(Twin::current)) else {
        return false;
    };
    instance.epoll().is_some_and(|set| set.fabric.was_spent(&end, name(watcher.fd)))
}
