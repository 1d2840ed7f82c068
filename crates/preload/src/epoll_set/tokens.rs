//! Takes tokens out of what the kernel has told: of the shadow epoll set, and of connections that leave the fabric.
use super::is_token;
use super::standing::{self, in_kernel_too, name};
use crate::aside::receiving;
use crate::call::lock;
use crate::entry::Entry;
use libc::{c_int, epoll_event};
use std::sync::Arc;

const ONCE: u32 = libc::EPOLLONESHOT as u32;
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// Meaning of an event of the kernel's.
enum Leaves {
    /// The program's.
    Program(epoll_event),
    /// The program's, of a registration with this name that the fabric may tell of, too.
    InBoth(epoll_event, u64),
    Nothing,
    /// Another process's.
    Other,
}

/// Which tokens were among what the kernel told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// The instance's own.
    pub(super) own: bool,
    /// Another process's.
    pub(super) other: bool,
}

/// Registration in an instance of a connection that leaves the fabric.
pub(super) fn registered(instance: &Arc<Entry>, fd: c_int) -> Option<(Arc<Entry>, (u32, u64))> {
    let entry = lock(&instance.epoll()?.members).get(&fd)?.clone();
    let event = lock(&entry.socket()?.watchers).iter().find(|it| it.is(instance, fd))?.event;
    Some((entry, event))
}

/// Translates an event of the kernel's.
fn told_of_leaving(instance: Option<&Arc<Entry>>, event: epoll_event) -> Leaves {
    if !standing::is_token(event.u64) {
        return Leaves::Program(event);
    }
    let fd = event.u64 as u32 as c_int;
    let Some((instance, (entry, (wanted, data)))) = instance.and_then(|it| Some((it, registered(it, fd)?)))
    else {
        return Leaves::Other;
    };
    let once = (wanted & ONCE != 0).then(|| Some((instance.epoll()?, entry.twin()?.current()?))).flatten();
    if once.as_ref().is_some_and(|(set, end)| set.fabric.is_spent(end, name(fd))) {
        // The fabric's part has reported.
        return Leaves::Nothing;
    }
    let mut told =
        entry.twin().map_or(event.events, |twin| receiving::told_by_kernel(&entry, twin, fd, event.events));
    if told != 0 {
        if let Some((set, end)) = once {
            // One event is all that comes, so it is of both parts.
            if end.received() > 0 {
                told |= wanted & READABLE;
            }
            set.fabric.spend(&end, name(fd));
        }
        return Leaves::InBoth(epoll_event { events: told, u64: data }, name(fd));
    }
    if wanted & ONCE != 0 {
        // The registration has told nothing yet.
        if let Some(epoll) = instance.any_fd() {
            in_kernel_too(epoll, libc::EPOLL_CTL_MOD, fd, wanted);
        }
    }
    Leaves::Nothing
}

/// Tells whether tokens are among what the kernel has told.
///
/// # Safety
/// `at` has so many events.
pub(crate) unsafe fn has_tokens(at: *const epoll_event, found: usize) -> bool {
    // SAFETY: the caller's promise.
    (0..found).any(|place| unsafe {
        let data = at.add(place).read_unaligned().u64;
        is_token(data) || standing::is_token(data)
    })
}

/// Takes tokens out of what the kernel has told of `instance`. Returns how much is left. `in_both` gets the name and the place of each
/// registration that the fabric may tell of, too.
///
/// # Safety
/// `at` has so many events.
pub(crate) unsafe fn take_tokens(
    at: *mut epoll_event,
    found: usize,
    own: u64,
    instance: Option<&Arc<Entry>>,
    in_both: &mut dyn FnMut(u64, usize),
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
            match told_of_leaving(instance, event) {
                Leaves::Program(theirs) => event = theirs,
                Leaves::InBoth(theirs, name) => {
                    in_both(name, left);
                    event = theirs;
                }
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
