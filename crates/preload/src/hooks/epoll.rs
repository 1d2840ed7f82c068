//! Epoll instances.
use super::hooks;
use super::socket::look_at_listener;
use crate::call::{aside, call, Failure, Outcome};
use crate::companion::{self, Told};
use crate::{entry, real, short, start, table};
use libc::{c_int, epoll_event, sigset_t, timespec};
use std::time::{Duration, Instant};

hooks! {
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::epoll_ctl(epoll, operation, fd, event);
        }
        call(|| control(epoll, operation, fd, event), || real::epoll_ctl(epoll, operation, fd, event))
    }

    fn epoll_create(size: c_int) -> c_int {
        let fd = real::epoll_create(size);
        made(fd)
    }

    fn epoll_create1(flags: c_int) -> c_int {
        let fd = real::epoll_create1(flags);
        made(fd)
    }

    fn epoll_wait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        let plain = || real::epoll_wait(epoll, events, max, timeout);
        wait(epoll, events, max, || of_ms(timeout), std::ptr::null(), plain)
    }

    fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t,
    ) -> c_int {
        let plain = || real::epoll_pwait(epoll, events, max, timeout, mask);
        wait(epoll, events, max, || of_ms(timeout), mask, plain)
    }

    fn epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        let plain = || real::epoll_pwait2(epoll, events, max, timeout, mask);
        let limit = || (!timeout.is_null()).then(|| super::poll::of_timespec(&*timeout));
        wait(epoll, events, max, limit, mask, plain)
    }
}

fn made(fd: c_int) -> c_int {
    if fd >= 0 && start::enabled() {
        aside(|| companion::made(fd));
    }
    fd
}

fn of_ms(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Waits on an instance that may have a companion, or get one meanwhile.
unsafe fn wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: impl Fn() -> Option<Duration>,
    mask: *const sigset_t,
    plain: impl Fn() -> c_int,
) -> c_int {
    if max <= 0 || events.is_null() {
        return plain();
    }
    if table::look(epoll) == table::PLAIN && start::enabled() {
        // Its number came in a way that the library does not see.
        aside(|| companion::received(epoll));
    }
    let timeout = timeout();
    // SAFETY: the caller's array.
    let on_fabric = |left| call(|| unsafe { companion::wait(epoll, events, max, left, mask) }, &plain);
    if table::look(epoll) == table::EPOLL {
        return on_fabric(timeout);
    }
    // Who does not sleep needs no waking.
    let sleeps = timeout.is_none_or(|timeout| !timeout.is_zero());
    let since = timeout.filter(|_| sleeps).map(|_| Instant::now());
    let sleeper = if sleeps { companion::unaware(epoll) } else { None };
    // It may have got its first member since it was looked at.
    let is_bare = !table::is_active(epoll);
    let found = if is_bare { plain() } else { 0 };
    if let Some(sleeper) = sleeper {
        // SAFETY: once.
        aside(|| unsafe { companion::aware(sleeper) });
    }
    if found < 0 {
        return found;
    }
    let instance = table::epoll(epoll);
    // SAFETY: the kernel has written so many.
    let (left, told) = unsafe { companion::take_tokens(events, found as usize, 0, instance.as_ref()) };
    if left > 0 || is_bare && told == Told::default() || instance.is_none() {
        return left as c_int;
    }
    let passed = since.map_or(Duration::ZERO, |since| since.elapsed());
    on_fabric(timeout.map(|timeout| timeout.saturating_sub(passed)))
}

unsafe fn control(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> Outcome<c_int> {
    // SAFETY: the caller's event, if any.
    let event_of =
        || (!event.is_null()).then(|| unsafe { event.read_unaligned() }).map(|e| (e.events, e.u64));
    let entry = entry::find_any(fd).ok_or(Failure::Plain)?;
    if let Some(inner) = entry.epoll() {
        inner.expose();
        return Err(Failure::Plain);
    }
    if entry.twin().is_some() {
        companion::control(epoll, operation, fd, &entry, event_of())?;
        return Ok(0);
    }
    short::renew(&entry);
    look_at_listener(fd);
    let socket = entry.socket().filter(|socket| socket.is_fresh() || short::wanted());
    let socket = socket.ok_or(Failure::Plain)?;
    // SAFETY: the caller's event, if any.
    let result = unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    if result != 0 {
        return Err(Failure::Errno(crate::call::errno()));
    }
    aside(|| {
        if !socket.is_fresh() {
            return companion::control_listener(epoll, operation, fd, &entry, event_of());
        }
        companion::control_fresh(epoll, operation, fd, &entry, event_of());
    });
    Ok(0)
}
