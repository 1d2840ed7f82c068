//! Waiting on an instance: looks at the fabric first, and sleeps in the kernel. As in the kernel, a wait holds the instance: when another thread
//! closes the number, it goes on by one of the library's.
use super::events::{told_in_kernel, Events, ALWAYS, IN, READ};
use super::tokens::{registered, Told};
use super::EpollSet;
use crate::aside::{leaving, receiving};
use crate::call::{errno, lock, set_errno, Failure, Outcome};
use crate::claim::settling;
use crate::entry::{listener, Entry};
use crate::hearsay::news;
use crate::short::begun;
use crate::sleep::LOOK_EVERY;
use crate::twin::waiting::any_finds_more;
use crate::{claim, spin, table};
use libc::{c_int, epoll_event, sigset_t};
use pd_client::core::{has_pairs, sleep_for, Inside, KernelReason, Occasion, ASIDE, LEFT};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One wait in so many looks at the kernel's members although the fabric has something.
const KERNEL_EVERY: u32 = 8;

/// One look of a spin in so many is at the kernel's members, too: it takes a system call, and a look at the fabric takes a few loads.
const SPIN_KERNEL_EVERY: u32 = 16;

/// Most members of which a wait that finds nothing asks whether their other ends are this process's.
const CATCHING_UP_MAX: usize = 64;

impl EpollSet {
    /// Tells what the fabric has, and what of the kernel's members that follow their peers there have found: `in_kernel` asks it.
    fn look(
        &self,
        events: &mut Events<'_>,
        in_kernel: impl FnOnce(&mut Events<'_>) -> Outcome<Told>,
    ) -> Outcome<()> {
        if self.look_on_fabric(events)? {
            let followed = self.follow(events);
            if events.len == 0 {
                in_kernel(events)?;
                self.look_on_fabric(events)?;
            } else {
                // The kernel would tell once more of what it has told already.
                followed.into_iter().for_each(|fd| events.push_level(fd));
            }
        }
        Ok(())
    }

    /// Tells what the fabric has. Returns whether members have still to follow their peers.
    fn look_on_fabric(&self, events: &mut Events<'_>) -> Outcome<bool> {
        if events.room() == 0 {
            return Ok(false);
        }
        let mut exposed = self.is_exposed.load(Ordering::Acquire).then(|| lock(&self.exposed));
        if let Some(armed) = exposed.as_mut().and_then(|armed| armed.take()) {
            self.fabric.disarm(armed, true);
        }
        let (room, mut strays) = (events.room(), false);
        let now = news();
        let has_news = has_pairs() || self.news.swap(now, Ordering::Relaxed) != now;
        let found = self.fabric.look(room, &mut |flags, data, name| {
            if flags & ASIDE != 0 {
                // The kernel reports the other events of a connection that follows, with the rest.
                strays = true;
                return;
            }
            let told = self.without_told(flags & !LEFT, name);
            if told != 0 {
                let place = events.join(told, data, name);
                if has_news || flags & LEFT != 0 || told & READ == 0 {
                    events.partial.push((name, place));
                }
            }
        });
        if let Some(exposed) = exposed.as_mut() {
            **exposed = self.arm_exposed();
        }
        drop(exposed);
        found?;
        self.complete(events);
        Ok(strays)
    }

    /// Adds to events of the fabric what the peers have done before, as the kernel would show it.
    fn complete(&self, events: &mut Events<'_>) {
        for (name, place) in std::mem::take(&mut events.partial) {
            let Some((entry, (wanted, _))) = registered(events.instance, name as c_int) else { continue };
            let Some(twin) = entry.twin() else { continue };
            if twin.progress().sends() {
                events.add(place, told_in_kernel(&entry, twin, name as c_int, wanted));
                continue;
            }
            let misses = wanted & IN != 0 && events.add(place, 0) & READ == 0;
            if twin.hear(&entry) || misses && twin.catch_up(Occasion::Frequent) {
                let flags = twin.ready(&entry, wanted) & (wanted | ALWAYS);
                events.add(place, self.without_told(flags, name));
            }
        }
    }

    /// Returns a member's flags without an error that a call in the kernel has told already.
    fn without_told(&self, flags: u32, name: u64) -> u32 {
        const FAILED: u32 = libc::EPOLLERR as u32;
        if flags & FAILED == 0 {
            return flags;
        }
        let member = lock(&self.members).get(&(name as c_int)).cloned();
        let is_told = |entry: &Arc<Entry>| entry.twin().is_some_and(|twin| receiving::is_told(entry, twin));
        if member.as_ref().is_some_and(is_told) {
            flags & !FAILED
        } else {
            flags
        }
    }

    /// Members go on in the kernel, and follow. The program is told that those which cannot are ready, and learns why. Returns the numbers of the
    /// others.
    fn follow(&self, events: &mut Events<'_>) -> Vec<c_int> {
        let members: Vec<_> = lock(&self.members).iter().map(|(&fd, entry)| (fd, entry.clone())).collect();
        let mut followed = Vec::new();
        for (fd, entry) in members {
            let Some(twin) = entry.twin() else { continue };
            if twin.current().is_none_or(|end| end.ready(0) & ASIDE == 0) {
                continue;
            }
            if leaving::leave(&entry, twin, KernelReason::PeerLeft) {
                followed.push(fd);
            } else if let (true, Some((_, (wanted, data)))) =
                (events.room() > 0, registered(events.instance, fd))
            {
                events.push((libc::EPOLLIN as u32) | (wanted & libc::EPOLLOUT as u32), data);
            }
        }
        followed
    }

    /// Has the driver bring what peers have done before, for a wait that only looks. Returns whether another look may find more.
    fn catch_up(&self) -> bool {
        let members: Vec<_> = lock(&self.members).values().take(CATCHING_UP_MAX).cloned().collect();
        let has_pair = |it: &Arc<Entry>| it.twin().is_some_and(|twin| twin.has_pair());
        any_finds_more(&members, has_pair, |it| {
            it.twin().is_some_and(|twin| twin.hear(it) || twin.catch_up(Occasion::Rare))
        })
    }

    /// Looks at the fabric for a while, and at times at the kernel's members. Returns whether either had something.
    fn spin(
        &self,
        events: &mut Events<'_>,
        in_kernel: impl Fn(&mut Events<'_>) -> Outcome<Told>,
    ) -> Outcome<bool> {
        // Where all members are the kernel's, a look at the fabric finds nothing.
        if self.is_empty() {
            return Ok(false);
        }
        let mut looks = 0;
        spin::until(|| {
            looks += 1;
            if looks % SPIN_KERNEL_EVERY == 0 {
                in_kernel(events)?;
            }
            self.look(events, &in_kernel)?;
            Ok(events.len > 0)
        })
    }

    /// Sleeps in the kernel, as if there was nothing on the fabric. None: there is something by now.
    fn sleep_idle(
        &self,
        events: &mut Events<'_>,
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> Outcome<Option<Told>> {
        self.unaware.fetch_add(1, Ordering::SeqCst);
        let told = self.is_idle().then(|| events.wait(self.token, limit, mask));
        self.unaware.fetch_sub(1, Ordering::SeqCst);
        told.transpose()
    }

    /// Sleeps in the kernel with the fabric armed to end the sleep. None: the fabric has something at once.
    fn sleep_armed(
        &self,
        events: &mut Events<'_>,
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> Option<Outcome<Told>> {
        let armed = if self.hosted.load(Ordering::Acquire) { self.fabric.arm().ok() } else { None };
        match armed {
            Some(armed) if armed.ready => {
                self.fabric.disarm(armed, false);
                None
            }
            Some(armed) => {
                let slept = events.wait(self.token, limit, mask);
                let before = errno();
                self.fabric.disarm(armed, slept.is_ok_and(|told| told.own));
                set_errno(before);
                Some(slept)
            }
            None => {
                let limit = limit.map_or(LOOK_EVERY, |limit| limit.min(LOOK_EVERY));
                Some(events.wait(self.token, Some(limit), mask))
            }
        }
    }

    /// A token has come, and nothing else.
    fn follow_told(&self, told: Told) {
        let armed =
            if told.own && self.hosted.load(Ordering::Relaxed) { self.fabric.arm().ok() } else { None };
        match armed {
            Some(armed) => self.fabric.disarm(armed, true),
            // The event is for another process, which may take its time.
            None => drop(sleep_for(LOOK_EVERY)),
        }
    }
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
    let mut instance = table::file(epoll).filter(|file| file.epoll().is_some()).ok_or(Failure::Plain)?;
    if instance.epoll().is_some_and(EpollSet::is_active) {
        let known = EpollSet::activate(epoll, instance.entry().clone());
        if !Arc::ptr_eq(&known, &instance) {
            instance = known.file();
        }
    }
    let set = instance.epoll().ok_or(Failure::Plain)?;
    set.note_waiter();
    set.take_members(&instance);
    begun::settle_all();
    listener::resume(|| lock(&set.members).values().cloned().collect());
    let events = Events {
        instance: &instance,
        epoll,
        at,
        max: max as usize,
        len: 0,
        only_looks: timeout == Some(Duration::ZERO),
        leaving: Vec::new(),
        partial: Vec::new(),
    };
    let result = wait_for(set, events, timeout, mask);
    let before = errno();
    set.fabric.pass_on();
    set.tell_left();
    set_errno(before);
    result
}

/// The wait of [`wait`], into `events`.
fn wait_for(
    set: &EpollSet,
    mut events: Events<'_>,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Outcome<c_int> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
    let (zero, own) = (Some(Duration::ZERO), set.token);
    let in_kernel = |events: &mut Events<'_>| events.wait(own, zero, mask);
    let (mut all_is_left, mut caught_up, mut had_tokens) = (true, false, false);
    loop {
        if claim::any_pending() {
            settling::look();
        } else if set.is_idle() {
            let left = if std::mem::take(&mut all_is_left) { timeout } else { left() };
            events.only_looks |= left == zero;
            let Some(told) = set.sleep_idle(&mut events, left, mask)? else { continue };
            if told == Told::default() || events.len > 0 || left == zero {
                return Ok(events.len as c_int);
            }
            set.follow_told(told);
            continue;
        }
        all_is_left = false;
        let tick = set.waits.fetch_add(1, Ordering::Relaxed) % KERNEL_EVERY == 0;
        if tick || timeout == zero {
            in_kernel(&mut events)?;
        }
        set.look(&mut events, in_kernel)?;
        if events.len == 0 && timeout == zero && !std::mem::replace(&mut caught_up, true) && set.catch_up() {
            continue;
        }
        if events.len > 0 || timeout == zero {
            return Ok(events.len as c_int);
        }
        if set.spin(&mut events, in_kernel)? {
            return Ok(events.len as c_int);
        }
        let left = left();
        if left == zero {
            if had_tokens {
                // Tokens may have had the room of what the kernel has.
                events.only_looks = true;
                in_kernel(&mut events)?;
            }
            return Ok(events.len as c_int);
        }
        let limit = if claim::any_pending() {
            Some(left.map_or(claim::LOOK_EVERY, |left| left.min(claim::LOOK_EVERY)))
        } else {
            left
        };
        let Some(slept) = set.sleep_armed(&mut events, limit, mask) else { continue };
        spin::slept();
        let told = slept?;
        had_tokens |= told != Told::default();
        set.look(&mut events, in_kernel)?;
        if events.len > 0 {
            return Ok(events.len as c_int);
        }
        if told.other || told.own && set.is_empty() {
            set.follow_told(told);
        }
    }
}

/// Tells whether all members of an instance with a shadow epoll set are the kernel's by now, so that a wait needs nothing but the kernel.
pub(crate) fn is_the_kernels(epoll: c_int) -> bool {
    let _inside = Inside::enter();
    !claim::any_pending() && table::is_epoll_with(epoll, EpollSet::is_the_kernels)
}

/// [`is_the_kernels`] of a sleeper that [`unaware`] has returned.
///
/// # Safety
/// Before [`aware`].
pub(crate) unsafe fn is_still_the_kernels(sleeper: *const Entry) -> bool {
    let _inside = Inside::enter();
    // SAFETY: held until `aware`.
    let entry = unsafe { &*sleeper };
    !claim::any_pending() && entry.epoll().is_some_and(EpollSet::is_the_kernels)
}

/// Notes that a thread is about to sleep in the kernel's instance as if there was nothing on the fabric. Returns a pointer for
/// [`aware`]. The pointer has no destructor, for the thread may be cancelled.
pub(crate) fn unaware(epoll: c_int) -> Option<*const Entry> {
    let _inside = Inside::enter();
    let entry = table::epoll(epoll)?;
    entry.epoll()?.unaware.fetch_add(1, Ordering::SeqCst);
    Some(Arc::into_raw(entry))
}

/// Ends the sleep that [`unaware`] began.
///
/// # Safety
/// Once for each [`unaware`].
pub(crate) unsafe fn aware(entry: *const Entry) {
    let _inside = Inside::enter();
    // SAFETY: made from one, and not used again.
    let entry = unsafe { Arc::from_raw(entry) };
    if let Some(set) = entry.epoll() {
        set.unaware.fetch_sub(1, Ordering::SeqCst);
    }
}
