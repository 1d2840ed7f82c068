//! Epoll instances.
use super::hooks;
use crate::accepting::look_at_listener;
use crate::away::calls::Stays;
use crate::call::{aside, call, cancellation_point, errno, set_errno, Failure, Outcome};
use crate::epoll_set::{carrying, instances, registering, tokens, waiting};
use crate::short::accepting::announce;
use crate::short::reuse;
use crate::{lookup, reach, real, short, table};
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
        let time = Time { ends: timeout >= 0, is_now: timeout == 0 };
        wait((epoll, events, max), time, || of_ms(timeout), std::ptr::null(), plain)
    }

    fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t,
    ) -> c_int {
        let plain = || real::epoll_pwait(epoll, events, max, timeout, mask);
        let time = Time { ends: timeout >= 0, is_now: timeout == 0 };
        wait((epoll, events, max), time, || of_ms(timeout), mask, plain)
    }

    fn epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        let plain = || real::epoll_pwait2(epoll, events, max, timeout, mask);
        if !timeout.is_null() && !reach::may_be(timeout, size_of::<timespec>()) {
            return plain();
        }
        let limit = || (!timeout.is_null()).then(|| super::poll::of_timespec(&*timeout));
        let time = Time { ends: !timeout.is_null(), is_now: false };
        wait((epoll, events, max), time, limit, mask, plain)
    }
}

fn made(fd: c_int) -> c_int {
    if fd >= 0 && table::enabled() {
        aside(|| instances::made(fd));
    }
    fd
}

fn of_ms(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// Facts of a time-out that only the kernel has read.
#[derive(Clone, Copy)]
struct Time {
    ends: bool,
    is_now: bool,
}

/// Waits on an instance that may have a shadow epoll set, or get one meanwhile. `timeout` reads the program's.
unsafe fn wait(
    (epoll, events, max): (c_int, *mut epoll_event, c_int),
    time: Time,
    timeout: impl Fn() -> Option<Duration>,
    mask: *const sigset_t,
    plain: impl Fn() -> c_int,
) -> c_int {
    let room = (max.max(0) as usize).saturating_mul(size_of::<epoll_event>());
    if max <= 0 || !super::poll::is_mask(mask) {
        return plain();
    }
    if !reach::may_be(events, room) {
        if table::look(epoll) != table::EPOLL {
            return plain();
        }
        set_errno(libc::EFAULT);
        return -1;
    }
    if table::look(epoll) == table::PLAIN && table::enabled() {
        // Its number came in a way that the library does not see.
        aside(|| instances::received(epoll));
    }
    // SAFETY: the caller's array.
    let on_fabric = |left| call(|| unsafe { waiting::wait(epoll, events, max, left, mask) }, &plain);
    if table::look(epoll) == table::EPOLL && !waiting::is_the_kernels(epoll) {
        cancellation_point();
        return on_fabric(timeout());
    }
    // A call that does not sleep needs no waking.
    let since = (time.ends && !time.is_now).then(Instant::now);
    let sleeper = if !time.is_now { waiting::unaware(epoll) } else { None };
    // The instance may have got its first member since the look.
    let is_bare = !table::is_active(epoll)
        || match sleeper {
            // SAFETY: before its end.
            Some(sleeper) => unsafe { waiting::is_still_the_kernels(sleeper) },
            None => waiting::is_the_kernels(epoll),
        };
    let found = if is_bare { plain() } else { 0 };
    if let Some(sleeper) = sleeper {
        let before = errno();
        // SAFETY: once.
        unsafe { waiting::aware(sleeper) };
        set_errno(before);
    }
    if found < 0 {
        return found;
    }
    // SAFETY: the kernel has written so many.
    if is_bare && !unsafe { tokens::has_tokens(events, found as usize) } {
        return found;
    }
    let instance = table::epoll(epoll);
    // SAFETY: the kernel has written so many.
    let (left, _) =
        unsafe { tokens::take_tokens(events, found as usize, 0, instance.as_ref(), &mut |_, _| {}) };
    if left > 0 || instance.is_none() {
        return left as c_int;
    }
    let passed = since.map_or(Duration::ZERO, |since| since.elapsed());
    on_fabric(timeout().map(|timeout| timeout.saturating_sub(passed)))
}

unsafe fn control(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> Outcome<c_int> {
    // The kernel reads none to remove a member.
    let known = operation != libc::EPOLL_CTL_DEL && reach::is_readable(event, size_of::<epoll_event>());
    // SAFETY: the caller's event, if any.
    let event_of = || known.then(|| unsafe { event.read_unaligned() }).map(|e| (e.events, e.u64));
    let away = Stays::all(std::iter::once(fd));
    if !away.is_empty() {
        let entry = table::entry(fd).ok_or(Failure::Plain)?;
        // SAFETY: the caller's event, if any.
        let result = crate::call::checked(unsafe { real::epoll_ctl(epoll, operation, fd, event) })?;
        registering::control_fresh(epoll, operation, fd, &entry, event_of());
        return Ok(result);
    }
    // The kernel's call cannot say that it would have to wait.
    let entry =
        lookup::find_for_certain(fd).map_err(|_| Failure::Errno(libc::ENOMEM))?.ok_or(Failure::Plain)?;
    if entry.epoll().is_some() {
        carrying::expose(&entry);
        return Err(Failure::Plain);
    }
    if entry.twin().is_some() {
        carrying::control(epoll, operation, fd, &entry, event_of())?;
        return Ok(0);
    }
    reuse::renew(&entry);
    look_at_listener(fd);
    announce(fd);
    let socket = entry.socket().filter(|socket| socket.is_fresh() || short::may_listen());
    let socket = socket.ok_or(Failure::Plain)?;
    // SAFETY: the caller's event, if any.
    let result = unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    if result != 0 {
        return Err(Failure::Errno(crate::call::errno()));
    }
    aside(|| {
        if !socket.is_fresh() {
            return registering::control_listener(epoll, operation, fd, &entry, event_of());
        }
        registering::control_fresh(epoll, operation, fd, &entry, event_of());
    });
    Ok(0)
}
