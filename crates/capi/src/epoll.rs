//! Waiting for many sockets and pipes.
use crate::guard::guard;
use crate::pipe;
use libc::{c_int, epoll_event};
use pd_client::core::{insert, ready, with, Epoll, Named};
use pd_client::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

const EVENTS: u32 =
    ready::IN | ready::OUT | ready::ERR | ready::HUP | ready::RDHUP | ready::ONESHOT | ready::EDGE;

fn with_epoll<R>(epid: c_int, call: impl FnOnce(&Arc<Epoll>) -> Result<R>) -> Result<R> {
    with(epid, |named| match named {
        Named::Epoll(epoll) => call(epoll),
        Named::Socket(_) => Err(Error::invalid(format!("{epid} is a socket, not an epoll instance"))),
        Named::Other(_) => Err(Error::invalid(format!("{epid} is a pipe, not an epoll instance"))),
    })
}

/// See `pd_epoll(3)`.
#[no_mangle]
pub extern "C" fn pd_epoll_create(flags: c_int) -> c_int {
    guard(-1, || {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return Err(Error::invalid("flags other than EPOLL_CLOEXEC"));
        }
        insert(Named::Epoll(Epoll::new()))
    })
}

/// See `pd_epoll(3)`.
///
/// # Safety
/// `event` points to an event, except for `PD_EPOLL_CTL_DEL`.
#[no_mangle]
pub unsafe extern "C" fn pd_epoll_ctl(
    epid: c_int,
    op: c_int,
    sid: c_int,
    event: *const epoll_event,
) -> c_int {
    guard(-1, || {
        let wanted = || {
            if event.is_null() {
                return Err(Error::with_errno(libc::EFAULT, "the event is NULL"));
            }
            // SAFETY: not null; an event, the caller says.
            let event = unsafe { event.read_unaligned() };
            let (events, data) = (event.events, event.u64);
            if events & !EVENTS != 0 {
                return Err(Error::invalid(format!("events {:#x} are not supported", events & !EVENTS)));
            }
            Ok((events, data))
        };
        with_epoll(epid, |epoll| {
            with(sid, |named| match (named, op) {
                (Named::Socket(socket), libc::EPOLL_CTL_ADD) => {
                    wanted().and_then(|(events, data)| epoll.add(socket, events, data))
                }
                (Named::Socket(socket), libc::EPOLL_CTL_MOD) => {
                    wanted().and_then(|(events, data)| epoll.modify(socket, events, data))
                }
                (Named::Socket(socket), libc::EPOLL_CTL_DEL) => epoll.remove(socket),
                (Named::Other(other), libc::EPOLL_CTL_ADD) => {
                    let (events, data) = wanted()?;
                    let other = pipe::member(other)?;
                    epoll.add_other(&other, pipe::descriptor(&other)?, events, data)
                }
                (Named::Other(other), libc::EPOLL_CTL_MOD) => {
                    let (events, data) = wanted()?;
                    epoll.modify_other(&*pipe::member(other)?, events, data)
                }
                (Named::Other(other), libc::EPOLL_CTL_DEL) => epoll.remove_other(&*pipe::member(other)?),
                (Named::Epoll(_), _) => Err(Error::with_errno(
                    libc::ENOTSOCK,
                    format!("{sid} is an epoll instance, not a socket"),
                )),
                _ => Err(Error::invalid("the operation is not one of PD_EPOLL_CTL_*")),
            })
        })?;
        Ok(0)
    })
}

/// See `pd_epoll(3)`.
///
/// # Safety
/// `events` points to room for `max` events.
#[no_mangle]
pub unsafe extern "C" fn pd_epoll_wait(
    epid: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    guard(-1, || {
        let max = usize::try_from(max).unwrap_or(0);
        if events.is_null() && max > 0 {
            return Err(Error::with_errno(libc::EFAULT, "the place for the events is NULL"));
        }
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let mut count = 0;
        let mut report = |bits: u32, data: u64| {
            // SAFETY: at most `max` events are reported, for which the caller has room.
            unsafe { events.add(count).write_unaligned(epoll_event { events: bits, u64: data }) };
            count += 1;
        };
        Ok(with_epoll(epid, |epoll| epoll.wait(max, timeout, &mut report))? as c_int)
    })
}

/// See `pd_epoll(3)`.
#[no_mangle]
pub extern "C" fn pd_epoll_fd(epid: c_int) -> c_int {
    guard(-1, || with_epoll(epid, |epoll| epoll.fd()))
}
