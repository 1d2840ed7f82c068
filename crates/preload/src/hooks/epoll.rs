//! Epoll instances.
use super::hooks;
use super::socket::look_at_listener;
use crate::call::{aside, call, Failure, Outcome};
use crate::entry::{self, lock, Watcher};
use crate::{companion, real, short, table};
use libc::{c_int, epoll_event, sigset_t, timespec};
use std::sync::Weak;
use std::time::Duration;

hooks! {
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        if table::look(fd) == table::PLAIN {
            return real::epoll_ctl(epoll, operation, fd, event);
        }
        call(|| control(epoll, operation, fd, event), || real::epoll_ctl(epoll, operation, fd, event))
    }

    fn epoll_wait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        if table::look(epoll) == table::PLAIN {
            let found = real::epoll_wait(epoll, events, max, timeout);
            if table::look(epoll) == table::PLAIN {
                return found;
            }
            // It has got a companion meanwhile, and the wait may have been ended to tell so.
            if found < 0 {
                return found;
            }
        }
        wait(epoll, events, max, of_ms(timeout), std::ptr::null(), || real::epoll_wait(epoll, events, max, timeout))
    }

    fn epoll_pwait(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t,
    ) -> c_int {
        if table::look(epoll) == table::PLAIN {
            let found = real::epoll_pwait(epoll, events, max, timeout, mask);
            if found < 0 || table::look(epoll) == table::PLAIN {
                return found;
            }
        }
        let plain = || real::epoll_pwait(epoll, events, max, timeout, mask);
        wait(epoll, events, max, of_ms(timeout), mask, plain)
    }

    fn epoll_pwait2(
        epoll: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        if table::look(epoll) == table::PLAIN {
            let found = real::epoll_pwait2(epoll, events, max, timeout, mask);
            if found < 0 || table::look(epoll) == table::PLAIN {
                return found;
            }
        }
        let plain = || real::epoll_pwait2(epoll, events, max, timeout, mask);
        let limit = (!timeout.is_null()).then(|| super::poll::of_timespec(&*timeout));
        wait(epoll, events, max, limit, mask, plain)
    }
}

fn of_ms(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

unsafe fn wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    if max <= 0 || events.is_null() || table::look(epoll) != table::EPOLL {
        return plain();
    }
    // SAFETY: the caller's array.
    call(|| unsafe { companion::wait(epoll, events, max, timeout, mask) }, plain)
}

unsafe fn control(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> Outcome<c_int> {
    // SAFETY: the caller's event, if any.
    let event_of =
        || (!event.is_null()).then(|| unsafe { event.read_unaligned() }).map(|e| (e.events, e.u64));
    let entry = match table::look(fd) {
        table::EPOLL => table::entry(fd),
        _ => entry::find(fd),
    };
    let entry = entry.ok_or(Failure::Plain)?;
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
        let mut watchers = lock(&socket.watchers);
        watchers.retain(|watcher| (watcher.epoll, watcher.fd) != (epoll, fd));
        if let Some(event) = event_of().filter(|_| operation != libc::EPOLL_CTL_DEL) {
            watchers.push(Watcher { epoll, fd, event, companion: Weak::new() });
        }
    });
    Ok(0)
}
