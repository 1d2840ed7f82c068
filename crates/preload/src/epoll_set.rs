//! The part of an epoll instance that the kernel cannot have: its connections with twins. They are in a
//! fabric epoll instance, whose descriptor is a member of the kernel's. A wait looks at the fabric
//! first, and sleeps in the kernel.
//!
//! An instance is what the kernel has open, not a number. Each has one entry from when it is made, which `dup` gives to
//! further numbers ([`crate::table`]); as long as it has no member on the fabric it is *bare*, and its waits are the kernel's.
//! Numbers that come in ways which nobody sees are found out by asking the kernel: the fabric's descriptor is a member of
//! the instance behind a number, or it is not ([`EpollSet::is_behind`]). That is asked of a number when it is first used,
//! and of all bare ones when an instance gets its first member.
//!
//! The kernel tells of the fabric's descriptor with a *token* for user data. Whatever a number is taken for, no result of
//! the kernel's reaches a program before tokens are taken out of it. Each instance has its own: one of another process,
//! which has the same instance after a fork or by a message, is told apart, and left to that process.
//!
//! What the fabric needs to wake a thread from the kernel are descriptors. While there are none a wait sleeps for a
//! moment at a time, and looks.
mod leaving;

use crate::aside::leaving::leave;
use crate::call::{errno, lock, set_errno, Failure, Outcome};
use crate::carried::{self, Record};
use crate::entry::{self, listener, Entry, State, Thing, Watcher};
use crate::short::begun;
use crate::sleep::LOOK_EVERY;
use crate::twin::Twin;
use crate::unclaimed::settling;
use crate::{real, spin, start, table, unclaimed};
use leaving::{in_kernel_too, Told as Leaves};
pub(crate) use leaving::{move_back, stand};
use libc::{c_int, epoll_event, sigset_t, timespec};
use pd_client::core::{
    interruptible, sleep_for, this_thread, Armed, Epoll, Inside, KernelReason, Socket, ASIDE, SET_BYTES,
};
use std::collections::HashMap;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The upper half of every token: no pointer, and no small number.
const TOKEN: u64 = 0xfdfa_b81c << 32;
/// One wait in so many looks at the kernel's members although the fabric has something.
const KERNEL_EVERY: u32 = 8;
/// Flags that mean nothing to the fabric: one socket is never in two processes' waits.
const NOT_OURS: u32 = (libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;
/// So often a thread is told that there is something on the fabric now.
const POKES_MAX: u32 = 200;
/// Instances that were sent in messages and closed then, of which so many are remembered: they may come back.
const SENT_MAX: usize = 16;

/// Instances whose fabric descriptor is in the kernel's.
static HOSTED: Mutex<Vec<Weak<Entry>>> = Mutex::new(Vec::new());
/// Some instance has, or had, members.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// One thread at a time makes an instance a member of the kernel's.
static HOSTING: Mutex<()> = Mutex::new(());
/// Instances without a number, which may be in a message.
static SENT: Mutex<Vec<Arc<Entry>>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(crate) struct EpollSet {
    fabric: Arc<Epoll>,
    token: u64,
    members: Mutex<HashMap<c_int, Arc<Entry>>>,
    /// It has, or had, members.
    active: AtomicBool,
    /// The fabric's descriptor is in the kernel's instance.
    hosted: AtomicBool,
    /// The instance's own descriptor is waited for somewhere: it has to be right all the time.
    exposed: Mutex<Option<Armed>>,
    is_exposed: AtomicBool,
    waits: AtomicU32,
    /// The thread that has waited, if it is the only one.
    waiter: AtomicUsize,
    /// Threads that sleep in the kernel's instance as if there was nothing on the fabric.
    unaware: AtomicU32,
    /// What was taken for instances of their own, and is this one; threads may still sleep on them.
    renamed: Mutex<Vec<Weak<Entry>>>,
    /// Somebody may have it in a message.
    sent: AtomicBool,
    /// Of a forked child, or of another image: its members are still the parent's.
    inherited: AtomicBool,
    /// Registrations of the image before, with `inherited`.
    carried: Mutex<Vec<Record>>,
}

/// Several threads have waited.
const SEVERAL: usize = usize::MAX;

/// Nobody else's, in this process or another.
fn new_token() -> u64 {
    let mut bytes = [0u8; 4];
    // SAFETY: room for so many bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), libc::GRND_NONBLOCK) };
    if got != bytes.len() as isize {
        bytes = (std::process::id() ^ crate::fallback_cache::now_ns() as u32).to_ne_bytes();
    }
    TOKEN | u64::from(u32::from_ne_bytes(bytes))
}

fn is_token(data: u64) -> bool {
    data >> 32 == TOKEN >> 32
}

/// Whether the number is an epoll instance's, as the system's file tree says.
fn is_instance(fd: c_int) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}"))
        .is_ok_and(|name| name.as_os_str() == "anon_inode:[eventpoll]")
}

/// A new instance has this number.
pub(crate) fn made(fd: c_int) {
    table::is_new(fd);
    table::set(fd, &Entry::new(Thing::Epoll(EpollSet::new())));
}

/// The number has come from elsewhere. If it is an epoll instance's it gets an entry.
pub(crate) fn received(fd: c_int) {
    if is_instance(fd) {
        adopt(fd);
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
        leave(member, twin, KernelReason::UnseenWait);
    }
}

/// The entry of an epoll instance that was not known by this number.
#[cold]
fn adopt(fd: c_int) -> Option<Arc<Entry>> {
    if !start::enabled() || table::is_borrowed() {
        return None;
    }
    let entry = hosted_behind(fd).unwrap_or_else(|| Entry::new(Thing::Epoll(EpollSet::new())));
    table::set(fd, &entry).then_some(entry)
}

/// The entry of the instance that `epoll` is a number of.
fn instance(epoll: c_int) -> Outcome<Arc<Entry>> {
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
fn hosted_behind(fd: c_int) -> Option<Arc<Entry>> {
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
    }
    for fd in entry.fds() {
        if table::epoll(fd).is_some_and(|current| Arc::ptr_eq(&current, entry)) {
            table::release(fd);
            table::set(fd, known);
        }
    }
}

impl EpollSet {
    pub(crate) fn new() -> Self {
        Self {
            fabric: Epoll::new(),
            token: new_token(),
            members: Mutex::default(),
            active: AtomicBool::new(false),
            hosted: AtomicBool::new(false),
            exposed: Mutex::default(),
            is_exposed: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            waiter: AtomicUsize::new(0),
            unaware: AtomicU32::new(0),
            renamed: Mutex::default(),
            sent: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            carried: Mutex::default(),
        }
    }

    /// The same one in a forked child.
    pub(crate) fn in_child(&self) -> Self {
        Self { is_exposed: AtomicBool::new(self.is_exposed.load(Ordering::Relaxed)), ..Self::new() }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    /// Whether the kernel's instance with this number is the one that the fabric's descriptor is in.
    fn is_behind(&self, fd: c_int) -> bool {
        let Some(host) = self.host().filter(|_| self.hosted.load(Ordering::Acquire)) else { return false };
        let mut event = self.event();
        // SAFETY: a valid event.
        unsafe { real::epoll_ctl(fd, libc::EPOLL_CTL_MOD, host, &mut event) == 0 }
    }

    fn host(&self) -> Option<c_int> {
        self.fabric.host_fd().ok()
    }

    fn event(&self) -> epoll_event {
        epoll_event { events: libc::EPOLLIN as u32, u64: self.token }
    }

    /// The calling thread is about to wait.
    fn note_waiter(&self) {
        let (this, known) = (this_thread(), self.waiter.load(Ordering::Relaxed));
        if known != this && known != SEVERAL {
            let waiter = if known == 0 { this } else { SEVERAL };
            if self.waiter.compare_exchange(known, waiter, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                self.waiter.store(SEVERAL, Ordering::Relaxed);
            }
        }
    }

    /// Whether nobody but the calling thread waits for the instance's members, as in a loop.
    fn is_of_this_thread(&self) -> bool {
        self.waiter.load(Ordering::Relaxed) == this_thread() && !self.is_exposed.load(Ordering::Acquire)
    }

    /// Makes an instance ready for members on the fabric. Returns it, or the known one that it turns out to be.
    fn activate(epoll: c_int, entry: Arc<Entry>) -> Arc<Entry> {
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

    fn mark_active(&self, entry: &Arc<Entry>) {
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

    /// There is one more member.
    fn enroll(&self, fd: c_int, entry: &Arc<Entry>) {
        let first = {
            let mut members = lock(&self.members);
            let first = members.is_empty();
            members.insert(fd, entry.clone());
            first
        };
        if first {
            self.tell_unaware();
        }
    }

    /// Wakes threads that sleep as if there was nothing on the fabric. What wakes one another may take away before it is
    /// awake: hence more than once.
    fn tell_unaware(&self) {
        fence(Ordering::SeqCst);
        for _ in 0..POKES_MAX {
            if self.unaware() == 0 || !self.hosted.load(Ordering::Acquire) {
                return;
            }
            self.fabric.poke();
            std::thread::yield_now();
        }
    }

    fn unaware(&self) -> u32 {
        let of = |entry: &Weak<Entry>| entry.upgrade()?.epoll().map(|it| it.unaware.load(Ordering::SeqCst));
        self.unaware.load(Ordering::SeqCst) + lock(&self.renamed).iter().filter_map(of).sum::<u32>()
    }

    fn is_empty(&self) -> bool {
        lock(&self.members).is_empty()
    }

    /// Whether a wait is the kernel's alone.
    fn is_idle(&self) -> bool {
        self.is_empty() && !self.is_exposed.load(Ordering::Acquire)
    }

    /// A token has come, and nothing else.
    fn hear(&self, told: Told) {
        let armed =
            if told.own && self.hosted.load(Ordering::Relaxed) { self.fabric.arm().ok() } else { None };
        match armed {
            Some(armed) => self.fabric.disarm(armed, true),
            // What has happened is another process's business, which may take its time.
            None => drop(sleep_for(LOOK_EVERY)),
        }
    }

    /// A member's last descriptor is closed, or about to be. The number may be another's by now.
    fn forget(&self, fd: c_int, entry: &Arc<Entry>) {
        let mut members = lock(&self.members);
        if members.get(&fd).is_some_and(|member| Arc::ptr_eq(member, entry)) {
            members.remove(&fd);
        }
    }

    /// The instance's last number is closed.
    pub(crate) fn close(&self, entry: &Arc<Entry>) {
        if self.sent.load(Ordering::Relaxed) && self.hosted.load(Ordering::Relaxed) {
            let mut sent = lock(&SENT);
            sent.retain(|known| !Arc::ptr_eq(known, entry));
            if sent.len() >= SENT_MAX {
                sent.remove(0).epoll().iter().for_each(|set| set.end());
            }
            sent.push(entry.clone());
            return;
        }
        self.end();
    }

    fn end(&self) {
        lock(&self.members).clear();
        self.fabric.close();
    }

    /// Makes the instance's own descriptor tell of the fabric's events, for whoever waits for it.
    fn expose(&self) {
        self.is_exposed.store(true, Ordering::Release);
        let mut exposed = lock(&self.exposed);
        if exposed.is_none() {
            *exposed = self.arm_exposed();
        }
    }

    fn arm_exposed(&self) -> Option<Armed> {
        if !self.hosted.load(Ordering::Acquire) {
            return None;
        }
        self.fabric.arm_exactly().ok()
    }

    /// What is wanted of a member has changed: the instance's own descriptor has to be right.
    fn expose_again(&self) {
        if self.is_exposed.load(Ordering::Acquire) {
            let mut exposed = lock(&self.exposed);
            exposed.take().into_iter().for_each(|armed| self.fabric.disarm(armed, true));
            *exposed = self.arm_exposed();
        }
    }

    /// Tells what the fabric has, and what of the kernel's members that follow their peers there have found: `in_kernel` asks it.
    fn look(
        &self,
        events: &mut Events<'_>,
        in_kernel: impl FnOnce(&mut Events<'_>) -> Outcome<Told>,
    ) -> Outcome<()> {
        if events.room() == 0 {
            return Ok(());
        }
        let mut exposed = self.is_exposed.load(Ordering::Acquire).then(|| lock(&self.exposed));
        if let Some(armed) = exposed.as_mut().and_then(|armed| armed.take()) {
            self.fabric.disarm(armed, true);
        }
        let (room, mut strays) = (events.room(), false);
        let found = self.fabric.look(room, &mut |flags, data| {
            // What else holds of one that follows the kernel tells with the rest.
            match flags & ASIDE {
                0 => events.push(flags, data),
                _ => strays = true,
            }
        });
        if let Some(exposed) = exposed.as_mut() {
            **exposed = self.arm_exposed();
        }
        drop(exposed);
        found?;
        if strays {
            self.follow(events);
            if events.room() > 0 {
                in_kernel(events)?;
            }
        }
        Ok(())
    }

    /// Takes members over from the parent process, or the image before, if that is still to be done.
    fn take_members(&self, instance: &Arc<Entry>) {
        if self.inherited.load(Ordering::Relaxed) && self.inherited.swap(false, Ordering::AcqRel) {
            let members: Vec<_> = lock(&self.members).values().cloned().collect();
            for entry in members {
                // Who takes the end registers it again.
                let _ = entry.twin().map(|twin| twin.with_present(&entry, |_| Ok(())));
            }
            let carried = std::mem::take(&mut *lock(&self.carried));
            carried.into_iter().for_each(|record| take_member(instance, record));
        }
    }

    /// The same of one member of the image before, which is about to be changed.
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
    let entry = entry::find(fd);
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

/// The instance's own descriptor is waited for somewhere.
pub(crate) fn expose(instance: &Arc<Entry>) {
    if let Some(set) = instance.epoll() {
        set.take_members(instance);
        set.expose();
    }
}

/// Another image may get the program's descriptors: leaves what is registered in the instances among them for it.
pub(crate) fn carry() {
    if !ACTIVE.load(Ordering::Relaxed) {
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
            let Some(mut event) = registered_as(instance, fd, &entry) else { continue };
            let end = entry.twin().and_then(Twin::current);
            let wanted = end.and_then(|end| set.fabric.wanted_as(&end, name(fd)));
            if wanted == Some(libc::EPOLLONESHOT as u32) {
                // It has told.
                event.0 = libc::EPOLLONESHOT as u32;
            }
            records.push(Record { epoll, fd, inode, event, in_kernel: false });
        }
        records.extend(lock(&set.carried).iter().map(|record| Record { epoll, ..*record }));
    }
    carried::leave(&records, !borrowed);
}

/// Registration of a member.
fn registered_as(instance: &Arc<Entry>, fd: c_int, entry: &Entry) -> Option<(u32, u64)> {
    lock(&entry.socket()?.watchers)
        .iter()
        .find(|watcher| watcher.is(instance, fd))
        .map(|watcher| watcher.event)
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
        let is_own = is_token(record.event.1) || leaving::is_token(record.event.1);
        if !is_own && carried::inode(record.fd) == Some(record.inode) {
            lock(&set.carried).push(record);
            set.inherited.store(true, Ordering::Release);
            set.mark_active(&instance);
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
        lock(&is.watchers).push(Watcher::new(&instance, watcher.fd, watcher.event));
        if let (Some(set), Some(_)) = (instance.epoll(), new.twin()) {
            lock(&set.members).insert(watcher.fd, new.clone());
            set.inherited.store(true, Ordering::Release);
            set.mark_active(&instance);
        }
    }
}

/// A thread is about to sleep in the kernel's instance as if there was nothing on the fabric; to be given to [`aware`].
/// It has no destructor, for the thread may be cancelled.
pub(crate) fn unaware(epoll: c_int) -> Option<*const Entry> {
    let _inside = Inside::enter();
    let entry = table::epoll(epoll)?;
    entry.epoll()?.unaware.fetch_add(1, Ordering::SeqCst);
    Some(Arc::into_raw(entry))
}

/// It has slept.
///
/// # Safety
/// Once for each [`unaware`].
pub(crate) unsafe fn aware(entry: *const Entry) {
    // SAFETY: made from one, and not used again.
    let entry = unsafe { Arc::from_raw(entry) };
    if let Some(set) = entry.epoll() {
        set.unaware.fetch_sub(1, Ordering::SeqCst);
    }
}

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

/// The same with an instance, `epoll` being one of its numbers.
fn control_of(
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
    // What had the number before may have been closed just now.
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
        // Who waits already would hear nothing of how the connecting ends.
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
        return Ok(());
    }
    twin.with_begun(entry, |end| set.fabric.add_as(end, name(fd), own_flags, data))?;
    set.enroll(fd, entry);
    set.expose_again();
    lock(&socket.watchers).push(Watcher::new(&instance, fd, (flags, data)));
    if set.sent.load(Ordering::Relaxed) {
        leave_sent(entry);
    }
    Ok(())
}

/// What a registration is called in the fabric's instance: a connection may be in there by several numbers.
fn name(fd: c_int) -> u64 {
    fd as u64
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

/// The instance of a registration, with a number; none if it is closed.
fn instance_of(watcher: &Watcher) -> Option<(Arc<Entry>, c_int)> {
    let instance = watcher.instance.upgrade()?;
    let epoll = instance.any_fd()?;
    Some((instance, epoll))
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
pub(crate) fn move_over(entry: &Arc<Entry>, watcher: Watcher) {
    let Some((instance, epoll)) = instance_of(&watcher) else { return };
    let mut ignored = epoll_event { events: 0, u64: 0 };
    // SAFETY: a valid event.
    unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, watcher.fd, &mut ignored) };
    let _ = control_of(epoll, &instance, libc::EPOLL_CTL_ADD, watcher.fd, entry, Some(watcher.event));
}

/// This process has taken a connection over: its registrations are of an earlier end.
pub(crate) fn register_again(entry: &Arc<Entry>, end: &Arc<Socket>) {
    let Some(socket) = entry.socket() else { return };
    for watcher in lock(&socket.watchers).iter() {
        if let Some(set) = watcher.instance.upgrade().as_ref().and_then(|instance| instance.epoll()) {
            let _ = set.fabric.add_as(end, name(watcher.fd), watcher.event.0, watcher.event.1);
        }
    }
}

/// The program's array of events.
struct Events<'a> {
    instance: &'a Arc<Entry>,
    at: *mut epoll_event,
    max: usize,
    len: usize,
}

impl Events<'_> {
    fn room(&self) -> usize {
        self.max - self.len
    }

    fn push(&mut self, events: u32, data: u64) {
        // SAFETY: the program's array has room for `max`, and `len` is less.
        unsafe { self.at.add(self.len).write_unaligned(epoll_event { events, u64: data }) };
        self.len += 1;
    }

    /// Waits in the kernel; takes tokens out. Says which there were.
    fn wait(
        &mut self,
        epoll: c_int,
        own: u64,
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> Outcome<Told> {
        // SAFETY: room as said.
        let found = unsafe { kernel_wait(epoll, self.at.add(self.len), self.room() as c_int, limit, mask) };
        if found < 0 {
            return Err(Failure::Errno(errno()));
        }
        // SAFETY: the kernel has written so many.
        let (left, told) =
            unsafe { take_tokens(self.at.add(self.len), found as usize, own, Some(self.instance)) };
        self.len += left;
        Ok(told)
    }
}

/// Which tokens were among what the kernel told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The instance's own.
    own: bool,
    /// Another process's.
    other: bool,
}

/// Tells whether tokens are among what the kernel has told.
///
/// # Safety
/// `at` has so many events.
pub(crate) unsafe fn has_tokens(at: *const epoll_event, found: usize) -> bool {
    // SAFETY: the caller's promise.
    (0..found).any(|place| unsafe {
        let data = at.add(place).read_unaligned().u64;
        is_token(data) || leaving::is_token(data)
    })
}

/// Takes tokens out of what the kernel has told of `instance`. Returns how much is left.
///
/// # Safety
/// `at` has so many events.
pub(crate) unsafe fn take_tokens(
    at: *mut epoll_event,
    found: usize,
    own: u64,
    instance: Option<&Arc<Entry>>,
) -> (usize, Told) {
    let (mut left, mut told) = (0, Told::default());
    for place in 0..found {
        // SAFETY: the caller's promise; `left` is at most `place`.
        unsafe {
            let mut event = at.add(place).read_unaligned();
            if is_token(event.u64) {
                told.own |= event.u64 == own;
                told.other |= event.u64 != own;
                continue;
            }
            match leaving::told(instance, event) {
                Leaves::Program(theirs) => event = theirs,
                Leaves::Nothing => continue,
                Leaves::Other => {
                    told.other = true;
                    continue;
                }
            }
            at.add(left).write_unaligned(event);
        }
        left += 1;
    }
    (left, told)
}

/// `epoll_pwait` for a time; a signal ends it whichever instant it comes.
unsafe fn kernel_wait(
    epoll: c_int,
    at: *mut epoll_event,
    room: c_int,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let in_ms = |ms: c_int| {
        let arguments = [epoll as usize, at as usize, room as usize, ms as usize, mask as usize, SET_BYTES];
        // SAFETY: the caller's array and mask.
        unsafe { interruptible(libc::SYS_epoll_pwait, arguments, mask) }
    };
    let rounded_up =
        |limit: Duration| c_int::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX);
    let found = match limit {
        // SAFETY: the caller's array and mask.
        Some(Duration::ZERO) => return unsafe { real::epoll_pwait(epoll, at, room, 0, mask) },
        None => in_ms(-1),
        Some(limit) if limit.subsec_nanos() % 1_000_000 == 0 => in_ms(rounded_up(limit)),
        Some(limit) => {
            let time = timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
            let time = (&raw const time) as usize;
            let arguments = [epoll as usize, at as usize, room as usize, time, mask as usize, SET_BYTES];
            // SAFETY: the caller's array and mask, and the time.
            match unsafe { interruptible(libc::SYS_epoll_pwait2, arguments, mask) } {
                failed if failed == -(libc::ENOSYS as isize) => in_ms(rounded_up(limit)),
                found => found,
            }
        }
    };
    if found < 0 {
        set_errno(-found as c_int);
        return -1;
    }
    found as c_int
}

/// `epoll_wait` on an instance that has a shadow epoll set. `timeout` of none: for ever.
///
/// # Safety
/// `at` has room for `max` events, more than 0.
pub(crate) unsafe fn wait(
    epoll: c_int,
    at: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    let instance = table::epoll(epoll).ok_or(Failure::Plain)?;
    let instance = match instance.epoll() {
        Some(set) if set.is_active() => EpollSet::activate(epoll, instance),
        _ => instance,
    };
    let set = instance.epoll().ok_or(Failure::Plain)?;
    set.note_waiter();
    set.take_members(&instance);
    begun::settle_all();
    listener::resume(|| lock(&set.members).values().cloned().collect());
    let events = Events { instance: &instance, at, max: max as usize, len: 0 };
    let result = wait_for(epoll, set, events, timeout, mask);
    let before = errno();
    set.fabric.pass_on();
    set_errno(before);
    result
}

/// The wait of [`wait`], into `events`.
fn wait_for(
    epoll: c_int,
    set: &EpollSet,
    mut events: Events<'_>,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
    let (zero, own) = (Some(Duration::ZERO), set.token);
    let in_kernel = |events: &mut Events<'_>| events.wait(epoll, own, zero, mask);
    let mut all_is_left = true;
    loop {
        if unclaimed::any() {
            settling::look();
        } else if set.is_idle() {
            let left = if std::mem::take(&mut all_is_left) { timeout } else { left() };
            set.unaware.fetch_add(1, Ordering::SeqCst);
            let told = set.is_idle().then(|| events.wait(epoll, own, left, mask));
            set.unaware.fetch_sub(1, Ordering::SeqCst);
            let Some(told) = told.transpose()? else { continue };
            if told == Told::default() || events.len > 0 || left == zero {
                return Ok(events.len as c_int);
            }
            set.hear(told);
            continue;
        }
        all_is_left = false;
        let tick = set.waits.fetch_add(1, Ordering::Relaxed) % KERNEL_EVERY == 0;
        if tick || timeout == zero {
            in_kernel(&mut events)?;
        }
        set.look(&mut events, in_kernel)?;
        if events.len > 0 || timeout == zero {
            return Ok(events.len as c_int);
        }
        // Where all that is waited for is the kernel's, nothing comes sooner for who looks.
        let found = !set.is_empty()
            && spin::until(|| {
                in_kernel(&mut events)?;
                set.look(&mut events, in_kernel)?;
                Ok(events.len > 0)
            })?;
        if found {
            return Ok(events.len as c_int);
        }
        let left = left();
        if left == zero {
            return Ok(0);
        }
        let limit = if unclaimed::any() {
            Some(left.map_or(unclaimed::LOOK_EVERY, |left| left.min(unclaimed::LOOK_EVERY)))
        } else {
            left
        };
        let armed = if set.hosted.load(Ordering::Acquire) { set.fabric.arm().ok() } else { None };
        let slept = match armed {
            Some(armed) if armed.ready => {
                set.fabric.disarm(armed, false);
                continue;
            }
            Some(armed) => {
                let slept = events.wait(epoll, own, limit, mask);
                let before = errno();
                set.fabric.disarm(armed, slept.is_ok_and(|told| told.own));
                set_errno(before);
                slept
            }
            None => {
                let limit = limit.map_or(LOOK_EVERY, |limit| limit.min(LOOK_EVERY));
                events.wait(epoll, own, Some(limit), mask)
            }
        };
        spin::slept();
        let told = slept?;
        set.look(&mut events, in_kernel)?;
        if events.len > 0 {
            return Ok(events.len as c_int);
        }
        if told.other || told.own && set.is_empty() {
            set.hear(told);
        }
    }
}
