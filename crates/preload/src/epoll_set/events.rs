//! The program's array of events, and what the kernel puts there.
use super::tokens::{registered, take_tokens, Told};
use crate::aside::receiving;
use crate::call::{errno, set_errno, Failure, Outcome};
use crate::entry::Entry;
use crate::open_file::OpenFile;
use crate::real;
use crate::sleep::kernel_poll;
use crate::twin::Twin;
use libc::{c_int, epoll_event, sigset_t, timespec};
use pd_client::core::{interruptible, SET_BYTES};
use std::sync::Arc;
use std::time::Duration;

/// Most tokens in an instance: its own, and another process's.
const TOKENS_MAX: usize = 2;

/// Events that tell a reader something.
pub(super) const READ: u32 = IN | ALWAYS;
/// Events that a reader asks for.
pub(super) const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP) as u32;
/// Events that are reported to those who do not ask for them.
pub(super) const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// The program's array of events.
pub(super) struct Events<'a> {
    pub(super) instance: &'a OpenFile<Entry>,
    /// The program's number of the instance.
    pub(super) epoll: c_int,
    pub(super) at: *mut epoll_event,
    pub(super) max: usize,
    pub(super) len: usize,
    /// The program does not wait, or no longer.
    pub(super) only_looks: bool,
    /// Names of registrations that the kernel and the fabric tell of, with the places of the kernel's events.
    pub(super) leaving: Vec<(u64, usize)>,
    /// Names and places of the fabric's events that may lack what a peer has just done.
    pub(super) partial: Vec<(u64, usize)>,
}

impl Events<'_> {
    pub(super) fn room(&self) -> usize {
        self.max - self.len
    }

    pub(super) fn push(&mut self, events: u32, data: u64) {
        // SAFETY: the program's array has room for `max`, and `len` is less.
        unsafe { self.at.add(self.len).write_unaligned(epoll_event { events, u64: data }) };
        self.len += 1;
    }

    /// Adds what the fabric has of a registration to what the kernel has told of it: a wait reports each registration once. Returns the place.
    pub(super) fn join(&mut self, events: u32, data: u64, name: u64) -> usize {
        let Some(&(_, place)) = self.leaving.iter().find(|(known, _)| *known == name) else {
            self.push(events, data);
            return self.len - 1;
        };
        self.add(place, events);
        place
    }

    /// Adds `events` to those at `place`, which is less than `len`. Returns all of them.
    pub(super) fn add(&mut self, place: usize, events: u32) -> u32 {
        // SAFETY: an event that was put there, inside the program's array.
        unsafe {
            let mut event = self.at.add(place).read_unaligned();
            event.events |= events;
            self.at.add(place).write_unaligned(event);
            event.events
        }
    }

    /// Adds what holds of a member that has just followed its peer into the kernel. Omits registrations for edges, and those that report
    /// once: a later wait tells of them.
    pub(super) fn push_level(&mut self, fd: c_int) {
        const LATER: u32 = (libc::EPOLLET | libc::EPOLLONESHOT) as u32;
        let Some((entry, (wanted, data))) = registered(self.instance, fd) else { return };
        let Some(twin) = entry.twin().filter(|_| wanted & LATER == 0 && self.room() > 0) else { return };
        let left = twin.current().map_or(0, |end| end.ready(0) & wanted & (libc::EPOLLIN as u32));
        let told = told_in_kernel(&entry, twin, fd, wanted) | left;
        if told != 0 {
            self.push(told, data);
        }
    }

    /// Returns the number of the instance, which is one of the library's once the program's is closed.
    fn number(&self) -> c_int {
        self.instance.number_or(self.epoll)
    }

    /// Waits in the kernel; takes tokens out. Returns which there were. For a program that only looks, looks behind tokens that take all of its
    /// room, too.
    pub(super) fn wait(&mut self, own: u64, limit: Option<Duration>, mask: *const sigset_t) -> Outcome<Told> {
        let (before, mut all) = (self.len, Told::default());
        loop {
            let told = self.wait_once(own, limit, mask)?;
            // The kernel tells each token again when it has told the rest.
            let is_again = told.own && all.own || told.other && all.other || told == Told::default();
            all = Told { own: told.own | all.own, other: told.other | all.other };
            if !self.only_looks || self.len > before || is_again || self.room() > TOKENS_MAX {
                return Ok(all);
            }
        }
    }

    fn wait_once(&mut self, own: u64, limit: Option<Duration>, mask: *const sigset_t) -> Outcome<Told> {
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

/// Returns what the kernel tells of a connection that sends there, and still has bytes on the fabric.
#[cold]
pub(super) fn told_in_kernel(entry: &Arc<Entry>, twin: &Twin, fd: c_int, wanted: u32) -> u32 {
    let mut poll = [libc::pollfd { fd, events: wanted as i16, revents: 0 }];
    match kernel_poll(&mut poll, Some(Duration::ZERO), std::ptr::null()) {
        Ok(1) => {
            let told = receiving::told_by_kernel(entry, twin, fd, u32::from(poll[0].revents as u16));
            // Another thread may have closed the number, which is no event of an instance.
            told & (wanted | ALWAYS)
        }
        _ => 0,
    }
}
