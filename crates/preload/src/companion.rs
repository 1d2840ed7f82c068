//! The part of an epoll instance that the kernel cannot have: its connections with twins. They are in a
//! fabric epoll instance, whose descriptor is a member of the kernel's. A wait looks at the fabric
//! first, and sleeps in the kernel.
use crate::call::{errno, set_errno, Failure, Outcome};
use crate::entry::{lock, Entry, State, Thing, Watcher};
use crate::twin::Twin;
use crate::{real, short, spin, table, unclaimed};
use libc::{c_int, epoll_event, sigset_t, timespec};
use pd_client::core::{this_thread, Armed, Epoll, Hold, Socket};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The data word of the fabric's descriptor in the kernel's instance: no pointer and no small number.
const TAG: u64 = 0xfdfa_b81c_7064_e901;
/// One wait in so many looks at the kernel's members although the fabric has something.
const KERNEL_EVERY: u32 = 8;
/// Flags that mean nothing to the fabric: one socket is never in two processes' waits.
const NOT_OURS: u32 = (libc::EPOLLEXCLUSIVE | libc::EPOLLWAKEUP) as u32;

#[derive(Debug)]
pub(crate) struct Companion {
    fabric: Arc<Epoll>,
    members: Mutex<HashMap<c_int, Arc<Entry>>>,
    /// The fabric's descriptor is in the kernel's instance.
    hosted: AtomicBool,
    /// The instance's own descriptor is waited for somewhere: it has to be right all the time.
    exposed: Mutex<Option<Armed>>,
    is_exposed: AtomicBool,
    waits: AtomicU32,
    /// The thread that has waited, if it is the only one.
    waiter: AtomicUsize,
}

/// Several threads have waited.
const SEVERAL: usize = usize::MAX;

impl Companion {
    pub(crate) fn new() -> Self {
        Self {
            fabric: Epoll::new(),
            members: Mutex::default(),
            hosted: AtomicBool::new(false),
            exposed: Mutex::default(),
            is_exposed: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            waiter: AtomicUsize::new(0),
        }
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

    /// The companion of a kernel instance, made at first.
    fn of(epoll: c_int) -> Outcome<Arc<Entry>> {
        let entry = match table::entry(epoll) {
            Some(entry) => entry,
            None => {
                let entry = Entry::new(Thing::Epoll(Self::new()));
                if !table::set(epoll, &entry) {
                    return Err(Failure::Errno(libc::ENOSPC));
                }
                entry
            }
        };
        let companion = entry.epoll().ok_or(Failure::Errno(libc::EINVAL))?;
        if !companion.hosted.swap(true, Ordering::AcqRel) {
            let host = companion.fabric.host_fd()?;
            let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: TAG };
            // SAFETY: a valid event.
            if unsafe { real::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, host, &mut event) } != 0 {
                companion.hosted.store(false, Ordering::Release);
                return Err(Failure::Errno(errno()));
            }
            // A thread may sleep in the kernel's instance since before it had a companion.
            companion.fabric.poke();
        }
        Ok(entry)
    }

    /// There is one more member.
    fn enroll(&self, fd: c_int, entry: &Arc<Entry>) {
        let first = {
            let mut members = lock(&self.members);
            let first = members.is_empty();
            members.insert(fd, entry.clone());
            first
        };
        if first && !self.is_of_this_thread() {
            // Others may sleep as if there was none: see `wait`.
            self.fabric.poke();
        }
    }

    fn is_empty(&self) -> bool {
        lock(&self.members).is_empty()
    }

    /// The fabric's descriptor has told of something where there were no members.
    fn hear(&self, hold: &Hold) -> Outcome<()> {
        if self.hosted.load(Ordering::Relaxed) {
            let armed = self.fabric.arm()?;
            self.fabric.disarm(armed, true);
        } else {
            // The instance is a parent process's, and so is what has happened.
            hold.sleep_for(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A member's last descriptor is closed, or about to be. The number may be another's by now.
    fn forget(&self, fd: c_int, entry: &Arc<Entry>) {
        let mut members = lock(&self.members);
        if members.get(&fd).is_some_and(|member| Arc::ptr_eq(member, entry)) {
            members.remove(&fd);
        }
    }

    /// The instance's last descriptor is closed.
    pub(crate) fn close(&self) {
        lock(&self.members).clear();
        self.fabric.close();
    }

    /// Makes the instance's own descriptor tell of the fabric's events, for whoever waits for it.
    pub(crate) fn expose(&self) {
        self.is_exposed.store(true, Ordering::Release);
        let mut exposed = lock(&self.exposed);
        if exposed.is_none() {
            *exposed = self.fabric.arm().ok();
        }
    }

    fn look(&self, events: &mut Events) -> Outcome<usize> {
        let mut exposed = self.is_exposed.load(Ordering::Acquire).then(|| lock(&self.exposed));
        if let Some(armed) = exposed.as_mut().and_then(|armed| armed.take()) {
            self.fabric.disarm(armed, true);
        }
        let room = events.room();
        let found = self.fabric.look(room, &mut |flags, data| events.push(flags, data));
        if let Some(exposed) = exposed.as_mut() {
            **exposed = self.fabric.arm().ok();
        }
        Ok(found?)
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
    let (twin, socket) = (entry.twin().ok_or(Failure::Plain)?, entry.socket().ok_or(Failure::Plain)?);
    let instance = Companion::of(epoll)?;
    let companion = instance.epoll().ok_or(Failure::Errno(libc::EINVAL))?;
    // What had the number before may have been closed just now.
    let known = lock(&companion.members).get(&fd).is_some_and(|member| Arc::ptr_eq(member, entry));
    let event = event.map(|(flags, data)| (flags & !NOT_OURS, data));
    match (operation, known) {
        (libc::EPOLL_CTL_ADD, true) => return Err(Failure::Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => return Err(Failure::Errno(libc::ENOENT)),
        _ => {}
    }
    if operation == libc::EPOLL_CTL_DEL {
        let removed = twin.with(entry, |end| companion.fabric.remove(end));
        lock(&companion.members).remove(&fd);
        lock(&socket.watchers).retain(|watcher| (watcher.epoll, watcher.fd) != (epoll, fd));
        return if removed == Err(Failure::Plain) { Err(Failure::Plain) } else { Ok(()) };
    }
    let (flags, data) = event.ok_or(Failure::Errno(libc::EFAULT))?;
    if !companion.is_of_this_thread() {
        // Who waits already would hear nothing of how the connecting ends.
        short::settle(entry);
    }
    if operation == libc::EPOLL_CTL_MOD {
        twin.with_begun(entry, |end| companion.fabric.modify(end, flags, data))?;
        for watcher in lock(&socket.watchers).iter_mut() {
            if (watcher.epoll, watcher.fd) == (epoll, fd) {
                watcher.event = (flags, data);
            }
        }
        return Ok(());
    }
    twin.with_begun(entry, |end| companion.fabric.add(end, flags, data))?;
    companion.enroll(fd, entry);
    let companion = Arc::downgrade(&instance);
    lock(&socket.watchers).push(Watcher { epoll, fd, event: (flags, data), companion });
    Ok(())
}

/// The last number of `entry` is about to be closed, or is: as in the kernel's instances, nothing is told of it any
/// more, which another thread might take for news of the next connection with that number.
pub(crate) fn leave_all(entry: &Arc<Entry>) {
    let Some(socket) = entry.socket() else { return };
    let watchers = std::mem::take(&mut *lock(&socket.watchers));
    let end = entry.twin().and_then(Twin::current);
    for watcher in watchers {
        let Some(instance) = watcher.companion.upgrade() else { continue };
        let Some(companion) = instance.epoll() else { continue };
        if let Some(end) = &end {
            let _ = companion.fabric.remove(end);
        }
        companion.forget(watcher.fd, entry);
    }
}

/// A listener's fabric part has come into being: it belongs into all instances that the kernel's is in. Says
/// whether it is.
pub(crate) fn watch_listener(entry: &Arc<Entry>, end: &Arc<Socket>) -> bool {
    let Some(socket) = entry.socket() else { return false };
    lock(&socket.watchers).iter_mut().all(|watcher| watch_end(entry, end, watcher).is_ok())
}

fn watch_end(entry: &Arc<Entry>, end: &Arc<Socket>, watcher: &mut Watcher) -> Outcome<()> {
    let instance = Companion::of(watcher.epoll)?;
    let companion = instance.epoll().ok_or(Failure::Errno(libc::EINVAL))?;
    let (flags, data) = (watcher.event.0 & !NOT_OURS, watcher.event.1);
    if companion.fabric.modify(end, flags, data).is_err() {
        companion.fabric.add(end, flags, data)?;
    }
    companion.enroll(watcher.fd, entry);
    watcher.companion = Arc::downgrade(&instance);
    Ok(())
}

/// The kernel has done `epoll_ctl` for a listener, which may have a part on the fabric.
pub(crate) fn control_listener(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    entry: &Arc<Entry>,
    event: Option<(u32, u64)>,
) {
    let Some(socket) = entry.socket() else { return };
    let end = short::listening(entry, fd);
    let mut watchers = lock(&socket.watchers);
    let known = watchers.iter().position(|watcher| (watcher.epoll, watcher.fd) == (epoll, fd));
    let known = known.map(|at| watchers.swap_remove(at));
    if operation == libc::EPOLL_CTL_DEL {
        let companion = known.and_then(|watcher| watcher.companion.upgrade());
        if let (Some(end), Some(companion)) = (end, companion.as_ref().and_then(|instance| instance.epoll()))
        {
            let _ = companion.fabric.remove(&end);
            companion.forget(fd, entry);
        }
        return;
    }
    let Some(event) = event else { return };
    let mut watcher = Watcher { epoll, fd, event, companion: known.map_or(Weak::new(), |w| w.companion) };
    let fails = end.is_some_and(|end| watch_end(entry, &end, &mut watcher).is_err());
    watchers.push(watcher);
    drop(watchers);
    if let (true, Some(State::Listener(listener))) = (fails, socket.state()) {
        listener.short.bar();
    }
}

/// A socket that was in a kernel instance has got a twin.
pub(crate) fn move_over(entry: &Arc<Entry>, watcher: Watcher) {
    let mut ignored = epoll_event { events: 0, u64: 0 };
    // SAFETY: a valid event.
    unsafe { real::epoll_ctl(watcher.epoll, libc::EPOLL_CTL_DEL, watcher.fd, &mut ignored) };
    // It fails only for want of descriptors; then nothing is told of it, as little as otherwise.
    let _ = control(watcher.epoll, libc::EPOLL_CTL_ADD, watcher.fd, entry, Some(watcher.event));
}

/// A twin is the kernel's after all: so are its registrations.
pub(crate) fn move_back(entry: &Arc<Entry>) {
    let (Some(socket), Some(end)) = (entry.socket(), entry.twin().and_then(Twin::current)) else { return };
    for watcher in std::mem::take(&mut *lock(&socket.watchers)) {
        if let Some(companion) = watcher.companion.upgrade().as_ref().and_then(|instance| instance.epoll()) {
            let _ = companion.fabric.remove(&end);
            lock(&companion.members).remove(&watcher.fd);
        }
        let mut event = epoll_event { events: watcher.event.0, u64: watcher.event.1 };
        // SAFETY: a valid event.
        unsafe { real::epoll_ctl(watcher.epoll, libc::EPOLL_CTL_ADD, watcher.fd, &mut event) };
    }
}

/// This process has taken a connection over: its registrations are of an earlier end.
pub(crate) fn register_again(entry: &Arc<Entry>, end: &Arc<Socket>) {
    let Some(socket) = entry.socket() else { return };
    for watcher in lock(&socket.watchers).iter() {
        if let Some(companion) = watcher.companion.upgrade().as_ref().and_then(|instance| instance.epoll()) {
            let _ = companion.fabric.add(end, watcher.event.0, watcher.event.1);
        }
    }
}

/// The program's array of events.
struct Events {
    at: *mut epoll_event,
    max: usize,
    len: usize,
}

impl Events {
    fn room(&self) -> usize {
        self.max - self.len
    }

    fn push(&mut self, events: u32, data: u64) {
        // SAFETY: the program's array has room for `max`, and `len` is less.
        unsafe { self.at.add(self.len).write_unaligned(epoll_event { events, u64: data }) };
        self.len += 1;
    }

    /// Waits in the kernel; takes the fabric's own event out. Says whether it was there.
    fn wait(&mut self, epoll: c_int, limit: Option<Duration>, mask: *const sigset_t) -> Outcome<bool> {
        // SAFETY: room as said.
        let found = unsafe { kernel_wait(epoll, self.at.add(self.len), self.room() as c_int, limit, mask) };
        if found < 0 {
            return Err(Failure::Errno(errno()));
        }
        let (first, end) = (self.len, self.len + found as usize);
        let mut tagged = false;
        for place in first..end {
            // SAFETY: the kernel has written these.
            unsafe {
                let event = self.at.add(place).read_unaligned();
                if event.u64 == TAG {
                    tagged = true;
                } else {
                    self.at.add(self.len).write_unaligned(event);
                    self.len += 1;
                }
            }
        }
        Ok(tagged)
    }
}

unsafe fn kernel_wait(
    epoll: c_int,
    at: *mut epoll_event,
    room: c_int,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let Some(limit) = limit else {
        // SAFETY: the caller's array.
        return unsafe { real::epoll_pwait(epoll, at, room, -1, mask) };
    };
    if limit.subsec_nanos() % 1_000_000 == 0 {
        let ms = c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the caller's array.
        return unsafe { real::epoll_pwait(epoll, at, room, ms, mask) };
    }
    let time = timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: the caller's array.
    let found = unsafe { real::epoll_pwait2(epoll, at, room, &time, mask) };
    if found < 0 && errno() == libc::ENOSYS {
        let ms = c_int::try_from(limit.as_millis() + 1).unwrap_or(c_int::MAX);
        // SAFETY: the caller's array.
        return unsafe { real::epoll_pwait(epoll, at, room, ms, mask) };
    }
    found
}

/// `epoll_wait` on an instance that has a companion. `timeout` of none: for ever.
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
    let instance = table::entry(epoll).ok_or(Failure::Plain)?;
    let companion = instance.epoll().ok_or(Failure::Plain)?;
    companion.note_waiter();
    short::settle_all();
    short::resume(|| lock(&companion.members).values().cloned().collect());
    let mut events = Events { at, max: max as usize, len: 0 };
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
    let (zero, hold) = (Some(Duration::ZERO), Hold::default());
    let mut all_is_left = true;
    loop {
        if unclaimed::any() {
            unclaimed::look();
        } else if companion.is_empty() && !companion.is_exposed.load(Ordering::Acquire) {
            let left = if std::mem::take(&mut all_is_left) { timeout } else { left() };
            let tagged = events.wait(epoll, left, hold.mask_or(mask))?;
            if !tagged || events.len > 0 || left == zero {
                return Ok(events.len as c_int);
            }
            companion.hear(&hold)?;
            continue;
        }
        all_is_left = false;
        let tick = companion.waits.fetch_add(1, Ordering::Relaxed) % KERNEL_EVERY == 0;
        if tick || timeout == zero {
            events.wait(epoll, zero, mask)?;
        }
        if events.room() > 0 {
            companion.look(&mut events)?;
        }
        if events.len > 0 || timeout == zero {
            return Ok(events.len as c_int);
        }
        // Where all that is waited for is the kernel's, nothing comes sooner for who looks.
        let found = !companion.is_empty()
            && spin::until(&hold, || {
                events.wait(epoll, zero, mask)?;
                if events.room() > 0 {
                    companion.look(&mut events)?;
                }
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
        let armed = companion.fabric.arm()?;
        if armed.ready {
            companion.fabric.disarm(armed, false);
            continue;
        }
        let slept = events.wait(epoll, limit, hold.mask_or(mask));
        let before = errno();
        companion.fabric.disarm(armed, slept == Ok(true));
        set_errno(before);
        spin::slept();
        let tagged = slept?;
        if events.room() > 0 {
            companion.look(&mut events)?;
        }
        if events.len > 0 {
            return Ok(events.len as c_int);
        }
        if tagged && companion.is_empty() {
            companion.hear(&hold)?;
        }
    }
}
