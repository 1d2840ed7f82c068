//! Epoll instances by number: which are known, and what happens when one gets its first member on the fabric.
use super::{EpollSet, SENT};
use crate::call::{lock, Failure, Outcome};
use crate::ending::{is_new, release};
use crate::entry::{Entry, Thing};
use crate::{real, table};
use libc::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Instances whose fabric descriptor is in the kernel's.
pub(crate) static HOSTED: Mutex<Vec<Weak<Entry>>> = Mutex::new(Vec::new());

/// Some instance has, or had, members.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// One thread at a time makes an instance a member of the kernel's.
pub(crate) static HOSTING: Mutex<()> = Mutex::new(());

/// Returns whether the number is an epoll instance's, as the system's file tree says.
pub(super) fn is_instance(fd: c_int) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}"))
        .is_ok_and(|name| name.as_os_str() == "anon_inode:[eventpoll]")
}

/// A new instance has this number.
pub(crate) fn made(fd: c_int) {
    is_new(fd);
    table::set(fd, &Entry::new(Thing::Epoll(EpollSet::new())));
}

/// The number has come from elsewhere. If it is an epoll instance's it gets an entry.
pub(crate) fn received(fd: c_int) {
    if is_instance(fd) {
        adopt(fd);
    }
}

/// The entry of an epoll instance that was not known by this number.
#[cold]
fn adopt(fd: c_int) -> Option<Arc<Entry>> {
    if !table::enabled() || table::is_borrowed() {
        return None;
    }
    let entry = hosted_behind(fd).unwrap_or_else(|| Entry::new(Thing::Epoll(EpollSet::new())));
    table::set(fd, &entry).then_some(entry)
}

/// The entry of the instance that `epoll` is a number of.
pub(super) fn instance(epoll: c_int) -> Outcome<Arc<Entry>> {
    if let Some(entry) = table::epoll(epoll) {
        return Ok(entry);
    }
    if !is_instance(epoll) {
        // The kernel says what is wrong.
        return Err(Failure::Plain);
    }
    adopt(epoll).ok_or(Failure::Errno(libc::ENOSPC))
}

fn hosted_instances() -> Vec<Arc<Entry>> {
    let mut all = lock(&HOSTED);
    all.retain(|entry| entry.strong_count() > 0);
    all.iter().filter_map(Weak::upgrade).collect()
}

/// The instance that is known, and is the one behind this number.
pub(super) fn hosted_behind(fd: c_int) -> Option<Arc<Entry>> {
    hosted_instances().into_iter().find(|entry| entry.epoll().is_some_and(|known| known.is_behind(fd)))
}

/// All numbers of an entry are `known`'s.
fn rename(entry: &Arc<Entry>, known: &Arc<Entry>) {
    if let (Some(was), Some(is)) = (entry.epoll(), known.epoll()) {
        if was.is_exposed.load(Ordering::Acquire) {
            is.expose();
        }
        let mut renamed = lock(&is.renamed);
        renamed.retain(|entry| entry.strong_count() > 0);
        renamed.push(Arc::downgrade(entry));
        is.is_renamed.store(true, Ordering::Relaxed);
    }
    for fd in entry.fds() {
        if table::epoll(fd).is_some_and(|current| Arc::ptr_eq(&current, entry)) {
            release(fd);
            table::set(fd, known);
        }
    }
}

/// In a forked child: the parent's instances are not its own.
pub(crate) fn forget_all() {
    // A thread of the parent's may have had a lock, which then nobody lets go: what is in there is of no use, and dead.
    if let Ok(mut hosted) = HOSTED.try_lock() {
        std::mem::forget(std::mem::take(&mut *hosted));
    }
    if let Ok(mut sent) = SENT.try_lock() {
        std::mem::forget(std::mem::take(&mut *sent));
    }
}

impl EpollSet {
    /// Makes an instance ready for members on the fabric. Returns it, or the known one that it turns out to be.
    pub(super) fn activate(epoll: c_int, entry: Arc<Entry>) -> Arc<Entry> {
        let Some(set) = entry.epoll() else { return entry };
        if set.hosted.load(Ordering::Acquire) {
            return entry;
        }
        let _one = lock(&HOSTING);
        if set.hosted.load(Ordering::Acquire) {
            return entry;
        }
        if let Some(known) = hosted_behind(epoll).filter(|_| set.is_empty()) {
            rename(&entry, &known);
            return known;
        }
        set.host_in(epoll, &entry);
        set.mark_active(&entry);
        set.tell_unaware();
        entry
    }

    pub(super) fn mark_active(&self, entry: &Arc<Entry>) {
        if !self.active.swap(true, Ordering::SeqCst) {
            ACTIVE.store(true, Ordering::Relaxed);
            table::activate(entry);
        }
    }

    /// Makes the fabric's descriptor a member of the kernel's instance, if that can be.
    fn host_in(&self, epoll: c_int, entry: &Arc<Entry>) {
        let Some(host) = self.host() else { return };
        // SAFETY: a valid event.
        if unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, host, &mut self.event()) } != 0 {
            return;
        }
        self.hosted.store(true, Ordering::Release);
        lock(&HOSTED).push(Arc::downgrade(entry));
        // Numbers that came unseen were taken for instances of their own.
        for fd in (0..table::end()).filter(|&fd| table::look(fd) == table::BARE) {
            let other = table::epoll(fd).filter(|other| !Arc::ptr_eq(other, entry));
            if let Some(other) = other.filter(|_| self.is_behind(fd)) {
                rename(&other, entry);
            }
        }
        if self.is_exposed.load(Ordering::Acquire) {
            self.expose();
        }
    }
}

/// Returns whether some instance has, or had, members.
pub(super) fn any_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}
