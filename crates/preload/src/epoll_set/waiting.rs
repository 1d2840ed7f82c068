//! Waiting on an instance: looks at the fabric first, and sleeps in the kernel. As in the kernel, a wait holds the instance: when another thread
//! closes the number, it goes on by one of the library's.
use super::tokens::{registered, take_tokens, Told};
use super::EpollSet;
use crate::aside::{leaving, receiving};
use crate::call::{errno, lock, set_errno, Failure, Outcome};
use crate::claim::settling;
use crate::entry::{listener, Entry};
use crate::hearsay::news;
use crate::open_file::OpenFile;
use crate::short::begun;
use crate::sleep::LOOK_EVERY;
use crate::twin::waiting::any_finds_more;
use crate::{claim, real, spin, table};
use libc::{c_int, epoll_event, sigset_t, timespec};
use pd_client::core::{
    has_pairs, interruptible, sleep_for, Inside, KernelReason, Occasion, ASIDE, SET_BYTES,
};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One wait in so many looks at the kernel's members although the fabric has something.
const KERNEL_EVERY: u32 = 8;

/// One look of a spin in so many is at the kernel's members, too: it takes a system call, and a look at the fabric takes a few loads.
const SPIN_KERNEL_EVERY: u32 = 16;

/// Most members of which a wait that finds nothing asks whether their other ends are this process's.
const CATCHING_UP_MAX: usize = 64;

/// Events that tell a reader something.
const READ: u32 = IN | ALWAYS;
const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;
/// Events that are reported to those who do not ask for them.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// The program's array of events.
struct Events<'a> {
    instance: &'a OpenFile<Entry>,
    /// The program's number of the instance.
    epoll: c_int,
    at: *mut epoll_event,
    max: usize,
    len: usize,
    /// Names of registrations that the kernel and the fabric tell of, with the places of the kernel's events.
    leaving: Vec<(u64, usize)>,
    /// Names and places of the fabric's events that may lack what a peer has just done.
    partial: Vec<(u64, usize)>,
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

    /// Adds what the fabric has of a registration to what the kernel has told of it: a wait reports each registration once. Returns the place.
    fn join(&mut self, events: u32, data: u64, name: u64) -> usize {
        let Some(&(_, place)) = self.leaving.iter().find(|(known, _)| *known == name) else {
            self.push(events, data);
            return self.len - 1;
        };
        self.add(place, events);
        place
    }

    /// Adds `events` to those at `place`, which is less than `len`. Returns all of them.
    fn add(&mut self, place: usize, events: u32) -> u32 {
        // SAFETY: an event that was put there, inside the program's array.
        unsafe {
            let mut event = self.at.add(place).read_unaligned();
            event.events |= events;
            self.at.add(place).write_unaligned(event);
            event.events
        }
    }

    /// Returns the number of the instance, which is one of the library's once the program's is closed.
    fn number(&self) -> c_int {
        self.instance.number_or(self.epoll)
    }

    /// Waits in the kernel; takes tokens out. Says which there were.
    fn wait(&mut self, own: u64, limit: Option<Duration>, mask: *const sigset_t) -> Outcome<Told> {
        let mut number = self.number();
        let found = loop {
            // SAFETY: room as said.
            let found =
                unsafe { kernel_wait(number, self.at.add(self.len), self.room() as c_int, limit, mask) };
            if found >= 0 {
                break found;
            }
            let (errno, now) = (errno(), self.number());
            // Closed just before.
            if now == number || ![libc::EBADF, libc::EINVAL].contains(&errno) {
                return Err(Failure::Errno(errno));
            }
            number = now;
        };
        let (len, leaving) = (self.len, &mut self.leaving);
        let mut note = |name, place| leaving.push((name, len + place));
        // SAFETY: the kernel has written so many.
        let (left, told) =
            unsafe { take_tokens(self.at.add(len), found as usize, own, Some(self.instance), &mut note) };
        self.len += left;
        Ok(told)
    }
}

impl EpollSet {
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
        let now = news();
        let has_news = has_pairs() || self.news.swap(now, Ordering::Relaxed) != now;
        let found = self.fabric.look(room, &mut |flags, data, name| {
            // The kernel reports the other events of a connection that follows, with the rest.
            match flags & ASIDE {
                0 => match self.without_told(flags, name) {
                    0 => {}
                    flags => {
                        let place = events.join(flags, data, name);
                        if has_news || flags & READ == 0 {
                            events.partial.push((name, place));
                        }
                    }
                },
                _ => strays = true,
            }
        });
        if let Some(exposed) = exposed.as_mut() {
            **exposed = self.arm_exposed();
        }
        drop(exposed);
        found?;
        self.complete(events);
        if strays {
            self.follow(events);
            // A later wait finds it otherwise: what the kernel has told already it would tell twice.
            if events.len == 0 {
                in_kernel(events)?;
            }
        }
        Ok(())
    }

    /// Adds to events of the fabric what the peers have done before, as the kernel would show it.
    fn complete(&self, events: &mut Events<'_>) {
        for (name, place) in std::mem::take(&mut events.partial) {
            let Some((entry, (wanted, _))) = registered(events.instance, name as c_int) else { continue };
            let Some(twin) = entry.twin() else { continue };
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

    /// Members go on in the kernel, and follow. The program is told that those which cannot are ready, and learns why.
    fn follow(&self, events: &mut Events<'_>) {
        let members: Vec<_> = lock(&self.members).iter().map(|(&fd, entry)| (fd, entry.clone())).collect();
        for (fd, entry) in members {
            let Some(twin) = entry.twin() else { continue };
            let strays = twin.current().is_some_and(|end| end.ready(0) & ASIDE != 0);
            if !strays || leaving::leave(&entry, twin, KernelReason::PeerLeft) || events.room() == 0 {
                continue;
            }
            if let Some((_, (wanted, data))) = registered(events.instance, fd) {
                events.push((libc::EPOLLIN as u32) | (wanted & libc::EPOLLOUT as u32), data);
            }
        }
    }

    /// Has the driver bring what peers have done before, for a wait that only looks. Returns whether another look may find more.
    fn catch_up(&self) -> bool {
        let members: Vec<_> = lock(&self.members).values().take(CATCHING_UP_MAX).cloned().collect();
        let has_pair = |it: &Arc<Entry>| it.twin().is_some_and(|twin| twin.has_pair());
        any_finds_more(members.iter(), has_pair, |it| {
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
    let (mut all_is_left, mut caught_up) = (true, false);
    loop {
        if claim::any_pending() {
            settling::look();
        } else if set.is_idle() {
            let left = if std::mem::take(&mut all_is_left) { timeout } else { left() };
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
            return Ok(0);
        }
        let limit = if claim::any_pending() {
            Some(left.map_or(claim::LOOK_EVERY, |left| left.min(claim::LOOK_EVERY)))
        } else {
            left
        };
        let Some(slept) = set.sleep_armed(&mut events, limit, mask) else { continue };
        spin::slept();
        let told = slept?;
        set.look(&mut events, in_kernel)?;
        if events.len > 0 {
            return Ok(events.len as c_int);
        }
        if told.other || told.own && set.is_empty() {
            set.follow_told(told);
        }
    }
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
    // SAFETY: made from one, and not used again.
    let entry = unsafe { Arc::from_raw(entry) };
    if let Some(set) = entry.epoll() {
        set.unaware.fetch_sub(1, Ordering::SeqCst);
    }
}
